"""Matrices of cosines and Euclidean distances between the rows of two arrays, a block of rows at a time.

Precision: products run in full float32 (`Precision.HIGHEST`; the default of recent GPUs rounds factors to ten bits, and
a threshold on a cosine would feel it). Norms are taken after division by the row's largest entry, so that the squares
of very small or large rows (late gradients, diverged models) neither vanish nor overflow.
"""

import functools

import chex
import jax
import jax.numpy as jnp
from jax import lax

from jaxfl.typing import Array

BLOCK = 1024  # rows of x at a time: temporaries stay below BLOCK * d floats beside the result


@functools.partial(jax.jit, static_argnames="block")
def cosine(x: Array, y: Array | None = None, *, block: int = BLOCK) -> Array:
    """Cosine similarity of every row of `x` with every row of `y`.

    Args:
        x: float `[N, d]`.
        y: float `[M, d]`; None compares the rows of `x` with each other, and the result is exactly symmetric with a
            diagonal of exactly 1 (0 for zero rows).
        block: rows of `x` handled at once.

    Returns:
        float32 `[N, M]` within [-1, 1]. A zero row has cosine 0 with every row, itself included: a client that did not
        move is similar to nobody. Rounding error about 1e-6, largest for large d.

    >>> cosine(jnp.array([[2.0, 0.0], [3.0, 3.0], [0.0, 0.0]])).tolist()
    [[1.0, 0.707..., 0.0], [0.707..., 1.0, 0.0], [0.0, 0.0, 0.0]]
    """
    x, other = _rows(x, y)
    inverse = _inverse_norm(other)[:, 0]  # [M]

    def row(vector: Array) -> Array:
        unit = vector * _inverse_norm(vector[None])[0]
        return jnp.dot(other, unit, precision=lax.Precision.HIGHEST) * inverse

    similarity = jnp.clip(lax.map(row, x, batch_size=_block(block, x)), -1, 1)  # [N, M]
    if y is None:
        similarity = _mirror(similarity, (inverse > 0).astype(similarity.dtype))
    return similarity


@functools.partial(jax.jit, static_argnames=("squared", "block"))
def l2(x: Array, y: Array | None = None, *, squared: bool = False, block: int = BLOCK) -> Array:
    """Euclidean distance of every row of `x` from every row of `y`.

    Computed as |x|^2 + |y|^2 - 2 x.y about the mean of `y`, by matrix products. A squared distance therefore has an
    absolute error of about 1e-7 times the squared spread of the rows: two rows closer than about 3e-4 of the spread
    are not told from equal ones. A common offset, however large (models near one initial model), costs nothing more
    than its own float32 rounding.

    Args:
        x: float `[N, d]`.
        y: float `[M, d]`; None compares the rows of `x` with each other, and the result is exactly symmetric with a
            diagonal of exactly 0.
        squared: return squared distances.
        block: rows of `x` handled at once.

    Returns:
        float32 `[N, M]`, not negative.

    >>> l2(jnp.array([[0.0, 0.0], [3.0, 4.0]]), jnp.array([[0.0, 0.0]])).ravel().tolist()
    [0.0, 5.0]
    """
    x, other = _rows(x, y)
    centre = other.mean(axis=0)  # [d]
    shifted = other - centre[None]
    lengths = jnp.square(shifted).sum(axis=1)  # [M]

    def row(vector: Array) -> Array:
        vector = vector - centre
        return jnp.square(vector).sum() + lengths - 2 * jnp.dot(shifted, vector, precision=lax.Precision.HIGHEST)

    distances = jnp.maximum(lax.map(row, x, batch_size=_block(block, x)), 0)  # [N, M]
    if y is None:
        distances = _mirror(distances, jnp.zeros(x.shape[0], distances.dtype))
    return distances if squared else jnp.sqrt(distances)


def _rows(x: Array, y: Array | None) -> tuple[Array, Array]:
    other = x if y is None else y
    chex.assert_rank([x, other], 2)
    chex.assert_equal_shape_suffix([x, other], 1)
    return x.astype(jnp.float32), other.astype(jnp.float32)


def _block(block: int, x: Array) -> int:
    if block < 1:
        raise ValueError(f"block must be at least 1 row, got {block}; larger blocks are faster and take more memory.")
    return min(block, max(1, x.shape[0]))


def _inverse_norm(rows: Array) -> Array:
    """Returns 1 / |row| as `[M, 1]`, and 0 for a zero row."""
    largest = jnp.abs(rows).max(axis=1, keepdims=True, initial=0)
    nonzero = ~(largest < jnp.finfo(rows.dtype).tiny)  # NaN is not zero: it must stay NaN
    scale = jnp.where(nonzero, largest, 1)
    norm = scale * jnp.sqrt(jnp.square(rows / scale).sum(axis=1, keepdims=True))
    return jnp.where(nonzero, 1 / jnp.where(nonzero, norm, 1), 0)


def _mirror(matrix: Array, diagonal: Array) -> Array:
    """Copies the upper triangle to the lower one and sets the diagonal: products of blocks may differ by a rounding."""
    row = lax.broadcasted_iota(jnp.int32, matrix.shape, 0)
    column = lax.broadcasted_iota(jnp.int32, matrix.shape, 1)
    off_diagonal = jnp.where(row < column, matrix, matrix.T)
    return jnp.where(row == column, jnp.broadcast_to(diagonal[:, None], matrix.shape), off_diagonal)
