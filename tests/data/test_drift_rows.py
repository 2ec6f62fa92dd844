"""Rows of the stages of a drift: fresh, growing or the same ones, and tests on other patterns, restated in NumPy."""

import numpy as np
import pytest

from jaxfl import data as federations
from jaxfl.data import drift
from jaxfl.data.digest import digest
from jaxfl.data.synthetic import clustered_linear
from tests.messages import mentions
from tests.problems import batch_of

SIZES = {"num_clients": 8, "rows_per_client": 13}
MATRIX = ((0, 0), (1, 2), (0, 0), (2, 1))
STAGES = {"drift": "matrix", "drift_matrix": MATRIX, "drift_every": 2}


def rows_of(data, client, split="train"):
    part = getattr(data, split)
    return np.asarray(part.rows)[int(part.start[client]) :][: int(part.size[client])].tolist()


def seen_by(data, client, split="train"):
    """Images, unscaled, and labels of all rows of a client as it sees them."""
    positions = np.arange(int(getattr(data, split).size[client]), dtype=np.int32)
    batch = batch_of(data.replace(mean=None, std=None).on_device(), split, np.int32(client), positions)
    return np.asarray(batch.x), np.asarray(batch.y)


def swapped(labels, number):
    pairs = {0: (0, 0), 1: (1, 2), 2: (3, 4), 3: (5, 6)}
    one, other = pairs[number]
    return np.where(labels == one, other, np.where(labels == other, one, labels))


