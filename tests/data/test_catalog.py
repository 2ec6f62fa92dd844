"""The catalogue: what can be had here loads, options are checked, real files give the federations of the papers."""

import inspect
import pathlib

import numpy as np
import pytest

from jaxfl import data
from jaxfl.data import catalog, skews, stored
from jaxfl.data.digest import digest
from tests.messages import mentions

# products of few clients, in which some shifts have none
pytestmark = pytest.mark.filterwarnings("ignore:no client of")

FILES = pathlib.Path(__file__).parents[3] / "shared" / "data"
needs_mnist = pytest.mark.skipif(not (FILES / "mnist").is_dir(), reason="needs MNIST in ../shared/data/mnist")
# whose rows a seed divides
EMBEDDED = [name for name, row in data.DATASETS.items() if not row.needs_files and row.skew != "writers"]


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_federations_load_with_their_defaults(name):
    fed, row = data.load(name), data.DATASETS[name]
    assert fed.name == name and fed.num_clients == row.defaults["num_clients"] and fed.num_classes == row.num_classes
    assert fed.train.size.min() > 0 and fed.test.size.min() > 0
    assert fed.inputs.dtype == np.uint8 and fed.train.rows.dtype == np.int32
    if fed.group is not None:
        assert np.bincount(fed.group).tolist() == [fed.num_clients // len(fed.group_names)] * len(fed.group_names)
    for client in range(fed.num_clients):
        train, test = (set(rows(split, client).tolist()) for split in (fed.train, fed.test))
        assert not train & test and len(train) == fed.train.size[client]


@pytest.mark.parametrize("name", ["fashion-mnist", "emnist-balanced", "emnist-letters", "cifar10", "cifar100"])
def test_defaults_fit_what_a_source_has(name):
    """These have as many rows of every class, and others have more."""
    classes = data.sources.entry(name).num_classes
    sizes = {"emnist-balanced": (112800, 18800), "emnist-letters": (124800, 20800), "fashion-mnist": (60000, 10000)}
    train, test = (np.arange(count) % classes for count in sizes.get(name, (50000, 10000)))
    pixels, test_pixels = (np.zeros((len(labels), 1, 1), np.uint8) for labels in (train, test))
    groups = np.arange(classes) // 5 if name == "cifar100" else None
    source = data.Source(name, pixels, train, classes, test_pixels, test, class_groups=groups)
    for skew, (builder, _) in data.SKEWS.items():
        if skew in ("writers", "hybrid"):  # nobody knows writers of these; a hybrid deals out all rows
            continue
        known = catalog.known_options(f"{skew}-{name}").items()
        fed = builder(source, seed=0, **{option: one.default for option, one in known if one.owner == "skew"})
        assert fed.train.size.min() > 0, skew


def rows(split, client):
    return split.rows[split.start[client] : split.start[client] + split.size[client]]


def test_a_skew_needs_no_more_than_its_row(monkeypatch):
    monkeypatch.setitem(catalog.SKEWS, "mine", (skews.iid, "one of somebody's own"))
    assert catalog._dataset("mine", "mnist").defaults == {"num_clients": 100}


def test_the_quick_start_is_forty_clients_of_eighty_rows():
    fed = data.load("rotated-digits")
    assert fed.train.size.tolist() == [80] * 40 and fed.group_names == ("0°", "90°", "180°", "270°")


# Each skew, and in turn what is shifted before it.
CUTS = [
    pytest.param(f"{before}{skew}", marks=[pytest.mark.rotating("cut")] if before else [])
    for skew in data.SKEWS
    for before in ("", *(f"{shift}+" for shift in data.SHIFTS if shift != skew))
]


@pytest.mark.filterwarnings("ignore:.* does not use the")
@pytest.mark.parametrize("official", [False, True])
@pytest.mark.parametrize("cut", CUTS)
def test_no_example_is_trained_on_and_tested_on(cut, official, tmp_path):
    """By anybody: no other group, client or domain may train on what somebody is tested on."""
    count = 240 if official else 200
    x = np.zeros((count, 4, 4), np.uint8)
    x[:, 0, 0], x[:, 1, 1] = 255, np.arange(count)  # a negative has a corner of 0
    arrays = {"x": x, "y": np.arange(count) % 5, "client": np.arange(count) % 10}
    parts = {name: values[:200] for name, values in arrays.items()}
    if official:
        parts |= {f"test_{name}": values[200:] for name, values in arrays.items()}
    np.savez(tmp_path / "own.npz", **parts)
    options = {} if "writers" in cut else {"num_clients": 12, "label_groups": ((0, 1), (2, 3)), "without": "0,1"}
    name = f"{cut}-npz"
    options = {option: value for option, value in options.items() if option in data.options(name)}
    for share in ({}, {"test_share": 0.3}):
        fed = data.load(name, data_dir=tmp_path / "own.npz", **options, **share)
        # An image and its negative are one example.
        pixels = fed.inputs[..., 0] if fed.widened else fed.inputs
        number = np.where(pixels[:, 0, 0] == 0, 255 - pixels[:, 1, 1], pixels[:, 1, 1])
        number = number if fed.origin is None else number[fed.origin]  # of the row that is thickened or corrupted
        train, test = (
            set(np.concatenate([number[rows(split, client)] for client in range(fed.num_clients)]).tolist())
            for split in (fed.train, fed.test)
        )
        assert train and test and not train & test


@pytest.mark.parametrize("name", EMBEDDED)
def test_same_seed_same_split_and_other_seed_another(name):
    one, same, other = (data.load(name, seed=seed, held_out=0.25) for seed in (5, 5, 6))
    for field in ("rows", "start", "size"):
        for split in ("train", "test"):
            left, right = getattr(getattr(one, split), field), getattr(getattr(same, split), field)
            assert np.array_equal(left, right)
    assert np.array_equal(one.held_out, same.held_out)
    assert not np.array_equal(one.train.rows, other.train.rows) and not np.array_equal(one.held_out, other.held_out)


@pytest.mark.parametrize("name", [*data.DATASETS, "rotated+pathological-mnist", "iid-tfds:kmnist"])
def test_options_are_those_of_the_skew_and_the_source(name):
    row = data.dataset(name)
    functions = [catalog.SKEWS[row.skew][0], catalog.sources.entry(row.source).load]
    functions += [catalog.SHIFTS[shift] for shift in row.shifts]
    words = [word for function in functions for word in inspect.signature(function).parameters.values()]
    names = [word.name for word in words if word.kind is word.KEYWORD_ONLY and word.name != "seed"]
    assert len(set(names)) == len(names)  # an option means one thing
    own = {
        "pool",
        "held_out",
        "test",
        "validation",
        "stragglers",
        "attack",
        "attackers",
        "attack_scale",
        "attack_target",
    }
    own |= {"drift", "drift_change", "drift_round", "drift_rounds", "drift_share", "drift_parts", "drift_swaps"}
    own |= {"drift_matrix", "drift_every", "drift_rows", "drift_test"}
    own |= {"arrive", "leave", "arrive_rounds", "leave_rounds"}
    assert set(data.options(name)) == {
        *names,
        *own,
        *(["other"] if row.skew == "hybrid" else []),
        *(["truth", "mix", "mix_shares"] if row.shifts else []),
        *(["group_shares"] if [*row.shifts, row.skew][0] in catalog.SHIFTS else []),
    }
    assert inspect.Parameter.empty not in data.options(name).values()  # nothing that a user must say


@pytest.mark.parametrize(("share", "count"), [(0.3, 12), (0.001, 1), (0.999, 39)])
def test_held_out_is_a_share_of_the_clients(share, count):
    assert int(data.load("rotated-digits", held_out=share).held_out.sum()) == count


def test_validation_rows_are_training_rows():
    whole, apart = (data.load("rotated-digits", num_clients=8, validation=share) for share in (0.0, 0.25))
    assert whole.validation is None and apart.validation.size.tolist() == [20] * 8
    assert (apart.train.size <= 60).all()  # an image is in four groups: what one of them validates on leaves all
    assert not set(apart.validation.rows) & {*apart.train.rows, *apart.test.rows}
    assert set(apart.validation.rows) <= set(whole.train.rows)
    assert apart.test.rows.tolist() == whole.test.rows.tolist()


def test_nothing_is_held_out_unless_asked():
    assert data.load("rotated-digits").held_out is None


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("rotated-digit", {}, ("rotated-digit", "rotated-digits", "rotated")),
        ("xyz", {}, ("xyz", "digits", "mnist")),
        ("iid+rotated-digits", {}, ("iid+rotated-digits", "rotated+", "shifted+")),
        ("rotated+rotated-digits", {}, ("data", "unknown")),
        ("rotated-digits", {"angles": ("0", "90")}, ("angles", "('0', '90')")),
        ("rotated-digits", {"angles": (0, 360)}, ("angles", 360)),
        ("hybrid-digits", {"other": "fasion-mnist"}, ("other", "fasion-mnist", "fashion-mnist")),
        ("shards-digits", {"shards_per_client": 100}, ("shards_per_client", 100, 20)),
        ("quantity-digits", {"law": "pareto"}, ("law", "pareto")),
        ("writers-digits", {}, ("data", "writers-digits")),
        ("rotated-tfds:", {}, ("data", "rotated-tfds:")),
        ("rotated-digits", {"num_client": 8}, ("num_client", "num_clients", "rows_per_client")),
        ("rotated-digits", {"alpha": 1.0}, ("rotated-digits", "alpha")),
        ("rotated-digits", {"num_clients": 10}, ("num_clients", 10, 4, 8, 12)),
        ("rotated-digits", {"num_clients": 0}, ("num_clients", 0)),
        ("rotated-digits", {"rows_per_client": 200}, ("rows_per_client", 200, 143)),
        ("rotated-digits", {"rows_per_client": -1}, ("rows_per_client", -1)),
        ("rotated-digits", {"held_out": 1.0}, ("held_out", 1.0)),
        ("rotated-digits", {"validation": 1.5}, ("validation", 1.5)),
        ("rotated-digits", {"held_out": -0.1}, ("held_out", -0.1)),
        ("dirichlet-digits", {"test_share": 0.0}, ("test_share", 0.0)),
    ],
)
def test_refusals_name_argument_value_and_remedy(name, options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        data.load(name, **options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("rotated-digits", {"num_clients": "8"}, ("num_clients", 8)),
        ("dirichlet-digits", {"alpha": "0.1"}, ("alpha", 0.1)),
        (3, {}, ("name", 3)),
    ],
)
def test_refusals_of_other_types(name, options, message):
    with pytest.raises(TypeError, match=mentions(*message)):
        data.load(name, **options)


