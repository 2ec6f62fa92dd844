"""Gradual drifts: which rows of a client have changed in each stage, restated in NumPy."""

import numpy as np
import pytest

from jaxfl import data as federations
from jaxfl.data import drift
from jaxfl.data.sources import digits
from jaxfl.data.synthetic import clustered_linear
from tests.messages import mentions
from tests.problems import batch_of

SIZES = {"num_clients": 8, "rows_per_client": 12}
GRADUAL = {"drift": "gradual", "drift_rounds": (4, 9)}


def rows_seen(data, client, split="train"):
    """A client's rows as it sees them, unscaled, as bytes of the image and a label, in any order."""
    part = getattr(data, split)
    positions = np.arange(int(part.size[client]), dtype=np.int32)
    batch = batch_of(data.replace(mean=None, std=None).on_device(), split, np.int32(client), positions)
    images = np.asarray(batch.x).astype(np.float32)
    return {(one.tobytes(), int(label)) for one, label in zip(images, np.asarray(batch.y), strict=True)}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("rotated-digits", "labels"),
        ("rotated+shifted-digits", "labels"),
        ("rotated-digits", "rotate"),
        ("rotated-digits", "swap"),
        ("shifted-digits", "new-group"),
        ("pathological-digits", "classes"),
    ],
)
def test_the_share_of_changed_rows_grows_evenly_in_one_order(name, change):
    sizes = {"num_clients": 8} if change == "classes" else SIZES
    options = {"drift_change": change, "drift_share": 1.0, **GRADUAL}
    data = federations.load(name, **sizes, **options)
    sudden = federations.load(name, **sizes, drift="sudden", drift_rounds=(4,), drift_change=change, drift_share=1.0)
    before, after = sudden.phases
    assert data.drift_rounds == (4, 5, 6, 7, 8, 9)
    names = [{one.group_names[number] for number in one.group.tolist()} for one in (after, data.at(9))]
    assert names[0] == names[1]
    np.testing.assert_array_equal(data.at(9).group, after.group)
    for client in range(8):
        for split in ("train", "test")[: 2 if client < 2 else 1]:
            old, new = (rows_seen(one, client, split) for one in (before, after))
            assert rows_seen(data.at(3), client, split) == old and rows_seen(data.at(9), client, split) == new
            known = set()
            for step, round in enumerate(range(4, 9), 1):
                now = rows_seen(data.at(round), client, split)
                taken, left = step * len(new) // 6, len(old) - step * len(old) // 6
                assert now <= old | new
                both = len(old & new)  # rows that look the same before and after, such as those of other classes
                assert taken - both <= len(now & new - old) <= taken
                assert left - both <= len(now & old - new) <= left
                assert known <= now & new - old, "what has changed stays so"
                known = now & new - old
                if old != new and change in ("labels", "rotate"):
                    places = np.array(rows_of(data.at(round), split, client)), np.array(rows_of(before, split, client))
                    stays = places[0] == places[1]
                    assert stays.sum() >= len(stays) - taken, "rows stay in their places"
                changed = 2 * step >= 6
                assert data.at(round).group[client] == (after if changed else before).group[client]
    trained, tested = (
        {row for now in data.phases for client in range(8) for row in rows_of(now, split, client)}
        for split in ("train", "test")
    )
    assert not trained & tested


def rows_of(data, split, client):
    part = getattr(data, split)
    return np.asarray(part.rows)[int(part.start[client]) :][: int(part.size[client])].tolist()


def test_only_rows_that_change_are_doubled_and_a_share_of_the_clients_stays():
    data = federations.load("rotated-digits", **SIZES, drift_share=0.5, **GRADUAL)
    still = federations.load("rotated-digits", **SIZES)
    count = len(still.labels)
    assert count < len(data.labels) < 2 * count and data.labels[:count].tolist() == still.labels.tolist()
    assert {*data.labels[count:].tolist()} <= {1, 2, 3, 4, 5, 6}, "the classes that are swapped"
    moved = (data.at(9).label_shift != data.label_shift) & (data.at(9).label_maps() != data.label_maps()).any(1)
    assert moved.sum() == 4
    for client in np.flatnonzero(~moved):
        assert rows_of(data.at(6), "train", client) == rows_of(still, "train", client)
    source = digits.load()
    for row in np.arange(count, len(data.labels)):
        assert any(np.array_equal(data.inputs[row], image) for image in source.inputs)


def test_clients_of_several_sizes_have_shares_of_both_and_seeds_have_orders():
    ragged = clustered_linear(8, rows=8, features=4, ragged=True)
    data = drift.drift(ragged, (2, 40), kind="swap", schedule="gradual", share=1.0)
    assert len(data.drift_rounds) == 10 and data.drift_rounds[0] == 2 and data.drift_rounds[-1] == 40
    gaps = np.diff(data.drift_rounds)
    assert gaps.max() - gaps.min() <= 1
    old, new = (np.asarray(one.train.size) for one in (data.at(0), data.at(40)))
    for step, round in enumerate(data.drift_rounds[:-1], 1):
        wanted = step * new // 10 + old - step * old // 10
        np.testing.assert_array_equal(data.at(round).train.size, wanted)
    assert data.train.max_size == max(now.train.size.max() for now in data.phases)
    other = drift.drift(ragged, (2, 40), kind="swap", schedule="gradual", share=1.0, seed=1)
    assert other.drift_rounds == data.drift_rounds


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("coloured-digits", {"drift_change": "colour"}, ("drift=gradual", "coloured-digits", "colour")),
        ("corrupted-digits", {"drift_change": "corrupt"}, ("drift=gradual", "corrupted-digits")),
        ("classwise-digits", {}, ("drift=gradual", "classwise-digits")),
        ("rotated-digits", {"drift_rounds": (4,)}, ("drift_rounds", "gradual", 4)),
    ],
)
def test_changes_that_cannot_be_of_some_rows_alone_are_named(name, options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        federations.load(name, **SIZES, **GRADUAL | options)
