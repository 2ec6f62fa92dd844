"""k-means with k-means++ or farthest-first seeds, Lloyd's iteration, mapped restarts, and trimmed variants.

    labels_i  <- argmin_k |x_i - c_k|                      ties to the lowest k
    c_k       <- centre of {x_i: labels_i = k}             mean, coordinate-wise median or geometric median

until no label changes. With `trimmed` > 0 the farthest points are left out of the centres and of the inertia, but keep
their labels:

    trim="all"      of all points, those farthest from their nearest centre (trimmed k-means: Cuesta-Albertos,
                    Gordaliza and Matran, 1997). A tight group of outliers is left out as a whole.
    trim="cluster"  in every cluster, those farthest from its geometric median (TKM: Ghosh, Hong, Yin and Ramchandran,
                    2019). This suffices for single outliers; a group of them can still obtain a centre.

Seeds are not drawn from the points that are farthest from the seeds so far either: k-means++ seeds a group of outliers
with a probability that grows with its distance, and Lloyd's iteration never removes a centre that has points.

With `weights` a point of weight 2 counts as two points of weight 1, in the seeds, the means and the inertia. No point
is then left out, and centres are means.

Distances are sums of squared differences, not differences of squares: an outlier a million times as far as the others
must not reduce their precision.
"""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxfl.clustering import centres as centre_of
from jaxfl.schema import checked
from jaxfl.typing import Array, Key

CENTRES = {"mean": centre_of.mean, "median": centre_of.median, "geometric_median": centre_of.geometric_median}
Trim = Literal["all", "cluster"]
Centre = Literal["mean", "median", "geometric_median"]
STATIC = ("max_iterations", "trimmed", "trim", "centre")


class KMeans(NamedTuple):
    """A clustering of points."""

    centres: Array  # [K, d]
    labels: Array  # [N] int32, index of the nearest centre; -1 for absent points
    kept: Array  # [N] bool, False for absent points and for those left out of the centres
    inertia: Array  # [] sum over kept points of squared distances to their centre, of distances if not a mean
    iterations: Array  # [] int32, number of Lloyd steps


@functools.partial(jax.jit, static_argnames=("num_clusters", "restarts", *STATIC))
@checked
def kmeans(
    key: Key,
    points: Array,
    num_clusters: int,
    *,
    mask: Array | None = None,
    weights: Array | None = None,
    restarts: int = 20,
    max_iterations: int = 100,
    trimmed: float = 0.0,
    trim: Trim = "all",
    centre: Centre = "mean",
) -> KMeans:
    """Returns the clustering of lowest inertia of several starts from k-means++ seeds, the first of equals.

    Args:
        key: random key of the seeds. The first start is the same for any number of restarts, so that more are never
            worse.
        points: `[N, d]`; integers become floats.
        num_clusters: K. With fewer distinct points, some centres coincide, and all but one of these stay empty.
        mask: bool `[N]`, False for absent points; None if no point is absent. Points of non-finite length are absent.
        weights: float `[N]`, weight of each point; a point is absent if its weight is 0 or not finite. None is 1 for
            all.
        restarts: number of starts, a mapped axis that needs memory for `restarts * (N + K d)` numbers.
        max_iterations: most steps of Lloyd's iteration.
        trimmed: share of the points left out of the centres, in [0, 1).
        trim: `"all"` or `"cluster"`: whether `trimmed` is a share of all points or of each cluster.
        centre: `"mean"`, `"median"` (coordinate by coordinate) or `"geometric_median"`.

    Raises:
        ValueError: an option is out of range, or there are no points.

    References: Lloyd, "Least squares quantization in PCM", 1982; Arthur and Vassilvitskii, "k-means++: the advantages
    of careful seeding", 2007.

    >>> clustering = kmeans(jax.random.key(0), jnp.array([[0.0], [1.0], [8.0], [9.0]]), 2)
    >>> sorted(clustering.centres.ravel().tolist()), float(clustering.inertia)
    ([0.5, 8.5], 1.0)
    """
    if restarts < 1:
        raise ValueError(f"restarts must be at least 1, got {restarts}.")
    _check_count(num_clusters)
    points, mask = _present_points(points, mask, weights)

    def start(key: Key) -> KMeans:
        return lloyd(
            points,
            plus_plus(key, points, num_clusters, mask=mask, weights=weights, trimmed=trimmed),
            mask=mask,
            weights=weights,
            max_iterations=max_iterations,
            trimmed=trimmed,
            trim=trim,
            centre=centre,
        )

    results = jax.vmap(start)(jax.random.split(key, restarts))
    best = jnp.argmin(results.inertia)
    return jax.tree.map(lambda leaf: leaf[best], results)


