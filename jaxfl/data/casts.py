"""Conversions of arrays that change no value silently: integers, floats, texts, and arrays joined to one.

NumPy wraps integers that do not fit, rounds floats until different values are equal, cuts zeros off the end of texts,
and joins signed and unsigned integers to floats. Arrays of users are converted by the functions of this module alone.
"""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

COARSE = 1e-3  # largest rounding error, as a share of the range of a column
# Rows, fewer of many columns, in which merged values are counted: of a million values, some merge by chance.
SAMPLE = 1 << 12
LOST = 0.05  # share of different values that may merge, for the same reason
BLOCK = 1 << 22  # values that are compared at once


def native(values: np.ndarray) -> np.ndarray:
    """Returns an array in the machine's byte order, without a copy if it has that order already."""
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def to_integers(
    name: str, values: np.ndarray, dtype: DTypeLike = np.int32, remedy: str = "renumber them"
) -> np.ndarray:
    """Returns integers or bools in another integer type.

    Args:
        name: name of the array, for the message; a path may precede it.
        values: integers or bools of any shape.
        dtype: an integer type.
        remedy: the end of the message.

    Raises:
        ValueError: a value does not fit.

    >>> to_integers("labels", np.array([3, 2**31]))
    Traceback (most recent call last):
    ValueError: labels must be integers of 32 bits, from -2147483648 to 2147483647, got 2147483648 in row 1; ...
    """
    if np.can_cast(values.dtype, dtype):
        return values.astype(dtype, copy=False)
    limits = np.iinfo(dtype)
    if values.size and (int(values.min()) < limits.min or int(values.max()) > limits.max):
        place = np.argmax((values > limits.max) | (values < limits.min))
        raise ValueError(
            f"{name} must be integers of {limits.bits} bits, from {limits.min} to {limits.max}, got "
            f"{_value_and_place(values, int(place))}; {remedy}."
        )
    return values.astype(dtype)


def to_floats(name: str, values: np.ndarray, dtype: DTypeLike, remedy: str) -> np.ndarray:
    """Returns numbers in another float type after `check_rounding` and `warn_merged_values`."""
    check_rounding(name, values, dtype, remedy)
    warn_merged_values(name, values, dtype, remedy)
    return values.astype(dtype, copy=False)


