"""How well found clusters agree with true groups, whatever the clusters are called; NumPy, on the host.

Labels are any integers, one a client, in arrays `[N]`; -1 is a label like any other. Every score is 1 for equal
partitions and symmetric in its arguments, but for `purity`. Without any clients every score is 1.
"""

import numpy as np
from numpy.typing import ArrayLike


def contingency(a: ArrayLike, b: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts of clients by their two labels, of the P pairs of labels that occur: a table would have N x N cells.

    Args:
        a: integers `[N]`.
        b: integers `[N]`.

    Returns:
        int64 `[P]` each: the counts, and the places of the two labels among those of `a` and of `b`, in increasing
        order.

    Raises:
        ValueError: if the two are not vectors of one length.

    >>> [part.tolist() for part in contingency([0, 0, 1], [5, 7, 7])]
    [[1, 1, 1], [0, 0, 1], [0, 1, 1]]
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(
            f"labels must be two vectors of one length, got shapes {a.shape} and {b.shape}; pass one each."
        )
    row, column = (np.unique(labels, return_inverse=True)[1] for labels in (a, b))
    pairs, counts = np.unique(row * a.size + column, return_counts=True)  # a number a pair: unique rows are slow
    return counts, *np.divmod(pairs, max(a.size, 1))


def adjusted_rand_index(a: ArrayLike, b: ArrayLike) -> float:
    """Share of client pairs on which two partitions agree, corrected for chance: 1 equal, 0 as random labels, >= -0.5.

    Args:
        a: integers `[N]`.
        b: integers `[N]`.

    Reference: Hubert and Arabie, "Comparing partitions", 1985.

    >>> adjusted_rand_index([0, 0, 1, 1], [1, 1, 0, 0])
    1.0
    """
    counts, row, column = contingency(a, b)
    total = _num_pairs(counts.sum())
    both, in_a, in_b = (
        _num_pairs(part).sum() for part in (counts, np.bincount(row, counts), np.bincount(column, counts))
    )
    if in_a == both and in_b == both:  # the partitions are equal; also covers one cluster and all singletons
        return 1.0
    expected = in_a * in_b / total
    return float((both - expected) / ((in_a + in_b) / 2 - expected))


def normalized_mutual_information(a: ArrayLike, b: ArrayLike) -> float:
    """Mutual information of two partitions over the arithmetic mean of their entropies: within [0, 1].

    Args:
        a: integers `[N]`.
        b: integers `[N]`.

    Reference: Strehl and Ghosh, "Cluster ensembles: a knowledge reuse framework for combining multiple partitions",
    2002 (there with the geometric mean; the arithmetic one is scikit-learn's default).

    >>> round(normalized_mutual_information([0, 0, 1, 1], [0, 0, 1, 2]), 3)
    0.8
    """
    counts, row, column = contingency(a, b)
    if len(counts) <= 1:  # both are one cluster: equal, though neither has any entropy
        return 1.0
    joint, in_a, in_b = (_entropy(part) for part in (counts, np.bincount(row, counts), np.bincount(column, counts)))
    mutual = max(0.0, in_a + in_b - joint)
    if mutual <= np.finfo(np.float64).eps:
        return 0.0
    return float(min(1.0, 2 * mutual / (in_a + in_b)))


def purity(truth: ArrayLike, found: ArrayLike) -> float:
    """Share of clients that belong to the largest true group of their found cluster; 1 also for all singletons.

    Args:
        truth: true groups, integers `[N]`.
        found: found clusters, integers `[N]`.

    Reference: Manning, Raghavan and Schuetze, "Introduction to information retrieval", 2008, section 16.3.

    >>> purity([0, 0, 1, 1], [0, 0, 0, 1])
    0.75
    """
    counts, _, cluster = contingency(truth, found)
    if len(counts) == 0:
        return 1.0
    largest = np.zeros(cluster.max() + 1, int)
    np.maximum.at(largest, cluster, counts)
    return float(largest.sum() / counts.sum())


def _num_pairs(counts: np.ndarray) -> np.ndarray:
    """Returns the number of unordered pairs in groups of the given sizes, as floats: counts squared may overflow."""
    counts = np.asarray(counts, np.float64)
    return counts * (counts - 1) / 2


def _entropy(counts: np.ndarray) -> float:
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())
