import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csgraph

from jaxfl.clustering.components import threshold_components

SIZE = 24  # one size, one compilation


def expected_components(near, alive):
    """SciPy's components of the alive nodes, named by their smallest member."""
    labels = np.full(len(near), -1)
    nodes = np.flatnonzero(alive)
    if nodes.size:
        _, found = csgraph.connected_components(near[np.ix_(nodes, nodes)], directed=False)
        for name in np.unique(found):
            labels[nodes[found == name]] = nodes[found == name].min()
    return labels


@given(seed=st.integers(0, 10_000), density=st.floats(0, 0.25), share_alive=st.floats(0, 1))
def test_equals_scipy(seed, density, share_alive):
    rng = np.random.default_rng(seed)
    similarity = rng.uniform(size=(SIZE, SIZE)).astype(np.float32)
    alive = rng.uniform(size=SIZE) < share_alive
    found = threshold_components(jnp.asarray(similarity), 1 - density, jnp.asarray(alive))
    near = similarity >= np.float32(1 - density)
    np.testing.assert_array_equal(found, expected_components(near, alive))


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_long_chain_is_one_component_until_a_link_dies(shuffled):
    count = 500
    order = np.random.default_rng(0).permutation(count) if shuffled else np.arange(count)
    similarity = np.zeros((count, count), np.float32)
    similarity[order[:-1], order[1:]] = 1  # one direction is enough
    assert set(np.asarray(threshold_components(jnp.asarray(similarity), 0.5)).tolist()) == {0}

    alive = np.ones(count, bool)
    alive[order[200]] = False
    found = np.asarray(threshold_components(jnp.asarray(similarity), 0.5, jnp.asarray(alive)))
    assert found[order[200]] == -1
    assert set(found[order[:200]].tolist()) == {order[:200].min()}
    assert set(found[order[201:]].tolist()) == {order[201:].min()}


def test_threshold_is_inclusive_and_nothing_merges_above_the_maximum():
    similarity = jnp.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.25], [0.0, 0.25, 1.0]])
    assert threshold_components(similarity, 0.5).tolist() == [0, 0, 2]
    assert threshold_components(similarity, 0.25).tolist() == [0, 0, 0]
    assert threshold_components(similarity, 1.5).tolist() == [0, 1, 2]
    assert threshold_components(similarity, -1.0, jnp.array([False, True, True])).tolist() == [-1, 1, 1]


def test_a_nan_row_stays_alone():
    similarity = jnp.ones((4, 4)).at[1].set(jnp.nan).at[:, 1].set(jnp.nan)
    assert threshold_components(similarity, 0.5).tolist() == [0, 1, 0, 0]


@given(seed=st.integers(0, 1000))
def test_raising_the_threshold_only_splits(seed):
    similarity = jnp.asarray(np.random.default_rng(seed).uniform(size=(SIZE, SIZE)).astype(np.float32))
    coarse, fine = (np.asarray(threshold_components(similarity, threshold)) for threshold in (0.9, 0.95))
    for name in np.unique(fine):
        assert len(set(coarse[fine == name].tolist())) == 1


def test_maps_over_a_batch_of_matrices():
    similarity = jnp.asarray(np.random.default_rng(0).uniform(size=(3, SIZE, SIZE)).astype(np.float32))
    together = jax.vmap(lambda matrix: threshold_components(matrix, 0.93))(similarity)
    for matrix, labels in zip(similarity, together, strict=True):
        np.testing.assert_array_equal(threshold_components(matrix, 0.93), labels)
