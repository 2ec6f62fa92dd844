"""What the partitions share: rows dealt out in equal parts, and what they refuse."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from jaxfl import schema

Parts = list[np.ndarray]


def split_equally(order: np.ndarray, num_clients: int, rows_per_client: int | None, which: str) -> Parts:
    """Cuts a permutation into equal parts; all of it if `rows_per_client` is None."""
    if rows_per_client is None:
        return list(np.array_split(order, num_clients))
    rows = rows_that_fit(num_clients, rows_per_client, len(order), which)
    return list(order[: num_clients * rows].reshape(num_clients, rows))


def rows_that_fit(num_clients: int, rows_per_client: int | None, num_rows: int, which: str) -> int:
    """Returns the rows of each client, all that there are if None; raises if there are too few."""
    check_count("num_clients", num_clients)
    check_count("num_rows", num_rows, least=0)
    if rows_per_client is not None:
        check_count("rows_per_client", rows_per_client)
    most = num_rows // num_clients
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


def check_count(argument: str, value: int, *, least: int = 1) -> None:
    """Raises unless a number of clients, rows or groups is a positive integer; `least` may be 0, which is none."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        wanted = "a positive integer" if least else "0 or a positive integer"
        raise ValueError(f"{argument} must be {wanted}, got {value!r}; use {least} or more.")


def check_real(argument: str, value: float) -> None:
    """Raises unless a value is one number, which may be NaN or infinite."""
    schema.check_type(argument, value, float)
    if np.ndim(value):
        raise TypeError(f"{argument} must be one number, got an array of shape {np.shape(value)}.")


def check_numbers(argument: str, values: np.ndarray, where: str = "") -> None:
    """Raises unless an array is a list of whole numbers: a mask would be taken for numbers 0 and 1.

    Args:
        argument: its name.
        values: may be empty, of any type then.
        where: which of several it is, for the message.
    """
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise ValueError(
            f"{argument} must be a list of whole numbers, got {values.dtype} of shape {values.shape}{where}; of a mask "
            "take np.flatnonzero(mask), of floats astype(int)."
        )


def as_array(argument: str, values: Any, where: str = "") -> np.ndarray:
    """Returns values, such as a list, as an array; raises if they are lists of different lengths."""
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{argument} must be a plain list or array, got lists of different lengths{where}.") from error


def number_lists(argument: str, lists: Iterable[Any], owner: str) -> Parts:
    """Returns lists of whole numbers as arrays, one for each owner.

    Args:
        argument: its name.
        lists: arrays, lists or ranges; they may be empty.
        owner: whose they are, for the message: `"client"`.

    Raises:
        ValueError: they are not one list for each owner, or one holds something else.

    >>> number_lists("parts", [range(2), []], "client")
    [array([0, 1]), array([], dtype=int64)]
    """
    if isinstance(lists, str) or not np.iterable(lists):
        raise ValueError(
            f"{argument} must be one list of whole numbers for each {owner}, got {lists!r}; ((0, 1), (2, 3)) are two."
        )
    found: Parts = []
    for index, one in enumerate(lists):
        where = f" for {owner} {index}"
        values = as_array(argument, one, where)
        check_numbers(argument, values, where)
        found.append(values if values.size else values.astype(np.int64))
    return found


def check_min_rows(num_rows: int, num_clients: int, min_rows: int) -> None:
    """Raises if not every client can have the least rows."""
    check_count("min_rows", min_rows, least=0)
    if min_rows * num_clients > num_rows:
        raise ValueError(
            f"min_rows must be between 0 and {num_rows // num_clients} ({num_rows} rows for {num_clients} clients), "
            f"got {min_rows}; lower min_rows or use fewer clients."
        )


def at_most(parts: Parts, max_rows: int | None, min_rows: int, rng: np.random.Generator) -> Parts:
    """Returns the parts of which the larger ones have kept so many rows, chosen at random.

    Args:
        parts: the rows of each client.
        max_rows: most rows of each client; None keeps all rows.
        min_rows: that each was to have at least.
        rng: chooses.

    Raises:
        ValueError: `max_rows` is less than `min_rows`, or than 1; or a number is no whole one.

    >>> [len(part) for part in at_most([np.arange(9), np.arange(2)], 4, 2, np.random.default_rng(0))]
    [4, 2]
    """
    parts = number_lists("parts", parts, "client")
    check_count("min_rows", min_rows, least=0)
    if max_rows is None:
        return parts
    check_count("max_rows", max_rows)
    if max_rows < max(min_rows, 1):
        raise ValueError(f"max_rows must be at least {max(min_rows, 1)}, as min_rows is, got {max_rows}.")
    return [np.sort(rng.permutation(part)[:max_rows]) for part in parts]
