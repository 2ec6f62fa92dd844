"""Passes over a client's rows without training: losses, gradients, folds."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxfl import tree
from jaxfl.client import conduct, operations
from jaxfl.client.steps import row_count
from jaxfl.data.clients import Batch, FederatedData, Split
from jaxfl.random import Stream, key_for
from jaxfl.tasks import Task, for_each
from jaxfl.typing import Array, Key, Params

# Rows taken at once where a whole split is passed over (full-batch gradients, losses, evaluation). Splits of at most
# this many rows are one masked batch; longer ones are walked through in as many blocks as the client needs, so that one
# client of 5,000 rows does not make 300 clients of 100 rows pay for 5,000.
BLOCK_ROWS = 256
# On a CPU a layer of a convolutional network finds in a core's cache what the last one made, or waits for memory:
# a row of 1,000 takes up to four times as long as one of 16. A block reads the model once, so that it may be as large.
LAYER_CACHE_BYTES, FEWEST_ROWS = 1 << 21, 16  # bytes; rows, of which fewer make thin products


def rows_at_once(task: Task, model: Params, most: int = BLOCK_ROWS) -> int:
    """Returns how many rows a pass takes at once: `most`, or fewer of a convolutional network's.

    Args:
        task: what the model has learned.
        model: one.
        most: the most rows.
    """
    if jax.default_backend() != "cpu" or not task.fast.widest:
        return most
    return min(most, max(FEWEST_ROWS, max(LAYER_CACHE_BYTES, tree.num_bytes(model)) // task.fast.widest))


def gradient_rows(task: Task, model: Params, most: int) -> int:
    """Returns `rows_at_once`, or no limit for a task whose outputs depend on the whole batch (batch normalisation)."""
    return 2**31 - 1 if task.whole else rows_at_once(task, model, most)


def fold_rows(
    step: Callable[[Params, Batch], Params],
    carry: Params,
    data: FederatedData,
    split: Split,
    client: Array,
    block: int = BLOCK_ROWS,
) -> Params:
    """Folds `step` over all rows of a client, in blocks of at most `block` rows.

    Args:
        step: `(carry, batch) -> carry`; the batch is masked.
        carry: what the fold starts from.
        data: the federation.
        split: `data.train` or `data.test`.
        client: the client's id `[]`.
        block: most rows of one batch; all are as long as the blocks of the largest client.

    Returns:
        The last carry.
    """
    if split.max_size == 0:
        return carry
    if split.max_size <= block:
        folded = step(carry, data.batch(split, client, jnp.arange(split.max_size, dtype=jnp.int32)))
        _note_fold(step, carry, folded, data, split, client, split.max_size)
        return folded
    block = -(-split.max_size // -(-split.max_size // block))  # 300 rows are two blocks of 150, not of 256
    rows = row_count(data, client) if split is data.train else split.size[client]
    blocks = -(-rows // block)
    positions = jnp.arange(block, dtype=jnp.int32)
    folded = jax.lax.fori_loop(0, blocks, lambda i, c: step(c, data.batch(split, client, i * block + positions)), carry)
    _note_fold(step, carry, folded, data, split, client, block)
    return folded


def _note_fold(
    step: Callable[..., Any], carry: Any, folded: Any, data: FederatedData, split: Split, client: Array, rows: int
) -> None:
    """Notes a pass over all rows of a client, in batches of `rows`."""
    if operations.are_noted():
        batch, size = operations.batch_of(data, rows), split.size[client]
        operations.note_pass(folded, step, carry, batch, client=client, rows=size, at_once=rows)


def mean_loss(task: Task, *, block: int = BLOCK_ROWS) -> Callable[[Params, FederatedData, Array], Array]:
    """Returns `(model, data, client) -> []`: the model's mean loss on the client's training rows; 0 without rows."""
    return _mean_over_rows(task.loss, lambda model: rows_at_once(task, model, block))


def mean_losses(task: Task, *, block: int = BLOCK_ROWS) -> Callable[[Params, FederatedData, Array], Array]:
    """Returns `(models [K, ...], data, client) -> [K]`, each model's `mean_loss`; rows are prepared once for all."""

    def losses(models: Params, batch: Batch, key: Key | None) -> Array:
        return for_each(task, lambda model: task.loss(model, batch, key), models)

    def rows(models: Params) -> int:
        return rows_at_once(task, jax.eval_shape(lambda: tree.take(models, 0)), block)

    return _mean_over_rows(losses, rows)


