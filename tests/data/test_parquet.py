"""Parquet in the layouts of Hugging Face's hub: images of every kind, splits, shards, makers, and damaged files."""

import io
import json

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet as pq

from jaxfl.data.sources import parquet

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


def test_the_hubs_layout(tmp_path):
    for shard in range(3):
        rows = slice(4 * shard, 4 * shard + 4)
        columns = {"image": blobs(GREY[rows]), "label": LABELS[rows], "writer_id": WRITERS[rows], "hsf_id": [shard] * 4}
        write(tmp_path / "data" / f"train-{shard:05}-of-00003.parquet", columns, "abcd", row_group_size=3)
    columns = {"image": blobs(GREY[:2]), "label": LABELS[:2], "writer_id": ["ann", "dan"]}
    write(tmp_path / "data" / "test-00000-of-00001.parquet", columns)
    write(tmp_path / "data" / "validation-00000-of-00001.parquet", {"image": blobs(COLOUR), "label": LABELS})
    source = parquet.load(tmp_path)
    np.testing.assert_array_equal(source.inputs, GREY)
    np.testing.assert_array_equal(source.test_inputs, GREY[:2])
    assert source.inputs.dtype == np.uint8 and (source.mean, source.std) == (0.0, 255.0)
    assert source.labels.tolist() == LABELS.tolist() and source.test_labels.tolist() == LABELS[:2].tolist()
    assert source.class_names == tuple("abcd") and source.num_classes == 4
    assert source.clients.tolist() == WRITERS.tolist() and source.test_clients.tolist() == ["ann", "dan"]
    assert source.client_groups.tolist() == np.repeat([0, 1, 2], 4).tolist() and source.group_names == ("0", "1", "2")
    assert parquet.ROW.find(tmp_path) == tmp_path
    test = parquet.load(tmp_path, split="test")
    assert len(test.inputs) == 2 and test.test_inputs is None
    with pytest.raises(ValueError, match=r"split must be one of \['test', 'train', 'validation'\].*got 'extra'"):
        parquet.load(tmp_path, split="extra")
    (tmp_path / "data" / "train-00001-of-00003.parquet").unlink()
    with pytest.raises(FileNotFoundError, match="train-00001-of-00003.parquet is not among the files in .*data; get"):
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
        ({"group": "domain"}, "group domain must be the same in all rows of a client; client ann is in two"),
        ({"group": "town"}, "group town must be the same"),
        ({"group": "site"}, r"must have a column site, found \[.*'town'\]; set group to one of them"),
        ({"client": "maker"}, "must have a column maker, .* set client to one of them"),
    ):
        with pytest.raises(ValueError, match=message):
            parquet.load(path, **options)
    assert parquet.load(path, client="town", label="town", group="town").group_names == ("0", "1", "2")
    for values in ([0.5] * len(LABELS), [[1]] * len(LABELS), [None, *LABELS[1:]], LABELS):
        path = write(path, column("group", values))
        assert parquet.load(path).client_groups is None, "nobody has asked for it"
    with pytest.raises(ValueError, match="group group must be .* no client is known: set client, too"):
        parquet.load(path, group="group")


def holed(values):
    return [None if row == 7 else value for row, value in enumerate(values)]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": LABELS}, r"must have a column image or img or .*, found \['label'\]; set image to one of them"),
        ({"image": blobs(GREY)}, r"must have a column label or labels .*, found \['image'\]; set label"),
        (column("label", holed(LABELS.tolist())), "column label: row 7 has no label"),
        (column("image", holed([png(one) for one in GREY])), "column image: row 7 has no image"),
        (column("image", pa.array([{"bytes": None, "path": "a.png"}] * 12, BLOB)), "row 0 has no bytes of an image"),
        (column("client", holed(WRITERS.tolist())), "column client: row 7 has no client"),
        (column("image", [b"no picture"] * 12), "row 0 cannot be decoded as an image"),
        (column("image", [png(GREY[0])] * 5 + [png(GREY[0])[:50]] * 7), "row 5 cannot be decoded as an image"),
        (
            column("image", [png(GREY[0])] * 5 + [png(GREY[0, 1:])] * 7),
            r"\(5, 4\) uint8 first and \(4, 4\) .*row 5; res",
        ),
        (column("image", [png(GREY[0])] * 5 + [png(COLOUR[0])] * 7), r"\(5, 4\) uint8 first and \(5, 4, 3\) .*row 5"),
        (column("image", [png(GREY.astype(np.uint16)[0])] * 12), "must be an image of 8 bits, got mode I;16"),
        (column("image", [[1, 2]] * 11 + [[1, 2, 3]]), r"one shape, got sides of \[2, 3\]; resize"),
        (column("image", [[1, 2]] * 11 + [[1, None]]), "lists of numbers, got int64, 1 values missing"),
        (column("image", [[[1, 2]]] * 11 + [[None]]), "images must have one shape"),
        (column("image", [["a"]] * 12), "must hold lists of numbers, got string"),
        (column("image", [[1, 256]] * 12), r"pixels must be 0\.\.255, got 1\.\.256"),
        (column("image", ["a.png"] * 12), "must hold bytes, .* got string"),
        (column("label", LABELS / 2), "label must be integers or strings, got double"),
        (column("label", LABELS - 1), "labels must be 0 or more, got -1"),
        (column("client", LABELS / 2), "client must be integers or strings, got double"),
        ({name: values[:0] for name, values in column("label", LABELS).items()}, "must have rows, got none"),
    ],
)
def test_tables_that_will_not_do(tmp_path, columns, message):
    with pytest.raises(ValueError, match=message):
        parquet.load(write(tmp_path / "own.parquet", columns))


