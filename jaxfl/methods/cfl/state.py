"""The state of CFL: cluster models in slots, the clients' last reports, and the tree of splits.

A report is the vector that a client is compared by and its norms; it counts until the client's cluster is split.

The tree of splits is for clients that did not train (Sattler, Mueller and Samek, IEEE TNNLS 2020, on varying client
populations). For every split the server keeps the model of the cluster and the updates of both sides. A held-out client
starts at the root. At every split of its cluster it trains from that model, and goes to the side with updates more
similar to its own.

The paper takes the largest cosine with any client of a side, and so keeps [N, d] of every split. Here it is the cosine
with the mean of a side (in AdaCFL, the distance from it), [2, d] of every split. The mean has less noise: the side
with more clients does not win by chance. Little is lost. Clients of the two sides have a cosine of alpha_cross at most;
where that is below 0, as in a split of groups that pull a stationary model apart, every client of one side has a
negative cosine with the mean of the other side, and a positive one with that of its own, for the two sides cancel.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxfl import tree
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import takes_part
from jaxfl.methods.cfl import splitting
from jaxfl.methods.cfl.splitting import Division
from jaxfl.typing import Array, Params


class SplitTree(NamedTuple):
    """The splits so far, each at the index of the slot that it has opened.

    Slots are opened one after the other from 1 on and never freed: the indices are in the order of time.
    """

    source: Array  # [K] int32, the slot that was split; -1 for none
    models: Params  # [K, ...] that the clients had trained from
    sides: Array  # [K, 2, d], the mean vectors of the clients that stayed and of those that left

    def grown(self) -> "SplitTree":
        """Returns the tree with twice the slots."""
        models, sides = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), (self.models, self.sides))
        return SplitTree(jnp.concatenate([self.source, jnp.full_like(self.source, -1)]), models, sides)


def empty_tree(models: Params, vector: jax.ShapeDtypeStruct) -> SplitTree:
    """Returns the tree before the first split.

    Args:
        models: `[K, ...]`, of the slots.
        vector: the shape `[d]` of the vectors that clients are compared by.
    """
    slots = jax.tree.leaves(models)[0].shape[0]
    return SplitTree(jnp.full(slots, -1, jnp.int32), models, jnp.zeros((slots, 2, *vector.shape), vector.dtype))


def record_splits(
    splits: SplitTree, after: Division, cluster: Array, vectors: Array, able: Array, models: Params
) -> SplitTree:
    """Returns the tree with the splits of a round.

    Args:
        splits: the tree before the round.
        after: the clusters after the splits.
        cluster: `[N]`, before the splits.
        vectors: `[N, d]`, that clients are compared by.
        able: `[N]` bool, the clients that were compared.
        models: `[K, ...]`, that the clients trained from.
    """

    def mean(member: Array) -> Array:
        """Returns the means `[K, d]` of the members `[K, N]`."""
        count = jnp.maximum(member.sum(1, keepdims=True), 1)
        return member.astype(vectors.dtype) @ vectors / count.astype(vectors.dtype)

    def add() -> SplitTree:
        slots = jnp.arange(after.source.shape[0], dtype=jnp.int32)[:, None]
        left = (after.cluster[None, :] == slots) & able[None, :]  # [K, N]
        stayed = (cluster[None, :] == after.source[:, None]) & able[None, :] & ~left
        return SplitTree(
            source=jnp.where(after.opened, after.source, splits.source),
            models=tree.where(after.opened, tree.take(models, after.source), splits.models),
            sides=jnp.where(after.opened[:, None, None], jnp.stack([mean(stayed), mean(left)], 1), splits.sides),
        )

    return jax.lax.cond(after.opened.any(), add, lambda: splits)


def descend(
    splits: SplitTree, vector_at: Callable[[Array, Params], Array], similarity: Callable[[Array], Array]
) -> Array:
    """Returns the slot `[]` that a client comes to from the root; it stays where both sides are equally similar.

    Args:
        splits: K slots.
        vector_at: `(slot, model) -> [d]`, the client's vector after training from the model of a split.
        similarity: `[M, d] -> [M, M]`.

    >>> sides = jnp.array([[[0.0], [0.0]], [[1.0], [-1.0]], [[3.0], [1.0]]])
    >>> splits = SplitTree(jnp.array([-1, 0, 0]), {"w": jnp.zeros((3, 1))}, sides)
    >>> near = lambda rows: -jnp.abs(rows - rows.T)
    >>> [int(descend(splits, lambda slot, model: jnp.array([own]), near)) for own in (4.0, 0.5, -0.5)]
    [0, 2, 1]
    """

    def step(slot: Array, here: Array) -> Array:
        def choose() -> Array:
            own = vector_at(slot, tree.take(splits.models, slot))
            stayed, left = similarity(jnp.stack([own, *splits.sides[slot]]))[0, 1:]
            return jnp.where(left > stayed, slot, here)

        return jax.lax.cond(splits.source[slot] == here, choose, lambda: here)

    opened = (splits.source >= 0).sum(dtype=jnp.int32)
    return jax.lax.fori_loop(1, opened + 1, step, jnp.int32(0))


class CFLState(NamedTuple):
    """Slots of cluster models, and the last report of every client."""

    models: Params  # [K, ...]; a slot without clients is free
    formed: Array  # [K] int32, rounds done when the cluster was formed
    trained: Array  # [N] bool, has trained since its cluster was formed; otherwise its two norms are 0
    vectors: Array  # [N, d], that clients are compared by; 0 where the update was not finite, as are its norms
    update_norm: Array  # [N] |D_i|
    layers_norm: Array  # [N] |D_i|, of the compared layers
    largest: Array  # [], the largest |D_i| of the compared layers so far
    cluster: Array  # [N] int32 slot
    splits: SplitTree | None  # for held-out clients; None where there are none
    round: Array  # [] int32


class ClientReport(NamedTuple):
    """Losses and reports of a cohort's clients."""

    loss: Array  # [C]
    vectors: Array  # [C, d], 0 where the update is not finite
    update_norm: Array  # [C], 0 likewise
    layers_norm: Array  # [C], 0 likewise


