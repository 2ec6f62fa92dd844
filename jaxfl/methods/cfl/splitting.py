"""Division of clusters in two, in slots, and the checks of a split (CFL, LayerCFL and AdaCFL)."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxfl.clustering import gaps
from jaxfl.clustering.linkage import Bipartition, bipartition
from jaxfl.methods.base import doublings
from jaxfl.typing import Array

Accept = Callable[[Array, Array, Array], Array]


class Division(NamedTuple):
    """The clusters after some of them were split."""

    cluster: Array  # [N] int32 slot
    source: Array  # [K] int32, the slot that each slot takes its model from
    doublings: Array  # [] int32, times that the slots must double to hold all halves, see `base.doublings`

    @property
    def opened(self) -> Array:
        """Returns the slots of new clusters `[K]` bool."""
        return self.source != jnp.arange(self.source.shape[0], dtype=jnp.int32)


def no_division(cluster: Array, slots: int) -> Division:
    """Returns the division that leaves the clusters as they are."""
    return Division(cluster, jnp.arange(slots, dtype=jnp.int32), jnp.int32(0))


def split(
    similarity: Array,
    cluster: Array,
    comparable: Array,
    ready: Array,
    *,
    linkage: Bipartition,
    accept: Accept,
) -> Division:
    """Returns the clusters after every cluster that is ready was split in two, once.

    Args:
        similarity: `[N, N]`, symmetric.
        cluster: `[N]` int32 slots.
        comparable: `[N]` bool, clients with similarities that count; the others stay in their slot.
        ready: `[K]` bool, the slots to split.
        linkage: see `clustering.linkage.bipartition`.
        accept: `(similarity, member [N], alpha_cross []) -> []` bool, whether a split is kept.

    Returns:
        The half without the cluster's lowest client takes the lowest free slot.

    >>> blocks = jnp.kron(jnp.eye(2), jnp.ones((2, 2)))
    >>> everyone, first = jnp.ones(4, bool), jnp.array([True, False, False])
    >>> after = split(blocks, jnp.zeros(4, jnp.int32), everyone, first, linkage="single", accept=keep_above(0.5))
    >>> after.cluster.tolist(), after.source.tolist()
    ([0, 0, 1, 1], [0, 0, 2])
    """
    slots = jnp.arange(ready.shape[0], dtype=jnp.int32)

    def halve(slot: Array, now: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        """Returns the clusters `[N]`, the sources `[K]` and the number of halves without a slot `[]` after a split."""
        cluster, source, homeless = now
        member = (cluster == slot) & comparable
        side, alpha_cross = bipartition(similarity, member, linkage=linkage)
        wanted = side.any() & accept(similarity, member, alpha_cross)
        free = ~occupied(cluster, ready.shape[0])
        new = jnp.argmax(free).astype(jnp.int32)
        goes = wanted & free.any()
        return (
            jnp.where(side & goes, new, cluster),
            jnp.where((slots == new) & goes, slot, source),
            homeless + (wanted & ~free.any()).astype(jnp.int32),
        )

    def step(index: Array, now: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        return jax.lax.cond(ready[index], lambda: halve(slots[index], now), lambda: now)

    after, source, homeless = jax.lax.fori_loop(0, ready.shape[0], step, (cluster, slots, jnp.int32(0)))
    needed = occupied(after, ready.shape[0]).sum(dtype=jnp.int32) + homeless
    return Division(after, source, doublings(needed, ready.shape[0]))


def occupied(cluster: Array, slots: int) -> Array:
    """Returns the slots with clients in them `[K]` bool."""
    return (cluster[:, None] == jnp.arange(slots, dtype=jnp.int32)[None, :]).any(0)


def keep_above(gamma_max: float) -> Accept:
    """Returns the check of theorem 1 for a split by cosines, with a known bound on the noise."""
    return lambda similarity, member, alpha_cross: gaps.is_correct_split(alpha_cross, gamma_max)


def keep_above_peers(times: float, apart: Callable[[Array], Array] = gaps.max_gamma) -> Accept:
    """Returns the check with a measured bound: `times` the distance between nearest peers.

    gamma_max cannot be measured, but the distance between nearest peers can, if every client has a peer of its group:
    the halves must be farther apart than that. A client without a peer, alone in its group or an attacker, is never
    split off, and keeps its cluster from being split; `keep_above` with a bound of your own splits such a cluster.

    Args:
        times: above 1.
        apart: distance of two clients by their similarity; the default is for cosines, `sqrt((1 - cosine) / 2)`.
    """
    return lambda similarity, member, alpha_cross: (
        apart(alpha_cross) > times * apart(lowest_peer_similarity(similarity, member))
    )


def keep_all(similarity: Array, member: Array, alpha_cross: Array) -> Array:
    """Returns True: every split is kept."""
    del similarity, member, alpha_cross
    return jnp.bool_(True)


def lowest_peer_similarity(similarity: Array, member: Array) -> Array:
    """Returns the lowest similarity `[]` between a member and its nearest peer.

    Args:
        similarity: `[N, N]`.
        member: `[N]` bool; at least two.

    >>> lowest_peer_similarity(jnp.array([[1.0, 0.5, 0.1], [0.5, 1.0, 0.2], [0.1, 0.2, 1.0]]), jnp.ones(3, bool)).item()
    0.2...
    """
    pair = member[:, None] & member[None, :] & ~jnp.eye(member.shape[0], dtype=jnp.bool_)
    best = jnp.where(pair, similarity, -jnp.inf).max(1)  # [N]
    return jnp.where(member, best, jnp.inf).min()
