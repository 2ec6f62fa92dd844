"""Arrays of an npz file: own names, refusals, and sources that are written and come back equal."""

import dataclasses
import json
import pathlib
import zipfile

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from jaxfl import data
from jaxfl.data.sources import Source, npz
from tests.messages import mentions

FILES = pathlib.Path(__file__).parents[3] / "shared" / "data" / "london_faces"
RNG = np.random.Generator(np.random.PCG64(0))
IMAGES, TEST_IMAGES = RNG.integers(0, 256, (20, 4, 4), np.uint8), RNG.integers(0, 256, (6, 4, 4), np.uint8)
LABELS, TEST_LABELS = np.arange(20, dtype=np.uint8) % 10, np.arange(6, dtype=np.uint8)
PLAIN = {"x": IMAGES, "y": LABELS}
TESTED = PLAIN | {"test_x": TEST_IMAGES, "test_y": TEST_LABELS}
FULL = Source(
    "full",
    IMAGES,
    LABELS,
    12,
    TEST_IMAGES,
    TEST_LABELS,
    clients=np.repeat(["ann", "bob", "cid", "dän"], 5),
    test_clients=np.repeat(["ann", "bob"], 3),
    client_groups=np.repeat([1, 0], 10),
    client_weights=np.repeat([0.5, 2.0, 1.0, 0.0], 5),
    group_names=("south", "north"),
    domains=np.arange(20) % 2,
    test_domains=np.arange(6) % 2,
    domain_names=("pen", "scan"),
    class_names=tuple("abcdefghijkl"),
    mean=np.array([3.0, 4.0], np.float32),
    std=2.5,
)


def assert_equal(one, other):
    for field in dataclasses.fields(Source):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, np.ndarray):
            assert isinstance(b, np.ndarray) and a.dtype == b.dtype, field.name
            np.testing.assert_array_equal(a, b, err_msg=field.name)
        else:
            assert type(a) is type(b) and a == b, field.name


@pytest.fixture
def path(tmp_path):
    return tmp_path / "own.npz"


def test_all_the_arrays(path):
    client, group = np.repeat(["ann", "bob", "cid", "dan"], 5), np.repeat(["north", "south"], 10)
    np.savez(path, **TESTED, client=client, group=group, std=16.0)
    source = npz.load(path)
    assert (source.name, source.num_classes, source.mean, source.std) == ("own", 10, 0.0, 16.0)
    assert source.clients.tolist() == client.tolist() and source.group_names == ("north", "south")
    assert source.client_groups.tolist() == [0] * 10 + [1] * 10
    np.testing.assert_array_equal(source.test_inputs, TEST_IMAGES)


@pytest.mark.parametrize(
    ("column", "one", "other"),
    [
        ("client", "ann", "Ann"),
        ("client", "ann b", "ann\u00a0 b"),
        ("client", "ann", "a\u200bnn"),
        ("client", "1", "\uff11"),
        ("group", "S\u00fcd", "Su\u0308d"),
        ("domain", "pen", "Pen"),
    ],
)
def test_names_that_look_alike_are_told(path, column, one, other):
    arrays = {"client": np.repeat(["x", "y"], 10), column: np.repeat([one, other], 10)}
    np.savez(path, **PLAIN, **arrays)
    with pytest.warns(UserWarning, match=mentions(str(path), column, repr(one), repr(other))):
        npz.load(path)


def test_a_maker_whose_test_rows_have_another_case_is_told(path):
    np.savez(path, **TESTED, client=np.repeat(["ann", "bob"], 10), test_client=np.repeat(["Ann", "bob"], 3))
    with pytest.warns(UserWarning, match=mentions("client", "'ann'", "'Ann'")):
        npz.load(path)


