"""Plain arrays of what users bring: arrays, lists, frames, tensors; of all else, an error with the line to write."""

import reprlib
from typing import Any

import numpy as np

from jaxfl.data.casts import native


def plain_array(name: str, values: Any, where: str = "", *, objects: bool = False) -> np.ndarray:
    """Returns values as a NumPy array in the machine's byte order; its type is checked by the caller.

    Args:
        name: name of the argument, for the message.
        values: an array, a list, a series or frame of pandas, or a tensor on the CPU.
        where: phrase for its position among several arrays, for the message.
        objects: whether entries may be Python objects, which the caller then checks.

    Raises:
        ValueError: entries are masked, texts beside numbers, or other objects; rows differ in length; or the matrix is
            sparse.

    >>> plain_array("inputs", [[1, 2], [3]])
    Traceback (most recent call last):
    ValueError: inputs must have rows of one length, got lists of different lengths, 2 in row 0 and 1 in row 1; pad ...
    """
    if np.ma.isMaskedArray(values):
        if (masked := np.ma.getmaskarray(values)).any():
            row = int(np.argwhere(masked)[0][0]) if masked.ndim else 0
            raise ValueError(
                f"{name} must have no masked entries, got {int(masked.sum())}, the first in row {row}{where}; fill "
                f"them by {name}.filled(value), or leave these rows out."
            )
        return native(np.asarray(values.data))
    if hasattr(values, "toarray") and hasattr(values, "nnz"):
        raise ValueError(
            f"{name} must be a dense array, got a {type(values).__name__} of shape {values.shape}{where}; use "
            f"{name}.toarray()."
        )
    if hasattr(values, "columns") and hasattr(values, "dtypes"):
        _check_frame(name, values)
        if len({dtype.kind for dtype in values.dtypes}) > 1:  # or columns of bools would make all columns objects
            values = values.astype(np.float64)
    try:
        array = np.asarray(values)
    except ValueError as error:  # lists of different lengths
        raise _ragged(name, values, where) or ValueError(
            f"{name} must be a plain list or array, got lists of different lengths{where} ({error})."
        ) from error
    except (RuntimeError, TypeError) as error:  # a tensor on an accelerator, or with a gradient
        raise ValueError(
            f"{name} must be an array in host memory, got a {type(values).__name__}{where} ({error}); for a tensor use "
            f"{name}.detach().cpu().numpy()."
        ) from error
    if array.dtype.kind == "O":
        if (error := _ragged(name, array.tolist() if array.ndim == 1 else [], where)) is not None:
            raise error
        entries = array.ravel().tolist()
        if entries and not objects and not any(isinstance(entry, str) for entry in entries):
            numeric = [isinstance(entry, int | float | np.number | np.bool_) for entry in entries]
            place = 0 if all(numeric) else numeric.index(False)
            entry, row = entries[place], place // (array.size // len(array)) if array.ndim else 0
            raise ValueError(
                f"{name} must be an array of numbers, got Python objects, {reprlib.repr(entry)} of type "
                f"{type(entry).__name__} in row {row}{where}; fill missing values and use np.array({name}.tolist())."
            )
    return native(array)


def _check_frame(name: str, frame: Any) -> None:
    """Raises ValueError if a frame has columns that are not numbers, or missing values in columns of objects."""
    kinds = {str(column): getattr(dtype, "kind", "O") for column, dtype in frame.dtypes.items()}
    if wrong := [column for column, kind in kinds.items() if kind not in "iufb"]:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise ValueError(
            f"{name} must have columns of numbers, got {', '.join(map(repr, wrong[:3]))}{more} of another type; leave "
            "them out, use pandas.get_dummies(frame, dtype=float), or write the frame to a file for the source table."
        )


def _ragged(name: str, values: Any, where: str) -> ValueError | None:
    """Returns the error for rows of different lengths, or None if the rows have no lengths or equal ones."""
    lengths: dict[Any, int] = {}
    for row, entry in enumerate(values if isinstance(values, list | tuple | np.ndarray) else []):
        if isinstance(entry, str) or not hasattr(entry, "__len__"):
            return None
        lengths.setdefault(np.shape(entry) if isinstance(entry, np.ndarray) else len(entry), row)
    if len(lengths) < 2:
        return None
    (one, first), (other, second) = list(lengths.items())[:2]
    return ValueError(
        f"{name} must have rows of one length, got lists of different lengths, {one} in row {first} and {other} in row "
        f"{second}{where}; pad or cut them to one length."
    )
