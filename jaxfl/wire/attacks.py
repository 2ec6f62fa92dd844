"""Colluding attacks: what attackers send in place of their updates, who know those of all honest clients.

The threat model is omniscient: in every round the attackers of a cluster know the updates of its honest members as the
server receives them, after the channel, and act together. No real attacker knows more, and most know less. Each attack
is computed by cluster, of the clients of the round; of n members f attack, m and s are mean and standard deviation
(population) of the n - f honest updates, coordinate by coordinate, and c is the `scale`:

    alie      m - c z s, z = Phi^-1((n - f - k) / (n - f)), at least 0, with k = max(floor(n / 2 + 1) - f, 1) honest
              members that are to be nearer to the attackers than to m         Baruch et al., NeurIPS 2019
    ipm       -c m                                                             Xie et al., UAI 2019
    mimic     the update of the honest member with the lowest number (times c), who so counts f times more
                                                                               Karimireddy et al., ICLR 2022
    same      c in every entry                                                 Li et al., "RSA", AAAI 2019
    minmax    m - c g s, g the largest number with which it is as near to every honest update as the two of them that
              are farthest apart                                               Shejwalkar and Houmansadr, NDSS 2021
    replace   c n / f times their own updates, trained on a backdoor (see `jaxfl.data.conditions`), whose mean with
              n - f updates near 0 replaces the model                          Bagdasaryan et al., AISTATS 2020

Mimic's authors choose the client that is mimicked by the directions in which updates vary; here it is a client that
stays the same whenever it is sampled. In a cluster without honest members attackers send their own updates, and so they
do in place of anything that is not finite.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxfl.clustering import centres
from jaxfl.data.clients import FederatedData
from jaxfl.data.conditions import COLLUDING
from jaxfl.typing import Array


class Members(NamedTuple):
    """The updates of a round in K sums, and whose they are."""

    updates: Array  # [C, d]
    labels: Array  # [C] int32, which sum an update is in; -1 for none
    attacker: Array  # [C] bool
    ids: Array  # [C] int32 of the clients
    num_clusters: int

    @property
    def honest(self) -> Array:
        """Returns the sums of honest members `[C]` int32, -1 of the others."""
        return jnp.where(self.attacker, -1, self.labels)

    @property
    def attacking(self) -> Array:
        """Returns the sums of attackers `[C]` int32, -1 of the others."""
        return jnp.where(self.attacker, self.labels, -1)

    def mean(self) -> Array:
        """Returns the mean of the honest updates of each sum `[K, d]`, 0 without one."""
        return centres.mean(self.updates, self.honest, self.zeros())

    def deviation(self) -> Array:
        """Returns the standard deviation of the honest updates of each sum `[K, d]`, 0 without one."""
        away = self.updates - self.mean()[jnp.maximum(self.labels, 0)]
        return jnp.sqrt(centres.mean(jnp.square(away), self.honest, self.zeros()))

    def zeros(self) -> Array:
        """Returns 0 for every sum `[K, d]`."""
        return jnp.zeros((self.num_clusters, self.updates.shape[1]), self.updates.dtype)


Forgery = Callable[[Members, Array], Array]


def alie(members: Members, scale: Array) -> Array:
    """Returns what attackers send in each sum `[K, d]`: the mean less a few standard deviations."""
    honest, attackers = _sizes(members)
    nearer = jnp.maximum((honest + attackers) // 2 + 1 - attackers, 1)
    z = jnp.maximum(jax.scipy.special.ndtri(_ratio(jnp.maximum(honest - nearer, 0), honest, members.updates)), 0)
    return members.mean() - scale * z[:, None] * members.deviation()


def ipm(members: Members, scale: Array) -> Array:
    """Returns what attackers send in each sum `[K, d]`: the reversed mean, so that the product with it is negative."""
    return -scale * members.mean()


def mimic(members: Members, scale: Array) -> Array:
    """Returns what attackers send in each sum `[K, d]`: the update of one honest member."""
    clusters = jnp.arange(members.num_clusters, dtype=members.labels.dtype)
    number = jnp.where(members.honest[None] == clusters[:, None], members.ids[None], jnp.iinfo(jnp.int32).max)
    return scale * members.updates[number.argmin(1)]  # [K, C] to [K]


def same(members: Members, scale: Array) -> Array:
    """Returns what attackers send in each sum `[K, d]`: one number in every entry."""
    return jnp.full_like(members.zeros(), scale)


def minmax(members: Members, scale: Array) -> Array:
    """Returns what attackers send in each sum `[K, d]`: as far from the mean as honest updates are from each other.

    Of |m - g s - x_i| = D the root g is that of a quadratic, and the smallest root of all honest i is the largest g.
    """
    mean, deviation, honest = members.mean(), members.deviation(), members.honest
    slot = jnp.maximum(members.labels, 0)

    def widest(index: Array) -> Array:  # of differences: products would lose small distances
        square = jnp.square(members.updates - members.updates[index][None]).sum(1)
        return jnp.where((honest == honest[index]) & (honest >= 0), square, 0).max()

    squares = jax.lax.map(widest, jnp.arange(honest.shape[0]))  # [C]
    of_cluster = honest[:, None] == jnp.arange(members.num_clusters, dtype=honest.dtype)[None]  # [C, K]
    diameter = jnp.where(of_cluster, squares[:, None], 0).max(0)  # [K] squared
    away = mean[slot] - members.updates
    along = (away * deviation[slot]).sum(1)
    rest = jnp.maximum(diameter[slot] - jnp.square(away).sum(1), 0)
    length = jnp.square(deviation).sum(1)  # [K]
    safe = jnp.where(length > 0, length, 1)[slot]
    root = (along + jnp.sqrt(jnp.square(along) + safe * rest)) / safe
    largest = jnp.where(of_cluster, root[:, None], jnp.inf).min(0)  # [K]
    moved = jnp.where(length > 0, largest, 0)[:, None] * deviation
    return mean - scale * moved


FORGERIES: dict[str, Forgery] = {"alie": alie, "ipm": ipm, "mimic": mimic, "same": same, "minmax": minmax}


class Collusion(NamedTuple):
    """The colluding attackers of a federation."""

    kind: str  # one of `COLLUDING`
    attacker: Array  # [N] bool
    scale: Array  # [] float32

    def forge(self, updates: Array, labels: Array, ids: Array, num_clusters: int) -> tuple[Array, Array]:
        """Returns the updates `[C, d]` of a cohort with those of attackers forged, and whose were `[C]` bool.

        Args:
            updates: as the server receives them without an attack.
            labels: `[C]` int32, which sum each is in; -1 for none.
            ids: `[C]` int32 of the clients.
            num_clusters: K.
        """
        members = Members(updates, labels, self.attacker[ids], ids, num_clusters)
        scale = self.scale.astype(updates.dtype)
        honest, attackers = _sizes(members)
        slot = jnp.maximum(labels, 0)
        if self.kind == "replace":
            factor = _ratio(honest + attackers, attackers, updates)
            forged = scale * factor[slot][:, None] * updates
        else:
            forged = FORGERIES[self.kind](members, scale)[slot]
        forges = (members.attacking >= 0) & (honest > 0)[slot] & jnp.isfinite(forged).all(1)
        return jnp.where(forges[:, None], forged, updates), forges


def collusion_of(data: FederatedData) -> Collusion | None:
    """Returns the colluding attackers of a federation; None where there is no such attack."""
    if data.attack is None or data.attack.kind not in COLLUDING:
        return None
    return Collusion(data.attack.kind, jnp.asarray(data.attack.attacker), jnp.asarray(data.attack.scale))


def _sizes(members: Members) -> tuple[Array, Array]:
    """Returns the numbers of honest members and of attackers in each sum `[K]` int32."""
    count = members.num_clusters
    return centres.counts(members.honest, count), centres.counts(members.attacking, count)


def _ratio(count: Array, of: Array, like: Array) -> Array:
    """Returns the ratio of two counts in the type of an array; of none the count itself."""
    return count.astype(like.dtype) / jnp.maximum(of, 1).astype(like.dtype)
