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
    gamma_max  of the same expression of nearest peers, see `keep_above_peers`: every client needs one in its group

Where the official code differs (`preset="official"`): complete linkage, no gamma_max, uniform means, no split up to
round 20 or of fewer than three clients, absolute eps; its second split mixes up clients (its issue 2), and it averages
by the new clusters in the round of a split already, where here both halves start from one model. FeSEM's baseline
(`preset="fesem"`): the last kernel's updates, average linkage, a split after every 30 rounds in a cluster of at least
20 clients if gamma_max = 0.13 is exceeded, no eps.
"""

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import tree
from jaxfl.client.training import Train, local_train
from jaxfl.clustering import distances
from jaxfl.clustering.linkage import Bipartition
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method, takes_part
from jaxfl.methods.parts import splitting
from jaxfl.methods.parts.vectors import LAST_KERNEL, compared_leaves, to_vector
from jaxfl.random import Stream, key_for
from jaxfl.schema import checked
from jaxfl.server import aggregate
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

SIMILARITIES = {
    "cosine": distances.cosine,
    "l2": lambda vectors: -distances.l2(vectors),  # the nearer, the more similar
}
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


class Rule(NamedTuple):
    """When a cluster is split, by what, and how its clients are averaged; `cfl` says what the words mean."""

    relative: bool
    eps1: float
    eps2: float
    gamma_max: float
    linkage: Bipartition
    weighting: aggregate.Weighting
    layers: str | Sequence[str]
    warmup_rounds: int
    rounds_between: int
    min_clients: int
    metric: Literal["cosine", "l2"]
    compare: Literal["updates", "weights"]

    def check(self) -> None:
        """Raises ValueError if a field is out of range."""
        for name in ("eps1", "eps2", "gamma_max"):
            if not getattr(self, name) >= 0:  # NaN too
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}.")
        if self.gamma_max > 1 and not self.relative:
            raise ValueError(f"gamma_max must be at most 1, got {self.gamma_max}; relative=True takes a multiple.")
        for name, low in {"warmup_rounds": 0, "rounds_between": 1, "min_clients": 2}.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be at least {low}, got {getattr(self, name)}.")


class CFLState(NamedTuple):
    """Slots of cluster models, and what every client has sent since its cluster was formed."""

    models: Params  # [K, ...]; a slot without clients is free
    formed: Array  # [K] int32, rounds done when the cluster was formed
    trained: Array  # [N] bool, who has trained since its cluster was formed; the two norms of others are 0
    vectors: Array  # [N, d], what clients are compared by; 0 where the update was not finite, as are its norms
    update_norm: Array  # [N] |D_i|
    layers_norm: Array  # [N] |D_i|, of the layers compared
    largest: Array  # [], the largest |D_i| of the layers ever observed
    cluster: Array  # [N] int32 slot
    round: Array  # [] int32


class Sent(NamedTuple):
    """What the clients of a cohort send besides their models, and what is seen of them."""

    loss: Array  # [C]
    vectors: Array  # [C, d], 0 where the update is not finite
    update_norm: Array  # [C], as well
    layers_norm: Array  # [C], as well


@checked
def cfl(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    preset: Literal["paper", "official", "fesem"] = "paper",
    relative: bool | None = None,
    eps1: float | None = None,
    eps2: float | None = None,
    gamma_max: float | None = None,
    linkage: Bipartition | None = None,
    weighting: aggregate.Weighting | None = None,
    layers: str | Sequence[str] | None = None,
    metric: Literal["cosine", "l2"] = "cosine",
    compare: Literal["updates", "weights"] = "updates",
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
        ValueError: an option is out of range, or a pattern matches no parameter.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=40)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(cfl(task, optax.sgd(0.1)), data, rounds=40, seed=0)
    >>> result.summary["num_clusters"], result.summary["ari"]
    (4, 1.0)
    """
    bounds = {"eps1": eps1, "eps2": eps2, "gamma_max": gamma_max}
    pace = {"warmup_rounds": warmup_rounds, "rounds_between": rounds_between, "min_clients": min_clients}
    others = {"relative": relative, "linkage": linkage, "weighting": weighting, "layers": layers}
    chosen = base.from_preset(PRESETS, preset, **bounds, **pace, **others)
    rule = Rule(**chosen, metric=metric, compare=compare)
    for name, given in bounds.items():
        if PRESETS[preset]["relative"] and not rule.relative and given is None:
            raise ValueError(f"{name} must be given with relative=False; its default, {chosen[name]}, is relative.")
    rule.check()
    for name, value in {"sketch_size": sketch_size, "slots": slots}.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    train = local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size)
    return splitting_clusters(task, train, rule, length=sketch_size or sys.maxsize, slots=slots)


