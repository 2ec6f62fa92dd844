"""FLUX: clients are clustered once by statistics of their features; newcomers find their cluster without labels.

Fenoglio, Li, Barbiero, Lane, Langheinrich and Gjoreski, "FLUX: Efficient Descriptor-Driven Clustered Federated Learning
under Arbitrary Distribution Shifts", NeurIPS 2025.

    rounds 0 to n - 1    FedAvg:                                             theta <- sum_i (n_i / n) theta_i
    round n              every client sends a descriptor of its training rows at theta. With the features z of a row,
                         the input of the last layer, projected to p = Q'z, q = L numbers:
                             the mean and the deviation of p over all rows, and over those of each class
                         each of these 2 (1 + L) groups of q numbers is scaled to [0, 1] over all clients;
                         clusters are the connected components of the graph of the clients within eps, where eps is the
                         elbow of the sorted distances to the nearest other client
    from round n on      FedAvg in every cluster, each from theta; the clusters do not change

The components are those of DBSCAN with two points, where every noise point is a cluster of its own: single linkage, cut
at eps. A class with fewer than 2 rows has -1 in place of its means and deviations, by which clients with other classes
differ most. The number of clusters is a result.

A client that was not clustered, held out or new, needs no labels: the mean and the deviation of p over all its rows, at
theta, are compared with the mean descriptors of the clusters (`newcomers="unlabelled"`); two clusters that differ by
their labels alone are then not told apart. `"labelled"` compares whole descriptors, as the official simulation does for
clients that were not sampled in round n. A client without rows is in no cluster (-1) and is served theta; one
whose features are not finite is in the largest.

Where the official code differs: round n is 3 at the earliest, and the first one after a round that has raised the mean
validation accuracy by less than 0.06, or after 80 % of the rounds; here `warmup_rounds` says it. The features are the
flattened outputs of the convolutions, of LeNet also below the hidden layers. Q is the PCA of 200 points that are drawn
uniformly up to the largest feature, which is a fixed random projection, less their mean; here Q has random orthonormal
columns and nothing is subtracted. The elbow is Kneedle's first, from the right, and without one the code stops; here it
is the point farthest below the chord, which always exists. With noise for differential privacy each number of a
descriptor has the whole epsilon; there is none here. Its settings: E = 2, B = 64, SGD of rate 0.005 with momentum 0.9.
The paper's text was not available: the rule is the code's.
"""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.passes import fold_rows, rows_at_once
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.clustering import distances, kmeans
from jaxfl.clustering.components import threshold_components
from jaxfl.clustering.elbow import chord_elbow
from jaxfl.cohort import Cohort
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method, Participation
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.by_cluster import cluster_averaging, cluster_models
from jaxfl.methods.parts.heads import Head, find_head, with_features
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked, is_known
from jaxfl.server import aggregate
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

ABSENT = -1.0  # in place of the statistics of a class with fewer than two rows


class FLUXState(NamedTuple):
    """Slots of models; clustering takes one for every cluster."""

    models: Params  # [K, ...]; the global model in slot 0, until there are clusters
    theta: Params  # of round n; the initial one before it
    centroids: Array  # [K, 2, 1 + L, q] mean scaled descriptors; infinite in free slots
    low: Array  # [2, 1 + L] least number of each group
    width: Array  # [2, 1 + L] difference of its largest and least number; 1 where they are equal
    placed: Array  # [N] bool, whether a client has a cluster by the clustering or by its descriptor
    cluster: Array  # [N] int32, until then 0; -1 without rows
    num_clusters: Array  # [] int32, until then 0
    round: Array  # [] int32


