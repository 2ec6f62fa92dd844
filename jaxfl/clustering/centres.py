"""Centres of clusters of points: mean, trimmed mean, median, geometric median.

Every function takes points `[N, d]`, labels `[N]` int32 (a point with a label outside of `0..K-1` belongs to no
cluster, and may have any values), and `empty [K, d]`, the centres of clusters without members.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxfl.typing import Array

BLOCK_BYTES = 1 << 19  # bytes of points ranked at once on a CPU: points and ranks stay in the cache of a core
WEISZFELD_STEPS = 50
NETWORK_POINTS = 128  # the most that a sorting network takes: of more, its rows leave the registers and cache of a core
NETWORK_CLUSTERS = 8  # one after another, while ranks are counted for all at once


def counts(labels: Array, num_clusters: int) -> Array:
    """Returns the number of members of every cluster `[K]`, int32."""
    return (labels[:, None] == jnp.arange(num_clusters, dtype=labels.dtype)[None]).sum(0, dtype=jnp.int32)


def trim_counts(share: float, most: int) -> np.ndarray:
    """Returns `int(share * m)` for m = 0, 1, ..., `most` members `[most + 1]`, rounded as SciPy does.

    >>> trim_counts(0.29, 100)[100].item(), int(0.29 * 100)
    (28, 28)
    """
    return np.array([int(share * members) for members in range(most + 1)], np.int32)


@jax.jit
def mean(points: Array, labels: Array, empty: Array, *, weights: Array | None = None) -> Array:
    """Returns the mean of each cluster's members `[K, d]`, weighted by `weights [N]` if given.

    >>> mean(jnp.array([[1.0], [3.0], [9.0]]), jnp.array([0, 0, -1]), jnp.zeros((2, 1))).ravel().tolist()
    [2.0, 0.0]
    """
    if weights is None:
        weights = jnp.ones(points.shape[0], points.dtype)
    return _weighted_mean(points, labels, weights.astype(points.dtype)[:, None], empty)


@functools.partial(jax.jit, static_argnames="share")
def trimmed_mean(points: Array, labels: Array, empty: Array, *, share: float) -> Array:
    """Returns the trimmed mean of each cluster's members `[K, d]`, coordinate by coordinate.

    Of m members, the `int(share * m)` smallest and as many of the largest values are left out of every coordinate, as
    `scipy.stats.trim_mean` does, but never all of them: a share of 0.5 leaves the middle one or two.

    A NaN is never left out: the coordinate is then NaN, as in the mean. An infinite value can be left out.

    Values are ranked by counting smaller values, a block of coordinates at a time. These N^2 d comparisons take an
    eighth of the time of XLA's sort on a CPU for N = 120, and rank all clusters at once.

    Args:
        points: float `[N, d]`.
        labels: int32 `[N]`.
        empty: `[K, d]`.
        share: beta, the share left out on either side, from 0 (the mean) to 0.5 (the median).

    Raises:
        ValueError: `share` is out of range.

    References: Yin, Chen, Ramchandran and Bartlett, "Byzantine-robust distributed learning: towards optimal statistical
    rates", ICML 2018.

    >>> trimmed_mean(jnp.array([[1.0], [2.0], [3.0], [99.0]]), jnp.zeros(4, jnp.int32), jnp.zeros((1, 1)), share=0.25)
    Array([[2.5]], dtype=float32)
    """
    if not 0 <= share <= 0.5:
        raise ValueError(
            f"share must be from 0 (the mean) to 0.5 (the median), got {share}; the share is left out on either side."
        )
    chex.assert_rank([points, empty], 2)
    chex.assert_shape(labels, (points.shape[0],))
    if share == 0 or points.shape[1] == 0:
        return mean(points, labels, empty)
    count, clusters, length = points.shape[0], *empty.shape
    members = counts(labels, clusters)  # [K]
    cut = jnp.minimum(jnp.asarray(trim_counts(share, count))[members], jnp.maximum(members - 1, 0) // 2)  # [K]
    inside = (labels >= 0) & (labels < clusters)  # [N]
    slot = jnp.where(inside, labels, 0)
    first, last = cut[slot], (members - cut)[slot]  # [N], the range of ranks that are not left out
    onehot = (inside[:, None] & (slot[:, None] == jnp.arange(clusters, dtype=slot.dtype)[None])).astype(points.dtype)
    left = (members - 2 * cut).astype(points.dtype)  # [K]
    safe = jnp.maximum(left, 1)

    def mean_of_block(values: Array) -> Array:
        values = jnp.where(inside[:, None], values, 0)  # a NaN of a point outside all clusters must not spread
        rank = _ranks(values, labels)
        counted = ((rank >= first[:, None]) & (rank < last[:, None])) | jnp.isnan(values)  # NaN has no rank
        return _cluster_sums(onehot, jnp.where(counted, values, 0)) / safe[:, None]

    width = min(_block_width(points), length)

    def step(index: Array, result: Array) -> Array:
        start = jnp.minimum(index * width, length - width)  # the last block overlaps the block before it
        means = mean_of_block(lax.dynamic_slice_in_dim(points, start, width, 1))
        return lax.dynamic_update_slice_in_dim(result, means, start, 1)

    means = lax.fori_loop(0, -(-length // width), step, jnp.zeros_like(empty))
    return jnp.where((members > 0)[:, None], means, empty)


@jax.jit
def median(points: Array, labels: Array, empty: Array) -> Array:
    """Returns the median of each cluster's members, coordinate by coordinate `[K, d]`; NaN where a member has one.

    Of few points on a CPU, each pair of a sorting network is a minimum and a maximum of two rows, which takes a tenth
    of the time of ranks by counting.

    >>> median(jnp.array([[1.0], [2.0], [99.0]]), jnp.zeros(3, jnp.int32), jnp.zeros((1, 1))).ravel().tolist()
    [2.0]
    """
    if jax.default_backend() != "cpu" or not 0 < points.shape[0] <= NETWORK_POINTS or len(empty) > NETWORK_CLUSTERS:
        return trimmed_mean(points, labels, empty, share=0.5)
    chex.assert_rank([points, empty], 2)
    chex.assert_shape(labels, (points.shape[0],))
    found = lax.map(lambda cluster: _middle(points, labels == cluster), jnp.arange(len(empty), dtype=labels.dtype))
    return jnp.where((counts(labels, len(empty)) > 0)[:, None], found, empty)


@functools.partial(jax.jit, static_argnames="steps")
def geometric_median(points: Array, labels: Array, empty: Array, *, steps: int = WEISZFELD_STEPS) -> Array:
    """Returns the geometric median of each cluster `[K, d]`: the point with the least sum of distances to the members.

    Weiszfeld's iteration starts from the mean; a step is the mean of the members with weights 1 / distance. A member at
    the iterate has the weight of a millionth of the cluster's mean distance.

    Args:
        points: float `[N, d]`.
        labels: int32 `[N]`.
        empty: `[K, d]`.
        steps: number of steps of the iteration.

    References: Weiszfeld, "Sur le point pour lequel la somme des distances de n points donnes est minimum", 1937.

    >>> points = jnp.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [99.0, 99.0]])
    >>> geometric_median(points, jnp.zeros(4, jnp.int32), jnp.zeros((1, 2))).round(2).tolist()
    [[0.5, 0.5]]
    """
    clusters = empty.shape[0]
    inside = (labels >= 0) & (labels < clusters)
    slot = jnp.where(inside, labels, 0)

    def step(_: Array, centres: Array) -> Array:
        away = jnp.where(inside[:, None], points - centres[slot], 0)
        distance = jnp.sqrt(jnp.square(away).sum(1, keepdims=True))  # [N, 1]
        typical = _weighted_mean(distance, labels, jnp.ones_like(distance), jnp.zeros_like(empty[:, :1]))  # [K, 1]
        near = jnp.maximum(distance, 1e-6 * typical[slot])
        weight = jnp.where(near > 0, typical[slot] / jnp.where(near > 0, near, 1), 1)  # about 1, whatever the scale
        return _weighted_mean(points, labels, weight, centres)

    return lax.fori_loop(0, steps, step, mean(points, labels, empty))


def _weighted_mean(points: Array, labels: Array, weight: Array, empty: Array) -> Array:
    """Returns the mean of each cluster's members `[K, d]`, weighted by `weight [N, 1]`."""
    slots = jnp.arange(empty.shape[0], dtype=labels.dtype)
    belongs = labels[:, None] == slots[None]  # [N, K]
    share = jnp.where(belongs, weight, 0)  # [N, K]
    inside = belongs.any(1, keepdims=True)
    sums = _cluster_sums(share, jnp.where(inside, points, 0))
    total = share.sum(0)[:, None]
    return jnp.where(total > 0, sums / jnp.where(total > 0, total, 1), empty)


