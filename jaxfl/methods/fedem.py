"""FedEM: expectation-maximisation of K models, for clients with data from mixtures of K distributions.

Marfoq, Neglia, Bellet, Kameni and Vidal, "Federated Multi-Task Learning under a Mixture of Distributions", NeurIPS
2021. The server holds K models, the learners; client i stores weights pi_i, 1 / K each at first. In a round, every
sampled client i, with rows j = 1 ... n_i,

    q_j(m)    proportional to pi_im exp(-loss(theta_m; x_j, y_j)),  sum_m q_j(m) = 1       # E step
    pi_im     <- mean_j q_j(m)                                                             # M step, stays at the client
    theta_im  <- E epochs on mean_j q_j(m) loss(theta; x_j, y_j), from theta_m             # M step, for each m

    theta_m   <- sum_i n_i theta_im / sum_i n_i

q is that of the round's learners, without dropout, and stays as it is while the client trains. A client is served the
mixture p(y | x) = sum_m pi_im softmax(h_m(x)); probabilities are mixed, not logits. One learner is FedAvg.

Any task that defines the mixture of its outputs is allowed: for classes and tokens log sum_m pi_m softmax(h_m), for
several labels the logit of sum_m pi_m sigmoid(h_m), for numbers sum_m pi_m h_m. Tasks of `jaxfl.supervised` do not
define it and are refused. The loss of an evaluation is -log sum_m pi_m exp(-loss_m), which the method minimises: for
classes it is the cross-entropy of the mixture.

A client that is not sampled keeps its pi. A client that was never sampled, for example a held-out one, has 1 / K,
unless `estimate="everybody"` updates its pi in every round, with the new learners and without training; the official
code does so for unseen clients whenever it evaluates. `method.join` does it once for the clients that join; clients of
`result.evaluate`, which were in no round, have 1 / K.

Where the official code differs: the average is over all clients, and those that are not sampled still hold the old
learners, so that a small cohort makes a small step (`mean_over="everybody"`). It keeps the optimisers' states from
round to round; here they start fresh. Both average by rows. By the likelihood, a learner's average would be weighted by
its share of the rows, sum_j q_j(m): `weighting="responsibilities"`. The paper's own weights could not be checked.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import engine, tree
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts import competing, newcomers
from jaxfl.methods.parts.expectation import (
    WeightStep,
    apart,
    count_leading,
    expectation,
    maximisation,
    mean_log_weights,
    mixture_shortfall,
    row_responsibilities,
)
from jaxfl.random import Stream, key_for
from jaxfl.schema import checked
from jaxfl.server import aggregate
from jaxfl.server.wire_context import refuse_noise
from jaxfl.tasks import Task, mixture
from jaxfl.typing import Array, Key, Params

PRESETS: dict[str, dict[str, Any]] = {"paper": {"mean_over": "cohort"}, "official": {"mean_over": "everybody"}}


class FedEMState(NamedTuple):
    """K learners, and their weights at each client."""

    learners: Params  # [K, ...] theta
    log_weights: Array  # [N, K] float, log pi
    cluster: Array  # [N] int32, every client in a slot of its own: mixtures differ
    round: Array  # [] int32


@server_sees(
    Seen("sums", "a sum of models for each of the K learners"),
    Seen(
        "numbers",
        "a sum of models for each of the K learners, and the weights pi of absent clients",
        options={"mean_over": "everybody", "weighting": "responsibilities"},
    ),
    presets=PRESETS,
)
@checked
def fedem(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    preset: Literal["paper", "official"] = "paper",
    num_clusters: int = 3,
    local_epochs: Epochs = 1,
    batch_size: int | None = 128,
    weighting: Literal["rows", "responsibilities"] = "rows",
    mean_over: Literal["cohort", "everybody"] | None = None,
    estimate: Literal["cohort", "everybody"] = "cohort",
) -> Method:
    """Returns FedEM.

    A client trains all K learners and sends them: K times the work and the traffic of FedAvg, and every test computes
    K models. `info.extra` has `shares [K]`, the mean of the cohort's pi.

    Args:
        task: what is learned.
        optimizer: the local optimiser, of each learner by itself.
        preset: `"paper"` or `"official"`; their values are in brackets below, in this order. Options that are
            given replace the preset\'s values.
        num_clusters: K: the number of learners.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: weights of the clients in a learner's average: `"rows"` (n_i) or `"responsibilities"`
            (sum_j q_j(m)), K more numbers that a client sends.
        mean_over: the `"cohort"`, or `"everybody"`: clients that are not sampled count with the old learners (cohort,
            everybody).
        estimate: clients with a new pi in each round: the `"cohort"`, or `"everybody"`: all clients then receive the
            new learners, and their rows are read.

    Raises:
        ValueError: an option is out of range, or the task does not define the mixture of its outputs.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(fedem(task, optax.sgd(0.1), num_clusters=2), data, rounds=2, cohort=4, seed=0)
    >>> result.state.log_weights.shape
    (8, 2)
    """
    if num_clusters < 1:
        raise ValueError(f"num_clusters must be at least 1, got {num_clusters}.")
    chosen = base.from_preset(PRESETS, preset, mean_over=mean_over)
    local = {"local_epochs": local_epochs, "batch_size": batch_size}
    local_train(task, optimizer, **local)  # checks the options before the first round
    served, by_rows = mixture(task, num_clusters), weighting == "rows"
    step, train = expectation(task), maximisation(task, optimizer, **local)
    responsible = row_responsibilities(task)

    def init(key: Key, data: FederatedData) -> FedEMState:
        clients = jnp.arange(data.num_clients, dtype=jnp.int32)
        learners = competing.independent_models(task, num_clusters)(key, data)
        return FedEMState(learners, equal_weights(data.num_clients, num_clusters), clients, jnp.int32(0))

    def client(shared, client: Array):
        key, models, state, data = shared
        before = state.log_weights[client]  # [K]
        q = responsible(state.learners, before, data, client)  # [K, n]
        after = mean_log_weights(q, before, data.train.size[client])
        client_key = key_for(key, Stream.BATCHES, state.round, client)
        learners, loss = train(client_key, models, q, data, client)
        finite = tree.is_finite(learners)
        weights = jnp.where(
            finite, _learner_weights(data.train.size[client], after, by_rows), 0
        )  # all K count, or none
        contributions = learner_contributions(learners, weights, models)
        return contributions, (loss, jnp.where(finite, after, before), finite)

    def round(key: Key, state: FedEMState, data: FederatedData, cohort: Cohort) -> tuple[FedEMState, Info]:
        if chosen["mean_over"] == "everybody":
            reason = "the server weighs the learners by the mixture of each absent client; take cohort"
            refuse_noise('mean_over="everybody"', reason)
        totals, (loss, found, finite) = over_clients(
            client, (key, apart(state.learners, num_clusters), state, data), cohort
        )
        ids = jnp.where(cohort.mask, cohort.ids, data.num_clients)  # padding is written nowhere
        log_weights = state.log_weights.at[ids].set(found, mode="drop")
        absent = jnp.ones(data.num_clients, bool).at[ids].set(False, mode="drop")
        total = stack_totals(totals)
        if chosen["mean_over"] == "everybody":
            rows = jnp.where(base.takes_part(data) & absent, jnp.asarray(data.train.size), 0)  # [N]
            total = add_absent(total, state.learners, _learner_weights(rows, log_weights, by_rows).sum(0))
        learners = aggregate.mean(total, empty=state.learners)
        info = round_info(state.learners, data, cohort, loss, found, finite, log_weights, by_rows)
        if estimate == "everybody":
            others = absent & base.present(data)  # a client that has not arrived receives no model yet
            log_weights, receivers = jax.lax.cond(
                cohort.mask.any(),
                lambda: (
                    estimate_weights(step, learners, log_weights, others, data, cohort),
                    others.sum(),
                ),
                lambda: (log_weights, jnp.zeros_like(others.sum())),
            )
            down = base.traffic(receivers, learners)
            info = info._replace(bytes_down=info.bytes_down + down)
        return FedEMState(learners, log_weights, state.cluster, state.round + 1), info

    def client_params(state: FedEMState, ids: Array) -> Params:
        return {"learners": tree.repeat(state.learners, ids.shape[0]), "log_weights": state.log_weights[ids]}

    reads = "everybody" if estimate == "everybody" else "cohort"
    return Method(init, round, client_params, served, join=joining(step), reads=reads, shortfall=mixture_shortfall)


def equal_weights(clients: int, count: int) -> Array:
    """Returns log pi `[N, K]`, 1 / K each."""
    return -jnp.log(jnp.full((clients, count), count, jnp.result_type(float)))


def add_absent(total: aggregate.Total, learners: Params, weights: Array) -> aggregate.Total:
    """Returns the sums with the absent clients added, which hold the old learners `[K, ...]` with a weight `[K]`.

    A learner without weight in `total` is not averaged. To sums of updates the absent clients add none.
    """
    weights = jnp.where(total.weight > 0, weights, 0).astype(total.weight.dtype)
    if total.relative:
        return replace(total, weight=total.weight + weights)
    values = jax.tree.map(
        lambda sums, old: sums + tree.along(weights, old).astype(old.dtype) * old, total.values, learners
    )
    return replace(total, values=values, weight=total.weight + weights)


def estimate_weights(
    step: WeightStep, learners: Params, log_weights: Array, chosen: Array, data: FederatedData, cohort: Cohort
) -> Array:
    """Returns log pi `[N, K]` after an update for the chosen clients `[N]`, held out or not; in the cohort's plan."""

    def client(shared, client: Array):
        learners, log_weights, chosen, data = shared
        before = log_weights[client]
        after = jax.lax.cond(chosen[client], lambda: step(learners, before, data, client), lambda: before)
        return (), after

    plan = cohort.plan._replace(chunk=cohort.plan.chunk or cohort.ids.shape[0])  # no larger chunk than in training
    everybody = Cohort.of(jnp.arange(data.num_clients), plan)
    return over_clients(client, (learners, log_weights, chosen, data), everybody)[1]


