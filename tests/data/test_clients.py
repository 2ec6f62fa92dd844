"""Packed clients: a batch against plain NumPy, and what `federate` refuses."""

from dataclasses import fields, is_dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxfl import data
from jaxfl.data import clients, conditions, describe, divide, images
from jaxfl.data.clients import Drift, Ranges, Speeds, Trace, Trigger, array_fields, get_field, replace_field
from tests.messages import mentions
from tests.problems import batch_of

RNG = np.random.Generator(np.random.PCG64(0))
IMAGES = RNG.integers(0, 256, (12, 5, 5, 2), dtype=np.uint8)
LABELS = RNG.integers(0, 4, 12)
TRAIN = [np.array([3, 1, 2]), np.array([], int), np.array([7, 8]), np.array([0, 11, 5, 4])]
TEST = [np.array([6]), np.array([9]), np.array([9, 10]), np.array([], int)]


def federation(**options):
    return data.federate(IMAGES, LABELS, TRAIN, TEST, **{"num_classes": 4, **options})


def test_batch_is_rot90_label_shift_and_normalisation_of_the_clients_own_rows():
    rotation, shift = np.array([3, 0, 1, 2]), np.array([0, 1, 2, 3])
    mean, std = np.array([100.0, 20.0]), np.array([50.0, 4.0])
    fed = jax.device_put(federation(rotation=rotation, label_shift=shift, mean=mean, std=std))
    for client in (0, 2, 3):
        positions = np.arange(len(TRAIN[client]))[::-1].copy()  # any order, not only the stored one
        batch = batch_of(fed, "train", np.int32(client), positions.astype(np.int32))
        rows = TRAIN[client][positions]
        expected = np.stack([np.rot90(image, rotation[client]) for image in IMAGES[rows]])
        np.testing.assert_allclose(batch.x, (expected - mean) / std, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(batch.y, (LABELS[rows] + shift[client]) % 4)
        assert batch.x.dtype == jnp.float32 and batch.y.dtype == jnp.int32 and bool(batch.mask.all())


def test_rotation_under_vmap_gives_each_client_its_own_angle():
    fed = jax.device_put(federation(rotation=np.arange(4)))
    positions = np.zeros((4, 1), np.int32)
    x = jax.jit(jax.vmap(lambda client, where: fed.batch(fed.train, client, where).x))(np.arange(4), positions)
    for client in (0, 2, 3):
        image = IMAGES[TRAIN[client][0]]
        np.testing.assert_allclose(x[client, 0], np.rot90(image, client) / np.float32(255), rtol=1e-6)


def test_four_quarter_turns_are_none():
    image = turned = jnp.asarray(IMAGES)
    rotate = jax.jit(images.rotate)
    for _ in range(4):
        turned = rotate(turned, jnp.int32(1))
    np.testing.assert_array_equal(turned, image)
    once = rotate(image, jnp.int32(1))
    assert not np.array_equal(once, image)
    np.testing.assert_array_equal(rotate(once, jnp.int32(3)), image)


def test_positions_beyond_the_client_are_masked_and_a_client_without_rows_is_all_padding():
    fed = jax.device_put(federation())
    for client, rows in enumerate(TRAIN):
        batch = batch_of(fed, "train", np.int32(client), np.arange(5, dtype=np.int32))
        np.testing.assert_array_equal(batch.mask, np.arange(5) < len(rows))
        assert np.isfinite(batch.x).all()


def test_floats_without_mean_are_left_alone_in_their_precision():
    inputs = RNG.standard_normal((12, 3)).astype(np.float32)
    fed = jax.device_put(data.federate(inputs, LABELS, TRAIN, TEST, num_classes=4))
    batch = batch_of(fed, "train", np.int32(0), np.arange(3))
    np.testing.assert_array_equal(batch.x, inputs[TRAIN[0]])


@pytest.mark.parametrize(("given", "expected"), [({"mean": 2.0}, (2.0, 1.0)), ({"std": 4.0}, (0.0, 4.0))])
def test_floats_are_normalised_by_the_one_that_is_given(given, expected):
    inputs = RNG.standard_normal((12, 3)).astype(np.float32)
    fed = jax.device_put(data.federate(inputs, LABELS, TRAIN, TEST, num_classes=4, **given))
    batch = batch_of(fed, "train", np.int32(0), np.arange(3))
    np.testing.assert_allclose(batch.x, (inputs[TRAIN[0]] - expected[0]) / expected[1], rtol=1e-6)


def test_shared_split_stores_a_part_once():
    split = data.Split.shared([np.array([4, 5]), np.array([6])], np.array([0, 1, 0, 0]))
    assert split.rows.tolist() == [4, 5, 6]
    assert split.start.tolist() == [0, 2, 0, 0] and split.size.tolist() == [2, 1, 2, 2] and split.max_size == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": LABELS[:-1]}, ("labels", "[12]", "(11,)")),
        (
            {"labels": LABELS.astype(float)},
            ("num_classes", 4, 1),
        ),
        ({"labels": LABELS.astype(str)}, ("labels", "[12]", "[12, L]", "np.unique")),
        ({"labels": LABELS > 0}, ("labels", "bool", "[12, L]")),
        ({"labels": np.full((12, 2), np.nan), "num_classes": None}, ("labels", "NaN", "row 0")),
        ({"labels": np.full((12, 3), 3)}, ("(12, 3)", "(12, 5, 5, 2)")),
        ({"labels": np.full((12, 5), -2)}, ("0..3", -2, -1, "row 0")),
        ({"num_classes": None}, ("num_classes", "given")),
        ({"num_classes": -3}, ("num_classes", 1, -3)),
        (
            {"labels": LABELS / 7, "num_classes": None, "label_shift": np.arange(4)},
            ("label_shift", "classes", "float32"),
        ),
        ({"labels": np.where(np.arange(12) == 7, 4, LABELS)}, ("labels", "0..3", 4, "row 7")),
        ({"labels": np.where(np.arange(12) == 2, -1, LABELS)}, ("labels", -1, "row 2")),
        (
            {"inputs": IMAGES.astype(np.int32)},
            ("inputs", "[P]", "int32"),
        ),
        ({"train": [], "test": []}, ("train", "client", "none")),
        (
            {"train": [*TRAIN[:3], np.arange(12) > 4]},
            ("train", "(12,)", "client 3", "np.flatnonzero"),
        ),
        ({"test": [np.array([0.5]), *TEST[1:]]}, ("test", "float64", "(1,)", "client 0")),
        ({"test": [6, *TEST[1:]]}, ("test", "()", "client 0")),
        ({"std": 0}, ("std", 0.0)),
        ({"mean": [0, np.nan]}, ("mean", "[0.0, nan]")),
        ({"mean": [0, 1, 2]}, ("mean", 3)),
        ({"train": [np.array([12]), *TRAIN[1:]]}, ("train", "12 rows", "row 12")),
        ({"test": [np.array([-1]), *TEST[1:]]}, ("test", "row -1")),
        ({"test": TEST[:-1]}, ("test", 3, 4)),
        ({"group": np.zeros(3, int)}, ("group", 4)),
        ({"group": list("abba")}, ("group", "<U1", "np.unique")),
        ({"group": [0, -1, 1, 0]}, ("group", "-1 to 1")),
        ({"group": [0, 1, 2, 0], "group_names": ["a", "b"]}, ("group", "0 to 2")),
        ({"train": replace(clients.Split.pack(TRAIN), max_size=1)}, ("train", "max_size")),
        ({"test": replace(clients.Split.pack(TEST), start=np.arange(4) + 9)}, ("test", "range")),
        ({"held_out": np.array(["True", "False"] * 2)}, ("held_out", "<U5", "values")),
        (
            {"held_out": np.array([1.0, 0, 0, 1])},
            ("held_out", "float64"),
        ),
        (
            {"held_out": np.array([0, 1, 2, 3])},
            ("held_out", "int64", "np.isin"),
        ),
        ({"group": [0, 0.5, 1, 1]}, ("group", "float64", "astype(int)")),
        ({"rotation": [0, 90, 180, 270]}, ("rotation", 270, "tilt")),
        ({"tilt": [0, 1, np.nan, 1]}, ("tilt", "NaN")),
        ({"tilt": list("abba")}, ("tilt", "<U1")),
        ({"inputs": IMAGES * 1e300}, ("inputs", "float32", "2.55e+302")),
        ({"client_names": ["ann"]}, ("client_names", 4)),
        ({"inputs": IMAGES[:, :4], "rotation": np.arange(4)}, ("rotation", "(12, 4, 5, 2)")),
    ],
)
def test_federate_refuses(change, message):
    arguments = {"inputs": IMAGES, "labels": LABELS, "train": TRAIN, "test": TEST, "num_classes": 4, **change}
    with pytest.raises(ValueError, match=mentions(*message)):
        data.federate(**arguments)


