"""Merging of StoCFL's clusters, the slots of merged clusters, and the cluster closest to a client.

Zeng et al., "Stochastic Clustered Federated Learning", 2023, Algorithm 1, lines 7-13, and the two steps of section 4.4.
The nodes of a merge are the clusters' slots, then the newcomers of a cohort, each a cluster of its own.

A threshold for any number of rows. Cosines of noisy representations are too small: those within a rotation of MNIST
are 0.35 for 50 images a client and 0.68 for 200, and no tau fits both. The agreement of two halves of a client's rows
(y_i, see `representation`) measures the share of signal in Psi_i. Pooled over all observed clients, since the estimate
of a single client is noisy,

    kappa = 2 sum_i y_i / sum_i n_i (1 - y_i),    rho_i = n_i kappa / (1 + n_i kappa)    (Spearman and Brown, 1910)

is the share of |Psi_i|^2 = 1 that is signal. Divided by lengths without noise, a cosine estimates that of the clients'
distributions (Spearman's correction for attenuation, 1904), and one threshold, `AUTO`, fits any number of rows.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxfl.clustering import components, distances
from jaxfl.clustering.agglomerate import agglomerate
from jaxfl.methods.base import doublings
from jaxfl.typing import Array

# (nodes [M, d], noise in their squared lengths [M], alive [M]) -> the smallest node of each one's group [M], or -1
Grouping = Callable[[Array, Array, Array], Array]
AUTO = 0.65, 0.1  # threshold of corrected cosines, and slack, see `agglomerate`: chosen on digits and 50 MNIST images


class Merged(NamedTuple):
    """The clusters after a merge."""

    cluster: Array  # [N] int32 slots
    to: Array  # [K + C] int32, the new slot of each node
    opened: Array  # [K] bool, slots of new clusters
    num_clusters: Array  # [] int32
    doublings: Array  # [] int32, times that the slots must double to hold all clusters, see `base.doublings`


def grouping(linkage: Literal["single", "greedy"], threshold: float | Literal["auto"]) -> Grouping:
    """Returns the function that groups nodes.

    Args:
        linkage: `"single"` groups the nodes that chains of pairs above the threshold connect; `"greedy"` merges the
            closest pair and represents it anew, until no pair reaches the threshold.
        threshold: tau, or `"auto"`, which is greedy.
    """

    def single(nodes: Array, noise: Array, alive: Array) -> Array:
        return components.threshold_components(distances.cosine(nodes), threshold, alive)

    def greedy(nodes: Array, noise: Array, alive: Array) -> Array:
        gram = jnp.matmul(nodes, nodes.T, precision="highest").astype(jnp.float32)
        limit, slack = AUTO if threshold == "auto" else (threshold, 0.0)
        return agglomerate(gram, jnp.diagonal(gram) - noise, limit, alive, slack)

    return single if linkage == "single" and threshold != "auto" else greedy


def noise_shares(agreement: Array, rows: Array, observed: Array) -> Array:
    """Returns the share of noise in |Psi_i|^2 `[N]`, 1 - rho_i; 0 for clients that are not observed.

    Args:
        agreement: y `[N]`.
        rows: n `[N]`.
        observed: bool `[N]`; clients with less than two rows, which have no halves, or with NaN do not enter kappa.

    >>> noise_shares(jnp.array([0.2, 0.4]), jnp.array([50, 50]), jnp.array([True, True])).round(3).tolist()
    [0.538..., 0.538...]
    """
    count = rows.astype(jnp.float32)
    counted = observed & (rows > 1) & jnp.isfinite(agreement)
    shared = 2 * jnp.where(counted, agreement, 0).sum()
    kappa = shared / jnp.maximum(jnp.where(counted, count * (1 - agreement), 0).sum(), 1e-9)
    return jnp.where(observed, 1 / (1 + count * jnp.maximum(kappa, 0)), 0)  # nothing in common: nothing but noise


def merge(
    nodes: Array,
    noise: Array,
    size: Array,
    compared: Array,
    cluster: Array,
    ids: Array,
    newcomer: Array,
    group: Grouping,
) -> Merged:
    """Returns the clusters after clusters and newcomers were merged.

    Args:
        nodes: the clusters' representations, then the cohort's `[K + C, d]`.
        noise: in the squared lengths of the nodes `[K + C]`, see `noise_shares`; 0 for no correction.
        size: members of each cluster `[K]`; a slot without members is free.
        compared: clusters that may merge `[K]`; the others stay as they are.
        cluster: slots of the clients before the merge `[N]`, -1 for those not observed yet.
        ids: the cohort `[C]`, ascending, so that the slots of new clusters do not depend on the order of the cohort.
        newcomer: clients of the cohort that are observed for the first time `[C]`.
        group: of `grouping`.

    Returns:
        The new clusters. A merged cluster keeps the slot of its largest part, ties to the lower slot; a cluster of
        newcomers alone opens the lowest free slot.
    """
    slots = size.shape[0]
    alive = jnp.concatenate([compared & (size > 0), newcomer])
    label = group(nodes, noise, alive)  # [K + C], -1 if not alive
    count = nodes.shape[0]
    where = jnp.where(alive, label, count)  # dead nodes are dropped below

    # the largest slot of each group, ties to the lower slot; -1 for newcomers alone
    order = jnp.argsort(-size, stable=True).astype(jnp.int32)  # largest slot first
    rank = jnp.argsort(order).astype(jnp.int32)
    best = jnp.full(count, slots, jnp.int32).at[where[:slots]].min(rank, mode="drop")  # [K + C]
    keeper = jnp.where(best < slots, order[jnp.minimum(best, slots - 1)], -1)

    taken = (size > 0) & ~compared
    taken = taken.at[jnp.where(keeper >= 0, keeper, slots)].set(True, mode="drop")
    first = label == jnp.arange(count, dtype=jnp.int32)  # a group is named after its first node
    opens = alive & first & (keeper < 0)
    turn = jnp.cumsum(opens) - 1
    free = jnp.argsort(taken, stable=True).astype(jnp.int32)  # free slots first, in ascending order
    needed = taken.sum() + opens.sum()
    slot = jnp.where(opens, free[jnp.clip(turn, 0, slots - 1)], keeper).astype(jnp.int32)  # [K + C], by group
    opened = jnp.zeros(slots, bool).at[jnp.where(opens, slot, slots)].set(True, mode="drop")

    stay = jnp.concatenate([jnp.arange(slots, dtype=jnp.int32), jnp.full(ids.shape, -1, jnp.int32)])
    to = jnp.where(alive, slot[jnp.minimum(where, count - 1)], stay)  # [K + C], each node's new slot
    old = jnp.where(cluster >= 0, to[jnp.maximum(cluster, 0)], -1)
    new = old.at[jnp.where(newcomer, ids, old.shape[0])].set(to[slots:], mode="drop")
    return Merged(new, to, opened, (taken | opened).sum().astype(jnp.int32), doublings(needed, slots))


def sums_by_cluster(vectors: Array, cluster: Array, slots: int) -> Array:
    """Returns the sum of the members' vectors `[K, d]`; -1 is no cluster."""
    member = jax.nn.one_hot(cluster, slots, dtype=vectors.dtype)  # [N, K]
    return jnp.matmul(member.T, vectors, precision="highest")