@functools.partial(jax.jit, static_argnames=STATIC)
@checked
def lloyd(
    points: Array,
    centres: Array,
    *,
    mask: Array | None = None,
    weights: Array | None = None,
    max_iterations: int = 100,
    trimmed: float = 0.0,
    trim: Trim = "all",
    centre: Centre = "mean",
) -> KMeans:
    """Returns the clustering from given centres after Lloyd's iteration, until no label changes.

    A cluster without points keeps its centre.

    Args:
        points: float `[N, d]`.
        centres: initial centres `[K, d]`.
        mask, weights: `[N]`, see `kmeans`.
        max_iterations: most steps; 0 only labels the points.
        trimmed, trim, centre: see `kmeans`.

    Raises:
        ValueError: an option is out of range.

    >>> lloyd(jnp.array([[0.0], [1.0], [9.0]]), jnp.array([[0.0], [1.0]])).labels.tolist()
    [0, 0, 1]
    """
    _check_trimmed(trimmed)
    if max_iterations < 0:
        raise ValueError(f"max_iterations must be at least 0, got {max_iterations}.")
    if weights is not None and (trimmed or centre != "mean"):
        raise ValueError(f"weights must be None with trimmed={trimmed} and centre={centre!r}; only means are weighted.")
    points, mask = _present_points(points, mask, weights)
    centres = _float_matrix("centres", centres)
    if centres.shape[1] != points.shape[1]:
        raise ValueError(
            f"centres must have as many columns as the points ({points.shape[1]}), got shape {centres.shape}."
        )

    def measure(centres: Array) -> tuple[Array, Array, Array]:
        """Returns labels, squared distances to the nearest centre, and a mask of the kept points."""
        squared = squared_distances(points, centres)  # [N, K]
        labels = jnp.where(mask, jnp.argmin(squared, 1), -1).astype(jnp.int32)
        nearest = squared.min(1)
        if trimmed == 0:
            return labels, nearest, mask
        if trim == "all":
            return labels, nearest, mask & ~_farthest(nearest, jnp.where(mask, 0, -1), 1, trimmed)
        pivot = centre_of.geometric_median(points, labels, centres)
        away = jnp.square(points - pivot[jnp.maximum(labels, 0)]).sum(1)
        return labels, nearest, mask & ~_farthest(away, labels, centres.shape[0], trimmed)

    def step(carry: tuple) -> tuple:
        centres, (labels, _, kept), _, measured = carry
        members = jnp.where(kept, labels, -1)
        if weights is None:
            moved = CENTRES[centre](points, members, centres)
        else:
            moved = centre_of.mean(points, members, centres, weights=weights)
        assigned = measure(moved)
        changed = (measured == 0) | (assigned[0] != labels).any() | (assigned[2] != kept).any()
        return moved, assigned, changed, measured + 1

    # without labels no centre moves: the first step only labels the points, and is not counted
    unknown = jnp.full(mask.shape, -1, jnp.int32), jnp.zeros(mask.shape, points.dtype), mask
    centres, (labels, nearest, kept), _, measured = lax.while_loop(
        lambda carry: carry[2] & (carry[3] <= max_iterations), step, (centres, unknown, jnp.array(True), jnp.int32(0))
    )
    cost = nearest if centre == "mean" else jnp.sqrt(nearest)
    cost = cost if weights is None else cost * weights.astype(cost.dtype)
    return KMeans(centres, labels, kept, jnp.where(kept, cost, 0).sum(), measured - 1)


@functools.partial(jax.jit, static_argnames=("num_clusters", "trimmed"))
def plus_plus(
    key: Key,
    points: Array,
    num_clusters: int,
    *,
    mask: Array | None = None,
    weights: Array | None = None,
    trimmed: float = 0.0,
) -> Array:
    """Returns k-means++ seeds `[K, d]`: points drawn with probability proportional to the squared distance from seeds.

    The first seed is drawn by weight alone. Seeds repeat when every point coincides with a seed.

    Args:
        key: random key of the draws.
        points: float `[N, d]`.
        num_clusters: K.
        mask, weights: `[N]`, see `kmeans`.
        trimmed: share of the points, the farthest from the seeds so far, from which the next seed is not drawn.
    """
    _check_trimmed(trimmed)
    _check_count(num_clusters)
    points, mask = _present_points(points, mask, weights)

    def draw(key: Key, nearest: Array) -> Array:
        far = _farthest(nearest, jnp.where(mask, 0, -1), 1, trimmed) & (nearest > 0)
        inside = jnp.where(far, 0, nearest)
        weight = jnp.where((inside > 0).any(), inside, (~far).astype(nearest.dtype))
        weight = weight if weights is None else weight * weights.astype(weight.dtype)
        return jax.random.categorical(key, jnp.where(mask & (weight > 0), jnp.log(weight), -jnp.inf))

    keys = jax.random.split(key, num_clusters)
    first = draw(keys[0], jnp.zeros(points.shape[0], points.dtype))
    return _choose_seeds(points, mask, first[None], num_clusters, lambda nearest, turn: draw(keys[turn], nearest))


