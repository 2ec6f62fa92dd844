"""Sources: files in their true format load, and each kind of damage has its own error."""

import gzip
import os
import re

import numpy as np
import pytest
from sklearn.datasets import load_digits

from jaxfl.data import sources, stored
from jaxfl.data.sources import digits, idx, mnist, npz
from jaxfl.data.synthetic import clustered_linear
from tests.messages import mentions

RNG = np.random.Generator(np.random.PCG64(0))
IMAGES, TEST_IMAGES = RNG.integers(0, 256, (20, 4, 4), np.uint8), RNG.integers(0, 256, (6, 4, 4), np.uint8)
LABELS, TEST_LABELS = np.arange(20, dtype=np.uint8) % 10, np.arange(6, dtype=np.uint8)
# class, HSF series, writer, digit index, NIST class code, global index, 0, 0
WRITERS = np.zeros((20, 8), np.int32)
WRITERS[:, 0], WRITERS[:, 2] = LABELS, np.arange(20) // 5 + 100
WRITERS[:, 1] = np.where(WRITERS[:, 2] < 102, 0, 4)
FILES = {
    "train-images-idx3-ubyte": IMAGES,
    "train-labels-idx1-ubyte": LABELS,
    "t10k-images-idx3-ubyte": TEST_IMAGES,
    "t10k-labels-idx1-ubyte": TEST_LABELS,
}


def idx_bytes(values, code=0x08):
    header = bytes([0, 0, code, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    return header + values.astype(idx.TYPES[code]).tobytes()


@pytest.fixture(params=["", ".gz"])
def folder(request, tmp_path):
    for name, values in FILES.items():
        content = idx_bytes(values)
        (tmp_path / (name + request.param)).write_bytes(gzip.compress(content) if request.param else content)
    return tmp_path


def add_writers(folder, table=WRITERS):
    (folder / "qmnist-train-labels-idx2-int.gz").write_bytes(gzip.compress(idx_bytes(table, 0x0C)))


@pytest.mark.parametrize("load", [mnist.mnist, mnist.fashion_mnist, mnist.kmnist])
def test_idx_files_load_plain_and_compressed(folder, load):
    source = load(folder)
    np.testing.assert_array_equal(source.inputs, IMAGES)
    np.testing.assert_array_equal(source.test_inputs, TEST_IMAGES)
    assert source.labels.tolist() == LABELS.tolist() and source.test_labels.tolist() == TEST_LABELS.tolist()
    assert (source.mean, source.std, source.num_classes, source.clients) == (0.0, 255.0, 10, None)
    inputs, labels, official = source.pool
    np.testing.assert_array_equal(inputs[official], TEST_IMAGES)
    assert labels[official].tolist() == TEST_LABELS.tolist()


def test_folder_above_and_names_with_a_dot_are_found(tmp_path):
    (tmp_path / "mnist").mkdir()
    for name, values in FILES.items():
        (tmp_path / "mnist" / name.replace("-idx", ".idx")).write_bytes(idx_bytes(values))
    assert len(mnist.mnist(tmp_path).inputs) == 20
    assert sources.located("mnist", tmp_path) == str(tmp_path / "mnist")
    assert sources.located("mnist", tmp_path, makers=True) is None


@pytest.mark.parametrize("code", idx.TYPES)
def test_every_type_of_idx_is_read_in_the_machines_byte_order(tmp_path, code):
    values = np.array([[1, 2, 3], [4, 5, 100]])
    path = tmp_path / "values"
    path.write_bytes(idx_bytes(values, code))
    read = idx.read(path, num_axes=2, type_code=code)
    assert read.tolist() == values.tolist() and read.dtype.isnative


def test_writers_and_their_groups_come_from_qmnist(folder):
    add_writers(folder)
    source = mnist.mnist(folder)
    assert source.clients.tolist() == WRITERS[:, 2].tolist()
    assert source.client_groups.tolist() == [0] * 10 + [1] * 10
    assert source.group_names == ("employees", "students")


def test_a_file_converted_before_the_makers_were_known_is_not_read_instead(folder):
    add_writers(folder)
    whole = sources.load("mnist", folder)
    labels = folder / "qmnist-train-labels-idx2-int.gz"
    labels.unlink()
    npz.save(sources.load("mnist", folder), folder / "mnist.npz")
    assert sources.load("mnist", folder).clients is None
    add_writers(folder)
    assert sources.located("mnist", folder, makers=True) == str(folder)
    assert sources.load("mnist", folder).clients.tolist() == WRITERS[:, 2].tolist()
    (folder / "mnist.npz").unlink()  # other examples are not replaced
    npz.save(whole, folder / "mnist.npz")
    add_writers(folder, WRITERS[:5])  # would be refused, were it read
    assert sources.load("mnist", folder).clients.tolist() == WRITERS[:, 2].tolist()


def test_kmnist_has_its_own_classes_and_place(folder, tmp_path):
    assert mnist.kmnist(folder).class_names == ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
    assert sources.located("kmnist", folder) == str(folder)
    next(folder.glob("t10k-images*")).unlink()
    with pytest.raises(FileNotFoundError, match=mentions("kmnist", "t10k-images-idx3-ubyte", "http://codh.rois.ac.jp")):
        mnist.kmnist(folder)
    rewrite(folder, "train-labels-idx1-ubyte", np.array(mnist.FIRST_LABELS["mnist"] * 2, np.uint8))
    with pytest.raises((ValueError, FileNotFoundError), match=mentions("kmnist")):
        mnist.kmnist(folder)
    assert sources.located("kmnist", folder) is None


@pytest.mark.parametrize("name", FILES)
def test_missing_file_says_which_where_and_how(folder, name):
    next(folder.glob(name + "*")).unlink()
    with pytest.raises(FileNotFoundError, match=mentions("mnist", name, folder.name, "https://", "data_dir")):
        mnist.mnist(folder)
    assert sources.located("mnist", folder) is None


def test_without_data_dir_the_home_of_the_data_is_searched(folder, monkeypatch):
    monkeypatch.setenv("JAXFL_DATA", str(folder))
    assert len(mnist.mnist().inputs) == 20
    monkeypatch.setenv("JAXFL_DATA", str(folder / "empty"))
    with pytest.raises(FileNotFoundError, match=mentions("mnist", "train-images-idx3-ubyte", "empty/mnist")):
        mnist.mnist()


def test_plain_files_damaged(tmp_path):
    path = tmp_path / "labels"
    good = idx_bytes(LABELS)
    damages = {
        good[:-3]: ("labels", "truncated", "28 bytes", 25),
        good + b"x": ("28 bytes", 29),
        good[:6]: ("header", 8, 6),
        good[:4] + bytes(4): ("labels", "empty", "(0,)"),
        b"": ("0x00000801", "got 0x"),
        b"\x00\x00\x08\x03" + good[4:]: ("0x00000801", "0x00000803"),
        b"<!doctype html>": ("0x00000801", "0x3c21646f"),
    }
    for content, message in damages.items():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=mentions(*message)):
            idx.read(path, num_axes=1)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "header"])
