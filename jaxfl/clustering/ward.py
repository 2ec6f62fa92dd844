"""Clusters of points by Ward's linkage whose number is chosen by the silhouette."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from jaxfl.clustering.cohesion import silhouette
from jaxfl.clustering.distances import l2
from jaxfl.clustering.linkage import cut_by_number, linkage
from jaxfl.typing import Array


@functools.partial(jax.jit, static_argnames="most")
def ward_by_silhouette(points: Array, most: int, *, mask: Array | None = None, gain: float = 1.1) -> Array:
    """Returns the clusters `[N]` int32 of 2 to `most` clusters of Ward's linkage; -1 for absent points.

    The number starts at 2, and is raised to each larger one whose mean silhouette is more than `gain` times that of the
    number so far. As many clusters as points, whose silhouette says nothing, are not tried: of fewer than three points
    all are in one cluster.

    Args:
        points: `[N, d]`.
        most: the largest number of clusters.
        mask: bool `[N]`, False for absent points; None if no point is absent.
        gain: the factor.

    >>> points = jnp.array([[0.9, 1.4], [1.0, 1.5], [0.7, 0.8], [0.8, 0.9]])
    >>> ward_by_silhouette(points, 15).tolist()
    [0, 0, 1, 1]
    """
    present = jnp.ones(points.shape[0], bool) if mask is None else mask
    count = present.sum(dtype=jnp.int32)
    tree = linkage(l2(jnp.where(present[:, None], points, 0)), "ward", mask=present)

    def labels_of(number: Array) -> Array:
        label = cut_by_number(tree, number + (~present).sum(dtype=jnp.int32))
        filled = jnp.zeros(label.shape, bool).at[label].max(present)
        return jnp.where(present, (jnp.cumsum(filled, dtype=jnp.int32) - 1)[label], -1)

    def score(number: Array) -> Array:
        found = silhouette(points, labels_of(number), most, present)
        return jnp.where((number < count) & jnp.isfinite(found), found, -jnp.inf)

    def choose(best: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        better = (other[1] > gain * best[1]) & jnp.isfinite(other[1])
        return jax.tree.map(lambda new, old: jnp.where(better, new, old), other, best), None

    numbers = jnp.arange(2, most + 1, dtype=jnp.int32)
    scores = lax.map(score, numbers)
    (number, _), _ = lax.scan(choose, (numbers[0], scores[0]), (numbers[1:], scores[1:]))
    return labels_of(jnp.where(count < 3, 1, number))
