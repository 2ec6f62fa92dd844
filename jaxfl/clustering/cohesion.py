"""Scores of clusters without true groups: how near points are to their own cluster, beside the other clusters.

Jitted, in float32, with static shapes: `labels [N]` are slots below `num_clusters`; points without a slot (-1), or out
of `mask`, are left out. Both scores are NaN unless there are at least two clusters and one of them has two points, as
in scikit-learn: singletons alone would be perfect clusters. Neither changes when all distances are multiplied by one
number, or slots are renamed. They measure the geometry of the points that they are given, and nothing else.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import ArrayLike

from jaxfl.clustering.distances import l2
from jaxfl.typing import Array


class _Clustered(NamedTuple):
    points: Array  # [N, d] float32, minus their mean; 0 of what is left out
    each: Array  # [N, K] float32, 1 where a point is in a cluster
    counts: Array  # [K] float32
    defined: Array  # [] bool


@functools.partial(jax.jit, static_argnames="num_clusters")
def silhouette(points: Array, labels: Array, num_clusters: int, mask: Array | None = None) -> Array:
    """Returns the mean silhouette `[]` of the points: 1 for compact clusters far apart, below 0 where they are mixed.

    That of a point is (b - a) / max(a, b), with a its mean distance to the others of its cluster, and b that to the
    nearest other cluster; 0 for a cluster of one, and where a = b = 0. All `N^2` distances are in memory.

    Args:
        points: `[N, d]`.
        labels: int `[N]`.
        num_clusters: K, the number of slots; empty ones, and more of them than points, change nothing.
        mask: bool `[N]`, the points that count; None is all of them.

    Reference: Rousseeuw, "Silhouettes: a graphical aid to the interpretation and validation of cluster analysis", 1987.

    >>> round(float(silhouette(jnp.array([[0.0], [1.0], [9.0], [10.0]]), jnp.array([0, 0, 1, 1]), 2)), 4)
    0.8885
    """
    found = _clustered(points, labels, num_clusters, mask)
    totals = _product(l2(found.points), found.each)  # [N, K] of the distances to each cluster
    size = (found.each * found.counts[None]).sum(1)  # [N] of the own cluster
    inside = (totals * found.each).sum(1) / jnp.maximum(size - 1, 1)
    means = totals / jnp.maximum(found.counts, 1)[None]
    outside = jnp.where((found.each > 0) | (found.counts == 0)[None], jnp.inf, means).min(1)
    largest = jnp.maximum(inside, outside)
    alone = (size < 2) | (largest == 0)
    each = jnp.where(alone, 0, (outside - inside) / jnp.where(alone, 1, largest))
    return jnp.where(found.defined, each.sum() / jnp.maximum(found.counts.sum(), 1), jnp.nan)


@functools.partial(jax.jit, static_argnames="num_clusters")
def davies_bouldin(points: Array, labels: Array, num_clusters: int, mask: Array | None = None) -> Array:
    """Returns the Davies-Bouldin index `[]`: 0 for points that are all at their centroids, higher is worse.

    The mean over clusters of the worst (S_k + S_l) / M_kl, with S_k the mean distance of a cluster's points to their
    centroid, and M_kl the distance of two centroids. Centroids that coincide make it infinite (in scikit-learn they do
    not count).

    Args:
        points: `[N, d]`.
        labels: int `[N]`.
        num_clusters: K, the number of slots; empty ones, and more of them than points, change nothing.
        mask: bool `[N]`, the points that count; None is all of them.

    Reference: Davies and Bouldin, "A cluster separation measure", 1979.

    >>> round(float(davies_bouldin(jnp.array([[0.0], [1.0], [9.0], [10.0]]), jnp.array([0, 0, 1, 1]), 2)), 4)
    0.1111
    """
    found = _clustered(points, labels, num_clusters, mask)
    there, weights = found.counts > 0, found.each / jnp.maximum(found.counts, 1)[None]
    centroids = _product(weights.T, found.points)  # [K, d]
    away = jnp.linalg.norm(found.points - _product(found.each, centroids), axis=1)
    spread = _product(weights.T, away[:, None])[:, 0]  # [K]
    # not as a product of matrices: the distance of equal centroids must be 0 up to the rounding of their sums
    apart = lax.map(lambda one: jnp.linalg.norm(centroids - one[None], axis=1), centroids)  # [K, K]
    equal = apart <= 4 * jnp.finfo(apart.dtype).eps * jnp.linalg.norm(found.points, axis=1).max(initial=0)
    ratios = jnp.where(equal, jnp.inf, (spread[:, None] + spread[None]) / jnp.where(equal, 1, apart))
    others = there[:, None] & there[None] & ~jnp.eye(num_clusters, dtype=bool)
    worst = jnp.where(others, ratios, 0).max(1)
    return jnp.where(found.defined, worst.sum() / jnp.maximum(there.astype(jnp.float32).sum(), 1), jnp.nan)


def ranked_frequencies(counts: ArrayLike) -> np.ndarray:
    """Returns the sorted class frequencies `[N, L]` of clients with class counts `[N, L]`; NaN without rows.

    Euclidean distances of these rows are, but for a factor, the 2-Wasserstein distances between the distributions of
    the clients' frequencies, so that `silhouette` and `davies_bouldin` of them are the Wasserstein-adjusted scores of
    FedGWC. What is compared is how uneven the classes of clients are, and not which classes they have: clients with
    two other classes each are at distance 0.

    Reference: Licciardi et al., "Interaction-Aware Gaussian Weighting for Clustered Federated Learning", ICML 2025; by
    its reviews, since its text was not available.

    >>> ranked_frequencies([[3, 1, 0], [0, 2, 6]]).tolist()
    [[0.0, 0.25, 0.75], [0.0, 0.25, 0.75]]
    """
    counts = np.asarray(counts, np.float64)
    with np.errstate(invalid="ignore"):
        return np.sort(counts / counts.sum(1, keepdims=True), axis=1)


def _clustered(points: Array, labels: Array, num_clusters: int, mask: Array | None) -> _Clustered:
    """Returns the points that count, and their clusters."""
    count = points.shape[0]
    there = (labels >= 0) & (labels < num_clusters) & (jnp.ones(count, bool) if mask is None else mask)
    points = jnp.where(there[:, None], points, 0).astype(jnp.float32)
    mean = points.sum(0) / jnp.maximum(there.sum(), 1).astype(jnp.float32)
    slots = jnp.arange(num_clusters, dtype=labels.dtype)
    each = ((labels[:, None] == slots[None]) & there[:, None]).astype(jnp.float32)
    counts = each.sum(0)
    clusters = (counts > 0).sum()
    defined = (clusters >= 2) & (clusters < there.sum())
    return _Clustered(jnp.where(there[:, None], points - mean[None], 0), each, counts, defined)


def _product(left: Array, right: Array) -> Array:
    return jnp.matmul(left, right, precision=lax.Precision.HIGHEST)
