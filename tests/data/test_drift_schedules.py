"""Schedules of drifts: who changes when, and what it has in every stage, restated in NumPy."""

import numpy as np
import pytest

from jaxfl import data as federations
from jaxfl.data import describe, drift
from jaxfl.data.digest import digest
from jaxfl.data.synthetic import clustered_linear
from tests.messages import mentions
from tests.problems import batch_of

CLIENTS, PAIRS = 20, ((1, 2), (3, 4), (5, 6))
NAME, SIZES = "rotated-digits", {"num_clients": CLIENTS, "rows_per_client": 10}
STILL = federations.load(NAME, **SIZES)


def loaded(schedule, rounds, name=NAME, **options):
    return federations.load(name, **SIZES, drift=schedule, drift_rounds=rounds, **options)


def changed_by_hand(schedule, rounds, client, round):
    """Whether a client has its new data after so many rounds, by the definitions of FedCCFA's drifts."""
    if schedule == "recurrent":
        return sum(round >= one for one in rounds) % 2 == 1
    part = 0 if client % 10 < 3 else 1 if client % 10 < 6 else 2
    return round >= rounds[part if schedule == "incremental" else 0]


def swapped_by_hand(labels, client):
    first, second = PAIRS[0 if client % 10 < 3 else 1 if client % 10 < 6 else 2]
    return np.where(labels == first, second, np.where(labels == second, first, labels))


SCHEDULES = [("sudden", (4,)), ("recurrent", (4, 6)), ("recurrent", (2, 4, 6)), ("incremental", (3, 4, 6))]


@pytest.mark.parametrize(("schedule", "rounds"), SCHEDULES)
def test_labels_are_swapped_by_part_when_the_schedule_says_so(schedule, rounds):
    data = loaded(schedule, rounds)
    assert data.drift_rounds == rounds
    for round in range(1, 8):
        now = data.at(round).on_device()
        assert now.drift is None and now.inputs is not None
        for client in (0, 2, 3, 5, 6, 9, 12, 16):
            for split in ("train", "test"):
                positions = np.arange(10, dtype=np.int32)
                seen, before = (batch_of(one, split, np.int32(client), positions) for one in (now, STILL.on_device()))
                changed = changed_by_hand(schedule, rounds, client, round)
                wanted = swapped_by_hand(np.asarray(before.y), client) if changed else before.y
                np.testing.assert_array_equal(seen.y, wanted, err_msg=f"{client} in {round}")
                np.testing.assert_array_equal(seen.x, before.x)
        changed = [changed_by_hand(schedule, rounds, client, round) for client in range(CLIENTS)]
        parts = [2 * (client % 10 >= 6) + (3 <= client % 10 < 6) for client in range(CLIENTS)]
        concepts = [(g, p if c else -1) for g, p, c in zip(STILL.group.tolist(), parts, changed, strict=True)]
        pairs = {*zip(concepts, now.group.tolist(), strict=True)}
        assert len(pairs) == len({*concepts}) == len({*now.group.tolist()}), "a group for each angle and swap"
        swaps = [part if own else -1 for part, own in zip(parts, changed, strict=True)]
        labels = {*zip(swaps, now.causes["labels"].tolist(), strict=True)}
        assert len(labels) == len({one for one, _ in labels}) == len({one for _, one in labels})
        np.testing.assert_array_equal(now.causes["rotation"], STILL.causes["rotation"])


def test_a_recurrent_drift_brings_the_first_data_back_with_their_digest():
    data = loaded("recurrent", (4, 6, 9))
    first, second, third, fourth = data.phases
    assert digest(first) == digest(third) != digest(second) == digest(fourth)
    assert data.returns_at == 6 and loaded("incremental", (3, 4, 6)).returns_at is None
    for name, values in first.per_client().items():
        np.testing.assert_array_equal(third.per_client()[name], values, err_msg=name)
    once = loaded("sudden", (4,))
    assert digest(once.at(4)) == digest(second) and digest(once) != digest(data)
    assert digest(data) != digest(loaded("recurrent", (4, 6, 10))), "rounds are part of it"


@pytest.mark.parametrize("change", ["swap", "rotate", "new-group"])
@pytest.mark.parametrize(("schedule", "rounds"), SCHEDULES[1:])
def test_every_change_follows_a_schedule_and_one_round_is_as_it_was(change, schedule, rounds):
    at_once = federations.load(NAME, **SIZES, drift=change, drift_round=4, drift_share=0.9)
    sudden = loaded("sudden", (4,), drift_change=change, drift_share=0.9)
    assert digest(at_once) == digest(sudden)
    data = loaded(schedule, rounds, drift_change=change, drift_share=0.9)
    before, after = at_once.phases
    for round in range(1, 8):
        changed = np.array([changed_by_hand(schedule, rounds, client, round) for client in range(CLIENTS)])
        now = data.at(round).per_client()
        for name, values in before.per_client().items():
            np.testing.assert_array_equal(now[name], np.where(changed, after.per_client()[name], values), err_msg=name)


