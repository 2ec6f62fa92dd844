"""IFCA, the iterative federated clustering algorithm.

Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020, Algorithm 1.
The server holds K models. In a round, every sampled client i

    k_i <- argmin_k f_i(theta_k)                                    # the lowest loss on its training rows
    Option I   sends grad f_i(theta_{k_i});    theta_k <- theta_k - (eta / m) * sum_{i: k_i = k} grad f_i(theta_k)
    Option II  trains theta_{k_i} locally;     theta_k <- mean of the models of {i: k_i = k}

with m all sampled clients. A cluster without clients keeps its model; ties go to the lowest index. With shared layers
(the paper's weight sharing) the mean of those is over all sampled clients, the mean of the others over the cluster's.

With random initial models, one of them may win every client in the first rounds (collapse). `info.extra["clients"]` is
the number of clients that every model won in a round; `start` has remedies. Where the official code differs from the
paper:

    MNIST      choose="test": when it tests, a client's model is that of the lowest loss on its test rows (optimistic)
    CIFAR      the same, and start="balanced" (min_share 0.35 for two clusters, 0.1 for four), local_epochs=5,
               batch_size=50
    FEMNIST    start="groups", warmup_rounds=20, weighting="rows"; every layer but the last is pretrained and frozen
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client import conduct
from jaxfl.client.passes import full_gradient
from jaxfl.client.steps import Epochs, Steps
from jaxfl.client.training import Train, checked_optimizer, local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method, Participation, Reads
from jaxfl.methods.exposure import server_sees
from jaxfl.methods.parts import competing
from jaxfl.methods.parts.competing import JudgingRows, assigning, cluster_choice, model_losses
from jaxfl.methods.parts.multi_centre import count_members
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked
from jaxfl.server import aggregate, optimizers
from jaxfl.tasks import Task, check_trains
from jaxfl.typing import Array, Key, Params

Average = Literal["models", "gradients"]


class IFCAState(NamedTuple):
    """K models, and the last choice of each client."""

    models: Params  # [K, ...]
    server: optax.OptState  # [K, ...] of the server's optimiser
    cluster: Array  # [N] int32
    round: Array  # [] int32


@server_sees(*competing.SEEN)
@checked
def ifca(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int = 4,
    average: Average = "models",
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "uniform",
    shared: str | Sequence[str] = (),
    choose: JudgingRows = "train",
    start: competing.StartKind = "random",
    min_share: Traceable = 0.1,
    warmup_rounds: int = 20,
    server_optimizer: optax.GradientTransformation | None = None,
) -> Method:
    """Returns IFCA.

    Args:
        task: what is learned.
        optimizer: the local optimiser of Option II; in Option I it makes the server's step from the mean gradient.
        num_clusters: K, the number of models; more than there are true groups leaves some of them empty.
        average: contributions that are averaged: `"models"` (Option II) or `"gradients"` (Option I; `local_epochs` and
            `batch_size` are then for `start="kmeans++"` alone, and `jaxfl.Steps` is refused without it).
        local_epochs: E; the paper's tau local steps where a step takes all rows.
        batch_size: B; None takes all of a client's rows at once, as on MNIST in the paper.
        weighting: weights of the clients in a mean: `"uniform"` (the paper) or `"rows"` (HypCluster and the official
            FEMNIST code).
        shared: patterns (see `tree.matching`) of the parameters that all clusters share, for example `"Dense_0"`; none
            if empty. They start from those of the first model.
        choose: rows with the loss by which an evaluation chooses a client's model: `"train"`, or `"test"` as in the
            official MNIST and CIFAR code, which is optimistic. Training always chooses by training rows.
        start: `"random"` (the paper): K independent initial models. `"balanced"`: these, drawn again until every model
            wins `min_share` of the clients (of at most 1,000), or the most balanced of 100 draws.
            `"groups"`: in the first `warmup_rounds` rounds each client trains the model of its random group, K runs of
            FedAvg (or FedSGD) at the same time. `"kmeans++"`: the models of K single clients, see
            `competing.kmeans_start`, each trained for `warmup_rounds` rounds by its client alone. The bytes of a start
            before the first round (`"balanced"`, `"kmeans++"`) are not counted.
        min_share: share of the clients that every model has to win, for `"balanced"`: at most 1 / K.
        warmup_rounds: rounds of `"groups"` and `"kmeans++"`.
        server_optimizer: takes the server's step of Option II, with a separate state for each cluster, see
            `jaxfl.server`; None takes the mean.

    Raises:
        ValueError: an option is out of range, or there are more clusters than clients.
    """
    _check_arguments(num_clusters, average, shared, server_optimizer)
    if average == "gradients" and start != "kmeans++" and isinstance(local_epochs, Steps):
        raise ValueError(
            f'local_steps must be left out with average="gradients", whose clients send one gradient, '
            f'got {local_epochs.number}; average="models" makes steps.'
        )
    server_optimizer = optimizers.beside(server_optimizer, task.averages)
    competing.check_start(start, num_clusters, min_share, warmup_rounds, shared)
    losses, pooled = model_losses(task), layer_sharing(shared)
    train = local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size)
    work = model_contribution(train) if average == "models" else gradient_contribution(task)
    update = model_step(server_optimizer, pooled) if average == "models" else gradient_step(optimizer, pooled)
    find = cluster_choice(losses, grouped_rounds=warmup_rounds if start == "groups" else 0)

    def draw(key: Key, data: FederatedData, number: Array | int = 0) -> Params:
        models = competing.independent_models(task, num_clusters)(key, data, number)
        return pooled(models, tree.repeat(tree.take(models, 0), num_clusters))

    begin = {
        "balanced": competing.balanced_start(task, draw, losses, num_clusters, min_share=min_share),
        "kmeans++": competing.kmeans_start(task, train, losses, num_clusters, rounds=warmup_rounds),
    }.get(start, draw)

    def init(key: Key, data: FederatedData) -> IFCAState:
        base.check_clusters(num_clusters, data)
        models = begin(key, data)
        moments = jax.vmap(functools.partial(optimizers.init, server_optimizer))(models)
        cluster = (
            competing.random_groups(key, data, num_clusters)
            if start == "groups"
            else jnp.zeros(data.num_clients, jnp.int32)
        )
        return IFCAState(models, moments, cluster, jnp.int32(0))

    def client(shared, client: Array):
        key, state, data = shared
        cluster = find(state, data, client)
        client_key = key_for(key, Stream.BATCHES, state.round, client)
        model = tree.take(state.models, cluster)
        contribution, loss = work(client_key, model, data, client)
        weight = aggregate.client_weight(data, client, weighting)
        start = model if average == "models" else None
        return aggregate.contribute(contribution, weight, cluster, num_clusters, start=start), (loss, cluster)

    def round(key: Key, state: IFCAState, data: FederatedData, cohort: Cohort) -> tuple[IFCAState, Info]:
        total, (loss, found) = over_clients(client, (key, state, data), cohort)
        models, moments = update(state, total, data)
        cluster = base.write_clusters(state.cluster, cohort, found)
        one = base.shape_of(models)
        info = round_info(cohort, data, loss, found, cluster, total, one, pooled(models, one))
        if start == "groups":  # each client receives the model of its group alone
            down = jnp.where(state.round < warmup_rounds, base.traffic(cohort.mask.sum(), one), info.bytes_down)
            info = info._replace(bytes_down=down)
        return IFCAState(models, moments, cluster, state.round + 1), info

    assign = assigning(losses, choose)

    def client_params(state: IFCAState, ids: Array) -> Params:
        return tree.take(state.models, state.cluster[ids])

    reads: Reads = "cohort" if start in ("random", "groups") else "everybody"  # the others try many clients

    def shortfall(state: IFCAState, data: FederatedData, participation: Participation) -> str:
        if start != "groups" or int(state.round) > warmup_rounds or num_clusters == 1:
            other = "kmeans++" if start in ("groups", "balanced") else "groups"
            remedy = f"take start={other}, another seed or fewer clusters"
            return base.one_cluster(state, data, num_clusters, remedy, participation.sampled)
        return (
            "No client has chosen a cluster to train: that follows the rounds in random groups, "
            f"warmup_rounds={warmup_rounds}, and the run had {int(state.round)} rounds; make more rounds, or lower "
            "warmup_rounds."
        )

    return Method(init, round, client_params, task, assign, reads=reads, shortfall=shortfall)


def layer_sharing(shared: str | Sequence[str]) -> Callable[[Params, Params], Params]:
    """Returns `(separate, common) -> params`: the shared leaves of `common` and the other leaves of `separate`."""

    def pooled(separate: Params, common: Params) -> Params:
        is_shared = tree.matching(separate, shared)
        return jax.tree.map(lambda yes, own, both: both if yes else own, is_shared, separate, common)

    return pooled


def model_contribution(train: Train) -> Train:
    """Returns `(key, model, data, client) -> (model, loss)`, a client's contribution in Option II."""
    return lambda key, model, data, client: train(key, model, data, client, anchor=model)


