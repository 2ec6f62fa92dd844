"""CFL, clustered federated learning (FMTL in LayerCFL's paper, FedCluster in FeSEM's).

Sattler, Mueller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under
Privacy Constraints", IEEE TNNLS 2020, Algorithms 1 and 2. All clients start in one cluster. In a cluster c with model
theta, client i trains locally to theta + D_i, and

    theta <- theta + sum_i (n_i / n_c) D_i

until theta is stationary for the cluster but not for some of its clients:

    |sum_i (n_i / n_c) D_i| < eps1    and    max_i |D_i| > eps2

Then it is split in two, so that alpha_cross, the largest cosine of a D_i on one side and a D_j on the other, is least.
The split is kept if  sqrt((1 - alpha_cross) / 2) > gamma_max  (theorem 1: it tears no data distribution apart, see
`clustering.gaps`). Both halves go on from theta, and may be split again.

The split. The paper's algorithm is single linkage, which attains that minimum; published codes have complete linkage,
which does not always attain it. The members of a cluster are compared once each of them has trained in it, by their
last updates. A client without rows, or with an update that is zero or not finite, stays in its cluster, and no split
waits for it. Splits do not wait for held-out clients either: an evaluation finds their cluster in the tree of splits
(see `cfl.state`), for which the state keeps a model and two vectors of every split.

The thresholds. eps1 and eps2 grow with rate, epochs and parameters; the paper's rule is to watch one run, and to take a
tenth of the largest mean update as eps1, and one to ten times eps1 as eps2. gamma_max is an unknown property of the
data. With `relative=True` (the default) no tuning run is needed; the thresholds are multiples of observed values:

    eps1       of the largest client update in the cluster in this round: mean updates are small where clients disagree
    eps2       of the largest client update of the whole run: large client updates show that clients still move
    gamma_max  of the same expression for nearest peers, see `keep_above_peers`: every client needs one in its group

Where the official code differs (`preset="official"`): complete linkage, no gamma_max, uniform means, no split up to
round 20 or of fewer than three clients, absolute eps; its second split mixes up clients (its issue 2), and it averages
by the new clusters in the round of a split already, whereas both halves start from one model here. FeSEM's baseline
(`preset="fesem"`): the last kernel's updates, average linkage, a split after every 30 rounds in a cluster of at least
20 clients if gamma_max = 0.13 is exceeded, no eps.
"""

import functools
import math
import sys
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfl import tree
from jaxfl.client.steps import Epochs
from jaxfl.client.training import Train, local_train
from jaxfl.clustering.linkage import Bipartition
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method, Participation
from jaxfl.methods.cfl import splitting
from jaxfl.methods.cfl import state as split_state
from jaxfl.methods.cfl.rule import SIMILARITIES, ClientMetric, SplitRule, ready_clusters, split_if_ready
from jaxfl.methods.cfl.state import CFLState, ClientReport, apply_splits, grow, initial_state, record_reports
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.vectors import LAST_KERNEL, Compared, compared_leaves, to_vector
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked
from jaxfl.server import aggregate
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "relative": True,
        "eps1": 0.4,
        "eps2": 0.3,
        "gamma_max": 1.1,
        "linkage": "single",
        "weighting": "rows",
        "layers": ".*",
        "warmup_rounds": 0,
        "rounds_between": 1,
        "min_clients": 2,
    }
}
PRESETS["official"] = PRESETS["paper"] | {
    "relative": False,
    "eps1": 0.4,
    "eps2": 1.6,
    "gamma_max": 0.0,
    "linkage": "complete",
    "weighting": "uniform",
    "warmup_rounds": 20,
    "min_clients": 3,
}
PRESETS["fesem"] = PRESETS["paper"] | {
    "relative": False,
    "eps1": math.inf,
    "eps2": 0.0,
    "gamma_max": 0.13,
    "linkage": "average",
    "layers": LAST_KERNEL,
    "rounds_between": 30,
    "min_clients": 20,
}


