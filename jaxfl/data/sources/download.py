"""Downloads of a source's files, which are resumed, verified before they are renamed, and unpacked without folders.

Only files that the user requests are downloaded. An error is one sentence with the URL, the reason and a remedy,
because most errors occur on machines that reach the network through a proxy, or not at all.
"""

import bz2
import errno
import filecmp
import fnmatch
import gzip
import hashlib
import json
import os
import re
import shutil
import stat
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from jaxfl.data.sources.base import Folder, Remote, folders
from jaxfl.files import exclusive

ASIDE = ".before"  # ends the new name of a file that had the name of a downloaded one
TARS = {".tar.gz": gzip.GzipFile, ".tgz": gzip.GzipFile, ".tar.bz2": bz2.BZ2File}


def put_in_place(path: Path, target: Path) -> None:
    """Renames a verified file; one that has its name and another content is kept under a name that ends with `.before`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     for content in "abc":
    ...         size = Path(name, "new").write_text(content)
    ...         put_in_place(Path(name, "new"), Path(name, "a"))
    ...     {path.name: path.read_text() for path in sorted(Path(name).iterdir())}
    {'a': 'c', 'a.before': 'a', 'a.before.before': 'b'}
    """
    if os.path.lexists(target) and not (target.is_file() and filecmp.cmp(path, target, shallow=False)):
        aside = target
        while os.path.lexists(aside):
            aside = aside.with_name(aside.name + ASIDE)
        os.replace(target, aside)
    os.replace(path, target)


def unpack(remote: Remote, archive: Path, folder: Path) -> None:
    """Unpacks the matching members into the folder, all or none, and writes a marker file when it is done."""
    files: dict[str, int] = {}
    matched: set[str] = set()
    # In a folder beside the files, so that a reader never finds half of them; finally they are only renamed.
    unpacking = folder / f"{remote.file_name}.unpacking"
    shutil.rmtree(unpacking, ignore_errors=True)
    unpacking.mkdir()
    try:
        for path, size, opened in _members(remote.file_name, archive):
            # Only the last part, by both separators: "../x" and "C:\x" are x in this folder.
            name = re.split(r"[/\\]", path)[-1]
            patterns = {each for each in remote.members if any(fnmatch.fnmatchcase(n, each) for n in (path, name))}
            if not patterns or name in ("", ".", ".."):
                continue
            if name in files:
                raise ValueError(
                    f"{remote.url} must have one member {name}, got two; correct the patterns of the source."
                )
            with opened() as source, (unpacking / name).open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            files[name] = size
            matched |= patterns
            if file_size(unpacking / name) != size:
                raise EOFError(f"{name} ends before its {size:,} bytes")
        if lacking := [pattern for pattern in remote.members if pattern not in matched]:
            raise ValueError(f"{remote.url} must have a member {lacking[0]}, got none; correct the source.")
        for name in files:
            put_in_place(unpacking / name, folder / name)
        note = unpacking / marker(remote, folder).name
        note.write_text(json.dumps({"checksum": remote.checksum, "members": remote.members, "files": files}))
        os.replace(note, marker(remote, folder))
    except (EOFError, OSError, RuntimeError, zlib.error, zipfile.BadZipFile, tarfile.TarError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk, not of the archive
        raise ValueError(
            f"{remote.url} cannot be unpacked: {error}; its checksum is correct, so it is damaged at its origin; "
            f"unpack {', '.join(remote.members)} into {folder} by other means."
        ) from error
    finally:
        shutil.rmtree(unpacking, ignore_errors=True)


def _members(file_name: str, archive: Path) -> Iterator[tuple[str, int, Callable[[], IO[bytes]]]]:
    """Yields path, size and opener of each regular file in an archive, in the order in which they are stored."""
    if file_name.endswith(".zip"):
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                mode = stat.S_IFMT(info.external_attr >> 16)  # 0 if the writer did not store modes
                if not info.is_dir() and mode in (0, stat.S_IFREG):
                    yield info.filename, info.file_size, lambda info=info: zipped.open(info)
        return
    plain = next(opener for end, opener in TARS.items() if file_name.endswith(end))
    with plain(archive) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
        for member in tar:
            opened = tar.extractfile(member) if member.isreg() else None
            if opened is not None:
                yield member.name, member.size, lambda opened=opened: opened


def marker(remote: Remote, folder: Path) -> Path:
    """Returns the path of the marker file, which lists the unpacked members of an archive."""
    return folder / f"{remote.file_name}.done"


def file_size(path: Path) -> int:
    """Returns the size of a file in bytes, 0 if it does not exist."""
    return path.stat().st_size if path.is_file() else 0


DownloadProgress = Callable[[str, int, int], None]

CHUNK = 1 << 17  # bytes between two calls of `progress`
RETRIES = 3  # after an interrupted connection
BACKOFF = 1.0  # seconds before the first retry, doubled before each further one
TIMEOUT = (15.0, 60.0)  # seconds to connect, and between two bytes
LOCK = ".download.lock"  # in the folder during a download
BUSY = frozenset({429, 500, 502, 503, 504})  # HTTP codes of a server that may recover before the next attempt
DIGESTS = {"md5": 32, "sha256": 64}  # hexadecimal digits
# Errors of a disk and their remedies.
SPACE = "free some space or pass another data_dir; the received bytes are kept, and the next call continues from there"
RIGHTS = "pass a data_dir where you may create folders and files"
REFUSALS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), SPACE),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR), RIGHTS),
}