def gradient_contribution(task: Task) -> Train:
    """Returns `(key, model, data, client) -> (gradient, loss)`, a client's contribution in Option I."""
    check_trains(task, 'average="gradients"')
    gradient_of = full_gradient(task)

    def send(key: Key, model: Params, data: FederatedData, client: Array) -> tuple[Params, Array]:
        loss, gradient = gradient_of(model, data, client, key)
        return gradient, loss

    return send


def model_step(server_optimizer: optax.GradientTransformation | None, pooled: Callable[[Params, Params], Params]):
    """Returns the server's step of Option II: `(state, total, data) -> (models [K, ...], server)`."""

    def step(state: IFCAState, total: aggregate.Total, data: FederatedData) -> tuple[Params, optax.OptState]:
        separate = aggregate.mean(total, empty=state.models)
        mean = pooled(separate, aggregate.mean(sum_over_clusters(total), empty=state.models))
        models, moments = jax.vmap(functools.partial(optimizers.step, server_optimizer))(
            state.server, state.models, mean
        )
        filled = total.weight > 0  # momentum alone must not move an empty cluster
        return tree.where(filled, models, mean), tree.where(filled, moments, state.server)

    return step


def gradient_step(optimizer: optax.GradientTransformation, pooled: Callable[[Params, Params], Params]):
    """Returns the server's step of Option I: `(state, total, data) -> (models [K, ...], server)`."""
    optimizer = checked_optimizer(optimizer)

    def step(state: IFCAState, total: aggregate.Total, data: FederatedData) -> tuple[Params, optax.OptState]:
        nothing = jax.tree.map(jnp.zeros_like, total.values)
        gradients = pooled(aggregate.cohort_mean(total), aggregate.mean(sum_over_clusters(total), empty=nothing))

        def descend(model: Params, gradient: Params) -> Params:
            updates, _ = optimizer.update(gradient, optimizer.init(model), model)
            return optax.apply_updates(model, conduct.scale_updates(updates, data.rate))

        moved, filled = jax.vmap(descend)(state.models, gradients), total.weight > 0
        # weight decay alone must not move an empty cluster, except for its shared layers
        separate, common = (tree.where(moves, moved, state.models) for moves in (filled, filled.any()))
        return pooled(separate, common), state.server

    return step


