"""Matrices of cosines, Euclidean and Manhattan distances between the rows of two arrays, a block of rows at a time.

Precision: products are computed in full float32 (`Precision.HIGHEST`; the default of recent GPUs rounds factors to ten
bits, which changes decisions by a threshold on a cosine). Norms are computed after division by the row's largest entry,
so that the squares of very small or large rows (late gradients, diverged models) neither underflow nor overflow.
"""

import functools
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
from jax import lax

from jaxfl.typing import Array

CompareBlocks = Callable[[Array, Array, Array, Array], Array]

BLOCK = 1024  # rows of x at a time: temporaries stay below BLOCK * d floats beside the result
SMALL_BLOCK = 256  # smaller blocks spend their time on reading rows
STEP = 16  # columns whose differences are added up before the sums are written


@functools.partial(jax.jit, static_argnames="block")
def cosine(x: Array, y: Array | None = None, *, block: int = BLOCK) -> Array:
    """Returns the cosine similarity `[N, M]` of every row of `x` with every row of `y`.

    Args:
        x: float `[N, d]`.
        y: float `[M, d]`; None compares the rows of `x` with each other, and the result is exactly symmetric with a
            diagonal of exactly 1 (0 for zero rows).
        block: rows of `x` handled at once.

    Returns:
        float32 `[N, M]` within [-1, 1]. A zero row has cosine 0 with every row, itself included: a client that did not
        move is similar to no client. The rounding error is about 1e-6, largest for large d.

    >>> cosine(jnp.array([[2.0, 0.0], [3.0, 3.0], [0.0, 0.0]])).tolist()
    [[1.0, 0.707..., 0.0], [0.707..., 1.0, 0.0], [0.0, 0.0, 0.0]]
    """
    symmetric = y is None
    x, other = _as_matrices(x, y)
    block = _block_size(block, x)
    inverse = _inverse_norm(other)[:, 0]  # [M]
    if symmetric:

        def compare(rows: Array, inverse_rows: Array, columns: Array, inverse_columns: Array) -> Array:
            unit = rows * inverse_rows[:, None]
            return jnp.clip(_precise_product(unit, columns) * inverse_columns[None], -1, 1)

        return _symmetric_matrix(compare, (x, inverse), (inverse > 0).astype(x.dtype), block)

    def row(vector: Array) -> Array:
        unit = vector * _inverse_norm(vector[None])[0]
        return jnp.dot(other, unit, precision=lax.Precision.HIGHEST) * inverse

    return jnp.clip(lax.map(row, x, batch_size=block), -1, 1)  # [N, M]


