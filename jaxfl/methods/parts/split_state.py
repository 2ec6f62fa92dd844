"""What CFL keeps between two rounds: models in slots, and what every client has sent since its cluster was formed."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxfl import tree
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import takes_part
from jaxfl.methods.parts import split_tree, splitting
from jaxfl.methods.parts.split_tree import SplitTree
from jaxfl.typing import Array, Params


class CFLState(NamedTuple):
    """Slots of cluster models, and what every client has sent since its cluster was formed."""

    models: Params  # [K, ...]; a slot without clients is free
    formed: Array  # [K] int32, rounds done when the cluster was formed
    trained: Array  # [N] bool, who has trained since its cluster was formed; the two norms of others are 0
    vectors: Array  # [N, d], what clients are compared by; 0 where the update was not finite, as are its norms
    update_norm: Array  # [N] |D_i|
    layers_norm: Array  # [N] |D_i|, of the layers compared
    largest: Array  # [], the largest |D_i| of the layers ever observed
    cluster: Array  # [N] int32 slot
    splits: SplitTree | None  # for clients that are kept out of training; None where there are none
    round: Array  # [] int32


class Sent(NamedTuple):
    """What the clients of a cohort send besides their models, and what is seen of them."""

    loss: Array  # [C]
    vectors: Array  # [C, d], 0 where the update is not finite
    update_norm: Array  # [C], as well
    layers_norm: Array  # [C], as well


def one_cluster(model: Params, vector: jax.ShapeDtypeStruct, data: FederatedData, slots: int) -> CFLState:
    """Returns the state before the first round: all clients in one cluster, and nobody heard.

    Args:
        model: that all start from.
        vector: the shape `[d]` of what clients are compared by.
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
        splits=None if data.held_out is None else split_tree.root(models, vector),
        round=jnp.int32(0),
    )


def remember(state: CFLState, sent: Sent, data: FederatedData, cohort: Cohort) -> CFLState:
    """Returns the state with what the clients of a cohort have sent; who has no rows has sent nothing.

    Who has left the federation is compared with nobody any more: a last update that nobody is like would keep its
    cluster from being split for ever.
    """
    trained = cohort.mask & (data.train.size[cohort.ids] > 0)
    ids = jnp.where(trained, cohort.ids, data.num_clients)  # out of range: written nowhere
    layers_norm = state.layers_norm.at[ids].set(sent.layers_norm, mode="drop")
    update_norm = state.update_norm.at[ids].set(sent.update_norm, mode="drop")
    there = takes_part(data)
    return state._replace(
        trained=state.trained.at[ids].set(True, mode="drop"),
        vectors=state.vectors.at[ids].set(sent.vectors, mode="drop"),
        update_norm=jnp.where(there, update_norm, 0),
        layers_norm=jnp.where(there, layers_norm, 0),
        largest=jnp.maximum(state.largest, layers_norm.max()),
    )


def comparable(state: CFLState) -> Array:
    """Returns whose vectors can be compared `[N]`: those of clients whose last update has a direction."""
    return (state.update_norm > 0) & (state.layers_norm > 0)


def divided(state: CFLState, after: splitting.Division, models: Params) -> CFLState:
    """Returns the state of the next round: both halves of a split go on from one model, and are heard anew.

    Args:
        state: with what this round's clients have sent, and the models that they trained from.
        after: the clusters after the splits.
        models: `[K, ...]`, the slots' new ones.
    """
    fresh = after.opened.at[after.source].max(after.opened)  # [K], both halves of every split
    anew = fresh[after.cluster]  # [N]
    splits = state.splits
    if splits is not None:
        splits = split_tree.record(splits, after, state.cluster, state.vectors, comparable(state), state.models)
    return state._replace(
        models=tree.take(models, after.source),
        formed=jnp.where(fresh, state.round + 1, state.formed),
        trained=state.trained & ~anew,
        update_norm=jnp.where(anew, 0, state.update_norm),
        layers_norm=jnp.where(anew, 0, state.layers_norm),
        cluster=after.cluster,
        splits=splits,
        round=state.round + 1,
    )


def grow(state: CFLState) -> CFLState:
    """Returns the state with twice the slots."""
    models, formed = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), (state.models, state.formed))
    return state._replace(models=models, formed=formed, splits=None if state.splits is None else state.splits.grown())