def test_damaged_gzip_is_named(tmp_path, damage):
    content = bytearray(gzip.compress(idx_bytes(IMAGES)))
    if damage == "truncated":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        content[-6] ^= 0xFF  # in the checksum
    else:
        content[2] = 99  # an unknown compression method
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=mentions("train-images-idx3-ubyte.gz", "gzip")):
        idx.read(path, num_axes=3)


def rewrite(folder, name, values, code=0x08):
    for path in folder.glob(name + "*"):
        path.unlink()
    (folder / name).write_bytes(idx_bytes(values, code))


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("train-labels-idx1-ubyte", LABELS[:-1], ("label", "20 images", 19)),
        ("t10k-labels-idx1-ubyte", LABELS, ("label", "6 images", 20)),
        ("train-labels-idx1-ubyte", LABELS + 1, (10, "0..9")),
        ("t10k-images-idx3-ubyte", TEST_IMAGES[:, :3], ("(4, 4)", "(3, 4)")),
        ("train-images-idx3-ubyte", LABELS, ("0x00000803", "0x00000801")),
    ],
)
def test_files_that_do_not_fit_each_other(folder, name, values, message):
    rewrite(folder, name, values)
    with pytest.raises(ValueError, match=mentions(*message)):
        mnist.mnist(folder)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (WRITERS[:-1], ("20 rows of 8", "(19, 8)")),
        (WRITERS[:, :7], ("20 rows of 8", "(20, 7)")),
        (WRITERS[::-1], ("qmnist-train-labels-idx2-int.gz", "9 for 0", "row 0")),
    ],
)
def test_writers_of_other_images_are_refused(folder, table, message):
    add_writers(folder, table)
    with pytest.raises(ValueError, match=mentions(*message)):
        mnist.mnist(folder)


def test_mnist_is_not_taken_for_fashion_mnist(folder, monkeypatch):
    monkeypatch.setattr(mnist, "FASHION_FOLDER", folder / "none")
    first = mnist.FIRST_LABELS["mnist"]
    rewrite(folder, "train-labels-idx1-ubyte", np.array(first * 2, np.uint8))
    assert len(mnist.mnist(folder).inputs) == 20
    with pytest.raises(ValueError, match=mentions("fashion-mnist", "mnist")):
        mnist.fashion_mnist(folder)
    assert sources.located("mnist", folder) == str(folder) and sources.located("fashion-mnist", folder) is None


def test_digits_are_embedded_and_standardised():
    source = digits.load()
    embedded = load_digits()
    np.testing.assert_array_equal(source.inputs, embedded.images)
    np.testing.assert_array_equal(source.labels, embedded.target)
    assert source.labels.dtype == embedded.target.dtype
    assert source.inputs.dtype == np.uint8 and source.inputs.max() == 16
    x = (source.inputs - source.mean) / source.std
    assert abs(x.mean()) < 1e-9 and abs(x.std() - 1) < 1e-9


@pytest.mark.parametrize(("name", "file"), [("femnist", "all_data_0.json"), ("parquet", "a.parquet"), ("npz", "a.npz")])
def test_a_pipe_is_not_read_without_end(name, file, tmp_path):
    os.mkfifo(tmp_path / file)
    where = tmp_path / file if name == "npz" else tmp_path
    assert name == "parquet" or sources.located(name, where) is None  # which is asked before anything is loaded
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(str(tmp_path))):
        sources.load(name, where)


def test_a_pipe_is_no_array_of_a_federation(tmp_path):
    stored.save(clustered_linear(4), tmp_path)
    (tmp_path / "inputs.npy").unlink()
    os.mkfifo(tmp_path / "inputs.npy")
    with pytest.raises(ValueError, match=mentions(str(tmp_path / "inputs.npy"), "pipe")):
        stored.load(tmp_path)