@functools.partial(jax.jit, static_argnames="num_clusters")
def farthest_first(points: Array, first: Array, num_clusters: int, *, mask: Array | None = None) -> Array:
    """Returns farthest-first seeds `[K, d]`: given points, then repeatedly the point farthest from all seeds.

    Args:
        points: float `[N, d]`.
        first: indices `[S]` of the first seeds, S at most K. Of equally far points the lowest index is next.
        num_clusters: K.
        mask: bool `[N]`, see `kmeans`.

    Raises:
        ValueError: there are more first seeds than seeds, or none, or no points.

    References: Gonzalez, "Clustering to minimize the maximum intercluster distance", 1985.

    >>> farthest_first(jnp.array([[0.0], [5.0], [9.0]]), jnp.array([0]), 3).ravel().tolist()
    [0.0, 9.0, 5.0]
    """
    _check_count(num_clusters)
    if len(jnp.shape(first)) != 1 or not 1 <= jnp.shape(first)[0] <= num_clusters:
        raise ValueError(
            f"first must be the indices of 1 to num_clusters={num_clusters} points, got shape {jnp.shape(first)}."
        )
    points, mask = _present_points(points, mask)
    return _choose_seeds(
        points, mask, first, num_clusters, lambda nearest, turn: jnp.argmax(jnp.where(mask, nearest, -1))
    )


def squared_distances(points: Array, centres: Array) -> Array:
    """Returns the squared distance of every point from every centre `[N, K]`, exactly 0 for equal ones."""
    return lax.map(lambda centre: jnp.square(points - centre[None]).sum(1), centres).T


def _present_points(points: Array, mask: Array | None, weights: Array | None = None) -> tuple[Array, Array]:
    """Returns the points, with zeros for absent ones so that sums stay finite, and a mask of the present ones `[N]`."""
    points = _float_matrix("points", points)
    for name, values in {"mask": mask, "weights": weights}.items():
        if values is not None and jnp.shape(values) != points.shape[:1]:
            raise ValueError(
                f"{name} must have a value for each of the {points.shape[0]} points, got shape {jnp.shape(values)}."
            )
    finite = jnp.isfinite(jnp.square(points).sum(1))
    mask = finite if mask is None else finite & jnp.asarray(mask, bool)
    if weights is not None:
        weights = jnp.asarray(weights)
        mask &= (weights > 0) & jnp.isfinite(weights)
    return jnp.where(mask[:, None], points, 0), mask


def _float_matrix(name: str, points: Array) -> Array:
    """Returns points as floats; raises ValueError unless they are an array of two axes, real and not empty."""
    shape = getattr(points, "shape", None)
    if shape is None or len(shape) != 2 or not all(shape):
        got = f"a {type(points).__name__}" if shape is None else f"shape {shape}"
        raise ValueError(
            f"{name} must be an array of two axes, with a row and a column or more, got {got}; use np.array(rows)."
        )
    if jnp.issubdtype(points.dtype, jnp.complexfloating):
        raise ValueError(f"{name} must be real numbers, got {points.dtype}; give a complex number as two columns.")
    whole = not jnp.issubdtype(points.dtype, jnp.floating)  # a mean of integers is not an integer
    return points.astype(jax.dtypes.canonicalize_dtype(float)) if whole else points


def _check_count(num_clusters: int) -> None:
    """Raises ValueError for less than one cluster."""
    if num_clusters < 1:
        raise ValueError(f"num_clusters must be at least 1, got {num_clusters}.")


def _check_trimmed(trimmed: float) -> None:
    """Raises ValueError unless `trimmed` is a share from 0 to below 1."""
    if not 0 <= trimmed < 1:
        raise ValueError(f"trimmed must be at least 0 and below 1, got {trimmed}; it is a share of the points.")


def _choose_seeds(points: Array, mask: Array, first: Array, num_clusters: int, choose: Callable[..., Array]) -> Array:
    """Returns `num_clusters` points: those of `first [S]`, then those whose index `choose(nearest, turn)` returns.

    `nearest [N]` has the squared distances from the seeds so far, 0 for absent points.
    """

    def step(nearest: Array, turn: Array) -> tuple[Array, Array]:
        index = choose(nearest, turn)
        return jnp.minimum(nearest, jnp.square(points - points[index][None]).sum(1)), points[index]

    nearest = jnp.where(mask, squared_distances(points, points[first]).min(1), 0)
    _, others = lax.scan(step, nearest, jnp.arange(first.shape[0], num_clusters))
    return jnp.concatenate([points[first], others])


def _farthest(distance: Array, group: Array, num_groups: int, share: float) -> Array:
    """Returns a mask `[N]` of the `int(share * m)` farthest points in each group of m; of equals, the later ones."""
    if share == 0:  # avoids a sort in the program of every seed
        return jnp.zeros_like(group, bool)
    count = distance.shape[0]
    members = centre_of.counts(group, num_groups)  # [G]
    order = jnp.lexsort((-jnp.arange(count), -distance, group))  # group by group, farthest first
    before = (group < 0).sum(dtype=jnp.int32) + jnp.cumsum(members, dtype=jnp.int32) - members  # [G], first places
    slot = jnp.maximum(group, 0)
    place = jnp.zeros(count, jnp.int32).at[order].set(jnp.arange(count, dtype=jnp.int32))
    cut = jnp.asarray(centre_of.trim_counts(share, count))[members]
    return (group >= 0) & (place - before[slot] < cut[slot])
