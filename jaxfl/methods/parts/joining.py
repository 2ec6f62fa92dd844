"""Clients that come and go while StoCFL runs: the newcomers of a round, and those who join or leave between two.

Zeng et al., "Stochastic Clustered Federated Learning", 2023. In a round, newcomers come in as clusters of their own and
all clusters merge (Algorithm 1, lines 7-13). Between rounds (section 4.4) a client that joins sends Psi, and

    1. its candidate is the cluster whose representation has the largest cosine with it;
    2. if that cosine is >= tau it joins the candidate, otherwise it opens a cluster with the candidate's model.

Nothing else merges; the next rounds see to that. A client whose data have changed joins again. Members of one cluster
that leave take nothing with them but their part of its representation.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import tree
from jaxfl.cohort import Cohort, Plan
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Join, doublings
from jaxfl.methods.parts import merging
from jaxfl.typing import Array, Key, Params


def regrouping(
    rule: Mapping[str, Any], threshold: float | str, omega: Callable[[Any], Params]
) -> Callable[..., tuple[Any, merging.Merged]]:
    """Returns `regroup(state, rows [N], cohort, sent, newcomer [C]) -> (state, merged)`: a round up to its training.

    `sent` is what `observe` returns, see `joining`.

    Args:
        rule: options of `stocfl`: `members`, `compare`, `linkage`, `merged`, `newcomers` and `keep`.
        threshold: tau, or `"auto"`.
        omega: of a state, the current global model.
    """
    group = merging.groups(rule["linkage"], threshold)

    def regroup(
        state: Any, rows: Array, cohort: Cohort, sent: tuple[Array, Array], newcomer: Array
    ) -> tuple[Any, merging.Merged]:
        psi, agreement = sent
        order = jnp.argsort(cohort.ids)
        ids, mask, newcomer, psi = cohort.ids[order], cohort.mask[order], newcomer[order], psi[order]
        new = jnp.where(newcomer, ids, state.cluster.shape[0])  # out of range: dropped
        state = state._replace(agreement=state.agreement.at[new].set(agreement[order], mode="drop"))
        count = slots_of(state)
        size = merging.sizes(state.cluster, count)
        present = jnp.where(mask, ids, state.cluster.shape[0])
        here = jnp.zeros(state.cluster.shape, bool).at[present].set(True, mode="drop")
        sampled = jnp.where(here, state.cluster, -1)  # [N]
        represents = sampled if rule["members"] == "sampled" else state.cluster
        may_merge = merging.sizes(sampled, count) > 0 if rule["compare"] == "sampled" else size > 0
        nodes = jnp.concatenate([sums_of(state, represents, rule["keep"]), psi])  # [K + C, d]
        noise = jnp.zeros(nodes.shape[0], jnp.float32)
        if isinstance(threshold, str):  # "auto"
            observed = (state.cluster >= 0).at[new].set(True, mode="drop")
            of_clients, of_sums = _noise(state, rows, observed, represents)
            noise = jnp.concatenate([of_sums, of_clients[ids]])
        after = merging.merge(nodes, noise, size, may_merge, state.cluster, ids, newcomer, group)
        if rule["keep"] == "clients":
            known = state.representation.at[new].set(psi, mode="drop")
        else:
            known = merging.sums_by_cluster(nodes, after.to, count)
        models = state.models
        if rule["merged"] != "largest":
            joint = tree.repeat(omega(state), count)
            if rule["merged"] == "mean":
                joint = merging.mean_of_merged(models, size, after)
            models = tree.where(after.joined, joint, models)
        fresh = state.initial if rule["newcomers"] == "initial" else omega(state)
        models = tree.where(after.opened, tree.repeat(fresh, count), models)
        return state._replace(models=models, representation=known, cluster=after.cluster), after

    return regroup


def joining(observe: Callable[..., tuple[Array, Array]], threshold: float | str, *, keep: str) -> Join:
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
        size = merging.sizes(state.cluster, count)
        sums = sums_of(state, state.cluster, keep)
        nearest, cosine = merging.closest(psi, sums, size)
        state = state._replace(agreement=state.agreement.at[ids].set(agreement))
        if isinstance(threshold, str):  # "auto"
            observed = (state.cluster >= 0).at[ids].set(able)
            noise, of_sums = _noise(state, data.train.size, observed, state.cluster)
            reaches = merging.reaches(psi, noise[ids], sums[nearest], of_sums[nearest])
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
            known = state.representation + merging.sums_by_cluster(psi, found, count)
        state = state._replace(
            models=tree.put(state.models, jnp.where(apart, opened, count), candidate),
            representation=known,
            cluster=state.cluster.at[ids].set(found),
        )
        return state, found, doublings(apart.sum() + (size > 0).sum(), count)

    def join(key: Key, state: Any, data: FederatedData, ids: Sequence[int]) -> tuple[Any, Array]:
        known = np.asarray(ids, int)
        if known.ndim != 1 or not len(known) or known.min() < 0 or known.max() >= data.num_clients:
            raise ValueError(f"ids must be clients of the federation, 0 to {data.num_clients - 1}, got {ids!r}.")
        if len(np.unique(known)) < len(known):
            raise ValueError(f"ids must name every client once, got {ids!r}.")
        state = leave(_with_room(state, data.num_clients, keep), known.tolist(), keep=keep)
        while True:
            entered, clusters, overflow = enter(key, state, data.on_device(), Cohort.of(known.tolist(), Plan(chunk=1)))
            if not int(overflow):
                return entered, clusters
            for _ in range(int(overflow)):
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
    before, after = (merging.sizes(c, count).astype(jnp.float32) for c in (state.cluster, cluster))
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
    return merging.sums_by_cluster(state.representation, cluster, slots_of(state))


def _noise(state: Any, rows: Array, observed: Array, cluster: Array) -> tuple[Array, Array]:
    """Returns the noise in the squared lengths of the clients' Psi `[N]`, and of their sums by cluster `[K]`."""
    of_clients = merging.noise_of(state.agreement, rows, observed)
    return of_clients, merging.sums_by_cluster(of_clients[:, None], cluster, slots_of(state))[:, 0]


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
