"""Columns of Arrow tables as arrays: images in any of the ways in which they are stored, numbers and strings."""

import io
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

# Pillow's modes of 8 bits, and what they are read as: [H, W] or [H, W, 3].
MODES = {"1": "L", "L": "L", "LA": "L", "P": "RGB", "RGB": "RGB", "RGBA": "RGB", "CMYK": "RGB", "YCbCr": "RGB"}


def images(where: str, start: int, column: Any) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the number of a row and the images `[rows, ...]` from there on, uint8 or float32.

    Args:
        where: the file and the column, for the messages.
        start: the number of the first row.
        column: files in bytes, `struct<bytes, path>`, or lists of numbers; uint8 is what is 0..255.

    Raises:
        ValueError: the column is of another type, or an image cannot be decoded or differs from the others in shape.
    """
    from pyarrow import types

    kind = column.type
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        column = column.field("bytes")
        kind = column.type
    if types.is_binary(kind) or types.is_large_binary(kind):
        for row, content in enumerate(column.to_pylist(), start):
            if content is None:
                raise ValueError(f"{where}: row {row} has no bytes of an image; write the files into the column.")
            yield row, _decoded(f"{where}: row {row}", content)[None]
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        yield start, _numbers(f"{where}: rows from {start}", column)
    else:
        raise ValueError(f"{where} must hold bytes, struct<bytes, path> or lists of numbers, got {kind}; set image.")


def _decoded(where: str, content: bytes) -> np.ndarray:
    """Returns the pixels of an image file, `[H, W]` or `[H, W, 3]`."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as picture:
            mode, target = picture.mode, MODES.get(picture.mode)
            if target is not None:
                # A palette may have transparent colours, which Pillow wants resolved first.
                return np.asarray((picture.convert("RGBA") if mode == "P" else picture).convert(target))
    except (OSError, ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError) as error:
        raise ValueError(
            f"{where} cannot be decoded as an image ({error}); leave it out or get the file again."
        ) from error
    raise ValueError(
        f"{where} must be an image of 8 bits, got mode {mode}; convert it, modes {sorted(MODES)} are read."
    )


def _numbers(where: str, column: Any) -> np.ndarray:
    """Returns nested lists of numbers as one array `[rows, ...]`."""
    from pyarrow import types

    shape = [len(column)]
    while types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        fixed = types.is_fixed_size_list(column.type)
        sizes = [column.type.list_size] if fixed else np.unique(column.drop_null().value_lengths().to_numpy()).tolist()
        if column.null_count or len(sizes) != 1:
            raise ValueError(f"{where}: images must have one shape, got sides of {sizes}; resize them to one.")
        shape.append(sizes[0])
        column = column.flatten()
    if column.null_count or not (types.is_integer(column.type) or types.is_floating(column.type)):
        raise ValueError(f"{where} must hold lists of numbers, got {column.type}, {column.null_count} values missing.")
    values = column.to_numpy(zero_copy_only=False).reshape(shape)
    if types.is_floating(column.type):
        return values.astype(np.float32)
    if values.min(initial=0) < 0 or values.max(initial=0) > 255:
        raise ValueError(f"{where}: pixels must be 0..255, got {values.min()}..{values.max()}; store them as floats.")
    return values.astype(np.uint8)


def values(where: str, role: str, column: Any) -> np.ndarray:
    """Returns labels, makers or groups `[rows]`: integers or strings.

    Args:
        where: the file and the column, for the messages.
        role: what they are, the option that names the column.
        column: integers, truth values, strings or a dictionary of them.

    Raises:
        ValueError: the column is of another type.

    >>> import pyarrow
    >>> values("own.parquet, column y", "label", pyarrow.array([True, False])).tolist()
    [1, 0]
    """
    from pyarrow import types

    if not readable(column.type):
        raise ValueError(
            f"{where}: {role} must be integers or strings, got {column.type}; set {role} to another column."
        )
    column = column.dictionary_decode() if types.is_dictionary(column.type) else column
    if types.is_string(column.type) or types.is_large_string(column.type):
        return np.array(column.to_pylist(), str)
    if types.is_boolean(column.type):
        return column.to_numpy(zero_copy_only=False).astype(np.int64)
    return column.to_numpy().astype(np.int64)


def readable(kind: Any) -> bool:
    """Returns whether `values` reads columns of an Arrow type."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    of_texts = types.is_string(kind) or types.is_large_string(kind)
    return of_texts or types.is_boolean(kind) or types.is_integer(kind)
