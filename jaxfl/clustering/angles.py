"""Subspaces that points span, and the angles between them.

The principal angles between two subspaces with orthonormal bases U and V are the arc cosines of the singular values of
U'V, from the smallest on. The smallest is that between the closest two directions, 0 where the subspaces share one.

Near 0 the arc cosine is steep: a rounding of float32 in the cosine, 1e-7, is an angle of 0.03 degrees. Angles below a
tenth of a degree are therefore only known to be small; others are right to a few thousandths.
"""

import functools
from collections.abc import Callable
from typing import Literal

import chex
import jax
import jax.numpy as jnp
from jax import lax

from jaxfl.schema import checked
from jaxfl.typing import Array

BLOCK_NUMBERS = 1 << 24  # of the products of a block of subspaces with all others: 64 MiB in float32
SQUARINGS = 16  # of M'M: cosines are off by 1.4e-6 at most, where the ratio of two singular values is near 1
AngleKind = Literal["smallest", "entry"]


@functools.partial(jax.jit, static_argnames="rank")
def principal_basis(rows: Array, rank: int) -> Array:
    """Returns an orthonormal basis of the `rank` directions that hold most of the rows' squared length `[F, rank]`.

    They are the leading left singular vectors of the matrix whose columns are the rows; nothing is centred. The
    eigenvectors of the smaller Gram matrix are a first guess, whose errors float32 squares; a second decomposition,
    inside of what they span, puts them right. Each vector's numbers have a sum that is not negative.

    Args:
        rows: float `[n, F]`; rows of zeros add nothing.
        rank: p. Directions that the rows do not have are columns of zeros.

    >>> principal_basis(jnp.array([[3.0, 3.0], [4.0, 4.0]]), 2).round(3).tolist()
    [[0.707..., 0.0], [0.707..., 0.0]]
    """
    chex.assert_rank(rows, 2)
    count, features = rows.shape
    few, product = min(rank, count, features), functools.partial(jnp.matmul, precision="highest")
    if count <= features:
        leading = jnp.linalg.eigh(product(rows, rows.T))[1][:, ::-1][:, :few]
        guess = product(rows.T, leading)
    else:
        guess = jnp.linalg.eigh(product(rows.T, rows))[1][:, ::-1][:, :few]
    basis = jnp.linalg.qr(guess)[0]  # [F, few]
    _, lengths, turn = jnp.linalg.svd(product(rows, basis), full_matrices=False)
    basis = product(basis, turn.T)
    there = lengths > jnp.finfo(rows.dtype).eps * max(count, features) * lengths[0]
    basis = jnp.where(there[None], jnp.where(basis.sum(0) < 0, -1, 1).astype(rows.dtype)[None] * basis, 0)
    return jnp.pad(basis, ((0, 0), (0, rank - few)))


@functools.partial(jax.jit, static_argnames="kind")
@checked
def subspace_angles(left: Array, right: Array, kind: AngleKind = "smallest") -> Array:
    """Returns the angles in degrees between two lists of subspaces `[M, N]`.

    | kind | angle between the bases U and V |
    |---|---|
    | smallest | arccos of the largest singular value of U'V: the smallest principal angle, 0 to 90 |
    | entry | the smallest arccos of an entry of U'V: between the closest two basis vectors, 0 to 180 |

    Columns of zeros are no vectors; a basis of nothing else is at the largest of these angles from all. The products
    with `right` are made for a block of `left` at a time: they are M N p^2 numbers together.

    Args:
        left: bases `[M, F, p]`.
        right: bases `[N, F, q]`.
        kind: one of the table's. The entry depends on the signs of the vectors and on the choice of a basis.

    Raises:
        ValueError: unknown kind.

    References: Bjorck and Golub, "Numerical methods for computing angles between linear subspaces", 1973.

    >>> axes = jnp.eye(3)[:, :, None]
    >>> subspace_angles(axes, jnp.array([[[1.0], [1.0], [0.0]]]) / jnp.sqrt(2.0)).round(2).ravel().tolist()
    [45.0, 45.0, 90.0]
    """
    chex.assert_rank([left, right], 3)
    cosine, farthest = COSINES[kind]
    size = right.shape[0] * left.shape[2] * right.shape[2]
    there = _nonzero_columns(right)

    def one(basis: Array) -> Array:
        products = jnp.einsum("fp,nfq->npq", basis, right, precision="highest")
        both = _nonzero_columns(basis[None])[:, :, None] & there[:, None]  # [N, p, q]
        return jnp.where(both.any((1, 2)), cosine(products, both), farthest)

    cosines = lax.map(one, left, batch_size=max(1, min(left.shape[0], BLOCK_NUMBERS // max(size, 1))))
    return jnp.degrees(jnp.arccos(jnp.clip(cosines, -1, 1)))


def _nonzero_columns(bases: Array) -> Array:
    """Returns which columns are no zeros `[N, p]`."""
    return (bases != 0).any(1)


def _largest_singular_value(products: Array, both: Array) -> Array:
    """Returns that of every matrix `[N]`; columns of zeros add none.

    M'M, squared again and again, is left with its leading eigenvector v, or a mixture of almost equal ones, and the
    value is |Mv| / |v|. Not by LAPACK: its jobs for many matrices on several CPU devices wait for each other.
    """
    del both
    multiply = functools.partial(jnp.einsum, precision="highest")

    def square(_: int, gram: Array) -> Array:
        trace = jnp.trace(gram, axis1=1, axis2=2)[:, None, None]
        gram = gram / jnp.where(trace > 0, trace, 1)
        return multiply("npq,nqr->npr", gram, gram)

    power = lax.fori_loop(0, SQUARINGS, square, multiply("nqp,nqr->npr", products, products))
    longest = jnp.argmax(jnp.diagonal(power, axis1=1, axis2=2), 1)
    vector = jnp.take_along_axis(power, longest[:, None, None], 1)[:, 0]  # [N, q]
    length = jnp.square(vector).sum(1)
    moved = jnp.square(multiply("npq,nq->np", products, vector)).sum(1)
    return jnp.sqrt(moved / jnp.where(length > 0, length, 1))


def _largest_entry(products: Array, both: Array) -> Array:
    return jnp.where(both, products, -1).max((1, 2))


COSINES: dict[AngleKind, tuple[Callable[[Array, Array], Array], float]] = {
    "smallest": (_largest_singular_value, 0.0),
    "entry": (_largest_entry, -1.0),
}