def test_staggered_clients_change_once_at_evenly_spaced_rounds_that_are_those_of_all_seeds():
    data, other = (loaded("staggered", (5, 9), seed=seed) for seed in (0, 1))
    assert data.drift_rounds == other.drift_rounds == (5, 6, 7, 8, 9)
    changed, elsewhere = (np.stack([now.label_shift != one.label_shift for now in one.phases]) for one in (data, other))
    assert changed.sum(1).tolist() == elsewhere.sum(1).tolist() == [0, 4, 8, 12, 16, 20]
    assert (changed[1:] >= changed[:-1]).all(), "who has changed stays so"
    assert (changed != elsewhere).any(), "but who is first follows from the seed"
    wide = loaded("staggered", (10, 300), drift_share=0.25)
    gaps = np.diff(wide.drift_rounds)
    assert len(wide.drift_rounds) == 5 and wide.drift_rounds[0] == 10 and gaps.max() - gaps.min() <= 1
    assert wide.drift_rounds[-1] <= 300
    sudden = loaded("sudden", (5,))
    np.testing.assert_array_equal(data.at(9).label_maps(), sudden.at(5).label_maps())


def test_parts_are_shares_or_true_groups_and_swaps_are_those_that_are_given():
    by_group = loaded("incremental", (2, 3, 4, 5), drift_parts="group", drift_swaps="0:9,1:8")
    for round in range(1, 7):
        moved = by_group.at(round).label_maps() != STILL.label_maps()
        np.testing.assert_array_equal(moved.any(1), STILL.group <= round - 2)
    maps = by_group.at(5).label_maps()
    assert maps[0, [0, 9, 1, 8]].tolist() == [9, 0, 1, 8] == maps[10, [0, 9, 1, 8]].tolist()
    assert maps[5, [0, 9, 1, 8]].tolist() == [0, 9, 8, 1] == maps[19, [0, 9, 1, 8]].tolist()
    halves = loaded("incremental", (2, 3), drift_parts=(0.2, 0.8), drift_change="rotate")
    np.testing.assert_array_equal(halves.at(2).rotation != STILL.rotation, np.arange(CLIENTS) % 10 < 2)
    few = federations.load("iid-digits", num_clients=4, rows_per_client=8, drift="sudden", drift_rounds=(2,))
    assert few.group is None and few.at(2).group is None and not few.causes, "unknown groups stay unknown"
    few = drift.drift(clustered_linear(10, rows=4), 2, kind="labels")
    assert few.num_classes == 3 and few.at(2).label_maps()[9].tolist() == [0, 2, 1]


def test_swaps_come_after_the_maps_that_clients_have_and_find_their_groups():
    name = {"name": "swapped-digits", "swaps": "none,1:2"}
    data = loaded("sudden", (3,), drift_swaps="1:2", drift_parts="1", **name)
    before, after = data.phases
    assert after.group.tolist() == (1 - before.group).tolist(), "the groups change places"
    assert {*after.causes["labels"].tolist()} == {0, 1} and len(data.group_names) == 2
    mixed = federations.load("rotated+shifted-digits", **SIZES, truth="rotation", drift="sudden", drift_rounds=(3,))
    np.testing.assert_array_equal(mixed.at(3).group, mixed.group, "labels do not count among the groups")
    assert (mixed.at(3).causes["labels"] != mixed.causes["labels"]).all()


def test_clients_that_arrive_and_leave_do_so_at_the_first_change():
    data = loaded("recurrent", (4, 6), arrive=0.2, leave=0.1)
    first, *later = data.phases
    assert first.absent.sum() == 4 and all(
        one.absent.sum() == 2 and not (one.absent & first.absent).any() for one in later
    )
    found = describe.describe(data)
    wanted = [{"round": 4, "change": 20, "arrive": 4, "leave": 2}, {"round": 6, "change": 20, "arrive": 0, "leave": 0}]
    assert found.drifts == wanted and found.drift == wanted[0]
    few = data.subset([3, 17])
    for round in (0, 4, 6):
        np.testing.assert_array_equal(few.at(round).label_maps(), data.at(round).label_maps()[[3, 17]])


