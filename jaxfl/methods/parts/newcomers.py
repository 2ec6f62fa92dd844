"""Clients that join between two rounds: their cohort, and rows for them in the fields of a state."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from jaxfl.cohort import Cohort, Plan
from jaxfl.data.clients import FederatedData
from jaxfl.typing import Array


def joining_cohort(ids: Sequence[int], data: FederatedData) -> Cohort:
    """Returns the cohort of the clients that join, computed one after another.

    Args:
        ids: clients of `data`.
        data: the federation with the new clients in it.

    Raises:
        ValueError: `ids` is empty, names a client twice, or names one that the federation does not have.

    >>> from jaxfl.data import synthetic
    >>> joining_cohort([3, 1], synthetic.clustered_linear(4)).ids.tolist()
    [3, 1]
    """
    known = np.asarray(ids, int)
    if known.ndim != 1 or not len(known) or known.min() < 0 or known.max() >= data.num_clients:
        raise ValueError(f"ids must be clients of the federation, 0 to {data.num_clients - 1}, got {ids!r}.")
    if len(np.unique(known)) < len(known):
        raise ValueError(f"ids must name every client once, got {ids!r}.")
    return Cohort.of(known.tolist(), Plan(chunk=1))


def count_new(rows: Array, num_clients: int) -> int:
    """Returns the number of clients that have no row in `rows [M, ...]` yet.

    Raises:
        ValueError: there are more rows than clients.
    """
    new = num_clients - rows.shape[0]
    if new < 0:
        raise ValueError(
            f"data must have at least the {rows.shape[0]} clients of the state, got {num_clients}; add new clients "
            "behind the others."
        )
    return new


def pad_clients(rows: Array, num_clients: int, fill: int = 0) -> Array:
    """Returns `rows [M, ...]` with a row of `fill` for every new client `[N, ...]`.

    Raises:
        ValueError: there are more rows than clients.

    >>> pad_clients(jnp.array([2, 0]), 4, -1).tolist()
    [2, 0, -1, -1]
    """
    widths = [(0, count_new(rows, num_clients)), *[(0, 0)] * (rows.ndim - 1)]
    return jnp.pad(rows, widths, constant_values=fill)
