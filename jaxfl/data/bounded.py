"""Safe readers of arrays and JSON from untrusted files: sizes are checked before anything is unpacked.

A zip file of 42 kB can unpack to gigabytes. A file may therefore unpack to a gigabyte or to a hundred times its own
size. The sizes in a zip's directory, an array's header or a table's metadata are checked against that limit, and no
more is read than they declare. Arrays are numbers and strings: no code of a file is run.
"""

import gzip
import itertools
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

from jaxfl.data.casts import native

FREE = 1 << 30  # bytes that any file may unpack to
RATIO = 100  # limit above FREE, in bytes of the file: images have ratios of 1 to 20, a repeated value a thousand
TEXT = 1 << 26  # bytes of a JSON document
BLOCK = 1 << 20  # bytes that are read at once
NESTING = 100  # lists and dictionaries in each other
TOO_DEEP = f"its lists and objects are nested too deep, more than {NESTING} times"

DAMAGE = (  # errors of damaged zip members and NumPy headers, in addition to ValueError
    *(zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, struct.error),
    *(SyntaxError, tokenize.TokenError, TypeError, OverflowError, IndexError, KeyError),
)


def check_unpacked_size(declared: int, size: int, where: str = "") -> None:
    """Raises ValueError if a file unpacks to more bytes than the limit.

    Args:
        declared: unpacked bytes that the file declares.
        size: bytes of the file.
        where: beginning of the message.

    >>> check_unpacked_size(5_000_000_000, 42_000)
    Traceback (most recent call last):
    ValueError: its 42,000 bytes unpack to 5,000,000,000, more than 1,073,741,824 and more than 100 times as many; ...
    """
    if declared > max(FREE, RATIO * size):
        raise ValueError(
            f"{where}its {size:,} bytes unpack to {declared:,}, more than {FREE:,} and more than {RATIO} times as "
            "many; write it without compression if you trust it"
        )


def check_regular(path: Path) -> None:
    """Raises ValueError for what is no regular file: a pipe would never end, and a device has no size.

    >>> check_regular(Path("none"))
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"it is a {'folder' if path.is_dir() else 'pipe or a device'}, not a file")


def read_arrays(path: Path, wanted: Collection[str] | None = None) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns arrays of an npz file by name, and the names of all its arrays.

    Args:
        path: path of the file.
        wanted: names of the arrays to read, of which some may be missing in the file. None reads all arrays.

    Raises:
        OSError: the file cannot be opened.
        ValueError: the file is not an npz file, is damaged, has Python objects, or unpacks to too many bytes; the
            message does not name the file.
    """
    check_regular(path)
    with path.open("rb") as stream:
        if not zipfile.is_zipfile(stream):
            raise ValueError("not a zip archive, or a truncated one")
        size = stream.seek(0, 2)
        try:
            with zipfile.ZipFile(stream) as archive:
                members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
                if twice := len(archive.infolist()) - len(members):
                    raise ValueError(f"{twice} of its arrays have the name of another one")
                chosen = {name: info for name, info in members.items() if wanted is None or name in wanted}
                check_unpacked_size(sum(info.file_size for info in chosen.values()), size)
                values = {}
                for name, info in chosen.items():
                    with _open_member(archive, info) as member:
                        values[name] = _read_npy(name, member, info.file_size)
                return values, list(members)
        except DAMAGE as error:
            raise ValueError(str(error) or type(error).__name__) from error


def _open_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> IO[bytes]:
    """Returns an opened member with a compression that NumPy writes: others may unpack to more than they declare."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{info.filename} has a compression that NumPy does not write; write it with np.savez")
    return archive.open(info)


def _read_npy(name: str, member: IO[bytes], size: int) -> np.ndarray:
    """Returns the array of a member of `size` bytes; raises ValueError if its header declares another size."""
    version = np.lib.format.read_magic(member)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in read_header:
        raise ValueError(f"an array has format version {version}; write it with np.savez")
    shape, fortran, dtype = read_header[version](member)
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError(
            f"array {name} has Python objects or items of no bytes, and only numbers and strings are read; pad lists "
            "to one length, and fill missing values"
        )
    declared = math.prod(shape) * dtype.itemsize
    if declared != size - member.tell():
        raise ValueError(f"an array's header declares {declared:,} bytes, got {size - member.tell():,}")
    content, place = np.empty(declared, np.uint8), 0
    while part := member.read(BLOCK):
        content[place : place + len(part)] = np.frombuffer(part, np.uint8)
        place += len(part)
    if place != declared:
        raise ValueError("an array has fewer bytes than its header declares")
    flat = native(content.view(dtype))
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def read_content(path: Path) -> bytes:
    """Returns the bytes of a file, unpacked if it is compressed by gzip.

    Raises:
        OSError: the file cannot be opened.
        ValueError: the file is damaged, or unpacks to too many bytes.
    """
    check_regular(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            with gzip.open(file) if packed else file as stream:
                unpacked = stream.read(max(FREE, RATIO * size) + 1)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"it is a damaged gzip file: {error}") from error
    check_unpacked_size(len(unpacked), size)
    return unpacked


def read_object(path: Path, most: int = TEXT) -> dict[str, Any]:
    """Returns the JSON object of a file of at most so many bytes.

    Raises:
        OSError: the file cannot be opened.
        ValueError: the file has no JSON, or another value than an object.
    """
    check_regular(path)
    with path.open("rb") as file:
        value = parse_json(file.read(most + 1), most)
    if not isinstance(value, dict):
        raise ValueError(f"it must be an object, got a {type(value).__name__}")
    return value


def parse_json(text: str | bytes, most: int = TEXT) -> Any:
    """Returns the value of a JSON text of at most so many bytes.

    Raises:
        ValueError: the text is not JSON, is too long, is nested too deeply, or has a whole number beyond 64 bits.

    >>> parse_json('{"round": 3}'), parse_json(b"[1]")
    ({'round': 3}, [1])
    """
    if len(text) > most:
        raise ValueError(f"it must have at most {most:,} bytes")
    try:
        value = json.loads(text, parse_int=_parse_int)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    check_nesting(value)
    return value


def check_nesting(value: Any) -> None:
    """Raises ValueError if lists and dictionaries are in each other more than `NESTING` times.

    >>> check_nesting([{"rounds": [3]}])
    """
    level = [value]
    for _ in range(NESTING):
        nested = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        if not (level := list(itertools.chain.from_iterable(nested))):
            return
    raise ValueError(TOO_DEEP)


def _parse_int(text: str) -> int:
    """Returns a whole number of 64 bits: others are no number of an array."""
    if len(text) > 20 or not -(2**63) <= (number := int(text)) < 2**64:
        raise ValueError(f"{text[:20]}{'...' * (len(text) > 20)} is a whole number beyond 64 bits")
    return number