def test_clients_arrive_and_leave_in_parts_at_rounds_of_their_own():
    moves = {"arrive": 0.3, "arrive_rounds": (2, 5), "leave": 0.2, "leave_rounds": (4, 5, 8)}
    data, alone = loaded("recurrent", (4, 6), **moves), federations.load(NAME, **SIZES, **moves)
    assert data.drift_rounds == (2, 4, 5, 6, 8) and alone.drift_rounds == (2, 4, 5, 8)
    away = {0: 6, 1: 6, 2: 3, 3: 3, 4: 4, 5: 2, 6: 2, 7: 2, 8: 4, 9: 4}
    before, still = None, loaded("recurrent", (4, 6))
    for round, number in away.items():
        now = data.at(round)
        assert now.absent.sum() == number and (now.held_out == now.absent).all()
        np.testing.assert_array_equal(now.absent, alone.at(round).absent)
        np.testing.assert_array_equal(now.label_maps(), still.at(round).label_maps())
        if before is not None:
            arrived, left = before & ~now.absent, now.absent & ~before
            assert arrived.sum() == {2: 3, 5: 3}.get(round, 0) and left.sum() == {4: 1, 5: 1, 8: 2}.get(round, 0)
        before = now.absent
    found = describe.describe(data).drifts
    assert [(one["round"], one["change"], one["arrive"], one["leave"]) for one in found] == [
        (2, 0, 3, 0),
        (4, 20, 0, 1),
        (5, 0, 3, 1),
        (6, 20, 0, 0),
        (8, 0, 0, 2),
    ]
    usual = loaded("recurrent", (4, 6), arrive=0.3)
    assert digest(usual) == digest(loaded("recurrent", (4, 6), arrive=0.3, arrive_rounds=(4,)))
    ahead = loaded("recurrent", (4, 6), arrive=0.3, arrive_rounds=(5,), drift_test="next")
    np.testing.assert_array_equal(ahead.at(4).label_maps(), ahead.at(5).label_maps())
    positions = np.arange(5, dtype=np.int32)
    one, other = (batch_of(ahead.at(round).on_device(), "test", np.int32(9), positions) for round in (4, 5))
    np.testing.assert_array_equal(one.y, other.y, err_msg="who arrives changes nobody's test rows")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arrive_rounds": (3,)}, ("arrive", "arrive_rounds")),
        ({"arrive": 0.2, "arrive_rounds": (3,), "leave": 0.1}, ("drift_round", "leave=0.1")),
        ({"arrive": 0.2, "arrive_rounds": (5, 3)}, ("arrive_rounds", "5,3")),
        ({"leave": 0.2, "leave_rounds": (0, 3)}, ("leave_rounds", "0,3")),
        ({"leave": 0.1, "leave_rounds": (1, 2, 3)}, ("leave_rounds", 2, 3)),
        ({"drift": "recurrent", "drift_rounds": (4,)}, ("drift_rounds", "recurrent", 4)),
        ({"drift": "recurrent", "drift_round": 4}, ("drift_rounds", "recurrent", 4)),
        ({"drift": "recurrent"}, ("drift_rounds", "drift=recurrent")),
        ({"drift": "sudden", "drift_rounds": (4, 5)}, ("drift_rounds", "sudden", "4,5")),
        ({"drift": "staggered", "drift_rounds": (4, 5, 6)}, ("drift_rounds", "staggered", "4,5,6")),
        ({"drift": "recurrent", "drift_rounds": (5, 4)}, ("drift_rounds", "5,4")),
        ({"drift": "recurrent", "drift_rounds": (4, 4)}, ("drift_rounds", "4,4")),
        ({"drift": "recurrent", "drift_rounds": (0, 4)}, ("drift_rounds", 0)),
        ({"drift": "recurrent", "drift_rounds": ()}, ("drift_rounds", "recurrent", "none")),
        ({"drift": "recurrent", "drift_rounds": (3, 4), "drift_round": 4}, ("drift_round", "drift_rounds")),
        ({"drift": "swap", "drift_rounds": (3, 4)}, ("drift_rounds", "3,4")),
        ({"drift": "swap", "drift_round": 3, "drift_change": "labels"}, ("drift", "drift_change=labels", "swap")),
        ({"drift": "sudden", "drift_rounds": (3,), "drift_change": "turn"}, ("drift_change", "turn")),
        ({"drift_round": 3, "arrive": 0.2, "drift_swaps": "1:2"}, ("drift_change", "drift_swaps=1:2")),
        ({"drift": "swap", "drift_round": 3, "drift_parts": "group"}, ("drift", "drift_parts=group")),
        ({"drift": "incremental", "drift_rounds": (3, 4), "drift_parts": "0.5,0.3"}, ("drift_parts", "0.5,0.3")),
        ({"drift": "incremental", "drift_rounds": (3, 4), "drift_parts": "a,b"}, ("drift_parts", "a,b")),
        ({"drift": "incremental", "drift_rounds": (3, 4), "drift_parts": "group"}, ("drift_rounds", "3,4", 4)),
        ({"drift": "sudden", "drift_rounds": (3,), "drift_swaps": "1:12"}, ("drift_swaps", "1:12")),
        ({"drift_rounds": (3,)}, ("drift", "sudden", "swap")),
    ],
)
def test_schedules_that_cannot_be_are_named(options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        federations.load(NAME, **SIZES, **options)


def test_data_without_classes_or_groups_are_refused():
    linear = clustered_linear(10, rows=4)
    for data, options, message in (
        (linear.replace(labels=linear.inputs[:, 0]), {}, ("drift_change=labels", "float32")),
        (linear.replace(group=None), {"parts": "group"}, ("drift_parts", "group", "clustered-linear")),
    ):
        with pytest.raises(ValueError, match=mentions(*message)):
            drift.drift(data, 3, kind="labels", **options)
