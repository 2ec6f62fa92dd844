"""Data that drift: who changes, into what, and that one pool serves both."""

from dataclasses import replace

import numpy as np
import pytest

from jaxfl import data as federations
from jaxfl.data import describe, divide, drift, stored
from jaxfl.data.clients import Split
from jaxfl.data.synthetic import clustered_linear
from tests.messages import mentions
from tests.problems import batch_of

STILL = federations.load("rotated-digits", num_clients=12, rows_per_client=10, angles=(0, 90, 180))


def rows_and_sight(data, client):
    """What a client's training batches look like: its rows in order, their inputs and labels."""
    batch = batch_of(data.on_device(), "train", np.int32(client), np.arange(10, dtype=np.int32))
    return np.asarray(batch.x), np.asarray(batch.y)


def drifting(kind, **options):
    return drift.drift(STILL, 5, kind=kind, **options)


def test_before_it_nothing_has_changed_and_there_is_one_pool():
    data = drifting("swap", arrive=0.2)
    before, after = data.at(4), data.at(5)
    for name, values in STILL.per_client().items():
        np.testing.assert_array_equal(before.per_client()[name], values, err_msg=name)
    assert before.inputs is after.inputs is data.inputs and before.train.rows is after.train.rows
    assert before.drift is after.drift is None and before.at(9) is before
    assert before.absent.sum() == 2 and not after.absent.any() and not after.held_out.any()


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
def test_swapped_clients_have_what_one_client_of_another_group_had(share):
    after = drifting("swap", share=share).at(5)
    moved = np.flatnonzero(after.group != STILL.group)
    assert len(moved) == round(12 * share)
    assert sorted(after.train.start.tolist()) == sorted(STILL.train.start.tolist()), "nobody's rows are lost or doubled"
    for client in range(12):
        (source,) = np.flatnonzero(STILL.train.start == after.train.start[client])
        assert (source == client) == (client not in moved)
        assert after.group[client] == STILL.group[source]
        for mine, its in zip(rows_and_sight(after, client), rows_and_sight(STILL, source), strict=True):
            np.testing.assert_array_equal(mine, its)


def test_a_large_group_swaps_no_more_than_the_others_can_take():
    data = replace(clustered_linear(10, rows=4), group=np.array([0, 0, 0, 0, 0, 0, 0, 1, 1, 2], np.int32))
    after = drift.drift(data, 1, kind="swap", share=1.0).at(1)
    assert (after.group != data.group).sum() == 6 and np.bincount(after.group).tolist() == [7, 2, 1]


def test_images_are_turned_and_the_true_groups_follow():
    after = drifting("rotate").at(5)
    assert after.rotation.tolist() == [1] * 4 + [2] * 4 + [3] * 4
    assert after.group.tolist() == [1] * 4 + [2] * 4 + [3] * 4, "0° has become 90°, and 180° is new"
    assert after.group_names[3] == "180°, turned"
    (x, y), (turned, same) = rows_and_sight(STILL, 0), rows_and_sight(after, 0)
    np.testing.assert_array_equal(turned, np.rot90(x, axes=(1, 2)))
    np.testing.assert_array_equal(same, y)


@pytest.mark.parametrize("angles", [(30, 120, 210, 300), (45, 135, 225, 315)])
def test_groups_a_quarter_apart_stay_as_many_when_clients_are_turned(angles):
    options = {"angles": angles, "drift": "rotate", "drift_round": 3, "drift_share": 0.5}
    data = federations.load("rotated-digits", num_clients=16, rows_per_client=10, **options)
    after = data.at(3)
    assert {*after.group.tolist()} == {*data.group.tolist()} and not np.array_equal(after.group, data.group)


def test_turned_clients_of_groups_with_labels_of_their_own_are_groups_of_their_own():
    data = federations.load("pathological-digits", num_clients=8, drift="rotate", drift_round=3, drift_share=0.5)
    after, turned = data.at(3), data.at(3).rotation == 1
    assert turned.sum() == 4 and not data.rotation.any()
    pairs = {*zip(data.group.tolist(), turned.tolist(), strict=True)}
    assert len({*after.group.tolist()}) == len(pairs), "a group for each old one and whether it is turned"
    np.testing.assert_array_equal(after.group[~turned], data.group[~turned])


def test_turned_clients_of_a_product_are_where_others_see_the_same():
    options = {"angles": (0, 90, 180, 270), "drift": "rotate", "drift_round": 3, "drift_share": 0.5}
    data = federations.load("rotated+pathological-digits", num_clients=64, **options)
    after = data.at(3)
    classes = [name.partition(";")[0] for name in (data.group_names[one] for one in np.asarray(data.group))]
    names = [after.group_names[one] for one in np.asarray(after.group)]
    assert names == [f"{own}; {90 * turns}°" for own, turns in zip(classes, np.asarray(after.rotation), strict=True)]


