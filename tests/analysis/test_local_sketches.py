"""Sketches of clients' own models are those of a loop, and a run's clusters lie apart in the plane."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from matplotlib.colors import to_hex

import jaxfl
from jaxfl import local_sketches, methods, plots, tree
from jaxfl.client.training import local_train
from jaxfl.clustering import sketch
from jaxfl.cohort import Plan
from jaxfl.data import conditions
from jaxfl.random import Stream, key_for
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=4)

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
    served = jax.tree.map(lambda leaf: np.asarray(leaf)[result.evaluation.cluster[client]], result.state.centres)
    return _trained(method.task, jax.random.key(SEED), served, result.data, np.int32(client))


@functools.partial(jax.jit, static_argnums=0)
def _trained(task, key, served, data, client):
    train = local_train(task, TRAIN.optimizer, local_epochs=TRAIN.epochs, batch_size=TRAIN.batch_size)
    return tree.ravel(train(key_for(key, Stream.FINETUNE, ROUNDS, client), served, data, client)[0])


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "size"), [("auto", 650), (Plan(3), 64)])
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


@pytest.mark.slow
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
    with pytest.raises(ValueError, match=mentions("sketches", 0)):
        plots.models(found)


def test_nobody_attacks_or_is_late(ran):
    method, result = ran
    worse = conditions.straggle(conditions.attack(result.data, "sign-flip", 0.5, scale=10.0), 0.9)
    plain, found = (local_sketches(method, result._replace(data=data), TRAIN) for data in (result.data, worse))
    np.testing.assert_allclose(found.points, plain.points, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_clients_never_sampled_are_assigned(ran):
    method, result = ran
    ifca = methods.ifca(method.task, optax.sgd(0.1), num_clusters=2)
    result = jaxfl.run(ifca, result.data, rounds=1, cohort=3, seed=SEED)
    found = local_sketches(ifca, result, TRAIN, layers="bias")
    assert (found.cluster != np.asarray(result.state.cluster)[found.clients]).any()
    np.testing.assert_array_equal(found.cluster, result.evaluation.cluster[found.clients])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"size": 0}, ("size", 0)),
        ({"clients": 0}, ("clients", "got 0", 11)),
        ({"clients": 12}, ("clients", 12)),
        ({"clients": [0, 12]}, ("clients", 12, 11)),
        ({"clients": [-1]}, ("clients", -1, 11)),
        ({"clients": []}, ("clients", "[]")),
        ({"clients": [0.5]}, ("clients", "[0.5]")),
        ({"layers": "Conv"}, ("Conv", "Dense_0/kernel")),
    ],
)
def test_refusals(ran, arguments, words):
    method, result = ran
    with pytest.raises(ValueError, match=mentions(*words)):
        local_sketches(method, result, TRAIN, **arguments)


def test_a_result_of_another_method_is_refused(ran):
    method, result = ran
    other = methods.fedavg(method.task, optax.sgd(0.1))
    with pytest.raises(ValueError, match=mentions("result", "FeSEMState")):
        local_sketches(other, result, TRAIN)


def test_a_run_separates_in_the_plane_with_the_colours_of_its_clusters(ran):
    method, result = ran
    sketches = local_sketches(method, result, TRAIN)
    figure = plots.models(sketches, by="pca", result=result)
    (axes,) = figure.axes
    (dots,) = axes.collections
    places, colors = np.asarray(dots.get_offsets()), np.array([to_hex(color) for color in dots.get_facecolor()])
    assert len(places) == 11 and len(set(colors)) == 4
    centres = {color: places[colors == color].mean(0) for color in colors}
    for place, color in zip(places, colors, strict=True):
        assert min(centres, key=lambda one: np.linalg.norm(place - centres[one])) == color
    # the numbers of clusters(result), where the one without rows is drawn as well
    here, everywhere = (one.legends[0].get_texts() for one in (figure, plots.clusters(result)))
    assert [text.get_text().split()[0] for text in here] == [text.get_text().split()[0] for text in everywhere]
    assert figure._suptitle.get_text() == "rotated-digits: local models of 11 clients"