def initial_state(model: Params, vector: jax.ShapeDtypeStruct, data: FederatedData, slots: int) -> CFLState:
    """Returns the state before the first round: all clients in one cluster, without reports.

    Args:
        model: that all start from.
        vector: the shape `[d]` of the vectors that clients are compared by.
        data: N clients.
        slots: K.
    """
    num_clients, models = data.num_clients, tree.repeat(model, slots)
    norm = jax.eval_shape(tree.norm, model)  # in the model's dtype; a sketch is float32
    return CFLState(
        models=models,
        formed=jnp.zeros(slots, jnp.int32),
        trained=jnp.zeros(num_clients, bool),
        vectors=jnp.zeros((num_clients, *vector.shape), vector.dtype),
        update_norm=jnp.zeros(num_clients, norm.dtype),
        layers_norm=jnp.zeros(num_clients, norm.dtype),
        largest=jnp.zeros((), norm.dtype),
        cluster=jnp.zeros(num_clients, jnp.int32),
        splits=None if data.held_out is None else empty_tree(models, vector),
        round=jnp.int32(0),
    )


def record_reports(state: CFLState, reports: ClientReport, data: FederatedData, cohort: Cohort) -> CFLState:
    """Returns the state with the reports of a cohort's clients; clients without rows report nothing.

    The norms of clients that have left the federation become 0, so that they are not compared: an old update that is
    similar to no other would keep its cluster from being split.
    """
    trained = cohort.mask & (data.train.size[cohort.ids] > 0)
    ids = jnp.where(trained, cohort.ids, data.num_clients)  # out of range: written nowhere
    layers_norm = state.layers_norm.at[ids].set(reports.layers_norm, mode="drop")
    update_norm = state.update_norm.at[ids].set(reports.update_norm, mode="drop")
    there = takes_part(data)
    return state._replace(
        trained=state.trained.at[ids].set(True, mode="drop"),
        vectors=state.vectors.at[ids].set(reports.vectors, mode="drop"),
        update_norm=jnp.where(there, update_norm, 0),
        layers_norm=jnp.where(there, layers_norm, 0),
        largest=jnp.maximum(state.largest, layers_norm.max()),
    )


def comparable(state: CFLState) -> Array:
    """Returns bool `[N]` for clients whose vectors can be compared: the last update has a direction."""
    return (state.update_norm > 0) & (state.layers_norm > 0)


def apply_splits(state: CFLState, after: splitting.Division, models: Params) -> CFLState:
    """Returns the state of the next round: both halves of a split go on from one model, and their reports are reset.

    Args:
        state: with the reports of this round's clients, and the models that they trained from.
        after: the clusters after the splits.
        models: `[K, ...]`, the slots' new ones.
    """
    fresh = after.opened.at[after.source].max(after.opened)  # [K], both halves of every split
    reset = fresh[after.cluster]  # [N]
    splits = state.splits
    if splits is not None:
        splits = record_splits(splits, after, state.cluster, state.vectors, comparable(state), state.models)
    return state._replace(
        models=tree.take(models, after.source),
        formed=jnp.where(fresh, state.round + 1, state.formed),
        trained=state.trained & ~reset,
        update_norm=jnp.where(reset, 0, state.update_norm),
        layers_norm=jnp.where(reset, 0, state.layers_norm),
        cluster=after.cluster,
        splits=splits,
        round=state.round + 1,
    )


def grow(state: CFLState) -> CFLState:
    """Returns the state with twice the slots."""
    models, formed = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), (state.models, state.formed))
    return state._replace(models=models, formed=formed, splits=None if state.splits is None else state.splits.grown())
