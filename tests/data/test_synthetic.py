"""Planted problems: what is said to be true of them is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.utils import shuffle

from jaxfl import data
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


@pytest.mark.parametrize("labelling", ["paper", "code"])
@pytest.mark.parametrize(("clients", "components", "seed"), [(4, 3, 12345), (3, 1, 7)])
def test_the_mixture_of_linear_models_is_fedems(clients, components, seed, labelling):
    """The rule of the official generator, with the global generator that it seeds."""
    fed = synthetic.linear_mixture(
        clients, components, 5, alpha=0.4, noise=0.1, test_rows=30, labelling=labelling, seed=seed
    )
    np.random.seed(seed)  # noqa: NPY002 (the official code draws so)
    draw = np.random
    sizes = [min(50 + int(size), 1000) for size in draw.lognormal(4, 2, clients)]
    shares = [draw.dirichlet([0.4] * components) for _ in range(clients)]
    thetas = draw.uniform(-1.0, 1.0, size=(components, 5))
    for client in range(clients):
        for split, size in ((fed.train, sizes[client]), (fed.test, 30)):
            counts = draw.multinomial(size, shares[client])
            x, y, current_index = draw.uniform(-1.0, 1.0, size=(size, 5)), np.zeros(size), 0
            for number, count in enumerate(counts):
                outputs = x[current_index : current_index + count] @ thetas[number]
                outputs = outputs + draw.normal(size=count, scale=0.1)
                y[current_index : current_index + count] = np.round(1 / (1 + np.exp(-outputs))).astype(int)
                current_index += count if labelling == "paper" else 0  # the code leaves it at 0
            x, y = shuffle(x, y)
            own = rows(split, client)
            np.testing.assert_array_equal(fed.inputs[own], x.astype(np.float32))
            np.testing.assert_array_equal(fed.labels[own], y)
    assert len(fed.labels) == sum(sizes) + 30 * clients


def test_the_data_set_of_the_mixture_has_the_clients_of_the_federation():
    fed = data.load("linear-mixture", labelling="code", tested_rows=3)
    whole = synthetic.linear_mixture(test_rows=3, labelling="code")
    assert fed.num_clients == 300 and fed.num_classes == 2
    for client in (0, 1, 299):
        for name in ("train", "test"):
            ours, theirs = rows(getattr(fed, name), client), rows(getattr(whole, name), client)
            np.testing.assert_array_equal(fed.inputs[ours], whole.inputs[theirs])
            np.testing.assert_array_equal(fed.labels[ours], whole.labels[theirs])