def test_classes_are_a_whole_number():
    with pytest.raises(TypeError, match=mentions("num_classes", 4.0)):
        federation(num_classes=4.0)


def test_a_client_tested_on_some_of_its_training_rows_is_named():
    inputs, labels = np.eye(6, dtype=np.float32), np.arange(6) % 2
    with pytest.warns(UserWarning, match=mentions("2 of 3 clients", "client 1", "row 3", "train", "test")) as seen:
        data.federate(inputs, labels, [[0, 1], [2, 3], [4, 5]], [[], [3, 4, 0], [5]], num_classes=2)
    assert seen[0].filename == __file__
    rows = [[0, 1], [2, 3], [3, 2]]
    data.federate(inputs, labels, rows, rows, num_classes=2)  # twice, on purpose: a warning would fail
    data.federate(inputs, labels, rows, [[2], [0, 1], []], num_classes=2, check_repeats=False)  # another's rows


def test_a_row_that_a_client_has_twice_is_told():
    inputs, labels = np.arange(12, dtype=np.float32).reshape(6, 2), np.arange(6) % 2
    for name, lists in (("train", [[0], [1, 2, 1]]), ("test", [[], [3, 3]])):
        rows = {"train": [[0], [1]], "test": [[4], [5]]} | {name: lists}
        with pytest.warns(UserWarning, match=mentions(name, "1 of 2 clients", "client 1", f"row {lists[1][-1]}")):
            data.federate(inputs, labels, **rows, num_classes=2)
        data.federate(inputs, labels, **rows, num_classes=2, check_repeats=False)  # a warning would fail
    data.federate(inputs, labels, [[0, 1], [1, 0]], [[4], [4]], num_classes=2)  # another's rows


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_federate_names_the_row_that_is_not_finite(bad):
    inputs = np.zeros((12, 3), np.float32)
    inputs[5, 1] = bad
    with pytest.raises(ValueError, match=mentions("inputs", "NaN", "row 5")):
        data.federate(inputs, LABELS, TRAIN, TEST, num_classes=4)