@server_sees(
    Seen("representations", "a sketch of each client's update, the last of which is stored, and norms; sums of updates")
)
@checked
def cfl(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    preset: Literal["paper", "official", "fesem"] = "paper",
    relative: bool | None = None,
    eps1: Traceable | None = None,
    eps2: Traceable | None = None,
    gamma_max: Traceable | None = None,
    linkage: Bipartition | None = None,
    weighting: aggregate.Weighting | None = None,
    layers: str | Sequence[str] | None = None,
    warmup_rounds: int | None = None,
    rounds_between: int | None = None,
    min_clients: int | None = None,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    sketch_size: int | None = 4096,
    slots: int = 8,
) -> Method:
    """Returns CFL.

    `info.extra` has `mean_update []`, the largest norm of a cluster's mean update, and `client_update []`, the largest
    norm of a client's update, which are compared with eps1 and eps2; and `splits []`, the clusters split in this round.

    Args:
        task: what is learned.
        optimizer: the local optimiser; its state starts fresh in every round.
        preset: `"paper"`, `"official"` or `"fesem"`; their values are in brackets below, in this order. Options that
            are given replace the preset's values.
        relative: whether eps1, eps2 and gamma_max are multiples of observed values, or absolute (yes, no, no).
        eps1: a cluster is stationary when the norm of its mean update is below it (0.4, 0.4, infinity); 0 never splits,
            which is FedAvg.
        eps2: a cluster may be split when the norm of a client's update, of the compared layers, is above it (0.3, 1.6,
            0).
        gamma_max: bound that a split must exceed to be kept (1.1, 0, 0.13); 0 keeps every split.
        linkage: rule of the split: `"single"`, `"complete"` or `"average"` (single, complete, average).
        weighting: weights of the clients in a cluster's mean: `"rows"` or `"uniform"` (rows, uniform, rows).
        layers: patterns (see `tree.matching`) of the parameters that clients are compared by, or `"last kernel"` (all,
            all, the last kernel).
        warmup_rounds: rounds of the run before the first split (0, 20, 0).
        rounds_between: rounds that a cluster trains before it may be split (1, 1, 30).
        min_clients: clients that a cluster must have to be split (2, 3, 20).
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        sketch_size: numbers stored for each client's compared update, if it is longer; the error of a cosine is about
            `1 / sqrt(sketch_size)`. None stores whole updates, for all clients.
        slots: cluster models at the start; the simulator doubles them when they run out.

    Raises:
        ValueError: an option is out of range, or a pattern matches no parameter.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=40)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(cfl(task, optax.sgd(0.1)), data, rounds=40, seed=0)
    >>> result.summary["num_clusters"], result.summary["ari"]
    (4, 1.0)
    """
    bounds = {"eps1": eps1, "eps2": eps2, "gamma_max": gamma_max}
    limits = {"warmup_rounds": warmup_rounds, "rounds_between": rounds_between, "min_clients": min_clients}
    others = {"relative": relative, "linkage": linkage, "weighting": weighting, "layers": layers}
    rule = preset_rule(preset, **bounds, **limits, **others)
    train = local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size)
    return splitting_clusters(task, train, rule, sketch_size=sketch_size, slots=slots)


def preset_rule(
    preset: str, *, metric: ClientMetric = "cosine", compare: Compared = "updates", **given: Any
) -> SplitRule:
    """Returns the rule of a preset; given options (not None) replace its values.

    Args:
        preset: one of `PRESETS`.
        metric: of two clients; `"l2"` uses gamma_max only where it is relative.
        compare: clients are compared by their `"updates"` (D_i) or by their `"weights"` (theta + D_i).
        **given: options of `cfl`.

    Raises:
        ValueError: an option is out of range, or a threshold is missing.
    """
    rule = SplitRule(**base.from_preset(PRESETS, preset, **given), metric=metric, compare=compare)
    if metric == "l2" and not rule.relative and given.get("gamma_max") is None:
        given["gamma_max"] = 0.0  # every split is kept
        rule = rule._replace(gamma_max=0.0)
    for name in ("eps1", "eps2", "gamma_max"):
        if PRESETS[preset]["relative"] != rule.relative and given.get(name) is None:
            default = f"its default, {getattr(rule, name)}, is {'absolute' if rule.relative else 'relative'}"
            raise ValueError(f"{name} must be given with relative={rule.relative}; {default}.")
    rule.check()
    return rule


