"""Projections and least forms on the simplex against SciPy's solvers and worked numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64
from scipy.optimize import nnls

from jaxfl.clustering import simplex

least, project = jax.jit(simplex.least), jax.jit(simplex.project)


def exact(form):
    """The weights by SciPy: with form = U'U, x >= 0 with the least |U x - U^-T 1|, divided by its sum."""
    upper = np.linalg.cholesky(form).T
    x, _ = nnls(upper, np.linalg.solve(upper.T, np.ones(len(form))))
    return x / x.sum()


@pytest.mark.parametrize("size", [1, 2, 7, 39])
def test_the_least_form_is_scipys_whatever_stands_under_the_mask(size):
    with enable_x64(True):
        for seed in range(8):
            rng = np.random.default_rng(seed)
            gaps = rng.normal(size=(size, 1 + size // 2))
            gaps[0] = 0
            form = np.diag(rng.uniform(0.01, 0.3, size)) + gaps @ gaps.T
            wide = np.full((size + 2, size + 2), np.nan)
            rows = np.arange(1, size + 1)
            wide[np.ix_(rows, rows)] = form
            found = np.asarray(least(jnp.asarray(wide), jnp.asarray(np.isin(np.arange(size + 2), rows))))
            assert found[0] == found[-1] == 0 and (found >= 0).all()
            np.testing.assert_allclose(found[rows], exact(form), atol=1e-10)


def test_worked_numbers():
    form = jnp.array([[0.151111, 0, 0], [0, 0.461823, 0.15], [0, 0.15, 1.243333]])
    weights = least(form, jnp.ones(3, bool))
    np.testing.assert_allclose(weights, [0.722088, 0.216240, 0.061672], atol=2e-6)
    np.testing.assert_allclose(weights @ form @ weights, 0.109115, atol=2e-6)
    shares, cosines = np.array([0.5, 0.3, 0.2]), np.array([[1, 1, -0.6], [1, 1, -0.352], [-0.6, -0.352, 1]])
    for row, expected in zip(cosines, [(0.6, 0.4, 0), (0.6, 0.4, 0), (0.115, 0.07, 0.815)], strict=True):
        found = project(jnp.asarray(shares + row / 1.6, jnp.float32), jnp.ones(3, bool))
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_projection_is_the_nearest_point_and_nobody_weighs_nothing():
    with enable_x64(True):
        for seed in range(8):
            point = np.random.default_rng(seed).normal(size=6)
            mask = np.arange(6) != seed % 6
            found = np.asarray(project(jnp.asarray(np.where(mask, point, np.nan)), jnp.asarray(mask)))
            np.testing.assert_allclose(found.sum(), 1)
            slope = (found - point)[mask]  # one number on the support, and none below it elsewhere
            support = found[mask] > 0
            np.testing.assert_allclose(slope[support], slope.min(), atol=1e-12)
            assert (found >= 0).all() and found[~mask] == 0
        nobody = jnp.zeros(3, bool)
        assert (
            project(jnp.full(3, jnp.nan), nobody).tolist()
            == least(jnp.full((3, 3), jnp.nan), nobody).tolist()
            == [0] * 3
        )
