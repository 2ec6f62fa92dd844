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
which does not always. A cluster is compared once each member has trained in it: if only some take part in a round, by
what each has sent last. Clients without rows, held out, or whose update is not finite or zero stay where they are, and
nobody waits for them.

The thresholds. eps1 and eps2 grow with rate, epochs and parameters; the paper's rule is to watch one run, and to take a
tenth of the largest mean update as eps1, and one to ten times eps1 as eps2. gamma_max is a property of the data that is
not known. So that none of them needs a tuning run, `relative=True` (the default) measures them by what is observed:

    eps1       of the largest client update in the cluster now: mean updates are small because clients disagree
    eps2       of the largest client update of the whole run: clients still move
    gamma_max  of the same expression of nearest peers, see `splitting.stands_out`: every client needs one in its group

Where the official code differs (`preset="official"`): complete linkage, no gamma_max, uniform means, no split up to
round 20 or of fewer than three clients, absolute eps; its second split mixes up clients (its issue 2), and it averages
by the new clusters in the round of a split already, where here both halves start from one model. FeSEM's baseline
(`preset="fesem"`): the last kernel's updates, average linkage, a split after every 30 rounds in a cluster of at least
20 clients if gamma_max = 0.13 is exceeded, no eps.
"""

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.training import local_train
from jaxfl.clustering import distances
from jaxfl.clustering.linkage import BIPARTITIONS
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method, check_known, takes_part
from jaxfl.methods.parts import splitting
from jaxfl.methods.parts.points import LAST_KERNEL, compared, point
from jaxfl.random import Stream, key_for
from jaxfl.server import aggregate
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

SIMILARITIES = {
    "cosine": distances.cosine,
    "l2": lambda vectors: -distances.l2(vectors),  # the nearer, the more similar
}
COMPARED = ("updates", "weights")
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


class CFLState(NamedTuple):
    """Slots of cluster models, and what every client has sent since its cluster was formed."""

    models: Params  # [K, ...]; a slot without clients is free
    formed: Array  # [K] int32, rounds done when the cluster was formed
    vectors: Array  # [N, d], what clients are compared by
    norms: Array  # [N, 2] |D_i|: of the model, of the layers; -1: yet to train in its cluster, 0: cannot be compared
    largest: Array  # [], the largest |D_i| of the layers ever observed
    cluster: Array  # [N] int32 slot
    round: Array  # [] int32


def cfl(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    preset: str = "paper",
    relative: bool | None = None,
    eps1: float | None = None,
    eps2: float | None = None,
    gamma_max: float | None = None,
    linkage: str | None = None,
    weighting: str | None = None,
    layers: str | Sequence[str] | None = None,
    metric: str = "cosine",
    compare: str = "updates",
    warmup_rounds: int | None = None,
    rounds_between: int | None = None,
    min_clients: int | None = None,
    local_epochs: int = 5,
    batch_size: int | None = None,
    sketch_size: int | None = 4096,
    slots: int = 8,
) -> Method:
    """Returns CFL.

    `info.extra` has `mean_update []` and `client_update []`, the norms that eps1 and eps2 are about (of the cluster
    whose mean update is largest, of the client whose update is), and `splits []`, the clusters split in this round.

    Args:
        task: what is learned.
        optimizer: the local optimiser; its state starts fresh in every round.
        preset: `"paper"`, `"official"` or `"fesem"`; their values are in brackets below, in this order. What is given
            besides wins.
        relative: eps1, eps2 and gamma_max are relative, see above (yes, no, no).
        eps1: a mean update below it is stationary (0.4, 0.4, infinity); 0 never splits, which is FedAvg.
        eps2: a client update above it is not; of the layers compared (0.3, 1.6, 0).
        gamma_max: what a split must exceed (1.1, 0, 0.13); 0 keeps every split. `metric="l2"` uses it where relative.
        linkage: `"single"`, `"complete"` or `"average"` (single, complete, average).
        weighting: of a cluster's mean: `"rows"` or `"uniform"` (rows, uniform, rows).
        layers: patterns (see `tree.matching`) of the parameters that clients are compared by, or `"last kernel"` (all,
            all, the last kernel).
        metric: `"cosine"`, or `"l2"`: Euclidean distances.
        compare: `"updates"` (D_i) or `"weights"` (theta + D_i).
        warmup_rounds: rounds of the run before the first that may split (0, 20, 0).
        rounds_between: rounds that a cluster trains before it may be split (1, 1, 30).
        min_clients: of a cluster that may be split (2, 3, 20).
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        sketch_size: numbers kept of what a client is compared by, if it is longer; the error of a cosine is about
            `1 / sqrt(sketch_size)`. None keeps it whole, for every client.
        slots: cluster models held at first; the simulator doubles them when they run out.

    Raises:
        ValueError: an option is out of range or unknown, or a pattern matches no parameter.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=40)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(cfl(task, optax.sgd(0.1)), data, rounds=40, seed=0)
    >>> result.summary["num_clusters"], result.summary["ari"]
    (4, 1.0)
    """
    bounds = {"eps1": eps1, "eps2": eps2, "gamma_max": gamma_max}
    rule = base.from_preset(
        PRESETS,
        preset,
        relative=relative,
        linkage=linkage,
        weighting=weighting,
        layers=layers,
        warmup_rounds=warmup_rounds,
        rounds_between=rounds_between,
        min_clients=min_clients,
        **bounds,
    )
    for name, given in bounds.items():
        if PRESETS[preset]["relative"] and not rule["relative"] and given is None:
            raise ValueError(f"{name} must be given with relative=False; its default, {rule[name]}, is relative.")
    _check(rule, metric, compare, sketch_size, slots)
    chosen = compared(task, rule["layers"])
    similarity_of = SIMILARITIES[metric]
    accept = check_of_split(rule["gamma_max"], metric, rule["relative"])
    train = local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size)

    def part(model: Params) -> Params:
        return tree.partition(model, chosen)[0]

    def vector_of(key: Key, model: Params) -> Array:
        return point(key, part(model), size=sketch_size or sys.maxsize)

    def init(key: Key, data: FederatedData) -> CFLState:
        model = task.init(key_for(key, Stream.INIT))
        vector = jax.eval_shape(vector_of, key, model)
        dtype = jax.eval_shape(tree.norm, model).dtype  # a sketch is float32
        return CFLState(
            models=tree.repeat(model, slots),
            formed=jnp.zeros(slots, jnp.int32),
            vectors=jnp.zeros((data.num_clients, *vector.shape), vector.dtype),
            norms=jnp.full((data.num_clients, 2), -1, dtype),
            largest=jnp.zeros((), dtype),
            cluster=jnp.zeros(data.num_clients, jnp.int32),
            round=jnp.int32(0),
        )

    def round(key: Key, state: CFLState, data: FederatedData, cohort: Cohort) -> tuple[CFLState, Info]:
        count = state.formed.shape[0]

        def client(shared, client: Array):
            key, (models, cluster, round), data = shared
            theta = tree.take(models, cluster[client])
            model, loss = train(key_for(key, Stream.BATCHES, round, client), theta, data, client, anchor=theta)
            update = jax.tree.map(jnp.subtract, model, theta)
            weight = aggregate.client_weight(data, client, rule["weighting"])
            usable = tree.is_finite(update)
            vector = vector_of(key, model if compare == "weights" else update)
            norms = jnp.stack([tree.norm(update), tree.norm(part(update))])
            kept = loss, jnp.where(usable, vector, 0), jnp.where(usable, norms, 0)
            return aggregate.contribute(update, weight, cluster[client], count), kept

        shared = key, (state.models, state.cluster, state.round), data
        total, (loss, vectors, norms) = over_clients(client, shared, cohort)
        mean = aggregate.mean(total, empty=jax.tree.map(jnp.zeros_like, state.models))
        models = jax.tree.map(jnp.add, state.models, mean)

        trained = cohort.mask & (data.train.size[cohort.ids] > 0)
        ids = jnp.where(trained, cohort.ids, data.num_clients)  # out of range: written nowhere
        vectors = state.vectors.at[ids].set(vectors, mode="drop")
        norms = state.norms.at[ids].set(norms, mode="drop")
        largest = jnp.maximum(state.largest, norms[:, 1].max())

        member = state.cluster[:, None] == jnp.arange(count, dtype=jnp.int32)[None, :]  # [N, K]
        comparable = (norms > 0).all(1)
        waiting = (norms[:, 0] < 0) & takes_part(data)
        mean_update = jax.vmap(tree.norm)(mean)  # [K]
        of_model, of_layers = (jnp.where(member, norm[:, None], 0).max(0) for norm in norms.T)  # [K] max_i |D_i|
        ready = (
            (mean_update < rule["eps1"] * (of_model if rule["relative"] else 1))
            & (of_layers > rule["eps2"] * (largest if rule["relative"] else 1))
            & (total.weight > 0)  # somebody has trained in this round
            & ~(member & waiting[:, None]).any(0)
            & ((member & comparable[:, None]).sum(0) >= rule["min_clients"])
            & (state.round + 1 - state.formed >= rule["rounds_between"])
            & (state.round >= rule["warmup_rounds"])
        )  # [K]

        def compare_and_split() -> splitting.Division:
            similarity = similarity_of(vectors)
            return splitting.split(similarity, state.cluster, comparable, ready, linkage=rule["linkage"], accept=accept)

        after = jax.lax.cond(ready.any(), compare_and_split, lambda: splitting.unchanged(state.cluster, count))
        fresh = after.opened.at[after.source].max(after.opened)  # [K], both halves of every split
        one = base.shape_of(models)
        seen = base.info(
            cohort,
            loss,
            state.cluster[cohort.ids],
            num_clusters=(after.cluster[:, None] == jnp.arange(count, dtype=jnp.int32)[None, :]).any(0).sum(),
            diverged=total.diverged,
            up=one,
            down=one,
            overflow=after.overflow,
            mean_update=mean_update.max(),
            client_update=of_model.max(),
            splits=after.opened.sum(dtype=jnp.int32),
        )
        return CFLState(
            models=tree.take(models, after.source),
            formed=jnp.where(fresh, state.round + 1, state.formed),
            vectors=vectors,
            norms=jnp.where(fresh[after.cluster][:, None], -1, norms),
            largest=largest,
            cluster=after.cluster,
            round=state.round + 1,
        ), seen

    return Method(init, round, lambda state, ids: tree.take(state.models, state.cluster[ids]), task, grow=_grow)


def check_of_split(gamma_max: float, metric: str, relative: bool) -> splitting.Accept:
    """Returns which splits are kept."""
    if gamma_max == 0 or (metric == "l2" and not relative):
        return splitting.anyhow
    if not relative:
        return splitting.tells_apart(gamma_max)
    return splitting.stands_out(gamma_max) if metric == "cosine" else splitting.stands_out(gamma_max, jnp.negative)


def _grow(state: CFLState) -> CFLState:
    """Returns the state with twice the slots."""
    models, formed = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), (state.models, state.formed))
    return state._replace(models=models, formed=formed)


def _check(rule: dict[str, Any], metric: str, compare: str, sketch_size: int | None, slots: int) -> None:
    """Raises ValueError if an option is out of range or unknown."""
    aggregate.check_weighting(rule["weighting"])
    check_known("linkage", rule["linkage"], BIPARTITIONS)
    check_known("metric", metric, SIMILARITIES)
    check_known("compare", compare, COMPARED)
    for name in ("eps1", "eps2", "gamma_max"):
        if not rule[name] >= 0:  # NaN too
            raise ValueError(f"{name} must be at least 0, got {rule[name]}.")
    if rule["gamma_max"] > 1 and not rule["relative"]:
        raise ValueError(f"gamma_max must be at most 1, got {rule['gamma_max']}; relative=True takes a multiple.")
    least = {
        "warmup_rounds": (rule["warmup_rounds"], 0),
        "rounds_between": (rule["rounds_between"], 1),
        "min_clients": (rule["min_clients"], 2),
        "sketch_size": (1 if sketch_size is None else sketch_size, 1),
        "slots": (slots, 1),
    }
    for name, (value, low) in least.items():
        if value < low:
            raise ValueError(f"{name} must be at least {low}, got {value}.")
