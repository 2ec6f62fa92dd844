"""Hierarchical clustering of a distance matrix: trees in SciPy's format, cuts, and Sattler's bipartition.

The merges are computed in `merging.py` in O(N^2) time; every shape is static.
"""

import functools
from typing import Literal

import chex
import jax
import jax.numpy as jnp
from jax import lax

from jaxfl.clustering import merging
from jaxfl.schema import checked
from jaxfl.typing import Array

Bipartition = Literal["single", "complete", "average"]


@functools.partial(jax.jit, static_argnames="method")
@checked
def linkage(distances: Array, method: merging.Linkage = "single", *, mask: Array | None = None) -> Array:
    """Returns the tree `[N - 1, 4]` of merging the two nearest clusters repeatedly.

    | method | distance between two clusters |
    |---|---|
    | single | distance of their nearest points |
    | complete | distance of their farthest points |
    | average | mean over all pairs of points (UPGMA) |
    | weighted | mean of the distances of its two parts, regardless of their sizes (WPGMA) |
    | ward | growth of the sum of squares, as in SciPy: for Euclidean distances, not squared ones |

    Args:
        distances: float `[N, N]`, symmetric, N at least 1; the diagonal is ignored. NaN and infinity count as the
            largest finite number: such a pair merges last. float64 stays, all other types are computed in float32.
        method: a method of the table.
        mask: bool `[N]`, False for absent points: after the merges of the others the tree has rows without meaning, of
            infinite height, so that a cut must not reach them. None if no point is absent.

    Returns:
        `[N - 1, 4]` in the dtype of the computation, in the format of `scipy.cluster.hierarchy.linkage`: a row per
        merge, by height, (left, right, height, size). Points are clusters 0 to N - 1, row t forms cluster N + t, and
        left is the smaller label. Ties are broken by index, equally in every run; SciPy breaks them otherwise, so trees
        may differ where distances are equal.

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
    distances = _square_matrix("distances", distances)
    present = jnp.ones(distances.shape[0], bool) if mask is None else mask
    return _sorted_tree(merging.find_merges(distances, present, method))


@jax.jit
def cut_by_number(tree: Array, num_clusters: Array | int) -> Array:
    """Returns labels `[N]` of exactly `num_clusters` clusters, as scikit-learn and SciPy's `cut_tree` do.

    The last merges are undone. SciPy's `fcluster(tree, num_clusters, "maxclust")` may return fewer clusters where
    merges have equal heights.

    Args:
        tree: `[N - 1, 4]` from `linkage`.
        num_clusters: from 1 to N; other numbers are clipped.

    Returns:
        int32 `[N]`: clusters 0, 1, ... in the order of their first members.

    >>> places = jnp.array([7.0, 0.0, 1.0, 5.0])
    >>> cut_by_number(linkage(jnp.abs(places[:, None] - places[None, :])), 2).tolist()
    [0, 1, 1, 0]
    """
    merges = _num_merges(tree)
    return _cut_labels(tree, jnp.arange(merges, dtype=jnp.int32) < merges + 1 - jnp.maximum(num_clusters, 1))


@jax.jit
def cut_by_threshold(tree: Array, threshold: Array | float) -> Array:
    """Returns labels `[N]` of the clusters after all merges with `height <= threshold`.

    This is SciPy's `fcluster(tree, threshold, "distance")`. scikit-learn's `distance_threshold` merges strictly below
    it: pass the largest float below the threshold, `jnp.nextafter(threshold, -jnp.inf)`, for its clusters.

    Args:
        tree: `[N - 1, 4]` from `linkage`.
        threshold: in the unit of the distances; compared in the dtype of the tree.

    Returns:
        int32 `[N]`: clusters 0, 1, ... in the order of their first members.

    >>> places = jnp.array([7.0, 0.0, 1.0, 5.0])
    >>> tree = linkage(jnp.abs(places[:, None] - places[None, :]))
    >>> cut_by_threshold(tree, 2.0).tolist(), cut_by_threshold(tree, 1.9).tolist()
    ([0, 1, 1, 0], [0, 1, 1, 2])
    """
    _num_merges(tree)
    return _cut_labels(tree, tree[:, 2] <= jnp.asarray(threshold, tree.dtype))


@functools.partial(jax.jit, static_argnames="linkage")
@checked
def bipartition(similarity: Array, mask: Array, *, linkage: Bipartition = "single") -> tuple[Array, Array]:
    """Returns the bipartition of a cluster's members that undoes the last merge of their tree.

    Single linkage finds the paper's optimum, the split with the least `max similarity[i, j]` across; complete and
    average linkage, which published codes use, do not always. Distances are the negated similarities.

    Args:
        similarity: float `[N, N]`, symmetric; the diagonal is ignored, NaN counts as not similar.
        mask: bool `[N]`, the members. It may be traced.
        linkage: single, complete or average; ward is for distances.

    Returns:
        side: bool `[N]`, the members separated from the member of lowest index; all False if there is only one member.
        alpha_cross: `[]`, the largest similarity across; infinity, above every threshold, if there is only one member.

    Raises:
        ValueError: unknown linkage.

    References: Sattler, Mueller and Samek, "Clustered federated learning: model-agnostic distributed multitask
    optimization under privacy constraints", 2019, equation 13 and Algorithm 1.

    >>> side, alpha_cross = bipartition(jnp.array([[1, 0.9, 0.1], [0.9, 1, 0.2], [0.1, 0.2, 1]]), jnp.ones(3, bool))
    >>> side.tolist(), alpha_cross.item()
    ([False, False, True], 0.2...)
    """
    similarity = _square_matrix("similarity", similarity)
    chex.assert_shape(mask, similarity.shape[:1])
    tree = _sorted_tree(merging.find_merges(-similarity, mask, linkage))
    kept = jnp.arange(tree.shape[0], dtype=jnp.int32) < mask.sum(dtype=jnp.int32) - 2
    label = _cut_labels(tree, kept)
    side = mask & (label != label[jnp.argmax(mask)])
    cross = side[:, None] & (mask & ~side)[None, :] & ~jnp.isnan(similarity)
    alpha_cross = jnp.where(cross, similarity, -jnp.inf).max()
    return side, jnp.where(side.any(), alpha_cross, jnp.inf)


def _square_matrix(name: str, matrix: Array) -> Array:
    """Returns a matrix `[N, N]` as float32 or float64; raises ValueError if N is 0."""
    chex.assert_rank(matrix, 2)
    count = matrix.shape[0]
    chex.assert_shape(matrix, (count, count))
    if count == 0:
        raise ValueError(f"{name} must have at least one point, got shape {matrix.shape}.")
    return matrix if matrix.dtype == jnp.float64 else matrix.astype(jnp.float32)


def _num_merges(tree: Array) -> int:
    chex.assert_shape(tree, (None, 4))
    return tree.shape[0]


def _sorted_tree(merges: merging.Merges) -> Array:
    """Returns the merges sorted by height, with numbers of clusters `[N - 1, 4]`; equal heights keep their order."""
    order = jnp.argsort(merges.height, stable=True)
    first, second, height = (field[order] for field in merges)
    count = first.shape[0] + 1

    def step(state: tuple[Array, Array], merge: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], tuple]:
        name, size = state  # of each point's cluster, [N]
        first, second, new = merge
        left, right, total = name[first], name[second], size[first] + size[second]
        joined = (name == left) | (name == right)
        return (jnp.where(joined, new, name), jnp.where(joined, total, size)), (left, right, total)

    state = jnp.arange(count, dtype=jnp.int32), jnp.ones(count, jnp.int32)
    new = jnp.arange(count, 2 * count - 1, dtype=jnp.int32)
    _, (left, right, size) = lax.scan(step, state, (first, second, new))
    columns = jnp.minimum(left, right), jnp.maximum(left, right), height, size
    return jnp.stack([column.astype(height.dtype) for column in columns], axis=1)


def _cut_labels(tree: Array, kept: Array) -> Array:
    """Returns the labels `[N]` of all points after the kept merges `[N - 1]`, the lowest of the tree."""
    count = tree.shape[0] + 1
    node = jnp.arange(2 * count - 1, dtype=jnp.int32)
    child = tree[:, :2].astype(jnp.int32)
    parent = node.at[child].set(jnp.where(kept, node[count:], -1)[:, None])  # [2N - 1]
    parent = jnp.where(parent < 0, node, parent)
    rounds = max(1, (2 * count).bit_length())  # each jump doubles the distance
    root = lax.fori_loop(0, rounds, lambda _, above: above[above], parent)[:count]
    first = jnp.full(2 * count - 1, count, jnp.int32).at[root].min(node[:count])[root]  # [N], first of its cluster
    return (jnp.cumsum(first == node[:count], dtype=jnp.int32) - 1)[first]
