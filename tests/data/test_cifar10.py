"""CIFAR-10: the binary version and the WebP sheets load alike, and each kind of damage has its own error."""

import io
import pathlib

import numpy as np
import pytest
from PIL import Image

from jaxfl.data.sources import cifar10
from tests.messages import mentions

FILES = pathlib.Path(__file__).parents[3] / "shared" / "data"
needs_cifar10 = pytest.mark.skipif(not (FILES / "cifar10").is_dir(), reason="needs CIFAR-10 in ../shared/data/cifar10")
RNG = np.random.Generator(np.random.PCG64(0))
BATCHES = cifar10.TRAIN + cifar10.TEST
# Two rows of three tiles a batch, so that height and width cannot be confused.
IMAGES = {batch: RNG.integers(0, 256, (6, 32, 32, 3), np.uint8) for batch in BATCHES}
LABELS = {batch: RNG.integers(0, 10, 6).astype(np.uint8) for batch in BATCHES}


def batch_bytes(batch):
    planes = IMAGES[batch].transpose(0, 3, 1, 2).reshape(6, 3072)  # red, green, blue
    return np.concatenate([LABELS[batch][:, None], planes], 1).tobytes()


def sheet_bytes(pixels, **options):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "WEBP", **(options or {"lossless": True}))
    return stream.getvalue()


def sheet(batch):
    return IMAGES[batch].reshape(2, 3, 32, 32, 3).transpose(0, 2, 1, 3, 4).reshape(64, 96, 3)


def train_labels():
    return np.concatenate([LABELS[batch] for batch in cifar10.TRAIN])


def save_labels(folder, **arrays):
    known = {"train_y": train_labels(), "test_y": LABELS["test_batch"], "names": np.array(cifar10.CLASSES)}
    known = {key: value for key, value in {**known, **arrays}.items() if value is not None}
    np.savez_compressed(folder / "labels.npz", **known)


@pytest.fixture
def binary(tmp_path):
    for batch in BATCHES:
        (tmp_path / f"{batch}.bin").write_bytes(batch_bytes(batch))
    (tmp_path / "batches.meta.txt").write_text("\n".join(cifar10.CLASSES) + "\n\n")
    return tmp_path


@pytest.fixture
def sheets(tmp_path):
    for batch in BATCHES:
        (tmp_path / f"{batch}.webp").write_bytes(sheet_bytes(sheet(batch)))
    save_labels(tmp_path)
    return tmp_path


@pytest.mark.parametrize("layout", ["binary", "sheets"])
def test_both_layouts_give_the_same_examples(layout, request):
    source = cifar10.load(request.getfixturevalue(layout))
    np.testing.assert_array_equal(source.inputs, np.concatenate([IMAGES[batch] for batch in cifar10.TRAIN]))
    np.testing.assert_array_equal(source.test_inputs, IMAGES["test_batch"])
    assert source.inputs.dtype == np.uint8 and source.inputs.flags.c_contiguous
    assert source.labels.tolist() == train_labels().tolist()
    assert source.test_labels.tolist() == LABELS["test_batch"].tolist()
    assert (source.name, source.num_classes, source.class_names) == ("cifar10", 10, cifar10.CLASSES)
    assert source.mean.shape == source.std.shape == (3,) and source.mean.dtype == source.std.dtype == np.float32


def test_pixels_lie_between_minus_one_and_one_if_asked(binary):
    half, usual = cifar10.load(binary, scaling="half"), cifar10.load(binary)
    assert [(pixel - half.mean) / half.std for pixel in (0, 255)] == [-1, 1]
    np.testing.assert_array_equal(half.inputs, usual.inputs)
    with pytest.raises(ValueError, match=mentions("scaling", "none")):
        cifar10.load(binary, scaling="none")


@pytest.mark.parametrize("inner", ["", "cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"])
def test_folders_that_are_searched(binary, inner):
    place = binary / inner
    place.mkdir(parents=True, exist_ok=True)
    for path in binary.glob("*.*"):
        path.rename(place / path.name)
    assert len(cifar10.load(binary).inputs) == 30
    assert cifar10.ENTRY.find(binary) == place


def test_class_names_come_from_the_files_and_may_be_absent(binary):
    (binary / "batches.meta.txt").write_text("\n".join("abcdefghij"))
    assert cifar10.load(binary).class_names == tuple("abcdefghij")
    (binary / "batches.meta.txt").unlink()
    assert cifar10.load(binary).class_names == cifar10.CLASSES
    (binary / "batches.meta.txt").write_text("cat\ndog\n")
    with pytest.raises(ValueError, match=mentions("batches.meta.txt", 10, 2, "cat, dog")):
        cifar10.load(binary)


def test_sheets_without_names(sheets):
    save_labels(sheets, names=None)
    assert cifar10.load(sheets).class_names == cifar10.CLASSES
    save_labels(sheets, names=np.array(["cat"] * 10))
    with pytest.raises(ValueError, match=mentions("labels.npz", "names", 10)):
        cifar10.load(sheets)


