"""FedSoft: soft clustering, with a personal model that is pulled to a mixture of K centres.

Ruan and Joe-Wong, "FedSoft: Soft Clustered Federated Learning with Proximal Local Updating", AAAI 2022. The server
holds K centres c_s, client k one model w_k, the same for all clients at first. In a round, every sampled client k

    n_ks   <- number of its n_k rows with their lowest loss under c_s                      # every tau rounds
    u_ks   <- n_ks / n_k, or sigma where that is 0
    w_k    <- E epochs from its last w_k on  f_k(w) + (lambda / 2) sum_s u_ks ||w - c_s||^2

    c_s    <- sum_k u_ks n_k w_k / sum_k u_ks n_k                                          # over the sampled clients

The K proximal terms are one pull, of weight lambda U_k with U_k = sum_s u_ks (1, but for sigma), to the mixture of the
centres m_k = sum_s u_ks c_s / U_k. So a client trains one model for any number of clusters. lambda = 0 is local
training. All tasks are allowed: only losses of rows are needed.

Where the official code differs: it draws a set of clients for each centre, by u_ks n_k and without replacement, and
takes the plain mean of their models, which is another mean than the one above; here the cohort is the sampler's, as for
all methods, and the mean is that of the code without its draws. It estimates all clients' u in every second round, with
sigma = 1e-4 (`preset="official"`); it keeps Adam's state from round to round and does not shuffle rows. The paper's own
sigma and tau could not be checked: its preset estimates a client's u whenever it trains, without smoothing.

A client without an estimate has u = 1 / K. A client that has never trained, for example a held-out one, is served m_k,
unless `newcomers="initial"` (as in the official code, where models start untrained). With `estimate="everybody"` its u
is estimated, but not for clients of `result.evaluate`, which were in no round.

Random centres win rows at random, and all centres begin as nearly the same mean. One of them may win every row:
`info.extra["shares"]`, the mean of the cohort's u `[K]`, shows it.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfl import tree
from jaxfl.client.corrections import proximal_pull
from jaxfl.client.passes import fold_rows
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.engine import over_clients, over_owners
from jaxfl.methods import base
from jaxfl.methods.base import Assign, Info, Method, Participation
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts import competing
from jaxfl.methods.parts.expectation import count_leading, row_losses_by_model
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked, is_known
from jaxfl.server import aggregate
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"smoother": 0.0, "estimate_every": 1, "estimate": "cohort"},
    "official": {"smoother": 1e-4, "estimate_every": 2, "estimate": "everybody"},
}


class FedSoftState(NamedTuple):
    """K centres, and a model and K weights for each client."""

    centres: Params  # [K, ...] c
    models: Params  # [N, ...] w
    weights: Array  # [N, K] float, u; 1 / K before the first estimate
    trained: Array  # [N] bool, False while w_k is the initial model
    cluster: Array  # [N] int32, every client in a slot of its own; or the centre with the largest u, if that is served
    round: Array  # [] int32


Weigh = Callable[[Params, FederatedData, Array], Array]


@server_sees(Seen("sums", "K sums of models, each with the shares of rows u as weights"))
@checked
def fedsoft(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    preset: Literal["paper", "official"] = "paper",
    num_clusters: int = 2,
    proximal_weight: Traceable = 0.1,
    smoother: Traceable | None = None,
    estimate_every: int | None = None,
    estimate: Literal["cohort", "everybody"] | None = None,
    local_epochs: Epochs = 10,
    batch_size: int | None = 10,
    weighting: aggregate.Weighting = "rows",
    served: Literal["own", "cluster"] = "own",
    newcomers: Literal["mixture", "initial"] = "mixture",
) -> Method:
    """Returns FedSoft.

    Args:
        task: what is learned.
        optimizer: the local optimiser.
        preset: `"paper"` or `"official"`; their values are in brackets below, in this order. Options that are
            given replace the preset\'s values.
        num_clusters: K.
        proximal_weight: lambda, the pull to the mixture of the centres; the code has 0.1 for MNIST and letters, 0.01
            for CIFAR. Plain gradient steps need `learning_rate * (lambda + curvature) < 2`.
        smoother: sigma, the weight of a centre that has won no row of a client (0, 1e-4).
        estimate_every: tau, rounds from one estimate of u to the next; a client also estimates u in its first round
            (1, 2).
        estimate: clients that estimate u in such a round: the `"cohort"`, or `"everybody"`: all clients then receive
            the centres, and their rows are read (cohort, everybody).
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: weights of the clients in the centres: `"rows"` (u_ks n_k) or `"uniform"` (u_ks).
        served: served model: a client's `"own"`, or that of the `"cluster"` with the largest u.
        newcomers: served model of clients that have never trained: the `"mixture"` of the centres, or the `"initial"`
            model.

    Raises:
        ValueError: an option is out of range.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(fedsoft(task, optax.sgd(0.1), local_epochs=2), data, rounds=2, cohort=4, seed=0)
    >>> result.state.weights.sum(1).tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    given = {"smoother": smoother, "estimate_every": estimate_every, "estimate": estimate}
    rule = base.from_preset(PRESETS, preset, **given)
    _check_arguments(num_clusters, rule["smoother"], rule["estimate_every"])
    everybody = rule["estimate"] == "everybody"
    pulled = optax.chain(proximal_pull(proximal_weight), optimizer)
    train = local_train(task, pulled, local_epochs=local_epochs, batch_size=batch_size)
    weigh = importance(task, rule["smoother"])

    def init(key: Key, data: FederatedData) -> FedSoftState:
        count = data.num_clients
        model = task.init(key_for(key, Stream.INIT))  # of all clients; the centres are drawn separately
        return FedSoftState(
            centres=competing.independent_models(task, num_clusters)(key, data, 1),
            models=tree.repeat(model, count),
            weights=jnp.full((count, num_clusters), 1 / num_clusters, jnp.result_type(float)),
            trained=jnp.zeros(count, bool),
            cluster=jnp.zeros(count, jnp.int32) if served == "cluster" else jnp.arange(count, dtype=jnp.int32),
            round=jnp.int32(0),
        )

    def client(shared, client: Array, own: Params):
        key, (centres, weights, trained, round), data = shared
        u = weights[client]
        if not everybody:
            due = (round % rule["estimate_every"] == 0) | ~trained[client]
            u = jax.lax.cond(due, lambda: weigh(centres, data, client), lambda: weights[client])
        anchor = mean_centre(centres, u)
        client_key = key_for(key, Stream.BATCHES, round, client)
        model, loss = train(client_key, own, data, client, anchor=anchor, pull_scale=u.sum())
        finite = tree.is_finite(model)
        trained_now = finite & (data.train.size[client] > 0)  # otherwise u and the model are unchanged
        weight = u * aggregate.client_weight(data, client, weighting).astype(u.dtype)
        contribution = aggregate.contribute_to_all(model, weight, start=anchor)
        new_u = jnp.where(trained_now, u, weights[client])
        return contribution, (loss, new_u, finite), tree.where(trained_now, model, own)

    def round(key: Key, state: FedSoftState, data: FederatedData, cohort: Cohort) -> tuple[FedSoftState, Info]:
        weights, due = state.weights, jnp.array(False)
        if everybody:
            due = ((state.round % rule["estimate_every"] == 0) | ~state.trained.any()) & cohort.mask.any()
            estimates = jax.lax.cond(
                due, lambda: population_importance(weigh, state.centres, data, cohort), lambda: weights
            )
            able = base.present(data) & (data.train.size > 0)  # a client that has not arrived receives no centres yet
            weights = jnp.where(able[:, None], estimates, weights)
        shared = key, (state.centres, weights, state.trained, state.round), data
        total, (loss, u, finite), models = over_owners(client, shared, cohort, state.models)
        ids = jnp.where(cohort.mask, cohort.ids, data.num_clients)  # padding is written nowhere
        weights = weights.at[ids].set(u, mode="drop")
        moved = state.trained[cohort.ids] | (finite & (data.train.size[cohort.ids] > 0))
        others = jnp.where(due, base.present(data).sum() - cohort.mask.sum(), 0)
        return FedSoftState(
            centres=aggregate.mean(total, empty=state.centres),
            models=models,
            weights=weights,
            trained=state.trained.at[ids].set(moved, mode="drop"),
            cluster=state.cluster if served == "own" else jnp.argmax(weights, 1).astype(jnp.int32),
            round=state.round + 1,
        ), round_info(state, data, cohort, loss, u, finite, weights, others)

    def client_params(state: FedSoftState, ids: Array) -> Params:
        if served == "cluster":
            return tree.take(state.centres, state.cluster[ids])
        own = tree.take(state.models, ids)
        if newcomers == "initial":
            return own
        between = jax.vmap(mean_centre, in_axes=(None, 0))(state.centres, state.weights[ids])
        return tree.where(state.trained[ids], own, between)

    def shortfall(state: FedSoftState, data: FederatedData, participation: Participation) -> str:
        weights = np.asarray(state.weights)[np.asarray(state.trained)]
        weights = weights / weights.sum(1, keepdims=True)  # sigma is beside the shares of rows
        return base.one_model_leads(weights, "centre", "take another seed or fewer centres")

    assign = assigning(weigh) if served == "cluster" else base.keep_clusters
    reads = "everybody" if everybody else "cohort"
    return Method(init, round, client_params, task, assign, reads=reads, per_client="models", shortfall=shortfall)


