"""Partitions: labels in, one index array per client out. Pure NumPy, seeded, the same on every platform.

Every row goes to one client at most; the docstrings say where it goes to exactly one.
"""

from collections.abc import Sequence

import numpy as np

from jaxfl.random import host_rng

Parts = list[np.ndarray]


def iid(num_rows: int, num_clients: int, *, rows_per_client: int | None = None, seed: int = 0) -> Parts:
    """Deals rows out at random, in equal parts.

    Args:
        num_rows: rows to deal out.
        num_clients: N.
        rows_per_client: rows of each client; None deals out every row exactly once, sizes differing by one at most.
        seed: of the permutation.

    >>> [len(part) for part in iid(10, 4)]
    [3, 3, 2, 2]
    """
    check_count("num_clients", num_clients)
    order = host_rng(seed, "partition", "iid").permutation(num_rows)
    return _deal(order, num_clients, rows_per_client, "of the data")


def dirichlet(labels: np.ndarray, num_clients: int, *, alpha: float, min_rows: int = 1, seed: int = 0) -> Parts:
    """Splits the rows of each class by shares drawn from Dirichlet(alpha); every row exactly once.

    Drawn once, then clients short of `min_rows` take random rows from the largest client until none is short. So it
    always ends, where drawing again until all are large enough does not for a small alpha.

    Args:
        labels: classes `[P]`.
        num_clients: N.
        alpha: concentration; large is iid, small gives each class to few clients.
        min_rows: the least rows of a client.
        seed: of all draws.

    References:
        Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution", 2019; by class as in Yurochkin
        et al., "Bayesian Nonparametric Federated Learning of Neural Networks", 2019.

    >>> sorted(np.concatenate(dirichlet(np.array([0, 0, 1, 1, 1]), 3, alpha=0.1)).tolist())
    [0, 1, 2, 3, 4]
    """
    check_count("num_clients", num_clients)
    if not (np.isfinite(alpha) and alpha > 0):
        raise ValueError(f"alpha must be positive and finite, got {alpha}; 0.1 is strongly skewed, 100 nearly iid.")
    _check_min_rows(len(labels), num_clients, min_rows)
    rng = host_rng(seed, "partition", "dirichlet")
    owners = [np.zeros(0, np.int64)] * num_clients
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(num_clients, alpha))
        if not np.isfinite(shares).all():  # every gamma variate underflowed: in the limit, one client takes all
            shares = (np.arange(num_clients) == rng.integers(num_clients)).astype(float)
        cuts = np.floor(np.cumsum(shares)[:-1] * len(rows) + 0.5).astype(int)
        owners = [np.concatenate([own, more]) for own, more in zip(owners, np.split(rows, cuts), strict=True)]
    parts = [rng.permutation(own) for own in owners]
    sizes = np.array([len(part) for part in parts])
    for client in np.flatnonzero(sizes < min_rows):
        while sizes[client] < min_rows:
            # The largest has more than min_rows, for else all together would have less than N * min_rows.
            donor = int(sizes.argmax())
            count = int(min(min_rows - sizes[client], sizes[donor] - min_rows))
            parts[client] = np.concatenate([parts[client], parts[donor][:count]])
            parts[donor] = parts[donor][count:]
            sizes[client], sizes[donor] = sizes[client] + count, sizes[donor] - count
    return parts


def pathological(
    labels: np.ndarray,
    num_clients: int,
    *,
    label_groups: Sequence[Sequence[int]] = ((0, 1, 2), (3, 4), (5, 6), (7, 8, 9)),
    rows_per_client: int | None = None,
    seed: int = 0,
) -> tuple[Parts, np.ndarray]:
    """Gives each group of clients its own classes and nothing else (StoCFL's pathological skew).

    Args:
        labels: classes `[P]`.
        num_clients: N, a multiple of the number of groups.
        label_groups: the classes of each group; no class twice, classes in no group are left out.
        rows_per_client: rows of each client; None deals out every row of the groups' classes exactly once.
        seed: of the permutations.

    Returns:
        One index array per client, and the group of each client `[N]`.

    >>> parts, group = pathological(np.array([0, 1, 0, 1]), 2, label_groups=((0,), (1,)))
    >>> sorted(parts[1].tolist()), group.tolist()
    ([1, 3], [0, 1])
    """
    members = group_members(num_clients, len(label_groups))
    classes = [label for group in label_groups for label in group]
    if len(set(classes)) < len(classes):
        raise ValueError(f"label_groups must not name a class twice, got {tuple(map(tuple, label_groups))}.")
    if absent := sorted(set(classes) - set(np.unique(labels).tolist())):
        raise ValueError(
            f"label_groups must name classes that the data have ({np.unique(labels).tolist()}), got {absent[0]}; "
            "give label_groups that fit."
        )
    parts: Parts = []
    for index, group in enumerate(label_groups):
        order = host_rng(seed, "partition", "pathological", index).permutation(np.flatnonzero(np.isin(labels, group)))
        parts += _deal(order, members, rows_per_client, f"with labels {tuple(group)}")
    return parts, np.repeat(np.arange(len(label_groups), dtype=np.int32), members)