def joining(step: WeightStep) -> base.Join:
    """Returns `join(key, state, data, ids) -> (state, clusters [M])`: one update of the clients' pi, without training.

    `data` is the federation with the new clients in it: as many as before, or more, the new ones last. A client that
    joins again gets another update.
    """

    @engine.jit
    def enter(state: FedEMState, data: FederatedData, cohort: Cohort) -> FedEMState:
        def client(shared, client: Array):
            state, data = shared
            return (), step(state.learners, state.log_weights[client], data, client)

        _, found = over_clients(client, (state, data), cohort)
        return state._replace(log_weights=state.log_weights.at[cohort.ids].set(found))

    def join(key: Key, state: FedEMState, data: FederatedData, ids: Sequence[int]) -> tuple[FedEMState, Array]:
        cohort = newcomers.joining_cohort(ids, data)
        more = newcomers.count_new(state.cluster, data.num_clients)
        added = equal_weights(more, state.log_weights.shape[1])
        state = state._replace(
            log_weights=jnp.concatenate([state.log_weights, added]),
            cluster=jnp.arange(data.num_clients, dtype=jnp.int32),
        )
        return enter(state, data.on_device(), cohort), cohort.ids

    return join


def _learner_weights(rows: Array, log_weights: Array, by_rows: bool) -> Array:
    """Returns the weights of clients of `rows []` or `[N]` in the average of each learner, `[K]` or `[N, K]`."""
    whole = jnp.broadcast_to(rows.astype(log_weights.dtype)[..., None], log_weights.shape)
    share = jnp.exp(log_weights)
    # a share below rounding is 0: a learner without any other client would be lost where weights underflow
    return whole if by_rows else whole * jnp.where(share > jnp.finfo(share.dtype).eps, share, 0)