def importance(task: Task, smoother: float) -> Weigh:
    """Returns `(centres [K, ...], data, client) -> [K]`: u, the share of a client's rows that each centre wins.

    The first of equal losses wins; NaN and infinite losses never win. If no row is won, u is 1 / K.

    Args:
        task: what is learned.
        smoother: sigma.
    """
    losses_of = row_losses_by_model(task)

    def weigh(centres: Params, data: FederatedData, client: Array) -> Array:
        count, dtype = base.slots_of(centres), jnp.result_type(float)

        def add(won: Array, batch: Batch) -> Array:
            losses = losses_of(centres, batch, None)  # [K, B]
            best = jnp.argmin(jnp.where(jnp.isnan(losses), jnp.inf, losses), 0)
            counts = batch.mask & (losses < jnp.inf).any(0)
            return won + jax.nn.one_hot(jnp.where(counts, best, -1), count, dtype=dtype).sum(0)  # -1 is nowhere

        won = fold_rows(add, jnp.zeros(count, dtype), data, data.train, client)
        size = data.train.size[client]
        share = won / jnp.maximum(size, 1).astype(dtype)
        return jnp.where(won.any(), jnp.where(won > 0, share, smoother), 1 / count)

    return weigh


def mean_centre(centres: Params, weights: Array) -> Params:
    """Returns the weighted mean of the centres `[K, ...]`; one of the weights `[K]` is above 0."""
    share = weights / weights.sum()
    # a product: XLA's sum over the first axis of four layers of 1,500 x 1,500 takes 2 s on a CPU, this a millisecond
    return jax.tree.map(
        lambda leaf: jnp.tensordot(share.astype(leaf.dtype), leaf, axes=1, precision="highest"), centres
    )


