"""Scores of agreement between found clusters and true groups, independent of label names; NumPy, on the host.

Labels are integers, one per client, in arrays `[N]`; -1 is an ordinary label. Every score is 1 for equal partitions,
and symmetric in its arguments except for `purity`. Without clients every score is 1.
"""

import numpy as np
from numpy.typing import ArrayLike


def contingency(a: ArrayLike, b: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the counts of clients for the P pairs of labels that occur; a table would have N x N cells.

    Args:
        a: integers `[N]`.
        b: integers `[N]`.

    Returns:
        int64 `[P]` each: the counts, and the ranks of the two labels among the labels of `a` and of `b`.

    Raises:
        ValueError: `a` and `b` are not vectors of equal length.

    >>> [part.tolist() for part in contingency([0, 0, 1], [5, 7, 7])]
    [[1, 1, 1], [0, 0, 1], [0, 1, 1]]
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(
            f"labels must be vectors of equal length, got shapes {a.shape} and {b.shape}; pass one label per client."
        )
    row, column = (np.unique(labels, return_inverse=True)[1] for labels in (a, b))
    pairs, counts = np.unique(row * a.size + column, return_counts=True)  # one number per pair: unique rows are slow
    return counts, *np.divmod(pairs, max(a.size, 1))


def adjusted_rand_index(a: ArrayLike, b: ArrayLike) -> float:
    """Returns the share of client pairs on which two partitions agree, corrected for chance.

    It is 1 for equal partitions, 0 on average for random labels, and at least -0.5.

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
    """Returns the mutual information of two partitions divided by the mean of their entropies, within [0, 1].

    Args:
        a: integers `[N]`.
        b: integers `[N]`.

    Reference: Strehl and Ghosh, "Cluster ensembles: a knowledge reuse framework for combining multiple partitions",
    2002 (there with the geometric mean; the arithmetic one is scikit-learn's default).

    >>> round(normalized_mutual_information([0, 0, 1, 1], [0, 0, 1, 2]), 3)
    0.8
    """
    counts, row, column = contingency(a, b)
    if len(counts) <= 1:  # both are one cluster: equal, and both entropies are 0
        return 1.0
    joint, in_a, in_b = (_entropy(part) for part in (counts, np.bincount(row, counts), np.bincount(column, counts)))
    mutual = max(0.0, in_a + in_b - joint)
    if mutual <= np.finfo(np.float64).eps:
        return 0.0
    return float(min(1.0, 2 * mutual / (in_a + in_b)))


def purity(truth: ArrayLike, found: ArrayLike) -> float:
    """Returns the share of clients in the largest true group of their found cluster; 1 also if all are singletons.

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
    """Returns the number of unordered pairs in groups of given sizes, as floats because squared counts may overflow."""
    counts = np.asarray(counts, np.float64)
    return counts * (counts - 1) / 2


def _entropy(counts: np.ndarray) -> float:
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())
