"""UNIPEN: writers and their sites, letters with folded case, and files that are not it."""

import pathlib

import numpy as np
import pytest

from jaxfl.data.sources import unipen
from tests.messages import mentions

FILES = pathlib.Path(__file__).parents[3] / "shared" / "data"
WRITER = np.repeat(np.array([3, 5, 8], np.int16), [200, 100, 50])
ARRAYS = {
    "x": np.random.Generator(np.random.PCG64(0)).integers(0, 256, (350, 28, 28), np.uint8),
    "y": (np.arange(350) % 62).astype(np.uint8),
    "writer": WRITER,
    "site": np.repeat(np.array([2, 0, 1], np.uint8), [200, 100, 50]),
    "site_names": np.array(["aga", "ibm", "val"]),
    "classes": np.array(list("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")),
}


def changed(name, rows, values):
    array = ARRAYS[name].copy()
    array[rows] = values
    return {name: array}


def write(folder, **arrays):
    folder.mkdir(exist_ok=True)
    np.savez_compressed(folder / "unipen_62.npz", **{**ARRAYS, **arrays})
    return folder


@pytest.mark.parametrize("below", ["", "unipen"])
def test_all_classes_by_writer(tmp_path, below):
    write(tmp_path / below)
    assert unipen.UNIPEN.find(tmp_path) == tmp_path / below
    source = unipen.UNIPEN.load(tmp_path)
    np.testing.assert_array_equal(source.inputs, ARRAYS["x"])
    assert (source.name, source.num_classes, source.mean, source.std) == ("unipen", 62, 0.0, 255.0)
    assert source.labels.tolist() == ARRAYS["y"].tolist() and source.clients.tolist() == WRITER.tolist()
    assert source.client_groups.tolist() == ARRAYS["site"].tolist() and source.group_names == ("aga", "ibm", "val")
    assert source.class_names[10] == "A" and source.class_names[61] == "z"


def test_letters_are_folded_and_sites_without_letters_go(tmp_path):
    write(tmp_path, **changed("y", WRITER == 5, 7))  # the writer of the first site wrote digits only
    source = unipen.LETTERS.load(tmp_path)
    kept = (ARRAYS["y"] >= 10) & (WRITER != 5)
    np.testing.assert_array_equal(source.inputs, ARRAYS["x"][kept])
    spoken = [source.class_names[label] for label in source.labels]
    assert spoken == [character.upper() for character in ARRAYS["classes"][ARRAYS["y"][kept]]]
    assert source.num_classes == 26 and set(source.clients.tolist()) == {3, 8}
    sites = [source.group_names[group] for group in source.client_groups]
    assert sites == ARRAYS["site_names"][ARRAYS["site"][kept]].tolist() and source.group_names == ("ibm", "val")


def test_a_writer_of_two_sites_belongs_to_the_one_with_most_rows(tmp_path):
    write(tmp_path, **changed("site", [0, 1], 0))
    source = unipen.unipen(tmp_path)
    assert set(source.client_groups[WRITER == 3].tolist()) == {2}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (changed("site", slice(0, 20), 0), ("site", "20 of 350")),
        (changed("site", 5, 3), ("site", 3, "0..2", "site_names")),
        (changed("y", 5, 62), ("y", 62, "0..61")),
        ({"writer": WRITER[:-1]}, ("writer", "(349,)", "[350]")),
        ({"site": ARRAYS["site"][1:]}, ("site", "[350]")),
        ({"y": ARRAYS["y"][1:]}, ("y", "[350]")),
        ({"y": ARRAYS["y"] / 2}, ("y", 0.0, "0..61")),
        ({"y": ARRAYS["y"] % 26, "classes": ARRAYS["classes"][:26]}, ("classes", 62, 26)),
    ],
)
def test_arrays_that_do_not_fit_each_other(tmp_path, arrays, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        unipen.unipen(write(tmp_path, **arrays))


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_is_missing(tmp_path, name):
    np.savez(tmp_path / "unipen_62.npz", **{key: array for key, array in ARRAYS.items() if key != name})
    with pytest.raises(ValueError, match=mentions("unipen_62.npz", f"array {name}")):
        unipen.unipen(tmp_path)


def test_the_file_is_missing_or_cut_off(tmp_path):
    assert unipen.UNIPEN.find(tmp_path) is None
    with pytest.raises(FileNotFoundError, match=mentions("unipen", "unipen_62.npz")):
        unipen.letters(tmp_path)
    path = write(tmp_path) / "unipen_62.npz"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=mentions("unipen_62.npz", "np.savez")):
        unipen.letters(tmp_path)


@pytest.mark.skipif(not (FILES / "unipen").is_dir(), reason="needs UNIPEN in ../shared/data/unipen")
def test_the_real_file():
    source, letters = unipen.unipen(FILES), unipen.letters(FILES)
    assert source.inputs.shape == (104_766, 28, 28) and letters.inputs.shape == (89_017, 28, 28)
    assert len(np.unique(source.clients)) == 317 and len(np.unique(source.client_groups)) == 21
    assert np.unique(letters.labels).tolist() == list(range(26)) and len(letters.group_names) == 21
    for one in (source, letters):
        pairs = np.unique(np.stack([one.clients, one.client_groups]), axis=1)
        assert pairs.shape[1] == len(np.unique(one.clients))  # each writer is of one site
