"""Partitions by class, after which the clients have different labels."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from jaxfl.data.labels import check_classes
from jaxfl.data.partition.parts import (
    Parts,
    as_array,
    check_count,
    check_min_rows,
    check_real,
    group_members,
    number_lists,
    split_equally,
)
from jaxfl.random import host_rng


def dirichlet(labels: ArrayLike, num_clients: int, *, alpha: float, min_rows: int = 1, seed: int = 0) -> Parts:
    """Returns each client's share of each class, drawn from Dirichlet(alpha); every row belongs to one client.

    Shares are drawn once; then clients with fewer than `min_rows` rows take random rows from the largest client. This
    always ends, whereas repeated draws until all are large enough do not end for a small alpha.

    Args:
        labels: classes `[P]`, an array or a list.
        num_clients: N.
        alpha: concentration; a large one is iid, a small one gives each class to few clients.
        min_rows: least rows of a client.
        seed: seed of all draws.

    References:
        Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution", 2019; by class as in Yurochkin
        et al., "Bayesian Nonparametric Federated Learning of Neural Networks", 2019.

    >>> sorted(np.concatenate(dirichlet(np.array([0, 0, 1, 1, 1]), 3, alpha=0.1)).tolist())
    [0, 1, 2, 3, 4]
    """
    labels = _class_labels("dirichlet", labels)
    check_count("num_clients", num_clients)
    check_real("alpha", alpha)
    if not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(f"alpha must be positive and finite, got {alpha}; 0.1 is strongly skewed, 100 is nearly iid.")
    check_min_rows(len(labels), num_clients, min_rows)
    rng = host_rng(seed, "partition", "dirichlet")
    owners = [np.zeros(0, np.int64)] * num_clients
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(num_clients, alpha))
        if not np.isfinite(shares).all():  # every gamma variate underflowed: in the limit, one client takes all
            shares = (np.arange(num_clients) == rng.integers(num_clients)).astype(float)
        cuts = np.floor(np.cumsum(shares)[:-1] * len(rows) + 0.5).astype(int)
        owners = [np.concatenate([rows, more]) for rows, more in zip(owners, np.split(rows, cuts), strict=True)]
    parts = [rng.permutation(rows) for rows in owners]
    sizes = np.array([len(part) for part in parts])
    for client in np.flatnonzero(sizes < min_rows):
        while sizes[client] < min_rows:
            # The largest has more than min_rows, because otherwise there would be less than N * min_rows in total.
            donor = int(sizes.argmax())
            count = int(min(min_rows - sizes[client], sizes[donor] - min_rows))
            parts[client] = np.concatenate([parts[client], parts[donor][:count]])
            parts[donor] = parts[donor][count:]
            sizes[client], sizes[donor] = sizes[client] + count, sizes[donor] - count
    return parts


def pathological(
    labels: ArrayLike,
    num_clients: int,
    *,
    label_groups: Sequence[Sequence[int]] | None = None,
    rows_per_client: int | None = None,
    seed: int = 0,
) -> tuple[Parts, np.ndarray]:
    """Returns a partition in which each group of clients has only its own classes (StoCFL's pathological skew).

    Args:
        labels: classes `[P]`, an array or a list.
        num_clients: N, a multiple of the number of groups.
        label_groups: classes of each group; no class twice, and classes of no group are left out. None is
            `default_groups`: those of the paper for ten classes.
        rows_per_client: rows of each client; None divides all rows of the groups' classes.
        seed: seed of the permutations.

    Returns:
        One index array per client, and the group of each client `[N]`.

    Raises:
        ValueError: a group has no class, a class is in two groups or not in the data, N is not a multiple of the number
            of groups, or there are too few rows.

    >>> parts, group = pathological(np.array([0, 1, 0, 1]), 2, label_groups=((0,), (1,)))
    >>> sorted(parts[1].tolist()), group.tolist()
    ([1, 3], [0, 1])
    """
    labels = _class_labels("pathological", labels)
    if label_groups is None:
        label_groups = default_groups(int(labels.max(initial=0)) + 1)
    groups = [tuple(group.tolist()) for group in number_lists("label_groups", label_groups, "group")]
    if not all(groups) or not groups:
        raise ValueError(f"label_groups must have a class for every group, got {tuple(groups)}; remove empty groups.")
    members = group_members(num_clients, len(groups))
    classes = [label for group in groups for label in group]
    if len(set(classes)) < len(classes):
        raise ValueError(f"label_groups must have every class at most once, got {tuple(groups)}.")
    if absent := sorted(set(classes) - set(np.unique(labels).tolist())):
        raise ValueError(
            f"label_groups must have classes of the data ({np.unique(labels).tolist()}), got {absent[0]}; correct "
            "label_groups."
        )
    parts: Parts = []
    for index, group in enumerate(groups):
        order = host_rng(seed, "partition", "pathological", index).permutation(np.flatnonzero(np.isin(labels, group)))
        parts += split_equally(order, members, rows_per_client, f"with labels {group}")
    return parts, np.repeat(np.arange(len(groups), dtype=np.int32), members)


def default_groups(num_classes: int) -> tuple[tuple[int, ...], ...]:
    """Returns StoCFL's four groups of ten classes; for other numbers of classes, at most four runs of neighbours.

    >>> default_groups(10), default_groups(6), default_groups(2)
    (((0, 1, 2), (3, 4), (5, 6), (7, 8, 9)), ((0, 1), (2, 3), (4,), (5,)), ((0,), (1,)))
    """
    check_count("num_classes", num_classes)
    if num_classes == 10:
        return ((0, 1, 2), (3, 4), (5, 6), (7, 8, 9))
    runs = np.array_split(np.arange(num_classes), min(4, num_classes))
    return tuple(tuple(run.tolist()) for run in runs)


def dominant(
    labels: ArrayLike,
    num_clients: int,
    *,
    beta: float,
    num_groups: int | None = None,
    rows_per_client: int | None = None,
    seed: int = 0,
) -> tuple[Parts, np.ndarray]:
    """Returns a partition with a dominant class per group: a share beta of the rows, the rest evenly of other classes.

    This is LayerCFL's label skew. The paper does not state the dominant classes: here group g has the g-th class.

    Args:
        labels: classes `[P]`, an array or a list.
        num_clients: N, a multiple of `num_groups`.
        beta: share of the dominant class, 0 to 1 (the paper: 0.5 and 0.8).
        num_groups: number of dominant classes (the paper: 4, and 2 for its heat maps); None is 4, or all classes if
            there are fewer.
        rows_per_client: rows of each client; None takes as many as the rarest class allows.
        seed: seed of the permutations.

    Returns:
        One index array per client, and the group of each client `[N]`.

    >>> labels = np.repeat([0, 1, 2], 20)
    >>> parts, _ = dominant(labels, 4, beta=0.5, num_groups=2, rows_per_client=8)
    >>> [np.bincount(labels[part]).tolist() for part in parts]
    [[4, 2, 2], [4, 2, 2], [2, 4, 2], [2, 4, 2]]
    """
    labels = _class_labels("dominant", labels)
    classes, counts = np.unique(labels, return_counts=True)
    num_groups = min(4, max(len(classes), 1)) if num_groups is None else num_groups
    members = group_members(num_clients, num_groups)
    check_real("beta", beta)
    if not 0 <= beta <= 1:
        raise ValueError(f"beta must be between 0 and 1, the share of the dominant class, got {beta}.")
    if not (num_groups <= len(classes) and len(classes) > 1):
        raise ValueError(
            f"num_groups must be at most the number of classes ({len(classes)}), which must be 2 or more, got "
            f"{num_groups}."
        )
    group = np.repeat(np.arange(num_groups, dtype=np.int32), members)

    def quotas(rows: int) -> np.ndarray:  # [N, L] rows of each class
        first = int(np.floor(beta * rows + 0.5))
        each, odd = divmod(rows - first, len(classes) - 1)
        # Classes after the dominant one in turn; the remainder starts at another class for every client.
        turn = (np.arange(len(classes))[None] - group[:, None]) % len(classes)  # [N, L], 0 is the dominant class
        extra = (turn - 1 - np.arange(num_clients)[:, None] * odd) % (len(classes) - 1) < odd
        return np.where(turn == 0, first, each + extra)

    def fits(rows: int) -> bool:
        return bool((quotas(rows).sum(0) <= counts).all())

    if rows_per_client is None:
        # In decreasing order: because of rounding, quotas may fit at one size and not at the next smaller one.
        rows = next((rows for rows in range(len(labels) // num_clients, 0, -1) if fits(rows)), 0)
        if not rows:
            raise ValueError(f"num_clients must be lower for {len(labels)} rows, got {num_clients}.")
    else:
        check_count("rows_per_client", rows_per_client)
        rows = rows_per_client
        if not fits(rows):
            lack = int(np.argmax(quotas(rows).sum(0) - counts))
            raise ValueError(
                f"rows_per_client must use each row at most once, got {rows}: {num_clients} clients need "
                f"{quotas(rows).sum(0)[lack]} rows of class {classes[lack]}, and there are {counts[lack]}; lower it or "
                "num_clients."
            )
    share = quotas(rows)
    parts: list[Parts] = [[] for _ in range(num_clients)]
    for index, label in enumerate(classes):
        order = host_rng(seed, "partition", "dominant", index).permutation(np.flatnonzero(labels == label))
        for client, rows in enumerate(np.split(order, np.cumsum(share[:, index]))[:num_clients]):
            parts[client].append(rows)
    return [np.concatenate(part) for part in parts], group


def shards(labels: ArrayLike, num_clients: int, *, shards_per_client: int = 2, seed: int = 0) -> Parts:
    """Returns random shards of the rows sorted by class for each client; every row belongs to one client.

    With two shards a client has rows of two classes, rarely of more. Sizes of shards differ by at most one row.

    Args:
        labels: classes `[P]`, an array or a list.
        num_clients: N.
        shards_per_client: shards of each client.
        seed: seed of the order within a class, and of the assignment of shards.

    References:
        McMahan, Moore, Ramage, Hampson and Aguera y Arcas, "Communication-Efficient Learning of Deep Networks from
        Decentralized Data", AISTATS 2017, section 3: MNIST in 200 shards of 300 for 100 clients.

    >>> [np.unique(np.repeat([0, 1, 2, 3], 10)[part]).size for part in shards(np.repeat([0, 1, 2, 3], 10), 2)]
    [2, 2]
    """
    labels = _class_labels("shards", labels)
    check_count("num_clients", num_clients)
    check_count("shards_per_client", shards_per_client)
    count = num_clients * shards_per_client
    if count > len(labels):
        raise ValueError(
            f"shards_per_client must allow a row per shard, got {shards_per_client}: {num_clients} clients have "
            f"{count} shards of {len(labels)} rows; lower it or num_clients."
        )
    rng = host_rng(seed, "partition", "shards")
    order = rng.permutation(len(labels))
    pieces = np.array_split(order[np.argsort(labels[order], kind="stable")], count)
    owners = rng.permutation(count).reshape(num_clients, shards_per_client)
    return [np.concatenate([pieces[shard] for shard in shards_of_client]) for shards_of_client in owners]


def _class_labels(which: str, labels: ArrayLike) -> np.ndarray:
    """Returns labels, such as a list, as an array `[P]`; raises ValueError unless they are classes."""
    labels = as_array("labels", labels)
    check_classes(which, labels)
    return labels