def splitting_clusters(task: Task, train: Train, rule: Rule, *, length: int, slots: int) -> Method:
    """Returns CFL of these parts.

    Args:
        task: what is learned.
        train: a client's local training.
        rule: of the splits.
        length: numbers kept of what a client is compared by, at most.
        slots: at first.
    """
    chosen, divide = compared_leaves(task, rule.layers), dividing(rule)

    def layers_of(model: Params) -> Params:
        return tree.partition(model, chosen)[0]

    def vector_of(key: Key, model: Params) -> Array:
        return to_vector(key, layers_of(model), size=length)

    def init(key: Key, data: FederatedData) -> CFLState:
        model = task.init(key_for(key, Stream.INIT))
        return one_cluster(model, jax.eval_shape(vector_of, key, model), data.num_clients, slots)

    def client(shared, client: Array):
        key, (models, cluster, round), data = shared
        theta = tree.take(models, cluster[client])
        model, loss = train(key_for(key, Stream.BATCHES, round, client), theta, data, client, anchor=theta)
        update = jax.tree.map(jnp.subtract, model, theta)
        weight = aggregate.client_weight(data, client, rule.weighting)
        vector = vector_of(key, model if rule.compare == "weights" else update)
        told = vector, tree.norm(update), tree.norm(layers_of(update))
        usable = tree.is_finite(update)
        sent = Sent(loss, *(jnp.where(usable, number, 0) for number in told))
        return aggregate.contribute(update, weight, cluster[client], base.slots_of(models)), sent

    def round(key: Key, state: CFLState, data: FederatedData, cohort: Cohort) -> tuple[CFLState, Info]:
        total, sent = over_clients(client, (key, (state.models, state.cluster, state.round), data), cohort)
        mean = aggregate.mean(total, empty=jax.tree.map(jnp.zeros_like, state.models))
        models = jax.tree.map(jnp.add, state.models, mean)
        mean_norm = jax.vmap(tree.norm)(mean)  # [K]
        heard = remember(state, sent, data, cohort)
        ready = ready_clusters(rule, heard, mean_norm, total.weight > 0, data)
        after = divide(heard, ready)
        one = base.shape_of(models)
        seen = base.info(
            cohort,
            sent.loss,
            state.cluster[cohort.ids],
            num_clusters=splitting.occupied(after.cluster, ready.shape[0]).sum(),
            diverged=total.diverged,
            up=one,
            down=one,
            overflow=after.doublings,
            mean_update=mean_norm.max(),
            client_update=heard.update_norm.max(),
            splits=after.opened.sum(dtype=jnp.int32),
        )
        return divided(heard._replace(models=models), after), seen

    return Method(init, round, lambda state, ids: tree.take(state.models, state.cluster[ids]), task, grow=_grow)


def one_cluster(model: Params, vector: jax.ShapeDtypeStruct, num_clients: int, slots: int) -> CFLState:
    """Returns the state before the first round: all clients in one cluster, and nobody heard.

    Args:
        model: that all start from.
        vector: the shape `[d]` of what clients are compared by.
        num_clients: N.
        slots: K.
    """
    norm = jax.eval_shape(tree.norm, model)  # in the model's dtype; a sketch is float32
    return CFLState(
        models=tree.repeat(model, slots),
        formed=jnp.zeros(slots, jnp.int32),
        trained=jnp.zeros(num_clients, bool),
        vectors=jnp.zeros((num_clients, *vector.shape), vector.dtype),
        update_norm=jnp.zeros(num_clients, norm.dtype),
        layers_norm=jnp.zeros(num_clients, norm.dtype),
        largest=jnp.zeros((), norm.dtype),
        cluster=jnp.zeros(num_clients, jnp.int32),
        round=jnp.int32(0),
    )


