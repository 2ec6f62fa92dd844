"""Connected components of the graph of pairs above a threshold."""

import chex
import jax
import jax.numpy as jnp
from jax import lax

from jaxfl.typing import Array


@jax.jit
def threshold_components(similarity: Array, threshold: Array | float, alive: Array | None = None) -> Array:
    """Returns the connected components `[N]` of the graph whose edges are the pairs with `similarity >= threshold`.

    The result equals merging all pairs by decreasing similarity down to the threshold (StoCFL's rule: single linkage
    cut at the threshold), without an order of the pairs.

    The first label of every node is its index. In a step each tree of labels hooks onto the smallest label among the
    neighbours of its nodes (min-label propagation) and is flattened by pointer jumping; steps repeat until nothing
    changes. Long chains take few steps, because whole trees hook, not single nodes.

    Args:
        similarity: float `[N, N]`; an edge in one direction is enough, NaN is no edge, the diagonal is ignored.
        threshold: tau of the paper; above the largest similarity every node is a component of its own.
        alive: bool `[N]`, None for all; other nodes are ignored.

    Returns:
        int32 `[N]`: the smallest index in the node's component, -1 for nodes that are not alive.

    References: Zeng et al., "Stochastic clustered federated learning", 2023, Algorithm 1, lines 8-11; Zhang, Azad and
    Hu, "FastSV: a distributed-memory connected component algorithm with fast convergence", 2020.

    >>> similarity = jnp.array([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.1, 0.2, 1.0]])
    >>> threshold_components(similarity, 0.5).tolist()
    [0, 0, 2]
    """
    chex.assert_rank(similarity, 2)
    count = similarity.shape[0]
    chex.assert_shape(similarity, (count, count))
    alive = jnp.ones(count, bool) if alive is None else alive
    chex.assert_shape(alive, (count,))
    near = similarity >= threshold
    near = (near | near.T) & alive[:, None] & alive[None, :]  # [N, N]

    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        labels, _ = state  # every tree is flat here: labels[labels] == labels
        smallest = jnp.where(near, labels[None, :], count).min(axis=1, initial=count)  # [N], over the neighbours
        hooked = labels.at[labels].min(jnp.minimum(smallest, labels))  # on roots: N writes, not N^2
        flat = lax.while_loop(lambda tree: (tree[tree] != tree).any(), lambda tree: tree[tree], hooked)
        return flat, (flat != labels).any()

    # A label never leaves its component and never exceeds the node's index, so the smallest node of a component keeps
    # its label; when no neighbours differ, it is the label of the whole component.
    start = jnp.arange(count, dtype=jnp.int32)
    labels, _ = lax.while_loop(lambda state: state[1], step, (start, jnp.array(True)))
    return jnp.where(alive, labels, -1)
