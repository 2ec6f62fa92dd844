"""FeSEM, multi-centre federated learning.

Long, Xie, Shen, Zhou, Wang and Jiang, "Multi-center Federated Learning: Clients Clustering for Better Personalization",
World Wide Web 2022, Algorithm 1. The server holds K centres C_k, which are models, and every client's cluster r_i. Over
m clients,

    sum_i alpha_i f_i(W_i) + (lambda / m) * sum_i |W_i - C_{r_i}|^2                                   (equation 5)

is minimised by three steps in turn. Here a round begins with the last one, and the others follow in the same pass, so
that no W_i is kept:

    local   W_i <- E epochs from C_{r_i} on  alpha_i f_i(W) + (lambda / m) * |W - C_{r_i}|^2          (equation 7)
    E       r_i <- argmin_k |W_i - C_k|^2                                                             (equation 8)
    M       C_k <- mean of {W_i: r_i = k}                                                             (equation 9)

The pull. Divided by alpha_i, the gradient of equation 7 is  grad f_i(W) + 2 lambda / (m alpha_i) * (W - C). With
alpha_i = 1 / m, every client counting the same as it does in the means, that is FedProx with mu = 2 lambda: the default
here. The paper has alpha_i = n_i / n (`loss_weighting="rows"`), hence mu_i = 2 lambda * (n / m) / n_i: a stronger pull
on clients of fewer rows, and steps that blow up unless `learning_rate * mu_i` stays below 2 for the smallest of them.
No value of lambda is stated.

The start. All clients make one local update from one common model (before it, all W_i are equal); the best of 20
k-means, by intra-cluster distance, gives the r_i, and the means of the updates are the C_k. k-means is shown sketches
(see `clustering.sketch`), and the updates are made a second time to be added up: they are never held together either.

Clients that are not sampled keep their r_i, and a centre is the mean of its sampled clients. Ties go to the lowest k.
With `empty="farthest"`, a centre that no client is left with moves to the model of the sampled client that is farthest
from its own centre.

`preset="official"` is the rule of the official code: W_i and C_k are compared by the last kernel alone, and nothing is
pulled. That code differs in more: its k-means starts from random points that are no models, its centres count the
absent clients' last kernels, and its tests give every centre to every client and report the best.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import aggregate, tree
from jaxfl.clustering import centres as centre_of
from jaxfl.clustering import kmeans
from jaxfl.clustering.from_centres import DISTANCES
from jaxfl.corrections import proximal_pull
from jaxfl.data.clients import Cohort, FederatedData
from jaxfl.engine import over_clients
from jaxfl.local import local_train
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method
from jaxfl.methods.fedper import last_layer
from jaxfl.methods.robust import alone, everybody, is_finite, nearest, point
from jaxfl.random import Stream, key_for
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

LAST_KERNEL = "last kernel"  # no pattern: parameters' names have no spaces
PRESETS = {
    "paper": {"layers": ".*", "proximal_weight": 0.1},
    "official": {"layers": LAST_KERNEL, "proximal_weight": 0.0},
}
EMPTY = ("keep", "farthest")


class FeSEMState(NamedTuple):
    """K centres, and the cluster that each client was last found in."""

    centres: Params  # [K, ...]
    cluster: Array  # [N] int32
    round: Array  # [] int32


def fesem(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int = 4,
    preset: str = "paper",
    layers: str | Sequence[str] | None = None,
    proximal_weight: float | None = None,
    loss_weighting: str = "uniform",
    distance: str = "squared_l2",
    local_epochs: int = 5,
    batch_size: int | None = None,
    weighting: str = "uniform",
    empty: str = "keep",
    first_epochs: int | None = None,
    restarts: int = 20,
    sketch_size: int = 1024,
) -> Method:
    """Returns FeSEM.

    `info.extra` has `distance [C]`, of every client's model from the nearest centre (0 for a client that does not
    count), their mean `objective []` (equation 6, between E and M step), and `changed []`, the clients whose cluster is
    another than before.

    Args:
        task: what is learned.
        optimizer: the local optimiser; the pull is added to the gradient that it is given.
        num_clusters: K.
        preset: `"paper"` (`layers=".*"`, `proximal_weight=0.1`) or `"official"` (`layers="last kernel"`,
            `proximal_weight=0.0`); what is given besides wins.
        layers: patterns (see `tree.matching`) of the parameters by which the E step compares, or `"last kernel"`: of
            the layer that the model made last. Centres and pull are of the whole model.
        proximal_weight: lambda; mu = 2 lambda.
        loss_weighting: alpha_i, which the pull is relative to: `"uniform"` (1 / m) or `"rows"` (n_i / n).
        distance: of the E step: `"squared_l2"`, `"l1"` or `"cosine"` (1 - cosine). The first clustering and the pull
            are of squared l2 always.
        local_epochs: E; the paper's N = 1 is one such pass a round.
        batch_size: B; None takes all of a client's rows at once.
        weighting: of the M step: `"uniform"` (equation 9) or `"rows"` (n_i).
        empty: what becomes of a centre that no client is left with: `"keep"`, or `"farthest"`: it moves to the model of
            the sampled client that is farthest from its own centre.
        first_epochs: of the updates that clients are first clustered by; None is `local_epochs`.
        restarts: k-means++ starts of the first clustering; that of the lowest inertia is kept.
        sketch_size: numbers kept of each first update, if it is longer.

    Raises:
        ValueError: an option is out of range, a pattern matches no parameter, or there are more clusters than clients.
    """
    for name, value, known in (("preset", preset, PRESETS), ("distance", distance, DISTANCES)):
        check_known(name, value, known)
    chosen = compared(task, PRESETS[preset]["layers"] if layers is None else layers)
    measure = DISTANCES[distance]

    def part(model: Params) -> Params:
        return tree.partition(model, chosen)[0]

    by_index = Rule(
        distances=lambda model, centres: measure(part(model), part(centres)),
        shown=part,
        align=lambda model, centre: model,
        settle=lambda means, members: means,
    )
    return multi_centre(
        task,
        optimizer,
        by_index,
        num_clusters=num_clusters,
        proximal_weight=PRESETS[preset]["proximal_weight"] if proximal_weight is None else proximal_weight,
        loss_weighting=loss_weighting,
        local_epochs=local_epochs,
        batch_size=batch_size,
        weighting=weighting,
        empty=empty,
        first_epochs=first_epochs,
        restarts=restarts,
        sketch_size=sketch_size,
    )


class Rule(NamedTuple):
    """How models are compared and averaged: what sets FeSEM and FeSEM-MA apart.

    Attributes:
        distances: `(model, centres [K, ...]) -> [K]`, of the E step.
        shown: `model -> tree`, what the first clustering is shown of it.
        align: `(model, centre) -> model`, what goes into the mean of the cluster whose centre it was.
        settle: `(means [K, ...], members [K]) -> centres`, of the M step.
    """

    distances: Callable[[Params, Params], Array]
    shown: Callable[[Params], Params]
    align: Callable[[Params, Params], Params]
    settle: Callable[[Params, Array], Params]


def multi_centre(
    task: Task,
    optimizer: optax.GradientTransformation,
    rule: Rule,
    *,
    num_clusters: int,
    proximal_weight: float,
    loss_weighting: str,
    local_epochs: int,
    batch_size: int | None,
    weighting: str,
    empty: str,
    first_epochs: int | None,
    restarts: int,
    sketch_size: int,
) -> Method:
    """Returns FeSEM under a rule; the options are those of `fesem`."""
    aggregate.check_weighting(weighting)
    for name, value in {"num_clusters": num_clusters, "restarts": restarts, "sketch_size": sketch_size}.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    check_known("empty", empty, EMPTY)
    check_known("loss_weighting", loss_weighting, aggregate.WEIGHTINGS)
    if proximal_weight < 0:
        raise ValueError(f"proximal_weight must be at least 0, got {proximal_weight}; 0 switches the pull off.")
    epochs = local_epochs if first_epochs is None else first_epochs
    if epochs < 1:
        raise ValueError(f"first_epochs must be at least 1, got {epochs}; None is local_epochs.")
    local = (
        optax.chain(proximal_pull(2 * proximal_weight), optimizer) if proximal_weight else optimizer
    )  # mu = 2 lambda

    def update_of(epochs: int) -> Callable[..., tuple[Params, Array]]:
        """Returns the local update of equation 7: `(key, model, data, client, *, anchor) -> (model, loss)`."""
        train = local_train(task, local, local_epochs=epochs, batch_size=batch_size)

        def run(key: Key, model: Params, data: FederatedData, client: Array, *, anchor: Params):
            scale = {"pull_scale": share_of_rows(data, client)} if loss_weighting == "rows" else {}
            return train(key, model, data, client, anchor=anchor, **scale)

        return run

    update, update_first = update_of(local_epochs), update_of(epochs)

    def first(key: Key, model: Params, data: FederatedData, client: Array, *, anchor: Params) -> tuple[Params, Array]:
        sent, loss = update_first(key, model, data, client, anchor=anchor)
        return rule.align(sent, anchor), loss

    def init(key: Key, data: FederatedData) -> FeSEMState:
        base.check_clusters(num_clusters, data)
        model = task.init(key_for(key, Stream.INIT))
        points, known = alone(
            key, model, data, first, lambda key, sent: point(key, rule.shown(sent), ".*", sketch_size)
        )
        start_key = key_for(key, Stream.START, round=1)  # in round 0 it is the clients'
        found = kmeans.kmeans(start_key, points, num_clusters, mask=known, restarts=restarts)
        cluster = nearest(points, found.centres)

        def client(shared, client: Array):
            key, model, cluster, data = shared
            sent, _ = first(key_for(key, Stream.START, client=client), model, data, client, anchor=model)  # as `alone`
            return aggregate.contribute(sent, weigh(data, client), cluster[client], num_clusters), ()

        heard = jnp.where(known, cluster, -1)
        total, _ = over_clients(client, (key, model, heard, data), everybody(model, data))
        means = aggregate.mean(total, empty=tree.repeat(model, num_clusters))
        return FeSEMState(rule.settle(means, centre_of.counts(heard, num_clusters)), cluster, jnp.int32(0))

    def weigh(data: FederatedData, client: Array) -> Array:
        return aggregate.client_weight(data, client, weighting)

    def learn(key: Key, state: FeSEMState, data: FederatedData, client: Array) -> tuple[Params, Array]:
        centre = tree.take(state.centres, state.cluster[client])
        return update(key_for(key, Stream.BATCHES, state.round, client), centre, data, client, anchor=centre)

    def round(key: Key, state: FeSEMState, data: FederatedData, cohort: Cohort) -> tuple[FeSEMState, Info]:
        def client(shared, client: Array):
            key, state, data = shared
            model, loss = learn(key, state, data, client)
            away = rule.distances(model, state.centres)  # [K]
            counts = (data.train.size[client] > 0) & is_finite(model) & jnp.isfinite(away).all()
            found = jnp.where(counts, jnp.argmin(away).astype(jnp.int32), state.cluster[client])
            aligned = rule.align(model, tree.take(state.centres, found))
            sent = aggregate.contribute(aligned, weigh(data, client), found, num_clusters)
            return sent, (loss, found, jnp.where(counts, away[found], 0), counts)

        total, (loss, found, away, counts) = over_clients(client, (key, state, data), cohort)
        counts &= cohort.mask
        objective = jnp.where(counts, away, 0).sum() / jnp.maximum(counts.sum(), 1).astype(away.dtype)
        if empty == "farthest":
            total, found = reseed(key, state, data, cohort, total, found, jnp.where(counts, away, 0))
        cluster = base.write_clusters(state.cluster, cohort, found)
        one = base.shape_of(state.centres)
        seen = base.info(
            cohort,
            loss,
            state.cluster[cohort.ids],
            num_clusters=(members(cluster, data, num_clusters) > 0).sum(),
            diverged=total.diverged,
            up=one,
            down=one,
            distance=away,
            objective=objective,
            changed=(cohort.mask & (found != state.cluster[cohort.ids])).sum(dtype=jnp.int32),
        )
        heard = centre_of.counts(jnp.where(counts, found, -1), num_clusters)
        centres = rule.settle(aggregate.mean(total, empty=state.centres), heard)
        return FeSEMState(centres, cluster, state.round + 1), seen

    def reseed(
        key: Key,
        state: FeSEMState,
        data: FederatedData,
        cohort: Cohort,
        total: aggregate.Total,
        found: Array,
        away: Array,
    ) -> tuple[aggregate.Total, Array]:
        """Moves the farthest clients of the cohort, one each, to the clusters without any; nobody is left alone.

        Their models are gone by now: they are trained again, and taken out of the sums that they went into.
        """

        def fill(slot: Array, carry: tuple) -> tuple:
            total, found, away, left = carry
            place = jnp.argmax(jnp.where(left[found] > 1, away, 0))

            def move() -> tuple:
                client, old = cohort.ids[place], found[place]
                model, _ = learn(key, state, data, client)
                weight = weigh(data, client)

                def shift(sums: Array, sent: Array, model: Array) -> Array:
                    by = weight.astype(sent.dtype)
                    return sums.at[old].add(-by * sent).at[slot].set(by * model)

                sent = rule.align(model, tree.take(state.centres, old))
                values = jax.tree.map(shift, total.values, sent, model)
                weights = total.weight.at[old].add(-weight).at[slot].set(weight)
                moved = aggregate.Total(values, weights, total.diverged)
                return moved, found.at[place].set(slot), away.at[place].set(0), left.at[old].add(-1).at[slot].add(1)

            wanted = (left[slot] == 0) & (away[place] > 0) & (left[found[place]] > 1)
            return jax.lax.cond(wanted, move, lambda: carry)

        left = members(base.write_clusters(state.cluster, cohort, found), data, num_clusters)
        total, found, _, _ = jax.lax.fori_loop(0, num_clusters, fill, (total, found, away, left))
        return total, found

    return Method(init, round, lambda state, ids: tree.take(state.centres, state.cluster[ids]), task)


def compared(task: Task, layers: str | Sequence[str]) -> Params:
    """Returns by which leaves of the task's model the E step compares: a bool for every leaf.

    Raises:
        ValueError: the patterns match nothing, or the model has no last kernel.
    """
    model = jax.eval_shape(task.init, jax.random.key(0))
    if layers != LAST_KERNEL:
        return tree.matching(model, layers)
    kernels = jax.tree.map(lambda last, leaf: last and len(leaf.shape) > 1, last_layer(task), model)
    if not any(jax.tree.leaves(kernels)):
        raise ValueError(
            f'layers must be patterns for a model whose last layer has no kernel, got "{LAST_KERNEL}"; its parameters '
            f"are {', '.join(tree.names(model))}."
        )
    return kernels


def members(cluster: Array, data: FederatedData, num_clusters: int) -> Array:
    """Returns how many clients that take part are in every cluster `[K]` int32."""
    return centre_of.counts(jnp.where(takes_part(data), cluster, -1), num_clusters)


def takes_part(data: FederatedData) -> Array:
    """Returns who has rows and is not held out `[N]`."""
    rows = jnp.asarray(data.train.size) > 0
    return rows if data.held_out is None else rows & ~jnp.asarray(data.held_out)


def share_of_rows(data: FederatedData, client: Array) -> Array:
    """Returns 1 / (m alpha_i) for alpha_i = n_i / n `[]`: the mean number of rows over the client's own."""
    real = takes_part(data)
    dtype = jnp.result_type(float)
    mean = jnp.where(real, data.train.size, 0).sum().astype(dtype) / jnp.maximum(real.sum(), 1).astype(dtype)
    return mean / jnp.maximum(data.train.size[client], 1).astype(dtype)


def check_known(name: str, value: str, known: Collection[str]) -> None:
    """Raises ValueError unless an option has one of the known values."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}.")
