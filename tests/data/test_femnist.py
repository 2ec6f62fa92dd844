"""FEMNIST: LEAF's json and TFF's HDF5 load in every layout, and each kind of damage has its own error."""

import json

import h5py
import numpy as np
import pytest

from jaxfl.data.sources import femnist, leaf
from tests.data import leaf_files
from tests.messages import mentions

ONE = leaf_files.users({"f0000_14": 3, "f0001_41": 1})
TWO = leaf_files.users({"f2100_05": 4}, seed=50)


def check(inputs, labels, makers, data):
    want_inputs, want_labels, want_makers = leaf_files.joined(data)
    np.testing.assert_array_equal(inputs, want_inputs)
    assert labels.tolist() == want_labels and makers.tolist() == want_makers
    assert inputs.dtype == np.uint8 and labels.dtype == np.int32 and makers.dtype.kind == "U"


@pytest.mark.parametrize("place", ["", "femnist", "data/all_data", "femnist/data/all_data", "all_data", "data"])
def test_leaf_files_load_from_where_leaf_puts_them(tmp_path, place):
    leaf_files.write_json(tmp_path / place / "all_data_2.json", ONE)
    leaf_files.write_json(tmp_path / place / "all_data_10.json", TWO)
    source = femnist.load(tmp_path)
    check(source.inputs, source.labels, source.clients, ONE | TWO)  # 2 comes before 10
    assert source.test_inputs is None and source.test_labels is None and source.test_clients is None
    assert (source.name, source.mean, source.std, source.num_classes) == ("femnist", 0.0, 255.0, 62)
    assert femnist.ENTRY.find(tmp_path) == tmp_path / place


def test_writers_2100_to_2599_are_students(tmp_path):
    names = ["f0000_14", "f2099_03", "f2100_05", "f2599_11", "f2600_00"]
    leaf_files.write_json(tmp_path / "all_data_0.json", leaf_files.users(dict.fromkeys(names, 2)))
    source = femnist.load(tmp_path)
    group = dict(zip(source.clients.tolist(), source.client_groups.tolist(), strict=True))
    assert group == dict(zip(names, [0, 0, 1, 1, 0], strict=True)) and source.group_names == ("employees", "students")
    leaf_files.write_json(tmp_path / "all_data_1.json", leaf_files.users({"somebody": 2}))
    source = femnist.load(tmp_path)
    assert source.client_groups is None and source.group_names == ()


def test_classes_are_in_leafs_order():
    assert [femnist.CLASSES[label] for label in (0, 9, 10, 11, 35, 36, 37, 61)] == list("09ABZabz")
    assert len(set(femnist.CLASSES)) == femnist.ENTRY.num_classes == 62


def test_white_paper_stays_white_and_every_grey_value_is_exact(tmp_path):
    grey = np.arange(256 + 528, dtype=np.int64).clip(max=255).astype(np.uint8).reshape(1, 28, 28)
    data = {"f0000_14": (grey, np.array([61]))}
    leaf_files.write_json(tmp_path / "all_data_0.json", data)
    leaf_files.write_hdf5(tmp_path / "fed_emnist_train.h5", data)
    leaf_files.write_hdf5(tmp_path / "fed_emnist_test.h5", data)
    for layout in ("leaf", "tff"):
        source = femnist.load(tmp_path, layout=layout)
        np.testing.assert_array_equal(source.inputs, grey)
        assert (source.inputs[0, -1] / source.std == 1).all()


@pytest.mark.parametrize("test", [{"f0000_14": 1, "f0001_41": 2}, {"f3000_00": 2}])
def test_leafs_split_by_sample_and_by_user(tmp_path, test):
    held = leaf_files.users(test, seed=90)
    leaf_files.write_json(tmp_path / "data/train/all_data_0_niid_0_keep_0_train_9.json", ONE)
    leaf_files.write_json(tmp_path / "data/test/all_data_0_niid_0_keep_0_test_9.json", held)
    source = femnist.load(tmp_path)
    check(source.inputs, source.labels, source.clients, ONE)
    check(source.test_inputs, source.test_labels, source.test_clients, held)
    assert femnist.ENTRY.find(tmp_path) == tmp_path / "data"


