"""PACFL: clustering by the principal angles between the clients' data.

Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah and Lin, "Efficient Distribution Similarity Identification in Clustered
Federated Learning via Principal Angles Between Client Data Subspaces", AAAI 2023. Nothing is trained to find the
clusters. With the inputs of client i as columns of D_i,

    once        U_i = the p leading left singular vectors of D_i, sent to the server
                A_ij = the smallest principal angle between the spans of U_i and U_j, in degrees
                agglomerative clustering of A: the two nearest clusters merge while their distance is at most the
                threshold; their number is a result
    each round  FedAvg in every cluster, all from one initial model

The inputs are those of the network, rotated and normalised. Labels are not used: clients with different labels for the
same inputs are equal to this method. Nothing of a model is compared, so that there is no choice of `layers`. Nothing is
centred, so the first vector is the clients' mean input, which they often share; angles are small, and the threshold
depends on the scale and shift of the inputs. On the rotated digits (40 clients of 80 rows, p = 3) two clients of one
rotation are 4 to 11 degrees apart, of different rotations 12 to 76. The official scripts have 4.9 and 9.88 (CIFAR-10
and -100) and 42 (four data sets).

The official code (`preset="official"`) has another A: a client's U_i are the vectors of each of its labels, side by
side (`vectors="label"`), and A_ij is the smallest arc cosine of an entry of U_i'U_j (`angle="entry"`): no singular
values, and it depends on the signs of the vectors, which are LAPACK's there and normalised here, see
`clustering.angles`. On the digits above it is 6 to 22 and 13 to 66 degrees. Its average linkage is the mean of the two
parts' distances (`linkage="weighted"`). The paper is said to have the trace of arccos(U_i'U_j) as a second A; its text
could not be opened, and this A is not included.

A held-out client gets the cluster of the nearest client that is not held out. A client that joins later (`join`) gets
the cluster at the smallest distance by the linkage; where that is above the threshold, it opens a cluster from the
initial model. The other clients do not move. A client without rows is in no cluster (-1) and is served the initial
model.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.clustering.angles import AngleKind, principal_basis, subspace_angles
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Info, Join, Method, Participation
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts import newcomers
from jaxfl.methods.parts.by_cluster import cluster_averaging, cluster_models
from jaxfl.methods.parts.one_shot import all_clients, cluster_clients, grow
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked, is_known
from jaxfl.server import aggregate
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

PRESETS = {
    "paper": {"vectors": "client", "angle": "smallest", "linkage": "average"},
    "official": {"vectors": "label", "angle": "entry", "linkage": "weighted"},
}
VectorKind = Literal["client", "label"]
AngleLinkage = Literal["single", "complete", "average", "weighted"]
ClientBases = Callable[[FederatedData, Cohort], tuple[Array, Array]]


class PACFLState(NamedTuple):
    """Slots of models; clustering takes one for every cluster."""

    models: Params  # [K, ...]
    initial: Params  # the start of every cluster; served to clients in no cluster
    bases: Array  # [N, F, p] U, 0 for clients without one; newcomers are compared with these
    cluster: Array  # [N] int32, -1 without rows
    num_clusters: Array  # [] int32
    round: Array  # [] int32


@server_sees(
    Seen("data", "a sum of models for each cluster", before="the leading singular vectors of each client's inputs")
)
@checked
def pacfl(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    preset: Literal["paper", "official"] = "paper",
    threshold: Traceable = 10.0,
    num_clusters: int | None = None,
    rank: int = 3,
    vectors: VectorKind | None = None,
    angle: AngleKind | None = None,
    linkage: AngleLinkage | None = None,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "rows",
    slots: int = 16,
) -> Method:
    """Returns PACFL.

    Args:
        task: what is learned.
        optimizer: the local optimiser.
        preset: `"paper"` or `"official"`; their values are in brackets below, in this order. Options that are
            given replace the preset\'s values.
        threshold: distance in degrees up to which clusters merge. At 90 or more (180 for `angle="entry"`) all clients
            are in one cluster (FedAvg); below 0 every client is alone.
        num_clusters: number of clusters, instead of a threshold.
        rank: p, number of singular vectors that a client sends.
        vectors: vectors of a client: p for each `"client"`, or p for each `"label"` of its rows (client, label).
        angle: A, the `"smallest"` principal angle, or the smallest angle of an `"entry"` of U_i'U_j (smallest, entry).
        linkage: distance of two clusters: `"single"`, `"complete"`, `"average"` or `"weighted"`, see
            `clustering.linkage` (average, weighted).
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: weights of the clients in a cluster's mean: `"rows"` (n_i / n) or `"uniform"` (1 / m).
        slots: cluster models at the start; the simulator doubles them when they run out.

    Raises:
        ValueError: an option is out of range, there are more clusters than clients, the inputs are tokens, or
            `vectors="label"` and the labels are no classes.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=80)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(pacfl(task, optax.sgd(0.1)), data, rounds=1, seed=0)
    >>> result.state.cluster.tolist()
    [0, 0, 1, 1, 2, 2, 3, 3]
    """
    chosen = base.from_preset(PRESETS, preset, vectors=vectors, angle=angle, linkage=linkage)
    for name, value in {"num_clusters": num_clusters, "rank": rank, "slots": slots}.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    if is_known(threshold) and threshold != threshold:
        raise ValueError("threshold must be a number of degrees, got nan.")
    step = cluster_averaging(local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size), weighting)
    sign = client_bases(rank, chosen["vectors"])

    def init(key: Key, data: FederatedData) -> PACFLState:
        base.check_clusters(num_clusters or 1, data)
        _check_inputs(data, chosen["vectors"])
        model = task.init(key_for(key, Stream.INIT))
        everybody = all_clients(_input_shape(data), data)
        if jax.default_backend() == "cpu":  # batched LAPACK calls on several devices may block each other for ever
            everybody = Cohort.of(everybody.ids, everybody.plan._replace(chunk=1))
        bases, able = sign(data, everybody)
        away = subspace_angles(bases, bases, chosen["angle"])
        away = jnp.minimum(away, away.T)  # equal up to rounding
        known = able & base.takes_part(data)
        found, number = cluster_clients(away, known, able, chosen["linkage"], threshold, num_clusters)
        found = jnp.where(jnp.asarray(data.train.size) > 0, found, -1)
        return PACFLState(tree.repeat(model, slots), model, bases, found, number, jnp.int32(0))

    def round(key: Key, state: PACFLState, data: FederatedData, cohort: Cohort) -> tuple[PACFLState, Info]:
        overflow = base.doublings(state.num_clusters, base.slots_of(state.models))
        numbers = {"num_clusters": state.num_clusters, "overflow": overflow}
        models, info = step(key, state.models, state.cluster, state.round, data, cohort, **numbers)
        info = info._replace(bytes_up=info.bytes_up + basis_traffic(state, data))
        return state._replace(models=models, round=state.round + 1), info

    def client_params(state: PACFLState, ids: Array) -> Params:
        return cluster_models(state.models, state.cluster[ids], state.initial)

    join = joining(sign, chosen["angle"], chosen["linkage"], threshold if num_clusters is None else jnp.inf)

    def shortfall(state: PACFLState, data: FederatedData, participation: Participation) -> str:
        number, count = int(state.num_clusters), base.clients_to_train(data).sum()
        if num_clusters is None and number == 1 < count and threshold < (180 if chosen["angle"] == "entry" else 90):
            return f"All {count} clients merged within threshold={threshold} degrees to one cluster: lower threshold."
        if num_clusters is not None or threshold < 0 or not number >= count > 1:
            return ""
        return f"No two clients were within threshold={threshold} degrees, so that each is alone: raise threshold."

    return Method(init, round, client_params, task, grow=grow, join=join, reads="everybody", shortfall=shortfall)


def client_bases(rank: int, vectors: VectorKind) -> ClientBases:
    """Returns `sign(data, cohort) -> (bases [C, F, p], able [C])`: U of every client, and whether it has one.

    A client without rows, or with inputs without a finite squared length, has none: its U is 0.

    Args:
        rank: p.
        vectors: see `pacfl`; with `"label"` the bases have `p * num_classes` columns, 0 for absent labels.
    """

    def client(data: FederatedData, client: Array):
        shape = _input_shape(data)
        batch = data.batch(data.train, client, jnp.arange(shape.shape[0], dtype=jnp.int32))
        rows = jnp.where(batch.mask[:, None], batch.x.reshape(shape.shape).astype(shape.dtype), 0)
        finite = jnp.isfinite(jnp.square(rows).sum())
        rows = jnp.where(finite, rows, 0)
        if vectors == "client":
            basis = principal_basis(rows, rank)
        else:
            labels = jnp.arange(data.num_classes, dtype=batch.y.dtype)
            label_bases = jax.lax.map(
                lambda label: principal_basis(jnp.where((batch.y == label)[:, None], rows, 0), rank), labels
            )
            basis = jnp.moveaxis(label_bases, 0, 1).reshape(shape.shape[1], -1)  # [F, L p]
        return (), basis

    def sign(data: FederatedData, cohort: Cohort) -> tuple[Array, Array]:
        bases = over_clients(client, data, cohort)[1]
        return bases, (bases != 0).any((1, 2))

    return sign


def basis_traffic(state: PACFLState, data: FederatedData) -> Array:
    """Returns the bytes `[]` of the vectors that clients send before the first round; 0 in later rounds."""
    vector = jax.ShapeDtypeStruct(state.bases.shape[1:2], state.bases.dtype)
    vectors = (state.bases != 0).any(1).sum(1)  # [N]
    count = vectors.sum() if data.held_out is None else jnp.where(data.held_out, 0, vectors).sum()
    return base.traffic(jnp.where(state.round == 0, count, 0), vector)


def joining(sign: ClientBases, angle: AngleKind, linkage: AngleLinkage, threshold: float | Array) -> Join:
    """Returns `join(key, state, data, ids) -> (state, clusters [M])`.

    Clients that open clusters are clustered with each other. A client without rows, or with inputs that are not finite,
    is in no cluster.

    Args:
        sign: of `client_bases`.
        angle, linkage, threshold: see `pacfl`.
    """

    @jax.jit
    def enter(state: PACFLState, data: FederatedData, cohort: Cohort) -> tuple[PACFLState, Array, Array]:
        """Returns the state, the clusters `[M]`, and the times that the slots must double to hold them `[]`."""
        ids, count = cohort.ids, base.slots_of(state.models)
        bases, able = sign(data, cohort)
        # a held-out client is served by a cluster but is no member of it; members that have left remain members
        served = False if data.held_out is None else jnp.asarray(data.held_out) & base.present(data)
        old = jnp.where((state.bases != 0).any((1, 2)) & ~jnp.asarray(served), state.cluster.at[ids].set(-1), -1)
        away = cluster_distances(subspace_angles(bases, state.bases, angle), old, count, linkage)  # [M, K]
        apart = able & ~(away.min(1) <= threshold)
        label, number = cluster_clients(subspace_angles(bases, bases, angle), apart, apart, linkage, threshold, None)
        opened = jnp.where(apart.any(), number, 0)
        nearest = jnp.argmin(away, 1).astype(jnp.int32)
        found = jnp.where(able, jnp.where(apart, state.num_clusters + label, nearest), -1)
        slot = jnp.arange(count, dtype=jnp.int32)
        new = (slot >= state.num_clusters) & (slot < state.num_clusters + opened)
        entered = state._replace(
            models=tree.where(new, tree.repeat(state.initial, count), state.models),
            bases=state.bases.at[ids].set(bases),
            cluster=state.cluster.at[ids].set(found),
            num_clusters=state.num_clusters + opened,
        )
        return entered, found, base.doublings(entered.num_clusters, count)

    def join(key: Key, state: PACFLState, data: FederatedData, ids: Sequence[int]) -> tuple[PACFLState, Array]:
        cohort = newcomers.joining_cohort(ids, data)
        state = state._replace(
            bases=newcomers.pad_clients(state.bases, data.num_clients),
            cluster=newcomers.pad_clients(state.cluster, data.num_clients, -1),
        )
        data = data.on_device()
        while True:
            entered, clusters, times = enter(state, data, cohort)
            if not int(times):
                return entered, clusters
            state = base.doubled(grow, state, times)

    return join


def cluster_distances(away: Array, cluster: Array, count: int, linkage: AngleLinkage) -> Array:
    """Returns the distances of newcomers from the clusters `[M, K]`, infinite from those without members.

    Args:
        away: distances from clients `[M, N]`.
        cluster: of the clients `[N]`, -1 for those that do not count.
        count: K.
        linkage: of the distances; `"weighted"` takes the mean like `"average"`, since its merge tree is not stored.
    """

    def distance(slot: Array) -> Array:
        member = (cluster == slot)[None]
        if linkage == "single":
            found = jnp.where(member, away, jnp.inf).min(1)
        elif linkage == "complete":
            found = jnp.where(member, away, -jnp.inf).max(1)
        else:
            found = jnp.where(member, away, 0).sum(1) / jnp.maximum(member.sum(), 1).astype(away.dtype)
        return jnp.where(member.any(), found, jnp.inf)

    return jax.lax.map(distance, jnp.arange(count, dtype=jnp.int32)).T


def _input_shape(data: FederatedData) -> jax.ShapeDtypeStruct:
    """Returns shape and dtype of a client's inputs `[n, F]`, flattened by row; integers become float32."""
    features = 1
    for length in data.input_shape:
        features *= length
    dtype = (data.inputs if data.std is None else data.std).dtype
    dtype = dtype if jnp.issubdtype(dtype, jnp.floating) else jnp.dtype(jnp.float32)
    return jax.ShapeDtypeStruct((max(data.train.max_size, 1), features), dtype)


def _check_inputs(data: FederatedData, vectors: VectorKind) -> None:
    """Raises ValueError if the inputs are tokens, or labels that are no classes are to be used."""
    if data.inputs.dtype == jnp.int32:
        raise ValueError("data must have numeric inputs for pacfl, got tokens, which span no subspaces; take flhc.")
    if vectors == "label" and data.kind != "classification":
        raise ValueError(
            f'vectors must be "client" where labels are no classes ({data.kind}), got "label"; leave it out.'
        )
