"""Cohorts: their size, who is in them, and that every client is as likely as any other."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfl.data.synthetic import clustered_linear
from jaxfl.sampling import cohort_size, sample

DATA = clustered_linear(10, rows=2)
HELD_OUT = replace(DATA, held_out=np.arange(10) >= 7)


@pytest.mark.parametrize(
    ("cohort", "data", "message"),
    [
        (0, DATA, r"cohort must be from 1 .*\(10\), got 0; give a share"),
        (-3, DATA, r"got -3"),
        (11, DATA, r"got 11; give a share in \(0, 1\] or a count from 1 to 10"),
        (8, HELD_OUT, r"participating clients \(7\), got 8"),
        (0.0, DATA, r"cohort must be a share in \(0, 1\], got 0.0"),
        (1.5, DATA, r"got 1.5"),
        (-0.1, DATA, r"got -0.1"),
        (float("nan"), DATA, r"got nan"),
        (True, DATA, r"cohort must be a number, got True"),
        ("all", DATA, r"cohort must be a number, got 'all'"),
        (None, DATA, r"cohort must be a number, got None"),
    ],
)
def test_bad_cohorts_are_named(cohort, data, message):
    with pytest.raises(ValueError, match=message):
        cohort_size(cohort, data)


def test_sizes():
    assert [cohort_size(c, DATA) for c in (1, 10, 0.3, 1.0, 0.001)] == [1, 10, 3, 10, 1]
    assert [cohort_size(c, HELD_OUT) for c in (7, 1.0)] == [7, 7]


def test_cohorts_are_sorted_distinct_and_differ_by_round(key):
    cohorts = [sample(key, jnp.int32(r), DATA, 4).ids.tolist() for r in range(6)]
    assert all(ids == sorted(set(ids)) and len(ids) == 4 for ids in cohorts)
    assert len({tuple(ids) for ids in cohorts}) > 1
    assert cohorts[2] == sample(key, jnp.int32(2), DATA, 4).ids.tolist()
    assert cohorts != [sample(jax.random.key(1), jnp.int32(r), DATA, 4).ids.tolist() for r in range(6)]


@pytest.mark.parametrize("size", [3, 7])
def test_held_out_clients_are_never_drawn(size, key):
    drawn = jax.vmap(lambda r: sample(key, r, HELD_OUT, size).ids)(jnp.arange(200))
    assert set(np.asarray(drawn).ravel().tolist()) == set(range(7))


def test_every_client_and_every_pair_is_as_likely(key):
    rounds, size = 4000, 3
    drawn = np.asarray(jax.jit(jax.vmap(lambda r: sample(key, r, DATA, size).ids))(jnp.arange(rounds)))
    member = np.zeros((rounds, 10))
    member[np.arange(rounds)[:, None], drawn] = 1
    together = member.T @ member / rounds
    single, pair = size / 10, size * (size - 1) / 90
    # five standard deviations of a mean of that many draws: fails for one fair sampler in 20,000
    np.testing.assert_allclose(np.diag(together), single, atol=5 * np.sqrt(single * (1 - single) / rounds))
    off = together[~np.eye(10, dtype=bool)]
    np.testing.assert_allclose(off, pair, atol=5 * np.sqrt(pair * (1 - pair) / rounds))
