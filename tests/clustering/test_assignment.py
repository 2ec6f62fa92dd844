"""Assignments against SciPy's, and the fixed choice among equal ones."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from jaxfl.clustering.assignment import match
from tests.messages import mentions


@pytest.mark.parametrize("shape", [(4, 4), (3, 5)])
def test_the_sum_is_the_least(shape):
    for seed in range(5):
        cost = np.random.default_rng(seed).normal(size=shape)
        found = np.asarray(match(jnp.asarray(cost, jnp.float32)))
        assert len({*found.tolist()}) == shape[0]
        rows, columns = linear_sum_assignment(cost)
        np.testing.assert_allclose(cost[np.arange(shape[0]), found].sum(), cost[rows, columns].sum(), rtol=1e-6)


def test_equal_costs_keep_the_order_and_more_rows_than_columns_are_refused():
    assert match(jnp.ones((3, 5))).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=mentions("cost", 3, 2)):
        match(jnp.ones((3, 2)))