@server_sees(
    Seen("data", "means and deviations of each client's projected features, by class, once; else sums of models")
)
@checked
def flux(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    warmup_rounds: int = 3,
    threshold: Traceable | None = None,
    newcomers: Literal["unlabelled", "labelled"] = "unlabelled",
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "rows",
    slots: int = 16,
) -> Method:
    """Returns FLUX.

    Args:
        task: a classification whose network ends with a dense layer.
        optimizer: the local optimiser.
        warmup_rounds: n, rounds of FedAvg before the clustering; it waits for a round with clients.
        threshold: eps, distance of scaled descriptors within which clients are in one cluster; None finds it by the
            elbow.
        newcomers: part of the descriptor by which clients that were not clustered are placed: the `"unlabelled"` one,
            or the whole `"labelled"` one.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: weights of the models in a mean: `"rows"` (n_i / n) or `"uniform"` (1 / m); all descriptors count
            equally.
        slots: cluster models at the start; the simulator doubles them when they run out.

    Raises:
        ValueError: an option is out of range, or the network does not end with a dense layer.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=80)
    >>> task = jaxfl.classification(jaxfl.models.MLP(hidden=(64,), num_classes=10), data)
    >>> result = jaxfl.run(flux(task, optax.sgd(0.1)), data, rounds=4, cohort=4, seed=0)
    >>> result.state.cluster.tolist()  # eight clients are few for an elbow
    [0, 0, 1, 2, 3, 4, 5, 6]
    """
    _check_arguments(warmup_rounds, threshold, slots)
    head = find_head(task, "flux")
    describe = descriptors(task, head)
    train = local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size)
    step = cluster_averaging(train, weighting)

    def init(key: Key, data: FederatedData) -> FLUXState:
        model, count = task.init(key_for(key, Stream.INIT)), data.num_clients
        shape = 2, 1 + head.classes, projected_size(head)
        dtype = head.weights(model)[0].dtype
        return FLUXState(
            tree.repeat(model, slots),
            model,
            jnp.full((slots, *shape), jnp.inf, dtype),
            jnp.zeros(shape[:2], dtype),
            jnp.ones(shape[:2], dtype),
            jnp.zeros(count, bool),
            jnp.zeros(count, jnp.int32),
            jnp.int32(0),
            jnp.int32(0),
        )

    def cluster_all(key: Key, state: FLUXState, data: FederatedData, cohort: Cohort) -> FLUXState:
        """Returns the state after the clustering, where all models are theta."""
        # no larger chunk than in training: a plan for a whole cohort at once may lack memory for all clients
        plan = cohort.plan._replace(chunk=cohort.plan.chunk or cohort.ids.shape[0])
        everybody = Cohort.of(jnp.arange(data.num_clients), plan)
        theta, places = tree.take(state.models, 0), base.slots_of(state.models)
        found = describe(key, theta, data, everybody)  # [N, 2, 1 + L, q]
        able = jnp.isfinite(jnp.square(found).sum((1, 2, 3))) & (data.train.size > 0)
        known = able & base.takes_part(data)
        low, width = group_ranges(found, known)
        points = jnp.where(known[:, None, None, None], scale_groups(found, low, width), 0)
        label = neighbour_components(points.reshape(points.shape[0], -1), known, threshold)
        number = (known & (label == jnp.arange(len(label), dtype=jnp.int32))).sum(dtype=jnp.int32)
        label = jnp.where(known, rank_labels(label), -1)
        slot = jnp.where(known, label, places)
        sums = jnp.zeros_like(state.centroids).at[slot].add(points, mode="drop")
        members = jnp.zeros(places, points.dtype).at[slot].add(1, mode="drop")
        clustered = state._replace(
            models=tree.repeat(theta, places),
            theta=theta,
            centroids=aggregate.divide(sums, members, jnp.full_like(sums, jnp.inf)),
            low=low,
            width=width,
            placed=known,
            cluster=label,
            num_clusters=jnp.maximum(number, 1),
        )
        # rows that are not finite have no descriptor: their client trains, and is counted, in the largest cluster
        largest = jnp.where(data.train.size > 0, jnp.argmax(members).astype(jnp.int32), -1)
        home = jnp.where(able, nearest(clustered, found), largest)
        return clustered._replace(placed=able, cluster=jnp.where(known, label, home))

    def nearest(state: FLUXState, found: Array) -> Array:
        """Returns the nearest clusters of descriptors `[M]` int32."""
        part = slice(0, 1) if newcomers == "unlabelled" else slice(None)  # of all rows, and of each class
        points = scale_groups(found, state.low, state.width)[:, :, part].reshape(found.shape[0], -1)
        occupied = jnp.isfinite(state.centroids[:, 0, 0, 0])
        centres = jnp.where(occupied[:, None, None, None], state.centroids, 0)[:, :, part]
        away = kmeans.squared_distances(points, centres.reshape(centres.shape[0], -1))
        return jnp.argmin(jnp.where(occupied[None], away, jnp.inf), 1).astype(jnp.int32)

    def unplaced(state: FLUXState, data: FederatedData, cohort: Cohort) -> Array:
        """Returns the clients of a cohort that are to be placed `[C]`: none before the clustering."""
        able = data.train.size[cohort.ids] > 0
        return cohort.mask & able & (state.num_clusters > 0) & ~state.placed[cohort.ids]

    def place(key: Key, state: FLUXState, data: FederatedData, cohort: Cohort) -> FLUXState:
        """Returns the state where clients that were not clustered have the cluster that is nearest to them."""
        new = unplaced(state, data, cohort)

        def place_new() -> FLUXState:
            found = describe(key, state.theta, data, cohort)
            able = new & jnp.isfinite(jnp.square(found).sum((1, 2, 3)))
            ids = jnp.where(able, cohort.ids, data.num_clients)
            placed = state.placed.at[ids].set(True, mode="drop")
            return state._replace(placed=placed, cluster=state.cluster.at[ids].set(nearest(state, found), mode="drop"))

        return jax.lax.cond(new.any(), place_new, lambda: state)

    def round(key: Key, state: FLUXState, data: FederatedData, cohort: Cohort) -> tuple[FLUXState, Info]:
        due = (state.round >= warmup_rounds) & (state.num_clusters == 0) & cohort.mask.any()
        late = unplaced(state, data, cohort).sum()
        state = jax.lax.cond(
            due, lambda: cluster_all(key, state, data, cohort), lambda: place(key, state, data, cohort)
        )
        overflow = base.doublings(state.num_clusters, base.slots_of(state.models))
        numbers = {"num_clusters": jnp.maximum(state.num_clusters, 1), "overflow": overflow}
        models, info = step(key, state.models, state.cluster, state.round, data, cohort, **numbers)

        everybody = base.takes_part(data)
        there = jnp.zeros(data.num_clients, bool).at[jnp.where(cohort.mask, cohort.ids, data.num_clients)]
        others = everybody & ~there.set(True, mode="drop")  # who receives theta for its descriptor alone
        descriptor = base.shape_of(state.centroids)
        unlabelled = jax.ShapeDtypeStruct((2, descriptor.shape[2]), descriptor.dtype)
        info = info._replace(
            bytes_up=info.bytes_up
            + base.traffic(jnp.where(due, everybody.sum(), 0), descriptor)
            + base.traffic(late, unlabelled if newcomers == "unlabelled" else descriptor),
            bytes_down=info.bytes_down + base.traffic(jnp.where(due, others.sum(), 0) + late, state.theta),
        )
        return state._replace(models=models, round=state.round + 1), info

    def assign(key: Key, state: FLUXState, data: FederatedData, cohort: Cohort) -> FLUXState:
        return state._replace(cluster=place(key, state, data, cohort).cluster)

    def client_params(state: FLUXState, ids: Array) -> Params:
        return cluster_models(state.models, state.cluster[ids], state.theta)

    def shortfall(state: FLUXState, data: FederatedData, participation: Participation) -> str:
        number, count = int(state.num_clusters), base.clients_to_train(data).sum()
        if not number:
            return (
                f"The clients were not clustered, since that follows warmup_rounds={warmup_rounds} and the run had "
                f"{int(state.round)} rounds: make more rounds, or lower warmup_rounds."
            )
        if number >= count > 1 and threshold is not None:
            return f"No two clients were within threshold={threshold}, so that each is alone: raise threshold."
        if number == 1 < count and (threshold is None or threshold < math.inf):
            bound = "the elbow of their distances" if threshold is None else f"threshold={threshold}"
            remedy = "give a threshold" if threshold is None else "lower threshold"
            return f"All {count} clients merged within {bound} to one cluster: {remedy}."
        return ""

    return Method(init, round, client_params, task, assign, grow=grow, reads="everybody", shortfall=shortfall)


