"""StoCFL, stochastic clustered federated learning.

Zeng, Hu, Liu, Yu, Wang and Xu, "Stochastic Clustered Federated Learning", 2023, Algorithm 1. The number of clusters is
found, not given. A client seen for the first time sends Psi(D_i), the normalised full-batch gradient at a fixed anchor
(omega_0), and is a cluster of its own. In a round, the server

    represents every cluster by the mean of its observed members' Psi          (line 9; the cosine ignores its scale)
    merges all clusters whose representations have a cosine >= tau             (lines 10-13: connected components)

and then the sampled clients i of cluster k train, from the models they were sent,

    theta_k^i: theta <- theta - eta * (grad f_i(theta) + lambda * (theta - omega_t))    (line 21)
    omega^i:   omega <- omega - eta * grad f_i(omega)                                   (line 22)
    omega_{t+1} <- mean of omega^i;    theta_k <- mean of theta_k^i over k's sampled members

The paper leaves the model of a merged cluster open ("merge"): here, as in the official code, the cluster with more
members keeps its own (ties: the lower slot). Where the official code differs: Psi is the displacement after some local
epochs, only clusters and members sampled in this round are compared, a new cluster starts from the current omega, and
omega is trained as a chain over the clients instead of in parallel.

StoCFL starts with N clusters but holds no N models: an unseen client is nowhere, and merging precedes training, so only
clusters that have been trained own a slot.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import aggregate, tree
from jaxfl.clustering import components, distances, sketch
from jaxfl.corrections import proximal_pull
from jaxfl.data.clients import Cohort, FederatedData
from jaxfl.engine import over_clients
from jaxfl.local import full_gradient, local_train
from jaxfl.methods import base
from jaxfl.methods.base import Info, Method
from jaxfl.random import Stream, key_for
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params


class StoCFLState(NamedTuple):
    """Slots of cluster models, the global model, and what the observed clients have sent of themselves."""

    anchor: Params  # omega_0: where Psi is taken, and what a new cluster starts from
    omega: Params  # the global model
    models: Params  # [K, ...] theta
    representation: Array  # [N, d] Psi, 0 for clients not observed yet
    cluster: Array  # [N] int32 slot, -1 for clients not observed yet
    round: Array  # [] int32


def stocfl(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    threshold: float = 0.5,
    proximal_weight: float = 0.05,
    local_epochs: int = 5,
    batch_size: int | None = None,
    weighting: str = "uniform",
    representation_size: int = 4096,
    slots: int = 16,
) -> Method:
    """Returns StoCFL.

    Args:
        task: what is learned; its initial model matters: PyTorch's uniform initialisation separates rotations at 0.5.
        optimizer: the local optimiser of both models.
        threshold: tau; above 1 nothing merges (Ditto), -1 merges everything at once.
        proximal_weight: lambda, the pull of the cluster models to omega.
        local_epochs: E.
        batch_size: B; None takes all of a client's rows at once.
        weighting: `"uniform"` (the official code) or `"rows"`.
        representation_size: numbers kept of each Psi; a longer one is sketched (see `clustering.sketch`), with an error
            of a cosine of about `1 / sqrt(representation_size)`.
        slots: cluster models held at first; the simulator doubles them when they run out.

    Raises:
        ValueError: an option is out of range.
    """
    aggregate.check_weighting(weighting)
    if representation_size < 1 or slots < 1:
        raise ValueError(f"representation_size and slots must be at least 1, got {representation_size} and {slots}.")
    pulled = optax.chain(proximal_pull(proximal_weight), optimizer)
    train_theta = local_train(task, pulled, local_epochs=local_epochs, batch_size=batch_size)
    train_omega = local_train(task, optimizer, local_epochs=local_epochs, batch_size=batch_size)
    gradient_of = full_gradient(task)

    def extract(key: Key, anchor: Params, data: FederatedData, client: Array) -> Array:
        """Returns Psi of one client `[d]`, of norm 1; 0 for a client without rows or whose gradient is not finite."""
        _, gradient = gradient_of(anchor, data, client)  # dropout off: the same function for every client
        psi = tree.ravel(gradient)
        short = (
            psi
            if psi.size <= representation_size
            else sketch.sketch(key_for(key, Stream.SKETCH), psi, representation_size)
        )
        norm = jnp.linalg.norm(short)
        usable = (norm > 0) & jnp.isfinite(norm)  # inf / inf would be a NaN in the sums of every cluster
        return jnp.where(usable, short / jnp.where(usable, norm, 1), 0)

    def init(key: Key, data: FederatedData) -> StoCFLState:
        model = task.init(key_for(key, Stream.INIT))
        size = min(representation_size, tree.ravel(model).size)
        return StoCFLState(
            anchor=model,
            omega=model,
            models=tree.repeat(model, slots),
            representation=jnp.zeros((data.num_clients, size), jax.tree.leaves(model)[0].dtype),
            cluster=jnp.full(data.num_clients, -1, jnp.int32),
            round=jnp.int32(0),
        )

    def observe(key: Key, state: StoCFLState, data: FederatedData, cohort: Cohort) -> Array:
        """Returns Psi of all clients `[N, d]`, with that of the cohort's new clients filled in."""

        def client(shared, client: Array, known: Array):
            key, (anchor, cluster), data = shared
            known_already = cluster[client] >= 0
            return (), jax.lax.cond(known_already, lambda: known, lambda: extract(key, anchor, data, client))

        shared = key, (state.anchor, state.cluster), data
        _, psi = over_clients(client, shared, cohort, state.representation[cohort.ids])
        ids = jnp.where(cohort.mask, cohort.ids, data.num_clients)  # padding is written nowhere
        return state.representation.at[ids].set(psi, mode="drop")

    def round(key: Key, state: StoCFLState, data: FederatedData, cohort: Cohort) -> tuple[StoCFLState, Info]:
        representation = observe(key, state, data, cohort)
        newcomer = cohort.mask & (state.cluster[cohort.ids] < 0) & (data.train.size[cohort.ids] > 0)
        order = jnp.argsort(cohort.ids)  # by id: which slot a new cluster opens must not depend on the cohort's order
        merged = merge(representation, state.cluster, cohort.ids[order], newcomer[order], threshold, _slots(state))
        start = tree.where(merged.opened, tree.repeat(state.anchor, _slots(state)), state.models)

        def client(shared, client: Array):
            key, (omega, models, cluster, round), data = shared
            client_key = key_for(key, Stream.BATCHES, round, client)
            theta = tree.take(models, jnp.maximum(cluster[client], 0))
            theta, loss = train_theta(client_key, theta, data, client, anchor=omega)
            omega, _ = train_omega(client_key, omega, data, client, anchor=omega)
            weight = aggregate.client_weight(data, client, weighting)
            count = jax.tree.leaves(models)[0].shape[0]
            return (
                aggregate.contribute(theta, weight, cluster[client], count),
                aggregate.contribute(omega, weight),
            ), loss

        shared = (key, (state.omega, start, merged.cluster, state.round), data)
        (thetas, omegas), loss = over_clients(client, shared, cohort)
        omega = tree.take(aggregate.mean(omegas, empty=tree.repeat(state.omega, 1)), 0)
        seen = base.info(
            cohort,
            loss,
            merged.cluster[cohort.ids],
            num_clusters=merged.num_clusters,
            diverged=jnp.maximum(thetas.diverged, omegas.diverged),
            up=(state.omega, state.omega),
            down=(state.omega, state.omega),
            overflow=merged.overflow,
        )
        psi_bytes = newcomer.sum().astype(jnp.float32) * tree.num_bytes(representation[0])  # sent once, when first seen
        seen = seen._replace(bytes_up=seen.bytes_up + psi_bytes)
        models = aggregate.mean(thetas, empty=start)
        return StoCFLState(
            anchor=state.anchor,
            omega=omega,
            models=models,
            representation=representation,
            cluster=merged.cluster,
            round=state.round + 1,
        ), seen

    def assign(key: Key, state: StoCFLState, data: FederatedData, cohort: Cohort) -> StoCFLState:
        """Serves clients that were never sampled by the cluster closest to their Psi (section 3.4, unseen clients)."""
        representation = observe(key, state, data, cohort)
        sums, size = cluster_sums(state.representation, state.cluster, _slots(state))
        similarity = jnp.where(size > 0, distances.cosine(representation, sums), -jnp.inf)  # [N, K]
        nearest = jnp.argmax(similarity, 1).astype(jnp.int32)
        unseen = (state.cluster < 0) & (data.train.size > 0) & (size > 0).any()
        return state._replace(cluster=jnp.where(unseen, nearest, state.cluster))

    def client_params(state: StoCFLState, ids: Array) -> Params:
        slot = state.cluster[ids]
        own = tree.take(state.models, jnp.maximum(slot, 0))
        return tree.where(slot >= 0, own, tree.repeat(state.omega, ids.shape[0]))

    def grow(state: StoCFLState) -> StoCFLState:
        more = tree.repeat(state.anchor, _slots(state))
        models = jax.tree.map(lambda old, new: jnp.concatenate([old, new]), state.models, more)
        return state._replace(models=models)

    return Method(init, round, client_params, task, assign, grow)


