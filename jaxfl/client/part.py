"""Local training of a part of a model, whose other leaves stay as they are, bit for bit.

The part is a tree of its own, in which None stands for the leaves that stay (`tree.partition`). So no gradient is
computed for those, and no optimiser sees them: no momentum, weight decay or norm of the whole reaches across.
"""

from collections.abc import Callable

import optax

from jaxfl import tree
from jaxfl.client.steps import Epochs
from jaxfl.client.training import Train, local_train
from jaxfl.data.clients import FederatedData
from jaxfl.tasks import Task
from jaxfl.tasks.contract import averages_of, dense_layers_of, with_loss
from jaxfl.typing import Array, Key, Params


def train_part(
    task: Task,
    optimizer: optax.GradientTransformation,
    chosen: Params,
    *,
    local_epochs: Epochs,
    batch_size: int | None,
) -> Train:
    """Returns `local_train` of some leaves of the model.

    Args:
        task: what is learned.
        optimizer: the local optimiser, of these leaves.
        chosen: bool for every leaf of the model, see `tree.matching`.
        local_epochs: as in `local_train`.
        batch_size: as in `local_train`.

    Returns:
        `(key, model, data, client, *, anchor=None) -> (model, loss)`; the optimiser gets these leaves of the anchor.

    Raises:
        ValueError: `local_epochs` or `batch_size` is out of range.
    """
    local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size)  # refuses what is out of range

    def train(
        key: Key, model: Params, data: FederatedData, client: Array, *, anchor: Params | None = None
    ) -> tuple[Params, Array]:
        part, rest = tree.partition(model, chosen)
        extra = {} if anchor is None else {"anchor": tree.partition(anchor, chosen)[0]}
        own = local_train(part_task(task, rest), optimizer, local_epochs=local_epochs, batch_size=batch_size)
        trained, loss = own(key, part, data, client, **extra)
        return tree.combine(trained, rest), loss

    return train


def part_task(task: Task, rest: Params) -> Task:
    """Returns the task of learning a part of a model, given its other leaves; losses are functions of the part alone.

    Args:
        task: of the whole model.
        rest: the leaves that stay, None where the others are; arrays or traced.

    >>> task = Task(lambda key: {"a": 1.0, "b": 2.0}, lambda model, batch, key: model["a"] * model["b"], lambda *_: 0)
    >>> float(part_task(task, {"a": None, "b": 2.0}).loss({"a": 3.0, "b": None}, None, None))
    6.0
    """

    def whole(loss: Callable[..., Array]) -> Callable[..., Array]:
        return lambda part, *others: loss(tree.combine(part, rest), *others)

    still = set(tree.names(rest))
    dense, averages = dense_layers_of(task), averages_of(task)
    if dense is not None:
        first, inner = (tuple(name for name in names if name not in still) for names in (dense.first, dense.inner))
        dense = dense._replace(first=first, inner=inner, loss=whole(dense.loss)) if first + inner else None
    if averages is not None:
        averages = averages._replace(loss=whole(averages.loss))
    return with_loss(task, whole(task.loss), averages)._replace(fast=task.fast._replace(dense=dense))
