"""Atomic writes of files, checksums of files, and locks between processes."""

import contextlib
import functools
import os
import warnings
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

BLOCK, BLOCKS = 1 << 20, 64  # bytes of a block, and the number of blocks that are read of a long file


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file atomically: it is complete or unchanged, even if the process is killed or the machine stops.

    Args:
        path: path of the file, which is replaced; its folder must exist.
        content: bytes to write.

    Raises:
        OSError: the file cannot be written; it is unchanged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_bytes(Path(folder, "a"), b"new")
    ...     [(file.name, file.read_bytes()) for file in Path(folder).iterdir()]
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
            partial.unlink()  # the disk may be full because of it
        raise


def checksum(paths: Sequence[Path]) -> str:
    """Returns a checksum of the contents of files, whatever their paths; of a file above 64 MB, of 64 blocks of it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(Path(folder, "a"), "some rows")
    ...     checksum([Path(folder, "a")])
    '...'
    """
    stats = [(path, path.stat()) for path in paths]
    return crc(str([(now.st_size, _sampled_crc(path, now.st_size, now.st_mtime_ns)) for path, now in stats]).encode())


def crc(content: bytes) -> str:
    """Returns the CRC-32 of some bytes as text."""
    return f"{zlib.crc32(content):08x}"


@functools.lru_cache(maxsize=1000)
def _sampled_crc(path: Path, size: int, changed: int) -> int:
    """Returns the CRC-32 of at most 64 blocks of a file; size and time of change are part of the key of the cache."""
    value, step = 0, max(BLOCK, (size - BLOCK) // (BLOCKS - 1))
    with path.open("rb") as file:
        for start in range(0, size, step):
            file.seek(start)
            value = zlib.crc32(file.read(BLOCK), value)
    return value


def write_text(path: Path, text: str) -> None:
    """Writes text in UTF-8, atomically as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"))


def keep_copy(path: Path, folder: Path) -> None:
    """Writes a copy of a user's file into a run's folder.

    A program replaces a file of the same name, which is left from a run that failed. Weights never replace a file: it
    may be an export of the user.
    """
    copy = folder / path.name
    if path.resolve() != copy.resolve() and (path.suffix == ".py" or not copy.exists()):
        write_bytes(copy, path.read_bytes())


@contextlib.contextmanager
def exclusive(path: Path, others: str) -> Iterator[None]:
    """Holds a lock between processes: waits until no other process holds it, and makes others wait.

    Args:
        path: path of the lock file, which is removed afterwards. The next process must then find nothing left to do.
        others: phrase for what another process does, for the warning that this process waits for it.
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