def dominant(
    labels: np.ndarray,
    num_clients: int,
    *,
    beta: float,
    num_groups: int = 4,
    rows_per_client: int | None = None,
    seed: int = 0,
) -> tuple[Parts, np.ndarray]:
    """Gives each group of clients one dominant class: the share beta of their rows, the rest evenly from the others.

    LayerCFL's label skew. The paper does not say which classes dominate: here group g has the g-th class.

    Args:
        labels: classes `[P]`.
        num_clients: N, a multiple of `num_groups`.
        beta: share of the dominant class, 0 to 1 (the paper: 0.5 and 0.8).
        num_groups: number of dominant classes (the paper: 4, and 2 for its heat maps).
        rows_per_client: rows of each client; None takes as many as the scarcest class allows.
        seed: of the permutations.

    Returns:
        One index array per client, and the group of each client `[N]`.

    >>> labels = np.repeat([0, 1, 2], 20)
    >>> parts, _ = dominant(labels, 4, beta=0.5, num_groups=2, rows_per_client=8)
    >>> [np.bincount(labels[part]).tolist() for part in parts]
    [[4, 2, 2], [4, 2, 2], [2, 4, 2], [2, 4, 2]]
    """
    classes, counts = np.unique(labels, return_counts=True)
    members = group_members(num_clients, num_groups)
    if not 0 <= beta <= 1:
        raise ValueError(f"beta must be between 0 and 1, the share of the dominant class, got {beta}.")
    if not (num_groups <= len(classes) and len(classes) > 1):
        raise ValueError(
            f"num_groups must be at most the {len(classes)} classes, and those 2 or more, got {num_groups}."
        )
    group = np.repeat(np.arange(num_groups, dtype=np.int32), members)

    def quotas(rows: int) -> np.ndarray:  # [N, L] rows of each class
        first = int(np.floor(beta * rows + 0.5))
        each, odd = divmod(rows - first, len(classes) - 1)
        # Classes after the dominant one, in turn; the odd ones start at another place for every client.
        turn = (np.arange(len(classes))[None] - group[:, None]) % len(classes)  # [N, L], 0 is the dominant class
        extra = (turn - 1 - np.arange(num_clients)[:, None] * odd) % (len(classes) - 1) < odd
        return np.where(turn == 0, first, each + extra)

    def fits(rows: int) -> bool:
        return bool((quotas(rows).sum(0) <= counts).all())

    if rows_per_client is None:
        # Counted down from above: with its rounding, a quota may fit at one size and not at the next smaller.
        rows = next((rows for rows in range(len(labels) // num_clients, 0, -1) if fits(rows)), 0)
        if not rows:
            raise ValueError(f"num_clients must be fewer for {len(labels)} rows, got {num_clients}; lower it.")
    else:
        check_count("rows_per_client", rows_per_client)
        rows = rows_per_client
        if not fits(rows):
            lack = int(np.argmax(quotas(rows).sum(0) - counts))
            raise ValueError(
                f"rows_per_client must leave each row to one client, got {rows}: {num_clients} clients need "
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


def quantity(num_rows: int, num_clients: int, *, sigma: float = 1.0, min_rows: int = 1, seed: int = 0) -> Parts:
    """Deals rows out at random in parts of log-normal size; every row exactly once.

    Args:
        num_rows: rows to deal out.
        num_clients: N.
        sigma: standard deviation of the logarithm of the sizes; 0 is equal sizes.
        min_rows: the least rows of a client.
        seed: of the sizes and of the permutation.

    >>> sum(len(part) for part in quantity(100, 7, sigma=2.0))
    100
    """
    check_count("num_clients", num_clients)
    if not (np.isfinite(sigma) and sigma >= 0):
        raise ValueError(f"sigma must be finite and not negative, got {sigma}; 1 is a strong skew, 0 equal sizes.")
    _check_min_rows(num_rows, num_clients, min_rows)
    rng = host_rng(seed, "partition", "quantity")
    logs = sigma * rng.standard_normal(num_clients)
    weight = np.exp(logs - logs.max())
    edges = np.cumsum(weight / weight.sum()) * (num_rows - num_clients * min_rows)
    cuts = np.floor(edges + 0.5).astype(int)[:-1] + min_rows * np.arange(1, num_clients)
    return list(np.split(rng.permutation(num_rows), cuts))


def natural(client_of_row: np.ndarray) -> tuple[Parts, np.ndarray]:
    """Gives each writer, person or site its own rows, in their order; every row exactly once.

    Args:
        client_of_row: who made each row `[P]`: numbers or names.

    Returns:
        One index array per client, and who the clients are `[N]`, sorted.

    >>> parts, who = natural(np.array(["eve", "bob", "eve"]))
    >>> [part.tolist() for part in parts], who.tolist()
    ([[1], [0, 2]], ['bob', 'eve'])
    """
    who, member = np.unique(client_of_row, return_inverse=True)
    order = np.argsort(member, kind="stable")
    return list(np.split(order, np.cumsum(np.bincount(member, minlength=len(who)))[:-1])), who


def train_test_split(parts: Sequence[np.ndarray], test_share: float = 0.2, *, seed: int = 0) -> tuple[Parts, Parts]:
    """Splits every client's rows in two, at random; every row goes to exactly one of them.

    As LEAF does: of n rows, max(1, floor((1 - test_share) n)) are for training. So a client of one row has no test row.

    Args:
        parts: one index array per client.
        test_share: 0 to 1, exclusive.
        seed: of the permutations.

    >>> train, test = train_test_split([np.arange(10), np.arange(1), np.arange(0)])
    >>> [len(part) for part in train], [len(part) for part in test]
    ([8, 1, 0], [2, 0, 0])
    """
    if not 0 < test_share < 1:
        raise ValueError(f"test_share must be between 0 and 1, exclusive, got {test_share}; 0.2 is usual.")
    rng = host_rng(seed, "split")
    orders = [rng.permutation(part) for part in parts]
    # A share such as 0.2 is no binary fraction: without the small number, 0.8 * 10 rows could be 7.
    sizes = [max(1, int((1 - test_share) * len(order) + 1e-9)) for order in orders]
    return (
        [order[:size] for order, size in zip(orders, sizes, strict=True)],
        [order[size:] for order, size in zip(orders, sizes, strict=True)],
    )


def check_count(argument: str, value: int) -> None:
    """Raises unless a number of clients, rows or groups is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{argument} must be a positive integer, got {value!r}; use 1 or more.")


def rows_that_fit(num_clients: int, rows_per_client: int | None, num_rows: int, which: str) -> int:
    """Returns the rows of each client, all that there are if None; raises if there are too few."""
    most = num_rows // num_clients
    if rows_per_client is not None:
        check_count("rows_per_client", rows_per_client)
    if most < (rows_per_client or 1):
        wanted = "" if rows_per_client is None else f"rows_per_client must be at most {most}, got {rows_per_client}: "
        raise ValueError(
            f"{wanted}there are {num_rows} rows {which} for {num_clients} clients; use fewer clients or rows each."
        )
    return most if rows_per_client is None else rows_per_client


def group_members(num_clients: int, num_groups: int) -> int:
    """Returns the clients of each of equally large groups; raises if they cannot be equally large."""
    check_count("num_clients", num_clients)
    check_count("num_groups", num_groups)
    members, left_over = divmod(num_clients, num_groups)
    if left_over or not members:
        near = sorted({max(1, members) * num_groups, (members + 1) * num_groups})
        raise ValueError(
            f"num_clients must be a multiple of the {num_groups} groups, got {num_clients}; use "
            f"{' or '.join(map(str, near))}."
        )
    return members


def _deal(order: np.ndarray, num_clients: int, rows_per_client: int | None, which: str) -> Parts:
    """Cuts a permutation into equal parts; all of it if `rows_per_client` is None."""
    if rows_per_client is None:
        return list(np.array_split(order, num_clients))
    rows = rows_that_fit(num_clients, rows_per_client, len(order), which)
    return list(order[: num_clients * rows].reshape(num_clients, rows))


def _check_min_rows(num_rows: int, num_clients: int, min_rows: int) -> None:
    """Raises if not every client can have the least rows."""
    if not 0 <= min_rows * num_clients <= num_rows:
        raise ValueError(
            f"min_rows must be between 0 and {num_rows // num_clients} ({num_rows} rows for {num_clients} clients), "
            f"got {min_rows}; lower min_rows or use fewer clients."
        )