def save(path, **more):
    count = np.array([5, 1, 9, 7])
    client = np.repeat([30, 10, 20, 40], count)
    x = np.arange(len(client) * 4, dtype=np.float32).reshape(-1, 2, 2) / 8
    np.savez(path, x=x, y=np.arange(len(client)) % 3, client=client, **more)
    return client


def test_npz_makes_a_client_of_each_maker(tmp_path):
    path = tmp_path / "own.npz"
    client = save(path)
    with pytest.warns(UserWarning, match=mentions("own", "1 of 4 makers", "min_rows=0")):
        fed = data.load("npz", data_dir=path)
    assert fed.num_clients == 3 and fed.num_classes == 3 and fed.group is None  # the maker of one row is left out
    assert (fed.train.size + fed.test.size).tolist() == [9, 5, 7]  # makers in the order of their numbers
    for index, maker in enumerate([20, 30, 40]):
        own = np.concatenate([rows(fed.train, index), rows(fed.test, index)])
        assert set(client[own].tolist()) == {maker}
    assert data.load("npz", data_dir=path, num_clients=2, min_rows=1).num_clients == 2
    assert data.load("npz", data_dir=path, min_rows=1).num_clients == 4


def test_npz_groups_are_those_of_the_clients(tmp_path):
    save(tmp_path / "own.npz", group=np.repeat(["b", "a"], [6, 16]))
    fed = data.load("npz", data_dir=tmp_path / "own.npz", min_rows=1)
    assert fed.group.tolist() == [1, 0, 1, 0] and fed.group_names == ("a", "b")
    save(tmp_path / "own.npz", group=np.repeat(["b", "a"], [7, 15]))
    with pytest.raises(ValueError, match=mentions("group", "own")):
        data.load("npz", data_dir=tmp_path / "own.npz", min_rows=1)


