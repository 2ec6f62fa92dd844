"""Aggregation: weighted sums of the clients' contributions by cluster, and their means.

The only place that adds up clients, divides by their weights, decides what an empty cluster keeps, and drops clients
whose model has diverged. A method returns a `Contribution` per client; the engine adds them up, chunk after chunk, into
a `Total`; `mean` turns that into models.
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct

from jaxfl import tree
from jaxfl.data.clients import FederatedData
from jaxfl.schema import checked
from jaxfl.server.flight_context import active_flight
from jaxfl.server.wire_context import active_wire
from jaxfl.typing import Array, Params

Weighting = Literal["rows", "uniform"]


@struct.dataclass
class Contribution:
    """The terms that one client adds to the server's sums."""

    values: Params  # one model
    weight: Array  # [] float; or [K], a weight in each of the sums
    cluster: Array  # [] int32, which sum it goes to; out of range adds nothing. Not looked at where there are K weights
    num_clusters: int = struct.field(pytree_node=False, default=1)
    start: Params | None = None  # what the client has received in the place of the values, where that is used


@struct.dataclass
class Total:
    """Sums over clients, by cluster."""

    values: Params  # [K, ...] weighted sums
    weight: Array  # [K] float
    diverged: Array  # [] int32, clients left out because their values were not finite, see `tree.is_finite`
    # of a wire with noise, and of asynchronous rounds: the values are sums of updates, the weight is their denominator
    relative: bool = struct.field(pytree_node=False, default=False)


def is_contribution(node: Any) -> bool:
    """Returns whether a node of a tree is what one client adds: what `jax.tree.map` is to stop at."""
    return isinstance(node, Contribution)


def contribute(
    values: Params, weight: Array, cluster: Array | int = 0, num_clusters: int = 1, *, start: Any = None
) -> Contribution:
    """Returns a client's contribution to the sum of its cluster.

    Args:
        values: a model, or an update.
        weight: `[]`, in the sum.
        cluster: `[]`, which sum it is added to.
        num_clusters: K.
        start: the model that the client has received in the place of `values`, from which a wire (see `jaxfl.wire`)
            and asynchronous rounds (see `jaxfl.clock.asynchronous`) take the update; None, also in the place of a part
            of `values`, if they are an update themselves, such as a gradient. Elsewhere it is not used.
    """
    start = None if active_wire() is None and active_flight() is None else start
    return Contribution(values, weight, jnp.asarray(cluster, jnp.int32), num_clusters, start)


def contribute_to_all(values: Params, weights: Array, *, start: Any = None) -> Contribution:
    """Returns a client's contribution to the sum of every cluster, with a weight `[K]` in each."""
    count = weights.shape[0]
    return contribute(values, weights[0] if count == 1 else weights, 0, count, start=start)


@checked
def client_weight(data: FederatedData, client: Array, weighting: Weighting) -> Array:
    """Returns a client's weight in an average: its training rows, or 1; a client without rows weighs nothing.

    Of a federation with `client_weights`, these take the place of the numbers of rows.

    Args:
        data: the federation.
        client: its id `[]`, or ids of any shape.
        weighting: `"rows"` or `"uniform"`.

    >>> from jaxfl.data import synthetic
    >>> data = synthetic.clustered_linear(num_clients=4, num_groups=2, rows=5)
    >>> float(client_weight(data, jnp.int32(0), "rows")), float(client_weight(data, jnp.int32(0), "uniform"))
    (5.0, 1.0)
    """
    size = jnp.asarray(data.train.size)[client]
    if weighting == "rows" and data.client_weights is not None:
        return jnp.where(size > 0, jnp.asarray(data.client_weights, jnp.float32)[client], 0)
    return (size if weighting == "rows" else (size > 0)).astype(jnp.float32)


def empty_total(contribution: Contribution) -> Total:
    """Returns the sum of no clients, for contributions of this shape (arrays or shapes of one client)."""
    clusters = contribution.num_clusters
    return Total(
        values=jax.tree.map(lambda leaf: jnp.zeros((clusters, *leaf.shape), leaf.dtype), contribution.values),
        weight=jnp.zeros((clusters,), contribution.weight.dtype),
        diverged=jnp.zeros((), jnp.int32),
    )