def _mean_over_rows(
    loss: Callable[..., Array], rows: Callable[[Params], int]
) -> Callable[[Params, FederatedData, Array], Array]:
    """Returns `(model, data, client) ->` the mean of `loss` over training rows, in blocks of `rows(model)`."""

    def run(model: Params, data: FederatedData, client: Array) -> Array:
        def step(total: Array, batch: Batch) -> Array:
            found = loss(model, batch, None)
            return total + found * batch.mask.sum().astype(found.dtype)

        shape = jax.eval_shape(loss, model, batch_shape(data), None)
        total = fold_rows(step, jnp.zeros(shape.shape, shape.dtype), data, data.train, client, rows(model))
        return total / jnp.maximum(data.train.size[client], 1).astype(total.dtype)

    return run


def full_gradient(task: Task, *, block: int = BLOCK_ROWS) -> Callable[..., tuple[Array, Params]]:
    """Returns `(model, data, client, key) -> (loss, gradient)` of the mean loss over all of a client's training rows.

    A client without rows has loss 0 and gradient 0. An attacker's gradient is perturbed. The key is
    the client's of this round: of dropout (which `tasks.without_dropout` switches off) and of an attacker's noise.
    """
    gradient_of = unperturbed_gradient(task, block)

    def run(model: Params, data: FederatedData, client: Array, key: Key) -> tuple[Array, Params]:
        loss, gradient = gradient_of(model, data, client, key)
        return loss, conduct.perturb_gradient(key, gradient, data, client)

    return run


def unperturbed_gradient(task: Task, block: int) -> Callable[..., tuple[Array, Params]]:
    """Returns `full_gradient` without the perturbation of attackers."""

    def run(
        model: Params, data: FederatedData, client: Array, key: Key, row_weights: Array | None = None
    ) -> tuple[Array, Params]:
        at_once = gradient_rows(task, model, block)
        if data.train.max_size <= at_once:
            batch = training_batch(data, client, jnp.arange(data.train.max_size, dtype=jnp.int32), row_weights)
            gradient = jax.value_and_grad(task.loss)
            found = gradient(model, batch, key)
            if operations.are_noted():
                rows, most = data.train.size[client], data.train.max_size
                operations.note_pass(found, gradient, model, batch, key, client=client, rows=rows, at_once=most)
            return found

        def step(carry: tuple[Array, Any], batch: Batch) -> tuple[Array, Any]:
            index, total = carry
            width = batch.mask.shape[0]
            batch = _weighted(batch, index * width + jnp.arange(width, dtype=jnp.int32), row_weights)
            part = jax.value_and_grad(task.loss)(model, batch, key_for(key, Stream.DROPOUT, index))
            rows, size = batch.mask.sum(), jnp.maximum(data.train.size[client], 1)

            def add(total: Array, leaf: Array) -> Array:
                return total + rows.astype(leaf.dtype) / size.astype(leaf.dtype) * leaf

            return index + 1, jax.tree.map(add, total, part)

        shapes = jax.eval_shape(jax.value_and_grad(task.loss), model, batch_shape(data), key)
        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return fold_rows(step, (jnp.int32(0), zero), data, data.train, client, at_once)[1]

    return run


def training_batch(data: FederatedData, client: Array, positions: Array, row_weights: Array | None) -> Batch:
    """Returns a client's training rows at some positions, with their weights of `row_weights [n]`, or None."""
    return _weighted(data.batch(data.train, client, positions), positions, row_weights)


def _weighted(batch: Batch, positions: Array, row_weights: Array | None) -> Batch:
    # padding may have positions behind the last row: it is given the weight of that
    return batch if row_weights is None else batch._replace(weights=row_weights.at[positions].get(mode="clip"))


def batch_shape(data: FederatedData) -> Batch:
    """Returns the shapes of a one-row batch."""
    return jax.eval_shape(lambda: data.batch(data.train, jnp.int32(0), jnp.arange(1, dtype=jnp.int32)))
