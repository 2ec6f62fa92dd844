"""Tasks of two models whose outputs are added, and of one of them on what the other one leaves."""

import jax

from jaxfl.data.clients import Batch
from jaxfl.random import Stream, key_for
from jaxfl.tasks.contract import (
    Averages,
    OffsetLosses,
    Task,
    averages_of,
    masked_mean,
    with_loss,
    with_moving_averages,
)
from jaxfl.typing import Array, Key, Params


def offset_losses_of(task: Task) -> OffsetLosses:
    """Returns `(model, batch, key, offset) -> [B]`, the loss of each row with an offset of the outputs.

    Raises:
        ValueError: the task does not have it.
    """
    known = task.offset_losses if task.made_for in (None, task.loss) else None
    if known is None:
        raise ValueError(
            "task must have the loss of its rows where an offset is added to the outputs, got offset_losses=None; give "
            "it, task._replace(offset_losses=lambda model, batch, key, offset: ...), see jaxfl.tasks.Task."
        )
    return known


def additive(task: Task) -> Task:
    """Returns the task of a model `{"shared", "own"}`, two models of a task: its outputs are the sum of theirs.

    For classes these are sums of logits. While both are trained, as in fine-tuning, `"shared"` has no dropout and
    computes with its running averages, which are brought up to date.

    Args:
        task: of each model.

    Raises:
        ValueError: the task does not say its loss with an offset of the outputs.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> both = additive(jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data))
    >>> sorted(both.init(jax.random.key(0)))
    ['own', 'shared']
    """
    losses_of, running = offset_losses_of(task), averages_of(task)

    def init(key: Key) -> Params:
        return {"shared": task.init(key), "own": task.init(key_for(key, Stream.INIT, 1))}

    def outputs(model: Params, batch: Batch) -> Array:
        return task.outputs(model["shared"], batch) + task.outputs(model["own"], batch)

    def losses(model: Params, batch: Batch, key: Key | None = None) -> Array:
        shared = model["shared"]
        if running is not None:
            chosen = running.chosen(shared)
            shared = jax.tree.map(lambda one, leaf: jax.lax.stop_gradient(leaf) if one else leaf, chosen, shared)
        return losses_of(model["own"], batch, key, task.outputs(shared, batch))

    def loss(model: Params, batch: Batch, key: Key | None = None) -> Array:
        return masked_mean(losses(model, batch, key), batch.mask)

    averages = None
    if running is not None:
        names = frozenset(f"{part}/{name}" for part in ("shared", "own") for name in running.names)
        moving = with_moving_averages(running, loss, lambda fn, model: fn(model["shared"]) + fn(model["own"]))
        averages = Averages(names, moving)
    return with_loss(task, loss, averages)._replace(init=init, losses=losses, outputs=outputs)


def residual_task(task: Task, other: Params) -> Task:
    """Returns the task of training a model on what another one leaves: the loss is of the sum of their outputs.

    The other model stays as it is, and computes as in a test: without dropout, and with its running averages.

    Args:
        task: of each model.
        other: the model that stays; arrays or traced.

    Raises:
        ValueError: the task does not say its loss with an offset of the outputs.
    """
    losses_of, averages = offset_losses_of(task), averages_of(task)

    def loss(model: Params, batch: Batch, key: Key | None = None) -> Array:
        return masked_mean(losses_of(model, batch, key, task.outputs(other, batch)), batch.mask)

    if averages is not None:
        averages = averages._replace(loss=with_moving_averages(averages, loss))
    return with_loss(task, loss, averages)