def cluster_sizes(cluster: Array, slots: int) -> Array:
    """Returns the number of members of every slot `[K]` int32."""
    return (cluster[:, None] == jnp.arange(slots, dtype=jnp.int32)[None, :]).sum(0, dtype=jnp.int32)


def closest_clusters(psi: Array, sums: Array, size: Array) -> tuple[Array, Array]:
    """Returns the cluster `[C]` closest to each `psi [C, d]`, and its cosine `[C]`; -inf if there is no cluster.

    A cluster with a sum of 0, of clients without a finite Psi, has the cosine -2 and is chosen last. With a cosine of 0
    it would get all clients that are similar to no other.

    >>> slot, cosine = closest_clusters(jnp.array([[0.0, 2.0]]), jnp.eye(2), jnp.array([1, 1]))
    >>> slot.item(), cosine.item()
    (1, 1.0)
    """
    cosine = jnp.where((sums != 0).any(1)[None, :], distances.cosine(psi, sums), -2)
    similarity = jnp.where((size > 0)[None, :], cosine, -jnp.inf)  # [C, K]
    return jnp.argmax(similarity, 1).astype(jnp.int32), similarity.max(1)


def reaches(psi: Array, noise: Array, sums: Array, noise_of_sums: Array) -> Array:
    """Returns bool `[C]`: whether each `psi [C, d]` would merge with the cluster of `sums [C, d]` by `"auto"`."""

    def pair(*parts: Array) -> Array:
        nodes, noise = jnp.stack(parts[:2]), jnp.stack(parts[2:])
        gram = jnp.matmul(nodes, nodes.T, precision="highest").astype(jnp.float32)
        return agglomerate(gram, jnp.diagonal(gram) - noise, AUTO[0], slack=AUTO[1])[1] == 0

    return jax.vmap(pair)(psi, sums, noise, noise_of_sums)


def objective(sums: Array, size: Array) -> Array:
    """Returns equation 2 `[]`: the sum of the cosines of all pairs of clusters, which merging decreases."""
    pair = jnp.triu((size > 0)[:, None] & (size > 0)[None, :], 1)
    return jnp.where(pair, distances.cosine(sums), 0).sum()
