"""CFL-GP: clients are clustered by accumulated updates of several models.

Kim, Kim and de Veciana, "Clustered Federated Learning via Gradient-based Partitioning", ICML 2024. The server holds K
models, equal at first, and of each client a profile of K blocks. Until round T_c every P-th round t is one of
clustering. The models take turns in it: with m = (t / P) mod K client i sends

    v_i      = its displacement by E epochs of SGD from theta_m     # of one full-batch step: - rate * gradient
    G[m, i] <- (1 - beta) G[m, i] + beta v_i                        # beta = 1 / (visits + 1): the running mean

and the server clusters the columns of R = U'G by k-means, with U the K leading left singular vectors of G, its blocks
stacked. The clusters take the numbers with which the most clients keep theirs. With the new r_i, in all rounds,

    theta_k <- theta_k + mean over r_i = k of (w_i - theta_old)     # w_i: E epochs from theta_old, of the old cluster

R needs no singular vectors of the models' length: it is sqrt(l) v' for the eigenpairs (l, v) of G'G (see
`clustering.spectral`), so that sketches of v_i suffice. Nothing is centred or normalised: clients with long updates
have more weight.

Where the official code differs (`preset="official"`): the updates in G are those at the client's own model in every
clustering (`profile="own"`), so that they are all near 0 once models fit; beta = 1 / (floor((t + 1) / (K P)) + 1)
(`memory="schedule"`), which is 1 in the first K P - 1 rounds: with K = 4, P = 2 and T_c = 10 nothing is accumulated
before the last clustering; and the K models are independent, but all first updates are made at model 0
(`start="independent"`). The authors' later code moves the turn on after each clustering, as here. The paper's text was
not available: that updates are made at the model whose turn it is, is derived from the K blocks and the formula of
beta. The search of the code for an unknown K is not here.

The official code has all clients in each round. Here a cohort's clients are clustered together with all that have sent
a v_i, and the others keep their r_i; a block that a client has not sent counts as the mean of that block over those
that have, so that clients are not told apart by who was sampled when. A client whose v_i is not finite keeps its r_i. A
client that comes after the first clustering in a round without one, a held-out client and a newcomer send v_i at the
model of each block as it was at its last turn, and take the cluster with the nearest centre of R. A client without rows
keeps cluster 0.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.clustering import kmeans
from jaxfl.clustering.assignment import match
from jaxfl.clustering.spectral import leading_coordinates
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method, Participation, from_preset
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.competing import independent_models
from jaxfl.methods.parts.multi_centre import count_members
from jaxfl.methods.parts.vectors import to_vector
from jaxfl.random import Stream, key_for
from jaxfl.schema import checked
from jaxfl.server import aggregate
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

PRESETS = {
    "paper": {"profile": "turns", "memory": "mean", "start": "equal"},
    "official": {"profile": "own", "memory": "schedule", "start": "independent"},
}


class CFLGPState(NamedTuple):
    """K models, the profile of each client, and what places clients that were in no clustering."""

    models: Params  # [K, ...]
    profile: Array  # [N, blocks, s] G, means of sketched updates; 0 where there is none
    visits: Array  # [N, blocks] int32, clusterings in which the client has sent the block
    anchors: Params  # [blocks, ...] the model of each block as it was at its last turn
    visited: Array  # [blocks] bool, whether the block has had a turn
    centres: Array  # [K, blocks, s] centres of R as vectors in the space of profiles; infinite of empty clusters
    placed: Array  # [N] bool, whether a client has a cluster by a clustering or by these centres
    cluster: Array  # [N] int32
    round: Array  # [] int32


@server_sees(
    Seen("representations", "a sketch of each client's update in rounds of clustering; K sums of updates"),
    presets=PRESETS,
)
@checked
def cfl_gp(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int = 4,
    preset: Literal["paper", "official"] = "paper",
    cluster_every: int = 2,
    cluster_until: int | None = 10,
    profile: Literal["turns", "own"] | None = None,
    memory: Literal["mean", "schedule"] | None = None,
    start: Literal["equal", "independent"] | None = None,
    sketch_size: int = 1024,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "uniform",
) -> Method:
    """Returns CFL-GP.

    Args:
        task: what is learned.
        optimizer: the local optimiser.
        num_clusters: K, the number of models.
        preset: `"paper"` or `"official"`; their values are in brackets below, in this order. Options that are given
            replace the preset's values.
        cluster_every: P, rounds from one clustering to the next; the first one is in round 0.
        cluster_until: T_c, the round from which on nothing is clustered; None is never.
        profile: updates that clients are clustered by: K blocks, at the models that take `"turns"`, or one block, at
            the client's `"own"` model (turns, own).
        memory: of a block: the `"mean"` of all updates of a client, or the official `"schedule"` of beta (mean,
            schedule).
        start: K `"equal"` or `"independent"` models; all clients start from the first (equal, independent).
        sketch_size: numbers stored of each update, if it is longer; the error of a cosine is about
            `1 / sqrt(sketch_size)`.
        local_epochs: E, also of the v_i.
        batch_size: B; None takes all of a client's rows at once.
        weighting: of the clients in the mean of their cluster: `"uniform"` (the official code) or `"rows"`.

    Raises:
        ValueError: an option is out of range, or there are more clusters than clients.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=40)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(cfl_gp(task, optax.sgd(0.1), num_clusters=4), data, rounds=5, seed=0)
    >>> result.summary["ari"]
    1.0
    """
    _check_arguments(num_clusters, cluster_every, cluster_until, sketch_size)
    chosen = from_preset(PRESETS, preset, profile=profile, memory=memory, start=start)
    blocks = num_clusters if chosen["profile"] == "turns" else 1
    train = local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size)

    def sketch_update(key: Key, block: Array, update: Params) -> Array:
        return to_vector(key_for(key, Stream.SKETCH, round=block + 1), update, size=sketch_size)

    def displacement(key: Key, round: Array, model: Params, data: FederatedData, client: Array):
        """Returns a client's update `w - model`, whether it is finite, and the loss of its training."""
        client_key = key_for(key, Stream.BATCHES, round, client)
        trained, loss = train(client_key, model, data, client, anchor=model)
        finite = tree.is_finite(trained)
        return jax.tree.map(jnp.subtract, trained, model), finite, loss

    def init(key: Key, data: FederatedData) -> CFLGPState:
        base.check_clusters(num_clusters, data)
        models = independent_models(task, num_clusters)(key, data)
        if chosen["start"] == "equal":
            models = tree.repeat(task.init(key_for(key, Stream.INIT)), num_clusters)
        first = tree.take(models, 0)
        vector = jax.eval_shape(sketch_update, key, jnp.int32(0), first)
        count = data.num_clients
        return CFLGPState(
            models,
            jnp.zeros((count, blocks, *vector.shape), vector.dtype),
            jnp.zeros((count, blocks), jnp.int32),
            tree.repeat(first, blocks),
            jnp.zeros(blocks, bool),
            jnp.full((num_clusters, blocks, *vector.shape), jnp.inf, vector.dtype),
            jnp.zeros(count, bool),
            jnp.zeros(count, jnp.int32),
            jnp.int32(0),
        )

    def visit(
        key: Key, state: CFLGPState, block: Array, data: FederatedData, cohort: Cohort
    ) -> tuple[CFLGPState, Array]:
        """Returns the state with the cohort's updates in a block of the profiles, and whose were finite `[C]`."""

        def client(shared, client: Array):
            key, (models, cluster, round, block), data = shared
            slot = block if chosen["profile"] == "turns" else cluster[client]
            update, finite, _ = displacement(key, round, tree.take(models, slot), data, client)
            finite &= data.train.size[client] > 0
            update = tree.where(finite, update, jax.tree.map(jnp.zeros_like, update))
            return (), (sketch_update(key, block, update), finite)

        _, (vectors, able) = over_clients(
            client, (key, (state.models, state.cluster, state.round, block), data), cohort
        )
        able &= cohort.mask
        ids = jnp.where(able, cohort.ids, data.num_clients)
        before, times = state.profile[cohort.ids, block], state.visits[cohort.ids, block]
        share = 1 / (times + 1).astype(vectors.dtype)
        if chosen["memory"] == "schedule":
            visits = (state.round + 1) // (num_clusters * cluster_every)
            share = jnp.where(times > 0, 1 / (visits + 1).astype(vectors.dtype), 1)
        after = before + share[:, None] * (vectors - before)
        turn = jnp.where(able.any(), block, blocks)[None]  # out of range, and dropped, where nothing was sent
        return (
            state._replace(
                profile=state.profile.at[ids, block].set(after, mode="drop"),
                visits=state.visits.at[ids, block].add(1, mode="drop"),
                anchors=tree.put(state.anchors, turn, tree.take(state.models, block[None])),
                visited=state.visited.at[turn].set(True, mode="drop"),
            ),
            able,
        )

    def cluster_cohort(key: Key, state: CFLGPState, data: FederatedData, cohort: Cohort) -> tuple[CFLGPState, Array]:
        """Returns the state after a clustering, and the new clusters of the cohort `[C]`; the models do not change."""
        block = (state.round // cluster_every) % blocks
        state, able = visit(key, state, block, data, cohort)
        known = (state.visits > 0).any(1)
        points = fill_blocks(state.profile, state.visits)  # [N, blocks * s]
        products = jnp.matmul(points, points.T, precision="highest")
        coordinates, vectors = leading_coordinates(products, num_clusters)
        again = key_for(key, Stream.START, round=state.round)
        labels = kmeans.kmeans(again, coordinates, num_clusters, mask=known).labels
        found = keep_numbers(labels, state.cluster, num_clusters)  # [N], -1 where nothing is known
        members = jax.nn.one_hot(found, num_clusters, dtype=points.dtype)  # [N, K]
        occupied = members.sum(0) > 0
        shares = members / jnp.where(occupied, members.sum(0), 1)[None]
        # U'G has the centre V S of a cluster; U times it is G V V' times the members' shares
        mixed = jnp.matmul(vectors, jnp.matmul(vectors.T, shares, precision="highest"), precision="highest")
        centres = jnp.matmul(mixed.T, points, precision="highest").reshape(state.centres.shape)
        enough = able.any() & (known.sum() >= num_clusters)
        old = state.cluster[cohort.ids]
        new = jnp.where(able & enough, found[cohort.ids], old)
        ids = jnp.where(able & enough, cohort.ids, data.num_clients)
        return (
            state._replace(
                centres=jnp.where(enough, jnp.where(occupied[:, None, None], centres, jnp.inf), state.centres),
                placed=state.placed.at[ids].set(True, mode="drop"),
                cluster=base.write_clusters(state.cluster, cohort, new),
            ),
            new,
        )

    def unplaced(state: CFLGPState, data: FederatedData, cohort: Cohort) -> Array:
        """Returns the clients of a cohort that are to be placed `[C]`: none before the first clustering."""
        clustered = jnp.isfinite(state.centres).any()
        return cohort.mask & clustered & ~state.placed[cohort.ids] & (data.train.size[cohort.ids] > 0)

    def place(key: Key, state: CFLGPState, data: FederatedData, cohort: Cohort) -> tuple[CFLGPState, Array]:
        """Returns the state with clusters for the clients that have none, and the clusters of the cohort `[C]`."""
        new = unplaced(state, data, cohort)

        def client(shared, client: Array, new: Array):
            key, (anchors, visited, centres, round), data = shared

            def block_vector(block: Array) -> tuple[Array, Array]:
                update, finite, _ = displacement(key, round, tree.take(anchors, block), data, client)
                update = tree.where(finite & visited[block], update, jax.tree.map(jnp.zeros_like, update))
                return sketch_update(key, block, update), finite

            def send() -> tuple[Array, Array]:
                vectors, finite = jax.lax.map(block_vector, jnp.arange(blocks, dtype=jnp.int32))
                return vectors, finite.all()

            vectors, finite = jax.lax.cond(
                new, send, lambda: (jnp.zeros(centres.shape[1:], centres.dtype), jnp.array(False))
            )
            occupied = jnp.isfinite(centres[:, 0, 0])
            away = jnp.square(vectors[None] - jnp.where(occupied[:, None, None], centres, 0)).sum((1, 2))
            return (), (jnp.argmin(jnp.where(occupied, away, jnp.inf)).astype(jnp.int32), finite)

        shared = key, (state.anchors, state.visited, state.centres, state.round), data
        _, (nearest, able) = over_clients(client, shared, cohort, new)
        able &= new
        found = jnp.where(able, nearest, state.cluster[cohort.ids])
        ids = jnp.where(able, cohort.ids, data.num_clients)
        placed = state.placed.at[ids].set(True, mode="drop")
        return state._replace(placed=placed, cluster=base.write_clusters(state.cluster, cohort, found)), found

    def round(key: Key, state: CFLGPState, data: FederatedData, cohort: Cohort) -> tuple[CFLGPState, Info]:
        due = state.round % cluster_every == 0
        if cluster_until is not None:
            due &= state.round < cluster_until
        new = unplaced(state, data, cohort) & ~due
        held = state.cluster[cohort.ids]

        def place_new() -> tuple[CFLGPState, Array]:
            return jax.lax.cond(new.any(), lambda: place(key, state, data, cohort), lambda: (state, held))

        state, found = jax.lax.cond(due, lambda: cluster_cohort(key, state, data, cohort), place_new)
        # who was placed trains the model of the new cluster; who was clustered has trained that of the old one
        held = jnp.where(due, held, found)

        def client(shared, client: Array, held: Array, found: Array):
            key, (models, round), data = shared
            update, _, loss = displacement(key, round, tree.take(models, held), data, client)
            weight = aggregate.client_weight(data, client, weighting)
            return aggregate.contribute(update, weight, found, num_clusters), loss

        total, loss = over_clients(client, (key, (state.models, state.round), data), cohort, held, found)
        step = aggregate.mean(total, empty=jax.tree.map(jnp.zeros_like, state.models))
        one = base.shape_of(state.models)
        info = base.info(
            cohort,
            loss,
            held,
            num_clusters=(count_members(state.cluster, data, num_clusters) > 0).sum(),
            diverged=total.diverged,
            up=one,
            down=one,
            clustered=due.astype(jnp.int32),
            changed=(cohort.mask & (found != held)).sum(dtype=jnp.int32),
        )
        vector = jax.ShapeDtypeStruct(state.profile.shape[2:], state.profile.dtype)
        turn = (state.round // cluster_every) % blocks
        # the model whose turn it is, for those that do not receive it anyway
        others = (cohort.mask & (held != turn) & due & (blocks > 1)).sum()
        sent = jnp.where(due, cohort.mask.sum(), blocks * new.sum())
        info = info._replace(
            bytes_up=info.bytes_up + base.traffic(sent, vector),
            bytes_down=info.bytes_down + base.traffic(others + blocks * new.sum(), one),
        )
        models = jax.tree.map(jnp.add, state.models, step)
        return state._replace(models=models, round=state.round + 1), info

    def assign(key: Key, state: CFLGPState, data: FederatedData, cohort: Cohort) -> CFLGPState:
        some = unplaced(state, data, cohort).any()
        placed = jax.lax.cond(some, lambda: place(key, state, data, cohort)[0], lambda: state)
        return state._replace(cluster=placed.cluster)

    def client_params(state: CFLGPState, ids: Array) -> Params:
        return tree.take(state.models, state.cluster[ids])

    def shortfall(state: CFLGPState, data: FederatedData, participation: Participation) -> str:
        if not bool(jnp.isfinite(state.centres).any()):
            return (
                f"No clustering had num_clusters={num_clusters} clients with rows, so that no client was clustered: "
                "take a larger cohort or fewer clusters."
            )
        return base.one_cluster(state, data, num_clusters, "raise local_epochs or cluster_until", participation.sampled)

    return Method(init, round, client_params, task, assign, shortfall=shortfall)


def fill_blocks(profile: Array, visits: Array) -> Array:
    """Returns profiles as points `[N, blocks * s]`, with the mean of a block where a client has not sent it.

    The points of clients that have sent nothing are 0.

    Args:
        profile: `[N, blocks, s]`.
        visits: `[N, blocks]`.

    >>> profile = jnp.array([[[2.0], [1.0]], [[4.0], [0.0]], [[0.0], [0.0]]])
    >>> fill_blocks(profile, jnp.array([[1, 1], [1, 0], [0, 0]])).tolist()
    [[2.0, 1.0], [4.0, 1.0], [0.0, 0.0]]
    """
    sent = visits > 0
    total = jnp.where(sent[..., None], profile, 0).sum(0)  # [blocks, s]
    mean = total / jnp.maximum(sent.sum(0), 1)[:, None].astype(profile.dtype)
    filled = jnp.where(sent[..., None], profile, mean[None])
    return jnp.where(sent.any(1)[:, None], filled.reshape(profile.shape[0], -1), 0)


def keep_numbers(labels: Array, old: Array, num_clusters: int) -> Array:
    """Returns new clusters `[N]` int32 under the numbers with which the most clients keep theirs; -1 stays.

    Of equal renamings it is the one that changes the least of the clusters' order, by their first client.

    Args:
        labels: new clusters `[N]`, -1 of absent clients.
        old: clusters `[N]`.
        num_clusters: K.

    >>> keep_numbers(jnp.array([2, 2, 0, 0]), jnp.array([1, 1, 0, 2]), 3).tolist()
    [1, 1, 0, 0]
    """
    count = labels.shape[0]
    there = labels >= 0
    first = jnp.full(num_clusters + 1, count, jnp.int32)
    first = first.at[jnp.where(there, labels, num_clusters)].min(jnp.arange(count, dtype=jnp.int32))[:num_clusters]
    rank = jnp.argsort(jnp.argsort(first)).astype(jnp.int32)  # [K]: the numbers of k-means mean nothing
    ordered = jnp.where(there, rank[jnp.maximum(labels, 0)], -1)
    new, before = (jax.nn.one_hot(of, num_clusters, dtype=jnp.float32) for of in (ordered, old))
    agreed = jnp.matmul(new.T, before, precision="highest")  # [K, K]
    places = jnp.arange(num_clusters, dtype=jnp.float32)
    moved = jnp.abs(places[:, None] - places[None]) / num_clusters**2  # less than one client in all
    return jnp.where(there, match(moved / 2 - agreed)[jnp.maximum(ordered, 0)], -1)


def _check_arguments(num_clusters: int, cluster_every: int, cluster_until: int | None, sketch_size: int) -> None:
    """Raises ValueError if an argument is out of range."""
    least = {"num_clusters": num_clusters, "cluster_every": cluster_every, "sketch_size": sketch_size}
    for name, value in least.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    if cluster_until is not None and cluster_until < 1:
        raise ValueError(f"cluster_until must be at least 1, got {cluster_until}; None clusters until the last round.")
