"""Parquet in the layouts of Hugging Face's hub: images of every kind, splits, shards, makers, and damaged files."""

import io
import json

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet as pq

from jaxfl.data.sources import parquet
from tests.messages import mentions

RNG = np.random.Generator(np.random.PCG64(0))
GREY, COLOUR = RNG.integers(0, 256, (12, 5, 4), np.uint8), RNG.integers(0, 256, (12, 5, 4, 3), np.uint8)
LABELS = np.arange(12) % 3
WRITERS = np.repeat(["ann", "bob", "cid"], 4)
BLOB = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def png(pixels, mode=None, kind="png"):
    stream = io.BytesIO()
    picture = Image.fromarray(pixels)
    (picture.convert(mode) if mode else picture).save(stream, kind)
    return stream.getvalue()


def blobs(images, **options):
    return pa.array([{"bytes": png(one, **options), "path": f"{row}.png"} for row, one in enumerate(images)], BLOB)


def column(name, values):
    """The table of a whole good file, but for one column."""
    return {"image": blobs(GREY), "label": LABELS, name: values}


def write(path, columns, names=(), **options):
    table = pa.table(columns)
    if names:
        features = {"image": {"_type": "Image"}, "label": {"names": list(names), "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    return path


@pytest.mark.parametrize(("role", "one", "other"), [("client", "ann", "ann "), ("label", "cat", "Cat")])
def test_names_that_look_alike_are_told(role, one, other, tmp_path):
    path = write(tmp_path / "a.parquet", column(role, [one, other] * 6))
    with pytest.warns(UserWarning, match=mentions(str(path), role, repr(one), repr(other))):
        parquet.load(path)


@pytest.mark.parametrize("name", ["more/train.parquet", "more/deep/train.parquet", "test.PARQUET"])
def test_files_elsewhere_are_told(name, tmp_path):
    for file in ("train.parquet", name, ".cache/old.parquet"):
        write(tmp_path / file, column("label", LABELS))
    with pytest.warns(UserWarning, match=mentions(str(tmp_path), name, "(1)")) as told:
        assert len(parquet.load(tmp_path).inputs) == 12
    assert len(told) == 1 and ".cache" not in str(told[0].message)


def test_the_hubs_layout(tmp_path):
    for shard in range(3):
        rows = slice(4 * shard, 4 * shard + 4)
        columns = {"image": blobs(GREY[rows]), "label": LABELS[rows], "writer_id": WRITERS[rows], "hsf_id": [shard] * 4}
        write(tmp_path / "data" / f"train-{shard:05}-of-00003.parquet", columns, "abcd", row_group_size=3)
    columns = {"image": blobs(GREY[:2]), "label": LABELS[:2], "writer_id": ["ann", "dan"]}
    write(tmp_path / "data" / "test-00000-of-00001.parquet", columns)
    write(tmp_path / "data" / "validation-00000-of-00001.parquet", {"image": blobs(COLOUR), "label": LABELS})
    with pytest.warns(UserWarning, match=mentions("validation-00000-of-00001.parquet", "split=train")):
        source = parquet.load(tmp_path)
    np.testing.assert_array_equal(source.inputs, GREY)
    np.testing.assert_array_equal(source.test_inputs, GREY[:2])
    assert source.inputs.dtype == np.uint8 and (source.mean, source.std) == (0.0, 255.0)
    assert source.labels.tolist() == LABELS.tolist() and source.test_labels.tolist() == LABELS[:2].tolist()
    assert source.class_names == tuple("abcd") and source.num_classes == 4
    assert source.clients.tolist() == WRITERS.tolist() and source.test_clients.tolist() == ["ann", "dan"]
    assert source.client_groups.tolist() == np.repeat([0, 1, 2], 4).tolist() and source.group_names == ("0", "1", "2")
    assert parquet.ENTRY.find(tmp_path) == tmp_path
    test = parquet.load(tmp_path, split="test")
    assert len(test.inputs) == 2 and test.test_inputs is None
    with pytest.raises(ValueError, match=mentions("split", "['test', 'train', 'validation']", "extra")):
        parquet.load(tmp_path, split="extra")
    (tmp_path / "data" / "train-00001-of-00003.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=mentions("train-00001-of-00003.parquet", "data")):
        parquet.load(tmp_path)


@pytest.mark.parametrize("names", [("mnist_train", "mnist_test"), ("Train", "Test"), ("part-0", "part-eval")])
def test_files_that_are_called_tests_and_are_divided_anew_are_told(tmp_path, names):
    for place, name in enumerate(names):
        rows = slice(8 * place, 8 * place + 4)
        write(tmp_path / f"{name}.parquet", {"image": blobs(GREY[rows]), "label": LABELS[rows]})
    with pytest.warns(UserWarning, match=mentions(f"{names[1]}.parquet", "test.parquet")):
        assert len(parquet.load(tmp_path).labels) == 8
    parquet.load(tmp_path / f"{names[1]}.parquet")  # one file: a warning would fail


def test_a_column_that_says_which_rows_are_for_tests_is_told(tmp_path):
    path = write(tmp_path / "train.parquet", column("is_test", LABELS == 2))
    with pytest.warns(UserWarning, match=mentions("train.parquet", "is_test", "test_x")):
        parquet.load(tmp_path)
    parquet.load(tmp_path, label="is_test")  # a warning would fail
    write(path.with_name("test.parquet"), column("is_test", LABELS == 2))
    parquet.load(tmp_path)


@pytest.mark.parametrize("big", [parquet.BATCH * 2 + 3])
def test_batches_and_files_keep_the_order(tmp_path, big):
    images = RNG.integers(0, 256, (big, 2, 2), np.uint8)
    write(tmp_path / "b.parquet", {"x": list(images[300:].reshape(-1, 4)), "y": np.arange(300, big)}, row_group_size=50)
    write(tmp_path / "a.parquet", {"x": list(images[:300].reshape(-1, 4)), "y": np.arange(300)})
    source = parquet.load(tmp_path)
    np.testing.assert_array_equal(source.inputs, images.reshape(-1, 4))
    assert source.labels.tolist() == list(range(big)) and source.test_inputs is None


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (blobs(COLOUR), COLOUR),
        (pa.array([png(one) for one in GREY]), GREY),
        (pa.array([png(one) for one in GREY], pa.large_binary()), GREY),
        (blobs(COLOUR, mode="RGBA"), COLOUR),
        (blobs(GREY, mode="LA"), GREY),
        (blobs(GREY, mode="P"), np.stack([GREY] * 3, -1)),
        (pa.array(GREY.tolist()), GREY),
        (pa.array(COLOUR.tolist(), pa.list_(pa.list_(pa.list_(pa.uint8())))), COLOUR),
        (pa.FixedSizeListArray.from_arrays(pa.array(GREY.ravel()), 20), GREY.reshape(12, 20)),
        (pa.array((GREY / 255).reshape(12, 20).tolist()), (GREY / 255).reshape(12, 20).astype(np.float32)),
        (pa.array((GREY / 255).tolist(), pa.large_list(pa.large_list(pa.float32()))), (GREY / 255).astype(np.float32)),
    ],
)
def test_images_of_every_kind(tmp_path, images, expected):
    source = parquet.load(write(tmp_path / "own.parquet", {"img": images, "labels": LABELS}))
    np.testing.assert_array_equal(source.inputs, expected)
    assert source.inputs.dtype == expected.dtype and source.name == "own"
    assert source.std == (255.0 if expected.dtype == np.uint8 else None)


def test_jpeg_is_close(tmp_path):
    smooth = np.add.outer(np.arange(16), np.arange(16)).astype(np.uint8)[None].repeat(12, 0)
    source = parquet.load(write(tmp_path / "own.parquet", column("image", blobs(smooth, kind="jpeg"))))
    assert abs(source.inputs.astype(int) - smooth).max() <= 8


@pytest.mark.parametrize(
    ("labels", "expected", "names"),
    [
        (pa.array(LABELS, pa.uint8()), LABELS, ()),
        (LABELS == 1, LABELS == 1, ()),
        (np.array(["b", "c", "a"])[LABELS], np.array([1, 2, 0])[LABELS], ("a", "b", "c")),
        (pa.array(np.array(["b", "c", "a"])[LABELS]).dictionary_encode(), np.array([1, 2, 0])[LABELS], tuple("abc")),
    ],
)
def test_labels_of_every_kind(tmp_path, labels, expected, names):
    source = parquet.load(write(tmp_path / "own.parquet", column("label", labels)))
    assert source.labels.tolist() == expected.astype(int).tolist() and source.class_names == names
    assert source.num_classes == expected.astype(int).max() + 1


def test_classes_that_only_the_test_set_has(tmp_path):
    write(tmp_path / "train.parquet", column("label", np.repeat(["b", "c"], 6)))
    write(tmp_path / "test.parquet", column("label", np.repeat(["a", "c"], 6)))
    source = parquet.load(tmp_path)
    assert source.class_names == ("a", "b", "c") and set(source.labels.tolist()) == {1, 2}
    assert set(source.test_labels.tolist()) == {0, 2}


def test_groups_are_those_of_clients(tmp_path):
    path = write(tmp_path / "own.parquet", column("person", WRITERS) | {"domain": ["x", *["y"] * 11], "town": LABELS})
    assert parquet.load(path).client_groups is None  # ann is in two
    for options, message in (
        ({"group": "domain"}, ("group", "domain", "ann")),
        ({"group": "town"}, ("group", "town")),
        ({"group": "site"}, ("site", "'town'", "group")),
        ({"client": "maker"}, ("maker", "client")),
    ):
        with pytest.raises(ValueError, match=mentions(*message)):
            parquet.load(path, **options)
    assert parquet.load(path, client="town", label="town", group="town").group_names == ("0", "1", "2")
    for values in ([0.5] * len(LABELS), [[1]] * len(LABELS), [None, *LABELS[1:]], LABELS):
        path = write(path, column("group", values))
        assert parquet.load(path).client_groups is None, "nobody has asked for it"
    with pytest.raises(ValueError, match=mentions("group", "client")):
        parquet.load(path, group="group")


def postscript():
    file = io.BytesIO()
    Image.new("RGB", (5, 6)).save(file, format="EPS")
    return file.getvalue()


def holed(values):
    return [None if row == 7 else value for row, value in enumerate(values)]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": LABELS}, ("image", "img", "['label']")),
        ({"image": blobs(GREY)}, ("label", "labels", "['image']")),
        (column("label", holed(LABELS.tolist())), ("column label", "row 7")),
        (column("image", holed([png(one) for one in GREY])), ("column image", "row 7")),
        (column("image", pa.array([{"bytes": None, "path": "a.png"}] * 12, BLOB)), ("row 0", "bytes")),
        (column("client", holed(WRITERS.tolist())), ("column client", "row 7")),
        (column("image", [b"no picture"] * 12), ("row 0", "decoded")),
        (column("image", [postscript()] * 12), ("row 0", "decoded")),  # which Pillow would give to Ghostscript
        (column("image", [png(GREY[0])] * 5 + [png(GREY[0])[:50]] * 7), ("row 5", "decoded")),
        (
            column("image", [png(GREY[0])] * 5 + [png(GREY[0, 1:])] * 7),
            ("(5, 4)", "(4, 4)", "row 5"),
        ),
        (column("image", [png(GREY[0])] * 5 + [png(COLOUR[0])] * 7), ("(5, 4)", "(5, 4, 3)", "row 5")),
        (column("image", [png(GREY.astype(np.uint16)[0])] * 12), ("8 bits", "I;16")),
        (column("image", [[1, 2]] * 11 + [[1, 2, 3]]), ("column image", "[2, 3]")),
        (column("image", [[1, 2]] * 11 + [[1, None]]), ("column image", "int64", "1 missing")),
        (column("image", [[[1, 2]]] * 11 + [[None]]), ("column image", "[2]")),
        (column("image", [["a"]] * 12), ("lists of numbers", "string")),
        (column("image", [[1, 256]] * 12), ("pixels", "1..256", "0..255")),
        (column("image", ["a.png"] * 12), ("column image", "bytes", "string")),
        (column("label", LABELS / 2), ("label", "double")),
        (column("label", LABELS - 1), ("labels", -1)),
        (column("client", LABELS / 2), ("client", "double")),
        ({name: values[:0] for name, values in column("label", LABELS).items()}, ("own.parquet", "rows", "none")),
    ],
)
def test_tables_that_will_not_do(tmp_path, columns, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        parquet.load(write(tmp_path / "own.parquet", columns))


def test_shards_and_splits_that_do_not_fit_each_other(tmp_path):
    write(tmp_path / "train.parquet", column("label", LABELS), "ab")
    with pytest.raises(ValueError, match=mentions("labels", 2)):
        parquet.load(tmp_path)
    write(tmp_path / "train.parquet", column("label", LABELS))
    write(tmp_path / "test.parquet", column("image", blobs(COLOUR)))
    with pytest.raises(ValueError, match=mentions("(5, 4, 3)", "(5, 4)")):
        parquet.load(tmp_path)
    write(tmp_path / "test.parquet", {"image": blobs(GREY)})
    with pytest.raises(ValueError, match=mentions("test.parquet", "['image']")):
        parquet.load(tmp_path)
    write(tmp_path / "test.parquet", {"image": blobs(GREY), "target": LABELS}).rename(tmp_path / "x.parquet")
    (tmp_path / "train.parquet").rename(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=mentions("x.parquet", "a.parquet", "image", "target")):
        parquet.load(tmp_path)


def test_damaged_files(tmp_path):
    path = write(tmp_path / "own.parquet", column("label", LABELS), compression="gzip")
    good = path.read_bytes()
    footer = int.from_bytes(good[-8:-4], "little")
    pages = bytearray(good)
    pages[60 : len(good) - footer - 8] = bytes(len(good) - footer - 68)
    damages = {
        b"": ("b'PAR1'", "b''"),
        b"<!doctype html>": ("b'PAR1'", "b'<!do'"),
        good[: len(good) // 2]: ("truncated", "b'PAR1'"),
        b"PAR1": ("truncated", "b'PAR1'"),
        good[: len(good) // 2] + good[-4:]: ("own.parquet", "damaged"),
        good[:100] + good[-footer - 8 :]: ("own.parquet", "damaged"),
        bytes(pages): ("own.parquet", "damaged"),
    }
    for content, message in damages.items():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=mentions(*message)):
            parquet.load(path)


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=mentions("parquet", "data_dir")):
        parquet.load()
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(FileNotFoundError, match=mentions("parquet", "*.parquet", "data/*.parquet", "data_dir")):
            parquet.load(place)
        assert parquet.ENTRY.find(place) is None
    for name in ("small", "large"):
        write(tmp_path / name / "train.parquet", column("label", LABELS))
    with pytest.raises(FileNotFoundError, match=mentions("['large', 'small']", "data_dir")):
        parquet.load(tmp_path)
    assert len(parquet.load(tmp_path / "small").inputs) == 12
    (tmp_path / "own.npz").write_bytes(b"")
    assert parquet.ENTRY.find(tmp_path / "own.npz") is None
    assert parquet.ENTRY.find(tmp_path / "small" / "train.parquet") == tmp_path / "small" / "train.parquet"


def test_a_file_of_the_user_is_found_by_what_it_holds(tmp_path):
    """And so `jaxfl compare` is told which file it was."""
    mine = write(tmp_path / "mine.parquet", column("label", LABELS)).rename(tmp_path / "mine.pq")
    assert parquet.ENTRY.find(mine) == mine and parquet.ENTRY.user_files(mine) == [mine]
    mine.write_bytes(b"something else")
    assert parquet.ENTRY.find(mine) is None


def test_a_folder_with_one_of_several_files_is_not_whole(tmp_path):
    one = write(tmp_path / "train-00000-of-00003.parquet", column("label", LABELS))
    with pytest.raises(FileNotFoundError, match=mentions("train-00001-of-00003.parquet")):
        parquet.load(tmp_path)
    assert len(parquet.load(one).labels) == 12, "the file itself is asked for"
    one.rename(tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=mentions("split", "['train']")):
        parquet.load(tmp_path, split="validation")
    for name in ("train-00000-of-00002", "train-00001-of-00002", "train-00000-of-00001"):
        write(tmp_path / f"{name}.parquet", column("label", LABELS))
    (tmp_path / "train.parquet").unlink()
    with pytest.raises(ValueError, match=mentions("train-00000-of-00001.parquet", "1 files", "got 3")):
        parquet.load(tmp_path)
