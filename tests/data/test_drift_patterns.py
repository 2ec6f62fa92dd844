"""Drifts by which clients take other patterns of the federation's own parts, and matrices of patterns, in NumPy."""

import numpy as np
import pytest

from jaxfl import data as federations
from jaxfl.data import drift
from jaxfl.data.digest import digest
from jaxfl.data.drift.schedules import read_matrix
from jaxfl.data.sources import digits
from jaxfl.data.synthetic import clustered_linear
from jaxfl.data.views import corruptions
from tests.messages import mentions
from tests.problems import batch_of

SIZES = {"num_clients": 8, "rows_per_client": 10}
COLOURS = ("no colour", "red", "green", "blue")
POSITIONS = np.arange(10, dtype=np.int32)


def seen_by(data, client, split="train"):
    """Images, unscaled, and labels of the first rows of a client as it sees them."""
    batch = batch_of(data.replace(mean=None, std=None).on_device(), split, np.int32(client), POSITIONS)
    return np.asarray(batch.x)[np.asarray(batch.mask)], np.asarray(batch.y)[np.asarray(batch.mask)]


def pool_rows(data, client, split="train"):
    """The numbers of a client's first rows among the examples of the source."""
    part = getattr(data, split)
    rows = np.asarray(part.rows)[int(part.start[client]) :][: int(part.size[client])][: len(POSITIONS)]
    return rows if data.origin is None else np.asarray(data.origin)[rows]


def coloured_by_hand(images, colour):
    x = np.repeat(images[..., None], 3, axis=3)
    if colour:
        x[..., colour - 1] = 16
    return x


