"""Personal parameters: a row of `[N, ...]` for each client, which a round takes, trains and writes back."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxfl import tree
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_owners
from jaxfl.methods.base import Info, Shortfall, info
from jaxfl.typing import Array, Params

# (shared, client, row) -> (sums, row, loss, finite)
RowFunction = Callable[[Any, Array, Params], tuple[Any, Params, Array, Array]]


class RowsPass(NamedTuple):
    """The results of a pass over the clients of a round.

    Attributes:
        sums: of the contributions, see `jaxfl.engine.over_owners`.
        rows: of all clients `[N, ...]`.
        loss: `[C]`.
        finite: `[C]` bool, whether the client's training was finite; otherwise its row is unchanged.
        diverged: `[]` int32, number of clients of the cohort whose training was not finite.
    """

    sums: Any
    rows: Params
    loss: Array
    finite: Array
    diverged: Array


def over_rows(client: RowFunction, shared: Any, cohort: Cohort, rows: Params) -> RowsPass:
    """Returns the results of `client` for every client of a cohort; rows of diverged clients and of padding stay.

    Args:
        client: `(shared, client, row) -> (sums, row, loss, finite)` for one client: `sums` as in `over_clients`, the
            row after training, the training loss `[]`, and whether all trained parameters are finite `[]`.
        shared: arguments that are the same for every client.
        cohort: the clients of the round.
        rows: of all clients `[N, ...]`, reached by `tree.take` and `tree.put` alone, see `Method.per_client`.

    >>> def double(shared, client, row):
    ...     return (), 2 * row, jnp.float32(0), jnp.isfinite(row)
    >>> passed = over_rows(double, (), Cohort.of([2, 0]), jnp.array([1.0, 2.0, jnp.inf]))
    >>> passed.rows.tolist(), passed.finite.tolist(), int(passed.diverged)
    ([2.0, 2.0, inf], [False, True], 1)
    """

    def keep_finite(shared: Any, number: Array, row: Params):
        sums, trained, loss, finite = client(shared, number, row)
        return sums, (loss, finite), tree.where(finite, trained, row)

    sums, (loss, finite), rows = over_owners(keep_finite, shared, cohort, rows)
    return RowsPass(sums, rows, loss, finite, (~finite & cohort.mask).sum(dtype=jnp.int32))


def personal_info(passed: RowsPass, cohort: Cohort, num_clients: int, exchanged: Params) -> Info:
    """Returns the `Info` of a pass where each client is a cluster; a client sends and receives `exchanged`."""
    diverged, size = passed.diverged, exchanged
    return info(cohort, passed.loss, cohort.ids, num_clusters=num_clients, diverged=diverged, up=size, down=size)


def nothing_shared(chosen: Params) -> Shortfall | None:
    """Returns the `Method.shortfall` of a network that is all personal, such as one of a single layer; else None.

    Args:
        chosen: bool for every leaf of the model: whether it is personal.
    """
    if not all(jax.tree.leaves(chosen)):
        return None
    return lambda state, data, participation: (
        "Every parameter of the network is personal, so that clients share nothing that is trained: take a network of "
        "several layers (model=mlp), or choose fewer by personal."
    )


def mix_rows(weights: Array, rows: Params) -> Params:
    """Returns the weighted sums `sum_j weights_ij rows_j` `[C, ...]` of rows `[C, ...]`.

    Args:
        weights: `[C, C]`, 0 for rows that do not count.
        rows: all finite, those that do not count too.

    >>> mix_rows(jnp.array([[0.5, 0.5], [0.0, 1.0]]), {"w": jnp.array([[1.0], [3.0]])})["w"].tolist()
    [[2.0], [3.0]]
    """

    def mix(leaf: Array) -> Array:
        return jnp.tensordot(weights.astype(leaf.dtype), leaf, axes=1, precision="highest")

    return jax.tree.map(mix, rows)


def moved_mean(mean: Params, total: Array, before: Params, after: Params, old: Array, new: Array) -> Params:
    """Returns the weighted mean of the rows of all clients after some rows have changed; the others are not read.

    Args:
        mean: of all rows, before.
        total: `[]`, the sum of the weights of all rows, after.
        before: the changed rows as they were `[C, ...]`; all rows are finite.
        after: the changed rows as they are.
        old: their weights before `[C]`; 0 for rows that did not count.
        new: their weights after `[C]`.

    >>> mean = moved_mean(jnp.float32(4), jnp.float32(2), jnp.ones(1), jnp.array([2.0]), jnp.zeros(1), jnp.ones(1))
    >>> float(mean)  # of 4 and 2
    3.0
    """
    divisor = jnp.where(total > 0, total, 1)

    def moved(mean: Array, before: Array, after: Array) -> Array:
        into, out = (tree.along(rows.astype(mean.dtype) / divisor.astype(mean.dtype), after) for rows in (new, old))
        return mean + (into * (after - mean[None]) - out * (before - mean[None])).sum(0)

    return jax.tree.map(moved, mean, before, after)


def mark_trained(trained: Array, passed: RowsPass, data: FederatedData, cohort: Cohort) -> Array:
    """Returns bool `[N]` for clients that have ever trained their row, after a pass; without rows there is no step."""
    moved = passed.finite & (data.train.size[cohort.ids] > 0)
    ids = jnp.where(cohort.mask & moved, cohort.ids, data.num_clients)
    return trained.at[ids].set(True, mode="drop")
