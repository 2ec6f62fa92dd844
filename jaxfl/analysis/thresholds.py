"""Sweep of StoCFL's threshold: the clusters at many thresholds, from one matrix of cosines."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxfl.clustering import components, distances, linkage, scores
from jaxfl.methods.stocfl.representation import check_points
from jaxfl.typing import Array

GRID = 101  # thresholds, where none are given


def threshold_sweep(
    points: np.ndarray | Array,
    thresholds: Sequence[float] | np.ndarray | None = None,
    *,
    group: Sequence[int] | np.ndarray | Array | None = None,
) -> list[dict[str, Any]]:
    """Returns the clusters of StoCFL at every threshold, without training.

    They are the clusters of its first round with all clients in the cohort. Merging all pairs with a cosine of at least
    tau is single linkage, so that one tree is cut at every tau.

    Args:
        points: representations `[N, d]`, for example from `jaxfl.representations`. A row of zeros (a
            client without training rows, which StoCFL leaves out) has cosine 0 to all others.
        thresholds: the tau; None takes 101, evenly spaced from the smallest to the largest cosine of two clients.
        group: true groups `[N]`, if they are known.

    Returns:
        A row for each threshold, in the order given: `threshold`, `clusters` (how many), `largest` (clients of the
        largest one), `objective` (equation 2: the cosines of the means of all pairs of clusters, added up), and with
        `group` also `ari` and `nmi`.

    Raises:
        ValueError: a shape is wrong, or a number is not finite.

    Reference: Zeng et al., "Stochastic Clustered Federated Learning", 2023, Algorithm 1, lines 9-13, and equation 2.

    >>> points = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> rows = threshold_sweep(points, [-1.0, 0.5, 1.1], group=[0, 0, 1, 1])
    >>> [(row["clusters"], row["largest"], row["ari"]) for row in rows]
    [(1, 4, 0.0), (2, 2, 1.0), (4, 1, 0.0)]
    """
    rows = check_points(points)
    truth = None if group is None else np.asarray(group)
    if truth is not None and truth.shape != (len(rows),):
        raise ValueError(
            f"group must have one entry for each of the {len(rows)} rows of points, got shape {truth.shape}."
        )
    similarity = distances.cosine(jnp.asarray(rows))
    # negated, not subtracted from 1, which would round a cosine that equals the threshold
    tree = linkage.linkage(-similarity, "single")
    cosine = np.array(similarity)  # [N, N]
    if thresholds is None:
        off = cosine[~np.eye(len(rows), dtype=bool)]
        thresholds = np.linspace(float(off.min()), float(off.max()), GRID)
    wanted = [float(tau) for tau in thresholds]
    if not wanted or not np.isfinite(wanted).all():
        raise ValueError(f"thresholds must be one or more finite numbers, got {thresholds!r}; None takes an even grid.")

    length = np.linalg.norm(rows.astype(np.float64), axis=1)
    gram = (
        cosine.astype(np.float64) * length[:, None] * length[None, :]
    )  # inner products of the clusters' sums; at first each cluster is one client
    above = np.arange(len(rows))  # clusters at the next higher threshold, which are merged below
    found = {}
    for tau in sorted(set(wanted), reverse=True):
        labels = np.asarray(linkage.cut_by_threshold(tree, -tau))  # [N]
        number = int(labels.max()) + 1
        if number < len(gram):
            parts = np.zeros(len(gram), int)
            parts[above] = labels
            gram = _sum_by_part(_sum_by_part(gram, parts).T, parts)
            length = np.bincount(parts, length)
        above = labels
        found[tau] = {
            "threshold": tau,
            "clusters": number,
            "largest": int(np.bincount(labels).max()),
            "objective": _objective(gram, length),
        }
        if truth is not None:
            found[tau] |= {
                "ari": scores.adjusted_rand_index(truth, labels),
                "nmi": scores.normalized_mutual_information(truth, labels),
            }
    return [dict(found[tau]) for tau in wanted]


def clusters_at(points: np.ndarray | Array, threshold: float) -> np.ndarray:
    """Returns the clusters of `threshold_sweep` at one threshold, `[N]` int32: the first client in each one's cluster.

    A cluster keeps its number at all thresholds; parts that split off get others.

    Args:
        points: `[N, d]`.
        threshold: tau.

    >>> clusters_at(np.array([[0.0, 1.0], [0.1, 0.9], [1.0, 0.0], [0.9, 0.1]]), 0.5).tolist()
    [0, 0, 2, 2]
    """
    return np.asarray(components.threshold_components(distances.cosine(jnp.asarray(check_points(points))), threshold))


def _sum_by_part(matrix: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Returns the sum of the rows of every part, `[P, ...]`."""
    order = np.argsort(parts, kind="stable")
    return np.add.reduceat(matrix[order], np.searchsorted(parts[order], np.arange(parts.max() + 1)))


def _objective(gram: np.ndarray, length: np.ndarray) -> float:
    """Returns the sum of the cosines of all pairs of clusters.

    Args:
        gram: inner products of the clusters' sums `[K, K]`.
        length: sum of the norms of each cluster's representations `[K]`.
    """
    own = np.diagonal(gram)
    there = own > 1e-6 * np.square(length)  # a sum that cancels has no direction but its rounding errors
    scale = np.where(there, 1 / np.sqrt(np.where(there, own, 1)), 0)
    return float((scale @ gram @ scale - there.sum()) / 2)
