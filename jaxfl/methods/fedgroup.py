"""FedGroup and FedGrouProx: clients are grouped once, by the directions of their first updates.

Duan et al., "FedGroup: Efficient Clustered Federated Learning via Decomposed Data-Driven Measure", 2020; FlexCFL is its
journal version. Before the first round every client trains the initial model omega_0, to w_i, and D_i = w_i - omega_0.
Of alpha K = 20 K clients, drawn at random,

    V       = the K leading left singular vectors of [D_1 ... D_n]
    E_ik    = cos(D_i, V_k); k-means of the rows of E finds K groups (their Euclidean distance is the paper's EDC)
    w_g     = mean of the members' w_i, which the group's model starts from;    D_g = mean of their D_i

and the others go to the group with the largest cosine of D_g and their own D_i. Groups do not change later. A round is
FedAvg in every group (with the pull of FedProx to w_g it is FedGrouProx); then, with a rate eta_G > 0 between the
groups, for all groups at once,

    w_g <- (w_g + eta_G sum_{l != g} w_l / |w_l|) / (1 + eta_G sum_{l != g} 1 / |w_l|)

The length |w_l| grows with the model, so that an eta_G has less effect on a larger one. E needs no singular vectors:
with the eigenpairs (l_k, v_k) of the n x n matrix of products D_i'D_j, E_ik = sqrt(l_k) v_ik / |D_i|, up to signs,
which do not change k-means. So sketches of the D_i suffice (see `clustering.sketch`), if their size is far above K.
The drawn clients train a second time for the means w_g, so that no client's model is stored.

There are two official codes. They differ in when the other clients are grouped: all before the first round, as here, or
each before its first training, from omega_0 and with the same D_g. Both make 50 steps in mini-batches where
`first_epochs` counts epochs, and have alpha = 20, K = 3 or 5 and eta_G = 0, 0.01 or 0.1; the paper's table of eta_G
could not be opened. A group that k-means leaves empty keeps omega_0, gets no client, and takes no part in eta_G's
step. A client without rows is in no group (-1) and is served omega_0; held-out clients are grouped like the others, and
so are clients that join later (`join`, with the key of the run).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import engine, tree
from jaxfl.client.corrections import proximal_pull
from jaxfl.client.steps import Epochs
from jaxfl.client.training import Train, local_train
from jaxfl.clustering import kmeans
from jaxfl.clustering.spectral import leading_coordinates
from jaxfl.cohort import Cohort, resolve_plan
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Info, Join, Method, Participation
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts import newcomers
from jaxfl.methods.parts.by_cluster import cluster_averaging, cluster_models
from jaxfl.methods.parts.multi_centre import count_members
from jaxfl.methods.parts.one_shot import PointOf, add_exchange, train_all_once, train_once
from jaxfl.methods.parts.vectors import to_vector
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked, is_known, is_zero
from jaxfl.server import aggregate
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

ALPHA = 20  # clients drawn for each group, as in both official codes
STEPS = 20  # of k-means


class FedGroupState(NamedTuple):
    """K models; the groups never change."""

    models: Params  # [K, ...]
    initial: Params  # omega_0
    directions: Array  # [K, d] D_g, 0 of a group without members
    cluster: Array  # [N] int32, -1 without rows
    round: Array  # [] int32


@server_sees(Seen("updates", "a sum of models for each group", before="each client's first update"))
@checked
def fedgroup(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int = 3,
    between_rate: Traceable = 0.0,
    proximal_weight: Traceable = 0.0,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "rows",
    first_epochs: int = 5,
    sketch_size: int = 4096,
) -> Method:
    """Returns FedGroup.

    Args:
        task: what is learned.
        optimizer: the local optimiser.
        num_clusters: K.
        between_rate: eta_G, the rate of every group's step towards the other groups; 0 makes no step.
        proximal_weight: mu, the pull to the group's model (FedGrouProx); 0 is no pull. The first updates are not
            pulled.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: weights of the models in a round: `"rows"` (n_i / n) or `"uniform"` (1 / m); the means w_g of the
            start are uniform.
        first_epochs: epochs of the first updates.
        sketch_size: numbers stored of each first update, if it is longer; the error of E is about
            `1 / sqrt(sketch_size)`.

    Raises:
        ValueError: an option is out of range, or there are more clusters than clients.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=80)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(fedgroup(task, optax.sgd(0.1), num_clusters=4), data, rounds=1, seed=0)
    >>> len(set(result.state.cluster.tolist()))
    4
    """
    _check_arguments(num_clusters, first_epochs, sketch_size, between_rate)
    first = local_train(task, optimizer, local_epochs=first_epochs, batch_size=batch_size)
    local = optimizer if is_zero(proximal_weight) else optax.chain(proximal_pull(proximal_weight), optimizer)
    step = cluster_averaging(local_train(task, local, local_epochs=local_epochs, batch_size=batch_size), weighting)

    def vector_of(key: Key, update: Params) -> Array:
        return to_vector(key, update, size=sketch_size)

    def init(key: Key, data: FederatedData) -> FedGroupState:
        base.check_clusters(num_clusters, data)
        model = task.init(key_for(key, Stream.INIT))
        updates, known = train_all_once(key, model, data, first, vector_of, "updates")
        ids = draw_clients(key, base.takes_part(data), ALPHA * num_clusters)
        known = known[ids]
        points = decomposed_cosines(jnp.where(known[:, None], updates[ids], 0), num_clusters)
        start_key = key_for(key, Stream.START, round=1)  # round 0 of this stream is for the clients' training
        found = kmeans.kmeans(start_key, points, num_clusters, mask=known, max_iterations=STEPS)
        label = found.labels  # [n], -1 of those unknown
        member = jax.nn.one_hot(label, num_clusters, dtype=updates.dtype)  # [n, K]
        sums = jnp.matmul(member.T, updates[ids], precision="highest")
        directions = aggregate.divide(sums, member.sum(0), jnp.zeros_like(sums))
        found = (
            nearest_direction(updates, directions)
            .at[ids]
            .set(jnp.where(known, label, nearest_direction(updates[ids], directions)))
        )
        models = group_models(key, model, data, first, ids, label, num_clusters)
        found = jnp.where(jnp.asarray(data.train.size) > 0, found, -1)
        return FedGroupState(models, model, directions, found, jnp.int32(0))

    def round(key: Key, state: FedGroupState, data: FederatedData, cohort: Cohort) -> tuple[FedGroupState, Info]:
        occupied = count_members(state.cluster, data, num_clusters) > 0
        number = {"num_clusters": occupied.sum()}
        models, info = step(key, state.models, state.cluster, state.round, data, cohort, **number)
        if not is_zero(between_rate):
            able = (cohort.mask & (data.train.size[cohort.ids] > 0)).sum(dtype=jnp.int32)
            models = tree.where(able > info.diverged, attract_models(models, occupied, between_rate), models)
        one = state.initial
        info = add_exchange(info, state.round == 0, data, up=one, down=one)
        return state._replace(models=models, round=state.round + 1), info

    def client_params(state: FedGroupState, ids: Array) -> Params:
        return cluster_models(state.models, state.cluster[ids], state.initial)

    def shortfall(state: FedGroupState, data: FederatedData, participation: Participation) -> str:
        return base.one_cluster(state, data, num_clusters, "raise first_epochs, or take another seed")

    return Method(
        init, round, client_params, task, join=joining(first, vector_of), reads="everybody", shortfall=shortfall
    )


def draw_clients(key: Key, able: Array, count: int) -> Array:
    """Returns random clients `[n]` int32, each once and by id; others than the able ones only if these are too few.

    Args:
        key: of the run.
        able: bool `[N]`.
        count: their number; all clients if it is larger.
    """
    lot = jax.random.uniform(key_for(key, Stream.START, round=2), able.shape)
    chosen = jnp.argsort(jnp.where(able, lot, 2))[:count]  # the lots are below 1
    return jnp.sort(chosen).astype(jnp.int32)


def decomposed_cosines(updates: Array, components: int) -> Array:
    """Returns E, the cosines of vectors with their leading left singular vectors `[n, m]`, up to the columns' signs.

    Args:
        updates: `[n, d]`; the cosines of zeros are 0.
        components: m, at most n; components beyond the rank of the updates are 0.

    >>> decomposed_cosines(jnp.array([[2.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]), 1).ravel().round(3).tolist()
    [..., 0.0, ...]
    """
    products = jnp.matmul(updates, updates.T, precision="highest")
    coordinates, _ = leading_coordinates(products, components)
    length = jnp.sqrt(jnp.diagonal(products))[:, None]
    return coordinates / jnp.where(length > 0, length, 1)


def nearest_direction(updates: Array, directions: Array) -> Array:
    """Returns the group of the largest cosine with each update `[M]` int32; ties to the lowest.

    Args:
        updates: `[M, d]`.
        directions: `[K, d]`; a group with the direction 0 is never chosen.
    """
    length = jnp.sqrt(jnp.square(directions).sum(1))[None]  # [1, K]; an update's own length changes nothing
    products = jnp.matmul(updates, directions.T, precision="highest")
    cosine = jnp.where(length > 0, products / jnp.where(length > 0, length, 1), -jnp.inf)
    return jnp.argmax(cosine, 1).astype(jnp.int32)


def group_models(
    key: Key, model: Params, data: FederatedData, train: Train, ids: Array, label: Array, num_clusters: int
) -> Params:
    """Returns the means of each group's models, trained from `model` `[K, ...]`; `model` for a group without clients.

    Args:
        key, model, data, train: as in `one_shot.train_once`, so that training gives the same models.
        ids: `[n]`.
        label: of these clients `[n]`, -1 for those that do not count.
        num_clusters: K.
    """

    def client(shared, client: Array, label: Array):
        key, model, data = shared
        trained, _ = train(key_for(key, Stream.START, client=client), model, data, client, anchor=model)
        weight = aggregate.client_weight(data, client, "uniform")
        return aggregate.contribute(trained, weight, label, num_clusters), ()

    cohort = Cohort.of(ids, resolve_plan("auto", model, ids.shape[0]))
    total, _ = over_clients(client, (key, model, data), cohort, label)
    return aggregate.mean(total, empty=tree.repeat(model, num_clusters))


def attract_models(models: Params, occupied: Array, rate: float) -> Params:
    """Returns the models `[K, ...]` after a step towards each other; those of groups without members stay.

    Args:
        models: `[K, ...]`.
        occupied: bool `[K]`.
        rate: eta_G.

    >>> attract_models({"w": jnp.array([[3.0], [1.0]])}, jnp.array([True, True]), 0.5)["w"].round(3).ravel().tolist()
    [2.333..., 1.286...]
    """
    length = jax.vmap(tree.norm)(models)  # [K]
    pull = jnp.where(occupied & (length > 0), rate / jnp.where(length > 0, length, 1), 0)
    weights = jnp.where(occupied[:, None], pull[None], 0) * (1 - jnp.eye(len(pull), dtype=pull.dtype))
    weights += jnp.eye(len(pull), dtype=pull.dtype)  # [K, K], of every group's model in each new one

    def mix(leaf: Array) -> Array:
        flat = leaf.reshape(leaf.shape[0], -1)
        return jnp.matmul(weights.astype(leaf.dtype), flat, precision="highest").reshape(leaf.shape)

    return aggregate.divide(jax.tree.map(mix, models), weights.sum(1), models)


def joining(train: Train, vector_of: PointOf) -> Join:
    """Returns `join(key, state, data, ids) -> (state, clusters [M])`: first updates from omega_0, and the nearest D_g.

    A client without rows is in no group. The key must be that of the run, which decides the sketches.

    Args:
        train: a client's first training.
        vector_of: `(key, update) -> [d]`.
    """

    @engine.jit
    def enter(key: Key, state: FedGroupState, data: FederatedData, cohort: Cohort) -> tuple[FedGroupState, Array]:
        updates, _ = train_once(key, state.initial, data, train, vector_of, cohort, "updates")
        found = jnp.where(data.train.size[cohort.ids] > 0, nearest_direction(updates, state.directions), -1)
        return state._replace(cluster=base.write_clusters(state.cluster, cohort, found)), found

    def join(key: Key, state: FedGroupState, data: FederatedData, ids: Sequence[int]) -> tuple[FedGroupState, Array]:
        cohort = newcomers.joining_cohort(ids, data)
        state = state._replace(cluster=newcomers.pad_clients(state.cluster, data.num_clients, -1))
        return enter(key, state, data.on_device(), cohort)

    return join


def _check_arguments(num_clusters: int, first_epochs: int, sketch_size: int, between_rate: float) -> None:
    """Raises ValueError if an argument is out of range."""
    sizes = {"num_clusters": num_clusters, "first_epochs": first_epochs, "sketch_size": sketch_size}
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    if is_known(between_rate) and not 0 <= between_rate < math.inf:
        raise ValueError(f"between_rate must be at least 0 and finite, got {between_rate}; 0 keeps the groups apart.")