def test_batches_may_differ_in_length(binary):
    content = (binary / "data_batch_2.bin").read_bytes()
    (binary / "data_batch_2.bin").write_bytes(content[: 2 * 3073])
    source = cifar10.load(binary)
    np.testing.assert_array_equal(source.inputs[6:8], IMAGES["data_batch_2"][:2])
    np.testing.assert_array_equal(source.inputs[8:14], IMAGES["data_batch_3"])


@pytest.mark.parametrize(("layout", "name"), [("binary", "data_batch_4.bin"), ("sheets", "labels.npz")])
def test_missing_file_says_which_where_and_how(layout, name, request):
    folder = request.getfixturevalue(layout)
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=mentions("cifar10", "https://www.cs.toronto.edu", name, folder.name)):
        cifar10.load(folder)
    assert cifar10.ENTRY.find(folder) is None


def test_nothing_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=mentions("cifar10", "data_batch_1.bin", "data_batch_1.webp")):
        cifar10.load(tmp_path)


@pytest.mark.parametrize("inner", ["", "cifar-10-batches-py"])
def test_pickles_are_not_read(tmp_path, inner):
    (tmp_path / inner).mkdir(exist_ok=True)
    (tmp_path / inner / "data_batch_1").write_bytes(b"\x80\x02}q\x01.")
    with pytest.raises(FileNotFoundError, match=mentions("cifar10", "pickled")):
        cifar10.load(tmp_path)
    assert cifar10.ENTRY.find(tmp_path) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ("data_batch_3.bin", "empty")),
        (batch_bytes("data_batch_3")[:-1], ("data_batch_3.bin", 18437, 3073)),
        (b"<!doctype html>", ("data_batch_3.bin", 15)),
        (b"\x03" + bytes(3072) + b"\x0a" + bytes(3072), ("data_batch_3.bin", "0..9", 10, "row 1")),
    ],
)
def test_damaged_binary_batch(binary, content, message):
    (binary / "data_batch_3.bin").write_bytes(content)
    with pytest.raises(ValueError, match=mentions(*message)):
        cifar10.load(binary)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ("test_batch.webp", "damaged")),
        (b"<!doctype html> and no image", ("test_batch.webp", "damaged")),
        (sheet_bytes(sheet("test_batch"))[:2000], ("test_batch.webp", "damaged")),
        (sheet_bytes(sheet("test_batch"), quality=90), ("test_batch.webp", "lossless")),
        (sheet_bytes(sheet("test_batch")[:, :90]), ("32 x 32", "90 x 64")),
        (sheet_bytes(sheet("test_batch")[:50]), ("32 x 32", "96 x 50")),
        (sheet_bytes(sheet("test_batch")[:32]), ("test_y", "[3]", "(6,)", "test_batch.webp")),
        (sheet_bytes(RNG.integers(0, 256, (64, 96, 4), np.uint8)), ("test_batch.webp", "RGB", "RGBA")),
    ],
)
def test_damaged_sheet(sheets, content, message):
    (sheets / "test_batch.webp").write_bytes(content)
    with pytest.raises(ValueError, match=mentions(*message)):
        cifar10.load(sheets)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"train_y": None}, ("labels.npz", "train_y", "['names', 'test_y']")),
        ({"train_y": train_labels()[:-1]}, ("train_y", "[30]", "data_batch_1.webp", "(29,)")),
        ({"test_y": LABELS["test_batch"][:, None]}, ("test_y", "[6]", "(6, 1)")),
        ({"test_y": np.arange(5, 11)}, ("test_y", 10, "0..9", "row 5")),
        ({"test_y": np.arange(-1, 5)}, ("test_y", -1, "0..9", "row 0")),
        ({"test_y": np.arange(6) / 2}, ("test_y", "float64")),
        ({"test_y": np.array([None] * 6)}, ("labels.npz", "arrays")),
    ],
)
def test_damaged_labels_of_sheets(sheets, arrays, message):
    save_labels(sheets, **arrays)
    with pytest.raises(ValueError, match=mentions(*message)):
        cifar10.load(sheets)


def test_labels_cut_off(sheets):
    content = (sheets / "labels.npz").read_bytes()
    (sheets / "labels.npz").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=mentions("labels.npz", "truncated")):
        cifar10.load(sheets)


@needs_cifar10
def test_real_images():
    source = cifar10.load(FILES)
    assert source.inputs.shape == (50_000, 32, 32, 3) and source.test_inputs.shape == (10_000, 32, 32, 3)
    assert np.bincount(source.labels).tolist() == [5000] * 10
    assert np.bincount(source.test_labels).tolist() == [1000] * 10
    assert source.class_names == cifar10.CLASSES
    # A part at a time, and not a float copy of all pixels.
    moments = [
        (part.mean(0), (part**2).mean(0)) for part in (p.reshape(-1, 3) / 255 for p in np.split(source.inputs, 50))
    ]
    mean, square = np.mean(moments, axis=0)
    np.testing.assert_allclose(source.mean / 255, mean, atol=5e-4)
    np.testing.assert_allclose(source.std / 255, np.sqrt(square - mean**2), atol=5e-4)
