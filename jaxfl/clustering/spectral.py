"""Spectral clustering, and the leading coordinates of points by the eigenvectors of their inner products."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from jaxfl.typing import Array


def leading_coordinates(products: Array, count: int) -> tuple[Array, Array]:
    """Returns the coordinates of points along their leading singular vectors, and the eigenvectors of their products.

    With the points as columns of G and G = U S V', the coordinates are V S, the transpose of U'G: sqrt(l_k) v_k for the
    eigenpairs (l_k, v_k) of the products G'G. No singular vector of the length of a point is needed. The points are not
    centred.

    Args:
        products: G'G, inner products of the points `[N, N]`.
        count: m, number of leading vectors; coordinates beyond N are 0.

    Returns:
        Coordinates `[N, m]` and eigenvectors `[N, m]`, the leading one first, each column up to its sign.

    >>> points = jnp.array([[2.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> jnp.abs(leading_coordinates(points @ points.T, 1)[0]).ravel().round(3).tolist()
    [2.0, 0.0, 1.0]
    """
    values, vectors = jnp.linalg.eigh(products)
    values, vectors = values[::-1][:count], vectors[:, ::-1][:, :count]
    absent = ((0, 0), (0, count - vectors.shape[1]))
    coordinates = jnp.sqrt(jnp.maximum(values, 0))[None] * vectors
    return jnp.pad(coordinates, absent), jnp.pad(vectors, absent)


@functools.partial(jax.jit, static_argnames="num_clusters")
def spectral_clustering(affinity: Array, num_clusters: int, mask: Array | None = None) -> Array:
    """Returns the clusters `[N]` int32 of points by the K leading vectors of their embedding; -1 for absent points.

    Args:
        affinity: float `[N, N]`, symmetric, at least 0, larger for more similar points; its diagonal is not used.
        num_clusters: K, at most N.
        mask: bool `[N]`, False for absent points; None if no point is absent.

    Raises:
        ValueError: there are more clusters than points, or the affinities are not a square matrix.

    >>> affinity = jnp.eye(4)[jnp.array([2, 3, 0, 1])]  # points 0 and 2 are alike, 1 and 3 are
    >>> spectral_clustering(affinity, 2).tolist() in ([0, 1, 0, 1], [1, 0, 1, 0])
    True
    """
    if affinity.ndim != 2 or affinity.shape[0] != affinity.shape[1]:
        raise ValueError(f"affinity must be a square matrix [N, N], got shape {list(affinity.shape)}.")
    count = affinity.shape[0]
    if not 1 <= num_clusters <= count:
        raise ValueError(f"num_clusters must be from 1 to the number of points ({count}), got {num_clusters}.")
    mask = jnp.ones(count, bool) if mask is None else mask
    return jnp.where(mask, cluster_qr(spectral_embedding(affinity, num_clusters, mask)), -1)


def spectral_embedding(affinity: Array, size: int, mask: Array) -> Array:
    """Returns the leading eigenvectors `[N, size]` of D^-1/2 A D^-1/2, divided by the roots of D; a constant first.

    D has the sums of the rows of A, whose diagonal counts as 0. Absent points have a row of zeros, and change no other
    one.

    Args:
        affinity: A, see `spectral_clustering`.
        size: number of vectors, at most N.
        mask: bool `[N]`, False for absent points.

    >>> affinity = jnp.kron(jnp.eye(2), jnp.ones((2, 2))) + 0.1
    >>> second = spectral_embedding(affinity, 2, jnp.ones(4, bool))[:, 1]
    >>> jnp.sign(second * second[0]).tolist()
    [1.0, 1.0, -1.0, -1.0]
    """
    pair = mask[:, None] & mask[None] & ~jnp.eye(affinity.shape[0], dtype=bool)
    weights = jnp.where(pair, affinity, 0)
    degree = weights.sum(1)
    root = jnp.sqrt(jnp.where(degree > 0, degree, 1))
    scaled = weights / (root[:, None] * root[None])
    # eigenvalues are from -1 to 1: with -2, absent points come last
    scaled = scaled - jnp.diag(jnp.where(mask, 0, 2).astype(scaled.dtype))
    vectors = jnp.linalg.eigh(scaled)[1][:, ::-1][:, :size]
    return jnp.where(mask[:, None], vectors / root[:, None], 0)


def cluster_qr(vectors: Array) -> Array:
    """Returns the clusters `[N]` int32 of the rows of an embedding, by QR with column pivoting; nothing is drawn.

    The K rows that are farthest from the span of those before them are chosen, ties to the lowest. Every row has the
    cluster of the column in which it is largest, after the rotation that brings the chosen rows nearest to the axes.
    The clusters, but for their numbers, do not depend on the signs of the vectors, nor on the basis of equal
    eigenvalues.

    Args:
        vectors: `[N, K]`, as many clusters as columns.

    Reference: Damle, Minden and Ying, "Simple, direct and efficient multi-way spectral clustering", 2019.

    >>> cluster_qr(jnp.array([[1.0, 0.1], [0.9, 0.0], [0.1, 1.0]])).tolist()
    [0, 0, 1]
    """
    count, numbers = vectors.shape[1], jnp.arange(vectors.shape[0], dtype=jnp.int32)

    def pivot(index: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        left, chosen = now
        lengths = jnp.square(left).sum(1)
        taken = (numbers[:, None] == chosen[None]).any(1)
        best = jnp.argmax(jnp.where(taken, -1, lengths)).astype(jnp.int32)
        unit = left[best] / jnp.where(lengths[best] > 0, jnp.sqrt(lengths[best]), 1)
        return left - (left * unit[None]).sum(1, keepdims=True) * unit[None], chosen.at[index].set(best)

    rows = lax.fori_loop(0, count, pivot, (vectors, jnp.full(count, -1, jnp.int32)))[1]
    left, _, right = jnp.linalg.svd(vectors[rows].T)
    rotation = jnp.matmul(left, right, precision=lax.Precision.HIGHEST)
    turned = (vectors[:, :, None] * rotation[None]).sum(1)  # few columns
    return jnp.argmax(jnp.abs(turned), axis=1).astype(jnp.int32)