def round_info(
    cohort: Cohort,
    data: FederatedData,
    loss: Array,
    found: Array,
    cluster: Array,
    total: aggregate.Total,
    up: Params,
    down: Params,
) -> Info:
    """Returns the `Info` of a round.

    Args:
        cohort: the clients of the round.
        data: the federation.
        loss: of the clients `[C]`.
        found: their clusters `[C]`.
        cluster: of all clients `[N]`.
        total: the sums of the contributions.
        up: the shapes of a contribution.
        down: the shapes of the models that a client receives: all K models, with shared layers once.
    """
    counts = cohort.mask & (data.train.size[cohort.ids] > 0)
    slots = total.weight.shape[0]
    won = jax.nn.one_hot(jnp.where(counts, found, -1), slots, dtype=jnp.int32)  # [C, K]; -1 is no model
    return base.info(
        cohort,
        loss,
        found,
        num_clusters=(count_members(cluster, data, slots) > 0).sum(),  # over all clients, not the cohort alone
        diverged=total.diverged,
        up=up,
        down=down,
        clients=won.sum(0, dtype=jnp.int32),  # [K]
    )


def sum_over_clusters(total: aggregate.Total) -> aggregate.Total:
    """Returns the sums over all clusters, repeated for each cluster: shared layers are averaged from these."""

    def over_all(sums: Array) -> Array:
        return jnp.broadcast_to(sums.sum(0, keepdims=True), sums.shape)

    return dataclasses.replace(total, values=jax.tree.map(over_all, total.values), weight=over_all(total.weight))


def _check_arguments(
    num_clusters: int,
    average: Average,
    shared: str | Sequence[str],
    server_optimizer: optax.GradientTransformation | None,
) -> None:
    """Raises ValueError if an argument is out of range, or arguments contradict each other."""
    if num_clusters < 1:
        raise ValueError(f"num_clusters must be at least 1, got {num_clusters}.")
    if server_optimizer is not None and (average == "gradients" or shared):
        given = 'average="gradients"' if average == "gradients" else f"shared={shared!r}"
        raise ValueError(f"server_optimizer must be None with {given}, which has another step; leave one of both out.")
