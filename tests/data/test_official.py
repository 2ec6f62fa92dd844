"""Federations with the rows of official codes: views, tests and normalisation, restated for a small source."""

import numpy as np
import pytest

from jaxfl import data
from jaxfl.data.official import official
from jaxfl.data.partition import exact
from tests.messages import mentions


def made(train_rows, test_rows):
    """A source with so many random rows of each of ten classes."""
    rng = np.random.default_rng(0)
    labels = [rng.permutation(np.repeat(np.arange(10), count)) for count in (train_rows, test_rows)]
    images = [rng.integers(0, 256, (len(one), 8, 8)).astype(np.uint8) for one in labels]
    return data.Source("made", images[0], labels[0], 10, images[1], labels[1], mean=0.0, std=255.0)


@pytest.fixture(scope="module")
def source():
    return made(60, 12)


@pytest.fixture(scope="module")
def large():
    return made(600, 1)


def seen(fed, split, client):
    size = int(split.size[client])
    batch = fed.batch(split, np.int32(client), np.arange(size, dtype=np.int32))
    return np.asarray(batch.x), np.asarray(batch.y)


def rows_of(split, client):
    return np.asarray(split.rows)[split.start[client] :][: split.size[client]]


def test_swapped_labels_of_the_comparative_evaluation(large):
    fed = official(large, code="comparative-concept-labels", num_clients=6)
    swaps = [(1, 7), (2, 7), (4, 7), (3, 8), (5, 6), (7, 9)]
    for client, (one, other) in enumerate(swaps):
        for split in (fed.train, fed.test, fed.validation):
            labels = large.labels[rows_of(split, client)]
            wanted = np.where(labels == one, other, np.where(labels == other, one, labels))
            images, named = seen(fed, split, client)
            assert (named == wanted).all()
            pixels = large.inputs[rows_of(split, client)].astype(np.float32)
            np.testing.assert_allclose(images.reshape(pixels.shape), (pixels - 0.5) / 0.5)
    assert fed.causes["labels"].tolist() == fed.group.tolist() == list(range(6))


def test_rotations_and_strokes_of_the_comparative_evaluation(large):
    fed = official(large, code="comparative-concept-features", num_clients=4)
    for client in range(4):
        images = seen(fed, fed.test, client)[0].reshape(-1, 8, 8)
        wanted = np.rot90(large.inputs[rows_of(fed.test, client)], client, (1, 2)).astype(np.float32)
        np.testing.assert_allclose(images, (wanted - 0.5) / 0.5)
    fed = official(large, code="comparative-feature-skew", num_clients=6)
    for client in range(6):
        rows = rows_of(fed.train, client)
        original = large.inputs[np.asarray(fed.origin)[rows]]
        windows = np.lib.stride_tricks.sliding_window_view(
            np.pad(original, ((0, 0), (1, 1), (1, 1)), "edge"), (3, 3), (1, 2)
        )
        wanted = [original, windows.min((3, 4)), windows.max((3, 4))][client % 3].astype(np.float32)
        np.testing.assert_allclose(seen(fed, fed.train, client)[0].reshape(-1, 8, 8), (wanted - 0.5) / 0.5)


def test_test_clients_of_ifca_hold_their_test_rows_and_train_nothing(source):
    fed = official(source, code="ifca", num_clients=40)
    split = exact.ifca(600, 120, num_clients=40, rows_per_client=60, seed=0)
    held = np.asarray(fed.held_out)
    assert held.tolist() == [False] * 40 + [True] * 8
    for client in np.flatnonzero(held):
        assert rows_of(fed.train, client).tolist() == rows_of(fed.test, client).tolist() == split.test[client].tolist()
    turned = np.rot90(source.test_inputs[:60], 1, (1, 2)) / 255
    np.testing.assert_allclose(seen(fed, fed.test, 42)[0].reshape(-1, 8, 8), turned, rtol=1e-6)