def test_npz_without_clients_and_with_too_few_says_what_to_do(tmp_path):
    path = tmp_path / "own.npz"
    save(path)
    with pytest.raises(ValueError, match=mentions("num_clients", 3, 4)):
        data.load("npz", data_dir=path, num_clients=4)
    np.savez(path, x=np.zeros((40, 2, 2), np.float32), y=np.arange(40) % 2)
    with pytest.raises(ValueError, match=mentions("own", "client", "group")):
        data.load("npz", data_dir=path)
    assert data.load("iid-npz", data_dir=path, num_clients=5).num_clients == 5


def test_the_official_test_rows_of_the_groups_classes_are_shared(tmp_path):
    y, test_y = np.arange(40) % 4, np.arange(12) % 4
    x, test_x = (np.zeros((len(labels), 2), np.float32) for labels in (y, test_y))
    np.savez(tmp_path / "own.npz", x=x, y=y, test_x=test_x, test_y=test_y)
    options = {"num_clients": 4, "label_groups": ((0, 3), (1,))}
    fed = data.load("pathological-npz", data_dir=tmp_path / "own.npz", **options)
    for client, classes in enumerate([{0, 3}, {0, 3}, {1}, {1}]):
        assert set(fed.labels[rows(fed.test, client)].tolist()) == classes
        assert set(fed.labels[rows(fed.train, client)].tolist()) == classes
        assert rows(fed.test, client).min() >= 40 > rows(fed.train, client).max()
    own = data.load("pathological-npz", data_dir=tmp_path / "own.npz", **options, test_share=0.2)
    assert own.test.rows.max() < 40


