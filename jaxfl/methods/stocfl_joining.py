"""Clients that come and go while StoCFL runs.

Zeng et al., "Stochastic Clustered Federated Learning", 2023, section 4.4. A client that joins sends Psi, and

    1. its candidate is the cluster whose representation has the largest cosine with it;
    2. if that cosine is >= tau it joins the candidate, otherwise it opens a cluster with the candidate's model.

Nothing else merges; the next rounds see to that. A client whose data have changed joins again. Members of one cluster
that leave take nothing with them but their part of its representation.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import tree
from jaxfl.data.clients import Cohort, FederatedData, Plan
from jaxfl.methods import stocfl_clusters
from jaxfl.typing import Array, Key


def joining(
    observe: Callable[..., tuple[Array, Array]], threshold: float | str, *, keep: str
) -> Callable[[Key, Any, FederatedData, Sequence[int]], tuple[Any, Array]]:
    """Returns `join(key, state, data, ids) -> (state, clusters [M])`.

    `data` is the federation with the new clients in it: as many as before, or more, the new ones last. Clients that are
    known are represented anew. Those without training rows stay in no cluster (-1).

    Args:
        observe: `(key, state, data, cohort, wanted [C]) -> (Psi [C, d], agreement [C])`.
        threshold: tau, or `"auto"`: what newcomers of a round are asked for as well.
        keep: `"clients"` or `"clusters"`, see `stocfl`.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=80, held_out=0.25)
    >>> task = jaxfl.classification(jaxfl.models.MLP(num_classes=10, hidden=(64,)), data)
    >>> method = jaxfl.methods.stocfl(task, optax.sgd(0.1))
    >>> result = jaxfl.run(method, data, rounds=2)
    >>> new = np.flatnonzero(data.held_out)
    >>> state, clusters = method.join(jax.random.key(0), result.state, data, new)
    >>> bool((state.cluster[new] == clusters).all())
    True
    """

    @jax.jit
    def enter(key: Key, state: Any, data: FederatedData, cohort: Cohort) -> tuple[Any, Array, Array]:
        count, ids = slots_of(state), cohort.ids
        able = data.train.size[ids] > 0
        psi, agreement = observe(key, state, data, cohort, able)
        size = stocfl_clusters.sizes(state.cluster, count)
        sums = sums_of(state, state.cluster, keep)
        nearest, cosine = stocfl_clusters.closest(psi, sums, size)
        state = state._replace(agreement=state.agreement.at[ids].set(agreement))
        if isinstance(threshold, str):  # "auto"
            observed = (state.cluster >= 0).at[ids].set(able)
            noise = stocfl_clusters.noise_of(state.agreement, data.train.size, observed)  # [N]
            of_clusters = stocfl_clusters.sums_by_cluster(noise[:, None], state.cluster, count)[:, 0]
            reaches = stocfl_clusters.reaches(psi, noise[ids], sums[nearest], of_clusters[nearest])
        else:
            reaches = cosine >= threshold
        apart = able & ~reaches
        free = jnp.argsort(size > 0, stable=True).astype(jnp.int32)  # free slots first
        opened = free[jnp.clip(jnp.cumsum(apart) - 1, 0, count - 1)]
        found = jnp.where(able, jnp.where(apart, opened, nearest), -1)
        candidate = tree.where(
            (size > 0).any(), tree.take(state.models, nearest), tree.repeat(state.initial, ids.shape[0])
        )
        if keep == "clients":
            known = state.representation.at[ids].set(psi)
        else:
            known = state.representation + stocfl_clusters.sums_by_cluster(psi, found, count)
        state = state._replace(
            models=tree.put(state.models, jnp.where(apart, opened, count), candidate),
            representation=known,
            cluster=state.cluster.at[ids].set(found),
        )
        return state, found, apart.sum() > (size == 0).sum()

    def join(key: Key, state: Any, data: FederatedData, ids: Sequence[int]) -> tuple[Any, Array]:
        known = np.asarray(ids, int)
        if known.ndim != 1 or not len(known) or known.min() < 0 or known.max() >= data.num_clients:
            raise ValueError(f"ids must be clients of the federation, 0 to {data.num_clients - 1}, got {ids!r}.")
        if len(np.unique(known)) < len(known):
            raise ValueError(f"ids must name every client once, got {ids!r}.")
        state = leave(_with_room(state, data.num_clients, keep), known.tolist(), keep=keep)
        while True:
            entered, clusters, overflow = enter(
                key, state, jax.device_put(data), Cohort.of(known.tolist(), Plan(chunk=1))
            )
            if not bool(overflow):
                return entered, clusters
            state = grow(state, keep=keep)

    return join


def leave(state: Any, ids: Sequence[int], *, keep: str = "clients") -> Any:
    """Returns the state without these clients, as if they had never been observed; their models' influence stays.

    Args:
        state: StoCFL's.
        ids: of the clients.
        keep: as the method's. With `"clusters"`, whose members' Psi are not known apart, a cluster's sum keeps its
            direction and shrinks by the share of its members that leave.
    """
    gone = jnp.asarray(np.asarray(ids, np.int32))
    cluster = state.cluster.at[gone].set(-1)
    if keep == "clients":
        return state._replace(cluster=cluster, representation=state.representation.at[gone].set(0))
    count = slots_of(state)
    before, after = (stocfl_clusters.sizes(c, count).astype(jnp.float32) for c in (state.cluster, cluster))
    share = (after / jnp.maximum(before, 1)).astype(state.representation.dtype)
    return state._replace(cluster=cluster, representation=state.representation * share[:, None])


def grow(state: Any, *, keep: str) -> Any:
    """Returns the state with twice the slots."""
    count = slots_of(state)
    more = tree.repeat(state.initial, count)
    models = jax.tree.map(lambda old, new: jnp.concatenate([old, new]), state.models, more)
    known = _padded(state.representation, 2 * count) if keep == "clusters" else state.representation
    return state._replace(models=models, representation=known)


def slots_of(state: Any) -> int:
    """Returns K, the number of slots."""
    return jax.tree.leaves(state.models)[0].shape[0]


def sums_of(state: Any, cluster: Array, keep: str) -> Array:
    """Returns the sums of Psi of the members of all slots `[K, d]`, by these clusters `[N]` if clients' are kept."""
    if keep == "clusters":
        return state.representation
    return stocfl_clusters.sums_by_cluster(state.representation, cluster, slots_of(state))


def _with_room(state: Any, num_clients: int, keep: str) -> Any:
    """Returns the state for at least as many clients; new ones are unobserved."""
    new = num_clients - state.cluster.shape[0]
    if new < 0:
        raise ValueError(
            f"data must hold the {state.cluster.shape[0]} clients that the state knows, got {num_clients}; new clients "
            "come last."
        )
    if not new:
        return state
    solver = state.solver._replace(cluster=jnp.pad(state.solver.cluster, (0, new)))  # one global model: slot 0
    known = _padded(state.representation, num_clients) if keep == "clients" else state.representation
    return state._replace(
        solver=solver,
        cluster=jnp.pad(state.cluster, (0, new), constant_values=-1),
        agreement=jnp.pad(state.agreement, (0, new)),
        representation=known,
    )


def _padded(rows: Array, count: int) -> Array:
    return jnp.pad(rows, ((0, count - rows.shape[0]), (0, 0)))
