"""CLoVE: clients are clustered by the vectors of the K models' losses on their rows.

Bhatia, Papadis, Kodialam, Lakshman and Chakrabarty, "CLoVE: Personalized Federated Learning through Clustering of Loss
Vector Embeddings", ICML 2026. The server holds K models, independent at first. In a round, the sampled clients send

    l_i = (f_i(theta_1), ..., f_i(theta_K))                     # mean losses on their training rows, without training

and the server finds K clusters Q_1 ... Q_K of these rows by k-means, and matches clusters to models, one to one, so
that sum_c B[c, m(c)] is least, with B[c, k] = sum over i in Q_c of l_i[k]. With r_i = m(the cluster of i) client i

    w_i     <- E epochs of SGD on f_i from theta_{r_i}
    theta_k <- sum n_i w_i / sum n_i over the clients with r_i = k

IFCA takes the model with the lowest loss, and sends clients of two groups to one model where that is ahead for both;
rows of losses differ for the two groups even then. A model without clients stays.

When all clients of a cohort have had one r_i in their last `stable_rounds` = 3 rounds, nothing is clustered any more:
each client trains, and receives, the model of its last r_i alone. Clients that have not been asked before send l_i, and
take the model of the nearest mean vector of the last clustering; so do held-out clients and newcomers when they are
served, and before the first clustering they take the lowest loss. A cohort with fewer than K clients with rows and
finite losses is not clustered: its clients keep their r_i.

With an unknown K (`num_clusters=None`) there are `max_clusters` models. In every round the rows l_i are clustered by
Ward's linkage into k = 2, 3, ... clusters, fewer than clients, and a larger k is taken if its mean silhouette is more
than 1.1 times that of the best k before it. From the means of these clusters k-means makes Q_1 ... Q_k, and each is
matched to one of the models; the others stay.

Where the official code differs: a client is stable if its newest and its third last r_i are equal; clients that come
after that end in an error; every client is tested with the test losses of all models; k-means has one start of one
seed, here the best of 20, whose seeds are new in each round. Its search for an unknown K repeats every row five
times where there are at most 15 clients, so that K = N wins with a perfect silhouette; its k-means then starts from new
seeds. Its settings: E = 1, B = 100, Adam of rate 0.001, all clients. The paper's text was not available: the rule is
the code's, repaired.
"""

from typing import Literal, NamedTuple

import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.clustering import centres, kmeans
from jaxfl.clustering.assignment import match
from jaxfl.clustering.ward import ward_by_silhouette
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method, Participation
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.by_cluster import cluster_training
from jaxfl.methods.parts.competing import independent_models, model_losses
from jaxfl.methods.parts.multi_centre import count_members
from jaxfl.random import Stream, key_for
from jaxfl.schema import checked
from jaxfl.server import aggregate
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params


class CLoVEState(NamedTuple):
    """K models, each client's last model, and the mean loss vectors of the last clustering."""

    models: Params  # [K, ...]
    centroids: Array  # [K, K] row k: of the cluster that has model k; infinite where it had no client
    clustered: Array  # [] bool, whether there has been a clustering
    stable: Array  # [] bool, whether the clusters are final
    unchanged: Array  # [N] int32, rounds of a client with its last model, one after another; 0 before its first
    cluster: Array  # [N] int32
    round: Array  # [] int32


