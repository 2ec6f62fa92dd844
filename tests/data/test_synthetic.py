"""Planted problems: what is said to be true of them is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxfl.data import synthetic
from tests.messages import mentions


def rows(split, client):
    return split.rows[split.start[client] : split.start[client] + split.size[client]]


@settings(max_examples=20, deadline=None)
@given(groups=st.integers(1, 5), classes=st.integers(2, 4), ragged=st.booleans(), seed=st.integers(0, 99))
def test_labels_follow_the_groups_weights(groups, classes, ragged, seed):
    fed = synthetic.clustered_linear(9, groups, 12, 6, classes, seed=seed, ragged=ragged)
    weights = synthetic.planted_weights(groups, 6, classes, seed=seed)
    assert fed.group.tolist() == [client % groups for client in range(9)]
    for client in range(9):
        for split in (fed.train, fed.test):
            own = rows(split, client)
            np.testing.assert_array_equal(
                (fed.inputs[own].astype(np.float64) @ weights[fed.group[client]]).argmax(1), fed.labels[own]
            )
    assert sorted([*fed.train.rows.tolist(), *fed.test.rows.tolist()]) == list(range(len(fed.inputs)))


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_weights_are_corners_of_a_regular_simplex(groups):
    corners = synthetic.planted_weights(groups, 6, 3).reshape(groups, -1)
    gram = corners @ corners.T / (corners[0] @ corners[0])
    expected = np.full((groups, groups), -1 / max(1, groups - 1))
    np.fill_diagonal(expected, 1.0)
    np.testing.assert_allclose(gram, expected, atol=1e-12)


def test_ragged_has_a_client_without_rows_and_one_with_all():
    fed = synthetic.clustered_linear(10, rows=30, ragged=True)
    assert fed.train.size[1] == fed.test.size[1] == 0 and fed.train.size[0] == fed.train.max_size == 30
    assert np.delete(fed.train.size, 1).min() >= 1 and len(set(fed.train.size.tolist())) > 3


def test_one_model_for_two_groups_is_near_chance():
    fed = synthetic.clustered_linear(8, 2, 100, 6, 3)
    weights = synthetic.planted_weights(2, 6, 3)
    right = [
        ((fed.inputs[rows(fed.train, client)] @ weights[0]).argmax(1) == fed.labels[rows(fed.train, client)]).mean()
        for client in range(8)
    ]
    assert min(right[::2]) > 0.99 and max(right[1::2]) < 0.1  # opposite weights: the best class is the other's worst


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_is_kept(dtype):
    assert synthetic.clustered_linear(4, dtype=dtype).inputs.dtype == dtype


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_groups": 17, "features": 8, "num_classes": 3}, (17, 16)),
        ({"num_clients": 0}, ("num_clients", 0)),
        ({"rows": 0}, ("rows", 0)),
        ({"num_classes": 1}, ("num_classes", "got 1")),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        synthetic.clustered_linear(**options)
