"""Tasks of K models: each on its own, trained under weights of the rows, or served as a mixture."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxfl import tree
from jaxfl.data.clients import Batch
from jaxfl.models.fast.rewriting import in_fast_forms
from jaxfl.random import Stream, key_for
from jaxfl.tasks.contract import (
    Averages,
    Products,
    Task,
    averages_of,
    dense_layers_of,
    masked_mean,
    row_losses,
    with_constant_leaves,
    with_loss,
    with_moving_averages,
)
from jaxfl.typing import Array, Key, Params


def for_each(task: Task, fn: Callable[[Params], Any], models: Params) -> Any:
    """Returns `fn(model)` for each of the models `[K, ...]`, stacked.

    Side by side the K kernels of a dense layer are one product; a convolution is fastest with one kernel.

    Args:
        task: what the models learn.
        fn: of one model.
        models: `[K, ...]`.
    """
    return jax.lax.map(fn, models) if task.fast.replaced else jax.vmap(fn)(models)


def with_row_weights(task: Task) -> Task:
    """Returns the task for training under mean_j w_j loss_j, with the weights w of a batch's rows, `Batch.weights`.

    Running averages of batch normalisation go on by the rows of the batch, whatever the weights are.

    Args:
        task: what is learned.
    """
    losses, averages, dense = row_losses(task), averages_of(task), dense_layers_of(task)

    def loss(model: Params, batch: Batch, key: Key | None = None) -> Array:
        found = losses(model, batch, key)
        return masked_mean(found if batch.weights is None else batch.weights.astype(found.dtype) * found, batch.mask)

    if averages is not None:
        averages = averages._replace(loss=with_moving_averages(averages, loss))
    weighted = with_loss(task, loss, averages)
    if dense is None:
        return weighted
    fast = in_fast_forms(loss)

    def in_products(model: Params, batch: Batch, key: Key | None, products: Products) -> Array:
        names = tree.names(model)
        return fast(model, batch, key, products={names.index(name): one for name, one in products.items()})

    return weighted._replace(fast=weighted.fast._replace(dense=dense._replace(loss=in_products)))


def mixture(task: Task, count: int) -> Task:
    """Returns the task of a mixture: sum_m pi_m p_m, of K models.

    A model is `{"learners": [K, ...], "log_weights": [K]}`. Its outputs are mixed as the task says (`Task.mix`), and
    its loss is that of the mixture's likelihood, -log sum_m pi_m exp(-loss_m) of each row. Of classes it is the
    cross-entropy of the outputs. Training moves the learners; the weights stay, under weight decay, too.

    Args:
        task: of one model.
        count: K.

    Raises:
        ValueError: the task does not say how outputs are mixed.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> both = mixture(jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data), 2)
    >>> both.init(jax.random.key(0))["learners"]["Dense_0"]["kernel"].shape
    (2, 64, 10)
    """
    mix, losses_of = task.mix, row_losses(task)
    if mix is None:
        raise ValueError(
            "task must say how the outputs of several models are mixed, got mix=None; give it, "
            "task._replace(mix=lambda outputs, log_weights: ...), see jaxfl.tasks.contract; or take ifca."
        )

    def init(key: Key) -> Params:
        learners = jax.vmap(lambda index: task.init(key_for(key, Stream.INIT, index)))(jnp.arange(count))
        return {"learners": learners, "log_weights": -jnp.log(jnp.full(count, count, jnp.result_type(float)))}

    def weights_of(model: Params, like: Array) -> Array:
        return jax.nn.log_softmax(jax.lax.stop_gradient(model["log_weights"])).astype(like.dtype)

    def losses(model: Params, batch: Batch, key: Key | None = None) -> Array:
        each = for_each(task, lambda learner: losses_of(learner, batch, key), model["learners"])  # [K, B]
        return -jax.nn.logsumexp(weights_of(model, each)[:, None] - each, 0)

    def loss(model: Params, batch: Batch, key: Key | None = None) -> Array:
        return masked_mean(losses(model, batch, key), batch.mask)

    def outputs(model: Params, batch: Batch) -> Array:
        each = for_each(task, lambda learner: task.outputs(learner, batch), model["learners"])  # [K, B, ...]
        return mix(each, weights_of(model, each))

    names, learning, running = frozenset[str](), loss, averages_of(task)
    if running is not None:
        names = frozenset(f"learners/{name}" for name in running.names)
        learning = with_moving_averages(running, loss, lambda fn, model: for_each(task, fn, model["learners"]).sum())

    averages = Averages(names | {"log_weights"}, with_constant_leaves(learning, lambda model: [model["log_weights"]]))
    return with_loss(task, loss, averages)._replace(init=init, losses=losses, outputs=outputs)
