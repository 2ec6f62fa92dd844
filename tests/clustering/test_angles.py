"""Subspaces and their angles against NumPy's singular values in float64."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfl.clustering import angles
from jaxfl.clustering.angles import principal_basis, subspace_angles
from tests.messages import mentions

SEEDS = st.integers(0, 999)
STEEP = 0.05  # degrees: a rounding or two of float32 under an arc cosine, near 0


def basis(rows, rank):
    """Returns the leading left singular vectors of the columns `rows`, with sums that are not negative."""
    found = np.linalg.svd(np.asarray(rows, float).T, full_matrices=False)[0][:, :rank]
    return found * np.where(found.sum(0) < 0, -1, 1)


def subspaces(seed, count, features=6, rank=2):
    rng = np.random.default_rng(seed)
    return np.linalg.qr(rng.normal(size=(count, features, rank)))[0].astype(np.float32)


def smallest(left, right):
    return np.degrees(np.arccos(min(1, np.linalg.svd(left.T.astype(float) @ right, compute_uv=False)[0])))


def entry(left, right):
    return np.degrees(np.arccos(np.clip(left.T.astype(float) @ right, -1, 1))).min()


@given(seed=SEEDS, shape=st.sampled_from([(5, 12), (30, 12)]))  # fewer rows than features, and more
def test_directions_are_the_leading_singular_vectors(seed, shape):
    """Lengths of 1, 1/2, 1/4, ...: so far apart that each vector is known to a few roundings."""
    rng = np.random.default_rng(seed)
    left, _, right = np.linalg.svd(rng.normal(size=shape), full_matrices=False)
    rows = 50 * (left * 0.5 ** np.arange(min(shape))) @ right
    np.testing.assert_allclose(principal_basis(jnp.asarray(rows, jnp.float32), 3), basis(rows, 3), atol=1e-5)


def test_directions_that_are_not_there_are_zeros():
    rows = np.zeros((6, 4), np.float32)
    rows[1], rows[4] = [3, 4, 0, 0], [-6, -8, 0, 0]
    wanted = np.zeros((4, 3))
    wanted[:2, 0] = 0.6, 0.8
    np.testing.assert_allclose(principal_basis(jnp.asarray(rows), 3), wanted, atol=1e-6)
    np.testing.assert_array_equal(principal_basis(jnp.zeros((2, 4)), 3), np.zeros((4, 3)))
    assert principal_basis(jnp.eye(2, 4), 5).shape == (4, 5)


@pytest.mark.parametrize(("kind", "wanted"), [("smallest", smallest), ("entry", entry)])
def test_angles_are_numpys_whatever_the_block(kind, wanted, monkeypatch):
    left, right = subspaces(0, 7), np.concatenate([subspaces(1, 4), subspaces(0, 1)])
    expected = np.array([[wanted(a, b) for b in right] for a in left])
    for numbers in (1 << 24, 3 * 5 * 4):  # all at once; three, three and one
        monkeypatch.setattr(angles, "BLOCK_NUMBERS", numbers)
        subspace_angles.clear_cache()
        found = np.asarray(subspace_angles(jnp.asarray(left), jnp.asarray(right), kind))
        np.testing.assert_allclose(found[1:], expected[1:], atol=2e-4)
        np.testing.assert_allclose(found[0], expected[0], atol=STEEP)
    assert expected[0, -1] < STEEP, "one is the same"


@given(seed=SEEDS)
def test_the_smallest_angle_is_of_subspaces_and_not_of_bases(seed):
    left, right = subspaces(seed, 4), subspaces(seed + 1, 5)
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(2, 2)))[0].astype(np.float32)
    all_ = np.linalg.qr(np.random.default_rng(seed).normal(size=(6, 6)))[0].astype(np.float32)
    plain = np.asarray(subspace_angles(jnp.asarray(left), jnp.asarray(right)))
    np.testing.assert_allclose(subspace_angles(jnp.asarray(left), jnp.asarray(right @ turn)), plain, atol=STEEP)
    np.testing.assert_allclose(subspace_angles(jnp.asarray(all_ @ left), jnp.asarray(all_ @ right)), plain, atol=STEEP)
    np.testing.assert_allclose(subspace_angles(jnp.asarray(right), jnp.asarray(left)), plain.T, atol=STEEP)


def test_what_is_not_there_is_farthest_from_all():
    axes = jnp.concatenate([jnp.eye(3)[:, :, None], jnp.zeros((1, 3, 1))])
    far, right = jnp.full((1, 4), 90.0), np.where(np.eye(4, dtype=bool), 0, 90)
    right[3] = right[:, 3] = 90
    np.testing.assert_allclose(subspace_angles(axes, axes), right, atol=STEEP)
    np.testing.assert_allclose(subspace_angles(axes[3:], axes), far)
    against = subspace_angles(jnp.concatenate([-axes, -axes * 0], 2), axes, "entry")  # columns of zeros are no vectors
    np.testing.assert_allclose(
        against, np.array([[180, 90, 90, 180], [90, 180, 90, 180], [90, 90, 180, 180], [180] * 4])
    )


def test_unknown_angles_are_refused():
    with pytest.raises(ValueError, match=mentions("kind", "largest")):
        subspace_angles(jnp.eye(2)[None], jnp.eye(2)[None], "largest")  # pyright: ignore[reportArgumentType]
