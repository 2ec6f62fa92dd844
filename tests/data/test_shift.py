"""Shifts: groups as declared, own permutations, one set of test rows apart from training rows."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxfl import data
from tests.messages import mentions
from tests.problems import batch_of

RNG = np.random.Generator(np.random.PCG64(1))


def source(rows=40, test_rows=0):
    """Images whose pixels name their row."""
    total = rows + test_rows
    images = np.arange(total, dtype=np.float32)[:, None] * np.ones(4, np.float32)
    images = images.reshape(total, 2, 2) + np.array([[0.0, 0.1], [0.2, 0.3]], np.float32)
    labels = np.arange(total) % 10
    test = (images[rows:], labels[rows:]) if test_rows else (None, None)
    return data.Source("made", images[:rows], labels[:rows], 10, *test)


def rows_of(split, client):
    return split.rows[split.start[client] : split.start[client] + split.size[client]]


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(2, 60),
    members=st.integers(1, 5),
    official=st.booleans(),
    skew=st.sampled_from([data.rotated, data.shifted]),
    seed=st.integers(0, 1000),
)
def test_groups_train_on_rows_of_their_own_order_and_all_test_on_the_same_others(rows, members, official, skew, seed):
    usable = rows if official else max(1, int(0.8 * rows))
    if usable < members:
        return
    fed = skew(source(rows, 7 if official else 0), num_clients=4 * members, seed=seed)
    assert fed.group.tolist() == np.repeat(np.arange(4), members).tolist()
    tests = {tuple(rows_of(fed.test, client).tolist()) for client in range(4 * members)}
    assert len(tests) == 1 and len(test := tests.pop()) == (7 if official else rows - usable)
    for group in range(4):
        clients = np.flatnonzero(fed.group == group)
        train = np.concatenate([rows_of(fed.train, client) for client in clients]).tolist()
        assert len(set(train)) == len(train) == usable // members * members and max(train) < rows
        assert not set(train) & set(test)


def test_every_group_has_its_own_permutation_of_all_rows():
    fed = data.rotated(source(40, 5), num_clients=8, rows_per_client=20)
    orders = [np.concatenate([rows_of(fed.train, 2 * group + i) for i in (0, 1)]) for group in range(4)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(40))
    assert len({tuple(order.tolist()) for order in orders}) == 4


def test_the_official_test_set_is_stored_once():
    fed = data.rotated(source(40, 5), num_clients=8)
    assert fed.test.rows.tolist() == [40, 41, 42, 43, 44] and fed.test.size.tolist() == [5] * 8
    assert len(fed.inputs) == 45


def test_rotated_clients_see_rot90_of_their_group():
    origin = source(40)
    fed = jax.device_put(data.rotated(origin, num_clients=4, rows_per_client=3, angles=(0, 90, 180, 270)))
    for client in range(4):
        for split in ("train", "test"):
            x = batch_of(fed, split, np.int32(client), np.arange(3)).x
            rows = np.asarray(rows_of(getattr(fed, split), client))[:3]
            np.testing.assert_array_equal(x, np.stack([np.rot90(origin.inputs[row], client) for row in rows]))


def test_shifted_clients_see_the_shifted_labels_in_training_and_test():
    origin = source(40)
    fed = jax.device_put(data.shifted(origin, num_clients=6, rows_per_client=3, shifts=(0, 4, 9)))
    for client in range(6):
        for split in ("train", "test"):
            y = batch_of(fed, split, np.int32(client), np.arange(3)).y
            rows = np.asarray(rows_of(getattr(fed, split), client))[:3]
            np.testing.assert_array_equal(y, (origin.labels[rows] + (0, 4, 9)[client // 2]) % 10)


def test_same_seed_same_federation_other_seed_another():
    one, same, other = (data.rotated(source(), num_clients=4, rows_per_client=5, seed=seed) for seed in (1, 1, 2))
    assert one.train.rows.tolist() == same.train.rows.tolist() != other.train.rows.tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: data.rotated(source(), num_clients=6), (6, 4, 8)),
        (lambda: data.rotated(source(), num_clients=8, rows_per_client=20), (20, 16, 32, 8)),
        (lambda: data.rotated(source(40, 2), num_clients=8, rows_per_client=21), (21, 20)),
        (lambda: data.rotated(source(), num_clients=200), (32, 8, 50)),
        (lambda: data.shifted(source(), num_clients=4, test_share=1.0), ("test_share", 1.0)),
        (lambda: data.rotated(source(), num_clients=4, angles=(0, 360)), ("angles", "(0, 360)")),
        (
            lambda: data.rotated(source(), num_clients=4, angles=90),
            ("angles", 90, "[90]"),
        ),
        (lambda: data.shifted(source(), num_clients=4, shifts=3), ("shifts", 3, "[3]")),
        (lambda: data.shifted(source(), num_clients=4, shifts=()), ("shifts", "()")),
        (lambda: data.shifted(source(), num_clients=4, shifts=(0, 10)), ("(0, 10)", 10)),
        (lambda: data.shifted(source(), num_clients=4, shifts=(0, 1, 1.5)), ("shifts", "(0, 1, 1.5)")),
    ],
)
def test_refusals_name_argument_value_and_remedy(call, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        call()


def test_rotation_needs_square_images():
    flat = data.Source("flat", RNG.standard_normal((20, 6)).astype(np.float32), np.arange(20) % 2, 2)
    with pytest.raises(ValueError, match=mentions("rotation", "(20, 6)")):
        data.rotated(flat, num_clients=4)
