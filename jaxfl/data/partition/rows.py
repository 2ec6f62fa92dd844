"""Partitions independent of the classes: by chance, by size, by maker; and splits into training and test rows."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

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
from jaxfl.schema import checked

QuantityLaw = Literal["lognormal", "power", "groups"]
RELATIVE_SIZES = (0.1, 0.2, 0.6, 1.0)  # of the clients of four groups


def iid(num_rows: int, num_clients: int, *, rows_per_client: int | None = None, seed: int = 0) -> Parts:
    """Returns a random partition into equal parts.

    Args:
        num_rows: number of rows to divide.
        num_clients: N.
        rows_per_client: rows of each client; None divides all rows, with sizes that differ by one at most.
        seed: seed of the permutation.

    >>> [len(part) for part in iid(10, 4)]
    [3, 3, 2, 2]
    """
    check_count("num_rows", num_rows, least=0)
    check_count("num_clients", num_clients)
    order = host_rng(seed, "partition", "iid").permutation(num_rows)
    return split_equally(order, num_clients, rows_per_client, "of the data")


@checked
def quantity(
    num_rows: int,
    num_clients: int,
    *,
    law: QuantityLaw = "lognormal",
    sigma: float = 1.0,
    exponent: float = 1.0,
    relative_sizes: Sequence[float] = RELATIVE_SIZES,
    min_rows: int = 1,
    seed: int = 0,
) -> Parts:
    """Returns a random partition into parts of unequal size; every row belongs to one client.

    Args:
        num_rows: number of rows to divide.
        num_clients: N.
        law: `"lognormal"` sizes; sizes by a `"power"` of the rank: the r-th largest client has rows in proportion to
            `r ** -exponent`, and the ranks are random; or sizes of `"groups"` of equally many clients.
        sigma: standard deviation of the logarithm of the log-normal sizes; 0 is equal sizes.
        exponent: exponent of the power law; 0 is equal sizes, 1 is Zipf's law.
        relative_sizes: size of a client of each group, in any unit; those of a comparison of clustered methods (FLTA
            2024) are the default. N must be a multiple of their number.
        min_rows: least rows of a client.
        seed: seed of the sizes and of the permutation.

    >>> sum(len(part) for part in quantity(100, 7, sigma=2.0))
    100
    >>> sorted((len(part) for part in quantity(1100, 3, law="power", min_rows=0)), reverse=True)
    [600, 300, 200]
    >>> [len(part) for part in quantity(300, 4, law="groups", relative_sizes=(1, 2), min_rows=0)]
    [50, 50, 100, 100]
    """
    check_count("num_rows", num_rows, least=0)
    check_count("num_clients", num_clients)
    for argument, value in (("sigma", sigma), ("exponent", exponent)):
        check_real(argument, value)
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(
                f"{argument} must be finite and not negative, got {value}; 1 is a strong skew, 0 equal sizes."
            )
    given: dict[str, tuple[str, Any, Any]] = {"sigma": ("lognormal", sigma, 1.0), "exponent": ("power", exponent, 1.0)}
    given["relative_sizes"] = ("groups", tuple(np.ravel(relative_sizes).tolist()), RELATIVE_SIZES)
    for argument, (owner, chosen, default) in given.items():
        if law != owner and chosen != default:
            raise ValueError(
                f"{argument} must be left out with law={law!r}, which does not use it, got {chosen}; use law={owner!r}."
            )
    check_min_rows(num_rows, num_clients, min_rows)
    rng = host_rng(seed, "partition", "quantity")
    if law == "groups":
        sizes = _check_sizes(relative_sizes)
        weight = np.repeat(sizes, group_members(num_clients, len(sizes)))
    else:
        logs = (
            sigma * rng.standard_normal(num_clients)
            if law == "lognormal"
            else -exponent * np.log1p(rng.permutation(num_clients))
        )
        weight = np.exp(logs - logs.max())
    edges = np.cumsum(weight / weight.sum()) * (num_rows - num_clients * min_rows)
    cuts = np.floor(edges + 0.5).astype(int)[:-1] + min_rows * np.arange(1, num_clients)
    return list(np.split(rng.permutation(num_rows), cuts))


def _check_sizes(relative_sizes: Sequence[float]) -> np.ndarray:
    """Returns the sizes of the groups; raises ValueError unless they are positive and finite numbers that differ."""
    sizes = as_array("relative_sizes", relative_sizes)
    numbers = sizes.ndim == 1 and sizes.dtype.kind in "iuf" and sizes.size
    if not numbers or not (np.isfinite(sizes) & (sizes > 0)).all() or len(np.unique(sizes)) < len(sizes):
        raise ValueError(
            f"relative_sizes must be different positive numbers, one for each group, got {relative_sizes}; "
            f"{RELATIVE_SIZES} is the default."
        )
    return sizes


def natural(client_of_row: ArrayLike) -> tuple[Parts, np.ndarray]:
    """Returns the rows of each writer, person or site in their order; every row belongs to one client.

    Args:
        client_of_row: maker of each row `[P]`, numbers or names, an array or a list.

    Returns:
        One index array per client, and the makers that are the clients `[N]`, sorted.

    Raises:
        ValueError: `client_of_row` is not a list of numbers or names, or the maker of a row is None, NaN or an empty
            text.

    >>> parts, makers = natural(np.array(["eve", "bob", "eve"]))
    >>> [part.tolist() for part in parts], makers.tolist()
    ([[1], [0, 2]], ['bob', 'eve'])
    """
    owners = as_array("client_of_row", client_of_row)
    if owners.ndim != 1:
        raise ValueError(
            f"client_of_row must be [P], one number or name for each row, got {owners.dtype} of shape {owners.shape}."
        )
    # NaN of all rows would become one client, whose rows have nothing in common.
    unknown = owners != owners
    if owners.dtype.kind == "O":
        unknown |= np.array([owner is None for owner in owners], bool)
    if owners.dtype.kind in "OSU":
        unknown |= np.array([isinstance(owner, str | bytes) and not owner.strip() for owner in owners], bool)
    if unknown.any():
        row = int(np.argmax(unknown))
        got = repr(owners[row].item()) if owners.dtype.kind in "SU" else owners[row]
        raise ValueError(f"client_of_row must have the maker of each row, got {got} in row {row}; leave such rows out.")
    try:
        makers, member = np.unique(owners, return_inverse=True)
    except TypeError as error:
        raise ValueError(f"client_of_row must be numbers or names, got both ({error}); use astype(str).") from error
    order = np.argsort(member, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(member, minlength=len(makers)))[:-1])
    return parts if len(makers) else [], makers


def train_test_split(parts: Sequence[ArrayLike], test_share: float = 0.2, *, seed: int = 0) -> tuple[Parts, Parts]:
    """Returns training and test rows of each client, chosen at random; every row is in one of them.

    As in LEAF, max(1, floor((1 - test_share) n)) of n rows are training rows, so a client of one row has no test row.

    Args:
        parts: one index array, or list, per client.
        test_share: 0 to 1, exclusive.
        seed: seed of the permutations.

    Raises:
        ValueError: the share is out of range, or a client's rows are not a list of whole numbers.

    >>> train, test = train_test_split([np.arange(10), np.arange(1), np.arange(0)])
    >>> [len(part) for part in train], [len(part) for part in test]
    ([8, 1, 0], [2, 0, 0])
    """
    check_real("test_share", test_share)
    if not 0 < test_share < 1:
        raise ValueError(f"test_share must be between 0 and 1, exclusive, got {test_share}; 0.2 is usual.")
    rng = host_rng(seed, "split")
    orders = [rng.permutation(part) for part in number_lists("parts", parts, "client")]
    # A share such as 0.2 is not a binary fraction: without the small number, 0.8 * 10 rows could be 7.
    sizes = [max(1, int((1 - test_share) * len(order) + 1e-9)) for order in orders]
    return (
        [order[:size] for order, size in zip(orders, sizes, strict=True)],
        [order[size:] for order, size in zip(orders, sizes, strict=True)],
    )
