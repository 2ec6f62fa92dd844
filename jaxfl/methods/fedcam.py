"""FeSEM-CAM, IFCA-CAM and WeCFL-CAM: clustered additive modelling, a global model below the models of clusters.

Ma, Zhou, Long, Jiang and Zhang, "Structured Federated Learning through Clustered Additive Modeling", NeurIPS 2023. A
client's outputs are the sum of those of the global model G and of its cluster's model F_k, logits for classes:

    y = h(x; G) + h(x; F_k)

What all clients share is learned by G, so that clusters need not collapse into one that fits everybody; F_k learns
what G leaves. In a round, a sampled client i with the cluster r_i

    G_i   <- E epochs from G on the loss of  h(x; .) + h(x; F_{r_i})                            # F_{r_i} stays
    w_i   <- E epochs from F_{r_i} on the loss of  h(x; G_i) + h(x; .)                          # its own G_i stays
    G     <- sum_i n_i G_i / sum_i n_i                                                          # of the whole cohort
    F_k   <- sum_i n_i w_i / sum_i n_i over the clients with r_i = k

The three methods are those that they are named after in all that concerns clusters:

    IFCA-CAM     r_i <- argmin_k f_i(G + F_k), the loss of the sum on its rows, before it trains
    FeSEM-CAM    r_i <- argmin_k |w_i - F_k|^2, after it; first by k-means of all clients' first models, of one start
    WeCFL-CAM    as FeSEM-CAM, with clients weighted by n_i in that k-means

A model that stays computes as in a test, without dropout. Both trainings take their batches in one order. The loss of
a round is that of the second training. An attacker perturbs both models that it sends, and trains w_i on its own G_i as
it was. A client is held back if either of its models is not finite; F_k without clients stays. A constant that is
added to G's last bias and taken from every F_k's changes no output: G and F_k are known up to that alone.

Clients that are not sampled keep r_i. Held-out clients and newcomers get the lowest loss of the sum in IFCA-CAM; in the
others held-out clients are in the first k-means, and newcomers (`join`) train from every F_k, G as it is, and get the
one that moves the least.

The paper's text was not available, so that the order of its steps is not confirmed: FeSEM-CAM and WeCFL-CAM are the
official code's, IFCA-CAM is in the same order. That code's FeSEM-CAM and WeCFL-CAM compare the last kernel alone and
run k-means from scratch in every round (`layers="last kernel"`, `recluster="scratch"`, then the cohort trains twice, as
in `wecfl`); one example pulls w_i to F_{r_i} (`proximal_weight=0.01`). Its IFCA-CAM trains w_i before G_i, from last
round's cluster, then chooses by the accuracy of F_k without G on ten batches, so that a w_i may be averaged into
another cluster than the one it started from; `choose_by="own"` is its choice by F_k alone. It starts G from two rounds
of FedAvg there, and all its clients take part; here G starts as another random model.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client import conduct
from jaxfl.client.corrections import proximal_pull
from jaxfl.client.passes import fold_rows, rows_at_once
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method, Participation
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.competing import independent_models, lowest_loss, model_losses
from jaxfl.methods.parts.multi_centre import (
    CentreRule,
    check_centre_options,
    count_members,
    index_rule,
    kmeans_init,
    local_update,
)
from jaxfl.methods.parts.one_shot import add_exchange
from jaxfl.methods.parts.vectors import to_vector
from jaxfl.methods.wecfl import cluster_anew, joining
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked, is_zero
from jaxfl.server import aggregate, optimizers
from jaxfl.server.aggregate import Weighting
from jaxfl.server.flight_context import update_start
from jaxfl.tasks import Task, additive, for_each, residual_task
from jaxfl.tasks.additive import offset_losses_of
from jaxfl.typing import Array, Key, Params

SEEN = Seen(
    "updates",
    "the model of each client, to compare it with those of all clusters; a sum of the global models",
    before="each client's first model",
)


class FedCAMState(NamedTuple):
    """The global model, the models of the clusters, and each client's cluster."""

    model: Params  # G
    centres: Params  # [K, ...] F
    cluster: Array  # [N] int32, r
    round: Array  # [] int32


class Trained(NamedTuple):
    """The two models that a client has trained."""

    model: Params  # G_i
    own: Params  # w_i
    loss: Array  # [] of the sum, in the training of w_i
    finite: Array  # [] bool, whether both are


class Passed(NamedTuple):
    """The results of a pass over the clients of a round."""

    totals: tuple[aggregate.Total, aggregate.Total]  # of G_i and, by cluster, of w_i
    loss: Array  # [C]
    finite: Array  # [C] bool
    found: Array  # [C] int32, the clusters that they are averaged in
    distance: Array  # [C] of w_i from its cluster; 0 where able is False
    able: Array  # [C] bool, clients with rows and a finite distance


