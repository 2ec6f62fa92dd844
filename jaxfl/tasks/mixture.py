"""Tasks of K models: each on its own, trained together, or served as a mixture."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxfl.data.clients import Batch
from jaxfl.random import Stream, key_for
from jaxfl.tasks.contract import (
    Averages,
    Loss,
    Task,
    averages_of,
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


def stacked_task(task: Task, loss: Loss) -> Task:
    """Returns the task for training K models `[K, ...]` of a task as one, under a loss of all of them.

    Running averages of batch normalisation go on in each model, by the rows of the batch, whatever the loss is. The
    task is for training alone: it starts no models and has no outputs of its own.

    Args:
        task: of one model.
        loss: `(models, batch, key) -> []`, see `Task.loss`.
    """
    averages = averages_of(task)
    if averages is not None:
        of_all = with_moving_averages(averages, loss, lambda fn, models: for_each(task, fn, models).sum())
        averages = averages._replace(loss=of_all)
    return with_loss(task, loss, averages)


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