class _ConnectionCut(Exception):
    """Error of a connection that ended before the file was complete."""


def download(
    name: str, remotes: Sequence[Remote], data_dir: Folder = None, *, progress: DownloadProgress | None = None
) -> Path:
    """Downloads the files of a source into the folder of its name, and returns the folder.

    An existing file with the correct size and checksum is kept. A file with another content is renamed, to a name that
    ends with `.before`, when the new one is complete and verified. Bytes are written to `<file>.partial`, which remains
    after an interruption: the next call requests only the missing bytes.

    The matching members of an archive are unpacked into the folder under their base names, without links and folders,
    and the archive is removed. `<archive>.done` lists the unpacked files. The archive is not downloaded again while
    this list has the same checksum and patterns, and the files exist with their sizes. An archive that the user has put
    into the folder is used instead of a download, and is not removed.

    If several processes need the same files, one downloads them and the others wait.

    Args:
        name: name of the source.
        remotes: files of the source.
        data_dir: as for its loader; the files are written to `data_dir/name`.
        progress: `progress(file_name, bytes_done, bytes_total)` is called about every 128 KiB; the total is 0 if
            neither the table nor the server states it.

    Returns:
        The folder with the files.

    Raises:
        ValueError: there is nothing to download, a file is not the expected one, an archive is damaged or lacks a
            member, or the disk is full or not writable.
        FileNotFoundError: a file cannot be downloaded: no network, no such server, or no such file.

    >>> download("unipen", [], "data")
    Traceback (most recent call last):
    ValueError: unipen cannot be downloaded by a program; load it without downloading to see which files to get...
    """
    folder = folders(name, data_dir)[0]
    if not remotes:
        raise ValueError(
            f"{name} cannot be downloaded by a program; load it without downloading to see which files to get, and put "
            f"them into {folder}."
        )
    for remote in remotes:
        _check_remote(remote)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if _files_to_get(remotes, folder):
            with exclusive(folder / LOCK, f"another process downloads {name} into {folder}"):
                pending = _files_to_get(remotes, folder)  # another process may have downloaded them meanwhile
                _check_space(name, pending, folder)
                _download_all(pending, folder, progress)
    except OSError as error:
        if (remedy := REFUSALS.get(error.errno or 0)) is None:
            raise
        raise ValueError(f"{folder} cannot hold the files of {name}: {error.strerror}; {remedy}.") from error
    return folder


def _files_to_get(remotes: Sequence[Remote], folder: Path) -> list[Remote]:
    return [remote for remote in remotes if not _is_complete(remote, folder)]


