"""FedRC: FedEM whose learners are also told apart by the labels that they are responsible for.

Guo, Tang and Lin, "FedRC: Tackling Diverse Distribution Shifts Challenge in Federated Learning by Robust Clustering",
ICML 2024. Clients whose concepts differ shall be apart, and clients whose inputs or labels alone differ together. The
server holds K learners and their label shares s[k, c]; client i stores weights omega_i, 1 / K each at first. In a
round, every sampled client i, with rows j = 1 ... n_i,

    q_j(k)      proportional to omega_ik exp(-loss(theta_k; x_j, y_j)) / s[k, y_j],  sum_k q_j(k) = 1
    omega_ik    <- mean_j q_j(k)
    A_i[k, c]   <- sum of q_j(k) over its rows with the label c
    theta_ik    <- E epochs on mean_j q_j(k) loss(theta; x_j, y_j), from theta_k, for each k

    theta_k     <- sum_i n_i theta_ik / sum_i n_i                                      # over the sampled clients
    s[k, c]     <- max(sum_i A_i[k, c], 1e-8) / its sum over c                          # over all clients, see below

That is FedEM but for s: a learner that has a label often is credited less for it, so that labels alone draw nobody
apart. s starts constant, so that the first round is FedEM's; one learner is FedAvg. Served is FedEM's mixture
sum_k omega_ik softmax(h_k(x)), without s, or the learner with the largest omega (`served="leader"`).

A client that is not sampled keeps omega and its last A. Of a client that was never sampled A is nothing, or 1 / L in
each cell (`unseen_counts="uniform"`, the official code), and omega is 1 / K unless `estimate="everybody"` updates it in
every round, with the new learners and without training; `method.join` does it once for the clients that join. These
updates use s, or keep it constant as the official code's tests of unseen clients do (`newcomers="constant"`).

A label that nearly nobody has at a learner has a tiny share there: the next row with it goes to that learner, so that
labels can swing from one learner to another. `count_floor` bounds it.

The paper's text was not available: the rule is the official code's. Where that code differs from what is here: it sums
the outputs of all learners of the largest omega; its variants with a weight of every row, Adam on q, noise on A and a
shared base are not here.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfl import engine, tree
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.fedem import equal_weights, estimate_weights, learner_contributions, round_info, stack_totals
from jaxfl.methods.parts import competing
from jaxfl.methods.parts.expectation import (
    apart,
    maximisation,
    mean_log_weights,
    mixture_shortfall,
    row_responsibilities,
)
from jaxfl.methods.parts.newcomers import count_new, joining_cohort, pad_clients
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked, is_known
from jaxfl.server import aggregate
from jaxfl.tasks import Task, mixture
from jaxfl.typing import Array, Key, Params

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"unseen_counts": "none", "newcomers": "shares"},
    "official": {"unseen_counts": "uniform", "newcomers": "constant"},
}
NEVER = -1e4  # log omega of learners that are not served


class FedRCState(NamedTuple):
    """K learners, and their weights and label counts at each client."""

    learners: Params  # [K, ...] theta
    log_weights: Array  # [N, K] float, log omega
    counts: Array  # [N, K, L] float, A of each client's last round
    cluster: Array  # [N] int32, every client in a slot of its own: mixtures differ
    round: Array  # [] int32


@server_sees(Seen("data", "how many rows of each label each client has, by learner; K sums of models"))
@checked
def fedrc(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    preset: Literal["paper", "official"] = "paper",
    num_clusters: int = 3,
    count_floor: Traceable = 1e-8,
    unseen_counts: Literal["none", "uniform"] | None = None,
    newcomers: Literal["shares", "constant"] | None = None,
    local_epochs: Epochs = 1,
    batch_size: int | None = 128,
    served: Literal["mixture", "leader"] = "mixture",
    estimate: Literal["cohort", "everybody"] = "cohort",
) -> Method:
    """Returns FedRC.

    A client trains all K learners and sends them: K times the work and the traffic of FedAvg, and every test computes
    K models. `info.extra` has `shares [K]`, the mean of the cohort's omega.

    Args:
        task: a classification.
        optimizer: the local optimiser, of each learner by itself.
        preset: `"paper"` or `"official"`; their values are in brackets below, in this order. Options that are
            given replace the preset's values.
        num_clusters: K: the number of learners.
        count_floor: the least sum of A that s is made of, in rows.
        unseen_counts: A of clients that were never sampled: `"none"`, or `"uniform"`, 1 / L each (none, uniform).
        newcomers: the s of updates of omega without training: the `"shares"`, or `"constant"` (shares, constant).
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        served: the `"mixture"` of all learners by omega, or the `"leader"`, the one with the largest (of equal ones the
            first).
        estimate: clients with a new omega in each round: the `"cohort"`, or `"everybody"`: all clients then receive the
            new learners, and their rows are read.

    Raises:
        ValueError: an option is out of range, or the task is no classification.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(fedrc(task, optax.sgd(0.1), num_clusters=2), data, rounds=2, cohort=4, seed=0)
    >>> result.state.counts.shape
    (8, 2, 10)
    """
    if num_clusters < 1:
        raise ValueError(f"num_clusters must be at least 1, got {num_clusters}.")
    if is_known(count_floor) and not 0 < count_floor < np.inf:  # nor NaN
        raise ValueError(f"count_floor must be above 0 and finite, got {count_floor}; 1e-8 is the official code's.")
    if task.rows is not None and task.rows.kind != "classification":
        raise ValueError(f"task must be a classification for fedrc, got {task.rows}; take fedem.")
    chosen = base.from_preset(PRESETS, preset, unseen_counts=unseen_counts, newcomers=newcomers)
    local = {"local_epochs": local_epochs, "batch_size": batch_size}
    local_train(task, optimizer, **local)  # checks the options before the first round
    mixed = mixture(task, num_clusters)
    responsible, train = row_responsibilities(task, row_prior), maximisation(task, optimizer, **local)

    def init(key: Key, data: FederatedData) -> FedRCState:
        if data.kind != "classification":
            raise ValueError(f"data must have classes as labels for fedrc, got {data.kind}; take fedem.")
        clients, labels = jnp.arange(data.num_clients, dtype=jnp.int32), data.num_classes
        learners = competing.independent_models(task, num_clusters)(key, data)
        weights = equal_weights(data.num_clients, num_clusters)
        counted = base.takes_part(data) & (chosen["unseen_counts"] == "uniform")
        counts = jnp.where(counted[:, None, None], jnp.full((1, num_clusters, labels), 1 / labels, weights.dtype), 0)
        return FedRCState(learners, weights, counts.astype(weights.dtype), clients, jnp.int32(0))

    def client(shared, client: Array):
        key, models, state, log_shares, data = shared
        prior = state.log_weights[client], log_shares
        q = responsible(state.learners, prior, data, client)  # [K, n]
        weights = mean_log_weights(q, prior[0], data.train.size[client])
        counts = label_counts(q, data, client)
        client_key = key_for(key, Stream.BATCHES, state.round, client)
        learners, loss = train(client_key, models, q, data, client)
        finite = tree.is_finite(learners)
        rows = jnp.where(finite, aggregate.client_weight(data, client, "rows"), 0)  # all K learners count, or none
        sent = learner_contributions(learners, jnp.full(num_clusters, rows), models)
        found = tree.where(finite, (weights, counts), (prior[0], state.counts[client]))
        return sent, (loss, *found, finite)

    def round(key: Key, state: FedRCState, data: FederatedData, cohort: Cohort) -> tuple[FedRCState, Info]:
        shares = log_label_shares(state.counts, count_floor)
        totals, (loss, found, counted, finite) = over_clients(
            client, (key, apart(state.learners, num_clusters), state, shares, data), cohort
        )
        ids = jnp.where(cohort.mask, cohort.ids, data.num_clients)  # padding is written nowhere
        log_weights = state.log_weights.at[ids].set(found, mode="drop")
        counts = state.counts.at[ids].set(counted, mode="drop")
        learners = aggregate.mean(stack_totals(totals), empty=state.learners)
        info = round_info(state.learners, data, cohort, loss, found, finite, log_weights, by_rows=True)
        labels = base.traffic(cohort.mask.sum(), shares)  # A up and s down
        info = info._replace(bytes_up=info.bytes_up + labels, bytes_down=info.bytes_down + labels)
        after = FedRCState(learners, log_weights, counts, state.cluster, state.round + 1)
        if estimate == "everybody":
            absent = jnp.ones(data.num_clients, bool).at[ids].set(False, mode="drop")
            others = absent & base.present(data)  # a client that has not arrived receives no model yet
            log_weights, receivers = jax.lax.cond(
                cohort.mask.any(),
                lambda: (
                    estimate_weights(alone, (learners, known_shares(after)), log_weights, others, data, cohort),
                    others.sum(),
                ),
                lambda: (log_weights, jnp.zeros_like(others.sum())),
            )
            after = after._replace(log_weights=log_weights)
            info = info._replace(bytes_down=info.bytes_down + base.traffic(receivers, (learners, shares)))
        return after, info

    def known_shares(state: FedRCState) -> Array:
        """Returns log s `[K, L]` of updates of omega without training."""
        shares = log_label_shares(state.counts, count_floor)
        return jnp.zeros_like(shares) if chosen["newcomers"] == "constant" else shares

    def alone(models: Params, log_weights: Array, data: FederatedData, client: Array) -> Array:
        """Returns log omega `[K]` of a client after an update without training."""
        learners, log_shares = models
        q = responsible(learners, (log_weights, log_shares), data, client)
        return mean_log_weights(q, log_weights, data.train.size[client])

    def client_params(state: FedRCState, ids: Array) -> Params:
        weights = state.log_weights[ids]
        if served == "leader":
            leads = jnp.argmax(weights, 1)[:, None] == jnp.arange(num_clusters)[None]
            weights = jnp.where(leads, jnp.zeros_like(weights), NEVER)
        return {"learners": tree.repeat(state.learners, ids.shape[0]), "log_weights": weights}

    @engine.jit
    def enter(state: FedRCState, data: FederatedData, cohort: Cohort) -> FedRCState:
        def client(shared, client: Array):
            (models, state), data = shared
            return (), alone(models, state.log_weights[client], data, client)

        models = state.learners, known_shares(state)
        _, found = over_clients(client, ((models, state), data), cohort)
        return state._replace(log_weights=state.log_weights.at[cohort.ids].set(found))

    def join(key: Key, state: FedRCState, data: FederatedData, ids: Sequence[int]) -> tuple[FedRCState, Array]:
        cohort = joining_cohort(ids, data)
        more = count_new(state.cluster, data.num_clients)
        state = state._replace(
            log_weights=jnp.concatenate([state.log_weights, equal_weights(more, num_clusters)]),
            counts=pad_clients(state.counts, data.num_clients),
            cluster=jnp.arange(data.num_clients, dtype=jnp.int32),
        )
        return enter(state, data.on_device(), cohort), cohort.ids

    reads = "everybody" if estimate == "everybody" else "cohort"
    return Method(init, round, client_params, mixed, join=join, reads=reads, shortfall=mixture_shortfall)


def log_label_shares(counts: Array, floor: float | Array) -> Array:
    """Returns log s `[K, L]`, the shares of the labels of each learner.

    Args:
        counts: A of all clients `[N, K, L]`.
        floor: least sum over the clients.

    >>> counts = jnp.array([[[1.0, 2.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]])
    >>> (100 * jnp.exp(log_label_shares(counts, 1e-8))).round().tolist()
    [[25.0, 75.0], [50.0, 50.0]]
    """
    return jax.nn.log_softmax(jnp.log(jnp.maximum(counts.sum(0), jnp.asarray(floor, counts.dtype))), 1)


def row_prior(prior: tuple[Array, Array], batch: Batch) -> Array:
    """Returns log omega_k - log s[k, y_j] `[K, B]` of the rows of a batch, from log omega `[K]` and log s `[K, L]`."""
    log_weights, log_shares = prior
    return log_weights[:, None] - log_shares[:, batch.y]


def label_counts(q: Array, data: FederatedData, client: Array) -> Array:
    """Returns A `[K, L]`, whose sums over the labels are n omega; 0 where the client has no finite losses.

    Args:
        q: `[K, n]` of the client's rows, 0 of padding.
        data: the federation.
        client: its id `[]`.
    """
    labels = data.batch(data.train, client, jnp.arange(q.shape[1], dtype=jnp.int32)).y
    counts = jnp.matmul(q, jax.nn.one_hot(labels, data.num_classes, dtype=q.dtype), precision="highest")
    return jnp.where(jnp.isfinite(counts).all(), counts, 0)