@pytest.mark.parametrize(
    ("labels", "inputs", "kind", "count", "dtype"),
    [
        (RNG.normal(size=12), IMAGES, "regression", 1, np.float32),
        (RNG.normal(size=(12, 3)), RNG.normal(size=(12, 2)), "regression", 3, np.float64),
        (RNG.integers(0, 2, (12, 3)), IMAGES, "multilabel", 3, bool),
        (RNG.integers(0, 2, (12, 3)) > 0, np.zeros((12, 3), int), "multilabel", 3, bool),
        (RNG.integers(0, 2, (12, 3)), RNG.integers(-7, 0, (12, 3)), "multilabel", 3, bool),
        (RNG.integers(-1, 2, (12, 3)), RNG.integers(0, 7, (12, 3)), "next_token", 7, np.int32),
        (RNG.integers(0, 2, (12, 3)), RNG.integers(0, 7, (12, 3)), "next_token", 7, np.int32),
    ],
)
def test_the_kind_of_labels_is_their_type_and_shape(labels, inputs, kind, count, dtype, tmp_path):
    fed = data.federate(inputs, labels, TRAIN, TEST, num_classes=7 if kind == "next_token" else None)
    assert (fed.kind, fed.num_classes, fed.labels.dtype) == (kind, count, dtype)
    batch = jax.device_put(fed).batch(fed.train, jnp.int32(2), jnp.arange(2))
    np.testing.assert_array_equal(batch.y, jnp.asarray(fed.labels)[np.array([7, 8])])
    assert f" {count} " in repr(fed) and describe.describe(fed).kind == kind
    data.stored.save(fed, tmp_path / "a")
    again = data.stored.load(tmp_path / "a")
    assert (again.kind, again.num_classes) == (kind, count)
    np.testing.assert_array_equal(again.labels, fed.labels)
    for needs in (describe.label_counts, data.relabel, lambda fed: conditions.attack(fed, "label-flip", 0.5)):
        with pytest.raises(ValueError, match=mentions("labels", "classes", fed.labels.dtype)):
            needs(fed)
    with pytest.raises(ValueError, match=mentions("label_counts", fed.labels.dtype, "data.train.size")):
        describe.label_counts(fed)
    for skew in ("dirichlet", "shards", "pathological", "dominant", "missing", "downsampled"):
        more = {"alpha": 1.0} if skew == "dirichlet" else {"beta": 0.5} if skew == "dominant" else {}
        with pytest.raises(ValueError, match=mentions(skew, fed.labels.dtype)):
            getattr(data.partition, skew)(fed.labels, 2, **more)