@functools.partial(jax.jit, static_argnames=("squared", "block"))
def l2(x: Array, y: Array | None = None, *, squared: bool = False, block: int = BLOCK) -> Array:
    """Returns the Euclidean distance `[N, M]` of every row of `x` from every row of `y`.

    It is computed as |x|^2 + |y|^2 - 2 x.y about a centre, by matrix products. A squared distance therefore has an
    absolute error of about 1e-7 times the squared distances of its two rows from the centre: rows that are closer to
    each other than about 3e-4 of these distances cannot be distinguished from equal rows. The centre is the mean of the
    half of `y` that is nearest to the mean of all, so that a few distant rows do not affect the precision of the
    others. A common offset of any size (models near one initial model) does not either, except for its own float32
    rounding.

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
    symmetric = y is None
    x, other = _as_matrices(x, y)
    block = _block_size(block, x)
    centre, shifted, lengths = _centred_rows(other, jnp.ones(other.shape[0], bool))
    if other.shape[0] > 2:
        centre, shifted, lengths = _centred_rows(other, lengths <= jnp.median(lengths))

    def compare(rows: Array, row_lengths: Array, columns: Array, column_lengths: Array) -> Array:
        product = _precise_product(rows, columns)
        return jnp.maximum(row_lengths[:, None] + column_lengths[None] - 2 * product, 0)

    def row(vector: Array) -> Array:
        vector = vector - centre
        return jnp.square(vector).sum() + lengths - 2 * jnp.dot(shifted, vector, precision=lax.Precision.HIGHEST)

    if symmetric:
        distances = _symmetric_matrix(compare, (shifted, lengths), jnp.zeros_like(lengths), block)
    else:
        distances = jnp.maximum(lax.map(row, x, batch_size=block), 0)  # [N, M]
    return distances if squared else jnp.sqrt(distances)


@functools.partial(jax.jit, static_argnames="block")
def l1(x: Array, y: Array | None = None, *, block: int = SMALL_BLOCK) -> Array:
    """Returns the Manhattan distance `[N, M]` of every row of `x` from every row of `y`: sums of absolute differences.

    It is not a matrix product, so it takes longer than `l2`, and a projection as in `sketch` does not preserve it. The
    differences of `STEP` columns at a time are added to the sums of a block; there are never N * M * d of them.

    Args:
        x: float `[N, d]`.
        y: float `[M, d]`; None compares the rows of `x` with each other, and the result is exactly symmetric with a
            diagonal of exactly 0.
        block: rows of `x` handled at once; their sums should fit a cache.

    Returns:
        float32 `[N, M]`, not negative.

    >>> l1(jnp.array([[0.0, 0.0], [3.0, -4.0]]), jnp.array([[0.0, 0.0]])).ravel().tolist()
    [0.0, 7.0]
    """
    symmetric = y is None
    x, other = _as_matrices(x, y)
    block = _block_size(block, x)
    if symmetric:
        nothing = jnp.zeros(x.shape[:1], x.dtype)
        return _symmetric_matrix(lambda rows, _, columns, __: _manhattan(rows, columns), (x, nothing), nothing, block)
    return lax.map(lambda vector: _manhattan(vector[None], other)[0], x, batch_size=block)  # [N, M]


def _centred_rows(rows: Array, some: Array) -> tuple[Array, Array, Array]:
    """Returns the mean `[d]` of the selected rows, all rows `[M, d]` minus it, and their squared lengths `[M]`."""
    weights = some.astype(rows.dtype)
    share = weights[None] / jnp.maximum(weights.sum(), 1)
    centre = _precise_product(share, rows.T)[0]  # [d]; as a product, because a mean over few long rows is slow on a CPU
    shifted = rows - centre[None]
    return centre, shifted, jnp.square(shifted).sum(axis=1)


def _manhattan(rows: Array, columns: Array) -> Array:
    """Returns the Manhattan distances `[n, m]` of few rows `[n, d]` from few other rows `[m, d]`."""
    steps = -(-rows.shape[1] // STEP)
    width = ((0, 0), (0, steps * STEP - rows.shape[1]))  # zeros, whose differences are 0
    x, y = (jnp.pad(part, width).T.reshape(steps, STEP, part.shape[0]) for part in (rows, columns))

    def step(total: Array, parts: tuple[Array, Array]) -> tuple[Array, None]:
        left, right = parts  # [STEP, n], [STEP, m]
        return total + sum(jnp.abs(left[i][:, None] - right[i][None]) for i in range(STEP)), None

    return lax.scan(step, jnp.zeros((rows.shape[0], columns.shape[0]), rows.dtype), (x, y))[0]


def _as_matrices(x: Array, y: Array | None) -> tuple[Array, Array]:
    """Returns `x [N, d]` and `y [M, d]`, or `x` twice if `y` is None, as float32."""
    other = x if y is None else y
    chex.assert_rank([x, other], 2)
    chex.assert_equal_shape_suffix([x, other], 1)
    return x.astype(jnp.float32), other.astype(jnp.float32)


def _block_size(block: int, x: Array) -> int:
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


def _precise_product(rows: Array, columns: Array) -> Array:
    return jnp.matmul(rows, columns.T, precision=lax.Precision.HIGHEST)


def _symmetric_matrix(compare: CompareBlocks, fields: tuple[Array, Array], diagonal: Array, block: int) -> Array:
    """Returns a symmetric matrix `[N, N]` from its upper triangle, a block of rows against a block of rows at a time.

    This needs about half of all products, and no second pass over the matrix to mirror it.

    Args:
        compare: function of the fields of two blocks of rows, which returns `[block, block]`.
        fields: a matrix `[N, d]` and a vector `[N]`.
        diagonal: `[N]`.
        block: at most this many rows at once.
    """
    count = diagonal.shape[0]
    few = max(SMALL_BLOCK, -(-count // 8))  # eight blocks compare 9 / 16 of the pairs, and more blocks gain little
    num_blocks = -(-count // min(block, few))
    block = -(-count // max(num_blocks, 1))  # equal sizes, so that little is computed twice

    def first_row(index: Array) -> Array:
        return jnp.minimum(index * block, count - block)  # the last block overlaps the block before it

    def take(start: Array) -> list[Array]:
        return [lax.dynamic_slice_in_dim(field, start, block) for field in fields]

    def fill_block_row(index: Array, matrix: Array) -> Array:
        start = first_row(index)
        rows = take(start)

        def fill_block(other_index: Array, matrix: Array) -> Array:
            other = first_row(other_index)
            values = compare(*rows, *take(other))
            matrix = lax.dynamic_update_slice(matrix, values, (start, other))
            return lax.dynamic_update_slice(matrix, values.T, (other, start))

        # The diagonal of the last block is written last, after its overlap was written from both sides.
        values = _mirror_triangle(compare(*rows, *rows), lax.dynamic_slice_in_dim(diagonal, start, block))
        matrix = lax.dynamic_update_slice(matrix, values, (start, start))
        return lax.fori_loop(index + 1, num_blocks, fill_block, matrix)

    return lax.fori_loop(0, num_blocks, fill_block_row, jnp.zeros((count, count), diagonal.dtype))


def _mirror_triangle(matrix: Array, diagonal: Array) -> Array:
    """Returns the matrix with the upper triangle mirrored, since blocks differ by rounding, and a given diagonal."""
    row = lax.broadcasted_iota(jnp.int32, matrix.shape, 0)
    column = lax.broadcasted_iota(jnp.int32, matrix.shape, 1)
    off_diagonal = jnp.where(row < column, matrix, matrix.T)
    return jnp.where(row == column, jnp.broadcast_to(diagonal[:, None], matrix.shape), off_diagonal)
