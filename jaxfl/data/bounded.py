"""Arrays and JSON out of files that anybody may have written: sizes are checked before anything is unpacked.

A zip of 42 kB can unpack to gigabytes. A file may therefore unpack to a gigabyte, or else to a hundred times its own
size; what is said in a zip's directory, in an array's header or in a table's metadata is checked against that, and read
is no more than was said. Arrays are numbers and strings: nothing here runs code of a file.
"""

import gzip
import json
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

import numpy as np

FREE = 1 << 30  # bytes that any file may unpack to
RATIO = 100  # and beyond: so many times its own bytes. Images have 1 to 20, gigabytes of one value a thousand.
TEXT = 1 << 26  # bytes of a JSON document
BLOCK = 1 << 20  # bytes read at once

DAMAGE = (  # what a zip's members and numpy's headers raise beside ValueError
    *(zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, struct.error),
    *(SyntaxError, tokenize.TokenError, TypeError, OverflowError, IndexError, KeyError),
)


def check_unpacked_size(declared: int, size: int, where: str = "") -> None:
    """Raises if a file unpacks to more than it may.

    Args:
        declared: bytes that it says it unpacks to.
        size: its own.
        where: the beginning of the message.

    Raises:
        ValueError: it is too much.

    >>> check_unpacked_size(5_000_000_000, 42_000)
    Traceback (most recent call last):
    ValueError: its 42,000 bytes unpack to 5,000,000,000, more than 1,073,741,824 and more than 100 times as many; ...
    """
    if declared > max(FREE, RATIO * size):
        raise ValueError(
            f"{where}its {size:,} bytes unpack to {declared:,}, more than {FREE:,} and more than {RATIO} times as "
            "many; if you trust it, write it without compression"
        )


def read_arrays(path: Path, wanted: Collection[str] | None = None) -> tuple[dict[str, np.ndarray], list[str]]:
    """Reads arrays of an npz file.

    Args:
        path: the file.
        wanted: names of arrays; those that the file does not hold are left out, others are not read. None reads all.

    Returns:
        The arrays by name, and the names of all that the file holds.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is no npz file, is damaged, holds Python objects, or unpacks to too much; the message says which,
            and not of what file.
    """
    with path.open("rb") as stream:
        if not zipfile.is_zipfile(stream):
            raise ValueError("no zip archive, or a truncated one")
        size = stream.seek(0, 2)
        try:
            with zipfile.ZipFile(stream) as archive:
                members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
                chosen = {name: info for name, info in members.items() if wanted is None or name in wanted}
                check_unpacked_size(sum(info.file_size for info in chosen.values()), size)
                found = {}
                for name, info in chosen.items():
                    with _open_member(archive, info) as member:
                        found[name] = _read_npy(member, info.file_size)
                return found, list(members)
        except DAMAGE as error:
            raise ValueError(str(error) or type(error).__name__) from error


def _open_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> IO[bytes]:
    """Opens a member that numpy may have written: others may unpack to more than they say, a block at a time."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{info.filename} is compressed as numpy does not; write it with np.savez")
    return archive.open(info)


def _read_npy(member: IO[bytes], size: int) -> np.ndarray:
    """Reads one array of `size` bytes, header and values; the header may not say that there are more, or fewer."""
    version = np.lib.format.read_magic(member)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in read_header:
        raise ValueError(f"an array has format {version}; write it with np.savez")
    shape, fortran, dtype = read_header[version](member)
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError("an array holds Python objects, or nothing at all; only numbers and strings are read")
    said = math.prod(shape) * dtype.itemsize
    if said != size - member.tell():
        raise ValueError(f"an array's header says {said:,} bytes, {size - member.tell():,} are there")
    content, place = np.empty(said, np.uint8), 0
    while part := member.read(BLOCK):
        content[place : place + len(part)] = np.frombuffer(part, np.uint8)
        place += len(part)
    if place != said:
        raise ValueError("an array ends before its header says")
    flat = content.view(dtype)
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def read_content(path: Path) -> bytes:
    """Returns the bytes of a file, unpacked if it is compressed by gzip.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is damaged, or unpacks to too much.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            with gzip.open(file) if packed else file as stream:
                found = stream.read(max(FREE, RATIO * size) + 1)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"it is a damaged gzip file: {error}") from error
    check_unpacked_size(len(found), size)
    return found


def read_object(path: Path) -> dict[str, Any]:
    """Returns the object that a JSON file holds.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it holds something else.
    """
    with path.open("rb") as file:
        found = parse_json(file.read(TEXT + 1))
    if not isinstance(found, dict):
        raise ValueError(f"it must be an object, and is a {type(found).__name__}")
    return found


def parse_json(text: str | bytes) -> Any:
    """Returns what a JSON text says.

    Raises:
        ValueError: it is none, is too long, or goes too deep.

    >>> parse_json('{"round": 3}'), parse_json(b"[1]")
    ({'round': 3}, [1])
    """
    if len(text) > TEXT:
        raise ValueError(f"it is longer than {TEXT:,} bytes")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("its lists and tables go too deep") from error
