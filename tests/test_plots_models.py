"""Sketches of clients' own models are those of a loop; pictures of them, and of found clusters, show what they say."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

import jaxfl
from jaxfl import local_sketches, methods, plots, tree
from jaxfl.clustering import sketch
from jaxfl.data import conditions
from jaxfl.data.clients import Plan
from jaxfl.local import local_train
from jaxfl.plots import examples, maps
from jaxfl.random import Stream, key_for

TRAIN = jaxfl.FineTune(optax.sgd(0.1, momentum=0.5), epochs=2, batch_size=7)
ROUNDS, SEED = 3, 5


@pytest.fixture(scope="module")
def ran():
    """A method and its run on 12 clients of four rotations; client 1 has no rows, client 2 is ill."""
    data = jaxfl.data.load("rotated-digits", num_clients=12, rows_per_client=20)
    size = np.asarray(data.train.size).copy()
    size[1], size[3] = 0, 9
    data = dataclasses.replace(data, train=dataclasses.replace(data.train, size=size))
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    method = methods.fesem(task, optax.sgd(0.1), num_clusters=4)
    return method, jaxfl.run(method, data, rounds=ROUNDS, seed=SEED, eval_every=ROUNDS)


def by_hand(method, result, client):
    """Returns a client's model, trained by itself from its centre."""
    train = local_train(method.task, TRAIN.optimizer, local_epochs=TRAIN.epochs, batch_size=TRAIN.batch_size)
    served = tree.take(result.state.centres, int(result.evaluation.cluster[client]))
    own = key_for(jax.random.key(SEED), Stream.FINETUNE, ROUNDS, client)
    return tree.ravel(train(own, served, result.data, jnp.int32(client))[0])


@pytest.mark.parametrize(("plan", "size"), [("auto", 650), (Plan(1), 64), (Plan(3), 64), (Plan(None), 64)])
def test_sketches_are_those_of_clients_trained_one_at_a_time(ran, plan, size):
    method, result = ran
    clients = [7, 3, 1, 7, 10]  # not sorted, one twice, one without rows
    found = local_sketches(method, result, TRAIN, clients=clients, size=size, plan=plan)
    assert found.points.shape == (5, size) and found.points.dtype == np.float32
    assert found.clients.tolist() == clients and found.trained.tolist() == [True, True, False, True, True]
    np.testing.assert_array_equal(found.cluster, result.evaluation.cluster[clients])
    for point, client in zip(found.points, clients, strict=True):
        model = by_hand(method, result, client)
        wanted = model if size == 650 else sketch.sketch(key_for(jax.random.key(SEED), Stream.SKETCH), model, size)
        np.testing.assert_allclose(point, wanted, rtol=1e-5, atol=1e-5)


def test_layers_and_draws(ran):
    method, result = ran
    everyone = local_sketches(method, result, TRAIN, layers="bias")
    assert everyone.clients.tolist() == [0, *range(2, 12)] and everyone.points.shape == (11, 10)
    model = by_hand(method, result, 4)  # leaves in the order of their names: the bias first
    np.testing.assert_allclose(everyone.points[3], model[:10], rtol=1e-5, atol=1e-5)
    draws = [local_sketches(method, result, TRAIN, clients=4, layers="bias", seed=seed) for seed in (0, 0, 1)]
    first, again, other = draws
    assert len(set(first.clients.tolist())) == 4 and 1 not in first.clients
    assert first.clients.tolist() == again.clients.tolist() != other.clients.tolist()
    where = np.searchsorted(everyone.clients, first.clients)
    np.testing.assert_allclose(first.points, everyone.points[where], rtol=1e-5, atol=1e-6)


def test_a_model_that_diverges_is_given_up_for_the_one_served(ran):
    method, result = ran
    found = local_sketches(method, result, jaxfl.FineTune(optax.sgd(jnp.inf)), clients=[2, 4])
    assert not found.trained.any()
    served = [tree.ravel(tree.take(result.state.centres, int(slot))) for slot in found.cluster]
    np.testing.assert_allclose(found.points, np.stack(served), rtol=1e-6)
    with pytest.raises(ValueError, match="sketches must hold the models of at least 2 clients .*got 0"):
        plots.models(found)


def test_nobody_attacks_or_is_late(ran):
    method, result = ran
    worse = conditions.straggle(conditions.attack(result.data, "sign-flip", 0.5, scale=10.0), 0.9)
    plain, found = (local_sketches(method, result._replace(data=data), TRAIN) for data in (result.data, worse))
    np.testing.assert_allclose(found.points, plain.points, rtol=1e-5, atol=1e-6)