def check_rounding(name: str, values: np.ndarray, dtype: DTypeLike, remedy: str) -> None:
    """Raises ValueError if a float type is too coarse for the differences within a column, or for all values.

    Args:
        name: name of the array, for the message; a path may precede it.
        values: finite numbers `[P, ...]`; every position of a row is a column.
        dtype: float type that they are converted to.
        remedy: the end of the message.

    Raises:
        ValueError: a value is beyond the type, or rounded by more than a thousandth of its column's range; or all
            values are so small that devices, which replace subnormal numbers by 0, change them by more than that.

    >>> check_rounding("labels", 1.7e9 + np.arange(60.0), np.float32, "subtract their mean")
    Traceback (most recent call last):
    ValueError: labels must differ by more than the precision of float32, to which they are converted, got ...
    """
    if not values.size:
        return
    _check_subnormal(name, values, dtype)
    if np.can_cast(values.dtype, dtype):
        return
    rows = values.reshape(len(values), -1)
    error, worst = np.zeros(rows.shape[1]), np.zeros(rows.shape[1], np.int64)
    step = max(1, BLOCK // rows.shape[1])
    for begin in range(0, len(rows), step):
        block = rows[begin : begin + step]
        with np.errstate(over="ignore"):
            errors = np.abs(block.astype(dtype).astype(block.dtype) - block)
        place = errors.argmax(0)
        largest = errors[place, np.arange(len(place))]
        worst, error = np.where(largest > error, begin + place, worst), np.maximum(error, largest)
    columns = np.arange(rows.shape[1])
    if np.isinf(error).any():
        largest = int(np.argmax(np.abs(rows)))
        raise ValueError(
            f"{name} must be in the range of {np.dtype(dtype)}, to which they are converted, got "
            f"{_value_and_place(values, largest, '.3g')}; scale them."
        )
    spread = rows.max(0) / 2 - rows.min(0) / 2  # halves: the difference may be infinite
    coarse = error / 2 > COARSE * spread
    if (coarse & (spread > 0)).any():
        column = int(np.argmax(coarse & (spread > 0)))
        raise ValueError(
            f"{name} must differ by more than the precision of {np.dtype(dtype)}, to which they are converted, got "
            f"{_value_and_place(values, int(worst[column]) * len(columns) + column)}, which becomes "
            f"{float(rows[worst[column], column].astype(dtype))}, in a range of {2 * spread[column]:.6g}; {remedy}."
        )


def _check_subnormal(name: str, values: np.ndarray, dtype: DTypeLike) -> None:
    """Raises ValueError if values are so small, all of them, that a device makes them 0; as `check_rounding`."""
    least = float(np.finfo(dtype).tiny)
    high, low = float(values.max()), float(values.min())
    if low < high and max(high, -low) < least / COARSE:
        raise ValueError(
            f"{name} must be well above {least:.3g}, the smallest number of {np.dtype(dtype)} that devices do not "
            f"replace by 0, got {low:.3g} to {high:.3g}; multiply them."
        )


def warn_merged_values(name: str, values: np.ndarray, dtype: DTypeLike, remedy: str) -> None:
    """Warns if different numbers become equal in a float type: many of a column, or any whole numbers.

    They are counted in a sample of the rows.

    Args:
        name, values, dtype, remedy: as for `check_rounding`.
    """
    if not values.size or np.can_cast(values.dtype, dtype):
        return
    rows = values.reshape(len(values), -1)
    count = min(len(rows), max(SAMPLE // 16, min(SAMPLE, BLOCK // rows.shape[1] // 4)))
    sample = rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]
    inexact = np.flatnonzero((sample.astype(dtype) != sample).any(0))
    different, lost, whole, _ = _count_merged(sample[:, inexact], dtype)
    wrong = (lost > LOST * different) | (whole & (lost > 0))
    if wrong.any():
        column = int(inexact[np.argmax(wrong)])
        (different,), (lost,), _, pair = _count_merged(rows[:, [column]], dtype)
        which = f" in column {column}" if values.ndim > 1 else ""
        warnings.warn(
            f"{name}: {lost} of {different} different values{which} become equal in {np.dtype(dtype)}, such as "
            f"{' and '.join(map(str, pair))}; {remedy}.",
            stacklevel=3,
        )


def _count_merged(rows: np.ndarray, dtype: DTypeLike) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[float]]:
    """Returns the number of different values of each column, of those that become equal to another one in `dtype`,
    whether all values are whole, and two values that become equal, or none.
    """
    ordered = np.sort(rows, axis=0)
    differ = ordered[1:] > ordered[:-1]
    merged = differ & (ordered[1:].astype(dtype) == ordered[:-1].astype(dtype))
    pair = np.argwhere(merged)[:1]
    values = ordered[pair[0, 0] : pair[0, 0] + 2, pair[0, 1]].tolist() if len(pair) else []
    return 1 + differ.sum(0), merged.sum(0), (ordered == np.rint(ordered)).all(0), values


def to_texts(name: str, values: Iterable[Any], remedy: str = "rename one") -> np.ndarray:
    """Returns values as an array of texts; raises ValueError if different ones would become equal.

    >>> to_texts("client", ["ann", "ann\\0"])
    Traceback (most recent call last):
    ValueError: client must be texts that do not end in a zero character, got 'ann\\x00' in row 1; rename one.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "iufbU":
        return values.astype(str)
    listed = [value if isinstance(value, str) else str(value) for value in values]
    if (row := next((row for row, text in enumerate(listed) if text.endswith("\0")), None)) is not None:
        raise ValueError(
            f"{name} must be texts that do not end in a zero character, got {listed[row]!r} in row {row}; {remedy}."
        )
    return np.array(listed, str)


def join(name: str, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Returns arrays of ids, labels or names one after the other.

    Args:
        name: name of the arrays, for the message.
        parts: arrays of equal shape but for their first axis.

    Raises:
        ValueError: NumPy would join integers to floats, or numbers and texts to texts.

    >>> join("client", [np.array([2**63], np.uint64), np.array([7])]).tolist()
    [9223372036854775808, 7]
    """
    kinds = {part.dtype.kind for part in parts if part.size}
    if kinds == {"i", "u"} and np.result_type(*parts).kind == "f":
        lowest = min(int(part.min()) for part in parts if part.size)
        dtype = np.uint64 if lowest >= 0 else np.int64
        return np.concatenate([to_integers(name, part, dtype) for part in parts])
    if len({"number" if kind in "iub" else kind for kind in kinds}) > 1:
        types = " and ".join(sorted({str(part.dtype) for part in parts if part.size}))
        raise ValueError(f"{name} must have one type in training and test rows, got {types}; convert one of them.")
    return np.concatenate(list(parts))


def _value_and_place(values: np.ndarray, place: int, form: str = "") -> str:
    """Returns a phrase for the value at a flat index, with its row and column."""
    index = np.unravel_index(place, values.shape)
    column = f", column {'/'.join(str(number) for number in index[1:])}" if len(index) > 1 else ""
    value = values[index].item() if not form else format(values[index], form)
    return f"{value} in row {index[0]}{column}" if index else f"{value}"
