"""What belongs to each client: a row of `[N, ...]` that it takes into a round, trains, and puts back."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxfl import tree
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_owners
from jaxfl.methods.base import Info, info
from jaxfl.typing import Array, Params

# (shared, client, row) -> (sums, row, loss, finite)
RowFunction = Callable[[Any, Array, Params], tuple[Any, Params, Array, Array]]


class RowsPass(NamedTuple):
    """What a pass over the clients of a round has made.

    Attributes:
        sums: of what the clients have sent, see `jaxfl.engine.over_owners`.
        rows: of all clients `[N, ...]`.
        loss: `[C]`.
        kept: `[C]` bool, whether the client has the row that it has trained; if not, it has its old one.
        diverged: `[]` int32, how many clients of the cohort were not finite.
    """

    sums: Any
    rows: Params
    loss: Array
    kept: Array
    diverged: Array


def over_rows(client: RowFunction, shared: Any, cohort: Cohort, rows: Params) -> RowsPass:
    """Runs `client` for every client of a cohort, with its row; rows of diverged clients and of padding stay.

    Args:
        client: `(shared, client, row) -> (sums, row, loss, finite)` for one client: `sums` as in `over_clients`, the
            row after training, the training loss `[]`, and whether all that it has trained is finite `[]`.
        shared: what every client is sent.
        cohort: who takes part.
        rows: of all clients `[N, ...]`, reached by `tree.take` and `tree.put` alone, see `Method.per_client`.

    >>> def double(shared, client, row):
    ...     return (), 2 * row, jnp.float32(0), jnp.isfinite(row)
    >>> passed = over_rows(double, (), Cohort.of([2, 0]), jnp.array([1.0, 2.0, jnp.inf]))
    >>> passed.rows.tolist(), passed.kept.tolist(), int(passed.diverged)
    ([2.0, 2.0, inf], [False, True], 1)
    """

    def one(shared: Any, number: Array, row: Params):
        sums, trained, loss, finite = client(shared, number, row)
        return sums, (loss, finite), tree.where(finite, trained, row)

    sums, (loss, finite), rows = over_owners(one, shared, cohort, rows)
    return RowsPass(sums, rows, loss, finite, (~finite & cohort.mask).sum(dtype=jnp.int32))


def personal_info(passed: RowsPass, cohort: Cohort, num_clients: int, sent: Params) -> Info:
    """Returns what is seen of a pass in which everybody is a cluster; `sent` is what a client sends, and is sent."""
    diverged = passed.diverged
    return info(cohort, passed.loss, cohort.ids, num_clusters=num_clients, diverged=diverged, up=sent, down=sent)


def mark_trained(trained: Array, passed: RowsPass, data: FederatedData, cohort: Cohort) -> Array:
    """Returns who has ever trained a row of its own `[N]` bool, after a pass; clients without rows make no step."""
    moved = passed.kept & (data.train.size[cohort.ids] > 0)
    ids = jnp.where(cohort.mask & moved, cohort.ids, data.num_clients)
    return trained.at[ids].set(True, mode="drop")
