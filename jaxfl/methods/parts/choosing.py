"""The model of the lowest loss: which of K models a client trains, and which one it is served (IFCA, HypCluster)."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from jaxfl.client.passes import mean_losses
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Assign
from jaxfl.methods.parts.starts import Losses
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

Rows = Literal["train", "test"]
Choose = Callable[[Any, FederatedData, Array], Array]


def losses_of(task: Task) -> Losses:
    """Returns `(models [K, ...], data, client) -> [K]`: their losses on a client's training rows; NaN is infinite."""
    losses_on_rows = mean_losses(task)

    def losses(models: Params, data: FederatedData, client: Array) -> Array:
        found = losses_on_rows(models, data, client)  # [K]
        return jnp.where(jnp.isnan(found), jnp.inf, found)

    return losses


def closest(losses: Array) -> Array:
    """Returns the model of the lowest of the losses `[K]`."""
    return jnp.argmin(losses).astype(jnp.int32)


def choosing(losses: Losses, *, grouped_rounds: int) -> Choose:
    """Returns `(state, data, client) -> []`, the cluster that a client trains in.

    The state has `models [K, ...]`, `cluster [N]` and `round []`.

    Args:
        losses: of all models.
        grouped_rounds: in the first of them it is the client's group, where all groups stay as they are.
    """

    def choose(state: Any, data: FederatedData, client: Array) -> Array:
        found = closest(losses(state.models, data, client))
        return jnp.where(data.train.size[client] > 0, found, state.cluster[client])  # who has no rows has no losses

    def after_warmup(state: Any, data: FederatedData, client: Array) -> Array:
        def own() -> Array:
            return state.cluster[client]  # its group, until the first choice

        return jax.lax.cond(state.round < grouped_rounds, own, lambda: choose(state, data, client))

    return after_warmup if grouped_rounds else choose


def assigning(losses: Losses, choose: Rows) -> Assign:
    """Returns `assign`, which serves every client with rows the model of the lowest loss on its `choose` rows."""

    def assign(key: Key, state: Any, data: FederatedData, cohort: Cohort) -> Any:
        del key
        # clients with as many training rows may have other numbers of test rows
        judged = data if choose == "train" else dataclasses.replace(data, train=data.test, filled=0.0)

        def client(shared, client: Array):
            models, data = shared
            return (), closest(losses(models, data, client))

        _, found = over_clients(client, (state.models, judged), cohort)
        found = jnp.where(judged.train.size[cohort.ids] > 0, found, state.cluster[cohort.ids])
        return state._replace(cluster=base.write_clusters(state.cluster, cohort, found))

    return assign
