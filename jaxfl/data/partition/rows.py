"""Partitions that do not look at the classes: by chance, by size, by maker; and training apart from test."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from jaxfl.data.partition.deal import Parts, check_count, check_min_rows, deal
from jaxfl.random import host_rng
from jaxfl.schema import checked


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
    return deal(order, num_clients, rows_per_client, "of the data")


@checked
def quantity(
    num_rows: int,
    num_clients: int,
    *,
    law: Literal["lognormal", "power"] = "lognormal",
    sigma: float = 1.0,
    exponent: float = 1.0,
    min_rows: int = 1,
    seed: int = 0,
) -> Parts:
    """Deals rows out at random in parts of unequal size; every row exactly once.

    Args:
        num_rows: rows to deal out.
        num_clients: N.
        law: `"lognormal"` sizes, or sizes by a `"power"` of the rank: the r-th largest client has rows in proportion to
            `r ** -exponent`, and who is the r-th is random.
        sigma: standard deviation of the logarithm of the log-normal sizes; 0 is equal sizes.
        exponent: of the power law; 0 is equal sizes, 1 is Zipf's law.
        min_rows: the least rows of a client.
        seed: of the sizes and of the permutation.

    >>> sum(len(part) for part in quantity(100, 7, sigma=2.0))
    100
    >>> sorted((len(part) for part in quantity(1100, 3, law="power", min_rows=0)), reverse=True)
    [600, 300, 200]
    """
    check_count("num_clients", num_clients)
    for argument, value in (("sigma", sigma), ("exponent", exponent)):
        if not (np.isfinite(value) and value >= 0):
            raise ValueError(
                f"{argument} must be finite and not negative, got {value}; 1 is a strong skew, 0 equal sizes."
            )
    check_min_rows(num_rows, num_clients, min_rows)
    rng = host_rng(seed, "partition", "quantity")
    if law == "lognormal":
        logs = sigma * rng.standard_normal(num_clients)
    else:
        logs = -exponent * np.log1p(rng.permutation(num_clients))
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