class Merged(NamedTuple):
    """The clusters after a merge."""

    cluster: Array  # [N] int32
    opened: Array  # [K] bool, slots that a new cluster has taken
    num_clusters: Array  # [] int32
    overflow: Array  # [] bool, some new cluster found no free slot


def merge(representation: Array, cluster: Array, ids: Array, newcomer: Array, threshold: float, slots: int) -> Merged:
    """Merges clusters and newcomers whose representations have a cosine of at least `threshold`, transitively.

    Args:
        representation: Psi of every client `[N, d]`.
        cluster: slots `[N]` before the merge, -1 for clients not observed yet.
        ids: the cohort `[C]`.
        newcomer: which of the cohort are observed for the first time `[C]`; each is a cluster of its own.
        threshold: tau.
        slots: K.

    Returns:
        The new clusters. A merged cluster keeps the slot of its largest part, ties to the lower slot; a cluster of
        newcomers alone opens the lowest free one.
    """
    sums, size = cluster_sums(representation, cluster, slots)  # [K, d], [K]
    nodes = jnp.concatenate([sums, representation[ids]])  # [K + C, d]: slots first, then newcomers
    alive = jnp.concatenate([size > 0, newcomer])
    label = components.threshold_components(distances.cosine(nodes), threshold, alive)  # [K + C], -1 if not alive
    count = nodes.shape[0]
    where = jnp.where(alive, label, count)  # dead nodes are dropped below

    # the largest slot of each component, lower slots winning ties; -1 where there are newcomers only
    order = jnp.argsort(-size, stable=True).astype(jnp.int32)  # largest slot first
    rank = jnp.argsort(order).astype(jnp.int32)
    best = jnp.full(count, slots, jnp.int32).at[where[:slots]].min(rank, mode="drop")  # [K + C]
    keeper = jnp.where(best < slots, order[jnp.minimum(best, slots - 1)], -1)

    kept = jnp.zeros(slots, bool).at[jnp.where(keeper >= 0, keeper, slots)].set(True, mode="drop")
    first = label == jnp.arange(count, dtype=jnp.int32)  # a component is named after its first node
    opens = alive & first & (keeper < 0)
    turn = jnp.cumsum(opens) - 1
    free = jnp.argsort(kept, stable=True).astype(jnp.int32)  # free slots first, in ascending order
    overflow = opens.sum() > (~kept).sum()
    slot = jnp.where(opens, free[jnp.clip(turn, 0, slots - 1)], keeper).astype(jnp.int32)  # [K + C], by component
    opened = jnp.zeros(slots, bool).at[jnp.where(opens, slot, slots)].set(True, mode="drop")

    to = slot[jnp.minimum(where, count - 1)]  # [K + C], each node's new slot
    old = jnp.where(cluster >= 0, to[jnp.maximum(cluster, 0)], -1)
    new = old.at[jnp.where(newcomer, ids, old.shape[0])].set(to[slots:], mode="drop")
    return Merged(new, opened, (kept | opened).sum().astype(jnp.int32), overflow)


def cluster_sums(representation: Array, cluster: Array, slots: int) -> tuple[Array, Array]:
    """Returns the sum of the members' Psi `[K, d]` and the number of members `[K]` of every slot."""
    member = jax.nn.one_hot(cluster, slots, dtype=representation.dtype)  # [N, K]; -1 belongs nowhere
    return jnp.matmul(member.T, representation, precision="highest"), member.sum(0).astype(jnp.int32)


def _slots(state: StoCFLState) -> int:
    """Returns K, the number of slots."""
    return jax.tree.leaves(state.models)[0].shape[0]
