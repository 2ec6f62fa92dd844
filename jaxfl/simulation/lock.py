"""One run at a time in a directory: the lock that a run holds, and who holds it."""

import contextlib
import datetime
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

NAME = ".lock"


@contextlib.contextmanager
def held(folder: Path, argument: str) -> Iterator[None]:
    """Holds the lock of a directory; a thread that holds it already may ask for it again.

    The operating system gives the lock back when a process ends, however it ends. The file stays, and is empty then.

    Args:
        folder: the directory.
        argument: the caller's name for it, which the error begins with.

    Raises:
        ValueError: another run holds it; the message says which.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, held(Path(folder), "out"), held(Path(folder), "out"):
    ...     json.loads((Path(folder) / NAME).read_text())["pid"] == os.getpid()
    True
    """
    path = folder / NAME
    lock = FileLock(path, timeout=0, is_singleton=True)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(
            f"{argument} {str(folder)!r} is in use by another run{_told(path)}; wait for its end, or choose another "
            "directory."
        ) from None
    try:
        if lock.lock_counter == 1:
            since = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
            _write(path, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}))
        yield
    finally:
        if lock.lock_counter == 1:
            with contextlib.suppress(OSError):  # the directory may be gone
                _write(path, "")
        lock.release()


def _write(path: Path, text: str) -> None:
    """Writes into the file that is locked: a file of the same name in its place would not be."""
    with path.open("r+", encoding="utf-8") as file:
        file.truncate()
        file.write(text)


def _told(path: Path) -> str:
    """Returns who holds the lock, in brackets; nothing where it is not known."""
    try:
        by = json.loads(path.read_text(encoding="utf-8"))
        return f" (process {by['pid']} on {by['host']}, since {by['since']})"
    except (OSError, ValueError, TypeError, KeyError):  # it has not been written yet
        return ""