def test_tff_files_load_with_their_test_set(tmp_path):
    held = leaf_files.users({"f0000_14": 1, "f0001_41": 2}, seed=90)
    leaf_files.write_hdf5(tmp_path / "femnist/fed_emnist_train.h5", ONE)
    leaf_files.write_hdf5(tmp_path / "femnist/fed_emnist_test.h5", held)
    source = femnist.load(tmp_path)
    check(source.inputs, source.labels, source.clients, ONE)
    check(source.test_inputs, source.test_labels, source.test_clients, held)
    assert femnist.ENTRY.find(tmp_path) == tmp_path / "femnist"


def test_layout_chooses_between_files_that_lie_together(tmp_path):
    leaf_files.write_json(tmp_path / "data/all_data/all_data_0.json", ONE | TWO)
    leaf_files.write_json(tmp_path / "data/train/all_data_0_train_9.json", ONE)
    leaf_files.write_json(tmp_path / "data/test/all_data_0_test_9.json", TWO)
    with pytest.warns(UserWarning, match=mentions("femnist", "data/all_data", "train", "test", "layout=leaf-split")):
        found = femnist.load(tmp_path)
    assert len(found.labels) == len(femnist.load(tmp_path, layout="leaf").labels) == 8
    assert len(femnist.load(tmp_path, layout="leaf-split").labels) == 4
    with pytest.raises(FileNotFoundError, match=mentions("femnist", "fed_emnist_train.h5", "fed_emnist_test.h5")):
        femnist.load(tmp_path, layout="tff")
    with pytest.raises(ValueError, match=mentions("layout", "json")):
        femnist.load(tmp_path, layout="json")


def test_what_leaf_leaves_beside_the_users_is_not_read(tmp_path):
    # Split by sample, LEAF drops users of one row from `users` and leaves them, empty, in `user_data`.
    content = leaf_files.content(ONE)
    content["user_data"]["f9999_99"] = {"x": [], "y": []}
    content["hierarchies"] = ["a", "b"]
    path = tmp_path / "all_data_0.json"
    path.write_text(json.dumps(content))
    check(*leaf.read([path]), ONE)


def test_a_file_is_parsed_once(tmp_path, monkeypatch):
    leaf_files.write_json(tmp_path / "all_data_0.json", ONE)
    leaf_files.write_json(tmp_path / "all_data_1.json", TWO)
    loads, parsed = json.loads, []
    monkeypatch.setattr(json, "loads", lambda text, **options: parsed.append(text) or loads(text, **options))
    femnist.load(tmp_path)
    assert len(parsed) == 2  # parsing takes most of the time, a minute for all of FEMNIST


def test_pixels_may_be_written_as_integers(tmp_path):
    path = tmp_path / "all_data_0.json"
    path.write_text(
        '{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[1, 0], [1.0, 0.6]], "y": [1, 0]}}}'
    )
    assert leaf.read([path], shape=(1, 2)).inputs.tolist() == [[[255, 0]], [[255, 153]]]


def test_fractions_of_any_kind_do_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(leaf, "MAX_TEXTS", 3)
    leaf_files.write_json(tmp_path / "all_data_0.json", ONE)
    check(*leaf.read([tmp_path / "all_data_0.json"]), ONE)


def test_missing_files_say_which_where_and_how(tmp_path):
    with pytest.raises(
        FileNotFoundError,
        match=mentions(
            "femnist",
            "all_data*.json",
            "train/*.json",
            "test/*.json",
            "fed_emnist_train.h5",
            "data/femnist/preprocess.sh",
            "https://github.com/TalwalkarLab/leaf",
        ),
    ):
        femnist.load(tmp_path)
    assert femnist.ENTRY.find(tmp_path) is None
    leaf_files.write_hdf5(tmp_path / "fed_emnist_train.h5", ONE)
    with pytest.raises(FileNotFoundError, match=mentions("femnist", "fed_emnist_test.h5")):
        femnist.load(tmp_path)
    assert femnist.ENTRY.find(tmp_path) is None


def damaged(change):
    """Returns the text of a LEAF file after `change(content)`."""
    content = leaf_files.content(ONE)
    change(content)
    return json.dumps(content)


def put(*keys, value):
    """Returns a change that sets `content[keys[0]][keys[1]]...`."""

    def change(content):
        *path, last = keys
        for key in path:
            content = content[key]
        content[last] = value

    return change


