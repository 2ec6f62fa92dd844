"""Reader of the idx format of MNIST and related data sets, plain or gzip-compressed, with complete validation.

A file has two zero bytes, a type byte, the number of axes, one big-endian uint32 per axis, and big-endian values. All
other files are refused with the file's name, the expected content and a remedy, so that a truncated download does not
load.
"""

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxfl.data import bounded

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def find(stem: str, folders: Sequence[Path]) -> Path | None:
    """Returns the first file `stem`, with or without `.gz`, in the folders, or None.

    The variant `train-images.idx3-ubyte` of `train-images-idx3-ubyte` is found as well.
    """
    names = [name + end for name in (stem, stem.replace("-idx", ".idx")) for end in ("", ".gz")]
    return next((folder / name for folder in folders for name in names if (folder / name).is_file()), None)


def read(path: Path, *, num_axes: int, type_code: int = 0x08) -> np.ndarray:
    """Returns the array of one idx file.

    Args:
        path: path of the file; its first bytes show whether it is compressed, not its name.
        num_axes: required number of axes, 3 for images and 1 for labels.
        type_code: required type: 0x08 is uint8, 0x0C is int32.

    Returns:
        A read-only array in the machine's byte order.

    Raises:
        ValueError: the file is a damaged gzip stream, not idx, of another type or number of axes, or has more or fewer
            bytes than its header declares.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "labels-idx1-ubyte"
    ...     size = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
    ...     read(path, num_axes=1).tolist()
    [7, 8, 9]
    """
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            with gzip.open(file) if packed else file as stream:
                return _read_values(path, stream, num_axes, type_code)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{path} is a damaged gzip file ({error}); download it again.") from error


def _read_values(path: Path, stream: Any, num_axes: int, type_code: int) -> np.ndarray:
    """Returns the array of a stream; of the values at most one byte more is read than the header declares."""
    offset, dtype = 4 + 4 * num_axes, np.dtype(TYPES[type_code])
    content = stream.read(offset)
    expected = bytes([0, 0, type_code, num_axes])
    if content[:4] != expected:
        raise ValueError(
            f"{path} must start with the idx magic number 0x{expected.hex()} ({num_axes} axes of {TYPES[type_code]}), "
            f"got 0x{content[:4].hex() or '(an empty file)'}; it is another file under this name, download it again."
        )
    if len(content) < offset:
        raise ValueError(f"{path} must have a header of {offset} bytes, got {len(content)}; download it again.")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", num_axes, 4))
    if not all(shape):
        raise ValueError(f"{path} must have values, got an empty array of shape {shape}; download it again.")
    size = math.prod(shape) * dtype.itemsize
    bounded.check_unpacked_size(size, path.stat().st_size, f"{path}: ")
    content = stream.read(size + 1)
    if len(content) != size:
        fault = "is truncated" if len(content) < size else "has bytes after its end"
        more = "" if len(content) < size else " or more"
        raise ValueError(
            f"{path} {fault}: its header declares {shape}, so it must have {offset + size} bytes, got "
            f"{offset + len(content)}{more}; download it again."
        )
    values = np.frombuffer(content, dtype).reshape(shape)
    return values.astype(dtype.newbyteorder("="), copy=False)


def read_pair(
    images_path: Path, labels_path: Path, num_classes: int, first_label: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images of a file, and their classes of another file.

    Args:
        images_path, labels_path: paths of the files.
        num_classes: L.
        first_label: number of the first class in the file.

    Returns:
        Images `[P, H, W]` and their classes `[P]`, from 0, both uint8.

    Raises:
        ValueError: a file is damaged, the counts disagree, or a label is not a class.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     images, labels = Path(folder) / "images-idx3-ubyte", Path(folder) / "labels-idx1-ubyte"
    ...     sizes = (images.write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, 50, 60])),
    ...              labels.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 1, 26])))
    ...     [values.tolist() for values in read_pair(images, labels, num_classes=26, first_label=1)]
    [[[[50]], [[60]]], [0, 25]]
    """
    images, labels = read(images_path, num_axes=3), read(labels_path, num_axes=1)
    if len(images) != len(labels):
        raise ValueError(
            f"{labels_path} must have one label for each of the {len(images)} images in {images_path.name}, got "
            f"{len(labels)}; the files belong to different data sets."
        )
    last_label = first_label + num_classes - 1
    wrong = labels[(labels < first_label) | (labels > last_label)]
    if len(wrong):
        raise ValueError(
            f"{labels_path} must have classes {first_label}..{last_label}, got {wrong[0]}; it is another data set "
            "under this name."
        )
    return images, labels - np.uint8(first_label)
