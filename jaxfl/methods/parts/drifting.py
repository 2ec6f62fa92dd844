"""The beginning of a time step of FedDrift: clients that have drifted get models, and models that are alike merge."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxfl import tree
from jaxfl.client.passes import mean_losses
from jaxfl.clustering import linkage
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.server import aggregate
from jaxfl.tasks import Task
from jaxfl.tasks.contract import masked_mean
from jaxfl.tasks.metrics import ACCURACY
from jaxfl.typing import Array, Key, Params

Measure = Literal["auto", "accuracy", "loss"]
Risks = Callable[[Params, FederatedData, Array], Array]
HUGE = 2.0**64  # a loss beyond it is that of a client whose model is not finite, see `tree.is_finite`


class FedDriftState(NamedTuple):
    """Slots of models, and what each client knows of its own."""

    models: Params  # [K, ...]
    cluster: Array  # [N] int32
    risk: Array  # [N] float32, of the best model at the last step; infinity before the second
    alone_until: Array  # [N] int32, the step at which the client's isolation ends
    weight: Array  # [K] float32, (client, step) pairs that a model was given; 0 of a free slot
    used: Array  # [K] int32, the last step in which somebody had it; -1 for never
    step: Array  # [] int32, the last time step at whose beginning drifts were looked for
    round: Array  # [] int32


def in_pool(state: FedDriftState, now: Array) -> Array:
    """Returns which models everybody may take `[K]`: those that were given to somebody who is not alone with it."""
    private = jnp.zeros(state.weight.shape, bool).at[state.cluster].max(state.alone_until > now)
    return (state.weight > 0) & ~private


def moved(
    state: FedDriftState,
    risks: Array,
    able: Array,
    now: Array,
    threshold: float,
    isolation: int,
    eager: bool,
    *,
    there: Array,
) -> tuple[FedDriftState, Array, Array]:
    """Gives every client the best model, or a new one if it has drifted.

    Args:
        state: before.
        risks: of every model for every client `[N, K]`, infinite for who cannot say.
        able: who has taken part and can say `[N]`; the others stay with their model.
        now: the time step `[]`.
        threshold: delta.
        isolation: W.
        eager: whether all that drift share a model.
        there: who takes part `[N]`: the models of others, who may be held out or gone, are nobody's.

    Returns:
        The state; which models `[K]` are in the pool and are no new ones; and who has drifted `[N]`.
    """
    slots = state.weight.shape[0]
    # at the first step everybody was counted, for nobody was asked; now it is known who of them cannot say
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
    # never used ones first, and none that somebody has
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
        alone_until=state.alone_until if eager else jnp.where(gets, now + isolation, state.alone_until),
        weight=jnp.where(new, 0, state.weight).at[home].add(able.astype(jnp.float32)),
        used=state.used.at[jnp.where(able, home, slots)].set(now, mode="drop"),
    )
    return state, pool & ~new, drifted


def merged(state: FedDriftState, risks: Array, rows: Array, pool: Array, height: float) -> FedDriftState:
    """Merges the models of the pool that are close on each other's clients.

    Args:
        state: of clients that have their models of this step.
        risks: of every model for every client `[N, K]`.
        rows: of every client `[N]`, 0 for those that do not count.
        pool: which models may merge `[K]`.
        height: delta'.
    """
    slots = pool.shape[0]
    distance, able = apart(risks, state.cluster, rows)
    able = able & pool
    both = able[:, None] & able[None]
    label = linkage.cut_by_threshold(linkage.linkage(jnp.where(both, distance, jnp.inf), "complete"), height)
    same = (both & (label[:, None] == label[None])) | jnp.eye(slots, dtype=bool)
    keeper = jnp.argmax(same, 1).astype(jnp.int32)  # the lowest of those that are one
    first = tree.take(state.models, 0)
    one = aggregate.contribute(first, jnp.float32(0), jnp.int32(0), slots)
    all_models = aggregate.contribute(state.models, state.weight, keeper, slots)
    total = aggregate.add_many(aggregate.empty_total(one), all_models, jnp.ones(slots, bool))
    gone = keeper != jnp.arange(slots, dtype=jnp.int32)
    grew = same.sum(1) > 1
    return state._replace(
        models=tree.where(grew & ~gone, aggregate.mean(total, empty=state.models), state.models),
        cluster=keeper[state.cluster],
        weight=jnp.zeros_like(state.weight).at[keeper].add(state.weight),
        used=jnp.where(gone, -1, state.used),
    )


def apart(risks: Array, cluster: Array, rows: Array) -> tuple[Array, Array]:
    """Returns how far models are from each other `[K, K]`, and which have rows to say so `[K]`.

    Args:
        risks: of every model for every client `[N, K]`.
        cluster: of every client `[N]`.
        rows: of every client `[N]`, 0 for those that do not count.

    >>> risks = jnp.array([[0.1, 0.4], [0.3, 0.2]])
    >>> apart(risks, jnp.array([0, 1]), jnp.ones(2))[0].round(1).tolist()
    [[0.0, 0.2...], [0.2..., 0.0]]
    """
    slots = risks.shape[1]
    share = jax.nn.one_hot(cluster, slots, dtype=risks.dtype) * rows[:, None].astype(risks.dtype)  # [N, K]
    counted = jnp.where(rows[:, None] > 0, risks, 0)  # a client that cannot say has weight 0, and 0 * infinity is NaN
    total = jnp.matmul(counted.T, share, precision="highest")  # [K, K]: of model i, over the clients of j
    risk = aggregate.divide(total.T, share.sum(0), jnp.zeros_like(total)).T
    own = jnp.diagonal(risk)
    worse = jnp.maximum(risk - own[:, None], 0)
    return jnp.maximum(worse, worse.T), share.sum(0) > 0


def risks_of(task: Task, measure: Measure) -> Risks:
    """Returns `(models [K, ...], data, client) -> [K]`: their risk on a client's training rows, infinite if unknown.

    Args:
        task: what is learned.
        measure: see `feddrift`.

    Raises:
        ValueError: errors are asked for where no classes are learned.
    """
    if measure == "accuracy" and task.metrics is not ACCURACY:
        raise ValueError("measure must be 'loss' for a task whose labels are no classes, got 'accuracy'; or 'auto'.")

    def errors(model: Params, batch: Batch, key: Key | None) -> Array:
        wrong = (jnp.argmax(task.outputs(model, batch), 1).astype(batch.y.dtype) != batch.y).astype(jnp.float32)
        found = masked_mean(wrong, batch.mask)
        return jnp.where(jnp.abs(task.loss(model, batch, key)) < HUGE, found, jnp.inf)

    by_errors = measure != "loss" and task.metrics is ACCURACY
    risks_on_rows = mean_losses(task._replace(loss=errors) if by_errors else task)

    def risks(models: Params, data: FederatedData, client: Array) -> Array:
        found = risks_on_rows(models, data, client).astype(jnp.float32)
        return jnp.where(jnp.abs(found) < HUGE, found, jnp.inf)

    return risks