def _cluster_sums(share: Array, values: Array) -> Array:
    """Returns the sums `[K, d]` of values `[N, d]` by the shares `[N, K]` that the clusters have in their rows.

    What is not finite is of the clusters with a share in its row alone: in a product it is of all, 0 times NaN is NaN.
    """
    sums = jnp.matmul(share.T, values, precision="highest")  # [K, d]

    def one_by_one() -> Array:
        return lax.map(lambda part: jnp.where(part[:, None] > 0, part[:, None] * values, 0).sum(0), share.T)

    return lax.cond(jnp.isfinite(sums).all(), lambda: sums, one_by_one)


def _middle(points: Array, member: Array) -> Array:
    """Returns the median of the members `[d]`, by a sorting network.

    Every second of the others gets the least value and the rest the largest, so that the middle of all is theirs.
    """
    count, odd = points.shape[0], member.sum() % 2 == 1
    others = jnp.where(jnp.cumsum(~member) % 2 == 0, -jnp.inf, jnp.inf).astype(points.dtype)
    values = jnp.where(member[:, None], points, others[:, None])
    first = max((count - 2) // 2, 0)  # of the two ranks, from 0, that are the middle ones of an even number of members
    second = min(first + 1, count - 1)
    rows = list(values)
    for low, high in _comparisons(count, (first, second)):
        rows[low], rows[high] = jnp.minimum(rows[low], rows[high]), jnp.maximum(rows[low], rows[high])
    middle = rows[second if count % 2 else first]
    found = jnp.where(odd, middle, (rows[first] + rows[second]) / 2)
    return jnp.where(jnp.isnan(values).any(0), jnp.nan, found)  # of a NaN a network would keep some


@functools.cache
def _comparisons(count: int, wanted: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Returns pairs of places, such that to order each pair in turn puts what belongs there in the wanted places.

    They are those of Batcher's odd-even merge sort ("Sorting networks and their applications", AFIPS 1968) on which a
    wanted place depends.

    >>> _comparisons(3, (0,))
    ((0, 1), (0, 2))
    """
    pairs, run = [], 1
    while run < count:
        gap = run
        while gap >= 1:
            for first in range(gap % run, count - gap, 2 * gap):
                for low in range(first, min(first + gap, count - gap)):
                    if low // (2 * run) == (low + gap) // (2 * run):  # of the same pair of sorted runs
                        pairs.append((low, low + gap))
            gap //= 2
        run *= 2
    needed, kept = set(wanted), []
    for pair in reversed(pairs):
        if not needed.isdisjoint(pair):
            needed.update(pair)
            kept.append(pair)
    return tuple(reversed(kept))


def _ranks(values: Array, labels: Array) -> Array:
    """Returns the rank of each value in its cluster, from 0, column by column `[N, b]`; ties by index."""
    count = values.shape[0]
    narrow = jnp.int8 if count < 1 << 7 else jnp.int16 if count < 1 << 15 else jnp.int32
    place = jnp.arange(count, dtype=jnp.int32)

    def step(other: Array, rank: Array) -> Array:
        value = values[other][None]
        before = (value < values) | ((value == values) & (other < place)[:, None])
        return rank + (before & (labels == labels[other])[:, None]).astype(narrow)

    return lax.fori_loop(0, count, step, jnp.zeros(values.shape, narrow)).astype(jnp.int32)


def _block_width(points: Array) -> int:
    """Returns the number of coordinates that are ranked at once; few long steps are faster on an accelerator."""
    scale = 1 if jax.default_backend() == "cpu" else 1 << 10
    return max(1, scale * BLOCK_BYTES // (points.dtype.itemsize * max(points.shape[0], 1)))
