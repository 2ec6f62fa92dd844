"""FedGWC: clusters are split again and again, by Gaussian rewards of the losses in the clients' training.

Licciardi, Leo, Fani, Caputo and Ciccone, "Interaction-Aware Gaussian Weighting for Clustered Federated Learning", ICML
2025. All clients start in one cluster, and FedAvg runs in each. Client i also sends l_i1 ... l_iS, the losses of its
first S steps, each before the step. In a cluster of m clients, C of which are sampled, with mu_s and sigma_s^2 the
means and variances of the s-th losses, weighted by rows, and a = C / m:

    rho_i = 1/S sum_s exp(-(l_is - mu_s)^2 / (2 sigma_s^2))                                 # Gaussian reward
    W_ij <- (1 - a) W_ij + a rho_i / sum_h rho_h                                            # i, j sampled, i = j too
    mse  <- (1 - a) mse + a (mean of the C^2 squared changes of W)

Once mse was below eps for round(m / C) of its rounds, the cluster is split, if it can be. Z is its part of W, scaled to
[0, 1], and the affinity of i and j is exp(-gamma sum over h not i, j of (Z_ih - Z_jh)^2). For k = 2, 3, 4 spectral
clustering makes k clusters; the k with the lowest Davies-Bouldin index, of the k eigenvectors after the constant one,
is taken if that is below 1. The children start from their parent's model, with their part of W.

The paper's text was not available: the rule is the official code's, with one repair. The code compares COLUMNS of W
(`preset="official"`): where all clients are sampled all columns are equal, so that nothing can tell clients apart, and
its reviews speak of rows, which are `preset="paper"`. The official code also splits into at most m / C children, so
that clusters of which all clients are sampled stay; rounds here sample one cohort and not one of each cluster, and C is
the number of a cluster's clients in it. Its draws of further losses are not here (at its settings there are none), nor
is a reward that is not divided by the sum of all, as the paper's may be. Its settings: S = 7, B = 64, rate 0.01, 10 %
of 100 clients, gamma = 0.1, eps = 1e-5, 10,000 rounds.

Neither says what follows. A cluster with fewer than two sampled clients with rows and finite losses has no reward.
Clients that made fewer steps limit the steps that their cluster compares. Clients without rows, and those whose last
losses were not finite, do not count in m, and follow the largest child. Held-out clients and newcomers take the cluster
with the lowest loss on their rows. A split that leaves a child with fewer than `min_clients` clients is not made.

mse is at least (1 - a)^t after t rounds, so that nothing is split before that is below eps. Two concepts of equal
difficulty, such as exchanged labels, have equal losses: they cannot be told apart.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfl import tree
from jaxfl.client.steps import Epochs, step_count
from jaxfl.client.training import local_train
from jaxfl.clustering import cohesion, distances, spectral
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.engine import over_clients
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method, Participation, takes_part
from jaxfl.methods.cfl.splitting import Division, occupied
from jaxfl.methods.exposure import Seen, server_sees
from jaxfl.methods.parts.by_cluster import cluster_training
from jaxfl.methods.parts.competing import lowest_loss, model_losses
from jaxfl.random import Stream, key_for
from jaxfl.schema import Traceable, checked, is_known
from jaxfl.server import aggregate
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

Compare = Literal["rows", "columns"]

MOST_CLIENTS = 20_000  # an array of N^2 numbers is stored
PRESETS = {
    "paper": {"compare": "rows", "whole_cohorts": False, "min_clients": 2},
    "official": {"compare": "columns", "whole_cohorts": True, "min_clients": 1},
}


class FedGWCState(NamedTuple):
    """Slots of cluster models, and what losses have said of every pair of clients."""

    models: Params  # [K, ...]; a slot without clients is free
    interactions: Array  # [N, N] W; of two clients of one cluster it counts
    change: Array  # [K], the running mean of squared changes of W (mse)
    steady: Array  # [K] int32, rounds of the cluster with a change below eps, one after another
    comparable: Array  # [N] bool, clients whose losses were finite when they were last sampled, or that never were
    cluster: Array  # [N] int32
    round: Array  # [] int32


class Rewards(NamedTuple):
    """The rewards of a cohort, and its clusters."""

    reward: Array  # [C]
    cluster: Array  # [C] int32, -1 for clients that are not compared
    finite: Array  # [C] bool, whether all compared losses are finite
    sampled: Array  # [K] int32, compared clients of each cluster: at least two, or none


@server_sees(Seen("numbers", "the losses of each client's first steps; sums of models by cluster"))
@checked
def fedgwc(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    preset: Literal["paper", "official"] = "paper",
    compare: Compare | None = None,
    compared_steps: int = 7,
    gamma: Traceable = 0.1,
    eps: Traceable = 1e-5,
    whole_cohorts: bool | None = None,
    most_children: int = 4,
    min_clients: int | None = None,
    local_epochs: Epochs = 5,
    batch_size: int | None = None,
    weighting: aggregate.Weighting = "rows",
    slots: int = 4,
) -> Method:
    """Returns FedGWC.

    `info.extra` has `change []`, the largest mse of a cluster that was compared, and `splits []`, the new clusters.

    Args:
        task: what is learned.
        optimizer: the local optimiser; its state starts fresh in every round.
        preset: `"paper"` or `"official"`; their values are in brackets below, in this order. Options that are given
            replace the preset's values.
        compare: what of W says how alike two clients are: their `"rows"` or their `"columns"` (rows, columns).
        compared_steps: S, the first local steps whose losses are sent.
        gamma: how fast the affinity falls.
        eps: a cluster is steady while its mse is below it; 0 never splits, which is FedAvg.
        whole_cohorts: whether a cluster has at most m / C children, with C the number of its clients in the round
            (no, yes); then clusters of which all clients are sampled are not split.
        most_children: clusters that one may be split into at once; more than 4 are seldom useful.
        min_clients: clients that each child must have (2, 1); the index favours single clients.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: of the clients in the mean of their cluster's models: `"rows"` or `"uniform"`.
        slots: cluster models at the start; the simulator doubles them when they run out.

    Raises:
        ValueError: an option is out of range, or there are more than 20,000 clients.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=40)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> method = fedgwc(task, optax.sgd(0.1), eps=1e-5)
    >>> jaxfl.run(method, data, rounds=3, seed=0).summary["num_clusters"]  # nothing is steady yet
    1
    """
    chosen = base.from_preset(PRESETS, preset, compare=compare, whole_cohorts=whole_cohorts, min_clients=min_clients)
    for name, value in {"gamma": gamma, "eps": eps}.items():
        if is_known(value) and not value >= 0:  # NaN too
            raise ValueError(f"{name} must be at least 0, got {value}.")
    lowest = {"compared_steps": (compared_steps, 1), "most_children": (most_children, 2), "slots": (slots, 1)}
    for name, (value, least) in {**lowest, "min_clients": (chosen["min_clients"], 1)}.items():
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}.")
    train = local_train(
        task, optimizer, local_epochs=local_epochs, batch_size=batch_size, recorded_steps=compared_steps
    )
    losses_of = model_losses(task)

    def watched(key: Key, model: Params, data: FederatedData, client: Array, **extra) -> tuple[Params, tuple]:
        model, (loss, losses) = train(key, model, data, client, **extra)
        return model, (loss, losses, step_count(key, data, client, local_epochs, batch_size))

    learn = cluster_training(watched, weighting)
    divide = dividing(gamma=gamma, most_children=most_children, **chosen)

    def init(key: Key, data: FederatedData) -> FedGWCState:
        count = data.num_clients
        if count > MOST_CLIENTS:
            raise ValueError(
                f"data must have at most {MOST_CLIENTS:,} clients, got {count:,}; FedGWC stores a number of every pair."
            )
        models = tree.repeat(task.init(key_for(key, Stream.INIT)), slots)
        dtype = jnp.result_type(float)
        return FedGWCState(
            models,
            jnp.full((count, count), 1 / count**2, dtype),
            jnp.ones(slots, dtype),
            jnp.zeros(slots, jnp.int32),
            jnp.ones(count, bool),
            jnp.zeros(count, jnp.int32),
            jnp.int32(0),
        )

    def round(key: Key, state: FedGWCState, data: FederatedData, cohort: Cohort) -> tuple[FedGWCState, Info]:
        own = state.cluster[cohort.ids]
        total, (loss, losses, steps) = learn(key, state.models, state.cluster, state.round, data, cohort)
        slot_count = base.slots_of(state.models)
        found = gaussian_rewards(losses, steps, own, data.train.size[cohort.ids], cohort.mask, slot_count)
        ids = jnp.where(cohort.mask, cohort.ids, state.comparable.shape[0])  # out of range: dropped
        comparable = state.comparable.at[ids].set(found.finite, mode="drop")
        there = takes_part(data) & comparable
        members = (slot_members(state.cluster, slot_count) & there[None]).sum(1, dtype=jnp.int32)  # [K]
        interactions, changed, share = update_interactions(state.interactions, found, members, cohort.ids)
        compared = found.sampled > 0
        change = jnp.where(compared, (1 - share) * state.change + share * changed, state.change)
        steady = jnp.where(compared, jnp.where(change < eps, state.steady + 1, 0), state.steady)
        patience = jnp.round(members / jnp.maximum(found.sampled, 1)).astype(jnp.int32)
        ready = compared & (steady >= patience) & (change < eps)
        after = divide(interactions, state.cluster, there, ready, found.sampled)
        models = aggregate.mean(total, empty=state.models)
        one = base.shape_of(models)
        info = base.info(
            cohort,
            loss,
            own,
            num_clusters=occupied(after.cluster, ready.shape[0]).sum(),
            diverged=total.diverged,
            up=one,
            down=one,
            beside=jax.ShapeDtypeStruct(losses.shape[1:], losses.dtype),
            overflow=after.doublings,
            change=jnp.where(compared, change, 0).max(),
            splits=after.opened.sum(dtype=jnp.int32),
        )
        fresh = ready | after.opened
        state = FedGWCState(
            tree.take(models, after.source),
            interactions,
            jnp.where(fresh, 1, change),
            jnp.where(fresh, 0, steady),
            comparable,
            after.cluster,
            state.round + 1,
        )
        return state, info

    def assign(key: Key, state: FedGWCState, data: FederatedData, cohort: Cohort) -> FedGWCState:
        del key
        if data.held_out is None:
            return state

        def held_out(shared, client: Array):
            (models, cluster, used), data = shared
            chooses = jnp.asarray(data.held_out)[client] & (data.train.size[client] > 0)

            def choose() -> Array:
                return lowest_loss(jnp.where(used, losses_of(models, data, client), jnp.inf))

            return (), jax.lax.cond(chooses, choose, lambda: cluster[client])

        used = occupied(jnp.where(takes_part(data), state.cluster, -1), base.slots_of(state.models))
        _, found = over_clients(held_out, ((state.models, state.cluster, used), data), cohort)
        return state._replace(cluster=base.write_clusters(state.cluster, cohort, found))

    def client_params(state: FedGWCState, ids: Array) -> Params:
        return tree.take(state.models, state.cluster[ids])

    def grow(state: FedGWCState) -> FedGWCState:
        models = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), state.models)
        change, steady = jnp.ones_like(state.change), jnp.zeros_like(state.steady)
        return state._replace(
            models=models,
            change=jnp.concatenate([state.change, change]),
            steady=jnp.concatenate([state.steady, steady]),
        )

    def shortfall(state: FedGWCState, data: FederatedData, participation: Participation) -> str:
        del participation
        there = base.clients_to_train(data)
        if (is_known(eps) and eps == 0) or there.sum() < 2 or len(np.unique(np.asarray(state.cluster)[there])) > 1:
            return ""
        return (
            f"No cluster was split in {int(state.round)} rounds (eps={eps:g}, mse {float(state.change[0]):.2g}): make "
            "more rounds, raise eps or gamma, or lower min_clients."
        )

    return Method(init, round, client_params, task, assign, grow, shortfall=shortfall)


def gaussian_rewards(losses: Array, steps: Array, cluster: Array, rows: Array, mask: Array, slots: int) -> Rewards:
    """Returns the rewards of a cohort.

    Args:
        losses: `[C, S]`, of the clients' first steps.
        steps: `[C]` int32, how many they made.
        cluster: `[C]` int32.
        rows: `[C]` int32, their weights in means and variances.
        mask: `[C]` bool, False for padding.
        slots: K.
    """
    count = losses.shape[1]
    made = jnp.arange(count, dtype=jnp.int32)[None] < steps[:, None]  # [C, S]
    finite = jnp.isfinite(jnp.square(jnp.where(made, losses, 0))).all(1)
    able = mask & (rows > 0) & (steps > 0) & finite
    member = slot_members(cluster, slots) & able[None]  # [K, C]
    member = member & (member.sum(1) >= 2)[:, None]
    shortest = jnp.where(member, jnp.minimum(steps, count)[None], count).min(1)  # [K]
    counted = jnp.arange(count, dtype=jnp.int32)[None] < shortest[:, None]  # [K, S]
    losses = jnp.where(able[:, None] & made, losses, 0)
    weights = jnp.where(member, rows[None], 0).astype(losses.dtype)
    weights = weights / jnp.maximum(weights.sum(1, keepdims=True), 1)
    means = (weights[:, :, None] * losses[None]).sum(1)  # [K, S]
    away = losses[None] - means[:, None]  # [K, C, S]
    variances = (weights[:, :, None] * jnp.square(away)).sum(1) + 1e-16
    rewards = jnp.where(counted[:, None], jnp.exp(-jnp.square(away) / (2 * variances[:, None])), 0).sum(2)
    rewards = rewards / jnp.maximum(shortest, 1).astype(losses.dtype)[:, None]
    sampled = member.sum(1, dtype=jnp.int32)
    return Rewards(jnp.where(member, rewards, 0).sum(0), jnp.where(member.any(0), cluster, -1), finite, sampled)


def update_interactions(interactions: Array, found: Rewards, members: Array, ids: Array) -> tuple[Array, Array, Array]:
    """Returns W after a round, the mean squared change of each cluster `[K]`, and the sampled share a `[K]`.

    Args:
        interactions: W, `[N, N]`.
        found: of the cohort.
        members: `[K]`, clients of the clusters that take part.
        ids: of the cohort `[C]`.
    """
    dtype, num_clients = interactions.dtype, interactions.shape[0]
    reward = found.reward.astype(dtype)
    each = slot_members(found.cluster, found.sampled.shape[0]).astype(dtype)  # [K, C]
    share = found.sampled.astype(dtype) / jnp.maximum(members, 1).astype(dtype)
    sums = (each * (each * reward[None]).sum(1, keepdims=True)).sum(0)  # [C], of the own cluster
    part = reward / jnp.where(sums > 0, sums, 1)
    before = interactions[ids[:, None], ids[None]]
    pair = (found.cluster[:, None] == found.cluster[None]) & (found.cluster >= 0)[None]
    step = jnp.where(pair, (each * share[:, None]).sum(0)[:, None] * (part[:, None] - before), 0)
    to = jnp.where(found.cluster >= 0, ids, num_clients)  # out of range: written nowhere
    after = interactions.at[to[:, None], to[None]].add(step, mode="drop")
    squares = (each * jnp.square(step).sum(1)[None]).sum(1)
    return after, squares / jnp.maximum(jnp.square(found.sampled), 1).astype(dtype), share


def pair_affinity(interactions: Array, member: Array, compare: Compare, gamma: float) -> Array:
    """Returns the affinity `[N, N]` of the members `[N]` bool of a cluster; meaningless for others."""
    pair = member[:, None] & member[None]
    low = jnp.where(pair, interactions, jnp.inf).min()
    width = jnp.where(pair, interactions, -jnp.inf).max() - low
    scaled = jnp.where(pair, (interactions - low) / jnp.where(width > 0, width, 1), 0)
    scaled = scaled.T if compare == "columns" else scaled
    own = jnp.diagonal(scaled)
    # without h = i and h = j
    beside = jnp.square(own[:, None] - scaled.T) + jnp.square(scaled - own[None])
    apart = jnp.maximum(distances.l2(scaled, squared=True).astype(scaled.dtype) - beside, 0)
    return jnp.exp(-gamma * apart)


def best_labels(
    affinity: Array, member: Array, most_children: int, children: Array, min_clients: int
) -> tuple[Array, Array]:
    """Returns the labels `[N]` int32 of the best split of a cluster, and the number of its children `[]`, 1 for none.

    Args:
        affinity: `[N, N]`.
        member: `[N]` bool.
        most_children: at most.
        children: at most for this cluster `[]`.
        min_clients: members that each child must have.
    """
    count = member.sum()
    best = jnp.zeros(member.shape[0], jnp.int32), jnp.int32(1), jnp.float32(1)
    size = min(most_children + 1, member.shape[0])
    vectors = spectral.spectral_embedding(affinity, size, member)
    for number in range(2, size):
        labels = spectral.cluster_qr(vectors[:, :number])
        score = cohesion.davies_bouldin(vectors[:, 1 : number + 1], labels, number, member)
        smallest = (slot_members(labels, number) & member[None]).sum(1).min()
        better = (score < best[2]) & (smallest >= min_clients) & (number <= children) & (number < count)
        best = jax.tree.map(
            lambda new, old, better=better: jnp.where(better, new, old), (labels, jnp.int32(number), score), best
        )
    return best[0], best[1]


def dividing(
    *, compare: Compare, gamma: float, most_children: int, min_clients: int, whole_cohorts: bool
) -> Callable[[Array, Array, Array, Array, Array], Division]:
    """Returns `divide(interactions, cluster, there [N], ready [K], sampled [K]) -> division`.

    The child with a cluster's lowest client keeps its slot, and the others take the lowest free ones, in the order of
    their lowest clients. Clients that do not take part go to the largest child.

    Args:
        compare: see `pair_affinity`.
        gamma: of the affinity.
        most_children: of one cluster.
        min_clients: of each child.
        whole_cohorts: whether a cluster has at most as many children as rounds would sample all of its clients in.
    """

    def divide(interactions: Array, cluster: Array, there: Array, ready: Array, sampled: Array) -> Division:
        slots = jnp.arange(ready.shape[0], dtype=jnp.int32)
        numbers = jnp.arange(most_children, dtype=jnp.int32)

        def split(slot: Array, now: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            cluster, source, homeless = now
            inside = cluster == slot
            member = inside & there
            limit = member.sum(dtype=jnp.int32) // jnp.maximum(sampled[slot], 1) if whole_cohorts else most_children
            affinity = pair_affinity(interactions, member, compare, gamma)
            labels, children = best_labels(affinity, member, most_children, jnp.asarray(limit), min_clients)
            of_child = (labels[None] == numbers[:, None]) & member[None]  # [children, N]
            sizes, first = of_child.sum(1), jnp.where(of_child.any(1), jnp.argmax(of_child, 1), member.shape[0])
            rank = jnp.argsort(jnp.argsort(first)).astype(jnp.int32)  # of each label, by its lowest client
            largest = jnp.argmin(jnp.where(sizes == sizes.max(), rank, most_children)).astype(jnp.int32)
            free = ~occupied(cluster, slots.shape[0])
            order = jnp.argsort(jnp.where(free, slots, slots + slots.shape[0])).astype(jnp.int32)
            places = jnp.concatenate([slot[None], order])[:most_children]
            places = jnp.pad(places, (0, most_children - places.shape[0]))
            goes = (children > 1) & (free.sum(dtype=jnp.int32) >= children - 1)
            place = places[rank[jnp.where(there, labels, largest)]]  # [N]
            opened = (
                jnp.zeros_like(free)
                .at[jnp.where(goes & (numbers < children), places, slots.shape[0])]
                .set(True, mode="drop")
            )
            return (
                jnp.where(inside & goes, place, cluster),
                jnp.where(opened, slot, source),
                homeless + jnp.where(goes, 0, children - 1).astype(jnp.int32),
            )

        def step(index: Array, now: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            return jax.lax.cond(ready[index], lambda: split(slots[index], now), lambda: now)

        def divide_ready() -> tuple[Array, Array, Array]:
            return jax.lax.fori_loop(0, slots.shape[0], step, (cluster, slots, jnp.int32(0)))

        unchanged = cluster, slots, jnp.int32(0)
        found, source, homeless = jax.lax.cond(ready.any(), divide_ready, lambda: unchanged)
        needed = occupied(found, slots.shape[0]).sum(dtype=jnp.int32) + homeless
        return Division(found, source, base.doublings(needed, slots.shape[0]))

    return divide


def slot_members(cluster: Array, slots: int) -> Array:
    """Returns which clients `[M]` are in which slot, bool `[K, M]`."""
    return cluster[None] == jnp.arange(slots, dtype=jnp.int32)[:, None]
