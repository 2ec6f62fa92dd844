"""What the partitions share: rows dealt out in equal parts, and what they refuse."""

import numpy as np

Parts = list[np.ndarray]


def deal(order: np.ndarray, num_clients: int, rows_per_client: int | None, which: str) -> Parts:
    """Cuts a permutation into equal parts; all of it if `rows_per_client` is None."""
    if rows_per_client is None:
        return list(np.array_split(order, num_clients))
    rows = rows_that_fit(num_clients, rows_per_client, len(order), which)
    return list(order[: num_clients * rows].reshape(num_clients, rows))


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


def check_count(argument: str, value: int) -> None:
    """Raises unless a number of clients, rows or groups is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{argument} must be a positive integer, got {value!r}; use 1 or more.")


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


def check_min_rows(num_rows: int, num_clients: int, min_rows: int) -> None:
    """Raises if not every client can have the least rows."""
    if not 0 <= min_rows * num_clients <= num_rows:
        raise ValueError(
            f"min_rows must be between 0 and {num_rows // num_clients} ({num_rows} rows for {num_clients} clients), "
            f"got {min_rows}; lower min_rows or use fewer clients."
        )


def at_most(parts: Parts, max_rows: int | None, min_rows: int, rng: np.random.Generator) -> Parts:
    """Returns the parts of which the larger ones have kept so many rows, chosen at random.

    Args:
        parts: the rows of each client.
        max_rows: of each; None keeps all.
        min_rows: that each was to have at least.
        rng: chooses.

    Raises:
        ValueError: `max_rows` is less than `min_rows`, or than 1.

    >>> [len(part) for part in at_most([np.arange(9), np.arange(2)], 4, 2, np.random.default_rng(0))]
    [4, 2]
    """
    if max_rows is None:
        return parts
    if max_rows < max(min_rows, 1):
        raise ValueError(f"max_rows must be at least {max(min_rows, 1)}, as min_rows is, got {max_rows}.")
    return [np.sort(rng.permutation(part)[:max_rows]) for part in parts]