def population_importance(weigh: Weigh, centres: Params, data: FederatedData, cohort: Cohort) -> Array:
    """Returns u of all clients `[N, K]`, held out or not, computed in the cohort's plan."""

    def client(shared, client: Array):
        centres, data = shared
        return (), weigh(centres, data, client)

    plan = cohort.plan._replace(chunk=cohort.plan.chunk or cohort.ids.shape[0])  # no larger chunk than in training
    everybody = Cohort.of(jnp.arange(data.num_clients), plan)
    return over_clients(client, (centres, data), everybody)[1]


def assigning(weigh: Weigh) -> Assign:
    """Returns `assign`: every client with rows is served the centre that wins most of them."""

    def assign(key: Key, state: FedSoftState, data: FederatedData, cohort: Cohort) -> FedSoftState:
        def client(shared, client: Array):
            centres, data = shared
            return (), jnp.argmax(weigh(centres, data, client)).astype(jnp.int32)

        _, found = over_clients(client, (state.centres, data), cohort)
        found = jnp.where(data.train.size[cohort.ids] > 0, found, state.cluster[cohort.ids])
        return state._replace(cluster=base.write_clusters(state.cluster, cohort, found))

    return assign


def round_info(
    state: FedSoftState,
    data: FederatedData,
    cohort: Cohort,
    loss: Array,
    u: Array,
    finite: Array,
    weights: Array,
    others: Array,
) -> Info:
    """Returns the `Info` of a round; a client's cluster is the centre with its largest u.

    Args:
        state: before the round.
        data: the federation.
        cohort: the clients of the round.
        loss: `[C]`.
        u: of the cohort `[C, K]`.
        finite: bool `[C]`, whether the client's model is finite.
        weights: u of all clients `[N, K]`.
        others: number of clients that estimate u without being sampled `[]`.
    """
    real = cohort.mask & finite & (data.train.size[cohort.ids] > 0)
    model, numbers = base.shape_of(state.centres), weights[0]
    info = base.info(
        cohort,
        loss,
        jnp.argmax(u, 1).astype(jnp.int32),
        num_clusters=count_leading(weights, data),
        diverged=(~finite & cohort.mask).sum().astype(jnp.int32),
        up=model,
        beside=numbers,
        down=state.centres,
        shares=jnp.where(real[:, None], u, 0).sum(0) / jnp.maximum(real.sum(), 1).astype(u.dtype),
    )
    return info._replace(
        bytes_up=info.bytes_up + base.traffic(others, numbers),
        bytes_down=info.bytes_down + base.traffic(others, state.centres),
    )


def _check_arguments(num_clusters: int, smoother: float, estimate_every: int) -> None:
    """Raises ValueError if an argument is out of range."""
    for name, value in {"num_clusters": num_clusters, "estimate_every": estimate_every}.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    if is_known(smoother) and not 0 <= smoother < math.inf:  # nor NaN
        raise ValueError(f"smoother must be at least 0 and finite, got {smoother}; 0 switches smoothing off.")
