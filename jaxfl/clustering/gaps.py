"""Separation of true groups by a similarity matrix: the gaps of LayerCFL, and a sufficient condition by Sattler et al.

A gap needs the true groups, so it evaluates a layer or a distance afterwards. Theorem 1 needs a bound on the noise
instead, so a method can check it at every split.

References: Yuan et al., "LayerCFL: an efficient federated learning with layer-wised clustering", 2023, equations 9-22;
Sattler, Mueller and Samek, "Clustered federated learning: model-agnostic distributed multitask optimization under
privacy constraints", 2019, theorem 1.
"""

import chex
import jax
import jax.numpy as jnp

from jaxfl.clustering import linkage
from jaxfl.typing import Array


@jax.jit
def gap_all_pairs(similarity: Array, group: Array) -> Array:
    """Returns the least similarity within true groups minus the largest across: `alpha_intra_min - alpha_cross_max`.

    It is positive exactly if a threshold separates all pairs within groups from all pairs across; every linkage then
    finds the groups. Equation 21 (Gap1) for any number of groups. Equation 22 (Gap2) is `gap_all_pairs(-distances,
    group)`, which is `alpha_cross_min - alpha_intra_max`.

    Args:
        similarity: float `[N, N]`, symmetric; the diagonal is ignored, NaN counts as not similar. float64 stays, all
            other types are computed in float32. For several matrices: `jax.vmap(gap_all_pairs, (0, None))`.
        group: int `[N]`, the true groups; clients with a number below 0 have an unknown group and are ignored.

    Returns:
        `[]`, never NaN. Infinity where no confusion is possible: one group (no pair across) or groups of one client
        (no pair within). Minus infinity if NaN is within a group.

    >>> similarity = jnp.array([[1, 0.75, 0], [0.75, 1, 0.25], [0, 0.25, 1]])
    >>> gap_all_pairs(similarity, jnp.array([0, 0, 1]))
    Array(0.5, dtype=float32)
    """
    similarity, within, across = _pair_masks(similarity, group)
    return _gap(_least_similarity(similarity, within), jnp.where(across, similarity, -jnp.inf).max())


@jax.jit
def gap_bipartition(similarity: Array, group: Array) -> Array:
    """Returns the least similarity within true groups minus the largest across the best bipartition: Sattler's gap.

    The split is `linkage.bipartition` with single linkage, which has the least similarity across. If the gap is
    positive, the split divides no true group, and groups that stay together may be separated later. With two or more
    groups it is at least `gap_all_pairs`; both are equal where the split separates two groups.

    Args:
        similarity: as in `gap_all_pairs`; negated distances for distances.
        group: as in `gap_all_pairs`.

    Returns:
        `[]`, never NaN. Infinity for two or more groups of one client. Never positive for one group, which any split
        divides; minus infinity for fewer than two clients, or if NaN is within a group.

    >>> pair = jnp.array([[1, 0.75], [0.75, 1]])
    >>> similarity = jnp.full((4, 4), 0.25).at[:2, :2].set(pair).at[2:, 2:].set(pair)
    >>> gap_bipartition(similarity, jnp.array([0, 0, 1, 1]))
    Array(0.5, dtype=float32)
    >>> three = jnp.array([0, 0, 1, 2])  # groups 1 and 2 stay together, so their 0.75 is not across the split
    >>> gap_bipartition(similarity, three).item(), gap_all_pairs(similarity, three).item()
    (0.5, 0.0)
    """
    similarity, within, _ = _pair_masks(similarity, group)
    _, alpha_cross = linkage.bipartition(similarity, group >= 0)
    return _gap(_least_similarity(similarity, within), alpha_cross)