def test_what_kind_a_saved_federation_has_is_checked(tmp_path):
    labels = RNG.integers(-1, 7, (12, 3))
    fed = data.federate(RNG.integers(0, 7, (12, 3)), labels, TRAIN, TEST, num_classes=7)
    wrong = {"below": np.full((12, 3), -2, np.int32), "short": labels[:, :2].astype(np.int32), "flags": labels > 0}
    for name, values in wrong.items():
        data.stored.save(replace(fed, labels=values), tmp_path / name)
        with pytest.raises(ValueError, match=mentions(name, "labels")):
            data.stored.load(tmp_path / name)


def full_federation():
    """A federation that has every array there is, none of them with N = 4 rows unless it belongs to the clients."""
    fed = conditions.attack(
        conditions.straggle(
            data.federate(
                np.concatenate([IMAGES, 255 - IMAGES[..., :1]], -1),
                LABELS,
                TRAIN,
                [TEST[0], np.array([9, 1]), *TEST[2:]],
                num_classes=4,
                rotation=np.array([0, 1, 2, 3]),
                tilt=np.array([0.0, 5.0, 10.0, 15.0]),
                label_shift=np.array([0, 1, 2, 3]),
                label_map=np.array([[1, 2, 3, 0], [0, 1, 2, 3], [3, 2, 1, 0], [2, 3, 0, 1], [1, 0, 3, 2]]),
                causes={"labels": np.array([0, 1, 2, 3]), "rotation": np.array([0, 1, 0, 1])},
                group=np.array([0, 1, 0, 1]),
                held_out=np.array([False, True, False, False]),
                client_weights=np.array([1.0, 0.5, 2.0, 0.0]),
                mean=np.array([100.0, 20.0, 50.0]),
                std=np.array([50.0, 4.0, 10.0]),
                check_repeats=False,  # a row is trained on by another client
            ),
            0.5,
        ),
        "label-flip",
        0.5,
    )
    flipped = np.array([False, True, False, True])
    apart = data.Split.pack([np.array([0]), np.array([], int), np.array([10, 6, 9]), np.array([2])])
    numbers, nobody = np.arange(4, dtype=np.int32), np.zeros(4, bool)
    ranges, table = Ranges(numbers[:, None], numbers[:, None]), np.zeros((4, 4), np.int32)
    views = {"colour": numbers, "class_rotation": table, "class_colour": table}
    views |= {"stroke": 0 * numbers, "corruption": 0 * numbers}
    return replace(
        fed,
        **views,
        origin=np.arange(len(IMAGES), dtype=np.int32),
        train=replace(fed.train, triggered=0 * numbers),
        test=replace(fed.test, flipped=flipped, triggered=0 * numbers),
        validation=replace(apart, flipped=flipped, triggered=0 * numbers),
        trigger=Trigger(np.uint8(255), np.int32(1), 1),
        rate=np.float32(0.5),
        absent=nobody,
        speeds=Speeds(*(np.float32([1, 2, 3, 4]) for _ in range(4))),
        trace=Trace(
            now=np.zeros(3, np.int32),
            start=numbers,
            size=numbers + 1,
            time=np.zeros((5, 2), np.int32),
            available=np.ones(5, bool),
            **{name: np.ones(5, np.float32) for name in ("flops", "up", "down")},
            periods=np.ones((1, 2), np.int32),
            watts=np.ones(4, np.float32),
        ),
        most_steps=9 + numbers,
        drift=Drift(
            np.array([5], np.int32),
            *(one[:, None] for one in (numbers, 5.0 * numbers, numbers, numbers, nobody, nobody)),
            *(ranges, ranges, ranges),
            causes={"labels": numbers[:, None]},
            **{name: values[:, None] for name, values in views.items()},
        ),
    )