@server_sees(Seen("numbers", "the losses of all models at each client until clusters are stable; K sums of models"))
@checked
def clove(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int | None = 4,
    max_clusters: int = 15,
    vectors: Literal["losses", "roots"] = "losses",
    stable_rounds: int | None = 3,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "rows",
) -> Method:
    """Returns CLoVE.

    Args:
        task: what is learned.
        optimizer: the local optimiser.
        num_clusters: K, the number of models; None chooses the number of clusters in every round.
        max_clusters: the number of models where K is unknown; a client is asked for its loss under each.
        vectors: what k-means compares: `"losses"`, or their square `"roots"`: one model with widely spread losses leads
            less then.
        stable_rounds: rounds of each client of a cohort with one model after which clusters are final; None clusters in
            every round.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: of the clients in the mean of their model: `"rows"` (n_i, the official code) or `"uniform"`.

    Raises:
        ValueError: an option is out of range, or there are more clusters than clients.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=40)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(clove(task, optax.sgd(0.1), num_clusters=4), data, rounds=3, seed=0)
    >>> result.summary["ari"]
    1.0
    """
    if num_clusters is not None and num_clusters < 1:
        raise ValueError(f"num_clusters must be at least 1, got {num_clusters}; None chooses it in every round.")
    if num_clusters is None and max_clusters < 2:
        raise ValueError(f"max_clusters must be at least 2, got {max_clusters}; 15 is the official code's.")
    slots, fewest = (max_clusters, 3) if num_clusters is None else (num_clusters, num_clusters)
    if stable_rounds is not None and stable_rounds < 1:
        raise ValueError(f"stable_rounds must be at least 1, got {stable_rounds}; None clusters in every round.")
    losses_of = model_losses(task)
    train = local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size)
    learn = cluster_training(train, weighting)

    def init(key: Key, data: FederatedData) -> CLoVEState:
        if num_clusters is not None:
            base.check_clusters(num_clusters, data)
        models = independent_models(task, slots)(key, data)
        dtype = jnp.result_type(float)
        nothing = jnp.zeros(data.num_clients, jnp.int32)
        centroids = jnp.full((slots, slots), jnp.inf, dtype)
        no = jnp.array(False)
        return CLoVEState(models, centroids, no, no, nothing, nothing, jnp.int32(0))

    def ask(state: CLoVEState, data: FederatedData, cohort: Cohort) -> Array:
        """Returns the loss vectors of a cohort `[C, K]`."""

        def client(shared, client: Array):
            models, data = shared
            return (), losses_of(models, data, client)

        return over_clients(client, (state.models, data), cohort)[1]

    def answers(data: FederatedData, cohort: Cohort, losses: Array) -> Array:
        """Returns whether clients have rows, and losses of finite length [C]."""
        return (data.train.size[cohort.ids] > 0) & jnp.isfinite(jnp.square(losses).sum(1))

    def nearest(state: CLoVEState, losses: Array) -> Array:
        """Returns the models of clients that are in no clustering `[C]`."""
        lowest = jnp.argmin(losses, 1).astype(jnp.int32)
        known = jnp.isfinite(state.centroids).all(1)
        away = jnp.where(known[:, None], state.centroids, 0)
        points = clustering_points(losses, vectors)
        distances = jnp.where(known[None], kmeans.squared_distances(points, away), jnp.inf)
        return jnp.where(state.clustered, jnp.argmin(distances, 1).astype(jnp.int32), lowest)

    def cluster_cohort(
        key: Key, state: CLoVEState, data: FederatedData, cohort: Cohort, losses: Array
    ) -> tuple[Array, Array, Array]:
        """Returns the models of a cohort `[C]`, the centroids, and whether there is a clustering."""
        before = state.cluster[cohort.ids]
        able = cohort.mask & answers(data, cohort, losses)
        # by id, and not by index in the cohort: its order must not decide which seeds are drawn
        ids, count = jnp.where(able, cohort.ids, data.num_clients), data.num_clients
        points = jnp.zeros((count, slots), losses.dtype).at[ids].set(clustering_points(losses, vectors), mode="drop")
        costs = jnp.zeros((count, slots), losses.dtype).at[ids].set(losses, mode="drop")
        there = jnp.zeros(count, bool).at[ids].set(True, mode="drop")
        again = key_for(key, Stream.START, round=state.round)
        if num_clusters is None:
            found_labels, found_centres = clusters_of_unknown_number(points, there, slots, cohort.ids.shape[0])
        else:
            found = kmeans.kmeans(again, points, num_clusters, mask=there)
            found_labels, found_centres = found.labels, found.centres
        labels = jnp.where(there, found_labels, slots)
        everybody = jnp.arange(count, dtype=jnp.int32)
        first = jnp.full(slots + 1, count, jnp.int32).at[labels].min(everybody)[:slots]
        order = jnp.argsort(first).astype(jnp.int32)  # clusters by their first client
        members = jnp.equal(labels[None], order[:, None]).astype(costs.dtype)  # [K, N]
        model = jnp.zeros(slots, jnp.int32).at[order].set(match(members @ costs))  # by k-means' number
        enough = there.sum() >= fewest
        own = jnp.where(able & enough, model[jnp.maximum(found_labels[cohort.ids], 0)], before)
        centres = jnp.where((first < count)[:, None], found_centres.astype(state.centroids.dtype), jnp.inf)
        centroids = jnp.zeros_like(state.centroids).at[model].set(centres)
        return own, jnp.where(enough, centroids, state.centroids), state.clustered | enough

    def round(key: Key, state: CLoVEState, data: FederatedData, cohort: Cohort) -> tuple[CLoVEState, Info]:
        ids, before = cohort.ids, state.cluster[cohort.ids]
        losses = ask(state, data, cohort)
        own, centroids, clustered = cluster_cohort(key, state, data, cohort, losses)
        new = state.unchanged[ids] == 0
        asked = cohort.mask & (~state.stable | new)
        can = answers(data, cohort, losses)
        final = jnp.where(new & can, nearest(state, losses), before)
        own = jnp.where(state.stable, final, own)
        cluster = base.write_clusters(state.cluster, cohort, own)
        total, loss = learn(key, state.models, cluster, state.round, data, cohort)
        models = aggregate.mean(total, empty=state.models)

        took_part = cohort.mask & can
        times = jnp.where(new | (own != before), 1, state.unchanged[ids] + 1)
        unchanged = base.write_clusters(state.unchanged, cohort, jnp.where(can, times, state.unchanged[ids]))
        stable = state.stable
        if stable_rounds is not None:
            stable |= took_part.any() & clustered & jnp.where(took_part, unchanged[ids] >= stable_rounds, True).all()
        one = base.shape_of(models)
        info = base.info(
            cohort,
            loss,
            own,
            num_clusters=(count_members(cluster, data, slots) > 0).sum(),
            diverged=total.diverged,
            up=one,
            down=one,
            stable=stable.astype(jnp.int32),
        )
        others = jnp.float32(slots - 1)  # models beside its own
        info = info._replace(
            bytes_up=info.bytes_up + base.traffic(asked.sum(), jnp.zeros(slots, losses.dtype)),
            bytes_down=info.bytes_down + others * base.traffic(asked.sum(), one),
        )
        after = CLoVEState(
            models,
            jnp.where(state.stable, state.centroids, centroids),
            clustered,
            stable,
            unchanged,
            cluster,
            state.round + 1,
        )
        return after, info

    def assign(key: Key, state: CLoVEState, data: FederatedData, cohort: Cohort) -> CLoVEState:
        del key
        before, losses = state.cluster[cohort.ids], ask(state, data, cohort)
        new = (state.unchanged[cohort.ids] == 0) & (data.train.size[cohort.ids] > 0)
        found = jnp.where(new, nearest(state, losses), before)
        return state._replace(cluster=base.write_clusters(state.cluster, cohort, found))

    def client_params(state: CLoVEState, ids: Array) -> Params:
        return tree.take(state.models, state.cluster[ids])

    def shortfall(state: CLoVEState, data: FederatedData, participation: Participation) -> str:
        if not bool(state.clustered):
            wanted = "3" if num_clusters is None else f"num_clusters={num_clusters}"
            return (
                f"No round had {wanted} clients with rows, so that no client was clustered: take a larger cohort or "
                "fewer clusters."
            )
        return base.one_cluster(state, data, slots, "take another seed", participation.sampled)

    return Method(init, round, client_params, task, assign, shortfall=shortfall)


def clusters_of_unknown_number(points: Array, there: Array, slots: int, most: int) -> tuple[Array, Array]:
    """Returns the clusters `[N]` of loss vectors by k-means from Ward's clusters, and their means `[K, K]`.

    A mean is infinite where there is no cluster.

    Args:
        points: `[N, K]`.
        there: bool `[N]`, the clients that are clustered.
        slots: K.
        most: clients that are clustered, at most.
    """
    ids = jnp.argsort(~there, stable=True)[:most]  # those that are there, by id
    rows, present = points[ids], there[ids]
    start = ward_by_silhouette(rows, slots, mask=present)
    nowhere = jnp.full((slots, points.shape[1]), jnp.inf, points.dtype)
    found = kmeans.lloyd(rows, centres.mean(rows, start, nowhere), mask=present)
    labels = jnp.full(there.shape, -1, jnp.int32).at[ids].set(found.labels)
    return labels, found.centres


def clustering_points(losses: Array, vectors: Literal["losses", "roots"]) -> Array:
    """Returns what k-means compares of loss vectors."""
    return jnp.sqrt(jnp.maximum(losses, 0)) if vectors == "roots" else losses
