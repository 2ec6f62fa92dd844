"""Label maps: the laws of swaps, permutations and mirrors, restated for single labels, and where they are applied."""

import itertools
import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfl import data
from jaxfl.data import conditions, describe, divide, drift, stored
from jaxfl.data.views import label_maps
from jaxfl.simulation.evaluation import served
from jaxfl.simulation.records.identity import fingerprint
from jaxfl.simulation.spec import share_equal_arrays
from tests.messages import mentions
from tests.problems import batch_of

CLOVE = ("0:3/8:9", "1:4/6:9", "1:2/3:6", "3:5/4:7")


def swap(label, pairs):
    """The law of a swap, for one label."""
    for pair in [] if pairs == "none" else pairs.split("/"):
        first, second = map(int, pair.split(":"))
        if label in (first, second):
            return second if label == first else first
    return label


def mirror(label, word, classes):
    return {"none": label, "reverse": classes - 1 - label, "next": (label + 1) % classes}[word]


def seen_and_stored(fed, split, client):
    """The labels of a client's rows in its batches, and in the pool."""
    part = fed.splits[split]
    size, start = int(part.size[client]), int(part.start[client])
    batch = batch_of(fed.on_device(), split, np.int32(client), np.arange(size, dtype=np.int32))
    return np.asarray(batch.y), np.asarray(fed.labels)[np.asarray(part.rows)[start : start + size]]


def assert_law(fed, law):
    """Each client sees the labels that a law says for its group, in each split."""
    for client, split in itertools.product(range(fed.num_clients), fed.splits):
        seen, own = seen_and_stored(fed, split, client)
        assert seen.tolist() == [law(int(fed.group[client]), label) for label in own.tolist()], (client, split)


@pytest.mark.parametrize("swaps", [None, "none,0:3/8:9", ("2:1", "none", "0:9/8:1/2:7")])
def test_swapped_clients_see_two_classes_exchanged(swaps):
    fed = data.load("swapped-digits", num_clients=12, rows_per_client=30, swaps=swaps, validation=0.2)
    groups = CLOVE if swaps is None else swaps.split(",") if isinstance(swaps, str) else swaps
    assert len(fed.group_names) == len(groups) == len({*fed.group.tolist()})
    assert_law(fed, lambda group, label: swap(label, groups[group]))


@pytest.mark.parametrize("maps", [None, "next,reverse"])
def test_mirrored_clients_see_classes_reversed_or_the_next_one(maps):
    fed = data.load("mirrored-digits", num_clients=6, rows_per_client=30, maps=maps)
    words = ("none", "reverse", "next") if maps is None else maps.split(",")
    assert_law(fed, lambda group, label: mirror(label, words[group], 10))


