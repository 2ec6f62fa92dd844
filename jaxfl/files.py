"""Atomic writes of files, ownership of files, checksums of files, and locks between processes.

No file is replaced that jaxfl has not written. In the folder of a run, `.jaxfl` lists the names of the files that jaxfl
writes there. Any other file says so itself: a table, a page or a picture names the command that wrote it, and only that
command replaces it.
"""

import contextlib
import functools
import json
import os
import secrets
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from jaxfl.host.operating_system import flush_folder

BLOCK, BLOCKS = 1 << 20, 64  # bytes of a block, and the number of blocks that are read of a long file
PARTIAL = ".jaxfl-partial-"  # begins the names of files that are not complete
MARKER = ".jaxfl"  # in a folder: the list of the files that jaxfl writes there
MARKED = 1 << 20  # bytes at each end of a file in which the command that wrote it is searched, and of a list of files
PICTURES = (b"\x89PNG", b"%PDF", b"<?xml")  # beginnings of files whose metadata may be anywhere


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yields a new file, which replaces the one at `path` when the block ends without an error.

    The file at `path` is complete or unchanged, even if the process is killed or the machine stops. The new one has a
    name of its own until then: no link is followed, and no file of that name is overwritten. A link at `path` is
    replaced, not what it leads to.

    Args:
        path: path of the file; its folder must exist.

    Raises:
        OSError: the file cannot be written, such as on a full disk; the old one is unchanged, and the error names it.
    """
    partial = path.with_name(f"{PARTIAL}{secrets.token_hex(8)}")
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink()  # the disk may be full because of it
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, str(partial)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    flush_folder(path.parent)  # the new name itself


def remove_partials(folder: Path) -> None:
    """Removes the files that `replacing` has left in a folder where a process was killed; no other may write there."""
    for path in folder.glob(f"{PARTIAL}*"):
        with contextlib.suppress(OSError):
            path.unlink()


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file atomically, see `replacing`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_bytes(Path(folder, "a"), b"new")
    ...     [(file.name, file.read_bytes()) for file in Path(folder).iterdir()]
    [('a', b'new')]
    """
    with replacing(path) as file:
        file.write(content)


def real_path(path: Path) -> Path:
    """Returns the absolute path that links lead to; where they lead to each other, `Path.resolve` may raise."""
    return Path(os.path.realpath(path))


def user_path(path: str | os.PathLike) -> Path:
    """Returns the path that a user gives, with the user's folder for a `~` at its beginning; unknown users stay as is.

    >>> user_path("~/runs") == Path(os.path.expanduser("~"), "runs"), user_path("a~b").name
    (True, 'a~b')
    """
    return Path(os.path.expanduser(path))


def signature(command: str) -> str:
    """Returns the text by which a command of jaxfl recognises the files that it wrote."""
    return f"Written by jaxfl {command}"


def check_output(path: Path, argument: str, mark: str, flag: str | None = None) -> None:
    """Checks, before anything is computed, that a file may be written: it is new, or was written by the same command.

    Args:
        path: path of the file.
        argument: the caller's name for it, which errors begin with.
        mark: a `signature`, which is in the first two lines of a file of the command or in the metadata of a picture,
            or the first columns of a table, with which it begins.
        flag: of the command line, with which it may be replaced; it was not given. None needs no flag.

    Raises:
        ValueError: it is a folder, its folder does not exist, it is another file, or the flag is missing.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "table.md")
    ...     check_output(path, "--markdown", signature("compare"))
    ...     write_text(path, f"<!-- {signature('compare')} -->")
    ...     check_output(path, "--markdown", signature("compare"))
    ...     check_output(path, "--latex", signature("bench"))
    Traceback (most recent call last):
    ValueError: --latex must be a new file, or one that the same command wrote, got '...table.md', which is another...
    """
    if path.is_dir():
        raise ValueError(f"{argument} must be a file, got the folder {str(path)!r}; give a file in it.")
    if not path.parent.is_dir():
        raise ValueError(f"{argument} must be a file in an existing folder, got {str(path)!r}; create the folder.")
    of_a_run = path.name in (own_names(path.parent) or ()) or path.name.startswith(MARKER)
    new = not os.path.lexists(path) or is_empty(path)
    if of_a_run or not (new or (path.is_file() and has_mark(path, mark.encode()))):
        what = "is a file of a run" if of_a_run else "is another"
        raise ValueError(
            f"{argument} must be a new file, or one that the same command wrote, got {str(path)!r}, which {what}; "
            "choose another name, or move that file away."
        )
    if not new and flag is not None:
        raise ValueError(
            f"{argument} must be a new file, got {str(path)!r}, which may have been edited since it was written; add "
            f"{flag}, or choose another name."
        )


