"""Parquet files as on Hugging Face's hub: images and labels in columns of a file or of a folder of shards.

An image is the content of an image file in a column of bytes (png, jpeg; alone or in `struct<bytes, path>`), or lists
of numbers. Images are decoded batch by batch into one array that is allocated once.
"""

import io
import json
import os
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxfl.data import bounded
from jaxfl.data.building import STANDARDISE, check_finite
from jaxfl.data.casts import join, to_floats, to_texts
from jaxfl.data.labels import count_classes
from jaxfl.data.sources import checks, pictures, shards
from jaxfl.data.sources.base import Folder, Source, SourceEntry


def image_batches(
    where: str, start: int, column: Any, lacking: dict[str, list[str]] | None = None
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields pairs of a row number and the images `[rows, ...]` from this row on, uint8 or float32.

    Args:
        where: file and column, for the messages.
        start: number of the first row.
        column: image files as bytes, `struct<bytes, path>`, or lists of numbers; integers from 0 to 255 become uint8.
        lacking: as of `jaxfl.data.sources.pictures.decode`.

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
                raise ValueError(
                    f"{where}: row {row} must have the bytes of an image, got none; write the files into the column."
                )
            yield row, pictures.decode(f"{where}: row {row}", content, lacking=lacking)[None]
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        yield start, _array_from_lists(f"{where}: rows from {start}", column)
    else:
        raise ValueError(f"{where} must have bytes, struct<bytes, path> or lists of numbers, got {kind}; set image.")


def _array_from_lists(where: str, column: Any) -> np.ndarray:
    """Returns nested lists of numbers as one array `[rows, ...]`."""
    from pyarrow import types

    shape = [len(column)]
    while types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        fixed = types.is_fixed_size_list(column.type)
        sizes = [column.type.list_size] if fixed else np.unique(column.drop_null().value_lengths().to_numpy()).tolist()
        if column.null_count or len(sizes) != 1:
            raise ValueError(f"{where}: images must have one shape, got sides of {sizes}; resize images, pad series.")
        shape.append(sizes[0])
        column = column.flatten()
    if column.null_count or not (types.is_integer(column.type) or types.is_floating(column.type)):
        raise ValueError(
            f"{where} must have lists of numbers, got {column.type} with {column.null_count} missing values."
        )
    values = column.to_numpy(zero_copy_only=False).reshape(shape)
    if types.is_floating(column.type):
        return values
    if values.min(initial=0) < 0 or values.max(initial=0) > 255:
        raise ValueError(f"{where}: pixels must be 0..255, got {values.min()}..{values.max()}; store them as floats.")
    return values.astype(np.uint8)


def column_values(where: str, role: str, column: Any) -> np.ndarray:
    """Returns labels, makers or groups `[rows]`: integers or strings.

    Args:
        where: file and column, for the messages.
        role: option that names the column, such as `"label"`.
        column: integers, bools, strings or a dictionary of them.

    Raises:
        ValueError: the column is of another type.

    >>> import pyarrow
    >>> column_values("own.parquet, column y", "label", pyarrow.array([True, False])).tolist()
    [1, 0]
    """
    from pyarrow import types

    if not readable(column.type):
        raise ValueError(
            f"{where}: {role} must be integers or strings, got {column.type}; set {role} to another column."
        )
    column = column.dictionary_decode() if types.is_dictionary(column.type) else column
    if types.is_string(column.type) or types.is_large_string(column.type):
        return to_texts(where, column.to_pylist())
    if types.is_boolean(column.type):
        return column.to_numpy(zero_copy_only=False).astype(np.int64)
    return column.to_numpy() if types.is_unsigned_integer(column.type) else column.to_numpy().astype(np.int64)


def readable(kind: Any) -> bool:
    """Returns whether `column_values` can read columns of an Arrow type."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    text = types.is_string(kind) or types.is_large_string(kind)
    return text or types.is_boolean(kind) or types.is_integer(kind)


BATCH = 256  # rows that are decoded at once
CANDIDATES = {
    "image": ("image", "img", "x", "pixels", "pixel_values"),
    "label": ("label", "labels", "y", "character", "fine_label", "target"),
    "client": ("client", "client_id", "writer_id", "user_id", "celeb_id", "person", "speaker_id"),
    "group": ("group", "domain", "hsf_id"),
}


def load(
    data_dir: Folder = None,
    *,
    image: str = "",
    label: str = "",
    client: str = "",
    group: str = "",
    split: str = "train",
) -> Source:
    """Returns the examples of parquet files.

    Files such as `train-00000-of-00003.parquet` or `train.parquet` belong to a split, in the folder or in its only
    folder of parquet files (`data/` on the hub). The split `test`, if it exists, is the official test set. A single
    file, and files without names of splits, are all read.

    Args:
        data_dir: a file, or a folder.
        image, label, client, group: names of columns; if empty, the first existing column of `CANDIDATES`, if any. A
            detected group is ignored if it differs within a client, is of another type, or is missing in a row; a group
            that the user names is then refused.
        split: the split to train on.

    Raises:
        FileNotFoundError: there is no parquet file, or a shard is missing.
        ValueError: a file is damaged, a column is missing or of another type, a value is missing, or images differ in
            shape.

    Warns:
        UserWarning: files of a split that is neither `train` nor `test`, or in another folder, are not read; names
            differ in their case or in spaces alone; or without files of `test`, the name of a file or of a column says
            which rows are for tests, and all are divided anew.
    """
    files = shards.files_in(data_dir)
    train_files, test_files = (
        (files, []) if files == [Path(data_dir or "")] else shards.select_splits(files, split, "test")
    )
    unread = [path.name for path in files if path not in (*train_files, *test_files)]
    if others := shards.others_in(data_dir, files):
        more = " and others" if len(others) > 3 else ""
        warnings.warn(
            f"{data_dir}: {', '.join(others[:3])}{more} are not read, only the .parquet files in {files[0].parent} "
            f"({len(files)}); put all files into one folder, and call them .parquet.",
            stacklevel=2,
        )
    if unread and split == "train":  # which nobody may have chosen
        more = " and others" if len(unread) > 3 else ""
        warnings.warn(
            f"{files[0].parent}: {', '.join(unread[:3])}{more} are not read; training rows are those of split={split}, "
            "test rows those of split test: call files so, or set split.",
            stacklevel=2,
        )
    schema = _read_schema(train_files[0])
    if not test_files:
        _warn_rows_divided_anew(train_files, schema.names, {label, client, group})
    given = {"image": image, "label": label, "client": client, "group": group}
    columns = {role: _choose_column(train_files, schema.names, role, name) for role, name in given.items()}
    train = _read_split(train_files, {role: name for role, name in columns.items() if name})
    test: dict[str, np.ndarray] = {}
    if test_files:
        existing = _read_schema(test_files[0]).names
        wanted = {role: name for role, name in columns.items() if role != "group" and name}
        for role in ("image", "label"):
            _choose_column(test_files, existing, role, wanted[role])
        test = _read_split(test_files, {role: name for role, name in wanted.items() if name in existing})
        first, second = ((part["image"].dtype, part["image"].shape[1:]) for part in (train, test))
        if first != second:
            raise ValueError(
                f"{test_files[0]}: test images must have the type and shape of training images, {first}, got "
                f"{second}; resize them."
            )
    for role in ("label", "client", "group"):
        checks.warn_alike_texts(f"{train_files[0]}, column {columns[role]}", train.get(role), test.get(role))
    names, num_classes = _number_classes(train_files[0], _class_names(schema, columns["label"]), train, test)
    groups, group_names = _number_groups(train_files[0], train, columns["group"], required=bool(group))
    pixels = train["image"].dtype == np.uint8
    return Source(
        Path(os.path.abspath(data_dir or "")).stem,  # also for "."
        train["image"],
        train["label"],
        num_classes,
        test.get("image"),
        test.get("label"),
        clients=train.get("client"),
        test_clients=test.get("client"),
        client_groups=groups,
        group_names=group_names,
        class_names=names,
        mean=0.0 if pixels else None,
        std=255.0 if pixels else None,
    )


def _warn_rows_divided_anew(files: Sequence[Path], existing: Sequence[str], used: Collection[str]) -> None:
    """Warns of files without a test set, or a column, that say by their names which rows are for tests.

    Args:
        files: whose rows are all divided.
        existing: names of their columns.
        used: columns that have a role.
    """
    words = rf"(^|[^a-z])({checks.HELD_BACK})([^a-z]|$)"
    held_back = [path.name for path in files if re.search(words, path.stem.lower())]
    if 0 < len(held_back) < len(files):
        warnings.warn(
            f"{files[0].parent}: {held_back[0]} is divided among training and test rows like the other files; call the "
            "files train.parquet and test.parquet to keep its rows for tests.",
            stacklevel=3,
        )
    for name in existing:
        if name not in used and checks.is_split(name):
            warnings.warn(checks.split_sentence(files[0], name), stacklevel=3)


def _damaged_file(path: Path, error: object) -> ValueError:
    """Returns the error for a file that cannot be read."""
    return ValueError(f"{path} is a damaged parquet file ({error}); download it again.")


def _read_schema(path: Path) -> Any:
    """Returns the Arrow schema of a file, after checking the format's first and last bytes."""
    import pyarrow
    from pyarrow import parquet

    try:
        bounded.check_regular(path)
    except ValueError as error:
        raise ValueError(f"{path} must be a parquet file: {error}; download it again.") from error
    with path.open("rb") as stream:
        first = stream.read(4)
        size = stream.seek(0, io.SEEK_END)
        stream.seek(max(size - 4, 0))
        last = stream.read(4)
    if first != shards.MAGIC:
        raise ValueError(f"{path} must start with {shards.MAGIC!r}, got {first!r}; it is another file under this name.")
    if last != shards.MAGIC or size < 12:
        raise ValueError(f"{path} must end with {shards.MAGIC!r}, got {last!r}; it is truncated, download it again.")
    try:
        return parquet.read_schema(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged_file(path, error) from error


def _choose_column(files: Sequence[Path], existing: Sequence[str], role: str, name: str) -> str:
    """Returns the column of a role, the given one or the first candidate; "" if there are no makers or groups."""
    if name or role in ("image", "label"):
        candidates = (name,) if name else CANDIDATES[role]
        column = next((candidate for candidate in candidates if candidate in existing), None)
        if column is None:
            raise ValueError(
                f"{files[0]} must have a column {' or '.join(candidates)}, got {list(existing)}; set {role} to one of "
                "them."
            )
        return column
    candidates = [candidate for candidate in CANDIDATES[role] if candidate in existing]
    return next((column for column in candidates if role != "group" or _is_complete_column(files, column)), "")


def _is_complete_column(files: Sequence[Path], column: str) -> bool:
    """Returns whether a detected column has an integer, a bool or a text in every row."""
    if not readable(_read_schema(files[0]).field(column).type):
        return False
    return not any(batch.column(0).null_count for path in files for _, batch in _row_batches(path, [column]))


def _row_batches(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Any]]:
    """Yields the number of the first row and the rows of each batch."""
    import pyarrow
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        batches, start = file.iter_batches(BATCH, columns=list(columns)), 0
        while True:
            try:
                batch = next(batches, None)
            except (pyarrow.ArrowException, OSError) as error:
                raise _damaged_file(path, error) from error
            if batch is None:
                return
            yield start, batch
            start += len(batch)


def _read_split(files: Sequence[Path], columns: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Returns columns of all files of a split by role; images are read into one array, floats become float32."""
    from pyarrow import parquet

    for path in files:
        for name in columns.values():
            if name not in (existing := _read_schema(path).names):
                raise ValueError(
                    f"{path} must have the column {name} of {files[0].name}, got {existing}; download it again."
                )
    metadata, size = [parquet.read_metadata(path) for path in files], sum(path.stat().st_size for path in files)
    declared = sum(each.row_group(group).total_byte_size for each in metadata for group in range(each.num_row_groups))
    bounded.check_unpacked_size(declared, size, f"{files[0]}: ")
    total, done = sum(each.num_rows for each in metadata), 0
    if not total:
        raise ValueError(f"{files[0]} must have rows, got none; download it again.")
    images: np.ndarray | None = None
    lacking: dict[str, list[str]] = {}
    parts: dict[str, list[np.ndarray]] = {role: [] for role in columns if role != "image"}
    for path in files:
        for start, batch in _row_batches(path, list(columns.values())):
            for role, name in columns.items():
                column, where = batch.column(name), f"{path}, column {name}"
                if column.null_count:
                    row = start + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
                    raise ValueError(f"{where}: row {row} must have a {role}, got none; leave such rows out.")
                if role != "image":
                    parts[role].append(column_values(where, role, column))
                    continue
                for row, pixels in image_batches(where, start, column, lacking):
                    if images is None:
                        bounded.check_unpacked_size(total * pixels[:1].nbytes, size, f"{where}: ")
                        images = np.empty((total, *pixels.shape[1:]), pixels.dtype)
                    if pixels.dtype.kind == images.dtype.kind == "f":  # one file may have other floats than another
                        wide = np.result_type(pixels, images)
                        pixels, images = pixels.astype(wide, copy=False), images.astype(wide, copy=False)
                    if (pixels.dtype, pixels.shape[1:]) != (images.dtype, images.shape[1:]):
                        raise ValueError(
                            f"{where}: images must have one shape, got {images.shape[1:]} {images.dtype} first and "
                            f"{pixels.shape[1:]} {pixels.dtype} in row {row}; resize them."
                        )
                    images[done + row - start : done + row - start + len(pixels)] = pixels
            done += len(batch)
    assert images is not None
    pictures.warn_lacking(lacking, total)
    where = f"{files[0]}, column {columns['image']}"
    if images.dtype.kind == "f":
        check_finite(where, images)
        images = to_floats(where, images, np.float32, STANDARDISE)
    joined = {role: join(f"{files[0]}, column {columns[role]}", part) for role, part in parts.items()}
    return {"image": images, **joined}


def _class_names(schema: Any, column: str) -> tuple[str, ...]:
    """Returns the names of a column's classes in the hub's metadata, or none."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(map(str, features[column].get("names") or ()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()  # metadata of other writers; names are optional


def _number_classes(
    path: Path, names: tuple[str, ...], train: dict[str, np.ndarray], test: dict[str, np.ndarray]
) -> tuple[tuple[str, ...], int]:
    """Returns names and number of classes, and converts the labels of both parts in place to numbers."""
    parts = [part for part in (train, test) if part]
    if any(part["label"].dtype.kind == "U" for part in parts):
        names = tuple(np.unique(join(f"{path}: labels", [part["label"] for part in parts])).tolist())
        for part in parts:
            part["label"] = np.searchsorted(np.array(names), part["label"])
    lowest = min(int(part["label"].min()) for part in parts)
    highest = max(int(part["label"].max()) for part in parts)
    if lowest < 0:
        raise ValueError(f"{path}: labels must be 0 or more, got {lowest}; leave out rows of unknown labels.")
    if names and highest >= len(names):
        raise ValueError(f"{path}: labels must be below the {len(names)} classes of its metadata, got {highest}.")
    if not names:
        return names, count_classes(f"{path}: labels", [part["label"] for part in parts], "write them as words")
    return names, len(names)


def _number_groups(
    path: Path, train: Mapping[str, np.ndarray], column: str, *, required: bool
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Returns the group of each row's client, and the names of the groups."""
    if not column:
        return None, ()
    names, groups = np.unique(train["group"], return_inverse=True)
    fault = "the clients are unknown: set client" if "client" not in train else ""
    if not fault:
        clients, first, client = np.unique(train["client"], return_index=True, return_inverse=True)
        if len(several := clients[client[groups[first][client] != groups]]):
            fault = f"client {several[0]} is in two groups: set another column"
    if fault and required:
        raise ValueError(f"{path}: group {column} must be the same in all rows of a client; {fault}.")
    return (None, ()) if fault else (groups.astype(np.int32), tuple(map(str, names)))


def _find_parquet(data_dir: Folder) -> Path | None:
    """Returns the file or the folder if it has parquet files, or None."""
    try:
        files = shards.files_in(data_dir)
    except FileNotFoundError:
        return None
    return Path(data_dir or "") if shards.is_parquet(files[0]) else None


ENTRY = SourceEntry(
    load,
    find=_find_parquet,
    summary="images and labels[, client, group] in the .parquet files that data_dir names, as on Hugging Face's hub",
    licence="yours",
    user_files=shards.files_in,
    num_bytes=0,
    num_classes=None,
    model=("auto", {}),
    makers="client",
)