def test_permuted_groups_permute_the_same_classes_and_no_two_alike():
    fed = data.load("permuted-digits", num_clients=12, rows_per_client=30, labels=3, num_groups=6, seed=4)
    maps = np.asarray(fed.label_maps())
    assert (np.sort(maps, 1) == np.arange(10)).all() and len(np.unique(maps, axis=0)) == 6
    assert (maps != np.arange(10)).any(0).sum() == 3, "all six permutations of three classes"
    assert_law(fed, lambda group, label: maps[np.flatnonzero(fed.group == group)[0], label])
    drawn = [tuple(label_maps.permutations_of(4, 2, 10, seed).maps.ravel()) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_permutation_of_each_client_plants_no_groups():
    fed = data.load("permuted-digits", num_clients=400, rows_per_client=2, labels=3, each_client=True)
    assert fed.group is None and fed.causes == {}
    counts = np.unique(fed.label_maps(), axis=0, return_counts=True)[1]
    assert len(counts) == 6 and counts.min() > 40, "each of the six permutations, about 67 clients of 400"
    one = data.load("permuted-digits", num_clients=4, labels=1, each_client=True)
    np.testing.assert_array_equal(one.label_maps(), np.tile(np.arange(10), (4, 1)))
    crossed = data.load("permuted+rotated-digits", num_clients=8, each_client=True)
    assert list(crossed.causes) == ["rotation"] and crossed.name == "permuted+rotated-digits"


def test_a_swap_twice_is_the_identity():
    plain = data.load("shifted-digits", num_clients=4, rows_per_client=20)
    once = data.swap_labels(plain, swaps="0:3/8:9")
    twice = data.swap_labels(once, swaps="0:3/8:9")
    assert (once.label_maps() != plain.label_maps()).any()
    np.testing.assert_array_equal(twice.label_maps(), plain.label_maps())


def test_a_swap_that_is_a_shift_has_its_rows_and_labels():
    """y + 5 modulo 10 exchanges 0 and 5, 1 and 6, ..."""
    shifted = data.load("shifted-digits", num_clients=4, rows_per_client=50, shifts=(0, 5))
    swapped = data.load("swapped-digits", num_clients=4, rows_per_client=50, swaps="none,0:5/1:6/2:7/3:8/4:9")
    assert swapped.train.rows.tolist() == shifted.train.rows.tolist()
    np.testing.assert_array_equal(swapped.label_maps(), shifted.label_maps())
    assert shifted.label_map is None, "federations of shifts are stored as they always were"
    for client in range(4):
        for mine, its in zip(*(seen_and_stored(one, "train", client) for one in (swapped, shifted)), strict=True):
            np.testing.assert_array_equal(mine, its)


def test_shifts_before_a_plus_follow_each_other():
    """The shift nearest to the source comes first; the next one sees its labels."""
    name = "mirrored+swapped+rotated+shifted+iid-digits"
    options = {"maps": "none,reverse", "swaps": "none,0:3/8:9", "angles": (0, 90), "shifts": (0, 5)}
    fed = data.load(name, num_clients=32, **options)
    assert fed.name == name and len(fed.group_names) == 16 and np.bincount(fed.group).tolist() == [2] * 16

    def law(group, label):
        shift, angle, pairs, word = fed.group_names[group].split("; ")
        pairs = "none" if pairs == "no swap" else pairs.removeprefix("swap ").replace(" ", "/")
        label = swap((label + int(shift.split()[1])) % 10, pairs)
        assert angle in ("0°", "90°")
        return mirror(label, {"no mirror": "none", "reversed": "reverse"}[word], 10)

    assert_law(fed, law)


@pytest.mark.parametrize("classes", [2, 3, 6])
@pytest.mark.parametrize("skew", ["swapped", "permuted", "mirrored"])
def test_defaults_fit_a_source_of_few_classes(skew, classes):
    labels = np.arange(120) % classes
    source = data.Source("made", np.zeros((120, 2), np.float32), labels, classes)
    fed = data.SKEWS[skew][0](source, num_clients=12)
    assert len(np.unique(fed.label_maps(), axis=0)) == len(fed.group_names) > 1
    names = {one.name: one for one in data.known_options(f"{skew}+iid-digits").values()}
    assert names.keys() >= {"truth"}


FED = data.load("swapped-digits", num_clients=8, rows_per_client=20, swaps="none,0:3/8:9,1:2,4:5")


def test_counts_of_labels_are_those_of_batches():
    hostile = conditions.attack(FED, "backdoor", 0.5, target=3)
    for fed in (FED, hostile, conditions.attack(FED, "label-flip", 0.5)):
        for client in range(8):
            labels, _ = seen_and_stored(fed, "train", client)
            assert describe.label_counts(fed)[client].tolist() == np.bincount(labels, minlength=10).tolist()
    triggered = divide.on_triggered(hostile)
    for client in range(8):
        _, own = seen_and_stored(triggered, "test", client)
        labels = [swap(label, ("none", "0:3/8:9", "1:2", "4:5")[FED.group[client]]) for label in own.tolist()]
        _, before = seen_and_stored(FED, "test", client)
        assert 3 not in labels and len(labels) == sum(
            swap(label, ("none", "0:3/8:9", "1:2", "4:5")[FED.group[client]]) != 3 for label in before.tolist()
        )


def test_saved_maps_come_back_and_are_checked(tmp_path):
    fed = data.load("swapped+rotated-digits", num_clients=8, swaps="none,0:3/8:9", angles=(0, 90), held_out=0.3)
    stored.save(fed, tmp_path / "a")
    again = stored.load(tmp_path / "a")
    assert again.cause_names == fed.cause_names and jax.tree.structure(again) == jax.tree.structure(fed)
    for mine, its in zip(jax.tree.leaves(again), jax.tree.leaves(fed), strict=True):
        np.testing.assert_array_equal(mine, its)
    header = tmp_path / "a" / "federation.json"
    older = json.loads(header.read_text())
    for name in [name for name in older["arrays"] if name.startswith("causes")]:
        del older["arrays"][name]
    del older["causes"]
    (tmp_path / "a" / "federation.json").write_text(json.dumps(older))
    assert stored.load(tmp_path / "a").causes == {} and fingerprint(stored.load(tmp_path / "a")) == fingerprint(again)
    broken = np.array(fed.label_map)
    broken[0, :2] = 3
    np.save(tmp_path / "a" / "label_map.npy", broken)
    with pytest.raises(ValueError, match=mentions("label_map", "[[3, 3")):
        stored.load(tmp_path / "a")


@pytest.mark.parametrize("kind", ["swap", "rotate", "new-group", "labels"])
def test_clients_take_labels_with_them_in_a_drift(kind):
    fed = drift.drift(FED, 5, kind=kind, share=0.5)
    before, after = fed.at(4), fed.at(5)
    np.testing.assert_array_equal(before.label_maps(), FED.label_maps())
    changed = (after.label_maps() != before.label_maps()).any(1)
    known = {tuple(one) for one in FED.label_maps().tolist()}
    new = {tuple(one) for one in after.label_maps()[changed].tolist()} - known
    assert changed.any() == (kind != "rotate") and (kind == "labels" or len(new) == (kind == "new-group"))
    assert kind != "labels" or (changed.sum() == 4 and new), "pairs are swapped of what clients call them already"
    assert (np.sort(after.label_maps(), 1) == np.arange(10)).all()
    moved = np.zeros(8, bool)
    for cause, pattern in after.causes.items():
        moved |= pattern != before.causes[cause]
    np.testing.assert_array_equal(moved, after.group != before.group)
    assert {*after.causes} == {*before.causes} == {*dict(fed.cause_names)}


def test_newcomers_of_a_run_keep_their_own_maps():
    new = data.load("mirrored-digits", num_clients=3, rows_per_client=5)
    plain = data.load("shifted-digits", num_clients=4, rows_per_client=5)
    for first, second in ((FED, new), (plain, new), (new, plain)):
        both = served.with_newcomers(first, second)
        np.testing.assert_array_equal(both.label_maps(), np.concatenate([first.label_maps(), second.label_maps()]))
    assert served.with_newcomers(plain, plain).label_map is None


def test_maps_of_ones_own_arrays():
    inputs, labels = np.zeros((6, 2), np.float32), np.array([0, 1, 2, 0, 1, 2])
    table = [[0, 1, 2], [2, 0, 1]]
    fed = data.federate(
        inputs, labels, [[0, 1, 2], [3, 4, 5]], [[], []], num_classes=3, label_map=table, label_shift=[1, 0]
    )
    assert fed.relabelled(labels[:3], 0).tolist() == [2, 0, 1] and fed.relabelled(labels[:3], 1).tolist() == [0, 1, 2]
    batch = fed.on_device().batch(fed.train, jnp.int32(0), jnp.arange(3))
    assert batch.y.tolist() == [2, 0, 1]
    for wrong, message in (
        ({"label_map": [[0, 1, 1]], "label_shift": [0, 0]}, ("label_map", "[0, 1, 1]")),
        ({"label_map": [[0, 1]], "label_shift": [0, 0]}, ("label_map", "[1, 2]")),
        ({"label_map": table, "label_shift": [0, 2]}, ("label_shift", 2)),
        ({"label_map": table}, ("label_shift", "none")),
    ):
        with pytest.raises(ValueError, match=mentions(*message)):
            data.federate(inputs, labels, [[0], [1]], [[], []], num_classes=3, **wrong)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("swapped-digits", {"swaps": "0:3,9:10"}, ("swaps", "9:10", 9)),
        ("swapped-digits", {"swaps": "0:3/3:4"}, ("swaps", 3, "0:3/3:4")),
        ("swapped-digits", {"swaps": "0-3"}, ("swaps", "0-3")),
        ("swapped-digits", {"swaps": "4:4"}, ("swaps", "4:4")),
        ("swapped-digits", {"swaps": ["0:3", "3:0"]}, ("swaps", "0:3", "3:0")),
        ("permuted-digits", {"labels": 11}, ("labels", 11, 10)),
        ("permuted-digits", {"labels": 2, "num_groups": 3}, ("num_groups", 3, 2)),
        ("mirrored-digits", {"maps": "none,revers"}, ("maps", "revers", "reverse")),
        ("mirrored-digits", {"maps": "next,next"}, ("maps", "next")),
        ("swapped+swapped+iid-digits", {}, ("swapped+swapped+iid-digits",)),
    ],
)
def test_refusals_name_argument_value_and_remedy(name, options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        data.load(name, **options)


def test_numbers_to_predict_have_no_labels_to_swap():
    numbers = data.federate(np.zeros((4, 2), np.float32), np.arange(4) / 7, [[0, 1]], [[2, 3]])
    with pytest.raises(ValueError, match=mentions("swapped", "float32")):
        data.swap_labels(numbers)
    assert replace(FED, label_map=None).label_map is None


@pytest.mark.parametrize("name", ["permuted+shifted-digits", "permuted-digits", "swapped+mirrored+iid-digits"])
@pytest.mark.parametrize("each", [False, True])
def test_federations_of_several_seeds_can_share_a_program(name, each):
    options = {"rows_per_client": 20} if name == "permuted-digits" else {}
    options |= {"each_client": True} if each and "permuted" in name else {}
    made = [data.load(name, num_clients=24, seed=seed, **options) for seed in range(3)]
    assert share_equal_arrays(made) is not None
    assert "permuted" not in name or (made[0].label_maps() != made[1].label_maps()).any()
