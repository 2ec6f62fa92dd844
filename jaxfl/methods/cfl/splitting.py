"""Splitting clusters in two, as slots: what CFL, LayerCFL and AdaCFL do between training and the next round."""

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
    source: Array  # [K] int32, the slot whose model each slot goes on with
    doublings: Array  # [] int32, how often the slots must double for all halves, see `base.doublings`

    @property
    def opened(self) -> Array:
        """Returns the slots that a new cluster has taken `[K]` bool."""
        return self.source != jnp.arange(self.source.shape[0], dtype=jnp.int32)


def no_division(cluster: Array, slots: int) -> Division:
    """Returns the clusters as they are."""
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
    """Splits every cluster that is ready in two, once.

    Args:
        similarity: `[N, N]`, symmetric.
        cluster: `[N]` int32 slots.
        comparable: `[N]` bool, whose similarities count; the other clients stay in their slot.
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
        """Returns the clusters `[N]`, the sources `[K]` and how many halves have no slot `[]` after one more split."""
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
    """Returns theorem 1's check of a split by cosines, for a known bound on the noise."""
    return lambda similarity, member, alpha_cross: gaps.is_correct_split(alpha_cross, gamma_max)


def keep_above_peers(times: float, apart: Callable[[Array], Array] = gaps.max_gamma) -> Accept:
    """Returns the check with a bound that is seen instead of known: so many times the noise among nearest peers.

    If everyone has a peer of its own group, gamma_max cannot be seen, but how far the nearest peers are apart can: the
    halves must be farther apart than that. A client without a peer, alone in its group or an attacker, is never split
    off, and keeps its cluster from being split: `keep_above` with a bound of your own does split such a cluster.

    Args:
        times: above 1.
        apart: how far two are apart by their similarity; the default is for cosines, `sqrt((1 - cosine) / 2)`.
    """
    return lambda similarity, member, alpha_cross: (
        apart(alpha_cross) > times * apart(lowest_peer_similarity(similarity, member))
    )


def keep_all(similarity: Array, member: Array, alpha_cross: Array) -> Array:
    """Keeps every split."""
    del similarity, member, alpha_cross
    return jnp.bool_(True)


def lowest_peer_similarity(similarity: Array, member: Array) -> Array:
    """Returns the similarity of the member that is least like its nearest peer, and that peer `[]`.

    Args:
        similarity: `[N, N]`.
        member: `[N]` bool; at least two.

    >>> lowest_peer_similarity(jnp.array([[1.0, 0.5, 0.1], [0.5, 1.0, 0.2], [0.1, 0.2, 1.0]]), jnp.ones(3, bool)).item()
    0.2...
    """
    pair = member[:, None] & member[None, :] & ~jnp.eye(member.shape[0], dtype=jnp.bool_)
    best = jnp.where(pair, similarity, -jnp.inf).max(1)  # [N]
    return jnp.where(member, best, jnp.inf).min()