def parts(part, prefix=""):
    """Every field of a federation that JAX sees, down to the arrays: name, field, value."""
    for field in fields(part):
        value = getattr(part, field.name)
        if is_dataclass(value):
            yield from parts(value, f"{prefix}{field.name}.")
        elif isinstance(value, dict):
            yield from ((f"{prefix}{field.name}.{name}", field, one) for name, one in value.items())
        elif field.metadata.get("pytree_node", True):
            yield f"{prefix}{field.name}", field, value


def test_every_array_says_whether_it_has_a_row_for_each_client():
    fed = full_federation()
    for name, field, value in parts(fed):
        assert value is not None, f"{name}: give it a value in full_federation"
        assert "per_client" in field.metadata, f"{name} must be declared SHARED, SEEN or KNOWN"
        assert field.metadata["per_client"] == (np.shape(value)[:1] == (fed.num_clients,)), name
    assert [name for name, _, _ in parts(fed)] == [name for name, _ in array_fields(fed)]
    assert set(fed.per_client()) == {name for name, field, _ in parts(fed) if field.metadata["per_client"]}
    assert len(jax.tree.leaves(fed)) == len(list(parts(fed)))


def other(values):
    """One value of a list changed: of client 2."""
    changed = np.array(values)
    changed[2] = ~changed[2] if changed.dtype == bool else changed[2] + 1
    return changed


def changed_at(fed, name):
    return replace_field(fed, name, other(get_field(fed, name)))


@pytest.mark.parametrize("split", clients.SPLITS)
@pytest.mark.parametrize("name", list(full_federation().per_client()))
def test_batches_depend_on_what_is_seen_and_on_nothing_that_is_known(name, split):
    def batch(fed):
        return batch_of(fed.on_device(), split, np.int32(2), np.arange(4, dtype=np.int32))

    fed = full_federation()
    before, after = batch(fed), batch(changed_at(fed, name))
    same = all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert same == (name not in fed.per_client(split))