def test_other_names(path):
    arrays = {"pixels": IMAGES, "digit": LABELS, "pen": LABELS, "town": LABELS // 5}
    tested = {"test_pixels": TEST_IMAGES, "test_digit": TEST_LABELS, "test_pen": TEST_LABELS}
    np.savez(path, **arrays, **tested, x=np.zeros(3))
    source = npz.load(path, image="pixels", label="digit", client="pen", group="town")
    np.testing.assert_array_equal(source.inputs, IMAGES)
    assert source.clients.tolist() == LABELS.tolist() and source.client_groups.tolist() == (LABELS // 5).tolist()
    assert source.test_labels.tolist() == source.test_clients.tolist() == TEST_LABELS.tolist()


def test_names_of_groups_and_classes(path):
    np.savez(path, **PLAIN, group=LABELS % 2 + 1, group_names=["none", "b", "a"], class_names=list("abcdefghijkl"))
    source = npz.load(path)
    assert source.client_groups.tolist() == (LABELS % 2 + 1).tolist() and source.group_names == ("none", "b", "a")
    assert source.num_classes == 12 and source.class_names[11] == "l"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image": "pixels"}, ("pixels", "['x', 'y']", "image")),
        ({"label": "smiling"}, ("smiling", "label")),
        ({"client": "person"}, ("person", "client")),
        ({"group": "site"}, ("site", "group")),
    ],
)
def test_a_name_that_was_asked_for_must_be_there(path, options, message):
    np.savez(path, **PLAIN)
    assert npz.load(path).clients is None
    with pytest.raises(ValueError, match=mentions(*message)):
        npz.load(path, **options)


def test_a_test_set_of_other_names_is_not_left_out(path):
    np.savez(path, **TESTED, client=LABELS, person=LABELS, test_client=TEST_LABELS)
    assert npz.load(path).test_clients.tolist() == TEST_LABELS.tolist()
    with pytest.raises(ValueError, match=mentions("test_person", "client")):
        npz.load(path, client="person")


def test_names_in_bytes_are_texts(path):
    np.savez(path, **PLAIN, group=[b"u", b"\xc3\xa4"] * 10, class_names=[b"c"] * 10, client=[b"ann"] * 20)
    source = npz.load(path)
    assert source.group_names == ("u", "ä") and source.class_names == ("c",) * 10 and source.clients[0] == "ann"


def test_floats_are_left_alone(path):
    np.savez(path, x=IMAGES.astype(np.float32), y=LABELS)
    source = npz.load(path)
    assert source.mean is None and source.std is None and source.test_inputs is None


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": IMAGES}, ("y", "['x']", "label")),
        (PLAIN | {"test_x": TEST_IMAGES}, ("test_y", "['x', 'y', 'test_x']")),
        (PLAIN | {"test_client": TEST_LABELS}, ("test_x", "['x', 'y', 'test_client']")),
        (PLAIN | {"test_domain": TEST_LABELS}, ("test_domain", "own.npz")),
        (PLAIN | {"y": LABELS[:-1]}, ("y", "[20]", "(19,)")),
        (PLAIN | {"client": LABELS[:2]}, ("client", "[20]")),
        (TESTED | {"test_client": LABELS}, ("test_client", "[6]", "test_x")),
        (PLAIN | {"y": LABELS.astype(str)}, ("y", "<U3", "np.unique")),
        (PLAIN | {"y": LABELS + np.nan}, ("y", "labels", "NaN")),
        (TESTED | {"y": LABELS / 2}, ("test_y", "own.npz")),
        (PLAIN | {"y": LABELS / 2, "num_classes": 5}, ("num_classes", 5)),
        (PLAIN | {"y": LABELS.astype(int) - 1}, ("y", -1)),
        (PLAIN | {"x": IMAGES.astype(int)}, ("x", "[P]", "int64")),
        (TESTED | {"test_x": TEST_IMAGES[:, 1:]}, ("test_x", "own.npz")),
        (TESTED | {"test_x": TEST_IMAGES / 255}, ("test_x", "own.npz")),
        (PLAIN | {"y": np.array([None] * 20)}, ("own.npz", "Python objects")),
        (PLAIN | {"class_names": ["a", "b"]}, ("y", 9)),
        (PLAIN | {"group": LABELS, "group_names": ["a", "b"]}, ("group", "0..1", 2)),
        (PLAIN | {"group": ["a"] * 20, "group_names": ["a"]}, ("group", "0..0", "a")),
        (PLAIN | {"group": np.full(20, np.nan)}, ("group", "NaN")),
        (PLAIN | {"domain": np.full(20, np.nan)}, ("domain", "NaN")),
        (PLAIN | {"group": [b"\xff"] * 20}, ("own.npz", "UTF-8")),
        (PLAIN | {"domain": LABELS, "domain_names": ["a"]}, ("domain", "0..0", 1, "domain_names")),
        (PLAIN | {"x": np.uint8(3)}, ("x", "[P, ...]")),
        (PLAIN | {"num_classes": [2, 3]}, ("num_classes", "[2, 3]")),
        (PLAIN | {"num_classes": 0}, ("num_classes", "got 0")),
        (PLAIN | {"class_names": "a"}, ("class_names", "()")),
        (PLAIN | {"std": 0.0}, ("std", 0.0)),
        (PLAIN | {"mean": np.nan}, ("mean", "nan")),
        (PLAIN | {"origin": "elsewhere"}, ("origin", "JSON")),
        (PLAIN | {"origin": '{"source": 3, "options": {}}'}, ("origin", "JSON")),
        (PLAIN | {"origin": '{"source": "a", "options": {}, "name": 3}'}, ("origin", "JSON")),
    ],
)
def test_refusals(path, arrays, message):
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=mentions(*message)):
        npz.load(path)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 cut off", b"\x93NUMPY\x01\x00"])
