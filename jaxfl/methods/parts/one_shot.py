"""Clustering all clients once, by what each has learned alone: training them all, and the nearest centre of each."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxfl import tree
from jaxfl.client.training import Train
from jaxfl.clustering import kmeans
from jaxfl.clustering import linkage as trees
from jaxfl.clustering.merging import Linkage
from jaxfl.cohort import Cohort, resolve_plan
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods.base import Info, takes_part, traffic
from jaxfl.methods.parts.vectors import Compared
from jaxfl.random import Stream, key_for
from jaxfl.typing import Array, Key, Params


def cluster_clients(
    distance: Array,
    known: Array,
    able: Array,
    linkage: Linkage,
    threshold: float | Array,
    num_clusters: int | None,
) -> tuple[Array, Array]:
    """Clusters the known clients, and finds a place for everybody else.

    Args:
        distance: `[N, N]`.
        known: bool `[N]`, who makes the clusters.
        able: bool `[N]`, whose distances mean something.
        linkage: see `clustering.linkage`.
        threshold: T.
        num_clusters: of the known, instead of T.

    Returns:
        The clusters `[N]` int32: 0, 1, ... in the order of their first known members. Who is able but not known is in
        that of the nearest who is; who is not able, in the largest. And their number, at least 1.

    >>> distance = jnp.abs(jnp.arange(4.0)[:, None] - jnp.arange(4.0)[None])
    >>> known, able = jnp.array([False, True, True, False]), jnp.array([False, True, True, True])
    >>> cluster_clients(distance, known, able, "single", 0.5, None)[0].tolist()
    [0, 0, 1, 1]
    """
    # infinitely far away from everybody, the unknown merge last
    merges = trees.linkage(jnp.where(known[:, None] & known[None], distance, jnp.inf), linkage)
    if num_clusters is None:
        label = trees.cut_by_threshold(merges, threshold)
    else:
        label = trees.cut_by_number(merges, num_clusters + (~known).sum(dtype=jnp.int32))
    size = jnp.zeros_like(label).at[label].add(known.astype(jnp.int32))  # [N] by label
    nearest = jnp.argmin(jnp.where(known[None], distance, jnp.inf), axis=1)
    home = jnp.where(known, label, jnp.where(able, label[nearest], jnp.argmax(size).astype(jnp.int32)))
    number = jnp.cumsum(size > 0, dtype=jnp.int32) - 1  # labels without anybody known have none
    return jnp.maximum(number[home], 0), jnp.maximum(number[-1] + 1, 1)


def grow(state: Any) -> Any:
    """Returns the state with twice the slots: its `models` twice, which are all alike until clusters are found."""
    return state._replace(models=jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), state.models))


PointOf = Callable[[Key, Params], Array]


def train_all_once(
    key: Key, model: Params, data: FederatedData, train: Train, point_of: PointOf, compare: Compared = "weights"
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
    key: Key, model: Params, data: FederatedData, train: Train, point_of: PointOf, cohort: Cohort, compare: Compared
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
    plan = resolve_plan("auto", model, count)
    return Cohort.of(jnp.arange(count), plan)


def add_exchange(seen: Info, due: Array, data: FederatedData, *, up: Params, down: Params) -> Info:
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
