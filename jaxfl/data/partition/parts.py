"""Equal parts of rows, and checks of arguments, for all partitions."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jaxfl import schema
from jaxfl.data.arrays import plain_array
from jaxfl.data.labels import check_classes

Parts = list[np.ndarray]
MAX_CLIENTS = 1 << 20  # of equal parts, or as many as there are rows: a list of more takes minutes and the memory


def split_equally(order: np.ndarray, num_clients: int, rows_per_client: int | None, which: str) -> Parts:
    """Returns equal parts of a permutation, one per client; of all of it if `rows_per_client` is None."""
    if rows_per_client is None:
        most = max(len(order), MAX_CLIENTS)
        if num_clients > most:
            raise ValueError(
                f"num_clients must be at most {most} where there are {len(order)} rows {which}, got {num_clients} of "
                "them; use fewer clients."
            )
        return list(np.array_split(order, num_clients))
    rows = rows_that_fit(num_clients, rows_per_client, len(order), which)
    return list(order[: num_clients * rows].reshape(num_clients, rows))


def rows_that_fit(num_clients: int, rows_per_client: int | None, num_rows: int, which: str) -> int:
    """Returns the number of rows per client, the largest possible if None; raises ValueError for too few rows."""
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
    """Returns the number of clients per group; raises ValueError unless all groups have equally many."""
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
    """Raises ValueError unless a number of clients, rows or groups is an integer of `least` or more."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        wanted = "a positive integer" if least else "0 or a positive integer"
        raise ValueError(f"{argument} must be {wanted}, got {value!r}; use {least} or more.")


def check_real(argument: str, value: float) -> None:
    """Raises TypeError unless a value is one number, which may be NaN or infinite."""
    schema.check_type(argument, value, float)
    if np.ndim(value):
        raise TypeError(f"{argument} must be one number, got an array of shape {np.shape(value)}.")


def check_numbers(argument: str, values: np.ndarray, where: str = "") -> None:
    """Raises ValueError unless an array is a list of integers: a mask would be read as numbers 0 and 1.

    Args:
        argument: name of the argument.
        values: the array; an empty one may have any type.
        where: phrase for its position among several arrays, for the message.
    """
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise ValueError(
            f"{argument} must be a list of whole numbers, got {values.dtype} of shape {values.shape}{where}; convert a "
            "mask by np.flatnonzero(mask), floats by astype(int)."
        )


def as_array(argument: str, values: Any, where: str = "") -> np.ndarray:
    """Returns values, such as a list, as an array; raises ValueError for lists of different lengths."""
    return plain_array(argument, values, where, objects=True)


def number_lists(argument: str, lists: Iterable[Any], owner: str) -> Parts:
    """Returns lists of whole numbers as arrays, one for each owner.

    Args:
        argument: name of the argument.
        lists: arrays, lists or ranges, which may be empty.
        owner: noun for the owner of each list, for the message: `"client"`.

    Raises:
        ValueError: `lists` is not a list for each owner, or a list has other entries.

    >>> number_lists("parts", [range(2), []], "client")
    [array([0, 1]), array([], dtype=int64)]
    """
    if isinstance(lists, str) or not np.iterable(lists):
        raise ValueError(
            f"{argument} must be one list of whole numbers for each {owner}, got {lists!r}; ((0, 1), (2, 3)) has two."
        )
    arrays: Parts = []
    for index, numbers in enumerate(lists):
        where = f" for {owner} {index}"
        values = as_array(argument, numbers, where)
        if not values.ndim:
            raise ValueError(
                f"{argument} must be one list of whole numbers for each {owner}, got {values.dtype} of shape ()"
                f"{where}; for a column with the client of each row use jaxfl.data.partition.natural(column)[0]."
            )
        check_numbers(argument, values, where)
        arrays.append(values if values.size else values.astype(np.int64))
    return arrays


def check_min_rows(num_rows: int, num_clients: int, min_rows: int) -> None:
    """Raises ValueError unless every client can have `min_rows` rows."""
    check_count("min_rows", min_rows, least=0)
    if min_rows * num_clients > num_rows:
        raise ValueError(
            f"min_rows must be between 0 and {num_rows // num_clients} ({num_rows} rows for {num_clients} clients), "
            f"got {min_rows}; lower min_rows or use fewer clients."
        )


def at_most(parts: Parts, max_rows: int | None, min_rows: int, rng: np.random.Generator) -> Parts:
    """Returns the parts after reducing the larger ones to `max_rows` rows, chosen at random.

    Args:
        parts: rows of each client.
        max_rows: most rows of each client; None keeps all rows.
        min_rows: least rows of each client, for the check of `max_rows`.
        rng: generator of the choices.

    Raises:
        ValueError: `max_rows` is less than `min_rows` or than 1, or a number is not an integer.

    >>> [len(part) for part in at_most([np.arange(9), np.arange(2)], 4, 2, np.random.default_rng(0))]
    [4, 2]
    """
    parts = number_lists("parts", parts, "client")
    check_count("min_rows", min_rows, least=0)
    if max_rows is None:
        return parts
    check_count("max_rows", max_rows)
    if max_rows < max(min_rows, 1):
        raise ValueError(f"max_rows must be at least min_rows ({max(min_rows, 1)}), got {max_rows}.")
    return [np.sort(rng.permutation(part)[:max_rows]) for part in parts]


def class_labels(which: str, labels: ArrayLike) -> np.ndarray:
    """Returns labels, such as a list, as an array `[P]`; raises ValueError unless they are classes."""
    labels = as_array("labels", labels)
    check_classes(which, labels)
    return labels


def class_lists(argument: str, groups: str | Iterable[Any]) -> tuple[tuple[int, ...], ...]:
    """Returns the classes of each group.

    Args:
        argument: name of the argument.
        groups: text with a comma between groups and a colon between the classes of a group, and "none" for a group
            without a class; or a list with a class or a list of classes for each group.

    Raises:
        ValueError: `groups` is neither, or a class is no whole number or twice in a group.

    >>> class_lists("kept", "1:2,3,none"), class_lists("kept", [9, (0, 1)])
    (((1, 2), (3,), ()), ((9,), (0, 1)))
    """
    given = groups
    if isinstance(groups, str):
        texts = [[] if group.strip() == "none" else group.split(":") for group in groups.split(",")]
        numbers = [[text.strip() for text in group] for group in texts]
        if not all(text.isdecimal() for group in numbers for text in group):
            raise ValueError(
                f"{argument} must be class numbers with a comma between groups and a colon between the classes of a "
                f"group, got {schema.quoted(given)}; 1:2,3:4 has two groups."
            )
        groups = [list(map(int, group)) for group in numbers]
    elif np.iterable(groups):
        groups = [() if group is None else group if np.iterable(group) else (group,) for group in groups]
    lists = tuple(tuple(group.tolist()) for group in number_lists(argument, groups, "group"))
    if not lists or any(len(set(group)) < len(group) for group in lists):
        raise ValueError(f"{argument} must have a group, and a class once in a group, got {given!r}; correct it.")
    return lists


def check_known_classes(argument: str, groups: Iterable[Iterable[int]], classes: np.ndarray) -> None:
    """Raises ValueError if a group has a class that the data do not have."""
    if absent := sorted({label for group in groups for label in group} - set(classes.tolist())):
        raise ValueError(
            f"{argument} must have classes of the data ({classes.tolist()}), got {absent[0]}; correct {argument}."
        )
