"""FedDrift and FedDrift-Eager: clustering of clients with data that drift during training.

Jothimurugesan, Hsieh, Wang, Joshi and Gibbons, "Federated Learning under Distributed Concept Drift", AISTATS 2023; the
rules below are those of the official code (github.com/microsoft/FedDrift). Rounds are grouped into time steps; before
the first round of each step but the first, with r_cm the risk (share of errors, or mean loss) of model m on the rows of
client c:

    c takes the best model         m_c = argmin_m r_cm  of the pool; its own where another is as good
    and has drifted if             r_c,m_c - (its risk at the step before) > delta
        then it trains a copy of m_c in a free slot, alone (isolated) for W steps (here 1, as in that code), after
        which the copy is in the pool
    models i and j have distance   d_ij = max(R_ij - R_ii, R_ji - R_jj, 0)
        where R_ij is the risk of i on the rows of j's clients, and merge by complete linkage while d <= delta';
        a merged model is their mean, weighted by the (client, step) pairs that each has had

In every round, each client of the cohort trains its model, and a model becomes the mean of the returned ones, by rows.
At first there is one model for all (the paper), or with `start="own"` one for each client; merging then finds clusters
that exist from the beginning. FedDrift-Eager (`eager=True`): all clients that drift in a step share one new model,
copied from the first one's; nothing is isolated or merged.

Simplifications, since a client's data are its rows of this round (see `jaxfl.data.drift`):

- rows of earlier steps are not stored. In the paper a model is trained, and compared with others, on all rows that it
  was ever given. Here it is on the present rows of its clients; a model without clients stays unchanged in the pool,
  where clients may take it again, and does not merge.
- the risk is that on training rows, and falls from step to step while a client's data stay.

As in the official code, the risk at the step before is that of the best model before its training in that step; at the
first step there is none (there: of an untrained model), so that no drift is detected at the second. Free slots are
those that were never used, then those longest without clients; without a free slot, a client that drifts stays with its
best model. That code's clients make `epochs` steps of AMSGrad with a state for the whole step; here the state of the
local optimiser starts fresh in each round. It compares accuracies; whether the paper means losses was not checked.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfl import tree
from jaxfl.client.passes import mean_losses
from jaxfl.client.steps import Epochs
from jaxfl.client.training import local_train
from jaxfl.clustering import linkage
from jaxfl.cohort import Cohort
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method, Participation
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.by_cluster import cluster_training
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked, is_known
from jaxfl.server import aggregate
from jaxfl.tasks import Task
from jaxfl.tasks.contract import masked_mean
from jaxfl.tasks.metrics import ACCURACY
from jaxfl.typing import Array, Key, Params

Measure = Literal["auto", "accuracy", "loss"]
Risks = Callable[[Params, FederatedData, Array], Array]
ISOLATION = 1  # W, steps that a client that has drifted trains alone, as in the official code
LARGEST_LOSS = 2.0**64  # a loss beyond it is that of a client whose model is not finite, see `tree.is_finite`


class FedDriftState(NamedTuple):
    """Slots of models, and the risk and isolation of each client."""

    models: Params  # [K, ...]
    cluster: Array  # [N] int32
    risk: Array  # [N] float32, of the best model at the last step; infinity before the second
    alone_until: Array  # [N] int32, the step at which the client's isolation ends
    weight: Array  # [K] float32, (client, step) pairs of a model; 0 for a free slot
    used: Array  # [K] int32, the last step in which the model had clients; -1 for never
    step: Array  # [] int32, the last time step with a search for drifts
    round: Array  # [] int32


def in_pool(state: FedDriftState, now: Array) -> Array:
    """Returns bool `[K]` for models that all clients may take: those with a client that is not isolated."""
    private = jnp.zeros(state.weight.shape, bool).at[state.cluster].max(state.alone_until > now)
    return (state.weight > 0) & ~private


def choose_models(
    state: FedDriftState,
    risks: Array,
    able: Array,
    now: Array,
    threshold: float,
    eager: bool,
    *,
    there: Array,
) -> tuple[FedDriftState, Array, Array]:
    """Returns the state after every client took the best model, or a new one if it has drifted.

    Args:
        state: before.
        risks: of every model for every client `[N, K]`, infinite where unknown.
        able: clients that take part with finite risks `[N]`; the others keep their model.
        now: the time step `[]`.
        threshold: delta.
        eager: whether all clients that drift share a new model.
        there: clients that take part `[N]`: models of the others, held out or gone, count as unused.

    Returns:
        The state; bool `[K]` for models of the pool that are not new; and bool `[N]` for clients that have drifted.
    """
    slots = state.weight.shape[0]
    # at the first step, without risks, all clients were counted; now those without finite risks are subtracted
    could = jnp.zeros(slots, jnp.float32).at[state.cluster].add(able.astype(jnp.float32))
    state = state._replace(weight=jnp.where(now == 1, jnp.minimum(could, state.weight), state.weight))
    pool = in_pool(state, now)
    chooses = able & (state.alone_until <= now)
    offered = jnp.where(pool[None], risks, jnp.inf)
    newest, own = offered.min(1), jnp.take_along_axis(offered, state.cluster[:, None], 1)[:, 0]
    best = jnp.where(own <= newest, state.cluster, jnp.argmin(offered, 1).astype(jnp.int32))  # [N]
    chooses = chooses & jnp.isfinite(newest)
    home = jnp.where(chooses, best, state.cluster)
    drifted = chooses & (newest - state.risk > threshold)

    has_client = jnp.zeros(slots, bool).at[home].max(there)
    # models that were never used come first; models with clients come last
    order = jnp.argsort(jnp.where(has_client, jnp.iinfo(jnp.int32).max, state.used), stable=True).astype(jnp.int32)
    place = jnp.where(eager, 0, jnp.cumsum(drifted, dtype=jnp.int32) - 1)
    gets = drifted & (place < (~has_client).sum(dtype=jnp.int32))
    slot = order[jnp.clip(place, 0, slots - 1)]
    source = jnp.where(eager, best[jnp.argmax(drifted)], best)
    written = jnp.where(gets, slot, slots)  # out of range: nowhere
    home, new = jnp.where(gets, slot, home), jnp.zeros(slots, bool).at[written].set(True, mode="drop")
    state = state._replace(
        models=tree.put(state.models, written, tree.take(state.models, source)),
        cluster=home,
        risk=jnp.where(chooses, newest, state.risk),
        alone_until=state.alone_until if eager else jnp.where(gets, now + ISOLATION, state.alone_until),
        weight=jnp.where(new, 0, state.weight).at[home].add(able.astype(jnp.float32)),
        used=state.used.at[jnp.where(able, home, slots)].set(now, mode="drop"),
    )
    return state, pool & ~new, drifted


def merge_models(state: FedDriftState, risks: Array, rows: Array, pool: Array, height: float) -> FedDriftState:
    """Returns the state after models of the pool with similar risks on each other's clients were merged.

    Args:
        state: with the clients' models of this step.
        risks: of every model for every client `[N, K]`.
        rows: number of rows of every client `[N]`, 0 for those that do not count.
        pool: models that may merge `[K]`.
        height: delta'.
    """
    slots = pool.shape[0]
    distance, able = model_distances(risks, state.cluster, rows)
    able = able & pool
    both = able[:, None] & able[None]
    label = linkage.cut_by_threshold(linkage.linkage(jnp.where(both, distance, jnp.inf), "complete"), height)
    same = (both & (label[:, None] == label[None])) | jnp.eye(slots, dtype=bool)
    keeper = jnp.argmax(same, 1).astype(jnp.int32)  # the lowest slot of those that merge
    first = tree.take(state.models, 0)
    first_model = aggregate.contribute(first, jnp.float32(0), jnp.int32(0), slots)
    all_models = aggregate.contribute(state.models, state.weight, keeper, slots)
    total = aggregate.add_many(aggregate.empty_total(first_model), all_models, jnp.ones(slots, bool))
    gone = keeper != jnp.arange(slots, dtype=jnp.int32)
    grew = same.sum(1) > 1
    return state._replace(
        models=tree.where(grew & ~gone, aggregate.mean(total, empty=state.models), state.models),
        cluster=keeper[state.cluster],
        weight=jnp.zeros_like(state.weight).at[keeper].add(state.weight),
        used=jnp.where(gone, -1, state.used),
    )


def model_distances(risks: Array, cluster: Array, rows: Array) -> tuple[Array, Array]:
    """Returns the distances d_ij between models `[K, K]`, and bool `[K]` for models with rows to measure them on.

    Args:
        risks: of every model for every client `[N, K]`.
        cluster: of every client `[N]`.
        rows: number of rows of every client `[N]`, 0 for those that do not count.

    >>> risks = jnp.array([[0.1, 0.4], [0.3, 0.2]])
    >>> model_distances(risks, jnp.array([0, 1]), jnp.ones(2))[0].round(1).tolist()
    [[0.0, 0.2...], [0.2..., 0.0]]
    """
    slots = risks.shape[1]
    share = jax.nn.one_hot(cluster, slots, dtype=risks.dtype) * rows[:, None].astype(risks.dtype)  # [N, K]
    counted = jnp.where(rows[:, None] > 0, risks, 0)  # an unknown risk has weight 0, and 0 * infinity is NaN
    total = jnp.matmul(counted.T, share, precision="highest")  # [K, K]: of model i, over the clients of j
    risk = aggregate.divide(total.T, share.sum(0), jnp.zeros_like(total)).T
    own = jnp.diagonal(risk)
    worse = jnp.maximum(risk - own[:, None], 0)
    return jnp.maximum(worse, worse.T), share.sum(0) > 0


def drift_risks(task: Task, measure: Measure) -> Risks:
    """Returns `(models [K, ...], data, client) -> [K]`: risks on a client's training rows, infinite where unknown.

    Args:
        task: what is learned.
        measure: see `feddrift`.

    Raises:
        ValueError: the measure is `"accuracy"` and the task is no classification.
    """
    if measure == "accuracy" and task.metrics is not ACCURACY:
        raise ValueError("measure must be 'loss' or 'auto' for a task without classes, got 'accuracy'.")

    def errors(model: Params, batch: Batch, key: Key | None) -> Array:
        wrong = (jnp.argmax(task.outputs(model, batch), 1).astype(batch.y.dtype) != batch.y).astype(jnp.float32)
        found = masked_mean(wrong, batch.mask)
        return jnp.where(jnp.abs(task.loss(model, batch, key)) < LARGEST_LOSS, found, jnp.inf)

    by_errors = measure != "loss" and task.metrics is ACCURACY
    risks_on_rows = mean_losses(task._replace(loss=errors) if by_errors else task)

    def risks(models: Params, data: FederatedData, client: Array) -> Array:
        found = risks_on_rows(models, data, client).astype(jnp.float32)
        return jnp.where(jnp.abs(found) < LARGEST_LOSS, found, jnp.inf)

    return risks


@server_sees(
    Seen("numbers", "the risks of all models on each client's rows, when a time step begins; else sums of models")
)
@checked
def feddrift(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    rounds_per_step: int = 10,
    threshold: Traceable = 0.1,
    merge_threshold: Traceable | None = None,
    eager: bool = False,
    start: Literal["common", "own"] = "common",
    measure: Measure = "auto",
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "rows",
    slots: int = 32,
) -> Method:
    """Returns FedDrift.

    `info.extra` has `drifted []`, the number of clients that have drifted in this round.

    Args:
        task: what is learned.
        optimizer: the local optimiser.
        rounds_per_step: R, rounds of a time step; drifts are detected between steps (the paper: 200).
        threshold: delta, the increase of the risk that counts as drift (the official code: 0.04 to 0.2, on MNIST 0.1).
        merge_threshold: delta', the distance up to which models merge, in the same units; None is delta, as in the
            official code. It has to be above the difference of a model's risks on a client's own rows and on other
            rows of the same cluster.
        eager: FedDrift-Eager.
        start: models of the first step: one `"common"` model, or each client's `"own"`.
        measure: the risk: `"accuracy"`, the share of errors; `"loss"`; or `"auto"`, errors for classification and
            losses for other tasks.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: weights of the clients in a model's mean: `"rows"` or `"uniform"`.
        slots: K, the largest number of models; with `start="own"` at least the number of clients.

    Raises:
        ValueError: an option is out of range, or options do not go together.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=80, drift="new-group", drift_round=15)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> method = feddrift(task, optax.sgd(0.5), rounds_per_step=5, start="own", merge_threshold=0.4)
    >>> jaxfl.run(method, data, rounds=30, seed=0).summary["ari"]
    1.0
    """
    _check_arguments(rounds_per_step, threshold, merge_threshold, slots)
    risks_of = drift_risks(task, measure)
    height = threshold if merge_threshold is None else merge_threshold
    train = local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size)
    learn = cluster_training(train, weighting)

    def init(key: Key, data: FederatedData) -> FedDriftState:
        count = data.num_clients
        if start == "own" and count > slots:
            raise ValueError(
                f"slots must be at least the number of clients ({count}) with start='own', got {slots}; raise slots, "
                "or take start='common'."
            )
        models = tree.repeat(task.init(key_for(key, Stream.INIT)), slots)
        cluster = jnp.arange(count, dtype=jnp.int32) if start == "own" else jnp.zeros(count, jnp.int32)
        weight = jnp.zeros(slots, jnp.float32).at[cluster].add(base.takes_part(data).astype(jnp.float32))
        never = jnp.full(slots, -1, jnp.int32)
        alone_until = jnp.zeros(count, jnp.int32)
        risk = jnp.full(count, jnp.inf, jnp.float32)
        used, zero = never.at[cluster].set(0), jnp.int32(0)
        return FedDriftState(models, cluster, risk, alone_until, weight, used, step=zero, round=zero)

    def all_risks(state: FedDriftState, data: FederatedData, cohort: Cohort) -> Array:
        """Returns the risk of every model for every client `[N, K]`."""
        plan = cohort.plan._replace(chunk=cohort.plan.chunk or cohort.ids.shape[0])
        everybody = Cohort.of(jnp.arange(data.num_clients), plan)

        def client(shared, client: Array):
            models, data = shared
            return (), risks_of(models, data, client)

        return over_clients(client, (state.models, data), everybody)[1]

    def occupied(state: FedDriftState, data: FederatedData) -> Array:
        """Returns bool `[K]` for models with clients."""
        return jnp.zeros(slots, bool).at[state.cluster].max(base.takes_part(data))

    def step(state: FedDriftState, data: FederatedData, cohort: Cohort) -> tuple[FedDriftState, Array]:
        """Returns the state after the beginning of a time step, and the number of clients that have drifted."""
        risks, rows = all_risks(state, data, cohort), data.train.size.astype(jnp.float32)
        there = base.takes_part(data)
        able = there & jnp.isfinite(risks).any(1)
        now = state.round // rounds_per_step
        state, pool, drifted = choose_models(state, risks, able, now, threshold, eager, there=there)
        if not eager:
            state = merge_models(state, risks, jnp.where(able, rows, 0), pool, height)
        return state._replace(step=now), drifted.sum(dtype=jnp.int32)

    def round(key: Key, state: FedDriftState, data: FederatedData, cohort: Cohort) -> tuple[FedDriftState, Info]:
        due = (state.round // rounds_per_step > state.step) & cohort.mask.any()  # it waits for a cohort with clients
        in_use = (state.weight > 0).sum()
        state, drifted = jax.lax.cond(due, lambda: step(state, data, cohort), lambda: (state, jnp.int32(0)))
        total, loss = learn(key, state.models, state.cluster, state.round, data, cohort)
        one = base.shape_of(state.models)
        info = base.info(
            cohort,
            loss,
            state.cluster[cohort.ids],
            num_clusters=occupied(state, data).sum(),
            diverged=total.diverged,
            up=one,
            down=one,
            drifted=drifted,
        )
        # at the beginning of a step all clients receive all models, and send one number for each
        exchanges = jnp.where(due, base.takes_part(data).sum() * in_use, 0)
        info = info._replace(
            bytes_up=info.bytes_up + base.traffic(exchanges, state.risk[0]),
            bytes_down=info.bytes_down + base.traffic(exchanges, one),
        )
        return state._replace(models=aggregate.mean(total, empty=state.models), round=state.round + 1), info

    def assign(key: Key, state: FedDriftState, data: FederatedData, cohort: Cohort) -> FedDriftState:
        """Returns the state where held-out clients have the best model of the pool that has clients."""
        if data.held_out is None:
            return state

        def client(shared, client: Array):
            models, pool, cluster, data = shared

            def best() -> Array:
                return jnp.argmin(jnp.where(pool, risks_of(models, data, client), jnp.inf)).astype(jnp.int32)

            chooses = jnp.asarray(data.held_out)[client] & (data.train.size[client] > 0)
            return (), jax.lax.cond(chooses, best, lambda: cluster[client])

        pool = in_pool(state, state.round // rounds_per_step) & occupied(state, data)
        _, found = over_clients(client, (state.models, pool, state.cluster, data), cohort)
        return state._replace(cluster=base.write_clusters(state.cluster, cohort, found))

    def client_params(state: FedDriftState, ids: Array) -> Params:
        return tree.take(state.models, state.cluster[ids])

    def model_sentence(state: FedDriftState, data: FederatedData) -> str:
        """Returns a sentence if all clients have one model, or if none of the models that clients start with merged."""
        found = np.asarray(state.cluster)[base.clients_to_train(data)]
        number, merging = len(np.unique(found)), f"merge_threshold={height}"
        if len(found) < 2 or 1 < number < len(found) or (number > 1 and start == "common"):
            return ""
        if number > 1:
            return "" if eager else f"No two of the clients' own models were within {merging}: raise merge_threshold."
        if start == "own":
            return f"All models have merged to one within {merging}: lower merge_threshold."
        if int(state.step) < 2:
            return (
                "No drift could be detected: risks are compared from the third step on, with "
                f"rounds_per_step={rounds_per_step}, and the run had {int(state.round)} rounds; make more rounds, or "
                "lower rounds_per_step."
            )
        return (
            f"All clients have one model: no risk rose by more than threshold={threshold} from step to step, or new "
            'models merged again; lower threshold or merge_threshold, or take start="own" for clusters that exist from '
            "the beginning."
        )

    def shortfall(state: FedDriftState, data: FederatedData, participation: Participation) -> str:
        if int(state.step):
            return model_sentence(state, data)
        return (
            "Models were neither compared nor merged: that is done between steps of "
            f"rounds_per_step={rounds_per_step} rounds, and the run had {int(state.round)}; make more rounds, or lower "
            "rounds_per_step."
        )

    return Method(init, round, client_params, task, assign, reads="everybody", shortfall=shortfall)


def _check_arguments(rounds_per_step: int, threshold: float, merge_threshold: float | None, slots: int) -> None:
    """Raises ValueError if an argument is out of range."""
    for name, value in {"rounds_per_step": rounds_per_step, "slots": slots}.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    for name, number in {"threshold": threshold, "merge_threshold": merge_threshold}.items():
        if number is not None and is_known(number) and not number >= 0:
            raise ValueError(f"{name} must be at least 0, got {number}; at infinity nothing drifts, or all merges.")