@server_sees(SEEN)
@checked
def fesem_cam(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int = 4,
    layers: str | Sequence[str] = ".*",
    recluster: Literal["step", "scratch"] = "step",
    proximal_weight: Traceable = 0.0,
    local_epochs: Epochs = 5,
    global_epochs: int | None = None,
    batch_size: int | None = None,
    weighting: Weighting = "rows",
    first_epochs: int | None = None,
) -> Method:
    """Returns FeSEM-CAM.

    `info.extra` is FeSEM's: `distance [C]`, of every w_i from the nearest F_k, their mean `objective []`, and
    `changed []`, the number of clients with a new cluster.

    Args:
        task: what is learned.
        optimizer: the local optimiser of both trainings.
        num_clusters: K.
        layers: patterns (see `tree.matching`) of the parameters that w_i and F_k are compared by, or `"last kernel"`:
            of the layer that the model creates last (the official code).
        recluster: clustering in every round: one `"step"` from the F_k, or k-means from `"scratch"` (the official
            code), for which the cohort trains twice.
        proximal_weight: lambda, the pull of w_i to F_{r_i}; none by default, 0.01 in the official code's example.
        local_epochs: E, of w_i.
        global_epochs: epochs of G_i; None is `local_epochs`, and 0 leaves G as it started.
        batch_size: B; None takes all of a client's rows at once.
        weighting: weights of the clients in both means: `"rows"` (n_i) or `"uniform"`.
        first_epochs: epochs of the models for the first clustering; None is `local_epochs`.

    Raises:
        ValueError: an option is out of range, a pattern matches no parameter, there are more clusters than clients, or
            the task does not say its loss with an offset of the outputs.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=40)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> jaxfl.run(fesem_cam(task, optax.sgd(0.1)), data, rounds=2, seed=0).summary["ari"]
    1.0
    """
    return additive_centres(
        task,
        optimizer,
        num_clusters=num_clusters,
        layers=layers,
        recluster=recluster,
        proximal_weight=proximal_weight,
        local_epochs=local_epochs,
        global_epochs=global_epochs,
        batch_size=batch_size,
        weighting=weighting,
        voting="uniform",
        first_epochs=first_epochs,
    )


@server_sees(SEEN)
@checked
def wecfl_cam(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int = 4,
    layers: str | Sequence[str] = ".*",
    recluster: Literal["step", "scratch"] = "step",
    proximal_weight: Traceable = 0.0,
    local_epochs: Epochs = 5,
    global_epochs: int | None = None,
    batch_size: int | None = None,
    weighting: Weighting = "rows",
    first_epochs: int | None = None,
) -> Method:
    """Returns WeCFL-CAM: FeSEM-CAM with clients weighted in k-means as they are in the means.

    Args:
        task, optimizer, num_clusters, layers, recluster, proximal_weight, local_epochs, global_epochs: see `fesem_cam`.
        batch_size: B; None takes all of a client's rows at once.
        weighting: weights of the clients in k-means and in both means: `"rows"` (n_i) or `"uniform"`.
        first_epochs: epochs of the models for the first clustering; None is `local_epochs`.

    Raises:
        ValueError: see `fesem_cam`.
    """
    return additive_centres(
        task,
        optimizer,
        num_clusters=num_clusters,
        layers=layers,
        recluster=recluster,
        proximal_weight=proximal_weight,
        local_epochs=local_epochs,
        global_epochs=global_epochs,
        batch_size=batch_size,
        weighting=weighting,
        voting=weighting,
        first_epochs=first_epochs,
    )


