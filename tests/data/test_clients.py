"""Packed clients: a batch against plain NumPy, and what `federate` refuses."""

from dataclasses import fields, is_dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfl import data
from jaxfl.data import conditions, images
from jaxfl.data.clients import array_fields
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


def test_shared_split_stores_a_part_once():
    split = data.Split.shared([np.array([4, 5]), np.array([6])], np.array([0, 1, 0, 0]))
    assert split.rows.tolist() == [4, 5, 6]
    assert split.start.tolist() == [0, 2, 0, 0] and split.size.tolist() == [2, 1, 2, 2] and split.max_size == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": LABELS[:-1]}, r"labels must be \[12\]"),
        ({"labels": LABELS.astype(float)}, "labels must be integers, got float64"),
        ({"labels": np.where(np.arange(12) == 7, 4, LABELS)}, r"labels must be in 0\.\.3 .* got 4 in row 7"),
        ({"labels": np.where(np.arange(12) == 2, -1, LABELS)}, r"got -1 in row 2"),
        (
            {"inputs": IMAGES.astype(np.int32)},
            r"inputs must be uint8, float32 or float64, or integers \[P\] .*, got int32 of shape",
        ),
        ({"train": [np.array([12]), *TRAIN[1:]]}, "train must index the 12 rows of inputs, got row 12"),
        ({"test": [np.array([-1]), *TEST[1:]]}, "test must index .* got row -1"),
        ({"test": TEST[:-1]}, "test must have one entry for each of the 4 clients of train, got 3"),
        ({"group": np.zeros(3, int)}, "group must have one entry for each of the 4 clients"),
        ({"inputs": IMAGES[:, :4], "rotation": np.arange(4)}, "rotation needs square images"),
    ],
)
def test_federate_refuses(change, message):
    arguments = {"inputs": IMAGES, "labels": LABELS, "train": TRAIN, "test": TEST, "num_classes": 4, **change}
    with pytest.raises(ValueError, match=message):
        data.federate(**arguments)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_federate_names_the_row_that_is_not_finite(bad):
    inputs = np.zeros((12, 3), np.float32)
    inputs[5, 1] = bad
    with pytest.raises(ValueError, match="NaN or infinity in row 5"):
        data.federate(inputs, LABELS, TRAIN, TEST, num_classes=4)


def full_federation():
    """A federation that has every array there is, none of them with N = 4 rows unless it belongs to the clients."""
    fed = conditions.attack(
        conditions.straggle(
            data.federate(
                IMAGES,
                LABELS,
                TRAIN,
                [TEST[0], np.array([9, 1]), *TEST[2:]],
                num_classes=4,
                rotation=np.array([0, 1, 2, 3]),
                tilt=np.array([0.0, 5.0, 10.0, 15.0]),
                label_shift=np.array([0, 1, 2, 3]),
                group=np.array([0, 1, 0, 1]),
                held_out=np.array([False, True, False, False]),
                mean=np.array([100.0, 20.0]),
                std=np.array([50.0, 4.0]),
            ),
            0.5,
        ),
        "label-flip",
        0.5,
    )
    return replace(fed, test=replace(fed.test, flipped=np.array([False, True, False, True])))


def parts(part, prefix=""):
    """Every field of a federation that JAX sees, down to the arrays: name, field, value."""
    for field in fields(part):
        value = getattr(part, field.name)
        if is_dataclass(value):
            yield from parts(value, f"{prefix}{field.name}.")
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
    first, _, rest = name.partition(".")
    part = getattr(fed, first)
    return replace(fed, **{first: replace(part, **{rest: other(getattr(part, rest))}) if rest else other(part)})


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("name", list(full_federation().per_client()))
def test_batches_depend_on_what_is_seen_and_on_nothing_that_is_known(name, split):
    def batch(fed):
        return batch_of(fed.on_device(), split, np.int32(2), np.arange(4, dtype=np.int32))

    fed = full_federation()
    before, after = batch(fed), batch(changed_at(fed, name))
    same = all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert same == (name not in fed.per_client(split))


def test_a_subset_is_the_federation_of_these_clients_alone():
    fed, ids = full_federation(), [3, 2, 2]
    few = fed.subset(ids)
    assert few.num_clients == 3 and (few.train.max_size, few.test.max_size) == (4, 2)
    assert fed.subset([1, 2]).train.max_size == 2
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
    with pytest.raises(ValueError, match="ids must be clients from 0 to 3, got 4"):
        fed.subset([0, 4])
    assert fed.subset([]).num_clients == 0
