"""Spectral clustering, and the leading coordinates of points by the eigenvectors of their inner products."""

import functools

import jax
import jax.numpy as jnp

from jaxfl.clustering.kmeans import KMeans, kmeans
from jaxfl.typing import Array, Key


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
def spectral_clustering(key: Key, affinity: Array, num_clusters: int, mask: Array | None = None) -> KMeans:
    """Returns the k-means clustering of the rows of the K leading eigenvectors of D^-1/2 A D^-1/2, each of length 1.

    D has the sums of the rows of A. Points without any affinity have the row 0.

    Args:
        key: of k-means, see `kmeans.kmeans`.
        affinity: A, float `[N, N]`, symmetric, at least 0, larger for more similar points.
        num_clusters: K, at most N.
        mask: bool `[N]`, False for absent points; None if no point is absent.

    Raises:
        ValueError: there are more clusters than points, or the affinities are not a square matrix.

    Reference: Ng, Jordan and Weiss, "On spectral clustering: analysis and an algorithm", NeurIPS 2001.

    >>> affinity = jnp.eye(4) + jnp.eye(4)[jnp.array([2, 3, 0, 1])]  # points 0 and 2 are alike, 1 and 3 are
    >>> labels = spectral_clustering(jax.random.key(0), affinity, 2).labels.tolist()
    >>> labels[0] == labels[2] != labels[1] == labels[3]
    True
    """
    if affinity.ndim != 2 or affinity.shape[0] != affinity.shape[1]:
        raise ValueError(f"affinity must be a square matrix [N, N], got shape {list(affinity.shape)}.")
    count = affinity.shape[0]
    if not 1 <= num_clusters <= count:
        raise ValueError(f"num_clusters must be from 1 to the number of points ({count}), got {num_clusters}.")
    mask = jnp.ones(count, bool) if mask is None else mask
    weights = jnp.where(mask[:, None] & mask[None], affinity.astype(jnp.result_type(float)), 0)
    degree = weights.sum(1)
    scale = jnp.where(degree > 0, 1 / jnp.sqrt(jnp.where(degree > 0, degree, 1)), 0)
    _, vectors = leading_coordinates(scale[:, None] * weights * scale[None], num_clusters)
    length = jnp.sqrt(jnp.square(vectors).sum(1, keepdims=True))
    points = vectors / jnp.where(length > 0, length, 1)
    return kmeans(key, points, num_clusters, mask=mask)