def learner_contributions(
    learners: Sequence[Params], weights: Array, start: Sequence[Params]
) -> list[aggregate.Contribution]:
    """Returns a client's contributions to each of the K learners, with the weights `[K]`; it has received `start`."""
    return [aggregate.contribute(one, weights[k], start=start[k]) for k, one in enumerate(learners)]


def stack_totals(totals: list[aggregate.Total]) -> aggregate.Total:
    """Returns the sums of all learners as the sums of K clusters."""
    return jax.tree.map(lambda *sums: jnp.concatenate(sums) if sums[0].ndim else sums[0], *totals)


def round_info(
    learners: Params,
    data: FederatedData,
    cohort: Cohort,
    loss: Array,
    found: Array,
    finite: Array,
    log_weights: Array,
    by_rows: bool,
) -> Info:
    """Returns the `Info` of a round; a client's cluster is the learner with its largest weight."""
    real = cohort.mask & (data.train.size[cohort.ids] > 0)
    total = jnp.where(real[:, None], jnp.exp(found), 0).sum(0)
    return base.info(
        cohort,
        loss,
        jnp.argmax(found, 1).astype(jnp.int32),
        num_clusters=count_leading(log_weights, data),
        diverged=(~finite & cohort.mask).sum().astype(jnp.int32),
        up=learners,
        beside=() if by_rows else found[0],
        down=learners,
        shares=total / jnp.maximum(real.sum(), 1).astype(total.dtype),
    )