def test_a_file_that_is_none(path, content):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=mentions("own.npz", "np.savez")):
        npz.load(path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_flipped_byte_or_cut_off(path, save):
    save(path, **PLAIN)
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[200] ^= 0xFF  # among the pixels
    for content in (bytes(flipped), good[: len(good) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=mentions("own.npz", "np.savez")):
            npz.load(path)


def test_one_plain_array(tmp_path):
    np.save(tmp_path / "own.npy", IMAGES)
    with pytest.raises(ValueError, match=mentions("own.npy", "np.savez")):
        npz.load(tmp_path / "own.npy")


def test_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=mentions("npz", "data_dir", "none.npz")):
        npz.load(tmp_path / "none.npz")
    with pytest.raises(FileNotFoundError, match=mentions("npz", "data_dir", "none was given")):
        npz.load()
    (tmp_path / "cat").mkdir()
    with pytest.raises(FileNotFoundError, match=mentions("npz", "folder")):
        npz.load(tmp_path)
    (tmp_path / "cat" / "1.JPG").touch()
    with pytest.raises(FileNotFoundError, match=mentions("npz", "folder of images", "dirichlet-folder")):
        npz.load(tmp_path)


def columns(length, values):
    return st.lists(st.integers(0, values - 1), min_size=length, max_size=length).map(np.array)


@st.composite
def whole_sources(draw):
    """A source with any of its optional fields present or not."""
    changes = {}
    for names in (("test_inputs", "test_labels", "test_clients", "test_domains"), ("clients",), ("client_groups",)):
        if draw(st.booleans()):
            changes |= dict.fromkeys(names)
    changes |= dict.fromkeys(draw(st.sets(st.sampled_from(["test_clients", "domains", "test_domains"]))))
    for field in draw(st.sets(st.sampled_from(["group_names", "domain_names", "class_names"]))):
        changes[field] = ()
    names = st.sets(st.text("abc äß☃", min_size=1).map(str.strip).filter(bool), min_size=2, max_size=2).map(tuple)
    if "group_names" not in changes and "client_groups" not in changes:
        changes |= {"group_names": draw(names), "client_groups": draw(columns(20, 2))}
    if "clients" not in changes:
        changes["clients"] = draw(st.one_of(columns(20, 5), columns(20, 5).map(lambda column: column.astype("U"))))
    inputs = draw(st.sampled_from([np.uint8, np.float32, np.float64]))
    changes |= {"inputs": IMAGES.astype(inputs), "mean": draw(st.none() | st.floats(-5, 5))}
    if "test_inputs" not in changes:
        changes["test_inputs"] = TEST_IMAGES.astype(inputs)
    return dataclasses.replace(FULL, **changes)


@hypothesis.settings(deadline=None, max_examples=50)
@hypothesis.given(source=whole_sources())
@hypothesis.example(source=FULL)
def test_what_is_saved_comes_back(tmp_path_factory, source):
    path = tmp_path_factory.mktemp("saved") / "new" / "other.npz"
    npz.save(source, path)
    assert_equal(source, npz.load(path))
    assert [file.name for file in path.parent.iterdir()] == ["other.npz"]


def test_origin_is_kept_and_holds_another_name_if_there_is_one(path):
    npz.save(FULL, path, origin={"source": "mnist", "options": {"split": "train"}})
    assert_equal(FULL, npz.load(path))
    with np.load(path) as file:
        origin = json.loads(str(file["origin"]))
    assert origin == {"source": "mnist", "options": {"split": "train"}, "name": "full"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients": np.array([None, 1] * 10)}, ("client", "full", "object")),
        ({"labels": LABELS + 3}, ("y", 12)),
        ({"clients": LABELS[:3]}, ("client", "[20]")),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(path, changes, message):
    npz.save(FULL, path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=mentions(*message)):
        npz.save(dataclasses.replace(FULL, **changes), path)
    with pytest.raises(ValueError, match=mentions("origin", "['name']")):
        npz.save(FULL, path, origin={"name": "full"})
    assert path.read_bytes() == before


def test_a_write_that_fails_leaves_the_old_file(path, monkeypatch):
    npz.save(FULL, path)
    before = path.read_bytes()

    def full_disk(stream, **arrays):
        stream.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez_compressed", full_disk)
    with pytest.raises(OSError, match=mentions("no space left")):
        npz.save(FULL, path)
    assert path.read_bytes() == before and len(list(path.parent.iterdir())) == 1


def test_converted_finds_the_file_of_the_source_and_its_options(tmp_path):
    options = {"pixels": 84, "attributes": ("Smiling",)}
    assert npz.find_converted("full", tmp_path, options) is None
    np.savez(tmp_path / "full.npz", **PLAIN)  # somebody else's
    assert npz.find_converted("full", tmp_path, options) is None
    (tmp_path / "full.npz").unlink()
    npz.save(FULL, tmp_path / "full.npz", origin={"source": "other", "options": options})
    assert npz.find_converted("full", tmp_path, options) is None
    path = tmp_path / "full" / "full.npz"
    npz.save(FULL, path, origin={"source": "full", "options": options})
    assert (
        npz.find_converted("full", tmp_path, options) == npz.find_converted("full", tmp_path / "full", options) == path
    )
    with pytest.raises(ValueError, match=mentions("pixels=28", "pixels=84", "full")):
        npz.find_converted("full", tmp_path, options | {"pixels": 28})
    with pytest.raises(ValueError, match=mentions("min_rows=5", "min_rows=(unset)")):
        npz.find_converted("full", tmp_path, options | {"min_rows": 5})
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=mentions("full.npz", "np.savez")):
        npz.find_converted("full", tmp_path, options)


def test_two_arrays_of_one_name_are_refused(path):
    """The second one would be read alone."""
    np.savez(path, **PLAIN)
    np.save(path.with_name("x.npy"), IMAGES[::-1])
    with zipfile.ZipFile(path, "a") as archive:
        archive.write(path.with_name("x.npy"), "x")
    with pytest.raises(ValueError, match=mentions(str(path), "1 of its arrays")):
        npz.load(path)


def test_converted_reads_the_origin_alone(tmp_path):
    path = tmp_path / "full.npz"
    npz.save(FULL, path)
    content = bytearray(path.read_bytes())
    start = content.index(b"x.npy") + 80
    content[start : start + 20] = bytes(20)  # pixels
    path.write_bytes(content)
    assert npz.find_converted("full", tmp_path, {}) == path
    with pytest.raises(ValueError, match=mentions("full.npz", "arrays")):
        npz.load(path)


@pytest.mark.skipif(not FILES.is_dir(), reason="needs the faces in ../shared/data/london_faces")
def test_faces_by_person():
    source = npz.load(FILES / "london_faces_84.npz", label="smiling", client="person")
    assert source.inputs.shape == (204, 84, 84, 3) and source.num_classes == 2
    assert np.unique(source.clients, return_counts=True)[1].tolist() == [2] * 102


def test_groups_that_are_lost_are_warned_of(path):
    """A group is that of a client's training rows; one maker here has test rows alone."""
    images, labels = np.zeros((6, 8, 8), np.uint8), np.arange(6) % 2
    whose = {"client": np.repeat(["ann", "bob"], 3), "group": np.repeat(["north", "south"], 3)}
    np.savez(path, x=images, y=labels, **whose, test_x=images, test_y=labels, test_client=np.repeat(["ann", "eve"], 3))
    lost = pytest.warns(UserWarning, match=mentions("own", "1 of 3 clients", "group"))
    unplaced = pytest.warns(UserWarning, match=mentions("own", "1 of 3 makers", "training rows"))
    untested = pytest.warns(UserWarning, match=mentions("own", "1 of 3 makers", "test rows"))
    with lost, unplaced, untested:
        assert data.load("writers-npz", data_dir=path, test_share=None).group is None


@pytest.mark.parametrize(
    "domains",
    [
        {"domain": np.repeat([0, 1], 20), "domain_names": ["pen", "scan"]},
        {"domain": np.repeat(["pen", "scan"], 20)},  # by what they are called
    ],
    ids=["numbers", "words"],
)
def test_domains_of_a_file_are_those_of_the_hybrid(domains, path):
    """Each image of the file once, and not beside its negative."""
    pixels = RNG.integers(0, 256, (40, 4, 4), np.uint8)
    np.savez(path, x=pixels, y=np.arange(40) % 2, **domains)
    federation = data.load("hybrid-npz", data_dir=path, num_clients=4)
    assert federation.group_names == ("pen", "scan") and len(federation.inputs) == 40
    for client, group in enumerate(federation.group):
        rows = federation.train.rows[federation.train.start[client] :][: federation.train.size[client]]
        assert (rows // 20 == group).all()
    with pytest.raises(ValueError, match=mentions("other", "digits")):
        data.load("hybrid-npz", data_dir=path, num_clients=4, other="digits")


TOKENS = RNG.integers(0, 9, (20, 6))


@pytest.mark.parametrize(
    ("inputs", "labels", "kind", "size"),
    [
        (IMAGES, np.linspace(0, 1, 20), "regression", 1),
        (IMAGES, RNG.normal(size=(20, 3)), "regression", 3),
        (IMAGES, RNG.random((20, 5)) < 0.5, "multilabel", 5),
        (IMAGES, (RNG.random((20, 5)) < 0.5).astype(np.uint8), "multilabel", 5),
        (TOKENS, np.where(TOKENS > 3, TOKENS, -1), "next_token", 9),
    ],
)
def test_labels_of_other_kinds(path, inputs, labels, kind, size):
    client = np.repeat(["ann", "bob"], 10)
    np.savez(path, x=inputs, y=labels, client=client)
    source = npz.load(path)
    assert source.num_classes == size
    npz.save(source, path.with_name("copy.npz"))
    assert_equal(npz.load(path.with_name("copy.npz")), dataclasses.replace(source, client_groups=None))
    fed = data.load("writers-npz", data_dir=path)
    assert (fed.kind, fed.num_classes, fed.num_clients) == (kind, size, 2)


@pytest.mark.parametrize("names", [("x_test", "y_test"), ("test_X", "test_Y"), ("val_x", "val_y"), ("x_dev", "evalY")])
def test_a_test_set_of_names_that_are_not_read_is_told(tmp_path, names):
    np.savez(tmp_path / "keras.npz", **PLAIN, **dict(zip(names, (TEST_IMAGES, TEST_LABELS), strict=True)))
    with pytest.warns(UserWarning, match=mentions("keras.npz", *names, "test_x", "test_y")):
        npz.load(tmp_path / "keras.npz")


@pytest.mark.parametrize(
    "names",
    [("testx", "TestY"), ("clients", "Client_ID"), ("groups", "class-names"), ("domains",), ("split", "train_mask")]
    + [("train", "held_out"), ("is_train", "Subset"), ("TestMask", "fold_id")],
)
def test_arrays_whose_names_nearly_are_those_that_are_read_are_told(tmp_path, names):
    np.savez(tmp_path / "own.npz", **PLAIN, ids=LABELS, files=LABELS, notes=LABELS, **dict.fromkeys(names, LABELS))
    with pytest.warns(UserWarning, match=mentions("own.npz", *names, "test_x", "client", "class_names")) as seen:
        npz.load(tmp_path / "own.npz")
    assert "notes" not in str(seen[0].message)
    makers = {"client": LABELS, "group": LABELS, "class_names": np.arange(10), "domain": LABELS}
    np.savez(tmp_path / "own.npz", **PLAIN, **makers, clients=LABELS, groups=LABELS, class_labels=LABELS)
    npz.load(tmp_path / "own.npz")  # the arrays themselves are there: a warning would fail


def test_times_to_predict_have_a_remedy(tmp_path):
    np.savez(tmp_path / "times.npz", x=IMAGES, y=np.arange(20).astype("M8[s]"))
    with pytest.raises(ValueError, match=mentions("times.npz", "datetime64[s]", "np.timedelta64")):
        npz.load(tmp_path / "times.npz")


def test_an_array_has_the_weights_of_clients(tmp_path):
    arrays = PLAIN | {"client": np.repeat(np.arange(4), 5), "size": np.repeat([3, 1, 0, 2], 5)}
    np.savez(tmp_path / "own.npz", **arrays)
    found = data.load("writers-npz", data_dir=tmp_path / "own.npz", client_weight="size")
    assert found.client_weights.tolist() == [3, 1, 0, 2] and found.client_weights.dtype == np.float32
    assert data.load("writers-npz", data_dir=tmp_path / "own.npz").client_weights is None
    with pytest.raises(ValueError, match=mentions("own.npz", "weights", "client_weight")):
        data.load("writers-npz", data_dir=tmp_path / "own.npz", client_weight="weights")