@server_sees(Seen("sums", "a sum of the global models, and one for each of the K clusters, which clients choose"))
@checked
def ifca_cam(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int = 4,
    choose_by: Literal["sum", "own"] = "sum",
    proximal_weight: Traceable = 0.0,
    local_epochs: Epochs = 5,
    global_epochs: int | None = None,
    batch_size: int | None = None,
    weighting: Weighting = "rows",
) -> Method:
    """Returns IFCA-CAM.

    `info.extra["clients"]` is the number of clients `[K]` that have chosen each cluster.

    Args:
        task: what is learned.
        optimizer: the local optimiser of both trainings.
        num_clusters: K.
        choose_by: the loss by which a client chooses: of the `"sum"` G + F_k, or of F_k on its `"own"`.
        proximal_weight: lambda, the pull of w_i to F_{r_i}; none in the official code.
        local_epochs: E, of w_i.
        global_epochs: epochs of G_i; None is `local_epochs`, and 0 leaves G as it started.
        batch_size: B; None takes all of a client's rows at once.
        weighting: weights of the clients in both means: `"rows"` (n_i) or `"uniform"`.

    Raises:
        ValueError: an option is out of range, there are more clusters than clients, or the task does not say its loss
            with an offset of the outputs.
    """
    check_centre_options(num_clusters, proximal_weight, None)
    learn, _ = additive_training(task, optimizer, proximal_weight, local_epochs, global_epochs, batch_size)
    losses = sum_losses(task) if choose_by == "sum" else own_losses(task)

    def init(key: Key, data: FederatedData) -> FedCAMState:
        base.check_clusters(num_clusters, data)
        centres = independent_models(task, num_clusters)(key, data)
        cluster = jnp.zeros(data.num_clients, jnp.int32)
        return FedCAMState(global_start(task, key, num_clusters), centres, cluster, jnp.int32(0))

    def choose(state: FedCAMState, data: FederatedData, client: Array) -> Array:
        found = lowest_loss(losses(state.model, state.centres, data, client))
        return jnp.where(data.train.size[client] > 0, found, state.cluster[client])  # without rows there is no loss

    def client(shared, client: Array):
        key, state, data = shared
        slot = choose(state, data, client)
        trained = learn(key, state, slot, data, client)
        return contributions(state, trained, slot, slot, data, client, weighting), (trained.loss, slot, trained.finite)

    def round(key: Key, state: FedCAMState, data: FederatedData, cohort: Cohort) -> tuple[FedCAMState, Info]:
        totals, (loss, found, finite) = over_clients(client, (key, state, data), cohort)
        cluster = base.write_clusters(state.cluster, cohort, found)
        one, counted = base.shape_of(state.centres), cohort.mask & (data.train.size[cohort.ids] > 0)
        won = jax.nn.one_hot(jnp.where(counted, found, -1), num_clusters, dtype=jnp.int32)  # [C, K]
        info = base.info(
            cohort,
            loss,
            found,
            num_clusters=(count_members(cluster, data, num_clusters) > 0).sum(),
            diverged=(~finite & cohort.mask).sum(dtype=jnp.int32),
            up=(one, one),
            down=(state.model, state.centres),
            clients=won.sum(0, dtype=jnp.int32),
        )
        return next_state(state, totals, cluster), info

    def assign(key: Key, state: FedCAMState, data: FederatedData, cohort: Cohort) -> FedCAMState:
        del key

        def client(shared, client: Array):
            state, data = shared
            return (), choose(state, data, client)

        _, found = over_clients(client, (state, data), cohort)
        return state._replace(cluster=base.write_clusters(state.cluster, cohort, found))

    def shortfall(state: FedCAMState, data: FederatedData, participation: Participation) -> str:
        remedy = "take another seed or fewer clusters"
        return base.one_cluster(state, data, num_clusters, remedy, participation.sampled)

    return Method(init, round, serve_sums, additive(task), assign, shortfall=shortfall)


def additive_centres(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int,
    layers: str | Sequence[str],
    recluster: str,
    proximal_weight: float,
    local_epochs: Epochs,
    global_epochs: int | None,
    batch_size: int | None,
    weighting: Weighting,
    voting: Weighting,
    first_epochs: int | None,
) -> Method:
    """Returns FeSEM-CAM, or WeCFL-CAM with `voting`, the weights of clients in k-means; see `fesem_cam`."""
    check_centre_options(num_clusters, proximal_weight, first_epochs)
    rule = index_rule(task, layers)
    learn, learn_own = additive_training(task, optimizer, proximal_weight, local_epochs, global_epochs, batch_size)
    epochs = local_epochs if first_epochs is None else first_epochs
    first = local_update(task, optimizer, epochs, proximal_weight=0.0, loss_weighting="uniform", batch_size=batch_size)
    begin = kmeans_init(task, rule, first, num_clusters=num_clusters, weighting=weighting, voting=voting)
    if recluster == "step":
        run = step_pass(rule, learn, weighting)
    else:
        run = scratch_pass(rule, learn, weighting, voting, num_clusters)

    def init(key: Key, data: FederatedData) -> FedCAMState:
        start = begin(key, data)
        return FedCAMState(global_start(task, key, num_clusters), start.centres, start.cluster, start.round)

    def round(key: Key, state: FedCAMState, data: FederatedData, cohort: Cohort) -> tuple[FedCAMState, Info]:
        passed, old = run(key, state, data, cohort), state.cluster[cohort.ids]
        cluster, one = base.write_clusters(state.cluster, cohort, passed.found), base.shape_of(state.centres)
        counted, distance = passed.able & cohort.mask, passed.distance
        total = jnp.where(counted, distance, 0).sum()
        info = base.info(
            cohort,
            passed.loss,
            old,
            num_clusters=(count_members(cluster, data, num_clusters) > 0).sum(),
            diverged=(~passed.finite & cohort.mask).sum(dtype=jnp.int32),
            up=(one, one),
            down=(one, one),
            distance=distance,
            objective=total / jnp.maximum(counted.sum(), 1).astype(distance.dtype),
            changed=(cohort.mask & (passed.found != old)).sum(dtype=jnp.int32),
        )
        info = add_exchange(info, state.round == 0, data, up=one, down=one)
        return next_state(state, passed.totals, cluster), info

    def join(key: Key, state: FedCAMState, slot: Array, data: FederatedData, client: Array) -> tuple[Params, Array]:
        return learn_own(key, state.model, tree.take(state.centres, slot), data, client)

    def shortfall(state: FedCAMState, data: FederatedData, participation: Participation) -> str:
        return base.one_cluster(state, data, num_clusters, "raise first_epochs, or take another seed or other layers")

    parts = Method(init, round, serve_sums, additive(task), reads="everybody", shortfall=shortfall)
    return parts._replace(join=joining(join, rule))