def projected_size(head: Head) -> int:
    """Returns q, the length of projected features: the number of classes, or of features if that is less."""
    return min(head.classes, head.features)


def projection(key: Key, head: Head) -> Array:
    """Returns Q `[d, q]`, random orthonormal columns, the same for all clients of a run."""
    draw = jax.random.normal(key_for(key, Stream.SKETCH), (head.features, projected_size(head)))
    return jnp.linalg.qr(draw)[0]


def descriptors(task: Task, head: Head):
    """Returns `(key, model, data, cohort) -> [C, 2, 1 + L, q]`: means and deviations of projected features.

    Group 0 has all training rows, whatever their labels; group 1 + k those of class k. The deviation is that of the
    population. A class with fewer than two rows has -1 everywhere.

    Args:
        task: what is learned.
        head: of its network.
    """
    look = with_features(task.outputs, head)

    def describe(key: Key, model: Params, data: FederatedData, cohort: Cohort) -> Array:
        wide = head.weights(model)[0].dtype
        size = 1 + head.classes, projected_size(head)

        def client(shared, client: Array):
            model, columns, data = shared

            def add(carry: tuple[Array, Array, Array], batch: Batch) -> tuple[Array, Array, Array]:
                x = look(model, batch).features.astype(wide)
                points = jnp.matmul(jnp.where(batch.mask[:, None], x, 0), columns, precision="highest")  # [B, q]
                classes = jax.nn.one_hot(batch.y, head.classes, dtype=wide)
                members = jnp.concatenate([jnp.ones_like(classes[:, :1]), classes], 1)
                return merge_moments(carry, moments(points, jnp.where(batch.mask[:, None], members, 0)))

            zero = jnp.zeros(size[0], wide), jnp.zeros(size, wide), jnp.zeros(size, wide)
            rows, mean, squares = fold_rows(add, zero, data, data.train, client, rows_at_once(task, model))
            deviation = jnp.sqrt(squares / jnp.maximum(rows, 1)[:, None])
            few = (rows < 2) & (jnp.arange(size[0], dtype=jnp.int32) > 0)
            return (), jnp.where(few[None, :, None], ABSENT, jnp.stack([mean, deviation]))

        return over_clients(client, (model, projection(key, head).astype(wide), data), cohort)[1]

    return describe