def test_clients_never_sampled_are_assigned(ran):
    method, result = ran
    stocfl = methods.stocfl(method.task, optax.sgd(0.1))
    result = jaxfl.run(stocfl, result.data, rounds=1, cohort=3, seed=SEED)
    found = local_sketches(stocfl, result, TRAIN, layers="bias")
    assert (found.cluster != np.asarray(result.state.cluster)[found.clients]).any()
    np.testing.assert_array_equal(found.cluster, result.evaluation.cluster[found.clients])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"clients": 0}, r"clients must be from 1 to the number of clients with training rows \(11\), got 0"),
        ({"clients": 12}, "got 12; None takes them all"),
        ({"clients": [0, 12]}, "clients must be ids from 0 to 11, got 12"),
        ({"clients": [-1]}, "clients must be ids from 0 to 11, got -1"),
        ({"clients": []}, "clients must be a number, or a list of at least one id"),
        ({"clients": [0.5]}, "clients must be a number, or a list of at least one id"),
        ({"layers": "Conv"}, "'Conv' matches none of"),
    ],
)
def test_refusals(ran, arguments, words):
    method, result = ran
    with pytest.raises(ValueError, match=words):
        local_sketches(method, result, TRAIN, **arguments)


def test_a_result_of_another_method_is_refused(ran):
    method, result = ran
    other = methods.fedavg(method.task, optax.sgd(0.1))
    with pytest.raises(ValueError, match="result must be of a run of this method.*got FeSEMState"):
        local_sketches(other, result, TRAIN)


def planted(sizes=(5, 8), features=6, apart=10.0, seed=0):
    """Returns the sketches of clients around centres that lie apart; the cluster of place k has slot 3 + k."""
    random = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(len(sizes)), sizes)
    points = apart * cluster[:, None] + random.normal(size=(len(cluster), features))
    clients = np.arange(len(cluster), dtype=np.int32)
    own = np.ones(len(cluster), bool)
    return jaxfl.Sketches(points.astype(np.float32), clients, (3 + cluster).astype(np.int32), own)


def dots(axes):
    """Returns the places `[M, 2]` and the colours of the dots."""
    (collection,) = axes.collections
    return np.asarray(collection.get_offsets()), np.array([to_hex(c).upper() for c in collection.get_facecolor()])


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_planted_groups_separate_and_have_colours():
    figure = plots.models(planted())
    assert legend(figure) == ["1 (8)", "2 (5)"]  # the larger first
    pca, tsne = figure.axes
    for axes in (pca, tsne):
        places, colors = dots(axes)
        one, other = (places[colors == color] for color in plots.palette()[:2])
        assert len(one) == 8 and len(other) == 5
        within = max(np.linalg.norm(part - part.mean(0), axis=1).max() for part in (one, other))
        assert np.linalg.norm(one.mean(0) - other.mean(0)) > 2 * within
    sketches = planted()
    values = np.linalg.svd(sketches.points - sketches.points.mean(0))[1] ** 2
    assert pca.get_xlabel() == f"component 1 ({100 * values[0] / values.sum():.1f} % of the variance)"
    assert tsne.get_title(loc="left") == "t-SNE, perplexity 4"  # a third of the others
    spread = np.ptp(dots(pca)[0], axis=0)
    assert spread[0] == pytest.approx(np.ptp(maps.principal(sketches.points - sketches.points.mean(0))[0][:, 0]))


def test_a_run_separates_in_the_plane_with_the_colours_of_its_clusters(ran):
    method, result = ran
    sketches = local_sketches(method, result, TRAIN)
    figure = plots.models(sketches, by="pca", result=result)
    (axes,) = figure.axes
    places, colors = dots(axes)
    assert len(places) == 11 and len(set(colors)) == 4
    centres = {color: places[colors == color].mean(0) for color in colors}
    for place, color in zip(places, colors, strict=True):
        assert min(centres, key=lambda one: np.linalg.norm(place - centres[one])) == color
    # the numbers of clusters(result), where the one without rows is drawn as well
    everyone = [text.get_text() for text in plots.clusters(result).legends[0].get_texts()]
    assert [text.split()[0] for text in legend(figure)] == [text.split()[0] for text in everyone]
    assert figure._suptitle.get_text() == "rotated-digits: local models of 11 clients"


@pytest.mark.parametrize(
    "sketches",
    [
        pytest.param(planted((1, 1)), id="two"),
        pytest.param(planted((2, 1)), id="three"),
        pytest.param(planted((4, 3), features=1), id="one number"),
        pytest.param(planted((4, 4), apart=0.0)._replace(points=np.ones((8, 3), np.float32)), id="equal"),
        pytest.param(planted((1,) * 40), id="a cluster each"),
        pytest.param(planted((6,))._replace(cluster=np.full(6, -1, np.int32)), id="nobody in a cluster"),
    ],
)
def test_models_for_few_and_strange(sketches):
    figure = plots.models(sketches)
    for axes in figure.axes:
        places, _ = dots(axes)
        assert places.shape == (len(sketches.points), 2) and np.isfinite(places).all()
    FigureCanvasAgg(figure).draw()
    box = figure.legends[0].get_window_extent()
    assert box.x1 <= figure.bbox.x1 and box.y0 >= 0
    assert all(axes.get_window_extent().x1 <= box.x0 for axes in figure.axes)


