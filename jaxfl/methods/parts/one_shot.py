"""One-shot clustering: all clients train once from one model, and are clustered by their models or updates.

The distances may be of other data as well: PACFL clusters by angles between the clients' inputs, without training.
"""

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
    """Returns the clusters of all clients by agglomerative clustering of the known ones, and the number of clusters.

    Args:
        distance: `[N, N]`.
        known: bool `[N]`, the clients that are clustered.
        able: bool `[N]`, the clients with distances that count.
        linkage: see `clustering.linkage`.
        threshold: T.
        num_clusters: number of clusters of the known clients; replaces T.

    Returns:
        The clusters `[N]` int32: 0, 1, ... in the order of their first known members. A client that is able but not
        known is in the cluster of the nearest known client; a client that is not able, in the largest cluster. The
        number of clusters `[]` is at least 1.

    >>> distance = jnp.abs(jnp.arange(4.0)[:, None] - jnp.arange(4.0)[None])
    >>> known, able = jnp.array([False, True, True, False]), jnp.array([False, True, True, True])
    >>> cluster_clients(distance, known, able, "single", 0.5, None)[0].tolist()
    [0, 0, 1, 1]
    """
    # clients that are not known are infinitely far from all others and merge last
    merges = trees.linkage(jnp.where(known[:, None] & known[None], distance, jnp.inf), linkage)
    if num_clusters is None:
        label = trees.cut_by_threshold(merges, threshold)
    else:
        label = trees.cut_by_number(merges, num_clusters + (~known).sum(dtype=jnp.int32))
    size = jnp.zeros_like(label).at[label].add(known.astype(jnp.int32))  # [N] by label
    nearest = jnp.argmin(jnp.where(known[None], distance, jnp.inf), axis=1)
    home = jnp.where(known, label, jnp.where(able, label[nearest], jnp.argmax(size).astype(jnp.int32)))
    number = jnp.cumsum(size > 0, dtype=jnp.int32) - 1  # labels without a known client have no number
    return jnp.maximum(number[home], 0), jnp.maximum(number[-1] + 1, 1)


def grow(state: Any) -> Any:
    """Returns the state with twice the slots: `models` is repeated, and all models are equal before the clustering."""
    return state._replace(models=jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), state.models))


PointOf = Callable[[Key, Params], Array]


def train_all_once(
    key: Key, model: Params, data: FederatedData, train: Train, point_of: PointOf, compare: Compared = "weights"
) -> tuple[Array, Array]:
    """Returns the points of all clients after training from one model, and which of them are clustered.

    Args:
        key: of the run.
        model: that all start from.
        data: the federation.
        train: a client's local training.
        point_of: `(key, model or update) -> [d]`.
        compare: see `train_once`.

    Returns:
        The points `[N, d]`, and bool `[N]` for clients that take part and whose model is finite. Held-out clients train
        as well, to be served by a cluster.
    """
    points, finite = train_once(key, model, data, train, point_of, all_clients(model, data), compare)
    return points, finite & takes_part(data)


def train_once(
    key: Key, model: Params, data: FederatedData, train: Train, point_of: PointOf, cohort: Cohort, compare: Compared
) -> tuple[Array, Array]:
    """Returns the points of a cohort's clients after training from one model; they do not depend on the cohort.

    Args:
        key, model, data, train, point_of: see `train_all_once`.
        cohort: the clients that are trained.
        compare: the points are those of `"weights"`, the trained model, or of `"updates"`, its difference to `model`.

    Returns:
        The points `[C, d]`, and bool `[C]` for finite models. The point of a model that is not finite is that of
        `model`, or of a zero update.
    """

    def client(shared, client: Array):
        key, model, data = shared
        trained, _ = train(key_for(key, Stream.START, client=client), model, data, client, anchor=model)
        finite = tree.is_finite(trained)
        contribution = tree.where(finite, trained, model)
        if compare == "updates":
            contribution = jax.tree.map(jnp.subtract, contribution, model)
        return (), (point_of(key, contribution), finite)

    return over_clients(client, (key, model, data), cohort)[1]


def all_clients(model: Params, data: FederatedData) -> Cohort:
    """Returns the cohort of all clients, with a plan for this machine when all receive one model."""
    count = data.num_clients
    plan = resolve_plan("auto", model, count)
    return Cohort.of(jnp.arange(count), plan)


def add_exchange(info: Info, due: Array, data: FederatedData, *, up: Params, down: Params) -> Info:
    """Returns `info` with the bytes of an exchange with all clients that have rows and are not held out, if it was due.

    An exchange of `init` is counted in the first round: `due` is then `state.round == 0`.

    Args:
        info: of the cohort's round.
        due: bool `[]`, whether the exchange took place.
        data: the federation.
        up: pytree of arrays or shapes that one client sends.
        down: pytree of arrays or shapes that one client receives.
    """
    times = jnp.where(due, takes_part(data).sum(), 0)
    return info._replace(bytes_up=info.bytes_up + traffic(times, up), bytes_down=info.bytes_down + traffic(times, down))


def nearest_centre(points: Array, centres: Array) -> Array:
    """Returns the nearest centre of every point `[N]` int32; ties to the lowest."""
    return jnp.argmin(kmeans.squared_distances(points, centres), 1).astype(jnp.int32)
