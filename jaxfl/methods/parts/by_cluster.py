"""The training of a round in which every client starts from its cluster's model: FedAvg in every cluster."""

from collections.abc import Callable

import jax.numpy as jnp

from jaxfl import tree
from jaxfl.client.training import Train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods.base import slots_of
from jaxfl.random import Stream, key_for
from jaxfl.server import aggregate
from jaxfl.typing import Array, Key, Params

Learn = Callable[..., tuple[aggregate.Total, Array]]


def learning(train: Train, weighting: aggregate.Weighting) -> Learn:
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
