"""The compiled programs of an evaluation: clients are assigned, tested, and fine-tuned before they are tested."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxfl import engine, tree
from jaxfl.client.passes import batch_shape, fold_rows, rows_at_once
from jaxfl.cohort import Cohort, Plan
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.engine import by_size, over_clients
from jaxfl.methods.base import Method
from jaxfl.simulation.finetune import FineTune, trainer
from jaxfl.simulation.metrics import Totals
from jaxfl.simulation.program import kept
from jaxfl.tasks.contract import outputs_and_loss
from jaxfl.typing import Array, Key

BLOCK = 1000  # test rows of a client taken at once


@kept
def assigner(method: Method, plan: Plan, shapes: Any) -> Any:
    """Returns `(key, state, data, ids [M], real [M]) -> state` with their clusters up to date; compiled."""

    @engine.jit
    def assign(key: Key, state: Any, data: FederatedData, ids: Array, real: Array) -> Any:
        return plan.readable(engine.within(plan.mesh)(method.assign)(key, state, data, Cohort(ids, real, plan)))

    return assign


@kept
def tester(method: Method, plan: Plan, shapes: Any) -> Any:
    """Returns `(state, data, ids [M], real [M]) -> sums [M, ...]`, zeros where not real; compiled."""

    @engine.jit
    def test(state: Any, data: FederatedData, ids: Array, real: Array) -> Totals:
        def client(shared: Any, client: Array, real: Array) -> tuple[tuple, Totals]:
            state, data = shared

            def run() -> Totals:
                return totals_of(method, tree.take(method.client_params(state, client[None]), 0), data, client)

            return (), _where_needed(real, run)

        return plan.readable(over_clients(client, (state, data), Cohort.of(ids, plan), real)[1])

    return test


@kept
def tuner(method: Method, finetune: FineTune, plan: Plan, shapes: Any) -> Callable[..., tuple]:
    """Returns `(key, state, data, ids [M], real [M]) -> (sums [M, ...], diverged [M])`; compiled.

    A fine-tuned model lives as long as its client's test: there is a chunk of them, never a stack.
    """
    train = trainer(method, finetune)

    def client(shared: Any, client: Array) -> tuple[tuple, Any]:
        key, state, data = shared

        def run() -> Any:
            model, finite = train(key, state, data, client)
            return totals_of(method, model, data, client), ~finite

        return (), _where_needed(data.test.size[client] > 0, run)

    @engine.jit
    def tune(key: Key, state: Any, data: FederatedData, ids: Array, real: Array) -> Any:
        cohort = by_size(data, Cohort(ids, real, plan))
        found = over_clients(client, (key, state, data), cohort)[1]
        everybody, count = data.num_clients, ids.shape[0]
        place = jnp.zeros(everybody, jnp.int32)  # of each client among the ids
        place = place.at[jnp.where(real, ids, everybody)].set(jnp.arange(count, dtype=jnp.int32), mode="drop")
        in_order = jax.tree.map(
            lambda leaf: jnp.zeros((count, *leaf.shape[1:]), leaf.dtype).at[place[cohort.ids]].set(leaf), found
        )
        return plan.readable(in_order)

    return tune


def _where_needed(real: Array, run: Callable[[], Any]) -> Any:
    """Returns what `run` returns, or zeros where it is not needed; one client at a time skips it then."""
    shapes = jax.eval_shape(run)
    return jax.lax.cond(real, run, lambda: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes))


def totals_of(method: Method, model: Any, data: FederatedData, client: Array) -> Totals:
    """Returns what is added up over a client's test rows under a model."""
    task, both = method.task, outputs_and_loss(method.task)

    def sums_of(outputs: Array, batch: Batch) -> Any:
        def total(leaf: Array) -> Array:
            real = tree.along(batch.mask, leaf)
            if leaf.dtype == bool:
                return (leaf & real).sum(0, dtype=jnp.int32)
            whole = jnp.issubdtype(leaf.dtype, jnp.integer)
            wide = leaf.dtype if leaf.dtype.itemsize >= 4 else jnp.dtype("int32" if whole else "float32")
            return jnp.where(real, leaf, 0).sum(0, dtype=wide)  # a sum of uint8 would begin anew at 256

        return jax.tree.map(total, task.metrics.counts(outputs, batch))

    def step(carry: Totals, batch: Batch) -> Totals:
        rows, (outputs, loss) = batch.mask.sum(), both(model, batch)
        loss = loss.astype(carry.loss.dtype) * rows.astype(carry.loss.dtype)
        sums = jax.tree.map(jnp.add, carry.sums, sums_of(outputs, batch))
        return Totals(sums, carry.loss + loss, carry.rows + rows.astype(jnp.int32))

    shapes = jax.eval_shape(lambda batch: sums_of(task.outputs(model, batch), batch), batch_shape(data))
    zero = Totals(jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), shapes), jnp.float32(0), jnp.int32(0))
    return fold_rows(step, zero, data, data.test, client, rows_at_once(task, model, BLOCK))