def _check_remote(remote: Remote) -> None:
    """Raises ValueError if a remote file of the table cannot be downloaded and verified."""
    kind, _, digits = remote.checksum.partition(":")
    if len(digits) != DIGESTS.get(kind, -1):
        raise ValueError(
            f'{remote.url}: the checksum must be "md5:" and 32 or "sha256:" and 64 hexadecimal digits, got '
            f'"{remote.checksum}"; correct the source.'
        )
    if remote.file_name in ("", ".", ".."):
        raise ValueError(f"{remote.url} must end with the name of a file; correct the source.")
    if remote.members and not remote.file_name.endswith((".zip", *TARS)):
        raise ValueError(f"{remote.url} must end with .zip, {', '.join(TARS)} to have members; correct the source.")


def _check_space(name: str, pending: Sequence[Remote], folder: Path) -> None:
    """Raises ValueError if the files of known size do not fit on the disk."""
    sizes = [(remote.num_bytes, file_size(_partial_path(remote, folder))) for remote in pending]
    needed = sum(total - (present if present <= total else 0) for total, present in sizes if total > 0)
    if needed > (free := shutil.disk_usage(folder).free):
        raise ValueError(
            f"{name} needs {needed / 1e6:,.1f} MB in {folder}, and {free / 1e6:,.1f} MB are free; free some space or "
            f"pass another data_dir."
        )


def _partial_path(remote: Remote, folder: Path) -> Path:
    return folder / f"{remote.file_name}.partial"


def _file_hash(checksum: str, path: Path) -> Any:
    """Returns the hash object of a file's present content, of the kind of `checksum`."""
    digest = hashlib.new(checksum.partition(":")[0], usedforsecurity=False)
    if path.is_file():
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest


def _is_verified(remote: Remote, path: Path) -> bool:
    """Returns whether a file has the size and the checksum of a remote file."""
    if not path.is_file() or (remote.num_bytes > 0 and path.stat().st_size != remote.num_bytes):
        return False
    return _file_hash(remote.checksum, path).hexdigest() == _expected_digest(remote)


def _expected_digest(remote: Remote) -> str:
    return remote.checksum.partition(":")[2].lower()


def _is_complete(remote: Remote, folder: Path) -> bool:
    """Returns whether a remote file is in the folder; unpacks an archive that the user has put there."""
    path = folder / remote.file_name
    if not remote.members:
        return _is_verified(remote, path)
    try:
        note = json.loads(marker(remote, folder).read_text())
        if (note["checksum"], note["members"]) == (remote.checksum, list(remote.members)):
            files = [(folder / name, size) for name, size in note["files"].items()]
            if all(file.is_file() and file.stat().st_size == size for file, size in files):
                return True
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        pass  # no marker, or an unreadable one: the archive is unpacked again
    if not _is_verified(remote, path):
        return False
    unpack(remote, path, folder)
    return True


def _download_all(remotes: Sequence[Remote], folder: Path, progress: DownloadProgress | None) -> None:
    """Downloads files in turn, verifies each, and unpacks archives."""
    import requests

    with requests.Session() as session:
        for remote in remotes:
            partial = _partial_path(remote, folder)
            if not _is_verified(remote, partial):  # True if unpacking was interrupted
                if remote.num_bytes > 0 and file_size(partial) >= remote.num_bytes:
                    partial.unlink()
                _download_file(session, remote, folder, progress)
            if remote.members:
                unpack(remote, partial, folder)
                partial.unlink()
            else:
                put_in_place(partial, folder / remote.file_name)


