"""The training of a round in which every client starts from its cluster's model: FedAvg in every cluster."""

from collections.abc import Callable

import jax.numpy as jnp

from jaxfl import tree
from jaxfl.client.training import Train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Info, slots_of
from jaxfl.random import Stream, key_for
from jaxfl.server import aggregate
from jaxfl.typing import Array, Key, Params

ClusterTraining = Callable[..., tuple[aggregate.Total, Array]]


def cluster_training(train: Train, weighting: aggregate.Weighting) -> ClusterTraining:
    """Returns `learn(key, models, cluster, round, data, cohort, *, anchor=None) -> (total, losses [C])`.

    Every client of the cohort trains its cluster's model out of `models [K, ...]`, and its model goes into the sum of
    its cluster in `total`; into none if `cluster [N]` has -1 for it. The training's anchor is the one given, the same
    for all, or the model that the client starts from.

    Args:
        train: a client's local training.
        weighting: of a cluster's clients.
    """

    def learn(
        key: Key,
        models: Params,
        cluster: Array,
        round: Array,
        data: FederatedData,
        cohort: Cohort,
        *,
        anchor: Params | None = None,
    ) -> tuple[aggregate.Total, Array]:
        def client(shared, client: Array):
            key, (anchor, models, cluster, round), data = shared
            start = tree.take(models, jnp.maximum(cluster[client], 0))
            client_key = key_for(key, Stream.BATCHES, round, client)
            model, loss = train(client_key, start, data, client, anchor=start if anchor is None else anchor)
            weight = aggregate.client_weight(data, client, weighting)
            return aggregate.contribute(model, weight, cluster[client], slots_of(models)), loss

        return over_clients(client, (key, (anchor, models, cluster, round), data), cohort)

    return learn


def cluster_averaging(train: Train, weighting: aggregate.Weighting) -> Callable[..., tuple[Params, Info]]:
    """Returns a round of FedAvg in every cluster.

    `step(key, models, cluster, round, data, cohort, *, num_clusters, overflow=0) -> (models, info)`: `num_clusters` and
    `overflow` are for `info`; a cluster that nobody is heard of keeps its model.

    Args:
        train: a client's local training.
        weighting: of a cluster's clients.
    """
    learn = cluster_training(train, weighting)

    def step(
        key: Key,
        models: Params,
        cluster: Array,
        round: Array,
        data: FederatedData,
        cohort: Cohort,
        *,
        num_clusters: Array,
        overflow: Array | int = 0,
    ) -> tuple[Params, Info]:
        total, loss = learn(key, models, cluster, round, data, cohort)
        found, one = cluster[cohort.ids], base.shape_of(models)
        seen = base.info(
            cohort,
            loss,
            found,
            num_clusters=num_clusters,
            diverged=total.diverged,
            up=one,
            down=one,
            overflow=overflow,
        )
        return aggregate.mean(total, empty=models), seen

    return step


def cluster_models(models: Params, cluster: Array, initial: Params) -> Params:
    """Returns the models `[C, ...]` that clients of these clusters `[C]` are served; at -1 it is the initial one."""
    own = tree.take(models, jnp.maximum(cluster, 0))
    return tree.where(cluster >= 0, own, tree.repeat(initial, cluster.shape[0]))