def test_clients_take_the_next_colour_and_the_groups_of_those_that_have_it():
    data = federations.load("coloured-digits", **SIZES, drift="recurrent", drift_rounds=(4, 6), drift_change="colour")
    first, second, third = data.phases
    images = digits.load().inputs
    for now, further in ((first, 0), (second, 1), (third, 0)):
        for client in range(8):
            colour = (client // 2 + further) % 4
            for split in ("train", "test"):
                x, _ = seen_by(now, client, split)
                wanted = coloured_by_hand(images[pool_rows(data, client, split)], colour)
                np.testing.assert_array_equal(x, wanted, err_msg=f"{client} {split}")
            assert now.group_names[now.group[client]] == COLOURS[colour]
            assert now.causes["colour"][client] == colour
    assert digest(first) == digest(third) != digest(second) and data.returns_at == 6


def test_a_share_of_the_clients_takes_a_colour_and_all_else_stays():
    options = {"drift": "sudden", "drift_rounds": (3,), "drift_change": "colour", "drift_share": 0.5}
    data = federations.load("coloured+rotated-digits", num_clients=16, rows_per_client=10, **options)
    before, after = data.phases
    moved = before.colour != after.colour
    assert moved.sum() == 8
    np.testing.assert_array_equal(after.colour[moved], (before.colour[moved] + 1) % 4)
    for name, values in before.per_client().items():
        if name not in ("colour", "causes.colour", "group"):
            np.testing.assert_array_equal(after.per_client()[name], values, err_msg=name)
    names = [after.group_names[one] for one in after.group]
    assert names == [
        f"{90 * turns}°; {COLOURS[code]}" for turns, code in zip(after.rotation, after.colour, strict=True)
    ]
    judged = federations.load(
        "coloured+rotated-digits", num_clients=16, rows_per_client=10, truth="rotation", **options
    )
    np.testing.assert_array_equal(judged.at(3).group, judged.group, "colours do not count among the groups")
    assert (judged.at(3).causes["colour"] != judged.causes["colour"]).sum() == 8


@pytest.mark.parametrize("name", ["corrupted-digits", "rotated+corrupted-digits"])
def test_corrupted_rows_are_copies_of_each_pattern_and_pixels_are_those_of_the_corruption(name):
    data = federations.load(name, **SIZES, drift="recurrent", drift_rounds=(4, 6), drift_change="corrupt")
    images, kinds = digits.load().inputs, ("none", "gaussian_noise", "gaussian_blur", "contrast")
    still = federations.load(name, **SIZES)
    for now, further in zip(data.phases, (0, 1, 0), strict=True):
        for client in range(8):
            rows, kind = pool_rows(now, client), kinds[(still.causes["corruption"][client] + further) % 4]
            np.testing.assert_array_equal(rows, pool_rows(still, client), "rows stay")
            turns = 0 if still.rotation is None else int(still.rotation[client])
            x = np.rot90(images[rows], turns, axes=(1, 2))
            if kind != "none":
                x = corruptions.corrupt(x, kind, 3, seed=0, rows=rows, white=16)
            np.testing.assert_array_equal(seen_by(now, client)[0], x, err_msg=f"{client} {kind}")
    first, second, third = data.phases
    assert digest(first) == digest(third) == digest(still) != digest(second)
    assert digest(data) == digest(data.subset(np.arange(8)))


def test_turned_clients_with_strokes_have_their_own_copies():
    options = {"drift": "rotate", "drift_round": 3, "strokes": "none,erode"}
    data = federations.load("thickened-digits", **SIZES, **options)
    images = digits.load().inputs
    for now, turns in zip(data.phases, (0, 1), strict=True):
        for client in range(8):
            x = np.rot90(images[pool_rows(now, client)], turns, axes=(1, 2))
            x = corruptions.redraw_strokes(x, "erode") if client >= 4 else x
            np.testing.assert_array_equal(seen_by(now, client)[0], x)


def test_clients_take_the_rows_of_the_next_classes_and_keep_their_rotation():
    options = {"drift": "sudden", "drift_rounds": (3,), "drift_change": "classes"}
    data = federations.load("rotated+pathological-digits", num_clients=8, angles=(0, 90), **options)
    before, after = data.phases
    np.testing.assert_array_equal(after.rotation, before.rotation)
    np.testing.assert_array_equal(after.causes["classes"], (before.causes["classes"] + 1) % 4)
    lists = {one: {*np.unique(seen_by(before, one)[1]).tolist()} for one in range(8)}
    for client in range(8):
        for split in ("train", "test"):
            rows = pool_rows(after, client, split)
            (source, *_) = [one for one in range(8) if np.array_equal(pool_rows(before, one, split), rows)]
            assert before.causes["classes"][source] == after.causes["classes"][client]
            x = np.rot90(data.inputs[rows], int(before.rotation[client]), axes=(1, 2))
            np.testing.assert_array_equal(seen_by(after, client, split)[0], x)
        assert not lists[client] & {*seen_by(after, client)[1].tolist()}
    assert sorted(after.train.start.tolist()) == sorted(before.train.start.tolist()), "no rows are lost or doubled"
    trained = {row for now in data.phases for client in range(8) for row in pool_rows(now, client).tolist()}
    tested = {row for now in data.phases for client in range(8) for row in pool_rows(now, client, "test").tolist()}
    assert not trained & tested


MATRIX = ((0, 0, 0), (0, 1, 2), (3, 1, 0), (0, 0, 0))


@pytest.mark.parametrize("change", ["labels", "rotate", "colour", "corrupt", "classes"])
def test_a_matrix_says_which_pattern_a_client_has_in_each_stage(change):
    name = {"colour": "coloured-digits", "corrupt": "corrupted-digits", "classes": "pathological-digits"}
    name = name.get(change, "rotated-digits")
    sizes = {"num_clients": 8} if change == "classes" else SIZES
    options = {"drift": "matrix", "drift_every": 2, "drift_change": change, "drift_matrix": MATRIX}
    still, data = federations.load(name, **sizes), federations.load(name, **sizes, **options)
    assert data.drift_rounds == (2, 4, 6) and data.returns_at == 6
    for round in range(8):
        now = data.at(round)
        number = np.array([MATRIX[round // 2][client % 3] for client in range(8)])
        if change == "labels":
            table = np.tile(np.arange(10), (4, 1))
            for swap, (one, other) in enumerate(((1, 2), (3, 4), (5, 6)), 1):
                table[swap, [one, other]] = other, one
            np.testing.assert_array_equal(now.label_maps(), table[number])
        elif change == "rotate":
            np.testing.assert_array_equal(now.rotation, (still.rotation + number) % 4)
        else:
            cause = {"corrupt": "corruption"}.get(change, change)
            np.testing.assert_array_equal(now.causes[cause], (still.causes[cause] + number) % 4)
            sees = [int(np.flatnonzero(still.causes[cause] == one)[0]) for one in now.causes[cause]]
            if change != "classes":
                np.testing.assert_array_equal(getattr(now, cause), getattr(still, cause)[sees])
            np.testing.assert_array_equal(now.group, now.causes[cause])
    assert digest(data.at(0)) == digest(data.at(6))
    assert change == "labels" or digest(data.at(0)) == digest(still), "swaps are a further cause of groups"
    assert len({digest(now) for now in data.phases}) == 3


def test_patterns_before_the_first_change_and_those_of_feddrift(tmp_path):
    file = tmp_path / "matrix.txt"
    file.write_text("1 0\n0,0\n\n1 1\n")
    data = federations.load("rotated-digits", **SIZES, drift="matrix", drift_every=3, drift_matrix=str(file))
    swapped = [now.label_maps()[:, 1] == 2 for now in data.phases]
    np.testing.assert_array_equal(swapped, [np.arange(8) % 2 == 0, [False] * 8, [True] * 8])
    a, c = read_matrix("feddrift-A"), read_matrix("feddrift-C")
    assert a.shape == c.shape == (11, 10) and a.max() == 1 and c.max() == 3
    assert not a[0].any() and not c[0].any() and "".join(map(str, a[5])) == "1011011010"
    assert (a[8:] == a[8]).all() and (c[9] == c[10]).all() and "".join(map(str, c[9])) == "0003311322"
    options = {"drift": "matrix", "drift_every": 1, "drift_matrix": "feddrift-A", "drift_change": "new-group"}
    known = federations.load("rotated-digits", num_clients=20, rows_per_client=8, **options)
    for round in range(11):
        np.testing.assert_array_equal(known.at(round).group == 4, np.tile(a[round], 2) == 1)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("rotated-digits", {"drift_change": "colour"}, ("drift_change=colour", "coloured", "rotated-digits")),
        ("coloured-digits", {"drift_change": "corrupt"}, ("drift_change=corrupt", "corrupted", "coloured-digits")),
        ("dirichlet-digits", {"drift_change": "classes"}, ("drift_change=classes", "pathological", "dirichlet-digits")),
        ("coloured-digits", {"drift_change": "colour", "colours": "red"}, ("drift_change=colour", 1)),
    ],
)
def test_parts_that_a_federation_lacks_are_named(name, options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        federations.load(name, num_clients=8, drift="sudden", drift_rounds=(3,), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drift": "matrix"}, ("drift_matrix", "feddrift-A", "feddrift-C", "file")),
        ({"drift": "matrix", "drift_every": 2}, ("drift_matrix", "feddrift-A")),
        ({"drift": "matrix", "drift_matrix": "feddrift-A"}, ("drift_every", "drift=matrix")),
        ({"drift": "matrix", "drift_matrix": MATRIX, "drift_every": 0}, ("drift_every", 0)),
        ({"drift": "matrix", "drift_matrix": MATRIX, "drift_every": 2, "drift_round": 3}, ("drift_round", "matrix")),
        ({"drift": "matrix", "drift_matrix": MATRIX, "drift_every": 2, "drift_rounds": (3,)}, ("drift_rounds",)),
        ({"drift": "matrix", "drift_matrix": MATRIX, "drift_every": 2, "drift_share": 0.5}, ("drift_share", 0.5)),
        ({"drift": "matrix", "drift_matrix": MATRIX, "drift_every": 2, "drift_parts": "group"}, ("drift_parts",)),
        ({"drift": "sudden", "drift_rounds": (3,), "drift_matrix": "feddrift-A"}, ("drift", "drift_matrix", "sudden")),
        ({"drift_every": 3}, ("drift", "drift_every=3", "none")),
        ({"drift": "matrix", "drift_matrix": "feddrift-A", "drift_every": 2}, ("drift_matrix", 8, 10)),
        ({"drift": "matrix", "drift_matrix": ((0,), (4,)), "drift_every": 2}, ("drift_matrix", 3, 4)),
        (
            {"drift": "matrix", "drift_matrix": ((0,), (2,)), "drift_every": 2, "drift_change": "swap"},
            ("drift_matrix", "drift_change=swap", 2),
        ),
        ({"drift": "matrix", "drift_matrix": ((0, 1), (1,)), "drift_every": 2}, ("drift_matrix", "2, 1")),
        ({"drift": "matrix", "drift_matrix": ((0, 1),), "drift_every": 2}, ("drift_matrix", "two rows")),
        ({"drift": "matrix", "drift_matrix": ((0,), (-1,)), "drift_every": 2}, ("drift_matrix", -1)),
    ],
)
def test_matrices_that_cannot_be_are_named(options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        federations.load("rotated-digits", **SIZES, **options)


def test_files_that_are_no_matrix_are_named(tmp_path):
    options = {**SIZES, "drift": "matrix", "drift_every": 2}
    with pytest.raises(FileNotFoundError, match=mentions("drift_matrix", "feddrift-A", "nowhere.txt")):
        federations.load("rotated-digits", **options, drift_matrix=str(tmp_path / "nowhere.txt"))
    (tmp_path / "words.txt").write_text("0 0\n0 x\n")
    with pytest.raises(ValueError, match=mentions("drift_matrix", "x", "words.txt")):
        federations.load("rotated-digits", **options, drift_matrix=str(tmp_path / "words.txt"))
    linear = clustered_linear(4, rows=4)
    with pytest.raises(ValueError, match=mentions("drift_rounds", 1, 2)):
        drift.drift(linear, (3, 4), kind="labels", schedule="matrix", matrix=[[0], [1]])
