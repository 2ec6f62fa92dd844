"""Files that are whole or as they were, whenever the process is killed or the machine stops; and their checksums."""

import contextlib
import functools
import os
import warnings
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

BLOCK, BLOCKS = 1 << 20, 64  # bytes, and how many such blocks of a long file are looked at


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file, whole or not at all; the folder must be there.

    Args:
        path: of the file, which is replaced.
        content: of it.

    Raises:
        OSError: it cannot be written; the file is as it was.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_bytes(Path(folder, "a"), b"new")
    ...     [(one.name, one.read_bytes()) for one in Path(folder).iterdir()]
    [('a', b'new')]
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()  # the disk may be full of it
        raise


def checksum(paths: Sequence[Path]) -> str:
    """Returns a checksum of what is in some files, wherever they lie; of 64 blocks of a file beyond 64 MB.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(Path(folder, "a"), "some rows")
    ...     checksum([Path(folder, "a")])
    '...'
    """
    there = [(path, path.stat()) for path in paths]
    return crc(str([(now.st_size, _sampled_crc(path, now.st_size, now.st_mtime_ns)) for path, now in there]).encode())


def crc(content: bytes) -> str:
    """Returns the CRC-32 of some bytes as text."""
    return f"{zlib.crc32(content):08x}"


@functools.lru_cache(maxsize=1000)
def _sampled_crc(path: Path, size: int, changed: int) -> int:
    """Returns the CRC-32 of a file, which is of this size and was changed at this time."""
    found, step = 0, max(BLOCK, (size - BLOCK) // (BLOCKS - 1))
    with path.open("rb") as file:
        for start in range(0, size, step):
            file.seek(start)
            found = zlib.crc32(file.read(BLOCK), found)
    return found


def write_text(path: Path, text: str) -> None:
    """Writes text in UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"))


def keep_copy(path: Path, folder: Path) -> None:
    """Writes a copy of a user's file into a run's folder.

    A program replaces one of its name: it is of a run that came to nothing. Weights do not, they may be what the user
    has exported there.
    """
    copy = folder / path.name
    if path.resolve() != copy.resolve() and (path.suffix == ".py" or not copy.exists()):
        write_bytes(copy, path.read_bytes())


@contextlib.contextmanager
def exclusive(path: Path, others: str) -> Iterator[None]:
    """Waits until no other process is in such a context, and keeps others waiting.

    Args:
        path: of a file that is there meanwhile. Who comes when it has been removed must find nothing left to do.
        others: what another process is doing, for the warning that this one waits for it.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        warnings.warn(f"{others}; this one waits for it.", stacklevel=4)
        lock.acquire()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        lock.release()
