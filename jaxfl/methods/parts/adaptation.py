"""Fine-tuning as a part of a method, in which clients train before they are served, see `Method.adapt`."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.corrections import proximal_pull
from jaxfl.client.part import train_part
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Adapt, Info, Method
from jaxfl.methods.parts.vectors import chosen_leaves
from jaxfl.random import Stream, key_for
from jaxfl.schema import is_zero
from jaxfl.tasks import Task
from jaxfl.tasks.contract import averages_of
from jaxfl.typing import Array, Key, Params


def fine_tuning(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    epochs: Epochs,
    batch_size: int | None,
    proximal_weight: float = 0.0,
    chosen: Params | None = None,
) -> Adapt:
    """Returns `adapt(key, state, data, client, model) -> model`: local training of the model before it is served.

    Args:
        task: what is learned.
        optimizer: the local optimiser; its state starts fresh.
        epochs: passes over the client's training rows.
        batch_size: B; None takes all rows at once.
        proximal_weight: mu, the pull to the model that the training starts from.
        chosen: bool for every leaf of the model: whether it is trained; None trains all.
    """
    pulled = not is_zero(proximal_weight)
    local = optax.chain(proximal_pull(proximal_weight), optimizer) if pulled else optimizer
    passes = {"local_epochs": epochs, "batch_size": batch_size}
    train = local_train(task, local, **passes) if chosen is None else train_part(task, local, chosen, **passes)

    def adapt(key: Key, state: Any, data: FederatedData, client: Array, model: Params) -> Params:
        own_key = key_for(key, Stream.FINETUNE, state.round, client)
        return train(own_key, model, data, client, **({"anchor": model} if pulled else {}))[0]

    return adapt


def tuned_leaves(task: Task, part: str | Sequence[str]) -> Params | None:
    """Returns a bool for every leaf of the task's model: whether a part of it has this leaf; None for the whole model.

    Args:
        task: what is learned.
        part: `"all"`; `"head"`, the layer that the model creates last; `"body"`, the other layers; or patterns of
            parameters' names, see `tree.matching`.

    Raises:
        ValueError: a pattern matches no parameter, or the part has none that is trained.
    """
    if part == "all":
        return None
    chosen = chosen_leaves(task, None if part in ("head", "body") else part, "part")
    if part == "body":
        chosen = jax.tree.map(lambda of_head: not of_head, chosen)
    averages = averages_of(task)
    still = frozenset[str]() if averages is None else averages.names
    named = dict(zip(tree.names(chosen), jax.tree.leaves(chosen), strict=True))
    if not any(is_chosen and name not in still for name, is_chosen in named.items()):
        raise ValueError(
            f"part must have parameters that are trained, got {part!r}; the model's are "
            f"{', '.join(name for name in named if name not in still)}."
        )
    return chosen


def adapted(method: Method, adapt: Adapt) -> Method:
    """Returns the method whose model each client adapts before it is served: every client is in a cluster of its own.

    Args:
        method: of a model for all clients; its state has `cluster`.
        adapt: see `Method.adapt`.
    """

    def init(key: Key, data: FederatedData) -> Any:
        return method.init(key, data)._replace(cluster=jnp.arange(data.num_clients, dtype=jnp.int32))

    def round(key: Key, state: Any, data: FederatedData, cohort: Cohort) -> tuple[Any, Info]:
        state, info = method.round(key, state, data, cohort)
        return state, info._replace(cluster=cohort.ids, num_clusters=jnp.int32(data.num_clients))

    return method._replace(init=init, round=round, adapt=adapt)


def random_rows(key: Key, data: FederatedData, client: Array, count: Array, slots: int) -> Array:
    """Returns the positions `[slots]` int32 of `count` random training rows of a client; padding follows them.

    Args:
        key: of the draw.
        data: the federation.
        client: its id.
        count: at most its number of rows.
        slots: at least `data.train.max_size`.
    """
    places = jnp.arange(slots, dtype=jnp.int32)
    bits = jax.random.bits(key, (slots,), jnp.uint32) >> 1
    padding = jnp.where(places < data.train.size[client], jnp.uint32(0), jnp.uint32(1) << 31)
    return jnp.where(places < count, jnp.argsort(bits | padding).astype(jnp.int32), slots)


def tuning_epochs(finetune_epochs: int | None, local_epochs: Epochs, *, least: int, remedy: str) -> Epochs:
    """Returns the epochs of fine-tuning: `finetune_epochs`, or `local_epochs` for None, which rounds check.

    Raises:
        ValueError: `finetune_epochs` are fewer than `least`.

    >>> tuning_epochs(None, 5, least=1, remedy="")
    5
    """
    if finetune_epochs is None:
        return local_epochs
    if finetune_epochs < least:
        raise ValueError(f"finetune_epochs must be at least {least}, got {finetune_epochs}; {remedy}.")
    return finetune_epochs
