"""Greedy merging of clusters that are represented by sums of vectors, computed from inner products alone.

Inner products of sums are sums of inner products, so a merge adds one row and column of the Gram matrix to another and
needs no vector. This is centroid linkage with the cosine. Unlike single linkage, it forms no chain through pairs that
are similar by chance, because every merge averages chance and is compared again.

Noise lengthens a vector and does not change its inner product with another vector on average. Cosines of noisy vectors
are therefore too small, by a factor that depends on the number of rows that they were computed from. Inner products
divided by the lengths that the vectors would have without noise estimate the cosine of the noise-free vectors for any
number of rows (Spearman's correction for attenuation), so that one threshold is right for all.
"""

import chex
import jax
import jax.numpy as jnp
from jax import lax

from jaxfl.typing import Array


@jax.jit
def agglomerate(
    gram: Array, squares: Array, threshold: Array | float, alive: Array | None = None, slack: Array | float = 0.0
) -> Array:
    """Returns clusters `[M]` after merging the most similar pair with a corrected cosine above a threshold repeatedly.

    The corrected cosine of nodes k and l is `gram[k, l] / sqrt(squares[k] * squares[l])`. The order in which pairs
    merge follows the ordinary cosine, with `gram[k, k]` for `squares[k]`. Of two equally similar pairs it is larger for
    the pair with less noise, so a noisy node joins a large cluster rather than another noisy node that resembles it by
    chance. After a merge,

        gram[m, :] = gram[k, :] + gram[l, :],    squares[m] = squares[k] + squares[l] + 2 * gram[k, l]

    A corrected cosine is uncertain by about `sqrt((gram[k, k] * gram[l, l] / (squares[k] * squares[l]) - 1) / D)`, for
    noise in D independent directions, and of many clients a few miss any useful threshold by chance. Therefore the
    threshold of a pair is lowered by `slack` times that square root (without D), at most to half. Sums of many members
    have nearly no noise, so their threshold stays.

    The most similar other node of every node is stored. It is searched again only if it has merged and the node is
    next: a merge reads O(M) numbers, unless many nodes have the same most similar node.

    Args:
        gram: float `[M, M]`, inner products of the sums that represent the nodes; symmetric; NaN counts as not similar.
        squares: float `[M]`, squared lengths of the sums. With `jnp.diagonal(gram)` both cosines are ordinary; minus
            the noise in the diagonal, the first is corrected. A node with `squares` not above 0 never merges.
        threshold: tau, for the corrected cosine, which is clipped to [-1, 1]: above 1 nothing merges.
        alive: bool `[M]`, None for all; other nodes are ignored.
        slack: reduction of the threshold, in the unit above; no effect where `squares` is the diagonal.

    Returns:
        int32 `[M]`: the smallest index in the node's cluster, -1 for nodes that are not alive. Of equal cosines the
        pair with the lowest indices merges first.

    References: Zeng et al., "Stochastic clustered federated learning", 2023, Algorithm 1, lines 8-13; Spearman, "The
    proof and measurement of association between two things", 1904; Muellner, "Modern hierarchical, agglomerative
    clustering algorithms", 2011, section 3.1.

    >>> gram = jnp.array([[1.0, 0.5, 0.1], [0.5, 1.0, 0.1], [0.1, 0.1, 1.0]])
    >>> noise = jnp.full(3, 0.4)
    >>> agglomerate(gram, jnp.diagonal(gram), 0.7).tolist(), agglomerate(gram, jnp.diagonal(gram) - noise, 0.7).tolist()
    ([0, 1, 2], [0, 0, 2])
    """
    chex.assert_rank(gram, 2)
    count = gram.shape[0]
    chex.assert_shape(gram, (count, count))
    chex.assert_shape(squares, (count,))
    alive = jnp.ones(count, bool) if alive is None else alive
    chex.assert_shape(alive, (count,))
    place = jnp.arange(count, dtype=jnp.int32)
    if count < 2:
        return jnp.where(alive, place, -1)
    gram, squares = gram.astype(jnp.float32), squares.astype(jnp.float32)
    gram = gram / 2 + gram.T / 2  # products of matrices may be symmetric up to rounding only
    power = jnp.diagonal(gram)
    threshold, slack = jnp.asarray(threshold, jnp.float32), jnp.asarray(slack, jnp.float32)

    def rank(row: Array, node: Array, squares: Array, power: Array, alive: Array) -> Array:
        """Returns the ordinary cosines of one node with all nodes `[M]`, -inf where the two must not merge."""
        corrected = jnp.clip(row / (jnp.sqrt(squares[node]) * jnp.sqrt(squares)), -1, 1)
        cosine = row / (jnp.sqrt(power[node]) * jnp.sqrt(power))
        noise = jnp.maximum((power[node] / squares[node]) * (power / squares) - 1, 0)
        needed = threshold - jnp.minimum(slack * jnp.sqrt(noise), jnp.abs(threshold) / 2)
        may = (squares[node] > 0) & (squares > 0) & (corrected >= needed) & jnp.isfinite(cosine)
        return jnp.where(may & alive[node] & alive & (place != node), cosine, -jnp.inf)

    def step(state: tuple) -> tuple:
        gram, row, node, squares, power, alive, label, partner, bound, fresh = state
        # The row of the previous step is written only now; see `merging.py`.
        gram = lax.dynamic_update_index_in_dim(gram, row, node, 0)
        gram = lax.dynamic_update_index_in_dim(gram, row, node, 1)
        top, _ = _first_largest(bound)
        merges = fresh[top]  # otherwise the step only searches the node's partner again
        node = jnp.where(merges, jnp.minimum(top, partner[top]), top)
        gone = jnp.where(merges, jnp.maximum(top, partner[top]), count)  # count is no node
        other = jnp.minimum(gone, count - 1)
        added = jnp.where(merges, gram[other], 0)
        twice = 2 * gram[node, other]
        squares = squares.at[node].add(jnp.where(merges, squares[other] + twice, 0))
        power = power.at[node].add(jnp.where(merges, power[other] + twice, 0))
        row = gram[node] + added
        row = row.at[node].set(power[node])
        alive = alive & (place != gone)
        label = jnp.where(label == gone, node, label)

        cosine = rank(row, node, squares, power, alive)  # [M]
        # A bound remains valid when the partner has merged: the other numbers of the row have not changed.
        fresh = fresh & (partner != node) & (partner != gone)
        closer = (cosine > bound) | ((cosine == bound) & (~fresh | (node < partner)) & (cosine > -jnp.inf))
        partner = jnp.where(closer, node, partner)
        bound = jnp.where(alive, jnp.where(closer, cosine, bound), -jnp.inf)
        fresh = fresh | closer
        best, value = _first_largest(cosine)
        here = place == node
        partner, bound, fresh = jnp.where(here, best, partner), jnp.where(here, value, bound), fresh | here
        return gram, row, node, squares, power, alive, label, partner, bound, fresh

    cosine = jax.vmap(rank, in_axes=(0, 0, None, None, None))(gram, place, squares, power, alive)  # [M, M]
    partner, bound = jax.vmap(_first_largest)(cosine)
    state = gram, gram[0], jnp.int32(0), squares, power, alive, place, partner, bound, jnp.ones(count, bool)
    state = lax.while_loop(lambda state: (state[8] > -jnp.inf).any(), step, state)
    return jnp.where(alive, state[6], -1)


def _first_largest(values: Array) -> tuple[Array, Array]:
    """Returns the first index of the largest value of `[M]`, and the value; on a CPU faster than `argmax`."""
    value = values.max()
    place = jnp.arange(values.shape[0], dtype=jnp.int32)
    return jnp.where(values == value, place, values.shape[0] - 1).min(), value