@pytest.mark.parametrize("name", ["rotated-digits", "corrupted-digits"])
@pytest.mark.parametrize("rows", ["fresh", "grow"])
def test_rows_are_cut_into_as_many_chunks_as_stages(name, rows):
    options = STAGES | {"drift_change": "corrupt" if name == "corrupted-digits" else "labels"}
    still, data = federations.load(name, **SIZES), federations.load(name, **SIZES, **options, drift_rows=rows)
    same = federations.load(name, **SIZES, **options)
    assert data.train.max_size == (4 if rows == "fresh" else 13)
    ends = [13 * (stage + 1) // 4 for stage in range(4)]

    def examples(now, client):
        own = rows_of(now, client)
        return own if now.origin is None else np.asarray(now.origin)[own].tolist()

    for client in range(8):
        parts = [examples(now, client) for now in data.phases]
        whole = examples(still, client)
        if rows == "grow":
            assert [len(part) for part in parts] == ends
            assert all(later[: len(part)] == part for part, later in zip(parts, parts[1:], strict=False))
            assert sorted(parts[-1]) == sorted(whole)
        else:
            assert [len(part) for part in parts] == np.diff([0, *ends]).tolist()
            assert sorted(sum(parts, [])) == sorted(whole)
        for now, other in zip(data.phases, same.phases, strict=True):
            every = {(x.tobytes(), int(y)) for x, y in zip(*seen_by(other, client), strict=True)}
            assert {(x.tobytes(), int(y)) for x, y in zip(*seen_by(now, client), strict=True)} <= every
            if client < 2:
                for one, wanted in zip(seen_by(now, client, "test"), seen_by(other, client, "test"), strict=True):
                    np.testing.assert_array_equal(one, wanted)
    assert digest(data) != digest(same) != digest(federations.load(name, **SIZES, **options, drift_rows=rows, seed=1))


def test_the_first_chunk_has_all_classes_where_rows_are_in_the_order_of_classes():
    data = federations.load("pathological-digits", num_clients=4, **STAGES, drift_rows="fresh")
    for client in range(4):
        classes = {*np.asarray(data.labels)[rows_of(data, client)].tolist()}
        assert classes == {*np.asarray(data.labels)[rows_of(data, client, "test")].tolist()}


@pytest.mark.parametrize("name", ["rotated-digits", "rotated+pathological-digits"])
def test_test_rows_are_seen_as_in_the_next_stage(name):
    sizes = SIZES if name == "rotated-digits" else {"num_clients": 8}
    still = federations.load(name, **sizes)
    data = federations.load(name, **sizes, **STAGES, drift_test="next")
    for stage, now in enumerate(data.phases):
        for client in (0, 1, 7):
            ahead = MATRIX[min(stage + 1, 3)][client % 2]
            (x, y), (plain, labels) = (seen_by(one, client, "test") for one in (now, still))
            np.testing.assert_array_equal(x, plain)
            np.testing.assert_array_equal(y, swapped(labels, ahead))
            trained = seen_by(now, client)[1], seen_by(still, client)[1]
            np.testing.assert_array_equal(trained[0], swapped(trained[1], MATRIX[stage][client % 2]))
    turned = federations.load(name, **sizes, drift="rotate", drift_round=3, drift_test="next", drift_share=0.5)
    moved = turned.at(3).rotation != turned.rotation
    for client in range(8):
        images = [seen_by(one, client, "test")[0] for one in (turned.at(0), turned.at(3), still)]
        wanted = np.rot90(images[2], int(moved[client]), axes=(1, 2))
        np.testing.assert_array_equal(images[0], wanted)
        np.testing.assert_array_equal(images[1], wanted)


def test_exchanged_data_are_tested_one_stage_ahead_of_their_clients():
    data = federations.load("rotated+shifted-digits", num_clients=16, rows_per_client=10, drift="swap", drift_round=3)
    ahead = federations.load(
        "rotated+shifted-digits", num_clients=16, rows_per_client=10, drift="swap", drift_round=3, drift_test="next"
    )
    for client in range(16):
        for now in ahead.phases:
            for one, other in zip(seen_by(now, client, "test"), seen_by(data.at(3), client, "test"), strict=True):
                np.testing.assert_array_equal(one, other)
        for one, other in zip(seen_by(ahead.at(0), client), seen_by(data.at(0), client), strict=True):
            np.testing.assert_array_equal(one, other)


def test_test_rows_have_a_pattern_that_the_client_never_has():
    still = federations.load("rotated-digits", **SIZES)
    data = federations.load("rotated-digits", **SIZES, **STAGES, drift_test="unseen")
    for now in data.phases:
        for client in (0, 1, 7):
            (x, y), (plain, labels) = (seen_by(one, client, "test") for one in (now, still))
            np.testing.assert_array_equal(x, plain)
            np.testing.assert_array_equal(y, swapped(labels, 3))
    parts = federations.load("rotated-digits", **SIZES, drift="recurrent", drift_rounds=(2, 4), drift_test="unseen")
    for client, number in ((0, 2), (4, 1), (7, 1)):
        np.testing.assert_array_equal(
            seen_by(parts.at(3), client, "test")[1], swapped(seen_by(still, client, "test")[1], number)
        )
    turned = federations.load("rotated-digits", **SIZES, drift="rotate", drift_round=3, drift_test="unseen")
    for now in turned.phases:
        for client in (0, 7):
            wanted = np.rot90(seen_by(still, client, "test")[0], 2, axes=(1, 2))
            np.testing.assert_array_equal(seen_by(now, client, "test")[0], wanted)
    trained, tested = (
        {row for now in data.phases for client in range(8) for row in rows_of(now, client, split)}
        for split in ("train", "test")
    )
    assert not trained & tested


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drift_rows": "fresh"}, ("drift_round", "drift_rows=fresh")),
        ({"drift_round": 3, "arrive": 0.2, "drift_rows": "grow"}, ("drift", "drift_rows=grow")),
        ({"drift_round": 3, "arrive": 0.2, "drift_test": "next"}, ("drift", "drift_test=next")),
        ({"drift": "gradual", "drift_rounds": (3, 5), "drift_rows": "fresh"}, ("drift_rows", "gradual", "fresh")),
        ({"drift": "gradual", "drift_rounds": (3, 5), "drift_test": "next"}, ("drift_test", "gradual", "next")),
        ({"drift": "swap", "drift_round": 3, "drift_test": "unseen"}, ("drift_test", "drift_change=swap")),
        (STAGES | {"drift_matrix": ((0,), (1,), (2,), (3,)), "drift_test": "unseen"}, ("drift_test", "unseen", 3)),
        (STAGES | {"drift_matrix": "feddrift-A", "drift_rows": "fresh", "num_clients": 12, "rows_per_client": 8},
         ("drift_rows=fresh", 11, 8)),
        ({"drift": "swap", "drift_round": 3, "drift_rows": "new"}, ("drift_rows", "new")),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_are_named(options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        federations.load("rotated-digits", **SIZES | options)


def test_tests_on_other_copies_are_refused():
    for name, change in (("corrupted-digits", "corrupt"), ("coloured-digits", "colour")):
        with pytest.raises(ValueError, match=mentions("drift_test=next", name)):
            federations.load(name, **SIZES, **STAGES, drift_change=change, drift_test="next")
    data = drift.drift(clustered_linear(4, rows=8), 2, kind="swap", share=1.0, test="next")
    np.testing.assert_array_equal(data.at(0).test.size, data.at(2).test.size)