def test_ifcas_cifar10_is_half_upside_down_and_fewer_clients_are_the_first():
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (count, 2, 2, 3)).astype(np.uint8) for count in (2000, 500)]
    source = data.Source(
        "made", images[0], np.arange(2000) % 10, 10, images[1], np.arange(500) % 10, mean=0.0, std=255.0
    )
    fed, few = (official(source, code="ifca-cifar10", num_clients=count, seed=3) for count in (8, 4))
    assert fed.rotation.tolist() == [0] * 4 + [2] * 4 + [0, 2] and fed.held_out.tolist() == [False] * 8 + [True] * 2
    chance = np.random.RandomState(3)
    wanted = [*chance.permutation(2000).reshape(4, 500), *chance.permutation(2000).reshape(4, 500)]
    for client, rows in enumerate(wanted):
        assert rows_of(fed.train, client).tolist() == rows.tolist()
    for client, rows in enumerate([wanted[0], wanted[1], wanted[4], wanted[5]]):
        assert rows_of(few.train, client).tolist() == rows.tolist()
    assert few.rotation.tolist() == [0, 0, 2, 2, 0, 2]
    with pytest.raises(ValueError, match=mentions("num_clients", 8, 10)):
        official(source, code="ifca-cifar10", num_clients=10)


@pytest.mark.parametrize("shift", ["covariateshift", "labelflip"])
def test_clients_of_rdpcfl_draw_their_rows_independently(shift):
    """Restated: `np.random.seed`, one `choice` without replacement a client, and a set of it."""
    images = [np.zeros((count, 2, 2), np.uint8) for count in (9000, 60)]
    labels = [np.arange(count) % 10 for count in (9000, 60)]
    source = data.Source("made", images[0], labels[0], 10, images[1], labels[1], mean=0.0, std=255.0)
    fed = official(source, code=f"rdpcfl-{shift}", seed=1)
    chance = np.random.RandomState(1)
    drawn = [list({*chance.choice(9000, 8000, replace=False).tolist()}) for _ in range(21)]
    chance = np.random.RandomState(1)
    tests = [{*chance.choice(60, 10, replace=False).tolist()} for _ in range(21)]
    for client in range(21):
        assert rows_of(fed.train, client).tolist() == drawn[client][:6400]
        assert rows_of(fed.validation, client).tolist() == drawn[client][6400:]
        assert {*(rows_of(fed.test, client) - 9000).tolist()} == tests[client]
    groups = np.repeat([0, 1, 2, 3], [3, 6, 6, 6])
    assert fed.group.tolist() == groups.tolist()
    if shift == "labelflip":
        assert fed.label_maps()[:, 9].tolist() == ((9 + groups) % 10).tolist()
    else:
        assert fed.rotation.tolist() == groups.tolist()


def test_every_so_many_th_row_of_a_client():
    whole, few = (data.load("official-digits", code="pfllib-dirichlet", every=every) for every in (1, 4))
    for client in range(20):
        assert rows_of(few.train, client).tolist() == rows_of(whole.train, client)[::4].tolist()
        assert rows_of(few.test, client).tolist() == rows_of(whole.test, client).tolist()
    with pytest.raises(ValueError, match=mentions("every", 0)):
        data.load("official-digits", code="pfllib-dirichlet", every=0)


def test_fedccfas_grey_images_are_scaled_as_mnist():
    large = made(600, 40)
    fed = official(large, code="fedccfa", num_clients=4)
    images, _ = seen(fed, fed.train, 0)
    pixels = large.inputs[rows_of(fed.train, 0)].reshape(images.shape) / 255
    np.testing.assert_allclose(images, (pixels - 0.1307) / 0.3081, rtol=1e-4, atol=1e-4)


def test_the_tests_of_pfedgraph_are_those_of_a_clients_classes(source):
    fed = official(source, code="pfedgraph-noniid-skew")
    tests = source.test_labels
    for client in range(10):
        own = [2 * (client % 5), 2 * (client % 5) + 1]
        assert rows_of(fed.test, client).tolist() == (600 + np.flatnonzero(np.isin(tests, own))).tolist()
        assert set(source.labels[rows_of(fed.train, client)]) == set(own)


def test_names_and_refusals():
    fed = data.load("official-digits", code="pfllib-dirichlet", alpha=0.5, num_clients=5)
    assert fed.name == "official-digits" and fed.num_clients == 5
    assert "pool" not in data.options("official-digits")
    with pytest.raises(ValueError, match=mentions("code", "pfllib-diricle")):
        data.load("official-digits", code="pfllib-diricle")
    with pytest.raises(ValueError, match=mentions("alpha", 0.5, "pfllib-pathological")):
        data.load("official-digits", code="pfllib-pathological", alpha=0.5)
    with pytest.raises(ValueError, match=mentions("test set", "ifca", "digits")):
        data.load("official-digits", code="ifca")
    with pytest.raises(ValueError, match="official-nowhere"):
        data.dataset("official-nowhere")
