"""Principal subspaces of points, and the angles between subspaces.

The principal angles between two subspaces with orthonormal bases U and V are the arc cosines of the singular values of
U'V, in increasing order. The smallest is the angle between the closest two directions, 0 if the subspaces share one.

Near 0 the arc cosine is steep: a float32 rounding of the cosine, 1e-7, is an angle of 0.03 degrees. Angles below a
tenth of a degree are therefore only known to be small; others are correct to a few thousandths of a degree.
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

BLOCK_NUMBERS = 1 << 24  # numbers in the products of a block of subspaces with all others: 64 MiB in float32
SQUARINGS = 16  # of M'M: the error of a cosine is at most 1.4e-6, where the ratio of two singular values is near 1
AngleKind = Literal["smallest", "entry"]


@functools.partial(jax.jit, static_argnames="rank")
def principal_basis(rows: Array, rank: int) -> Array:
    """Returns an orthonormal basis `[F, rank]` of the directions with the largest squared length of the rows.

    They are the leading left singular vectors of the matrix whose columns are the rows, without centring. The
    eigenvectors of the smaller Gram matrix are a first approximation, in which float32 squares errors; a second
    decomposition within their span corrects them. The numbers of each vector have a sum that is not negative.

    Args:
        rows: float `[n, F]`; rows of zeros have no effect.
        rank: p. Missing directions are columns of zeros.

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
    present = lengths > jnp.finfo(rows.dtype).eps * max(count, features) * lengths[0]
    basis = jnp.where(present[None], jnp.where(basis.sum(0) < 0, -1, 1).astype(rows.dtype)[None] * basis, 0)
    return jnp.pad(basis, ((0, 0), (0, rank - few)))


@functools.partial(jax.jit, static_argnames="kind")
@checked
def subspace_angles(left: Array, right: Array, kind: AngleKind = "smallest") -> Array:
    """Returns the angles `[M, N]` in degrees between two lists of subspaces.

    | kind | angle between the bases U and V |
    |---|---|
    | smallest | arccos of the largest singular value of U'V: the smallest principal angle, 0 to 90 |
    | entry | the smallest arccos of an entry of U'V: between the closest two basis vectors, 0 to 180 |

    Columns of zeros are ignored; a basis of zeros only has the largest angle of its kind to every other. The products
    with `right` are computed for a block of `left` at a time, because all of them are M N p^2 numbers.

    Args:
        left: bases `[M, F, p]`.
        right: bases `[N, F, q]`.
        kind: a kind of the table. The entry depends on the signs of the vectors and on the choice of the basis.

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
    nonzero = _nonzero_columns(right)

    def angles_to_right(basis: Array) -> Array:
        products = jnp.einsum("fp,nfq->npq", basis, right, precision="highest")
        both = _nonzero_columns(basis[None])[:, :, None] & nonzero[:, None]  # [N, p, q]
        return jnp.where(both.any((1, 2)), cosine(products, both), farthest)

    cosines = lax.map(angles_to_right, left, batch_size=max(1, min(left.shape[0], BLOCK_NUMBERS // max(size, 1))))
    return jnp.degrees(jnp.arccos(jnp.clip(cosines, -1, 1)))


def _nonzero_columns(bases: Array) -> Array:
    """Returns which columns are not zero `[N, p]`."""
    return (bases != 0).any(1)


def _largest_singular_value(products: Array, both: Array) -> Array:
    """Returns the largest singular value of every matrix `[N]`.

    Repeated squaring of M'M leaves its leading eigenvector v, or a mixture of almost equal ones, and the value is
    |Mv| / |v|. LAPACK is not used: its calls for many matrices on several CPU devices wait for each other.
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