def _download_file(session: Any, remote: Remote, folder: Path, progress: DownloadProgress | None) -> None:
    """Downloads into the partial file, with retries after an interrupted connection, and verifies it."""
    import requests

    partial = _partial_path(remote, folder)
    if partial.is_symlink():
        partial.unlink()  # what it leads to is not ours
    elsewhere = f"download it elsewhere and put it into {folder}"
    if (folder / remote.file_name).is_file():
        elsewhere += " (the file of this name has another size or checksum)"
    received = ""
    for attempt in range(1 + RETRIES):
        time.sleep(BACKOFF * 2 ** (attempt - 1) if attempt else 0)
        try:
            received = _request_rest(session, remote, partial, progress)
            break
        except _ConnectionCut as cut:
            if attempt == RETRIES:
                raise FileNotFoundError(
                    f"{remote.url} cannot be downloaded: {cut}, {1 + RETRIES} times; {file_size(partial):,} "
                    f"bytes are kept; try again to continue from there, or {elsewhere}."
                ) from cut
        except requests.RequestException as error:
            # Another attempt is made only if the server has answered before, and not after an HTTP error.
            if attempt in (0, RETRIES) or isinstance(error, requests.HTTPError):
                raise FileNotFoundError(
                    f"{remote.url} cannot be downloaded: {_failure_phrase(error)}; {elsewhere}."
                ) from error
    size = file_size(partial)
    if remote.num_bytes > 0 and size != remote.num_bytes:
        fault = f"have {remote.num_bytes:,} bytes, got {'more' if size > remote.num_bytes else f'{size:,}'}"
    elif received != _expected_digest(remote):
        fault = f"have the checksum {remote.checksum}, got {received}"
    else:
        return
    partial.unlink()
    raise ValueError(
        f"{remote.url} must {fault}; try again; if it fails again, the file has changed there, or a proxy "
        f"answers instead: {elsewhere}."
    )


def _request_rest(session: Any, remote: Remote, partial: Path, progress: DownloadProgress | None) -> str:
    """Requests the missing bytes of the partial file once, and returns the checksum of the complete file."""
    start = file_size(partial)
    # Without `identity` a server may compress the file, and sizes and ranges would not be those of the file.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with session.get(remote.url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        if response.status_code in BUSY:
            raise _ConnectionCut(f"HTTP {response.status_code} {response.reason}")
        resumed = re.match(rf"bytes {start}-", response.headers.get("Content-Range", "")) is not None
        if start and (response.status_code == 416 or (response.status_code == 206 and not resumed)):
            partial.unlink()
            return _request_rest(session, remote, partial, progress)  # from 0, without a range
        response.raise_for_status()
        done = start if response.status_code == 206 else 0
        length = response.headers.get("Content-Length", "")
        total = remote.num_bytes or (done + int(length) if length.isdigit() else 0)
        with partial.open("ab" if done else "wb") as file:
            digest = _file_hash(remote.checksum, partial)
            if progress:
                progress(remote.file_name, done, total)
            for chunk in _chunks(response):
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                if progress:
                    progress(remote.file_name, done, total)
                if 0 < remote.num_bytes < done:
                    break
    if not length and done < remote.num_bytes:  # without an announced length, an interruption looks like the end
        raise _ConnectionCut(f"the connection was cut after {done:,} of {total:,} bytes")
    return digest.hexdigest()


def _chunks(response: Any) -> Iterator[bytes]:
    """Yields the received bytes without decoding."""
    from urllib3 import exceptions

    try:
        # Not `iter_content`, which would unpack a .gz file that a server declares as a compressed transfer.
        yield from response.raw.stream(CHUNK, decode_content=False)
    except (exceptions.HTTPError, ConnectionError, TimeoutError) as error:
        slow = isinstance(error, exceptions.TimeoutError | TimeoutError)
        raise _ConnectionCut("the server stopped sending" if slow else "the connection was cut") from error


def _failure_phrase(error: Exception) -> str:
    """Returns a phrase for the reason of a failed request."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.exceptions.ProxyError):
        return "the proxy of the environment does not answer"
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate is not accepted"
    if isinstance(error, requests.Timeout):
        return "the server does not answer in time"
    text = str(error)
    if "NameResolutionError" in text or "getaddrinfo" in text:
        return "its name cannot be resolved (is there a network?)"
    if isinstance(error, requests.ConnectionError):
        match = re.search(r"\[Errno -?\d+\] ([\w ]+)", text)
        return f"no connection ({match[1].lower() if match else 'it was closed before an answer'})"
    return text.splitlines()[0] if text else type(error).__name__
