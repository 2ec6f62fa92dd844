"""EMNIST: all six splits load upright with their own labels, and each kind of damage has its own error."""

import gzip
from fnmatch import fnmatch

import numpy as np
import pytest

from jaxfl.data import sources
from jaxfl.data.sources import emnist, idx
from tests.messages import mentions

RNG = np.random.Generator(np.random.PCG64(0))
IMAGES = RNG.integers(0, 256, (9, 5, 4), np.uint8)  # higher than wide, so that a transposed image shows
TEST_IMAGES = RNG.integers(0, 256, (3, 5, 4), np.uint8)


def idx_bytes(values):
    header = bytes([0, 0, 0x08, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    return header + values.astype(np.uint8).tobytes()


def labels_of(split, count):
    """Returns labels as the files have them, the first and the last class among them."""
    kind = emnist.SPLITS[split]
    last = kind.first_label + len(kind.class_names) - 1
    return np.resize(np.array([kind.first_label, last], np.uint8), count)


def write(folder, split, end=".gz", **changed):
    """Writes the four files, images transposed as NIST has them; `changed` replaces some, None leaves one out."""
    files = {
        "train_images": IMAGES.transpose(0, 2, 1),
        "train_labels": labels_of(split, 9),
        "test_images": TEST_IMAGES.transpose(0, 2, 1),
        "test_labels": labels_of(split, 3),
    } | changed
    folder.mkdir(parents=True, exist_ok=True)
    for key, values in files.items():
        which, what = key.split("_")
        if values is not None:
            axes = 3 if what == "images" else 1
            content = idx_bytes(values)
            path = folder / f"emnist-{split}-{which}-{what}-idx{axes}-ubyte{end}"
            path.write_bytes(gzip.compress(content) if end else content)


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("split", emnist.SPLITS)
def test_every_split_loads_upright_with_labels_from_zero(tmp_path, split, end):
    write(tmp_path, split, end)
    row = emnist.ENTRIES[f"emnist-{split}"]
    source = row.load(tmp_path)
    np.testing.assert_array_equal(source.inputs, IMAGES)
    np.testing.assert_array_equal(source.test_inputs, TEST_IMAGES)
    last = row.num_classes - 1
    assert source.labels.tolist() == [0, last] * 4 + [0] and source.test_labels.tolist() == [0, last, 0]
    assert (source.name, source.mean, source.std, source.clients) == (f"emnist-{split}", 0.0, 255.0, None)
    assert len(source.class_names) == len(set(source.class_names)) == source.num_classes == row.num_classes
    assert source.inputs.flags.c_contiguous and source.inputs.dtype == np.uint8


@pytest.mark.parametrize(
    ("split", "names"),
    [
        ("letters", {0: "a", 25: "z"}),
        ("byclass", {0: "0", 9: "9", 10: "A", 35: "Z", 36: "a", 61: "z"}),
        ("bymerge", {0: "0", 10: "A", 35: "Z", 36: "a", 37: "b", 38: "d", 41: "g", 42: "h", 43: "n", 44: "q", 46: "t"}),
        ("balanced", {36: "a", 39: "e", 40: "f", 45: "r"}),
        ("digits", {0: "0", 9: "9"}),
        ("mnist", {0: "0", 9: "9"}),
    ],
)
def test_classes_are_in_the_order_of_the_mapping_files(split, names):
    classes = emnist.SPLITS[split].class_names
    assert {label: classes[label] for label in names} == names


@pytest.mark.parametrize("place", ["", "gzip", "emnist", "emnist/gzip", "emnist-letters", "emnist-letters/gzip"])
def test_files_are_found_where_the_archive_unpacks(tmp_path, place):
    write(tmp_path / place, "letters")
    assert len(emnist.load("letters", tmp_path).inputs) == 9
    assert emnist.ENTRIES["emnist-letters"].find(tmp_path) == tmp_path / place
    assert emnist.ENTRIES["emnist-byclass"].find(tmp_path) is None


def test_splits_beside_each_other_are_not_mixed(tmp_path):
    write(tmp_path, "letters")
    write(tmp_path, "byclass", train_images=255 - IMAGES.transpose(0, 2, 1))
    np.testing.assert_array_equal(emnist.load("letters", tmp_path).inputs, IMAGES)
    np.testing.assert_array_equal(emnist.load("byclass", tmp_path).inputs, 255 - IMAGES)


def test_without_data_dir_the_home_of_the_data_is_searched(tmp_path, monkeypatch):
    write(tmp_path / "emnist", "digits")
    monkeypatch.setenv("JAXFL_DATA", str(tmp_path))
    assert len(emnist.load("digits").inputs) == 9


@pytest.mark.parametrize("missing", ["train_images", "train_labels", "test_images", "test_labels"])
def test_missing_file_says_which_where_and_how(tmp_path, missing):
    write(tmp_path, "byclass", **{missing: None})
    stem = "emnist-byclass-" + missing.replace("_", "-")
    with pytest.raises(
        FileNotFoundError,
        match=mentions("emnist-byclass", "https://biometrics.nist.gov/", stem),
    ):
        emnist.load("byclass", tmp_path)
    assert emnist.ENTRIES["emnist-byclass"].find(tmp_path) is None


def one_label(split, label):
    labels = labels_of(split, 9)
    labels[4] = label
    return labels


@pytest.mark.parametrize(
    ("split", "changed", "message"),
    [
        ("letters", {"train_labels": one_label("letters", 0)}, ("train-labels", "1..26", 0)),
        ("letters", {"train_labels": one_label("letters", 27)}, ("train-labels", "1..26", 27)),
        ("byclass", {"train_labels": one_label("byclass", 62)}, (62, "0..61")),
        ("bymerge", {"test_labels": np.array([1, 47, 2])}, ("test-labels", "0..46", 47)),
        ("balanced", {"test_labels": np.array([1, 255, 2])}, (255, "0..46")),
        ("digits", {"train_labels": one_label("digits", 10)}, (10, "0..9")),
        ("letters", {"train_labels": labels_of("letters", 8)}, ("label", "9 images", 8)),
        ("letters", {"test_labels": labels_of("letters", 4)}, ("label", "3 images", 4)),
        ("letters", {"train_images": labels_of("letters", 9)}, ("0x00000803", "got 0x00000801")),
        ("letters", {"test_labels": TEST_IMAGES}, ("0x00000801", "got 0x00000803")),
        ("letters", {"test_images": TEST_IMAGES}, ("(5, 4)", "(4, 5)")),
    ],
)
def test_files_that_do_not_fit_each_other(tmp_path, split, changed, message):
    write(tmp_path, split, **changed)
    with pytest.raises(ValueError, match=mentions(*message)):
        emnist.load(split, tmp_path)


@pytest.mark.parametrize(("end", "message"), [("", ("truncated", "header")), (".gz", ("damaged", "gzip"))])
def test_truncated_file(tmp_path, end, message):
    write(tmp_path, "letters", end)
    path = tmp_path / f"emnist-letters-train-images-idx3-ubyte{end}"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=mentions(path.name, *message)):
        emnist.load("letters", tmp_path)


def test_labels_of_a_pair_start_at_zero_and_its_files_stay_as_they_are(tmp_path):
    images, labels = tmp_path / "images", tmp_path / "labels"
    images.write_bytes(idx_bytes(IMAGES))
    labels.write_bytes(idx_bytes(np.arange(9) + 200))
    read_images, read_labels = idx.read_pair(images, labels, 20, first_label=200)
    np.testing.assert_array_equal(read_images, IMAGES)
    assert read_labels.tolist() == list(range(9))


@pytest.mark.parametrize("name", emnist.ENTRIES)
def test_remote_takes_the_members_of_its_split_only(name):
    row = emnist.ENTRIES[name]
    assert isinstance(row, sources.SourceEntry)
    (remote,) = row.remotes
    assert len(bytes.fromhex(remote.checksum.removeprefix("sha256:"))) == 32 and remote.file_name == "gzip.zip"
    archive = [
        f"gzip/emnist-{split}-{which}-{what}-ubyte.gz"
        for split in emnist.SPLITS
        for which in ("train", "test")
        for what in ("images-idx3", "labels-idx1")
    ] + [f"gzip/emnist-{split}-mapping.txt" for split in emnist.SPLITS]
    taken = [member for member in archive if any(fnmatch(member, pattern) for pattern in remote.members)]
    assert len(taken) == 4 and all(f"/{name}-t" in member for member in taken)