def test_a_subset_is_the_federation_of_these_clients_alone():
    fed, ids = replace(full_federation(), drift=None), [3, 2, 2]
    few = fed.subset(ids)
    assert few.num_clients == 3 and (few.train.max_size, few.test.max_size) == (4, 2)
    assert fed.subset([1, 2]).train.max_size == 2
    assert few.validation.max_size == 3 and fed.subset([0, 3]).validation.max_size == 1
    for name, value in few.per_client().items():
        np.testing.assert_array_equal(value, fed.per_client()[name][np.array(ids)], err_msg=name)
    positions = np.arange(4, dtype=np.int32)
    one, all_of_them = few.on_device(), fed.on_device()
    for place, client in enumerate(ids):
        for mine, its in zip(
            batch_of(one, "train", np.int32(place), positions),
            batch_of(all_of_them, "train", np.int32(client), positions),
            strict=True,
        ):
            np.testing.assert_array_equal(mine, its)
    with pytest.raises(ValueError, match=mentions("ids", 4, 3)):
        fed.subset([0, 4])
    with pytest.raises(ValueError, match=mentions("ids", "bool", "(4,)")):
        fed.subset(np.arange(4) > 1)
    assert fed.subset([]).num_clients == 0
    assert replace(fed, client_names=tuple("abcd")).subset(ids).client_names == ("d", "c", "c")


def own_rows(split):
    return [split.rows[start : start + size].tolist() for start, size in zip(split.start, split.size, strict=True)]


def test_rows_set_apart_are_a_share_of_each_clients_training_rows_and_test_rows_stay():
    sizes = [20, 1, 0, 2, 7]
    parts = np.split(np.arange(30), np.cumsum(sizes)[:-1])
    pictures = RNG.integers(0, 256, (40, 5, 5, 2), dtype=np.uint8)
    fed = data.federate(pictures, np.arange(40) % 4, parts, [np.arange(30, 40)] * 5, num_classes=4)
    apart = divide.set_apart(fed, 0.2, seed=3)
    assert apart.validation.size.tolist() == [4, 0, 0, 1, 1]
    for own, left, validated in zip(parts, own_rows(apart.train), own_rows(apart.validation), strict=True):
        assert sorted(left + validated) == own.tolist() and left == sorted(left)
    assert (apart.train.max_size, apart.validation.max_size) == (16, 4)
    assert apart.test is fed.test and apart.inputs is fed.inputs
    same, other = (divide.set_apart(fed, 0.2, seed=seed).validation.rows.tolist() for seed in (3, 4))
    assert same == apart.validation.rows.tolist() != other


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 99), share=st.floats(0.05, 0.9))
def test_nobody_trains_on_a_row_that_somebody_validates_on(seed, share):
    rng = np.random.default_rng(seed)
    parts = [rng.choice(12, size, replace=False) for size in (6, 0, 9)]
    split = data.Split.shared(parts, np.array([0, 1, 2, 0]))  # 0 and 3 share all rows, with 2 some
    fed = data.federate(IMAGES, LABELS, split, [[]] * 4, num_classes=4)
    apart = divide.set_apart(fed, share)
    train, validation = own_rows(apart.train), own_rows(apart.validation)
    assert not set(sum(train, [])) & set(sum(validation, []))
    assert (train[0], validation[0]) == (train[3], validation[3])
    for own, left, validated in zip(own_rows(fed.train), train, validation, strict=True):
        assert set(left) | set(validated) <= set(own)
        assert len(validated) == min(max(round(len(own) * share), 1), max(len(own) - 1, 0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: divide.set_apart(federation(), 1.0), ("validation", 1.0)),
        (lambda: divide.set_apart(federation(), float("nan")), ("validation", "nan")),
        (lambda: divide.set_apart(full_federation(), 0.1), ("validation", "data")),
        (lambda: divide.set_apart(federation().subset([1]), 0.1), ("validation", "2 training rows")),
    ],
)
def test_what_cannot_be_set_apart_is_refused(make, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        make()


def test_names_are_text_whatever_they_were():
    names = {"class_names": np.arange(2), "group_names": [0, 90], "client_names": np.array([7])}
    fed = data.federate(np.zeros((2, 3), np.float32), np.arange(2), [[0]], [[1]], num_classes=2, group=[1], **names)
    assert (fed.class_names, fed.group_names, fed.client_names) == (("0", "1"), ("0", "90"), ("7",))
