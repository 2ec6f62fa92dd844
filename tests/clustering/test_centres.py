"""Centres of clusters against NumPy and SciPy, one cluster after the other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from jaxfl.clustering import centres
from tests.messages import mentions

CLUSTERS = 3
SIZES = st.tuples(st.sampled_from([1, 2, 7, 12]), st.sampled_from([1, 5]))  # N, d


def problem(seed, count, length):
    """Points with ties, labels that reach out of range on both sides, and poison where nobody belongs."""
    rng = np.random.default_rng(seed)
    points = rng.integers(-3, 4, (count, length)).astype(np.float32)
    labels = rng.integers(-1, CLUSTERS + 1, count).astype(np.int32)
    points[(labels < 0) | (labels >= CLUSTERS)] = rng.choice([np.nan, np.inf])
    return points, labels, rng.normal(size=(CLUSTERS, length)).astype(np.float32)


def by_cluster(points, labels, empty, one):
    return np.stack([one(points[labels == k]) if (labels == k).any() else empty[k] for k in range(CLUSTERS)])


def found(fn, problem, **options):
    return fn(*map(jnp.asarray, problem), **options)


@given(sizes=SIZES, seed=st.integers(0, 999))
def test_mean_is_numpys(sizes, seed):
    given_ = problem(seed, *sizes)
    wanted = by_cluster(*given_, lambda members: members.mean(0))
    np.testing.assert_allclose(found(centres.mean, given_), wanted, rtol=1e-6, atol=1e-6)


@given(sizes=SIZES, seed=st.integers(0, 999), share=st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.45]))
def test_trimmed_mean_is_scipys(sizes, seed, share):
    given_ = problem(seed, *sizes)
    wanted = by_cluster(*given_, lambda members: stats.trim_mean(members, share, axis=0))
    np.testing.assert_allclose(found(centres.trimmed_mean, given_, share=share), wanted, rtol=1e-6, atol=1e-6)


@given(sizes=SIZES, seed=st.integers(0, 999))
def test_median_is_numpys(sizes, seed):
    given_ = problem(seed, *sizes)
    wanted = by_cluster(*given_, lambda members: np.median(members, axis=0))
    np.testing.assert_allclose(found(centres.median, given_), wanted, rtol=1e-6)


@pytest.mark.parametrize("count", [*range(1, 10), 33])
def test_median_of_infinite_numbers_and_nan_is_numpys(count):
    for seed in range(5):
        points, labels, empty = problem(seed, count, 6)
        members = (labels >= 0) & (labels < CLUSTERS)
        points[members, 1] = np.where(points[members, 1] > 1, np.inf, points[members, 1])
        points[members, 2] = np.where(points[members, 2] > 2, np.nan, points[members, 2])
        wanted = by_cluster(points, labels, empty, lambda members: np.median(members, axis=0))
        np.testing.assert_array_equal(found(centres.median, (points, labels, empty)), wanted)


@pytest.mark.parametrize("length", [1, 6, 7, 20])
def test_blocks_change_nothing(monkeypatch, length):
    given_ = problem(4, 12, length)
    wanted = by_cluster(*given_, lambda members: stats.trim_mean(members, 0.2, axis=0))
    monkeypatch.setattr(centres, "BLOCK_BYTES", 3 * 12 * 4)  # three coordinates at a time
    jax.clear_caches()
    np.testing.assert_allclose(found(centres.trimmed_mean, given_, share=0.2), wanted, rtol=1e-6, atol=1e-6)
    jax.clear_caches()


@pytest.mark.parametrize("count", [127, 128, 300])
def test_ranks_do_not_overflow(count):
    """Ranks are int8 below 128 points."""
    points = np.random.default_rng(0).permutation(count).astype(np.float32)[:, None]
    given_ = jnp.asarray(points), jnp.zeros(count, jnp.int32), jnp.zeros((1, 1))
    got = centres.trimmed_mean(*given_, share=0.5)
    assert float(centres.median(*given_)[0, 0]) == float(got[0, 0])
    assert float(got[0, 0]) == (count - 1) / 2


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5])
def test_nan_is_not_trimmed_away(share):
    """As in the mean: otherwise two of four would leave a number that is no mean of any."""
    points = np.array([[1, 1, 1], [2, 2, 2], [3, np.nan, np.nan], [6, 4, np.nan]], np.float32)
    got = centres.trimmed_mean(points, jnp.zeros(4, jnp.int32), jnp.zeros((1, 3)), share=share)
    assert np.isnan(got[0]).tolist() == [False, True, True]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "fn", [centres.mean, functools.partial(centres.trimmed_mean, share=0.2), centres.geometric_median, centres.median]
)
def test_what_is_not_finite_is_of_its_own_cluster_alone(fn, value):
    points = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    labels = np.repeat(np.arange(3, dtype=np.int32), 3)
    given_ = jnp.asarray(labels), jnp.zeros((3, 3))
    wanted = fn(jnp.asarray(points), *given_)
    points[4:6, 1] = value
    got = fn(jnp.asarray(points), *given_)
    np.testing.assert_allclose(got[::2], wanted[::2], rtol=1e-6)  # their rows are summed in another order
    assert not np.isfinite(got[1, 1])


def test_share_out_of_range_names_the_remedy():
    with pytest.raises(ValueError, match=mentions("share", 0.6)):
        centres.trimmed_mean(jnp.zeros((2, 1)), jnp.zeros(2, jnp.int32), jnp.zeros((1, 1)), share=0.6)


@given(seed=st.integers(0, 999), scale=st.sampled_from([1e-6, 1.0, 1e6]))
def test_geometric_median_is_the_minimum(seed, scale):
    points = scale * np.random.default_rng(seed).normal(size=(9, 2))
    labels = np.array([0, 0, 0, 0, 0, 1, 1, 1, -1], np.int32)
    got = found(centres.geometric_median, (points.astype(np.float32), labels, np.zeros((2, 2), np.float32)))
    for k in range(2):
        members = points[labels == k] / scale

        def total(centre, members=members):
            return np.linalg.norm(members - centre, axis=1).sum()

        best = optimize.minimize(total, members.mean(0), method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10})
        # Weiszfeld's iteration is slow where the minimum is a member; the objective is flat there
        assert total(np.asarray(got[k]) / scale) <= best.fun * (1 + 1e-3)


def test_geometric_median_meets_a_member_without_nan():
    points = jnp.array([[0.0], [0.0], [0.0], [5.0]])  # the mean moves onto three members
    got = centres.geometric_median(points, jnp.array([0, 0, 0, 0]), jnp.zeros((2, 1)))
    np.testing.assert_allclose(got, [[0], [0]], atol=1e-4)
    same = centres.geometric_median(jnp.full((3, 2), 7.0), jnp.zeros(3, jnp.int32), jnp.zeros((1, 2)))
    assert same.tolist() == [[7, 7]]