X, Y = ("user_data", "f0000_14", "x"), ("user_data", "f0000_14", "y")
GOOD = json.dumps(leaf_files.content(ONE))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            GOOD[: len(GOOD) // 2],
            ("all_data_0.json", "truncated"),
        ),
        ("", ("all_data_0.json", "truncated")),
        (GOOD.replace(", ", ", ,", 1), ("all_data_0.json", "json", "line 1 column")),
        ("[1, 2]", ("num_samples", "user_data", "users is not in")),
        (damaged(lambda content: content.pop("users")), ("users is not in", "['num_samples', 'user_data']")),
        (damaged(lambda content: content.pop("num_samples")), ("num_samples is not in", "['user_data', 'users']")),
        (damaged(lambda content: content.pop("user_data")), ("user_data is not in", "['num_samples', 'users']")),
        (damaged(put("users", value={"f0000_14": 1})), ("users", "dict")),
        (damaged(put("num_samples", value=[3])), ("num_samples", "2 users", 1)),
        (damaged(put("num_samples", 0, value=4)), ("f0000_14", "4 rows", "3 images", "3 labels")),
        (damaged(put(*X, value=[[1.0] * 784] * 2)), ("3 rows", "2 images", "3 labels")),
        (damaged(put(*Y, value=[1])), ("3 rows", "3 images", "1 labels")),
        (damaged(lambda content: content["user_data"].pop("f0001_41")), ("f0001_41", "user_data")),
        (damaged(put("user_data", "f0001_41", value={"x": []})), ("f0001_41", "user_data", "x and y")),
        (damaged(put("users", 1, value="f0000_14")), ("f0000_14", "twice")),
        (damaged(put(*X, 1, value=[0.5] * 783)), ("f0000_14", 783, "row 1", 784)),
        (damaged(put(*X, 1, value="text")), ("784 pixels", "str")),
        (damaged(put(*X, 2, 5, value=1.5)), ("row 2", "f0000_14", "pixels", 1.5, 255)),
        (damaged(put(*X, 2, 5, value=-0.25)), ("pixels", -0.25)),
        (damaged(put(*X, 2, 5, value=float("nan"))), ("pixels", "nan")),
        (damaged(put(*X, 2, 5, value=255)), ("pixels", "got 255")),
        (damaged(put(*X, 2, 5, value=None)), ("pixels", "None")),
        (damaged(put(*Y, 1, value=62)), ("labels", "f0000_14", 62, "0..61", "row 1")),
        (damaged(put(*Y, 1, value=-1)), (-1, "0..61")),
        (damaged(put(*Y, 1, value=0.0)), (0.0, "0..61")),
        (damaged(put(*Y, 1, value=2.5)), (2.5, "0..61")),
        (damaged(put(*Y, 1, value="a")), ("0..61", "got a in")),
    ],
)
def test_damaged_json(tmp_path, text, message):
    (tmp_path / "all_data_0.json").write_text(text)
    with pytest.raises(ValueError, match=mentions(*message)):
        femnist.load(tmp_path)


