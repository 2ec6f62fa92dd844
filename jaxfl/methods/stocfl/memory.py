"""The state of StoCFL, and two memories of the clients' representations Psi.

Clusters are compared by the sums of their members' Psi. `ClientMemory` stores every Psi, so that a sum can be taken
over any members; `ClusterMemory` stores the sums alone, which is less when there are many clients. Both have the same
methods.
"""

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from jaxfl import tree
from jaxfl.methods.base import slots_of
from jaxfl.methods.stocfl import merging
from jaxfl.typing import Array, Params


class ClientMemory(NamedTuple):
    """Psi of every observed client."""

    psi: Array  # [N, d], 0 for clients not observed yet

    @classmethod
    def empty(cls, psi: jax.ShapeDtypeStruct, num_clients: int, slots: int) -> Self:
        """Returns the memory without clients, for Psi of this shape `[d]`."""
        del slots
        return cls(jnp.zeros((num_clients, *psi.shape), psi.dtype))

    def sums(self, cluster: Array, slots: int) -> Array:
        """Returns the sums of the members' Psi `[K, d]` for any clusters `[N]`; -1 is no cluster."""
        return merging.sums_by_cluster(self.psi, cluster, slots)

    def merged(self, nodes: Array, to: Array, ids: Array) -> Self:
        """Returns the memory after a merge.

        Args:
            nodes: the sums of the clusters, then Psi of the cohort `[K + C, d]`.
            to: the new slot of each node `[K + C]`.
            ids: of the cohort's newcomers `[C]`; out of range for all others.
        """
        del to
        return self._replace(psi=self.psi.at[ids].set(nodes[nodes.shape[0] - ids.shape[0] :], mode="drop"))

    def joined(self, psi: Array, to: Array, ids: Array) -> Self:
        """Returns the memory after clients `ids [M]` with `psi [M, d]` have joined the slots `to [M]`."""
        del to
        return self._replace(psi=self.psi.at[ids].set(psi))

    def left(self, ids: Array, share: Array) -> Self:
        """Returns the memory without clients `ids [M]`; `share [K]` of each cluster's members stay."""
        del share
        return self._replace(psi=self.psi.at[ids].set(0))

    def resized(self, num_clients: int, slots: int) -> Self:
        """Returns the memory with room for as many clients and slots, or more of them."""
        del slots
        return self._replace(psi=_pad_zeros(self.psi, num_clients))


class ClusterMemory(NamedTuple):
    """The sum of Psi of every cluster's members; the arguments of its methods are those of `ClientMemory`."""

    psi: Array  # [K, d], summed over the members

    @classmethod
    def empty(cls, psi: jax.ShapeDtypeStruct, num_clients: int, slots: int) -> Self:
        """Returns the memory without clients, for Psi of this shape `[d]`."""
        del num_clients
        return cls(jnp.zeros((slots, *psi.shape), psi.dtype))

    def sums(self, cluster: Array, slots: int) -> Array:
        """Returns the sums `[K, d]` of the current clusters."""
        del cluster, slots
        return self.psi

    def merged(self, nodes: Array, to: Array, ids: Array) -> Self:
        """Returns the memory after a merge: the sums of merged clusters are added up."""
        del ids
        return self._replace(psi=merging.sums_by_cluster(nodes, to, self.psi.shape[0]))

    def joined(self, psi: Array, to: Array, ids: Array) -> Self:
        """Returns the memory with the clients' Psi added to the sums of their clusters."""
        del ids
        return self._replace(psi=self.psi + merging.sums_by_cluster(psi, to, self.psi.shape[0]))

    def left(self, ids: Array, share: Array) -> Self:
        """Returns the memory with every sum scaled by the share of its members that stay: single Psi are not stored."""
        del ids
        return self._replace(psi=self.psi * share.astype(self.psi.dtype)[:, None])

    def resized(self, num_clients: int, slots: int) -> Self:
        """Returns the memory with room for as many slots, or more of them."""
        del num_clients
        return self._replace(psi=_pad_zeros(self.psi, slots))


PsiMemory = ClientMemory | ClusterMemory
MEMORIES: dict[str, type[PsiMemory]] = {"clients": ClientMemory, "clusters": ClusterMemory}


class StoCFLState(NamedTuple):
    """Slots of cluster models, the global model, and the representations of the observed clients."""

    solver: Any  # the state of the method that trains omega
    initial: Params  # omega_0
    anchor: Params  # psi, where representations are taken
    models: Params  # [K, ...] theta
    memory: PsiMemory  # of Psi
    agreement: Array  # [N] of the halves of their rows, for `threshold="auto"`
    cluster: Array  # [N] int32 slot, -1 for clients not observed yet
    round: Array  # [] int32

    @property
    def slots(self) -> int:
        """Returns K."""
        return slots_of(self.models)

    def sizes(self) -> Array:
        """Returns the number of members of every slot `[K]` int32."""
        return merging.cluster_sizes(self.cluster, self.slots)

    def sums(self) -> Array:
        """Returns the sums of Psi of the members of every slot `[K, d]`."""
        return self.memory.sums(self.cluster, self.slots)

    def noise(self, rows: Array, observed: Array, cluster: Array) -> tuple[Array, Array]:
        """Returns the noise in the squared lengths of the clients' Psi `[N]`, and of their sums by cluster `[K]`.

        Args:
            rows: n `[N]`.
            observed: clients with a known agreement `[N]`.
            cluster: `[N]`; -1 is no cluster.
        """
        of_clients = merging.noise_shares(self.agreement, rows, observed)
        return of_clients, merging.sums_by_cluster(of_clients[:, None], cluster, self.slots)[:, 0]


def grow(state: StoCFLState) -> StoCFLState:
    """Returns the state with twice the slots."""
    more = tree.repeat(state.initial, state.slots)
    models = jax.tree.map(lambda old, new: jnp.concatenate([old, new]), state.models, more)
    return state._replace(models=models, memory=state.memory.resized(state.cluster.shape[0], 2 * state.slots))


def _pad_zeros(rows: Array, count: int) -> Array:
    """Returns `[M, d]` with zeros appended to `[count, d]`."""
    return jnp.pad(rows, ((0, count - rows.shape[0]), (0, 0)))