def test_clients_without_a_model_of_their_own_are_left_out():
    sketches = planted()
    own = np.arange(13) > 2
    strange = np.where(own[:, None], sketches.points, 1e6).astype(np.float32)
    figure = plots.models(sketches._replace(points=strange, trained=own), by="pca")
    assert len(dots(figure.axes[0])[0]) == 10 and legend(figure) == ["1 (8)", "2 (2)"]
    assert "local models of 10 clients; 3 without one" in figure._suptitle.get_text()


@pytest.mark.parametrize("by", ["umap", [], ["pca", "mds"]])
def test_unknown_maps_are_refused(by):
    with pytest.raises(ValueError, match='by must be "pca", "tsne" or several'):
        plots.models(planted(), by=by)


def words(figure):
    """Returns names of rows, words below images in the order of drawing, and the title."""
    (axes,) = figure.axes
    texts = [text.get_text() for text in axes.texts]
    return (
        [text for text in texts if "\n" in text],
        [text for text in texts if "\n" not in text],
        figure.texts[0].get_text(),
    )


@pytest.fixture(scope="module")
def shifted():
    """Eight clients whose labels are shifted; half of them are flipped besides, as attackers do."""
    data = jaxfl.data.load("shifted-digits", num_clients=8, rows_per_client=60)
    train = dataclasses.replace(data.train, flipped=np.arange(8) % 2 == 0)
    return dataclasses.replace(data, train=train)


def test_montage_draws_found_clusters(shifted):
    cluster = np.array([5, 5, 2, 2, 2, -1, 2, 2])
    names, _, title = words(plots.montage(dataclasses.replace(shifted, group=None), cluster=cluster, per_group=4))
    assert names == ["cluster 1\n5 clients", "cluster 2\n2 clients"]
    assert title == "shifted-digits: training examples by cluster, as the clients see them"
    names, _, title = words(plots.montage(shifted))
    assert "cluster" not in title and "by true group" in title and len(names) == 4
    many = plots.montage(shifted, cluster=np.arange(8) + 1, per_group=1)
    assert len(many.axes[0].images) == 8


def test_montage_draws_the_classes_asked_for_as_clients_see_them(shifted):
    cluster = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    figure = plots.montage(shifted, cluster=cluster, classes=["3", 8, 1], per_group=9)
    _, below, _ = words(figure)
    assert below == [*"333888111"] * 2 and len(figure.axes[0].images) == 18
    clients = np.flatnonzero(cluster == 1)
    picked = examples._pick_classes(shifted, clients, [3, 8, 1], 3, seed=0)
    for place, one in enumerate(picked):
        assert one is not None and one[0] in clients
        batch = shifted.batch(shifted.train, one[0], jnp.array([one[1]]))
        assert bool(batch.mask[0]) and int(batch.y[0]) == [3, 8, 1][place // 3]
    writers = [client for client, _ in picked]
    assert writers[:3] == writers[3:6] == writers[6:] and len(set(writers)) == 3  # each has all three classes
    by_group = plots.montage(shifted, classes=[4])
    assert set(words(by_group)[1]) == {"4"} and "by true group" in words(by_group)[2]


def test_montage_leaves_gaps_where_a_cluster_has_no_such_rows():
    inputs, labels = np.zeros((4, 2, 2), np.uint8), np.array([0, 1, 1, 2])
    parts = [np.array([0, 1, 2]), np.array([3])]
    data = jaxfl.data.federate(inputs, labels, parts, parts, num_classes=4, class_names="abcd")
    figure = plots.montage(data, cluster=[0, 1], classes=["b", "c"], per_group=4)
    _, below, _ = words(figure)
    assert below == ["b", "b", "c"]
    left = [image.get_extent()[0] for image in figure.axes[0].images]
    assert left[0] < left[1] < left[2]  # the third is below no b
    with pytest.raises(ValueError, match="no client of the clusters drawn has a training row of these classes"):
        plots.montage(data, cluster=[0, 1], classes=["d"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cluster": np.zeros(3, int)}, r"cluster must be a slot for each of the 8 clients, got int64 of shape \(3,\)"),
        ({"cluster": np.zeros(8)}, "cluster must be a slot for each of the 8 clients, got float64"),
        ({"cluster": np.full(8, -1)}, "got -1 for all"),
        ({"classes": [10]}, "classes must be numbers below 10 or names of 0, 1, .*got 10"),
        ({"classes": ["ten"]}, "got 'ten'"),
        ({"classes": []}, "classes must name at least one class"),
    ],
)
def test_montage_refuses(shifted, arguments, message):
    with pytest.raises(ValueError, match=message):
        plots.montage(shifted, **arguments)