def splitting_clusters(task: Task, train: Train, rule: SplitRule, *, sketch_size: int | None, slots: int) -> Method:
    """Returns CFL with the given local training and rule.

    Args:
        task: what is learned.
        train: a client's local training.
        rule: thresholds, linkage and comparison of the splits.
        sketch_size, slots: as in `cfl`.
    """
    for name, value in {"sketch_size": sketch_size, "slots": slots}.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    length = sketch_size or sys.maxsize
    chosen, divide = compared_leaves(task, rule.layers), split_if_ready(rule)

    def layers_of(model: Params) -> Params:
        return tree.partition(model, chosen)[0]

    def vector_of(key: Key, model: Params) -> Array:
        return to_vector(key, layers_of(model), size=length)

    def compared(key: Key, theta: Params, model: Params) -> Array:
        """Returns the vector `[d]` that a client with this model is compared by, after training from theta."""
        return vector_of(key, model if rule.compare == "weights" else jax.tree.map(jnp.subtract, model, theta))

    def init(key: Key, data: FederatedData) -> CFLState:
        model = task.init(key_for(key, Stream.INIT))
        return initial_state(model, jax.eval_shape(vector_of, key, model), data, slots)

    def client(shared, client: Array):
        key, (models, cluster, round), data = shared
        theta = tree.take(models, cluster[client])
        model, loss = train(key_for(key, Stream.BATCHES, round, client), theta, data, client, anchor=theta)
        update = jax.tree.map(jnp.subtract, model, theta)
        weight = aggregate.client_weight(data, client, rule.weighting)
        numbers = compared(key, theta, model), tree.norm(update), tree.norm(layers_of(update))
        finite = tree.is_finite(update)
        report = ClientReport(loss, *(jnp.where(finite, number, 0) for number in numbers))
        return aggregate.contribute(update, weight, cluster[client], base.slots_of(models)), report

    def round(key: Key, state: CFLState, data: FederatedData, cohort: Cohort) -> tuple[CFLState, Info]:
        total, reports = over_clients(client, (key, (state.models, state.cluster, state.round), data), cohort)
        mean = aggregate.mean(total, empty=jax.tree.map(jnp.zeros_like, state.models))
        models = jax.tree.map(jnp.add, state.models, mean)
        mean_norm = jax.vmap(tree.norm)(mean)  # [K]
        state = record_reports(state, reports, data, cohort)
        ready = ready_clusters(rule, state, mean_norm, total.weight > 0, data)
        after = divide(state, ready)
        model = base.shape_of(models)
        info = base.info(
            cohort,
            reports.loss,
            state.cluster[cohort.ids],
            num_clusters=splitting.occupied(after.cluster, ready.shape[0]).sum(),
            diverged=total.diverged,
            up=model,
            down=model,
            overflow=after.doublings,
            mean_update=mean_norm.max(),
            client_update=state.update_norm.max(),
            splits=after.opened.sum(dtype=jnp.int32),
        )
        return apply_splits(state, after, models), info

    def assign(key: Key, state: CFLState, data: FederatedData, cohort: Cohort) -> CFLState:
        """Returns the state where held-out clients have the cluster that the tree of splits leads them to."""
        if state.splits is None:
            return state

        def held_out(shared, client: Array):
            key, (splits, cluster), data = shared

            def vector_at(slot: Array, theta: Params) -> Array:
                client_key = key_for(key, Stream.REPRESENTATION, slot, client)
                return compared(key, theta, train(client_key, theta, data, client, anchor=theta)[0])

            descends = jnp.asarray(data.held_out)[client] & (data.train.size[client] > 0)
            descend = functools.partial(split_state.descend, splits, vector_at, SIMILARITIES[rule.metric])
            return (), jax.lax.cond(descends, descend, lambda: cluster[client])

        _, found = over_clients(held_out, (key, (state.splits, state.cluster), data), cohort)
        return state._replace(cluster=base.write_clusters(state.cluster, cohort, found))

    def client_params(state: CFLState, ids: Array) -> Params:
        return tree.take(state.models, state.cluster[ids])

    def shortfall(state: CFLState, data: FederatedData, participation: Participation) -> str:
        if rule.eps1 == 0 or np.asarray(state.formed).any():  # it never splits, or it has
            return ""
        rounds, there = int(state.round), base.clients_to_train(data)
        idle, count = (there & ~np.asarray(state.trained)).sum(), there.sum()
        begin = max(rule.warmup_rounds, rule.rounds_between - 1)  # rounds before the first that may split
        if idle:
            reason = (
                f"clients are compared once all have trained, and {idle} of {count} have not: make more rounds, or "
                "sample more clients in each"
            )
        elif rounds <= begin:
            name = "warmup_rounds" if rule.warmup_rounds == begin else "rounds_between"
            reason = f"the run had {rounds} rounds, and {name}={getattr(rule, name)}: make more rounds, or lower {name}"
        elif count < rule.min_clients:
            reason = f"there are {count} clients, and min_clients={rule.min_clients}: lower min_clients"
        else:
            reason = (
                f"the thresholds were not met in {rounds} rounds (eps1={rule.eps1:g}, eps2={rule.eps2:g}, "
                f"gamma_max={rule.gamma_max:g}): make more rounds, raise eps1, or lower eps2 or gamma_max"
            )
        return f"No cluster was split, since {reason}."

    return Method(init, round, client_params, task, assign, grow, shortfall=shortfall)
