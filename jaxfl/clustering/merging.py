"""Merges of hierarchical clustering and their heights, in any order, for `linkage.py`.

Single linkage is a minimum spanning tree (Prim's algorithm reads every row once and copies nothing). The other linkages
follow chains of nearest neighbours: each merge rewrites one row and one column of one copy of the matrix in place. Both
take O(N^2) time.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxfl.schema import checked
from jaxfl.typing import Array

Linkage = Literal["single", "complete", "average", "ward", "weighted"]
DistanceUpdate = Callable[[Array, Array, Array, Array, Array, Array], Array]

LEAST_PACKED = 1024  # least rows of a packed matrix: smaller ones take less time than the compilation


class Merges(NamedTuple):
    """Merges in any order: a point of each cluster `[N - 1]` int32, and the height `[N - 1]`, infinity for no merge."""

    first: Array
    second: Array
    height: Array


@checked
def find_merges(distances: Array, mask: Array, method: Linkage) -> Merges:
    """Returns the merges of the members; unused entries have infinite heights.

    Args:
        distances: float `[N, N]`, as `linkage` takes them.
        mask: bool `[N]`, the members.
        method: single, complete, average, ward or weighted.

    Raises:
        ValueError: unknown method.

    >>> find_merges(jnp.array([[0.0, 3.0], [3.0, 0.0]]), jnp.ones(2, bool), "single").height
    Array([3.], dtype=float32)
    """
    update = UPDATES[method]
    if distances.shape[0] == 1:
        none = jnp.zeros(0, jnp.int32)
        return Merges(none, none, jnp.zeros(0, distances.dtype))
    return _spanning_tree(distances, mask) if update is None else _nearest_neighbour_chains(distances, mask, update)


def _replace_nonfinite(distances: Array) -> Array:
    """Returns distances with NaN and infinity replaced by the largest number: infinity marks absent points."""
    largest = jnp.finfo(distances.dtype).max
    return jnp.where(distances < largest, distances, largest)


def _spanning_tree(distances: Array, mask: Array) -> Merges:
    """Returns the merges of single linkage, by Prim's algorithm from the first member.

    It reaches all points that are connected below a height before it takes a larger step, so every cluster of single
    linkage is contiguous in its order: a merge may name the points before and after the step instead of the edge's
    ends.
    """
    count = distances.shape[0]

    def step(state: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], Merges]:
        point, nearest, outside = state  # last point reached; distances from the tree; points outside of the tree
        nearest = jnp.minimum(nearest, _replace_nonfinite(distances[point]))
        distance = jnp.where(outside, nearest, jnp.inf)
        reached, height = _first_smallest(distance)
        outside = outside & (jnp.arange(count, dtype=jnp.int32) != reached)
        return (reached, nearest, outside), Merges(point, reached, height)

    start = jnp.argmax(mask).astype(jnp.int32)
    outside = mask & (jnp.arange(count, dtype=jnp.int32) != start)
    state = start, jnp.full(count, jnp.inf, distances.dtype), outside
    return lax.scan(step, state, None, length=count - 1)[1]


def _nearest_neighbour_chains(distances: Array, mask: Array, update: DistanceUpdate) -> Merges:
    """Returns the merges along chains of nearest neighbours: each point of a chain is the nearest of the one before.

    A chain ends in two points that are nearest to each other. Under a reducible linkage they may merge at once, and the
    points before them remain a chain. A merged cluster takes the place of its lowest point. Once half of the places are
    empty, a large matrix is packed: this saves a quarter of reads and writes, and costs the compilation of a second
    loop.
    """
    count = distances.shape[0]
    none = jnp.zeros(count - 1, jnp.int32)
    merges = Merges(none, none, jnp.full(count - 1, jnp.inf, distances.dtype))
    last = mask.sum(dtype=jnp.int32) - 1
    done, point = jnp.int32(0), jnp.arange(count, dtype=jnp.int32)
    matrix, size = _replace_nonfinite(distances), mask.astype(distances.dtype)
    half = count // 2
    if half >= LEAST_PACKED:
        done, matrix, size, merges = _merge_chains(done, last + 1 - half, matrix, size, point, merges, update)
        place = jnp.argsort(size == 0, stable=True)[:half].astype(jnp.int32)
        matrix = lax.map(lambda row: matrix[row][place], place)  # row by row: a gather from a gather compiles slowly
        size, point = size[place], point[place]
    return _merge_chains(done, last, matrix, size, point, merges, update)[-1]


def _merge_chains(
    done: Array, last: Array, matrix: Array, size: Array, point: Array, merges: Merges, update: DistanceUpdate
) -> tuple[Array, Array, Array, Merges]:
    """Returns the state after merging along chains until `last` merges are done in total.

    Args:
        done: `[]`, number of merges in `merges`.
        last: `[]`, may be less than `done`.
        matrix: `[M, M]`.
        size: sizes of the clusters `[M]`, 0 for empty places.
        point: int32 `[M]`, a point of each cluster.
        merges: the merges so far.
        update: update of the distances.

    Returns:
        `done`, `matrix`, `size` and `merges` after the merges.
    """
    count = matrix.shape[0]
    place = jnp.arange(count, dtype=jnp.int32)

    def write(matrix: Array, row: Array, place_of_row: Array) -> Array:
        matrix = lax.dynamic_update_index_in_dim(matrix, row, place_of_row, 0)
        return lax.dynamic_update_index_in_dim(matrix, row, place_of_row, 1)

    def merge(state: tuple) -> tuple:
        done, matrix, row, place_of_row, size, chain, length, top, merges = state
        # The row of the previous merge is written only now: XLA would fuse the update into both writes, and the second
        # would need the matrix from before the first, a copy of it for every merge. The same holds for the chain.
        matrix = write(matrix, row, place_of_row)
        chain = lax.dynamic_update_index_in_dim(chain, top, length - 1, 0)

        def neighbour(cluster: Array) -> tuple[Array, Array]:
            return _first_smallest(jnp.where((size > 0) & (place != cluster), matrix[cluster], jnp.inf))

        def goes_on(state: tuple) -> Array:
            _, _, before, _, link, _, distance = state
            # Links only become shorter, so chains end even if the matrix is not exactly symmetric. In exact arithmetic
            # no cluster of the chain vanishes; in rounded arithmetic a cluster may that is in it twice.
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
        row = _replace_nonfinite(update(matrix[kept], matrix[gone], size[kept], size[gone], size, height))
        size = jnp.where(place == kept, size + size[gone], jnp.where(place == gone, 0, size))
        merged = Merges(point[kept], point[gone], height)
        merges = jax.tree.map(lambda rows, row: lax.dynamic_update_index_in_dim(rows, row, done, 0), merges, merged)
        top = chain[jnp.maximum(length - 3, 0)]
        fresh = (length == 2) | (size[top] == 0)
        top, length = jnp.where(fresh, kept, top), jnp.where(fresh, 1, length - 2)
        return done + 1, matrix, row, kept, size, chain, length, top, merges

    length, chain = jnp.int32(1), jnp.zeros(count + 1, jnp.int32)
    start = jnp.argmax(size > 0).astype(jnp.int32)
    state = done, matrix, matrix[0], length - 1, size, chain, length, start, merges
    state = lax.while_loop(lambda state: state[0] < last, merge, state)
    done, matrix, row, place_of_row, size, *_, merges = state
    return done, write(matrix, row, place_of_row), size, merges


def _first_smallest(values: Array) -> tuple[Array, Array]:
    """Returns the first index of the smallest value of `[N]`, and the value; on a CPU in a ninth of `argmin`'s time."""
    value = values.min()
    place = jnp.arange(values.shape[0], dtype=jnp.int32)
    return jnp.where(values == value, place, values.shape[0] - 1).min(), value


def _update_complete(a: Array, b: Array, size_a: Array, size_b: Array, size: Array, height: Array) -> Array:
    """Returns the distances `[N]` of all clusters from the union of two clusters at distances `a` and `b`."""
    del size_a, size_b, size, height
    return jnp.maximum(a, b)


def _update_average(a: Array, b: Array, size_a: Array, size_b: Array, size: Array, height: Array) -> Array:
    del size, height
    share = size_a / (size_a + size_b)
    return share * a + (1 - share) * b


def _update_ward(a: Array, b: Array, size_a: Array, size_b: Array, size: Array, height: Array) -> Array:
    total = size_a + size_b + size
    squares = (size_a + size) * jnp.square(a) + (size_b + size) * jnp.square(b) - size * jnp.square(height)
    return jnp.sqrt(jnp.maximum(squares / total, 0))


def _update_weighted(a: Array, b: Array, size_a: Array, size_b: Array, size: Array, height: Array) -> Array:
    del size_a, size_b, size, height
    return 0.5 * a + 0.5 * b


UPDATES: dict[str, DistanceUpdate | None] = {
    "single": None,
    "complete": _update_complete,
    "average": _update_average,
    "ward": _update_ward,
    "weighted": _update_weighted,
}
