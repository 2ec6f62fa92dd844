"""Hierarchical clustering of a distance matrix: trees in SciPy's format, cuts, and Sattler's bipartition.

Single linkage is a minimum spanning tree (Prim: reads every row once, copies nothing). Complete, average and ward
linkage follow chains of nearest neighbours: each merge rewrites one row and one column of one copy of the matrix, in
place. Both take O(N^2) time, and every shape is static.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import lax

from jaxfl.typing import Array

Update = Callable[[Array, Array, Array, Array, Array, Array], Array]

BIPARTITIONS = ("single", "complete", "average")


@functools.partial(jax.jit, static_argnames="method")
def linkage(distances: Array, method: str = "single") -> Array:
    """Merges the two nearest clusters again and again; the distance between clusters is the method's.

    | method | distance between two clusters |
    |---|---|
    | single | of their nearest points |
    | complete | of their farthest points |
    | average | mean over all pairs of points (UPGMA) |
    | ward | growth of the sum of squares, as SciPy's: for Euclidean distances, not squared ones |

    Args:
        distances: float `[N, N]`, symmetric, N at least 1; the diagonal is ignored. NaN and infinity count as the
            largest finite number: such a pair merges last. float64 is kept, anything else is computed in float32.
        method: one of the table's.

    Returns:
        `[N - 1, 4]` in the dtype of the computation, what `scipy.cluster.hierarchy.linkage` returns: a row a merge,
        by height, (left, right, height, size). Points are clusters 0 to N - 1, row t makes cluster N + t, and left is
        the smaller label. Ties are broken by place, the same way in every run; SciPy has its own way, so trees may
        differ where distances are equal.

    Raises:
        ValueError: unknown method, or no point.

    References: Muellner, "Modern hierarchical, agglomerative clustering algorithms", 2011; Murtagh, "A survey of
    recent advances in hierarchical clustering algorithms", 1983; Lance and Williams, "A general theory of
    classificatory sorting strategies", 1967; Prim, "Shortest connection networks and some generalizations", 1957.

    >>> places = jnp.array([0.0, 1.0, 5.0])
    >>> linkage(jnp.abs(places[:, None] - places[None, :]), "average")
    Array([[0. , 1. , 1. , 2. ],
           [2. , 3. , 4.5, 3. ]], dtype=float32)
    """
    distances = _square("distances", distances)
    return _tree(_merges(distances, jnp.ones(distances.shape[0], bool), method))


@jax.jit
def cut_by_number(tree: Array, num_clusters: Array | int) -> Array:
    """Undoes the last merges until `num_clusters` clusters are left, exactly: like scikit-learn and SciPy's `cut_tree`.

    SciPy's `fcluster(tree, num_clusters, "maxclust")` may leave fewer where merges have equal heights.

    Args:
        tree: `[N - 1, 4]` from `linkage`.
        num_clusters: from 1 to N; what is outside counts as the nearer of the two.

    Returns:
        int32 `[N]`: clusters 0, 1, ... in the order of their first members.

    >>> places = jnp.array([7.0, 0.0, 1.0, 5.0])
    >>> cut_by_number(linkage(jnp.abs(places[:, None] - places[None, :])), 2).tolist()
    [0, 1, 1, 0]
    """
    merges = _checked_tree(tree)
    return _cut(tree, jnp.arange(merges, dtype=jnp.int32) < merges + 1 - jnp.maximum(num_clusters, 1))


@jax.jit
def cut_by_threshold(tree: Array, threshold: Array | float) -> Array:
    """Keeps the merges with `height <= threshold`.

    This is SciPy's `fcluster(tree, threshold, "distance")`. scikit-learn's `distance_threshold` merges strictly below
    it: the largest float below a threshold, `jnp.nextafter(threshold, -jnp.inf)`, gives its clusters.

    Args:
        tree: `[N - 1, 4]` from `linkage`.
        threshold: in units of the distances; compared in the dtype of the tree.

    Returns:
        int32 `[N]`: clusters 0, 1, ... in the order of their first members.

    >>> places = jnp.array([7.0, 0.0, 1.0, 5.0])
    >>> tree = linkage(jnp.abs(places[:, None] - places[None, :]))
    >>> cut_by_threshold(tree, 2.0).tolist(), cut_by_threshold(tree, 1.9).tolist()
    ([0, 1, 1, 0], [0, 1, 1, 2])
    """
    _checked_tree(tree)
    return _cut(tree, tree[:, 2] <= jnp.asarray(threshold, tree.dtype))


@functools.partial(jax.jit, static_argnames="linkage")
def bipartition(similarity: Array, mask: Array, *, linkage: str = "single") -> tuple[Array, Array]:
    """Splits the members of a cluster in two: the last merge of their tree, undone.

    Single linkage finds the paper's optimum, the split with the least `max similarity[i, j]` across; complete and
    average linkage, which published codes use, do not always. Works on the negated similarities.

    Args:
        similarity: float `[N, N]`, symmetric; the diagonal is ignored, NaN is similar to nobody.
        mask: bool `[N]`, the members. It may be traced.
        linkage: single, complete or average; ward is for distances.

    Returns:
        side: bool `[N]`, the members that part from the one with the lowest index; nobody if there is only one.
        alpha_cross: `[]`, the largest similarity across; infinity, above every threshold, if there is only one member.

    Raises:
        ValueError: unknown linkage.

    References: Sattler, Mueller and Samek, "Clustered federated learning: model-agnostic distributed multitask
    optimization under privacy constraints", 2019, equation 13 and Algorithm 1.

    >>> side, alpha_cross = bipartition(jnp.array([[1, 0.9, 0.1], [0.9, 1, 0.2], [0.1, 0.2, 1]]), jnp.ones(3, bool))
    >>> side.tolist(), alpha_cross.item()
    ([False, False, True], 0.2...)
    """
    similarity = _square("similarity", similarity)
    chex.assert_shape(mask, similarity.shape[:1])
    if linkage not in BIPARTITIONS:
        raise ValueError(f"linkage must be one of {', '.join(BIPARTITIONS)}, got {linkage!r}.")
    tree = _tree(_merges(-similarity, mask, linkage))
    kept = jnp.arange(tree.shape[0], dtype=jnp.int32) < mask.sum(dtype=jnp.int32) - 2
    label = _cut(tree, kept)
    side = mask & (label != label[jnp.argmax(mask)])
    cross = side[:, None] & (mask & ~side)[None, :] & ~jnp.isnan(similarity)
    alpha_cross = jnp.where(cross, similarity, -jnp.inf).max()
    return side, jnp.where(side.any(), alpha_cross, jnp.inf)


class _Merges(NamedTuple):
    """Merges in any order: a point of either cluster `[N - 1]` int32, and the height `[N - 1]`, infinity for none."""

    first: Array
    second: Array
    height: Array


def _square(name: str, matrix: Array) -> Array:
    chex.assert_rank(matrix, 2)
    count = matrix.shape[0]
    chex.assert_shape(matrix, (count, count))
    if count == 0:
        raise ValueError(f"{name} must be of at least one point, got shape {matrix.shape}.")
    return matrix if matrix.dtype == jnp.float64 else matrix.astype(jnp.float32)


def _checked_tree(tree: Array) -> int:
    chex.assert_shape(tree, (None, 4))
    return tree.shape[0]


def _merges(distances: Array, mask: Array, method: str) -> _Merges:
    if method not in UPDATES:
        raise ValueError(f"method must be one of {', '.join(UPDATES)}, got {method!r}.")
    update = UPDATES[method]
    if distances.shape[0] == 1:
        none = jnp.zeros(0, jnp.int32)
        return _Merges(none, none, jnp.zeros(0, distances.dtype))
    return _spanning_tree(distances, mask) if update is None else _chains(distances, mask, update)


def _finite(distances: Array) -> Array:
    """Replaces NaN and infinity by the largest number: infinity marks what takes no part."""
    largest = jnp.finfo(distances.dtype).max
    return jnp.where(distances < largest, distances, largest)


def _spanning_tree(distances: Array, mask: Array) -> _Merges:
    """Prim's algorithm from the first member.

    It exhausts whatever is connected below a height before it takes a larger step, so every cluster of single linkage
    is a run of its order: a merge may name the points before and after the step instead of the ends of the edge.
    """
    count = distances.shape[0]

    def step(state: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], _Merges]:
        point, nearest, outside = state  # the last one reached; how far the tree is from each point; who is not in it
        nearest = jnp.minimum(nearest, _finite(distances[point]))
        distance = jnp.where(outside, nearest, jnp.inf)
        reached, height = _lowest(distance)
        outside = outside & (jnp.arange(count, dtype=jnp.int32) != reached)
        return (reached, nearest, outside), _Merges(point, reached, height)

    start = jnp.argmax(mask).astype(jnp.int32)
    outside = mask & (jnp.arange(count, dtype=jnp.int32) != start)
    state = start, jnp.full(count, jnp.inf, distances.dtype), outside
    return lax.scan(step, state, None, length=count - 1)[1]


def _chains(distances: Array, mask: Array, update: Update) -> _Merges:
    """Merges along chains of nearest neighbours: each point of a chain is the nearest of the one before it.

    A chain ends in two that are nearest to each other. Under a reducible linkage they may merge at once, and what
    comes before them remains a chain. A merged cluster lives on in the place of its lowest point.
    """
    count = distances.shape[0]
    place = jnp.arange(count, dtype=jnp.int32)

    def merge(state: tuple) -> tuple:
        done, matrix, row, place_of_row, size, chain, length, top, merges = state
        # What the merge before found is written only now: XLA would fuse the update into both writes, and the second
        # would need the matrix from before the first, a copy of it for every merge. So it goes with the chain.
        matrix = lax.dynamic_update_index_in_dim(matrix, row, place_of_row, 0)
        matrix = lax.dynamic_update_index_in_dim(matrix, row, place_of_row, 1)
        chain = lax.dynamic_update_index_in_dim(chain, top, length - 1, 0)

        def neighbour(point: Array) -> tuple[Array, Array]:
            return _lowest(jnp.where((size > 0) & (place != point), matrix[point], jnp.inf))

        def goes_on(state: tuple) -> Array:
            _, _, before, _, link, _, distance = state
            # Links only ever get shorter, so chains end even if the matrix is not quite symmetric. In exact arithmetic
            # nobody in the chain dies; in rounded arithmetic one may that stands in it twice.
            return (distance < link) | (size[before] == 0)

        def grow(state: tuple) -> tuple:
            chain, length, _, top, _, nearest, distance = state
            chain = lax.dynamic_update_index_in_dim(chain, nearest, length, 0)
            return chain, length + 1, top, nearest, distance, *neighbour(nearest)

        before = chain[jnp.maximum(length - 2, 0)]
        link = jnp.where(length > 1, matrix[before, top], jnp.inf)
        state = chain, length, before, top, link, *neighbour(top)
        chain, length, before, top, height, _, _ = lax.while_loop(goes_on, grow, state)
        kept, gone = jnp.minimum(top, before), jnp.maximum(top, before)
        row = _finite(update(matrix[kept], matrix[gone], size[kept], size[gone], size, height))
        size = jnp.where(place == kept, size + size[gone], jnp.where(place == gone, 0, size))
        merged = _Merges(kept, gone, height)
        merges = jax.tree.map(lambda all_, one: lax.dynamic_update_index_in_dim(all_, one, done, 0), merges, merged)
        top = chain[jnp.maximum(length - 3, 0)]
        fresh = (length == 2) | (size[top] == 0)
        top, length = jnp.where(fresh, kept, top), jnp.where(fresh, 1, length - 2)
        return done + 1, matrix, row, kept, size, chain, length, top, merges

    none = jnp.zeros(count - 1, jnp.int32)
    merges = _Merges(none, none, jnp.full(count - 1, jnp.inf, distances.dtype))
    matrix, start, one = _finite(distances), jnp.argmax(mask).astype(jnp.int32), jnp.int32(1)
    chain = jnp.zeros(count + 1, jnp.int32)
    state = one - 1, matrix, matrix[0], one - 1, mask.astype(distances.dtype), chain, one, start, merges
    last = mask.sum(dtype=jnp.int32) - 1
    return lax.while_loop(lambda state: state[0] < last, merge, state)[-1]


def _lowest(values: Array) -> tuple[Array, Array]:
    """Returns the first index of the smallest of `[N]` and its value: on a CPU a ninth of the time of `argmin`."""
    value = values.min()
    place = jnp.arange(values.shape[0], dtype=jnp.int32)
    return jnp.where(values == value, place, values.shape[0] - 1).min(), value


def _complete(a: Array, b: Array, size_a: Array, size_b: Array, size: Array, height: Array) -> Array:
    """Returns the distances of everybody `[N]` from the union of clusters at distances `a` and `b`."""
    del size_a, size_b, size, height
    return jnp.maximum(a, b)


def _average(a: Array, b: Array, size_a: Array, size_b: Array, size: Array, height: Array) -> Array:
    del size, height
    share = size_a / (size_a + size_b)
    return share * a + (1 - share) * b


def _ward(a: Array, b: Array, size_a: Array, size_b: Array, size: Array, height: Array) -> Array:
    total = size_a + size_b + size
    squares = (size_a + size) * jnp.square(a) + (size_b + size) * jnp.square(b) - size * jnp.square(height)
    return jnp.sqrt(jnp.maximum(squares / total, 0))


UPDATES: dict[str, Update | None] = {"single": None, "complete": _complete, "average": _average, "ward": _ward}


def _tree(merges: _Merges) -> Array:
    """Sorts the merges by height and names the clusters; equal heights keep their order `[N - 1, 4]`."""
    order = jnp.argsort(merges.height, stable=True)
    first, second, height = (field[order] for field in merges)
    count = first.shape[0] + 1

    def step(state: tuple[Array, Array], merge: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], tuple]:
        name, size = state  # of everybody's cluster, [N]
        first, second, new = merge
        one, other, total = name[first], name[second], size[first] + size[second]
        joined = (name == one) | (name == other)
        return (jnp.where(joined, new, name), jnp.where(joined, total, size)), (one, other, total)

    state = jnp.arange(count, dtype=jnp.int32), jnp.ones(count, jnp.int32)
    new = jnp.arange(count, 2 * count - 1, dtype=jnp.int32)
    _, (one, other, size) = lax.scan(step, state, (first, second, new))
    columns = jnp.minimum(one, other), jnp.maximum(one, other), height, size
    return jnp.stack([column.astype(height.dtype) for column in columns], axis=1)


def _cut(tree: Array, kept: Array) -> Array:
    """Labels everybody `[N]` by the merges that are kept `[N - 1]`, the lowest ones of the tree."""
    count = tree.shape[0] + 1
    node = jnp.arange(2 * count - 1, dtype=jnp.int32)
    child = tree[:, :2].astype(jnp.int32)
    parent = node.at[child].set(jnp.where(kept, node[count:], -1)[:, None])  # [2N - 1]
    parent = jnp.where(parent < 0, node, parent)
    rounds = max(1, (2 * count).bit_length())  # each jump doubles the distance
    root = lax.fori_loop(0, rounds, lambda _, above: above[above], parent)[:count]
    first = jnp.full(2 * count - 1, count, jnp.int32).at[root].min(node[:count])[root]  # [N], of everybody's cluster
    return (jnp.cumsum(first == node[:count], dtype=jnp.int32) - 1)[first]