def has_mark(path: Path, mark: bytes) -> bool:
    """Returns whether a file has a signature in its first two lines or metadata, or begins with other text."""
    with path.open("rb") as file:
        head = file.read(MARKED)
        file.seek(max(0, path.stat().st_size - MARKED))
        tail = file.read()
    if not mark.startswith(signature("").encode()):
        return head.startswith(mark)
    return mark in (head + tail if head.startswith(PICTURES) else b"\n".join(head.split(b"\n")[:2]))


def check_is_file(path: Path, argument: str) -> None:
    """Checks that a file of a folder, if it is there, is one: some are written in place, where a link is followed.

    Args:
        path: path of the file.
        argument: the caller's name for the folder, which the error begins with.

    Raises:
        ValueError: there is a link, a folder or a pipe in its place.
    """
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        what = "link" if path.is_symlink() else "folder" if path.is_dir() else "pipe or device"
        raise ValueError(
            f"{argument} {str(path.parent)!r} has a {what} {path.name!r} in the place of a file of the run; put the "
            f"file itself there, remove the {what}, or choose another directory."
        )


def check_is_folder(path: Path, argument: str) -> None:
    """Checks that a folder is one if it is there, and can be created if it is not.

    Raises:
        ValueError: there is a file at the path, or in the place of a folder above it.
    """
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            got = f"the file {str(path)!r}" if place == path else f"{str(path)!r} below the file {str(place)!r}"
            raise ValueError(f"{argument} must be a directory, got {got}; choose another name.")


def is_empty(path: Path) -> bool:
    """Returns whether there is an empty file, such as of a program that was stopped; nothing is lost with it."""
    return path.is_file() and not path.is_symlink() and not path.stat().st_size


def is_missing(path: Path) -> bool:
    """Returns whether there is no file, or an empty one, such as after a full disk."""
    return not path.is_file() or not path.stat().st_size


def own_names(folder: Path) -> set[str] | None:
    """Returns the names of the files that jaxfl writes in a folder, by its list; None where there is no list.

    Raises:
        ValueError: there is a file of that name, and it is no such list.
    """
    path = folder / MARKER
    if not os.path.lexists(path):
        return None
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > MARKED:  # a device has no end
            raise ValueError("it is no file of names")
        return {str(name) for name in json.loads(path.read_text(encoding="utf-8"))["files"]}
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(
            f"{path} must be the list of the files that jaxfl writes in this folder, and is not; choose another "
            "folder, or move that file away."
        ) from error


def write_own_names(folder: Path, names: Iterable[str]) -> None:
    """Writes the list of the files that jaxfl writes in a folder."""
    about = "jaxfl writes these files of this folder, and replaces no other."
    write_text(folder / MARKER, json.dumps({"about": about, "files": sorted(names)}, indent=1) + "\n")


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


@functools.lru_cache(maxsize=1 << 17)  # a folder of images may have as many files
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
    """Writes a copy of a user's file into a run's folder, in place of another one at `copy_path`.

    Raises:
        ValueError: there is a link in the place of the copy's folder: what it leads to is not the run's.
    """
    content = path.read_bytes()
    copy = copy_path(folder, path.name, crc(content))
    if copy.parent != folder and copy.parent.is_symlink():
        raise ValueError(
            f"{str(folder)!r} has a link {copy.parent.name!r} in the place of a folder of the run; put the folder "
            "itself there, remove the link, or choose another directory."
        )
    if not copy.is_file() or copy.read_bytes() != content:
        copy.parent.mkdir(exist_ok=True)
        write_bytes(copy, content)


def copy_path(folder: Path, name: str, checksum: str) -> Path:
    """Returns the path of the copy of a user's file in a run's folder.

    A program keeps its place beside the other files, where its address finds it. Weights, and tables of a clock or of
    edge servers (csv, parquet), have a folder named by their checksum: in the folder of the run there may be others of
    the same name, such as an export of the user.

    Args:
        folder: of the run.
        name: of the file.
        checksum: of its content, from `crc`.

    >>> copy_path(Path("runs"), "start.safetensors", "0a1b2c3d").as_posix()
    'runs/weights-0a1b2c3d/start.safetensors'
    """
    kind = "table" if name.endswith((".csv", ".parquet")) else "weights"
    return folder / name if is_beside(name) else folder / f"{kind}-{checksum}" / name


def is_beside(name: str) -> bool:
    """Returns whether the copy of a user's file is beside the files of the run, and not in a folder of its own."""
    return name.endswith(".py")


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
