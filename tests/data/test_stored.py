"""Federations in folders: what is written comes back, mapped; what is damaged or does not fit is refused by name."""

import json
import pickle
from dataclasses import replace

import jax
import numpy as np
import pytest

from jaxfl.data import Split, divide, load, stored
from jaxfl.data.synthetic import clustered_linear
from jaxfl.simulation.records.identity import LOOKED_AT, fingerprint
from tests.messages import mentions

DATA = clustered_linear(6, rows=8, features=4, ragged=True)
SAVED = {
    "ragged": DATA,
    "turned, some held out": load("rotated-digits", num_clients=8, rows_per_client=20, held_out=0.25, stragglers=0.5),
    "attacked": load("shifted-digits", num_clients=8, rows_per_client=20, attack="label-flip", attackers=0.25),
    "without test rows": replace(DATA, test=Split.pack([np.zeros(0, int)] * 6)),
    "some rows set apart": divide.set_apart(DATA, 0.3),
    "named": replace(DATA, group_names=("one", "two"), class_names=("a", "b", "c"), name="mine"),
    "with names of clients": replace(DATA, client_names=tuple("uvwxyz")),
    "column by column": replace(DATA, inputs=np.asfortranarray(DATA.inputs)),
    "scaled by channel": replace(DATA, mean=np.ones((1, 4), np.float32), std=np.full((1, 4), 2.0, np.float32)),
}


@pytest.mark.parametrize("name", SAVED)
def test_what_is_saved_comes_back(tmp_path, name):
    data = SAVED[name]
    stored.save(data, tmp_path / "a")
    again = stored.load(tmp_path / "a")
    assert jax.tree.structure(again) == jax.tree.structure(data)
    for wanted, got in zip(jax.tree.leaves(data), jax.tree.leaves(again), strict=True):
        assert (got.dtype, got.shape) == (np.asarray(wanted).dtype, np.shape(wanted))
        np.testing.assert_array_equal(got, wanted)
    long = (again.inputs, again.labels, again.train.rows, again.test.rows)
    assert all(isinstance(array, np.memmap) and not array.flags.writeable for array in long)
    assert not isinstance(again.train.start, np.memmap)


def test_what_is_mapped_is_told_apart_by_some_of_its_rows(tmp_path):
    pool = np.zeros((3 * LOOKED_AT, 2), np.float32)
    data = replace(DATA, inputs=pool, labels=np.zeros(len(pool), np.int32))
    other = replace(data, inputs=pool + 1)
    for name, one in (("a", data), ("same", data), ("b", other)):
        stored.save(one, tmp_path / name)
    first, same, second = (fingerprint(stored.load(tmp_path / name)) for name in ("a", "same", "b"))
    assert first == same != second


def change_header(folder, **changes):
    header = json.loads((folder / "federation.json").read_text())
    (folder / "federation.json").write_text(json.dumps({**header, **changes}))


def put(name, array):
    """Returns what writes another array of the same type and shape into a folder, or of those of the array."""
    return lambda folder: np.save(folder / f"{name}.npy", array)


def number(name, place, value):
    def damage(folder):
        array = np.load(folder / f"{name}.npy")
        array[place] = value
        np.save(folder / f"{name}.npy", array)

    return damage


def shorten(name, count):
    def damage(folder):
        content = (folder / f"{name}.npy").read_bytes()
        (folder / f"{name}.npy").write_bytes(content[:count] if count < 0 else content + bytes(count))

    return damage


def pickled(folder):
    (folder / "inputs.npy").write_bytes(pickle.dumps([1, 2]))


def objects(folder):
    np.save(folder / "inputs.npy", np.array([{}]), allow_pickle=True)


def announce(folder, name="train.start", shape=(10**12,)):
    """The header and the file both say that there is more than there is."""
    arrays = json.loads((folder / "federation.json").read_text())["arrays"]
    change_header(folder, arrays={**arrays, name: {"dtype": "int32", "shape": shape}})
    with (folder / f"{name}.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<i4", "fortran_order": False, "shape": shape})


