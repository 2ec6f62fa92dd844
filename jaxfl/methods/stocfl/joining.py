"""Clients that join or leave StoCFL between two rounds; `regrouping` has the newcomers of a round.

Zeng et al., "Stochastic Clustered Federated Learning", 2023, section 4.4. A client that joins sends Psi, and

    1. its candidate is the cluster whose representation has the largest cosine with it;
    2. if that cosine is >= tau it joins the candidate, otherwise it opens a cluster with the candidate's model.

No clusters merge here; the next rounds merge them. A client with changed data joins again. A client that leaves takes
only its part of the cluster's representation with it.
"""

from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import engine, tree
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Join, doubled, doublings
from jaxfl.methods.parts import newcomers
from jaxfl.methods.stocfl import merging
from jaxfl.methods.stocfl.memory import StoCFLState, grow
from jaxfl.methods.stocfl.representation import Observe
from jaxfl.typing import Array, Key


def joining(observe: Observe, threshold: float | Literal["auto"]) -> Join:
    """Returns `join(key, state, data, ids) -> (state, clusters [M])`.

    `data` is the federation with the new clients in it: as many as before, or more, the new ones last. Known clients
    are represented anew. Clients without training rows are in no cluster (-1).

    Args:
        observe: from `representation.observing`.
        threshold: tau, or `"auto"`, as in the rounds.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=80, held_out=0.25)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> method = jaxfl.methods.stocfl(task, optax.sgd(0.1))
    >>> result = jaxfl.run(method, data, rounds=2)
    >>> new = np.flatnonzero(data.held_out)
    >>> state, clusters = method.join(jax.random.key(0), result.state, data, new)
    >>> bool((state.cluster[new] == clusters).all())
    True
    """

    @engine.jit
    def enter(key: Key, state: StoCFLState, data: FederatedData, cohort: Cohort) -> tuple[StoCFLState, Array, Array]:
        """Returns the state, the clusters `[M]`, and the times that the slots must double to hold them `[]`."""
        count, ids = state.slots, cohort.ids
        able = data.train.size[ids] > 0
        psi, agreement = observe(key, state.anchor, data, cohort, able)
        size, sums = state.sizes(), state.sums()
        candidate, cosine = merging.closest_clusters(psi, sums, size)
        state = state._replace(agreement=state.agreement.at[ids].set(agreement))
        if threshold == "auto":
            observed = (state.cluster >= 0).at[ids].set(able)
            noise, of_sums = state.noise(data.train.size, observed, state.cluster)
            reaches = merging.reaches(psi, noise[ids], sums[candidate], of_sums[candidate])
        else:
            reaches = cosine >= threshold
        apart = able & ~reaches
        free = jnp.argsort(size > 0, stable=True).astype(jnp.int32)  # free slots first
        opened = free[jnp.clip(jnp.cumsum(apart) - 1, 0, count - 1)]
        found = jnp.where(able, jnp.where(apart, opened, candidate), -1)
        start = tree.where(
            (size > 0).any(), tree.take(state.models, candidate), tree.repeat(state.initial, ids.shape[0])
        )
        state = state._replace(
            models=tree.put(state.models, jnp.where(apart, opened, count), start),
            memory=state.memory.joined(psi, found, ids),
            cluster=state.cluster.at[ids].set(found),
        )
        return state, found, doublings(apart.sum() + (size > 0).sum(), count)

    def join(key: Key, state: StoCFLState, data: FederatedData, ids: Sequence[int]) -> tuple[StoCFLState, Array]:
        cohort = newcomers.joining_cohort(ids, data)
        state = leave(add_clients(state, data), np.asarray(cohort.ids).tolist())
        data = data.on_device()
        while True:
            entered, clusters, times = enter(key, state, data, cohort)
            if not int(times):
                return entered, clusters
            state = doubled(grow, state, times)

    return join


def leave(state: StoCFLState, ids: Sequence[int]) -> StoCFLState:
    """Returns the state without the Psi of these clients; the influence of their training on the models stays.

    Where only the sum of a cluster's Psi is stored, the sum keeps its direction and shrinks by the share of the members
    that leave.

    Args:
        state: StoCFL's.
        ids: of the clients.
    """
    return _remove_clients(state, jnp.asarray(np.asarray(ids, np.int32)))


@jax.jit
def _remove_clients(state: StoCFLState, gone: Array) -> StoCFLState:
    """Returns the state without the clients `gone [M]`."""
    cluster = state.cluster.at[gone].set(-1)
    before, after = (merging.cluster_sizes(c, state.slots).astype(jnp.float32) for c in (state.cluster, cluster))
    return state._replace(cluster=cluster, memory=state.memory.left(gone, after / jnp.maximum(before, 1)))


def add_clients(state: StoCFLState, data: FederatedData) -> StoCFLState:
    """Returns the state with rows for all clients of `data`; new ones are unobserved.

    Raises:
        ValueError: the state has more clients.
    """
    new = newcomers.count_new(state.cluster, data.num_clients)
    if not new:
        return state
    return state._replace(
        solver=state.solver._replace(cluster=jnp.pad(state.solver.cluster, (0, new))),  # one global model: slot 0
        cluster=jnp.pad(state.cluster, (0, new), constant_values=-1),
        agreement=jnp.pad(state.agreement, (0, new)),
        memory=state.memory.resized(data.num_clients, state.slots),
    )