def remember(state: CFLState, sent: Sent, data: FederatedData, cohort: Cohort) -> CFLState:
    """Returns the state with what the clients of a cohort have sent; who has no rows has sent nothing."""
    trained = cohort.mask & (data.train.size[cohort.ids] > 0)
    ids = jnp.where(trained, cohort.ids, data.num_clients)  # out of range: written nowhere
    layers_norm = state.layers_norm.at[ids].set(sent.layers_norm, mode="drop")
    return state._replace(
        trained=state.trained.at[ids].set(True, mode="drop"),
        vectors=state.vectors.at[ids].set(sent.vectors, mode="drop"),
        update_norm=state.update_norm.at[ids].set(sent.update_norm, mode="drop"),
        layers_norm=layers_norm,
        largest=jnp.maximum(state.largest, layers_norm.max()),
    )


def comparable(state: CFLState) -> Array:
    """Returns whose vectors can be compared `[N]`: those of clients whose last update has a direction."""
    return (state.update_norm > 0) & (state.layers_norm > 0)


def ready_clusters(rule: Rule, state: CFLState, mean_norm: Array, heard: Array, data: FederatedData) -> Array:
    """Returns the clusters that may be split now `[K]` bool.

    Args:
        rule: of the splits.
        state: with what this round's clients have sent.
        mean_norm: of the clusters' mean updates `[K]`.
        heard: clusters in which somebody has trained in this round `[K]`.
        data: the federation.
    """
    member = state.cluster[:, None] == jnp.arange(heard.shape[0], dtype=jnp.int32)[None, :]  # [N, K]
    largest_update, largest_layers = (  # [K] max_i |D_i|
        jnp.where(member, norm[:, None], 0).max(0) for norm in (state.update_norm, state.layers_norm)
    )
    stationary = mean_norm < rule.eps1 * (largest_update if rule.relative else 1)
    clients_move = largest_layers > rule.eps2 * (state.largest if rule.relative else 1)
    waits = (member & (~state.trained & takes_part(data))[:, None]).any(0)  # for members yet to train
    enough = (member & comparable(state)[:, None]).sum(0) >= rule.min_clients
    due = (state.round + 1 - state.formed >= rule.rounds_between) & (state.round >= rule.warmup_rounds)
    return stationary & clients_move & heard & ~waits & enough & due


def divided(state: CFLState, after: splitting.Division) -> CFLState:
    """Returns the state of the next round: both halves of a split go on from one model, and are heard anew."""
    fresh = after.opened.at[after.source].max(after.opened)  # [K], both halves of every split
    anew = fresh[after.cluster]  # [N]
    return state._replace(
        models=tree.take(state.models, after.source),
        formed=jnp.where(fresh, state.round + 1, state.formed),
        trained=state.trained & ~anew,
        update_norm=jnp.where(anew, 0, state.update_norm),
        layers_norm=jnp.where(anew, 0, state.layers_norm),
        cluster=after.cluster,
        round=state.round + 1,
    )


def dividing(rule: Rule) -> Callable[[CFLState, Array], splitting.Division]:
    """Returns `divide(state, ready [K]) -> division`, which compares clients only if some cluster is ready."""
    accept = check_of_split(rule)

    def divide(state: CFLState, ready: Array) -> splitting.Division:
        def compare_and_split() -> splitting.Division:
            similarity, able = SIMILARITIES[rule.metric](state.vectors), comparable(state)
            return splitting.split(similarity, state.cluster, able, ready, linkage=rule.linkage, accept=accept)

        unchanged = splitting.unchanged(state.cluster, ready.shape[0])
        return jax.lax.cond(ready.any(), compare_and_split, lambda: unchanged)

    return divide


def check_of_split(rule: Rule) -> splitting.Accept:
    """Returns which splits are kept."""
    if rule.gamma_max == 0 or (rule.metric == "l2" and not rule.relative):
        return splitting.keep_all
    if not rule.relative:
        return splitting.keep_above(rule.gamma_max)
    if rule.metric == "cosine":
        return splitting.keep_above_peers(rule.gamma_max)
    return splitting.keep_above_peers(rule.gamma_max, jnp.negative)


def _grow(state: CFLState) -> CFLState:
    """Returns the state with twice the slots."""
    models, formed = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), (state.models, state.formed))
    return state._replace(models=models, formed=formed)