DAMAGED = {
    "no header": (lambda folder: (folder / "federation.json").unlink(), ("no federation.json",)),
    "no JSON": (lambda folder: (folder / "federation.json").write_text("{"), ("federation.json",)),
    "a list": (lambda folder: (folder / "federation.json").write_text("[]"), ("federation.json",)),
    "another format": (
        lambda folder: change_header(folder, schema=9),
        ("schema", 9),
    ),
    "classes of text": (
        lambda folder: change_header(folder, num_classes="3"),
        ("num_classes",),
    ),
    "an unknown attack": (lambda folder: change_header(folder, attack="worm"), ("attack", "worm")),
    "no such array": (
        lambda folder: change_header(folder, arrays={"../x": {"dtype": "int32", "shape": []}}),
        ("../x",),
    ),
    "arrays left out": (lambda folder: change_header(folder, arrays={}), ("arrays",)),
    "a file is missing": (lambda folder: (folder / "labels.npy").unlink(), ("labels.npy", "missing")),
    "a pickle": (pickled, ("inputs.npy",)),
    "objects": (objects, ("inputs.npy",)),
    "cut off": (shorten("inputs", -4), ("inputs.npy",)),
    "too long": (shorten("labels", 4), ("labels.npy", "4 bytes")),
    "more than there is": (announce, ("train.start.npy",)),
    "another type": (put("labels", DATA.labels.astype(np.int64)), ("labels.npy", "int32")),
    "columns": (put("inputs", np.asfortranarray(DATA.inputs)), ("inputs.npy",)),
    "no such class": (number("labels", 1, 3), ("labels", "0..2", 3)),
    "a class below 0": (number("labels", 1, -1), ("labels", "0..2", -1)),
    "no such row": (number("train.rows", 0, 10**6), ("train", 10**6)),
    "a range beyond": (number("test.start", 2, 10**6), ("test", "client 2")),
    "a range below 0": (number("train.size", 2, -1), ("train", "client 2")),
    "a range that wraps": (number("train.start", 2, 2**31 - 1), ("train", "client 2")),
    "another maximum": (
        lambda folder: change_header(folder, max_size={"train": 1, "test": 1}),
        ("train", "max_size"),
    ),
    "no such group": (number("group", 0, 2), ("group", 2)),
}


WITH_ALL = load("rotated-digits", num_clients=8, rows_per_client=20, stragglers=0.2, attack="backdoor", attackers=0.3)
OUT_OF_RANGE = {
    "rotation": ((0, 4), (0, -1)),
    "stragglers": (((), np.nan), ((), 1.5)),
    "attack.scale": (((), np.inf), ((), -1.0)),
    "trigger.target": (((), 10), ((), -1)),
    "train.triggered": ((0, -2),),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_numbers_out_of_their_ranges_are_refused(tmp_path, name):
    for case, (place, value) in enumerate(OUT_OF_RANGE[name]):
        stored.save(WITH_ALL, folder := tmp_path / str(case))
        stored.load(folder)
        number(name, place, value)(folder)
        with pytest.raises(ValueError, match=mentions(str(folder), name)):
            stored.load(folder)


@pytest.mark.parametrize(
    ("entry", "values"),
    [
        ("class_names", ["abc", {"a": 1}, ["a"], ["a", "a", "b"], None]),
        ("group_names", ["ab", ["a", "a"]]),
        ("client_names", ["uvwxyz", ["a"] * 6]),
        ("fitted", ["no", 0, None]),
        ("trigger", [0, -1, 1.5, True, "2", 10**18]),
    ],
)
def test_names_and_entries_of_another_type_are_refused(tmp_path, entry, values):
    stored.save(DATA, folder := tmp_path / "a")
    for value in values:
        change_header(folder, **{entry: value})
        with pytest.raises(ValueError, match=mentions(str(folder), entry)):
            stored.load(folder)


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_damaged_is_refused_by_its_name(tmp_path, name):
    damage, words = DAMAGED[name]
    folder = tmp_path / "a"
    stored.save(replace(DATA, group_names=("one", "two")), folder)
    damage(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=mentions(*words)) as refused:
        stored.load(folder)
    assert str(folder) in str(refused.value)


def test_nothing_is_written_over(tmp_path):
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(ValueError, match=mentions("save", "folder")):
        stored.save(DATA, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_half_a_federation_is_none(tmp_path, monkeypatch):
    def full(file, array, **options):
        raise OSError("no space left")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match=mentions("no space left")):
        stored.save(DATA, tmp_path / "a")
    with pytest.raises(FileNotFoundError, match=mentions("federation.json")):
        stored.load(tmp_path / "a")
