"""Montages of found clusters, and of the classes asked for, show what the clients see."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import jaxfl
from jaxfl import plots
from jaxfl.plots import examples
from tests.messages import mentions


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
    assert names == ["cluster 2\n5 clients", "cluster 5\n2 clients"]
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
    picked = examples._sample_rows_by_class(shifted, clients, [3, 8, 1], 3, seed=0)
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
    with pytest.raises(ValueError, match=mentions("montage", "clusters", "classes")):
        plots.montage(data, cluster=[0, 1], classes=["d"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cluster": np.zeros(3, int)}, ("cluster", "int64", 8, "(3,)")),
        ({"cluster": np.zeros(8)}, ("cluster", "float64", 8)),
        ({"cluster": np.full(8, -1)}, ("cluster", -1)),
        ({"classes": [10]}, ("classes", "got 10")),
        ({"classes": ["ten"]}, ("classes", "ten")),
        ({"classes": []}, ("classes", "none")),
    ],
)
def test_montage_refuses(shifted, arguments, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        plots.montage(shifted, **arguments)


def test_stages_of_a_drift_are_drawn_as_the_clients_see_the_same_rows():
    options = {"num_clients": 8, "rows_per_client": 20, "drift": "recurrent", "drift_rounds": (3, 6)}
    data = jaxfl.data.load("rotated-digits", **options, drift_change="rotate", drift_share=0.5)
    changed = examples.changing_clients(data)
    assert len(changed) == 4 and (data.at(3).rotation != data.rotation)[changed].all()
    figure = plots.stages(data)
    (axes,) = figure.axes
    images = np.stack([image.get_array() for image in axes.images]).reshape(3, 12, 8, 8)
    for one, other in zip(images[0], images[1], strict=True):
        np.testing.assert_array_equal(other, np.rot90(one))
    np.testing.assert_array_equal(images[0], images[2])
    texts = [text.get_text() for text in axes.texts]
    assert {"before", "round 3", "round 6", *(f"client {one}" for one in changed)} <= {*texts}
    assert "4 of 4 clients" in figure.texts[0].get_text()
    long = jaxfl.data.load("rotated-digits", **options | {"drift": "gradual", "drift_rounds": (3, 30)})
    assert "6 of 11 stages" in plots.stages(long).texts[0].get_text()
    still = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    arriving = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20, arrive=0.3, drift_round=3)
    for none in (still, arriving):
        with pytest.raises(ValueError, match=mentions("stages", "rotated-digits")):
            plots.stages(none)
    with pytest.raises(ValueError, match=mentions("stages", "(4,)")):
        plots.stages(jaxfl.data.synthetic.clustered_linear(4, features=4))