def test_user_without_rows(tmp_path):
    leaf_files.write_json(tmp_path / "all_data_0.json", ONE)
    content = leaf_files.content(ONE)
    content["num_samples"][1], content["user_data"]["f0001_41"] = 0, {"x": [], "y": []}
    (tmp_path / "all_data_0.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=mentions("all_data_0.json", "f0001_41", "rows")):
        femnist.load(tmp_path)


def test_binary_file_under_the_name_of_json(tmp_path):
    (tmp_path / "all_data_0.json").write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(ValueError, match=mentions("all_data_0.json", "utf-8")):
        femnist.load(tmp_path)


def test_user_in_two_files(tmp_path):
    leaf_files.write_json(tmp_path / "all_data_0.json", ONE)
    leaf_files.write_json(tmp_path / "all_data_1.json", TWO | {"f0001_41": ONE["f0001_41"]})
    with pytest.raises(ValueError, match=mentions("all_data_1.json", "all_data_0.json", "twice")):
        femnist.load(tmp_path)


@pytest.fixture
def hdf5(tmp_path):
    leaf_files.write_hdf5(tmp_path / "fed_emnist_train.h5", ONE)
    leaf_files.write_hdf5(tmp_path / "fed_emnist_test.h5", TWO)
    return tmp_path


@pytest.mark.parametrize("damage", [lambda good: good[: len(good) // 2], lambda good: b"", lambda good: b"<html>" * 99])
def test_hdf5_truncated_empty_or_another_file(hdf5, damage):
    path = hdf5 / "fed_emnist_test.h5"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=mentions("fed_emnist_test.h5", "HDF5")):
        femnist.load(hdf5)


def replace(name, value):
    def change(file):
        del file[name]
        if value is not None:
            file[name] = value

    return change


PIXELS, LABEL = "examples/f0000_14/pixels", "examples/f0000_14/label"
WHITE = np.ones((3, 28, 28), np.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace("examples", None), ("examples", "[]")),
        (replace("examples", WHITE), ("examples", "['examples']")),
        (replace(PIXELS, None), ("f0000_14", "pixels")),
        (replace(LABEL, None), ("f0000_14", "label")),
        (replace("examples/f0000_14", WHITE), ("f0000_14", "pixels")),
        (replace(PIXELS, WHITE[:2]), ("pixels", "label", "[2, 28, 28] and [3]")),
        (replace(PIXELS, WHITE[:, :27]), ("[3, 27, 28] and [3]",)),
        (replace(LABEL, np.zeros((3, 2), np.int32)), ("[3, 28, 28] and [3, 2]",)),
        (replace(LABEL, np.int32(3)), ("[3, 28, 28] and []",)),
        (replace(LABEL, np.array([0, 62, 1])), ("labels", "0..61", "int64 0..62")),
        (replace(LABEL, np.array([0, -1, 1])), ("int64", "-1..1")),
        (replace(LABEL, np.zeros(3, np.float32)), ("labels", "0..61", "float32")),
        (replace(PIXELS, WHITE * 255), ("pixels", "255.0..255.0")),
        (replace(PIXELS, WHITE - 2), ("pixels", "-1.0..-1.0")),
        (replace(PIXELS, WHITE * np.float32("nan")), ("pixels", "nan..nan")),
    ],
)
def test_hdf5_with_wrong_content(hdf5, change, message):
    with h5py.File(hdf5 / "fed_emnist_train.h5", "a") as file:
        change(file)
    with pytest.raises(ValueError, match=mentions("fed_emnist_train.h5", *message)):
        femnist.load(hdf5)


def test_hdf5_client_without_rows(hdf5):
    with h5py.File(hdf5 / "fed_emnist_train.h5", "a") as file:
        replace(PIXELS, WHITE[:0])(file)
        replace(LABEL, np.zeros(0, np.int32))(file)
    with pytest.raises(ValueError, match=mentions("f0000_14", "rows")):
        femnist.load(hdf5)


def test_labels_of_one_column_are_labels(hdf5):
    with h5py.File(hdf5 / "fed_emnist_train.h5", "a") as file:
        replace(LABEL, np.array([[5], [6], [7]], np.int32))(file)
    assert femnist.load(hdf5).labels.tolist()[:3] == [5, 6, 7]


def test_hdf5_flipped_byte_in_a_compressed_image(hdf5):
    path = hdf5 / "fed_emnist_train.h5"
    with h5py.File(path, "a") as file:
        del file[PIXELS]
        dataset = file["examples/f0000_14"].create_dataset(
            "pixels", data=WHITE * ONE["f0000_14"][0] / 255, compression=4
        )
        place = dataset.id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[place + 20] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ValueError, match=mentions("fed_emnist_train.h5", "HDF5")):
        femnist.load(hdf5)


def test_remote_has_a_complete_checksum():
    (remote,) = femnist.ENTRY.remotes
    kind, digest = remote.checksum.split(":")
    assert kind == "sha256" and len(bytes.fromhex(digest)) == 32


@pytest.mark.parametrize("twice", ["users", "f0000_14"])
def test_a_key_that_is_there_twice_is_not_dropped(tmp_path, twice):
    path = leaf_files.write_json(tmp_path / "all_data_0.json", ONE) or tmp_path / "all_data_0.json"
    text = path.read_text()
    text = text.replace('"f0001_41": {', '"f0000_14": {') if twice != "users" else text[:-1] + ', "users": []}'
    path.write_text(text)
    with pytest.raises(ValueError, match=mentions("all_data_0.json", twice, "twice")):
        femnist.load(tmp_path)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"users": [' + "9" * 6000 + "]}"])
def test_json_that_python_does_not_read_is_one_message_with_the_file(tmp_path, text):
    (tmp_path / "all_data_0.json").write_text(text)
    with pytest.raises(ValueError, match=mentions("all_data_0.json", "LEAF")):
        femnist.load(tmp_path)


def test_a_byte_order_mark_is_not_content(tmp_path):
    path = leaf_files.write_json(tmp_path / "all_data_0.json", ONE) or tmp_path / "all_data_0.json"
    path.write_text(path.read_text(), "utf-8-sig")
    assert len(femnist.load(tmp_path).labels) == 4
