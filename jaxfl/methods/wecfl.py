"""WeCFL, weighted clustered federated learning.

Ma, Long, Zhou, Jiang and Zhang, "On the Convergence of Clustered Federated Learning", 2022. Clients are weighted by
rows, in the clustering and in the averages. The server holds K centres Omega_k, which are models; with
lambda_i = n_i / n,

    sum_i lambda_i |w_i - Omega_{r_i}|^2

is minimised by alternating steps:

    local   w_i <- E epochs from Omega_{r_i} on f_i
    E       r_i <- argmin_k |w_i - Omega_k|^2
    M       Omega_k <- sum_i lambda_i w_i / sum_i lambda_i over {i: r_i = k}

The paper's text could not be opened; this is its rule in the official code and in other sources. With
`recluster="step"` a round is one such turn in a single pass, so that no w_i is stored: FeSEM (see `fesem`) weighted by
rows and without its pull. The start, a k-means of all clients' first updates, is weighted by lambda_i as well.

The official code (`preset="official"`) compares the last kernel alone. In every round it discards the clusters and runs
a weighted k-means of the w_i to convergence (`recluster="scratch"`; here the best of 20). Sums by cluster need the
clusters first, so here the cohort trains twice: for sketches of the w_i of 1,024 numbers, and for the sums. The new
clusters take the numbers of the old clusters with which they share the most weight; in that code numbers change from
round to round. It has more differences: its lambda_i counts batches, its momentum continues over rounds, and it can
pull clients to the mean of all models.

Clients that are not sampled keep their r_i; a centre without clients is unchanged. A client that joins later (`join`)
trains from every centre, and gets the centre from which it moves the least.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from jaxfl import engine, tree
from jaxfl.client.steps import Epochs
from jaxfl.client.training import Train, local_train
from jaxfl.clustering import kmeans
from jaxfl.clustering.assignment import match
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Info, Join, Method, Round, from_preset
from jaxfl.methods.exposure import server_sees
from jaxfl.methods.parts import newcomers
from jaxfl.methods.parts.multi_centre import SEEN, CentreRule, FeSEMState, count_members, index_rule, multi_centre
from jaxfl.methods.parts.one_shot import add_exchange
from jaxfl.methods.parts.vectors import LAST_KERNEL, to_vector
from jaxfl.random import Stream, key_for
from jaxfl.schema import checked
from jaxfl.server import aggregate
from jaxfl.server.aggregate import Weighting
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

PRESETS = {
    "paper": {"layers": ".*", "recluster": "step"},
    "official": {"layers": LAST_KERNEL, "recluster": "scratch"},
}


@server_sees(SEEN)
@checked
def wecfl(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int = 4,
    preset: Literal["paper", "official"] = "paper",
    layers: str | Sequence[str] | None = None,
    recluster: Literal["step", "scratch"] | None = None,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: Weighting = "rows",
    first_epochs: int | None = None,
) -> Method:
    """Returns WeCFL.

    `info.extra` is FeSEM's: `distance [C]`, of every client's model from the nearest centre, their mean `objective []`,
    and `changed []`, the number of clients with a new cluster.

    Args:
        task: what is learned.
        optimizer: the local optimiser.
        num_clusters: K.
        preset: `"paper"` (`layers=".*"`, `recluster="step"`) or `"official"` (`layers="last kernel"`,
            `recluster="scratch"`); given options replace its values.
        layers: patterns (see `tree.matching`) of the parameters that clients are clustered by, or `"last kernel"`: of
            the layer that the model creates last.
        recluster: clustering in every round: one `"step"` from the centres of the round before, or k-means from
            `"scratch"`, for which the cohort trains twice.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: lambda_i, weights in clustering and averages: `"rows"` (n_i / n) or `"uniform"` (1 / m, FeSEM without
            pull).
        first_epochs: epochs of the updates for the first clustering; None is `local_epochs`.

    Raises:
        ValueError: an option is out of range, a pattern matches no parameter, or there are more clusters than clients.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=40)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(wecfl(task, optax.sgd(0.1)), data, rounds=2, seed=0)
    >>> result.state.cluster.tolist() == [result.state.cluster[i // 2 * 2] for i in range(8)]
    True
    """
    chosen = from_preset(PRESETS, preset, layers=layers, recluster=recluster)
    rule = index_rule(task, chosen["layers"])
    method = multi_centre(
        task,
        optimizer,
        rule,
        num_clusters=num_clusters,
        proximal_weight=0.0,
        loss_weighting="uniform",
        local_epochs=local_epochs,
        batch_size=batch_size,
        weighting=weighting,
        first_epochs=first_epochs,
        voting=weighting,
    )
    train = local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size)
    if chosen["recluster"] == "scratch":

        def vector_of(key: Key, model: Params) -> Array:
            return to_vector(key, rule.shown(model))

        method = method._replace(round=reclustering_round(train, vector_of, weighting))

    def learn(key: Key, state: FeSEMState, slot: Array, data: FederatedData, client: Array) -> tuple[Params, Array]:
        return train(key, tree.take(state.centres, slot), data, client)

    return method._replace(join=joining(learn, rule))


def reclustering_round(train: Train, vector_of: Callable[[Key, Params], Array], weighting: Weighting) -> Round:
    """Returns the round that clusters the cohort anew: train, weighted k-means, train again and add up.

    Args:
        train: a client's local training.
        vector_of: `(key, model) -> [d]`, the point of a model for k-means.
        weighting: lambda_i.
    """

    def learn(shared, client: Array) -> tuple[Params, Array]:
        key, state, data = shared
        client_key = key_for(key, Stream.BATCHES, state.round, client)
        return train(client_key, tree.take(state.centres, state.cluster[client]), data, client)

    def show(shared, client: Array):
        key, state, data = shared
        model, loss = learn(shared, client)
        finite = tree.is_finite(model)
        compared = tree.where(finite, model, tree.take(state.centres, state.cluster[client]))
        return (), (vector_of(key, compared), finite & (data.train.size[client] > 0), loss)

    def add(shared, client: Array, found: Array):
        model, _ = learn(shared, client)
        _, state, data = shared
        weight = aggregate.client_weight(data, client, weighting)
        start = tree.take(state.centres, state.cluster[client])
        return aggregate.contribute(model, weight, found, base.slots_of(state.centres), start=start), ()

    def round(key: Key, state: FeSEMState, data: FederatedData, cohort: Cohort) -> tuple[FeSEMState, Info]:
        shared, slots = (key, state, data), base.slots_of(state.centres)
        _, (vectors, able, loss) = over_clients(show, shared, cohort)
        able &= cohort.mask
        old = state.cluster[cohort.ids]
        found, away = cluster_anew(key, state, data, cohort, vectors, able, weighting, slots)
        total, _ = over_clients(add, shared, cohort, found)

        cluster, one = base.write_clusters(state.cluster, cohort, found), base.shape_of(state.centres)
        info = base.info(
            cohort,
            loss,
            old,
            num_clusters=(count_members(cluster, data, slots) > 0).sum(),
            diverged=total.diverged,
            up=one,
            down=one,
            distance=away,
            objective=away.sum() / jnp.maximum(able.sum(), 1).astype(away.dtype),
            changed=(cohort.mask & (found != old)).sum(dtype=jnp.int32),
        )
        info = add_exchange(info, state.round == 0, data, up=one, down=one)
        return FeSEMState(aggregate.mean(total, empty=state.centres), cluster, state.round + 1), info

    return round


def cluster_anew(
    key: Key,
    state: Any,
    data: FederatedData,
    cohort: Cohort,
    vectors: Array,
    able: Array,
    voting: Weighting,
    num_clusters: int,
) -> tuple[Array, Array]:
    """Returns a cohort's clusters `[C]` by k-means from scratch, and the squared distances from their means `[C]`.

    The new clusters take the numbers of the old ones, see `match_numbers`; a client that is not able keeps its cluster.

    Args:
        key: of the run.
        state: with `cluster [N]` and `round []`.
        data: the federation.
        cohort: the clients of the round.
        vectors: what is clustered `[C, d]`.
        able: bool `[C]`, the clients that are clustered.
        voting: the weights of clients in k-means.
        num_clusters: K.
    """
    # by id, and not by index in the cohort: its order must not decide which seeds are drawn
    ids, count = jnp.where(able, cohort.ids, data.num_clients), data.num_clients
    points = jnp.zeros((count, vectors.shape[1]), vectors.dtype).at[ids].set(vectors, mode="drop")
    known = jnp.zeros(count, bool).at[ids].set(True, mode="drop")
    weights = aggregate.client_weight(data, jnp.arange(count), voting)
    again = key_for(key, Stream.START, round=2 + state.round)  # rounds 0 and 1 of this stream are for the start
    clustering = kmeans.kmeans(again, points, num_clusters, mask=known, weights=weights)
    name = match_numbers(clustering.labels, state.cluster, jnp.where(known, weights, 0), num_clusters)
    label = jnp.maximum(clustering.labels[cohort.ids], 0)
    found = jnp.where(able, name[label], state.cluster[cohort.ids])
    return found, jnp.where(able, jnp.square(vectors - clustering.centres[label]).sum(1), 0)


def match_numbers(labels: Array, old: Array, weights: Array, num_clusters: int) -> Array:
    """Returns the number of the old cluster that each new cluster takes, `[K]` int32: the most weight keeps its number.

    Args:
        labels: new clusters `[N]`.
        old: clusters `[N]`.
        weights: of the clients `[N]`; 0 for those that are not in the cohort.
        num_clusters: K.

    >>> match_numbers(jnp.array([0, 0, 1, 1]), jnp.array([1, 1, 1, 0]), jnp.ones(4), 2).tolist()
    [1, 0]
    """
    new, before = (jax.nn.one_hot(of, num_clusters, dtype=weights.dtype) for of in (labels, old))
    shared = jnp.matmul((new * weights[:, None]).T, before, precision="highest")  # [K, K]
    return match(-shared)


SlotTraining = Callable[[Key, Any, Array, FederatedData, Array], tuple[Params, Array]]


def joining(learn: SlotTraining, rule: CentreRule) -> Join:
    """Returns `join(key, state, data, ids) -> (state, clusters [M])`.

    A client's cluster is that of the smallest term of the objective, |w_i - Omega_k|^2 with w_i trained from Omega_k:
    training moves the client least from a suitable centre. Centres are unchanged. A client without rows is served
    centre 0.

    Args:
        learn: `(key, state, slot, data, client) -> (model, loss)`, a client's local training from the centre of a slot.
        rule: comparison of models.
    """

    @engine.jit
    def enter(key: Key, state: Any, data: FederatedData, cohort: Cohort) -> tuple[Any, Array]:
        def client(shared, client: Array):
            key, state, data = shared

            def moved(slot: Array) -> Array:
                model, _ = learn(key_for(key, Stream.START, client=client), state, slot, data, client)
                away = rule.distances(model, state.centres)[slot]
                return jnp.where(jnp.isfinite(away), away, jnp.inf)

            slots = jnp.arange(base.slots_of(state.centres), dtype=jnp.int32)
            return (), jnp.argmin(jax.lax.map(moved, slots)).astype(jnp.int32)

        _, found = over_clients(client, (key, state, data), cohort)
        return state._replace(cluster=base.write_clusters(state.cluster, cohort, found)), found

    def join(key: Key, state: Any, data: FederatedData, ids: Sequence[int]) -> tuple[Any, Array]:
        cohort = newcomers.joining_cohort(ids, data)
        state = state._replace(cluster=newcomers.pad_clients(state.cluster, data.num_clients))
        return enter(key, state, data.on_device(), cohort)

    return join