def moments(points: Array, members: Array) -> tuple[Array, Array, Array]:
    """Returns counts `[G]`, means `[G, q]` and sums of squared deviations `[G, q]` of the points of each group.

    Args:
        points: `[B, q]`.
        members: `[B, G]`, 1 for the points of a group.
    """
    rows = members.sum(0)
    safe = jnp.maximum(rows, 1)[:, None]
    centre = points.mean(0, keepdims=True)  # near all points: their squares must not cancel
    away = points - centre
    mean = jnp.matmul(members.T, away, precision="highest") / safe
    squares = jnp.matmul(members.T, jnp.square(away), precision="highest") - rows[:, None] * jnp.square(mean)
    return rows, jnp.where(rows[:, None] > 0, mean + centre, 0), jnp.maximum(squares, 0)


def merge_moments(one: tuple[Array, Array, Array], two: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    """Returns the moments of the points of both: Chan, Golub and LeVeque, 1979, which loses no digits."""
    (n, mean, squares), (m, other, more) = one, two
    rows = n + m
    share = (m / jnp.maximum(rows, 1))[:, None]
    shift = other - mean
    return rows, mean + share * shift, squares + more + n[:, None] * share * jnp.square(shift)


def group_ranges(found: Array, known: Array) -> tuple[Array, Array]:
    """Returns the least number of each group over the known clients, and its range `[2, 1 + L]` each; 1 for 0.

    Args:
        found: descriptors `[N, 2, 1 + L, q]`.
        known: bool `[N]`.
    """
    there = known[:, None, None, None]
    low = jnp.where(there, found, jnp.inf).min((0, 3))
    width = jnp.where(there, found, -jnp.inf).max((0, 3)) - low
    some = known.any() & (width > 0)
    return jnp.where(known.any(), low, 0), jnp.where(some, width, 1)


def scale_groups(found: Array, low: Array, width: Array) -> Array:
    """Returns descriptors with the groups of the known clients in [0, 1]; those of others may be outside."""
    return (found - low[None, :, :, None]) / width[None, :, :, None]


def neighbour_components(points: Array, known: Array, threshold: float | Array | None) -> Array:
    """Returns the connected components `[N]` int32 of the graph of the points within eps: see `threshold_components`.

    Args:
        points: `[N, d]`.
        known: bool `[N]`; -1 for the other points.
        threshold: eps; None takes the elbow of the sorted distances to the nearest other point.
    """
    count = points.shape[0]
    away = distances.l2(points)
    apart = ~jnp.eye(count, dtype=bool) & known[:, None] & known[None]
    away = jnp.where(apart, away, jnp.inf)
    curve = jnp.sort(jnp.where(known, away.min(1), jnp.inf))
    number = known.sum(dtype=jnp.int32)
    eps = curve[chord_elbow(curve, number)] if threshold is None else jnp.asarray(threshold, curve.dtype)
    return threshold_components(-away, -jnp.where(number > 1, eps, 0), known)


def rank_labels(label: Array) -> Array:
    """Returns labels `[N]` that are the least index of their members as 0, 1, ... in their order; -1 is anything.

    >>> rank_labels(jnp.array([0, 1, 0, 3, 3, 1])).tolist()
    [0, 1, 0, 2, 2, 1]
    """
    roots = label == jnp.arange(label.shape[0], dtype=label.dtype)
    return (jnp.cumsum(roots, dtype=jnp.int32) - 1)[jnp.maximum(label, 0)]


def grow(state: FLUXState) -> FLUXState:
    """Returns the state with twice the slots; all models are equal before the clustering."""
    return state._replace(
        models=jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), state.models),
        centroids=jnp.concatenate([state.centroids, jnp.full_like(state.centroids, jnp.inf)]),
    )


def _check_arguments(warmup_rounds: int, threshold: float | None, slots: int) -> None:
    """Raises ValueError if an argument is out of range."""
    least = {"warmup_rounds": (warmup_rounds, 0), "threshold": (threshold, 0), "slots": (slots, 1)}
    for name, (value, low) in least.items():
        if value is not None and is_known(value) and not value >= low:
            raise ValueError(f"{name} must be at least {low}, got {value}.")