def test_shards_and_splits_that_do_not_fit_each_other(tmp_path):
    write(tmp_path / "train.parquet", column("label", LABELS), "ab")
    with pytest.raises(ValueError, match="labels must be below the 2 classes of its metadata, got 2"):
        parquet.load(tmp_path)
    write(tmp_path / "train.parquet", column("label", LABELS))
    write(tmp_path / "test.parquet", column("image", blobs(COLOUR)))
    with pytest.raises(ValueError, match=r"test images are .*\(5, 4, 3\)\), training images .*\(5, 4\)\); resize"):
        parquet.load(tmp_path)
    write(tmp_path / "test.parquet", {"image": blobs(GREY)})
    with pytest.raises(ValueError, match=r"test.parquet must have a column label, found \['image'\]"):
        parquet.load(tmp_path)
    write(tmp_path / "test.parquet", {"image": blobs(GREY), "target": LABELS}).rename(tmp_path / "x.parquet")
    (tmp_path / "train.parquet").rename(tmp_path / "a.parquet")
    with pytest.raises(
        ValueError, match=r"x.parquet must have the column label of a.parquet, found \['image', 'target'"
    ):
        parquet.load(tmp_path)


def test_damaged_files(tmp_path):
    path = write(tmp_path / "own.parquet", column("label", LABELS), compression="gzip")
    good = path.read_bytes()
    footer = int.from_bytes(good[-8:-4], "little")
    pages = bytearray(good)
    pages[60 : len(good) - footer - 8] = bytes(len(good) - footer - 68)
    damages = {
        b"": r"must start with b'PAR1', got b''",
        b"<!doctype html>": "must start with b'PAR1', got b'<!do'; it is another file",
        good[: len(good) // 2]: "is truncated: it must end with b'PAR1'",
        b"PAR1": "is truncated",
        good[: len(good) // 2] + good[-4:]: "is a damaged parquet file",
        good[:100] + good[-footer - 8 :]: "is a damaged parquet file",
        bytes(pages): "is a damaged parquet file .* get it again",
    }
    for content, message in damages.items():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            parquet.load(path)


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="parquet needs data_dir: none was given; give a .parquet file"):
        parquet.load()
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(FileNotFoundError, match=r"needs \*.parquet or data/\*.parquet: not found in .*give a"):
            parquet.load(place)
        assert parquet.ROW.find(place) is None
    for name in ("small", "large"):
        write(tmp_path / name / "train.parquet", column("label", LABELS))
    with pytest.raises(FileNotFoundError, match=r"parquet files in \['large', 'small'\]; give one as data_dir"):
        parquet.load(tmp_path)
    assert len(parquet.load(tmp_path / "small").inputs) == 12
    (tmp_path / "own.npz").write_bytes(b"")
    assert parquet.ROW.find(tmp_path / "own.npz") is None
    assert parquet.ROW.find(tmp_path / "small" / "train.parquet") == tmp_path / "small" / "train.parquet"


def test_a_file_of_the_user_is_found_by_what_it_holds(tmp_path):
    """And so `jaxfl compare` is told which file it was."""
    mine = write(tmp_path / "mine.parquet", column("label", LABELS)).rename(tmp_path / "mine.pq")
    assert parquet.ROW.find(mine) == mine and parquet.ROW.own(mine) == [mine]
    mine.write_bytes(b"something else")
    assert parquet.ROW.find(mine) is None


def test_a_folder_with_one_of_several_files_is_not_whole(tmp_path):
    one = write(tmp_path / "train-00000-of-00003.parquet", column("label", LABELS))
    with pytest.raises(FileNotFoundError, match="train-00001-of-00003.parquet is not among the files"):
        parquet.load(tmp_path)
    assert len(parquet.load(one).labels) == 12, "the file itself is asked for"
    one.rename(tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"split must be one of \['train'\]"):
        parquet.load(tmp_path, split="validation")
    for name in ("train-00000-of-00002", "train-00001-of-00002", "train-00000-of-00001"):
        write(tmp_path / f"{name}.parquet", column("label", LABELS))
    (tmp_path / "train.parquet").unlink()
    with pytest.raises(ValueError, match="has 3 files of train, where train-0000.-of-0000..parquet says"):
        parquet.load(tmp_path)
