"""Arithmetic on pytrees of parameters: what `jax.tree` and `optax.tree` leave to write."""

import jax
import jax.numpy as jnp

from jaxfl.typing import Array, Params


def take(models: Params, index: Array | int) -> Params:
    """Returns rows of a stacked tree: one model for a scalar index, models `[C, ...]` for `index [C]`.

    >>> take({"w": jnp.arange(6.0).reshape(3, 2)}, 1)["w"].tolist()
    [2.0, 3.0]
    """
    return jax.tree.map(lambda leaf: leaf[index], models)


def put(models: Params, index: Array | int, rows: Params) -> Params:
    """Returns the stacked tree with `rows` written at `index`; an index out of range writes nothing.

    >>> put({"w": jnp.zeros((3, 1))}, 2, {"w": jnp.ones(1)})["w"].ravel().tolist()
    [0.0, 0.0, 1.0]
    """
    return jax.tree.map(lambda leaf, row: leaf.at[index].set(row, mode="drop"), models, rows)


def repeat(model: Params, count: int) -> Params:
    """Returns `count` copies of a model, stacked `[count, ...]`."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (count, *leaf.shape)), model)


def where(mask: Array, left: Params, right: Params) -> Params:
    """Selects rows: `left` where `mask` holds, else `right`.

    Args:
        mask: bool, with the leading axes of every leaf: `[]` selects whole trees, `[K]` rows of stacked ones.
        left: tree of arrays `[*mask.shape, ...]`.
        right: tree of the same shapes.

    >>> where(jnp.array([True, False]), {"w": jnp.ones((2, 1))}, {"w": jnp.zeros((2, 1))})["w"].ravel().tolist()
    [1.0, 0.0]
    """
    return jax.tree.map(lambda a, b: jnp.where(along(mask, a), a, b), left, right)


def along(vector: Array, leaf: Array) -> Array:
    """Returns `vector [K]` reshaped to `[K, 1, ..., 1]` so that it broadcasts along the leading axes of `leaf`."""
    return vector.reshape(vector.shape + (1,) * (leaf.ndim - vector.ndim))


def ravel(model: Params) -> Array:
    """Returns all parameters as one vector `[d]`, leaves in the order of `jax.tree.leaves`."""
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(model)])


def num_bytes(tree: Params) -> int:
    """Returns the bytes that the arrays (or shapes) of a tree take.

    >>> num_bytes({"w": jax.ShapeDtypeStruct((10, 2), jnp.float32)})
    80
    """
    return sum(leaf.size * jnp.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))


def shapes(tree: Params) -> list[tuple[tuple[int, ...], str]]:
    """Returns the shape and dtype of every leaf, to compare two trees by."""
    return [(tuple(leaf.shape), str(leaf.dtype)) for leaf in jax.tree.leaves(tree)]
