"""Clustering all clients once, by what each has learned alone: training them all, and the nearest centre of each."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from jaxfl import engine, tree
from jaxfl.client.training import Train
from jaxfl.clustering import kmeans
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods.base import Info, takes_part, traffic
from jaxfl.random import Stream, key_for
from jaxfl.typing import Array, Key, Params

PointOf = Callable[[Key, Params], Array]
Compare = Literal["weights", "updates"]


def train_all_once(
    key: Key, model: Params, data: FederatedData, train: Train, point_of: PointOf, compare: Compare = "weights"
) -> tuple[Array, Array]:
    """Trains every client from one model, one-shot.

    Args:
        key: of the run.
        model: that all start from.
        data: the federation.
        train: a client's local training.
        point_of: `(key, model or update) -> [d]`.
        compare: what is sent, see `train_once`.

    Returns:
        The points `[N, d]` of what they send, and who has sent a finite model and takes part `[N]`; clients kept out of
        training send theirs just to be served.
    """
    points, finite = train_once(key, model, data, train, point_of, all_clients(model, data), compare)
    return points, finite & takes_part(data)


def train_once(
    key: Key, model: Params, data: FederatedData, train: Train, point_of: PointOf, cohort: Cohort, compare: Compare
) -> tuple[Array, Array]:
    """Trains every client of a cohort from one model, the same way whoever else is in it.

    Args:
        key, model, data, train, point_of: see `train_all_once`.
        cohort: who is trained.
        compare: what becomes a point: `"weights"`, the model, or `"updates"`, the model less the one it started from.

    Returns:
        The points `[C, d]`, and whose models are finite `[C]`; the others' points are of the model that they started
        from, or of no update.
    """

    def client(shared, client: Array):
        key, model, data = shared
        trained, _ = train(key_for(key, Stream.START, client=client), model, data, client, anchor=model)
        finite = tree.is_finite(trained)
        sent = tree.where(finite, trained, model)
        sent = jax.tree.map(jnp.subtract, sent, model) if compare == "updates" else sent
        return (), (point_of(key, sent), finite)

    return over_clients(client, (key, model, data), cohort)[1]


def all_clients(model: Params, data: FederatedData) -> Cohort:
    """Returns the cohort of all clients, who are sent one model, in a plan for this machine."""
    count = data.num_clients
    plan = engine.resolve_plan("auto", model, count)
    return Cohort.of(jnp.arange(count), plan)


def with_everybody(seen: Info, due: Array, data: FederatedData, *, up: Params, down: Params) -> Info:
    """Returns what is seen of a round, with what all clients but those held out sent and were sent if that was due.

    What `init` has them exchange is counted in the first round: `due` is then `state.round == 0`.

    Args:
        seen: of the cohort.
        due: bool `[]`, whether all were asked.
        data: the federation.
        up: pytree of arrays or shapes that one client sends.
        down: pytree of arrays or shapes that one client is sent.
    """
    asked = data.num_clients if data.held_out is None else (~jnp.asarray(data.held_out)).sum()
    times = jnp.where(due, asked, 0)
    return seen._replace(bytes_up=seen.bytes_up + traffic(times, up), bytes_down=seen.bytes_down + traffic(times, down))


def nearest_centre(points: Array, centres: Array) -> Array:
    """Returns the nearest centre of every point `[N]` int32; ties to the lowest."""
    return jnp.argmin(kmeans.squared_distances(points, centres), 1).astype(jnp.int32)
