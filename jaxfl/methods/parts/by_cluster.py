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

    Every client of the cohort trains its cluster's model out of `models [K, ...]`, and the result is added to the sum
    of its cluster in `total`; to no sum where `cluster [N]` is -1. The training's anchor is `anchor`, the same for all
    clients, or the model that the client starts from.

    Args:
        train: a client's local training.
        weighting: of the clients in the mean of their cluster.
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
            return aggregate.contribute(model, weight, cluster[client], slots_of(models), start=start), loss

        return over_clients(client, (key, (anchor, models, cluster, round), data), cohort)

    return learn


def cluster_averaging(train: Train, weighting: aggregate.Weighting) -> Callable[..., tuple[Params, Info]]:
    """Returns `step(key, models, cluster, round, data, cohort, *, num_clusters, overflow=0) -> (models, info)`.

    A step is a round of FedAvg in every cluster. `num_clusters` and `overflow` go into `info`; a cluster without a
    finite contribution keeps its model.

    Args:
        train: a client's local training.
        weighting: of the clients in the mean of their cluster.
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
        model = base.shape_of(models)
        info = base.info(
            cohort,
            loss,
            cluster[cohort.ids],
            num_clusters=num_clusters,
            diverged=total.diverged,
            up=model,
            down=model,
            overflow=overflow,
        )
        return aggregate.mean(total, empty=models), info

    return step


def cluster_models(models: Params, cluster: Array, initial: Params) -> Params:
    """Returns the models `[C, ...]` of the clusters `[C]`, and the initial model where a cluster is -1."""
    chosen = tree.take(models, jnp.maximum(cluster, 0))
    return tree.where(cluster >= 0, chosen, tree.repeat(initial, cluster.shape[0]))