@pytest.mark.parametrize("name", ["shifted+rotated-digits", "rotated+shifted-digits"])
def test_turned_clients_are_where_others_see_the_same_wherever_the_angle_is_named(name):
    data = federations.load(name, num_clients=32, drift="rotate", drift_round=3, drift_share=0.5).at(3)
    sights = [*zip(data.rotation.tolist(), data.label_shift.tolist(), strict=True)]
    assert len({*zip(sights, data.group.tolist(), strict=True)}) == len({*sights}) == len({*data.group.tolist()})


@pytest.mark.parametrize("name", ["rotated-digits", "pathological-digits", "shifted-digits"])
def test_a_new_group_sees_one_thing_that_nobody_saw(name):
    data = federations.load(name, num_clients=8, drift="new-group", drift_round=3)
    after = data.at(3)
    new = after.group == 4
    assert new.sum() == 2 and after.group_names[4] == "new" and not (data.group == 4).any()
    (shift,) = {*after.label_shift[new].tolist()}
    assert shift not in data.label_shift
    (source,) = {*data.group[np.isin(data.train.start, after.train.start[new])].tolist()}
    assert len({*after.rotation[new].tolist()}) == 1 if after.rotation is not None else True
    assert source in range(4), "their rows are of one group"


def test_who_comes_and_who_goes_are_others_and_few_are_none():
    data = drift.drift(STILL, 5, arrive=0.25, leave=0.01, kind="swap", share=1.0)
    before, after = data.phases
    assert (before.absent.sum(), after.absent.sum()) == (3, 1) and not (before.absent & after.absent).any()
    away = before.absent | after.absent
    np.testing.assert_array_equal(after.group[away], STILL.group[away])
    np.testing.assert_array_equal(before.held_out, before.absent)
    found = describe.describe(data)
    assert found.drift == {"round": 5, "change": 8, "arrive": 3, "leave": 1} and found.held_out_clients == 0
    assert describe.describe(STILL).drift is None


def test_it_is_the_seeds():
    one, same, other = (drifting("swap", seed=seed).at(5).group.tolist() for seed in (3, 3, 4))
    assert one == same != other


def test_a_subset_drifts_on():
    ids = [7, 1, 9]
    data = drifting("swap", share=1.0)
    few = data.subset(ids)
    for round in (0, 5):
        for name, values in data.at(round).per_client().items():
            np.testing.assert_array_equal(few.at(round).per_client()[name], values[ids], err_msg=name)
    sizes = replace(STILL, train=Split.pack([np.arange(n) for n in range(1, 13)]))
    later = drift.drift(sizes, 1, kind="swap", share=1.0)
    assert later.subset([0]).train.max_size == later.at(1).train.size[0] > 1, "as wide as its rows ever are"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ({"drift": "swap"}, ("drift_round", "drift=swap")),
        ({"arrive": 0.1}, ("drift_round", "arrive=0.1")),
        ({"drift_round": 3}, ("drift", "swap", "rotate", "new-group", "arrive", "leave")),
        ({"drift_round": 3, "leave": 0.1, "drift_share": 0.5}, ("drift", "drift_share=0.5")),
        ({"drift_round": 0, "drift": "swap"}, ("drift_round", 0)),
        ({"drift_round": 3, "drift": "swap", "drift_share": 0.0}, ("drift_share", 0.0)),
        ({"drift_round": 3, "drift": "swap", "drift_share": 0.1}, ("drift_share", "two groups")),
        ({"drift_round": 3, "arrive": 1.0}, ("arrive", 1.0)),
        ({"drift_round": 3, "arrive": 0.5, "leave": 0.5}, ("arrive", "leave", "0.5 and 0.5")),
        ({"drift_round": 3, "drift": "turn"}, ("drift", "turn")),
    ],
)
def test_what_cannot_be_is_named(make, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        federations.load("rotated-digits", num_clients=8, rows_per_client=10, **make)


def test_data_that_have_nothing_to_change_are_refused(tmp_path):
    linear = clustered_linear(4, rows=4)
    for data, kind, message in (
        (replace(linear, group=None), "swap", ("clustered-linear", "drift=swap")),
        (linear, "rotate", ("drift=rotate", "(32, 8)")),
        (replace(linear, labels=linear.inputs[:, 0]), "new-group", ("float32", "drift=new-group")),
        (replace(STILL, label_shift=np.arange(12) % 10), "new-group", ("label shift",)),
        (drifting("swap"), "rotate", ("drift", "rotated-digits", "round 5")),
    ):
        with pytest.raises(ValueError, match=mentions(*message)):
            drift.drift(data, 3, kind=kind)
    for what in (
        lambda data: stored.save(data, tmp_path / "data"),
        lambda data: divide.set_apart(data, 0.2),
        federations.rotate,
    ):
        with pytest.raises(ValueError, match=mentions("rotated-digits", "round 5")):
            what(drifting("swap"))