Learn = Callable[[Key, FedCAMState, Array, FederatedData, Array], Trained]
RoundPass = Callable[[Key, FedCAMState, FederatedData, Cohort], Passed]


def additive_training(
    task: Task,
    optimizer: optax.GradientTransformation,
    proximal_weight: float,
    local_epochs: Epochs,
    global_epochs: int | None,
    batch_size: int | None,
) -> tuple[Learn, Callable[..., tuple[Params, Array]]]:
    """Returns both trainings of a client in a round, and the second one alone.

    They are `(key, state, slot, data, client) -> Trained`, with the key of the run, from G and F of a slot; and
    `(key, model, own, data, client) -> (own, loss)`, with the client's key, of w_i on a global model that stays.

    Args:
        task: of each model.
        optimizer, proximal_weight, local_epochs, global_epochs, batch_size: see `fesem_cam`.

    Raises:
        ValueError: an option is out of range, or the task does not say its loss with an offset of the outputs.
    """
    offset_losses_of(task)  # refuses what is missing, as the next lines what is out of range
    epochs = local_epochs if global_epochs is None else global_epochs
    if global_epochs is not None and global_epochs < 0:
        raise ValueError(f"global_epochs must be at least 0, got {global_epochs}; 0 leaves the global model as it is.")
    pulled = optimizer if is_zero(proximal_weight) else optax.chain(proximal_pull(proximal_weight), optimizer)
    of_own = {"local_epochs": local_epochs, "batch_size": batch_size}
    of_global = {"local_epochs": epochs, "batch_size": batch_size}
    local_train(task, pulled, **of_own)

    def learn_own(key: Key, model: Params, own: Params, data: FederatedData, client: Array) -> tuple[Params, Array]:
        return local_train(residual_task(task, model), pulled, **of_own)(key, own, data, client, anchor=own)

    def learn(key: Key, state: FedCAMState, slot: Array, data: FederatedData, client: Array) -> Trained:
        client_key = key_for(key, Stream.BATCHES, state.round, client)
        own, model = tree.take(state.centres, slot), state.model
        if epochs:
            honest = replace(data, attack=None)  # w_i is trained on G_i as it was before it is perturbed
            model, _ = local_train(residual_task(task, own), optimizer, **of_global)(client_key, model, honest, client)
        trained, loss = learn_own(client_key, model, own, data, client)
        sent = conduct.perturb_model(client_key, state.model, model, data, client)
        return Trained(sent, trained, loss, tree.is_finite(sent) & tree.is_finite(trained))

    return learn, learn_own


def step_pass(rule: CentreRule, learn: Learn, weighting: Weighting) -> RoundPass:
    """Returns the pass in which each client is averaged into the cluster whose model is nearest to its own.

    Args:
        rule: comparison of models.
        learn: both trainings of a client.
        weighting: of the clients in the means.
    """

    def client(shared, client: Array):
        key, state, data = shared
        before = state.cluster[client]
        trained = learn(key, state, before, data, client)
        distances = rule.distances(trained.own, state.centres)  # [K]
        able = (data.train.size[client] > 0) & trained.finite & jnp.isfinite(distances).all()
        found = jnp.where(able, jnp.argmin(distances).astype(jnp.int32), before)
        sent = contributions(state, trained, before, found, data, client, weighting)
        return sent, (trained.loss, trained.finite, found, jnp.where(able, distances[found], 0), able)

    def run(key: Key, state: FedCAMState, data: FederatedData, cohort: Cohort) -> Passed:
        totals, records = over_clients(client, (key, state, data), cohort)
        return Passed(totals, *records)

    return run