def intra_bound(gamma_i: Array | float, gamma_j: Array | float) -> Array:
    """Returns the least possible cosine of the gradients of two clients of one group: `H_ij`, equation 18.

    gamma is `|gradient of the group's risk - the client's gradient| / |gradient of the group's risk|`: the client's
    gradient is at most `arcsin(gamma)` from the group's, so the angle of two clients is at most the sum of these
    angles. The bound is tight, and at least `1 - 2 max(gamma)^2` (equation 19).

    Args:
        gamma_i: float, at least 0.
        gamma_j: float, of a shape that broadcasts with that of `gamma_i`; `[N, 1]` and `[1, N]` give all pairs.

    Returns:
        float of their common shape, within [-1, 1]; -1 where a gamma is above 1, since such noise may reverse a
        gradient.

    >>> intra_bound(0.0, jnp.array([0.0, 0.6, 1.0])).tolist()
    [1.0, 0.8..., 0.0]
    """
    gamma_i, gamma_j = jnp.asarray(gamma_i, float), jnp.asarray(gamma_j, float)
    cosine_i, cosine_j = (jnp.sqrt(jnp.maximum(1 - gamma * gamma, 0)) for gamma in (gamma_i, gamma_j))
    bounded = (gamma_i <= 1) & (gamma_j <= 1)
    return jnp.where(bounded, cosine_i * cosine_j - gamma_i * gamma_j, -1.0)


def max_gamma(alpha_cross: Array | float) -> Array:
    """Returns the noise up to which a split is certainly correct: `sqrt((1 - alpha_cross) / 2)`, equation 20.

    This is `sin(t / 2)` for the angle t between the most similar clients across the split.

    Args:
        alpha_cross: float of any shape, the largest cosine across; values outside [-1, 1] are clipped.

    Returns:
        float of that shape, within [0, 1].

    >>> max_gamma(jnp.array([1.0, 0.5, -1.0, jnp.inf])).tolist()
    [0.0, 0.5, 1.0, 0.0]
    """
    return jnp.sqrt((1 - jnp.clip(jnp.asarray(alpha_cross, float), -1, 1)) / 2)


def is_correct_split(alpha_cross: Array | float, gamma_max: Array | float) -> Array:
    """Returns whether `alpha_cross < 1 - 2 gamma_max^2`, that is `max_gamma(alpha_cross) > gamma_max`: theorem 1.

    The split is then correct: clients of one group are at least that similar (`intra_bound`), so no pair of them can be
    across. The reverse does not hold: a correct split may fail the check.

    Args:
        alpha_cross: float, the largest cosine across, from `linkage.bipartition`; its infinity for a single member
            fails the check.
        gamma_max: float within [0, 1], the largest gamma of the clients.

    Returns:
        bool of their common shape.

    >>> is_correct_split(jnp.array([0.4, 0.6]), 0.5).tolist()
    [True, False]
    """
    gamma_max = jnp.asarray(gamma_max, float)
    return jnp.asarray(alpha_cross, float) < 1 - 2 * gamma_max * gamma_max


def _pair_masks(similarity: Array, group: Array) -> tuple[Array, Array, Array]:
    """Returns similarities without NaN, and masks of the pairs within a group and across two groups, `[N, N]` each."""
    chex.assert_rank([similarity, group], [2, 1])
    count = group.shape[0]
    chex.assert_shape(similarity, (count, count))
    similarity = similarity if similarity.dtype == jnp.float64 else similarity.astype(jnp.float32)
    similarity = jnp.where(jnp.isnan(similarity), -jnp.inf, similarity)
    known = (group >= 0)[:, None] & (group >= 0)[None, :]
    same = group[:, None] == group[None, :]
    return similarity, known & same & ~jnp.eye(count, dtype=bool), known & ~same


def _least_similarity(similarity: Array, pairs: Array) -> Array:
    return jnp.where(pairs, similarity, jnp.inf).min()


def _gap(intra: Array, cross: Array) -> Array:
    """Returns intra - cross, or minus infinity where one of them is the worst possible, so that no NaN occurs."""
    hopeless = (intra == -jnp.inf) | (cross == jnp.inf)
    return jnp.where(hopeless, -jnp.inf, intra - cross)
