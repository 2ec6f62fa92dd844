"""Clustering all clients once, by what each has learned alone: training them all, and the nearest centre of each."""

import jax.numpy as jnp

from jaxfl import engine, tree
from jaxfl.client.training import Train
from jaxfl.clustering import kmeans
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.random import Stream, key_for
from jaxfl.typing import Array, Key, Params


def train_all_once(key: Key, model: Params, data: FederatedData, train: Train, point_of) -> tuple[Array, Array]:
    """Trains every client from one model, one-shot.

    Args:
        key: of the run.
        model: that all start from.
        data: the federation.
        train: a client's local training.
        point_of: `(key, model) -> [d]`.

    Returns:
        The points `[N, d]` of what they send, and who has sent a finite model and takes part `[N]`; the others' point
        is that of the model they started from, and clients kept out of training send theirs just to be served.
    """

    def client(shared, client: Array):
        key, model, data = shared
        trained, _ = train(key_for(key, Stream.START, client=client), model, data, client, anchor=model)
        finite = tree.is_finite(trained)
        return (), (point_of(key, tree.where(finite, trained, model)), finite)

    _, (points, finite) = over_clients(client, (key, model, data), all_clients(model, data))
    known = finite & (jnp.asarray(data.train.size) > 0)
    return points, known if data.held_out is None else known & ~jnp.asarray(data.held_out)


def all_clients(model: Params, data: FederatedData) -> Cohort:
    """Returns the cohort of all clients, who are sent one model, in a plan for this machine."""
    count = data.num_clients
    plan = engine.resolve_plan("auto", model, count)
    return Cohort.of(jnp.arange(count), plan)


def nearest_centre(points: Array, centres: Array) -> Array:
    """Returns the nearest centre of every point `[N]` int32; ties to the lowest."""
    return jnp.argmin(kmeans.squared_distances(points, centres), 1).astype(jnp.int32)