def add_one(total: Total, one: Contribution, mask: Array) -> Total:
    """Adds one client: into the one slot of its cluster, so that K clusters cost no more than one; or into all of them.

    Args:
        total: sums so far.
        one: a client's contribution.
        mask: [] bool, False for padding.
    """
    one, diverged = guarded(one, mask)
    slot = jnp.clip(one.cluster, 0, one.num_clusters - 1)

    def add_to_all(sums: Array, value: Array) -> Array:
        return sums + tree.along(one.weight.astype(value.dtype), sums) * value[None]

    if one.weight.ndim:
        values = jax.tree.map(add_to_all, total.values, one.values)
        return Total(values, total.weight + one.weight, total.diverged + diverged)

    def add(sums: Array, value: Array) -> Array:
        # a slice read and written back, which XLA does in place; a scatter is a loop of its own on the CPU
        old = jax.lax.dynamic_index_in_dim(sums, slot, keepdims=True)
        return jax.lax.dynamic_update_index_in_dim(sums, old + one.weight.astype(value.dtype) * value[None], slot, 0)

    return Total(
        values=jax.tree.map(add, total.values, one.values),
        weight=total.weight.at[slot].add(one.weight),
        diverged=total.diverged + diverged,
    )


def add_many(total: Total, many: Contribution, mask: Array) -> Total:
    """Adds a chunk of clients, stacked `[c, ...]`, by a product with the matrix of their weights.

    Not `segment_sum`: float32 scatter-add into few slots is thousands of times slower on CUDA with jaxlib 0.10.2-0.11.0
    (jax issue 38806), and it adds in no fixed order, so two runs would differ.

    Args:
        total: sums so far.
        many: contributions `[c, ...]`.
        mask: `[c]` bool, False for padding.
    """
    many, diverged = jax.vmap(guarded)(many, mask)
    if many.weight.ndim == 2:
        weights = many.weight  # [c, K]
    else:
        weights = jax.nn.one_hot(many.cluster, many.num_clusters, dtype=many.weight.dtype) * many.weight[:, None]

    def add(sums: Array, values: Array) -> Array:
        flat = values.reshape(values.shape[0], -1)  # [c, d]
        added = jnp.matmul(weights.T.astype(flat.dtype), flat, precision="highest")  # [K, d]
        return sums + added.reshape(sums.shape)

    return Total(
        values=jax.tree.map(add, total.values, many.values),
        weight=total.weight + weights.sum(0),
        diverged=total.diverged + diverged.sum(dtype=jnp.int32),
    )


def mean(total: Total, empty: Params) -> Params:
    """Returns the weighted mean of each cluster.

    Args:
        total: sums by cluster.
        empty: models `[K, ...]` that clusters without any weight keep: those that the clients have received, or 0 where
            they contribute updates.

    >>> total = Total({"w": jnp.array([[6.0], [0.0]])}, jnp.array([3.0, 0.0]), jnp.int32(0))
    >>> mean(total, {"w": jnp.array([[9.0], [9.0]])})["w"].ravel().tolist()
    [2.0, 9.0]
    """
    if total.relative:
        step = divide(total.values, total.weight, jax.tree.map(jnp.zeros_like, empty))
        return jax.tree.map(jnp.add, empty, step)
    return divide(total.values, total.weight, empty)


def cohort_mean(total: Total) -> Params:
    """Returns each cluster's sum divided by the weight of the whole cohort: IFCA's gradient averaging divides so."""
    zeros = jax.tree.map(jnp.zeros_like, total.values)
    return divide(total.values, jnp.broadcast_to(total.weight.sum(), total.weight.shape), zeros)


def divide(values: Params, weight: Array, empty: Params) -> Params:
    """Returns `values [K, ...] / weight [K]`, and rows of `empty` where the weight is 0."""
    filled = weight > 0
    safe = jnp.where(filled, weight, 1)
    ratio = jax.tree.map(lambda leaf: leaf / tree.along(safe, leaf).astype(leaf.dtype), values)
    return tree.where(filled, ratio, empty)


def guarded(one: Contribution, mask: Array) -> tuple[Contribution, Array]:
    """Returns the contribution, zeroed if it must not count (padding, weightless, not finite), and if it diverged."""
    finite = tree.is_finite(one.values)
    wanted = mask & (one.weight > 0).any() & (one.cluster >= 0) & (one.cluster < one.num_clusters)
    keep = wanted & finite
    values = jax.tree.map(lambda leaf: jnp.where(keep, leaf, jnp.zeros((), leaf.dtype)), one.values)
    weight = jnp.where(keep, one.weight, jnp.zeros((), one.weight.dtype))
    return dataclasses.replace(one, values=values, weight=weight), (wanted & ~finite).astype(jnp.int32)