def scratch_pass(
    rule: CentreRule, learn: Learn, weighting: Weighting, voting: Weighting, num_clusters: int
) -> RoundPass:
    """Returns the two passes of a clustering from scratch: the cohort trains to be clustered, and again to be averaged.

    Args:
        rule: comparison of models.
        learn: both trainings of a client.
        weighting: of the clients in the means.
        voting: of the clients in k-means.
        num_clusters: K.
    """

    def show(shared, client: Array):
        key, state, data = shared
        before = state.cluster[client]
        trained = learn(key, state, before, data, client)
        compared = tree.where(trained.finite, trained.own, tree.take(state.centres, before))
        able = trained.finite & (data.train.size[client] > 0)
        return (), (trained.loss, trained.finite, to_vector(key, rule.shown(compared)), able)

    def add(shared, client: Array, found: Array):
        key, state, data = shared
        before = state.cluster[client]
        trained = learn(key, state, before, data, client)
        return contributions(state, trained, before, found, data, client, weighting), ()

    def run(key: Key, state: FedCAMState, data: FederatedData, cohort: Cohort) -> Passed:
        shared = key, state, data
        _, (loss, finite, vectors, able) = over_clients(show, shared, cohort)
        able &= cohort.mask
        found, distance = cluster_anew(key, state, data, cohort, vectors, able, voting, num_clusters)
        totals, _ = over_clients(add, shared, cohort, found)
        return Passed(totals, loss, finite, found, distance, able)

    return run


def contributions(
    state: FedCAMState,
    trained: Trained,
    before: Array,
    found: Array,
    data: FederatedData,
    client: Array,
    weighting: Weighting,
) -> tuple[aggregate.Contribution, aggregate.Contribution]:
    """Returns a client's contributions to G and to F of the cluster `found`; it has received F of `before`.

    Both count, or none.
    """
    weight = jnp.where(trained.finite, aggregate.client_weight(data, client, weighting), 0)
    slots, start = base.slots_of(state.centres), tree.take(state.centres, update_start(before, found))
    return (
        aggregate.contribute(trained.model, weight, start=state.model),
        aggregate.contribute(trained.own, weight, found, slots, start=start),
    )


def next_state(state: FedCAMState, totals: tuple[aggregate.Total, aggregate.Total], cluster: Array) -> FedCAMState:
    """Returns the state after a round, of the sums of G_i and w_i."""
    model, _ = optimizers.step_to_mean(None, (), state.model, totals[0])
    return FedCAMState(model, aggregate.mean(totals[1], empty=state.centres), cluster, state.round + 1)


def serve_sums(state: FedCAMState, ids: Array) -> Params:
    """Returns the served models of clients: G, and F of their clusters."""
    return {"shared": base.serve_one(state.model, ids), "own": tree.take(state.centres, state.cluster[ids])}


def global_start(task: Task, key: Key, num_clusters: int) -> Params:
    """Returns the initial G, which is independent of the K first models of clusters."""
    return task.init(key_for(key, Stream.INIT, num_clusters))


SumLosses = Callable[[Params, Params, FederatedData, Array], Array]


def own_losses(task: Task) -> SumLosses:
    """Returns `(model, centres [K, ...], data, client) -> [K]`: mean losses of F_k without G."""
    losses = model_losses(task)
    return lambda model, centres, data, client: losses(centres, data, client)


def sum_losses(task: Task) -> SumLosses:
    """Returns `(model, centres [K, ...], data, client) -> [K]`: mean losses of G + F_k on rows, infinite for NaN.

    The outputs of G are computed once for all clusters.
    """
    losses_of = offset_losses_of(task)

    def losses(model: Params, centres: Params, data: FederatedData, client: Array) -> Array:
        def add(total: Array, batch: Batch) -> Array:
            offset = task.outputs(model, batch)
            found: Any = for_each(task, lambda own: losses_of(own, batch, None, offset), centres)  # [K, B]
            return total + jnp.where(batch.mask[None], found, 0).sum(1).astype(total.dtype)

        zero = jnp.zeros(base.slots_of(centres), jnp.result_type(float))
        total = fold_rows(add, zero, data, data.train, client, rows_at_once(task, model))
        mean = total / jnp.maximum(data.train.size[client], 1).astype(total.dtype)
        return jnp.where(jnp.isnan(mean), jnp.inf, mean)

    return losses
