"""Partitions by class, after which the clients have different labels."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from jaxfl.data.partition.dirichlet import UNITS, cut_by_shares, integer_shares
from jaxfl.data.partition.parts import (
    Parts,
    check_count,
    check_known_classes,
    check_real,
    class_labels,
    group_members,
    number_lists,
    split_equally,
)
from jaxfl.random import host_rng

RESERVE = 0.1  # of a class's rows, that is divided evenly among the groups that have the class (CLoVE)
RESERVE_STEP = 0.05  # by which it grows where a group has too few rows
LEAST_ROWS = 40  # of a client's rows by PFLlib's rule, of which each class has its part

Groups = Sequence[Sequence[int]]


def pathological(
    labels: ArrayLike,
    num_clients: int,
    *,
    label_groups: Groups | None = None,
    client_classes: int | None = None,
    overlap: float | None = None,
    reserve: float = RESERVE,
    uneven: bool = False,
    rows_per_client: int | None = None,
    seed: int = 0,
) -> tuple[Parts, np.ndarray]:
    """Returns a partition in which each group of clients has only its own classes (StoCFL's pathological skew).

    Args:
        labels: classes `[P]`, an array or a list.
        num_clients: N, a multiple of the number of groups.
        label_groups: classes of each group; classes of no group are left out, and a class may be in several groups with
            `overlap`. None is `default_groups`: those of the paper for ten classes.
        client_classes: number of classes of a client, by PFLlib's rule, see `neighbour_groups`; instead of
            `label_groups`, and for any N.
        overlap: concentration of the Dirichlet distribution by which the rows of a class go to its groups (CLoVE: 0.5).
        reserve: share of these rows that is divided evenly first. It grows by 0.05 until each group has enough rows.
        uneven: whether the clients have different numbers of rows of a class, by PFLlib's rule, see `uneven_sizes`.
        rows_per_client: rows of each client; None divides all rows of the groups' classes.
        seed: seed of all draws.

    Returns:
        One index array per client, and the group of each client `[N]`.

    Raises:
        ValueError: a group has no class, a class is in two groups without `overlap`, or not in the data, N is not a
            multiple of the number of groups, there are too few rows, or options exclude each other.

    References:
        Zeng et al., "Stochastic Clustered Federated Learning", 2023. Zhang et al., "PFLlib: A Beginner-Friendly and
        Comprehensive Personalized Federated Learning Library", JMLR 2025.

    >>> parts, group = pathological(np.array([0, 1, 0, 1]), 2, label_groups=((0,), (1,)))
    >>> sorted(parts[1].tolist()), group.tolist()
    ([1, 3], [0, 1])
    """
    labels = class_labels("pathological", labels)
    _check_reserve(overlap, reserve)
    check_count("num_clients", num_clients)
    if (uneven or client_classes is not None) and rows_per_client is not None:
        other = "uneven=true" if client_classes is None else f"client_classes={client_classes}"
        raise ValueError(
            f"rows_per_client must be left out with {other}, which divides all rows, got {rows_per_client}."
        )
    least = min(LEAST_ROWS, len(labels) // num_clients // 2) // max(len(np.unique(labels)), 1) if uneven else None
    if client_classes is not None:
        for name, value in {"label_groups": label_groups, "overlap": overlap}.items():
            if value is not None:
                raise ValueError(
                    f"{name} must be left out with client_classes={client_classes}, which says the groups, got {value}."
                )
        groups, group = neighbour_groups(np.unique(labels), num_clients, client_classes)
        return _divide_classes(labels, [groups[number] for number in group], least, seed), group
    if label_groups is None:
        label_groups = default_groups(int(labels.max(initial=0)) + 1)
    groups = [tuple(group.tolist()) for group in number_lists("label_groups", label_groups, "group")]
    if not all(groups) or not groups:
        raise ValueError(f"label_groups must have a class for every group, got {tuple(groups)}; remove empty groups.")
    group_members(num_clients, len(groups))
    classes = [label for group in groups for label in group]
    if len(set(classes)) < len(classes) and (overlap is None or any(len(set(own)) < len(own) for own in groups)):
        raise ValueError(
            f"label_groups must have every class at most once, got {tuple(groups)}; overlap=0.5 divides the rows of a "
            "class among several groups."
        )
    if len(set(classes)) == len(classes) and overlap is not None:
        raise ValueError(f"overlap must be left out where no class is in two groups, got {overlap}.")
    check_known_classes("label_groups", groups, np.unique(labels))
    return _divide_groups("pathological", labels, num_clients, groups, overlap, reserve, least, rows_per_client, seed)


def neighbour_groups(
    classes: np.ndarray, num_clients: int, client_classes: int
) -> tuple[tuple[tuple[int, ...], ...], np.ndarray]:
    """Returns the sets of classes that clients have by PFLlib's rule, and each client's set `[N]`.

    Class by class in order, the first ceil(N / L * client_classes) clients that still lack classes get the class. So
    neighbours have the same classes, and each set is a planted group. The clients of the last sets may have fewer
    classes, and the last classes may have no client.

    Args:
        classes: classes of the data `[L]`, sorted.
        num_clients: N.
        client_classes: number of classes of a client.

    >>> groups, group = neighbour_groups(np.arange(10), 20, 2)
    >>> groups[:2], np.bincount(group).tolist()
    (((0, 1), (2, 3)), [4, 4, 4, 4, 4])
    """
    check_count("num_clients", num_clients)
    check_count("client_classes", client_classes)
    if client_classes > len(classes):
        raise ValueError(
            f"client_classes must be at most the number of classes ({len(classes)}), got {client_classes}; lower it."
        )
    owned: list[list[int]] = [[] for _ in range(num_clients)]
    most = -(-num_clients * client_classes // len(classes))
    for label in classes.tolist():
        for client in [client for client in range(num_clients) if len(owned[client]) < client_classes][:most]:
            owned[client].append(label)
    sets = list(dict.fromkeys(map(tuple, owned)))
    return tuple(sets), np.array([sets.index(tuple(own)) for own in owned], np.int32)


def uneven_sizes(num_rows: int, num_clients: int, least: int, rng: np.random.Generator) -> np.ndarray:
    """Returns the numbers of rows of a class that its clients have by PFLlib's rule `[N]`.

    With n = rows / N, they are whole numbers from max(n / 10, least) to n, the upper end excluded; the last client has
    the rest.

    Args:
        num_rows: rows of the class.
        num_clients: N, clients that have the class.
        least: least rows of a client.
        rng: generator of the sizes.

    >>> int(uneven_sizes(100, 4, 4, np.random.default_rng(0)).sum())
    100
    """
    high = num_rows // num_clients
    low = min(max(num_rows // (10 * num_clients), least), max(high - 1, 0))
    sizes = rng.integers(low, max(high, 1), size=num_clients - 1)
    return np.append(sizes, num_rows - sizes.sum())


def missing(
    labels: ArrayLike,
    num_clients: int,
    *,
    without: Groups | None = None,
    overlap: float | None = None,
    reserve: float = RESERVE,
    rows_per_client: int | None = None,
    seed: int = 0,
) -> tuple[Parts, np.ndarray]:
    """Returns a partition in which each group of clients lacks some classes (CLoVE's label skew 3).

    Args:
        labels: classes `[P]`, an array or a list.
        num_clients: N, a multiple of the number of groups.
        without: classes that each group lacks, which may be none; None is `default_without`.
        overlap: concentration of the Dirichlet distribution by which the rows of a class go to the groups that have it
            (CLoVE: 0.5); None divides them evenly.
        reserve: with `overlap`, share of these rows that is divided evenly first. It grows by 0.05 until each group has
            enough rows.
        rows_per_client: rows of each client; None divides all rows.
        seed: seed of all draws.

    Returns:
        One index array per client, and the group of each client `[N]`.

    Raises:
        ValueError: two groups lack the same classes, a group lacks all of them, a class is not in the data, N is not a
            multiple of the number of groups, or there are too few rows.

    >>> labels = np.repeat([0, 1, 2], 6)
    >>> parts, _ = missing(labels, 2, without=((0,), ()))
    >>> [np.bincount(labels[part], minlength=3).tolist() for part in parts]
    [[0, 3, 3], [6, 3, 3]]
    """
    labels = class_labels("missing", labels)
    _check_reserve(overlap, reserve)
    classes = np.unique(labels)
    without = default_without(labels) if without is None else without
    lacked = [tuple(group.tolist()) for group in number_lists("without", without, "group")]
    check_known_classes("without", lacked, classes)
    groups = [tuple(np.setdiff1d(classes, group).tolist()) for group in lacked]
    if len(set(groups)) < len(groups) or not all(groups):
        raise ValueError(
            f"without must have other classes for each group, and not all of them, got {tuple(lacked)}; correct it."
        )
    group_members(num_clients, len(groups))
    reserve = 1.0 if overlap is None else reserve
    return _divide_groups("missing", labels, num_clients, groups, overlap, reserve, None, rows_per_client, seed)


def default_without(labels: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """Returns the classes that CLoVE's groups lack: the last one, the first three, none; fewer for few classes.

    >>> default_without(np.arange(10)), default_without(np.arange(2))
    (((9,), (0,), (1,), (2,), ()), ((1,), (0,)))
    """
    classes = np.unique(labels).tolist()
    alone = [(label,) for label in dict.fromkeys([*classes[-1:], *classes[:3]])]
    return tuple(alone) if len(classes) == 2 else (*alone, ())


def downsampled(
    labels: ArrayLike,
    num_clients: int,
    *,
    kept: Groups | None = None,
    kept_share: float = 0.1,
    rows_per_class: int | None = None,
    seed: int = 0,
) -> tuple[Parts, np.ndarray]:
    """Returns a partition in which each group has all rows of some classes, and a share of the rows of all others.

    This is the label skew of "Comparative Evaluation of Clustered Federated Learning Methods", 2024. Every client gets
    equally many rows of each class; then those of classes that its group does not keep are cut.

    Args:
        labels: classes `[P]`, an array or a list.
        num_clients: N, a multiple of the number of groups.
        kept: classes that each group keeps; None is `default_kept`.
        kept_share: share of the rows of the other classes that remains, 0 to 1, rounded to whole rows.
        rows_per_class: rows of each class of a client before the cut; None divides all rows of a class.
        seed: seed of the permutations.

    Returns:
        One index array per client, and the group of each client `[N]`.

    Raises:
        ValueError: two groups keep the same classes, a class is not in the data, N is not a multiple of the number of
            groups, or there are too few rows.

    >>> labels = np.repeat([0, 1, 2], 20)
    >>> parts, _ = downsampled(labels, 2, kept=((0,), (1,)), kept_share=0.2)
    >>> [np.bincount(labels[part]).tolist() for part in parts]
    [[10, 2, 2], [2, 10, 2]]
    """
    labels = class_labels("downsampled", labels)
    classes = np.unique(labels)
    kept = default_kept(labels) if kept is None else kept
    groups = [tuple(sorted(group.tolist())) for group in number_lists("kept", kept, "group")]
    check_known_classes("kept", groups, classes)
    if len(set(groups)) < len(groups):
        raise ValueError(f"kept must have other classes for each group, got {tuple(groups)}; correct it.")
    members = group_members(num_clients, len(groups))
    check_real("kept_share", kept_share)
    if not 0 <= kept_share <= 1:
        raise ValueError(f"kept_share must be between 0 and 1, the share of the other classes, got {kept_share}.")
    if rows_per_class is not None:
        check_count("rows_per_class", rows_per_class)
    group = np.repeat(np.arange(len(groups), dtype=np.int32), members)
    owners: list[Parts] = [[] for _ in range(num_clients)]
    for index, label in enumerate(classes.tolist()):
        order = host_rng(seed, "partition", "downsampled", index).permutation(np.flatnonzero(labels == label))
        size = len(order) // num_clients if rows_per_class is None else rows_per_class
        if size * num_clients > len(order):
            raise ValueError(
                f"rows_per_class must be at most {len(order) // num_clients}, got {rows_per_class}: there are "
                f"{len(order)} rows of class {label} for {num_clients} clients; lower it or num_clients."
            )
        few = int(np.floor(kept_share * size + 0.5))
        for client, rows in enumerate(order[: size * num_clients].reshape(num_clients, size)):
            owners[client].append(rows if label in groups[group[client]] else rows[:few])
    return [np.concatenate(owner) for owner in owners], group


def default_kept(labels: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """Returns the classes that the four groups of the comparison keep; runs of neighbours for fewer than ten classes.

    >>> default_kept(np.arange(10)), default_kept(np.arange(2))
    (((1, 2), (3, 4), (5, 6), (7, 8)), ((0,), (1,)))
    """
    classes = np.unique(labels).tolist()
    places = ((1, 2), (3, 4), (5, 6), (7, 8)) if len(classes) >= 10 else default_groups(max(len(classes), 1))
    return tuple(tuple(classes[place] for place in group if place < len(classes)) for group in places)


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
    labels = class_labels("dominant", labels)
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
    labels = class_labels("shards", labels)
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


def same_shares(labels: ArrayLike, parts: Parts, other_labels: ArrayLike, *, seed: int = 0) -> Parts:
    """Returns rows of other examples for each client, in the class shares of its rows; no row belongs to two clients.

    There are as many as the rarest class allows: a client has the same multiple of its rows of every class, to within
    one row. Classes without other examples are left out.

    Args:
        labels: classes of the examples that `parts` index `[P]`.
        parts: rows of each client.
        other_labels: classes of the other examples `[Q]`, such as an official test set.
        seed: seed of the permutations.

    >>> labels, tests = np.repeat([0, 1], 8), np.repeat([0, 1], 4)
    >>> rows = same_shares(labels, [np.arange(12), np.arange(12, 16)], tests)
    >>> [np.bincount(tests[row], minlength=2).tolist() for row in rows]
    [[4, 2], [0, 2]]
    """
    labels, others = class_labels("same_shares", labels), class_labels("same_shares", other_labels)
    counts = np.stack([np.bincount(labels[part], minlength=labels.max(initial=0) + 1) for part in parts])  # [N, L]
    there = np.bincount(others, minlength=counts.shape[1])
    limits = [(int(there[label]), int(total)) for label, total in enumerate(counts.sum(0)) if total and there[label]]
    owners: list[Parts] = [[np.zeros(0, np.int64)] for _ in parts]
    if limits:
        most, of = min(limits, key=lambda limit: limit[0] / limit[1])
        for label in np.flatnonzero(counts.sum(0)):
            order = host_rng(seed, "same shares", int(label)).permutation(np.flatnonzero(others == label))
            edges = np.minimum(np.cumsum(counts[:, label].astype(np.int64)) * most // of, len(order))
            for owner, rows in zip(owners, np.split(order, edges)[:-1], strict=True):
                owner.append(rows)
    return [np.concatenate(owner) for owner in owners]


def _check_reserve(overlap: float | None, reserve: float) -> None:
    """Raises ValueError unless the division of a class among several groups is well defined."""
    check_real("reserve", reserve)
    if overlap is None:
        if reserve != RESERVE:
            raise ValueError(f"reserve must be left out without overlap, got {reserve}; add overlap=0.5.")
        return
    check_real("overlap", overlap)
    if not (np.isfinite(overlap) and overlap > 0):
        raise ValueError(f"overlap must be positive and finite, got {overlap}; 0.5 is usual.")
    if not 0 <= reserve <= 1:
        raise ValueError(f"reserve must be between 0 and 1, the share that is divided evenly, got {reserve}.")


def _divide_groups(
    skew: str,
    labels: np.ndarray,
    num_clients: int,
    groups: Groups,
    overlap: float | None,
    reserve: float,
    least: int | None,
    rows_per_client: int | None,
    seed: int,
) -> tuple[Parts, np.ndarray]:
    """Returns a partition in which each group of clients has only its own classes, and the group of each client `[N]`.

    Args:
        skew: name of the skew, a part of the random streams.
        labels, num_clients, overlap, reserve, rows_per_client, seed: as for `pathological`; where a class is in several
            groups, a reserve of 1 divides it evenly.
        groups: classes of each group, checked.
        least: least rows of a class by `uneven_sizes`; None divides rows evenly.
    """
    members = num_clients // len(groups)
    shared = len({label for group in groups for label in group}) < sum(map(len, groups))
    rows = [np.flatnonzero(np.isin(labels, group)) for group in groups]
    if shared:
        needed = members * (1 if rows_per_client is None else rows_per_client)
        for attempt in range(1 + int(np.ceil((1 - reserve) / RESERVE_STEP))):
            now = min(1.0, reserve + RESERVE_STEP * attempt)
            rows = _share_classes(skew, labels, groups, overlap, now, seed, attempt)
            if all(len(own) >= needed for own in rows):
                break
    parts: Parts = []
    for index, (group, own) in enumerate(zip(groups, rows, strict=True)):
        if least is not None:
            inside = _divide_classes(labels[own], [group] * members, least, seed, index)
            parts += [own[part] for part in inside]
        else:
            order = host_rng(seed, "partition", skew, index).permutation(own)
            parts += split_equally(order, members, rows_per_client, f"with labels {group}")
    return parts, np.repeat(np.arange(len(groups), dtype=np.int32), members)


def _share_classes(
    skew: str, labels: np.ndarray, groups: Groups, overlap: float | None, reserve: float, seed: int, attempt: int
) -> Parts:
    """Returns the rows of each group; those of a class go to its groups by Dir(overlap), after an even reserve."""
    owners: list[Parts] = [[] for _ in groups]
    for label in sorted({label for group in groups for label in group}):
        having = [index for index, group in enumerate(groups) if label in group]
        rng = host_rng(seed, "partition", skew, "class", label, attempt)
        order, even = rng.permutation(np.flatnonzero(labels == label)), np.full(len(having), UNITS // len(having))
        if overlap is None or reserve == 1:
            units = even
        else:
            drawn = integer_shares(rng, np.full(len(having), float(overlap)))
            units = np.floor(reserve * even + (1 - reserve) * drawn + 0.5).astype(np.int64)
        for index, rows in zip(having, cut_by_shares(order, units), strict=True):
            owners[index].append(rows)
    return [np.concatenate(owner) for owner in owners]


def _divide_classes(labels: np.ndarray, sets: Groups, least: int | None, seed: int, group: int = 0) -> Parts:
    """Returns the rows of clients, among which each class is divided evenly, or by `uneven_sizes`.

    Args:
        labels: classes `[P]`.
        sets: classes of each client.
        least: least rows of a class by `uneven_sizes`; None divides a class evenly.
        seed: seed of all draws.
        group: number of the group, a part of the random streams.
    """
    owners: list[Parts] = [[np.zeros(0, np.int64)] for _ in sets]
    for label in np.unique(labels).tolist():
        clients = [client for client, own in enumerate(sets) if label in own]
        if not clients:
            continue
        rng = host_rng(seed, "partition", "classes", group, label)
        order = rng.permutation(np.flatnonzero(labels == label))
        pieces = np.array_split(order, len(clients))
        if least is not None:
            pieces = np.split(order, np.cumsum(uneven_sizes(len(order), len(clients), least, rng))[:-1])
        for client, piece in zip(clients, pieces, strict=True):
            owners[client].append(piece)
    return [np.concatenate(owner) for owner in owners]
