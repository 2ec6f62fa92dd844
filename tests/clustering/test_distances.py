import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import pairwise

from jaxfl.clustering import distances
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=4)

# N, M, d and the rows of a block; each compiles. Blocks of one row, that divide N or not, of more rows than there are
SIZES = st.sampled_from(
    [((1, 1, 1), 1), ((9, 4, 6), 3), ((9, 5, 3), 4), ((2, 9, 5), 10), ((6, 1, 2), 5), ((7, 8, 4), 1)]
)


def rows(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@given(sizes=SIZES, seed=st.integers(0, 99))
def test_cosine_equals_scikit_learn(sizes, seed):
    (n, m, d), block = sizes
    x, y = rows(seed, n, d), rows(seed + 1, m, d)
    x[0] = 0
    found = distances.cosine(jnp.asarray(x), jnp.asarray(y), block=block)
    np.testing.assert_allclose(found, pairwise.cosine_similarity(x, y), atol=2e-6)


@given(sizes=SIZES, seed=st.integers(0, 99))
def test_l2_equals_scikit_learn(sizes, seed):
    (n, m, d), block = sizes
    x, y = rows(seed, n, d), rows(seed + 1, m, d)
    expected = pairwise.euclidean_distances(x.astype(np.float64), y.astype(np.float64))
    squared = distances.l2(jnp.asarray(x), jnp.asarray(y), squared=True, block=block)
    np.testing.assert_allclose(squared, expected**2, atol=1e-5)
    plain = distances.l2(jnp.asarray(x), jnp.asarray(y), block=block)
    np.testing.assert_allclose(plain, np.sqrt(np.asarray(squared)), rtol=1e-6)


@given(sizes=SIZES, seed=st.integers(0, 99), width=st.sampled_from([1, 40]))
def test_l1_equals_scikit_learn(sizes, seed, width):
    (n, m, _), block = sizes
    x, y = rows(seed, n, width), rows(seed + 1, m, width)
    found = distances.l1(jnp.asarray(x), jnp.asarray(y), block=block)
    np.testing.assert_allclose(found, pairwise.manhattan_distances(x, y), rtol=1e-5)


@pytest.mark.parametrize("block", [3, 4, 64])
def test_one_argument_is_exactly_symmetric_with_an_exact_diagonal(block):
    x = rows(0, 11, 301)
    x[4] = 0
    similarity = np.asarray(distances.cosine(jnp.asarray(x), block=block))
    distance = np.asarray(distances.l2(jnp.asarray(x), block=block))
    manhattan = np.asarray(distances.l1(jnp.asarray(x), block=block))
    np.testing.assert_array_equal(similarity, similarity.T)
    np.testing.assert_array_equal(distance, distance.T)
    np.testing.assert_array_equal(manhattan, manhattan.T)
    np.testing.assert_array_equal(np.diag(manhattan), 0)
    np.testing.assert_array_equal(np.diag(similarity), np.arange(11) != 4)
    np.testing.assert_array_equal(np.diag(distance), 0)
    np.testing.assert_array_equal(similarity[4], 0)
    np.testing.assert_allclose(similarity, pairwise.cosine_similarity(x), atol=2e-6)
    np.testing.assert_allclose(distance, pairwise.euclidean_distances(x.astype(np.float64)), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(manhattan, pairwise.manhattan_distances(x), rtol=1e-5)


@pytest.mark.parametrize("function", [distances.cosine, distances.l2, distances.l1])
def test_one_argument_equals_two(function):
    x = jnp.asarray(rows(0, 600, 5))  # three blocks of 200, fewer rows than would be handled at once
    np.testing.assert_allclose(function(x), function(x, x), atol=2e-3 if function is distances.l2 else 2e-6)
    assert function(x[:0]).shape == (0, 0)


@pytest.mark.parametrize("function", [distances.cosine, distances.l1])
def test_one_argument_takes_little_memory_beside_the_result(function):
    x = jax.ShapeDtypeStruct((2048, 512), jnp.float32)
    memory = function.lower(x, block=64).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 2048 * 512 * 4 / 4


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_cosine_ignores_the_scale_of_rows(scale):
    x = rows(0, 5, 40)
    scales = np.array([1, scale, 1, scale, 2], np.float32)[:, None]
    np.testing.assert_allclose(distances.cosine(jnp.asarray(x * scales)), distances.cosine(jnp.asarray(x)), atol=2e-6)


def test_cosine_never_exceeds_one():
    x = np.repeat(rows(3, 1, 1000), 20, axis=0) * np.arange(1, 21, dtype=np.float32)[:, None]
    similarity = np.asarray(distances.cosine(jnp.asarray(x), jnp.asarray(x)))
    assert similarity.max() <= 1 and similarity.min() > 1 - 1e-5


def test_l2_keeps_its_precision_under_a_common_offset():
    steps = (
        np.random.default_rng(0).integers(-8, 9, size=(6, 50)).astype(np.float32)
    )  # exact in float32, as is 4096 + it
    np.testing.assert_allclose(
        distances.l2(jnp.asarray(steps + 4096)), pairwise.euclidean_distances(steps.astype(np.float64)), rtol=1e-4
    )


@pytest.mark.parametrize("far", [1, 4])
def test_rows_far_away_cost_the_others_nothing(far):
    """An outlier, or a client that has diverged without being infinite, has its own error alone."""
    x = rows(0, 12, 50)
    x[:far] *= 1e6
    wanted = pairwise.euclidean_distances(x.astype(np.float64))
    off = ~np.eye(12, dtype=bool)
    off[:far, :far] = False  # among themselves they are as far from the centre as from each other
    for found in (distances.l2(jnp.asarray(x)), distances.l2(jnp.asarray(x), jnp.asarray(x))):
        np.testing.assert_allclose(np.asarray(found)[off], wanted[off], rtol=1e-4)


def test_a_nan_row_touches_only_its_own_row_and_column():
    x = rows(1, 5, 7)
    x[2, 3] = np.nan
    similarity = np.array(distances.cosine(jnp.asarray(x)))
    assert np.isnan(similarity[2, [0, 1, 3, 4]]).all()
    keep = [0, 1, 3, 4]
    np.testing.assert_allclose(similarity[np.ix_(keep, keep)], pairwise.cosine_similarity(x[keep]), atol=2e-6)


@pytest.mark.parametrize("function", [distances.cosine, distances.l2, distances.l1])
def test_temporary_memory_is_bounded_by_the_block(function):
    x, y = jax.ShapeDtypeStruct((2048, 512), jnp.float32), jax.ShapeDtypeStruct((16, 512), jnp.float32)
    memory = function.lower(x, y, block=64).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 2048 * 512 * 4 / 4  # no second copy of x


@pytest.mark.parametrize("function", [distances.cosine, distances.l2, distances.l1])
def test_errors(function):
    with pytest.raises(ValueError, match=mentions("block", 0)):
        function(jnp.ones((2, 2)), block=0)
    with pytest.raises(AssertionError):
        function(jnp.ones((2, 2)), jnp.ones((2, 3)))