def test_available_says_where(tmp_path):
    found = data.available(tmp_path)
    assert set(found) == set(data.DATASETS)
    assert found["rotated-digits"] == "embedded" and found["rotated-mnist"] is None and found["npz"] is None
    save(tmp_path / "own.npz")
    assert data.available(tmp_path / "own.npz")["npz"] == str(tmp_path / "own.npz")


@needs_mnist
@pytest.mark.parametrize(("num_clients", "rows_per_client"), [(1200, 200), (4800, 50)])
def test_rotated_mnist_uses_every_image_under_every_rotation(num_clients, rows_per_client):
    options = {"num_clients": num_clients, "rows_per_client": rows_per_client}
    fed = data.load("rotated-mnist", data_dir=FILES / "mnist", **options)
    assert fed.train.size.tolist() == [rows_per_client] * num_clients
    for order in np.asarray(fed.train.rows).reshape(4, -1):
        assert np.array_equal(np.sort(order), np.arange(60_000))
    assert fed.test.rows.tolist() == list(range(60_000, 70_000)) and set(fed.test.size.tolist()) == {10_000}
    # What it costs: one MNIST, and an int32 for each row of each rotation.
    assert fed.inputs.nbytes == 70_000 * 784 and fed.train.rows.nbytes == 4 * 240_000


@needs_mnist
def test_writers_of_mnist_are_employees_and_students():
    fed = data.load("writers-mnist", data_dir=FILES)
    sizes = fed.train.size + fed.test.size
    assert fed.num_clients == 539 and (sizes.min(), np.median(sizes), sizes.max()) == (19, 116, 131)
    assert np.bincount(fed.group).tolist() == [289, 250] and fed.group_names == ("employees", "students")
    assert [int(sizes[fed.group == group].sum()) for group in (0, 1)] == [30_950, 29_050]


@needs_mnist
def test_every_skew_of_mnist_loads_with_its_defaults():
    names = [name for name, row in data.DATASETS.items() if row.source == "mnist"]
    assert len(names) == len(data.SKEWS)
    for name in names:
        other = {"other": "negative"} if name == "hybrid-mnist" else {}
        fed = data.load(name, data_dir=FILES, **other)
        assert fed.name == name and fed.train.size.min() > 0 and fed.test.size.min() > 0


def test_own_files_are_those_of_both_domains(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.zeros((4, 8, 8), np.uint8), y=np.arange(4) % 2)
    for other, files in (("npz", [tmp_path / "own.npz"]), ("negative", []), (None, [])):
        assert catalog.user_files("hybrid-digits", tmp_path / "own.npz", other) == files
    assert catalog.user_files("hybrid-npz", tmp_path / "own.npz", "npz") == [tmp_path / "own.npz"]


def test_sources_by_their_own_name_and_saved_federations_take_shifts(tmp_path):
    labels, client = np.arange(96) % 4, np.arange(96) // 8
    np.savez(
        tmp_path / "my.npz", x=np.random.default_rng(0).integers(0, 256, (96, 4, 4), np.uint8), y=labels, client=client
    )
    options = {"angles": (0, 90), "swaps": "none,0:1", "seed": 2}
    short, long = (
        data.load(f"rotated+swapped+{name}", data_dir=tmp_path / "my.npz", **options) for name in ("npz", "writers-npz")
    )
    assert digest(short) == digest(long) and short.name == long.name
    stored.save(data.load("npz", data_dir=tmp_path / "my.npz", seed=2), tmp_path / "saved")
    saved = data.load("rotated+swapped+saved", data_dir=tmp_path / "saved", **options)
    assert digest(saved) == digest(short)
    assert catalog.user_checksum("rotated+saved", tmp_path / "saved") == catalog.user_checksum(
        "saved", tmp_path / "saved"
    )
    known = catalog.options("swapped+saved")
    assert {"swaps", "mix", "group_shares", "truth", "held_out"} <= known.keys() and "pool" not in known
    for name in ("rotated+rotated+saved", "iid+saved", "rotated+iid-saved"):
        with pytest.raises(ValueError, match=mentions(name)):
            data.load(name)
    with pytest.raises(ValueError, match=mentions("swapped+mnist", "swapped+iid-mnist")):
        data.load("swapped+mnist")
