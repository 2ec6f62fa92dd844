"""Downloads of a source's files: resumed where they stopped, verified before they get their names, unpacked flat.

Only what a user asks for is downloaded. Whatever goes wrong is said in one sentence with the URL, the reason and what
to do, because most of it is met on machines that reach the network through a proxy, or not at all.
"""

import bz2
import errno
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

TARS = {".tar.gz": gzip.GzipFile, ".tgz": gzip.GzipFile, ".tar.bz2": bz2.BZ2File}


def unpack(remote: Remote, archive: Path, folder: Path) -> None:
    """Unpacks the matching members into the folder, all or none, and notes that it is done."""
    files: dict[str, int] = {}
    matched: set[str] = set()
    # A folder beside the files: whoever looks for them never meets half of them, and a rename is all that is left.
    unpacking = folder / f"{remote.file_name}.unpacking"
    shutil.rmtree(unpacking, ignore_errors=True)
    unpacking.mkdir()
    try:
        for path, size, opened in _members(remote.file_name, archive):
            # The last part alone, by either separator: "../x" and "C:\x" are x in this folder.
            name = re.split(r"[/\\]", path)[-1]
            patterns = {one for one in remote.members if any(fnmatch.fnmatchcase(n, one) for n in (path, name))}
            if not patterns or name in ("", ".", ".."):
                continue
            if name in files:
                raise ValueError(f"{remote.url} has two members called {name}; correct the patterns of the source.")
            with opened() as source, (unpacking / name).open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            files[name] = size
            matched |= patterns
            if file_size(unpacking / name) != size:
                raise EOFError(f"{name} ends before its {size:,} bytes")
        if lacking := [pattern for pattern in remote.members if pattern not in matched]:
            raise ValueError(f"{remote.url} must have a member {lacking[0]}, and has none; correct the source.")
        for name in files:
            os.replace(unpacking / name, folder / name)
        note = unpacking / marker(remote, folder).name
        note.write_text(json.dumps({"checksum": remote.checksum, "members": remote.members, "files": files}))
        os.replace(note, marker(remote, folder))
    except (EOFError, OSError, RuntimeError, zlib.error, zipfile.BadZipFile, tarfile.TarError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's, not the archive's
        raise ValueError(
            f"{remote.url} cannot be unpacked: {error}; its checksum is right, so it is damaged where it comes from; "
            f"unpack {', '.join(remote.members)} into {folder} by other means."
        ) from error
    finally:
        shutil.rmtree(unpacking, ignore_errors=True)


def _members(file_name: str, archive: Path) -> Iterator[tuple[str, int, Callable[[], IO[bytes]]]]:
    """Yields path, size and opener of each regular file in an archive, in the order in which they are stored."""
    if file_name.endswith(".zip"):
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                mode = stat.S_IFMT(info.external_attr >> 16)  # 0 where the writer knew no modes
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
    """Returns the file that says which members an archive left in the folder."""
    return folder / f"{remote.file_name}.done"


def file_size(path: Path) -> int:
    """Returns the bytes of a file; 0 if there is none."""
    return path.stat().st_size if path.is_file() else 0


DownloadProgress = Callable[[str, int, int], None]

CHUNK = 1 << 17  # bytes between two calls of `progress`
RETRIES = 3  # of a connection that was cut
BACKOFF = 1.0  # seconds before the first retry, doubled before each further one
TIMEOUT = (15.0, 60.0)  # seconds to connect, and between two bytes
LOCK = ".download.lock"  # in the folder, while files are on their way
BUSY = frozenset({429, 500, 502, 503, 504})  # answers of a server that may recover by the next try
DIGESTS = {"md5": 32, "sha256": 64}  # hexadecimal digits
# What a disk refuses, and what to do about it.
SPACE = "free some space or give another data_dir; what has arrived is kept and the next call goes on from there"
RIGHTS = "give a data_dir where you may make folders and files"
REFUSALS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), SPACE),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR), RIGHTS),
}


class _ConnectionCut(Exception):
    """The connection ended before the file did."""


def download(
    name: str, remotes: Sequence[Remote], data_dir: Folder = None, *, progress: DownloadProgress | None = None
) -> Path:
    """Gets the files of a source into the folder of its name, and returns that folder.

    A file that is there with the right size and checksum is left alone; one of another content is replaced, once the
    new one is complete and verified. Bytes go to `<file>.partial`, which an interruption leaves behind: the next call
    asks for the missing bytes only.

    Of an archive, the matching members are unpacked into the folder under their base names, links and folders left
    out, and the archive itself is not kept. `<archive>.done` says which files came out of it: while it names the same
    checksum and patterns, and those files lie there with their sizes, the archive is not downloaded again. An archive
    that somebody has put into the folder by hand is used instead of a download, and stays.

    Of several processes that want the same files one downloads them, and the others wait for it.

    Args:
        name: name of the source.
        remotes: its files.
        data_dir: as for its loader; the files go to `data_dir/name`.
        progress: `progress(file_name, bytes_done, bytes_total)` is called as bytes arrive, about every 128 KiB; the
            total is 0 where neither the table nor the server knows it.

    Returns:
        The folder with the files.

    Raises:
        ValueError: there is nothing to download, a file is not the expected one, an archive is damaged or lacks a
            member, or the disk is full or may not be written to.
        FileNotFoundError: a file cannot be had: no network, no such server, no such file.

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
                pending = _files_to_get(remotes, folder)  # another process may have got them meanwhile
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
    """Raises if a row of the table is not one that can be downloaded and verified."""
    kind, _, digits = remote.checksum.partition(":")
    if len(digits) != DIGESTS.get(kind, -1):
        raise ValueError(
            f'{remote.url}: the checksum must be "md5:" and 32 or "sha256:" and 64 hexadecimal digits, got '
            f'"{remote.checksum}"; correct the source.'
        )
    if remote.file_name in ("", ".", ".."):
        raise ValueError(f"{remote.url} must end with the name of a file; correct the source.")
    if remote.members and not remote.file_name.endswith((".zip", *TARS)):
        raise ValueError(f"{remote.url} must be one of .zip, {', '.join(TARS)} to have members; correct the source.")


def _check_space(name: str, pending: Sequence[Remote], folder: Path) -> None:
    """Raises if the files whose sizes are known do not fit on the disk."""
    sizes = [(remote.num_bytes, file_size(_partial_path(remote, folder))) for remote in pending]
    needed = sum(total - (present if present <= total else 0) for total, present in sizes if total > 0)
    if needed > (free := shutil.disk_usage(folder).free):
        raise ValueError(
            f"{name} needs {needed / 1e6:,.1f} MB in {folder}, and {free / 1e6:,.1f} MB are free; free some space or "
            f"give another data_dir."
        )


def _partial_path(remote: Remote, folder: Path) -> Path:
    return folder / f"{remote.file_name}.partial"


def _file_hash(checksum: str, path: Path) -> Any:
    """Returns the hash, of the kind that `checksum` names, of what a file holds so far."""
    digest = hashlib.new(checksum.partition(":")[0], usedforsecurity=False)
    if path.is_file():
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest


def _is_verified(remote: Remote, path: Path) -> bool:
    """Returns whether a file is the one that is meant."""
    if not path.is_file() or (remote.num_bytes > 0 and path.stat().st_size != remote.num_bytes):
        return False
    return _file_hash(remote.checksum, path).hexdigest() == _expected_digest(remote)


def _expected_digest(remote: Remote) -> str:
    return remote.checksum.partition(":")[2].lower()


def _is_complete(remote: Remote, folder: Path) -> bool:
    """Returns whether there is nothing to do; unpacks an archive that was put into the folder by hand."""
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
        pass  # no note, or one that nobody can read: the archive is unpacked again
    if not _is_verified(remote, path):
        return False
    unpack(remote, path, folder)
    return True


def _download_all(remotes: Sequence[Remote], folder: Path, progress: DownloadProgress | None) -> None:
    """Downloads files one after the other, each verified and, if it is an archive, unpacked."""
    import requests

    with requests.Session() as session:
        for remote in remotes:
            partial = _partial_path(remote, folder)
            if not _is_verified(remote, partial):  # it is if unpacking was interrupted
                if remote.num_bytes > 0 and file_size(partial) >= remote.num_bytes:
                    partial.unlink()
                _download_file(session, remote, folder, progress)
            if remote.members:
                unpack(remote, partial, folder)
                partial.unlink()
            else:
                os.replace(partial, folder / remote.file_name)


def _download_file(session: Any, remote: Remote, folder: Path, progress: DownloadProgress | None) -> None:
    """Fills the partial file, asking again for the rest when the connection is cut, and verifies it."""
    import requests

    partial = _partial_path(remote, folder)
    elsewhere = f"download it elsewhere and put it into {folder}"
    if (folder / remote.file_name).is_file():
        elsewhere += " (the file of this name there has another size or checksum)"
    got = ""
    for attempt in range(1 + RETRIES):
        time.sleep(BACKOFF * 2 ** (attempt - 1) if attempt else 0)
        try:
            got = _request_rest(session, remote, partial, progress)
            break
        except _ConnectionCut as cut:
            if attempt == RETRIES:
                raise FileNotFoundError(
                    f"{remote.url} cannot be downloaded: {cut}, {1 + RETRIES} times; {file_size(partial):,} "
                    f"bytes are kept, try again to go on from there, or {elsewhere}."
                ) from cut
        except requests.RequestException as error:
            # A server that has answered once may come back; one that never did, or says no, is not asked again.
            if attempt in (0, RETRIES) or isinstance(error, requests.HTTPError):
                raise FileNotFoundError(
                    f"{remote.url} cannot be downloaded: {_failure_phrase(error)}; {elsewhere}."
                ) from error
    size = file_size(partial)
    if remote.num_bytes > 0 and size != remote.num_bytes:
        fault = f"have {remote.num_bytes:,} bytes, got {'more' if size > remote.num_bytes else f'{size:,}'}"
    elif got != _expected_digest(remote):
        fault = f"have the checksum {remote.checksum}, got {got}"
    else:
        return
    partial.unlink()
    raise ValueError(
        f"{remote.url} must {fault}; try again; if it fails the same way the file has changed there, or a proxy "
        f"answers in its place: {elsewhere}."
    )


def _request_rest(session: Any, remote: Remote, partial: Path, progress: DownloadProgress | None) -> str:
    """Makes one request for the bytes that the partial file lacks; returns the checksum of the whole."""
    start = file_size(partial)
    # Without `identity` a server may compress what it sends, and neither sizes nor ranges would be those of the file.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with session.get(remote.url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        if response.status_code in BUSY:
            raise _ConnectionCut(f"HTTP {response.status_code} {response.reason}")
        resumed = re.match(rf"bytes {start}-", response.headers.get("Content-Range", "")) is not None
        if start and (response.status_code == 416 or (response.status_code == 206 and not resumed)):
            partial.unlink()
            return _request_rest(session, remote, partial, progress)  # from 0, which asks for no range
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
    if not length and done < remote.num_bytes:  # no length was announced: its end looks like any other
        raise _ConnectionCut(f"the connection was cut after {done:,} of {total:,} bytes")
    return digest.hexdigest()


def _chunks(response: Any) -> Iterator[bytes]:
    """Yields what arrives, as it is on the wire."""
    from urllib3 import exceptions

    try:
        # Not `iter_content`: it would unpack a .gz that a server labels as compressed by the transfer.
        yield from response.raw.stream(CHUNK, decode_content=False)
    except (exceptions.HTTPError, ConnectionError, TimeoutError) as error:
        slow = isinstance(error, exceptions.TimeoutError | TimeoutError)
        raise _ConnectionCut("the server stopped sending" if slow else "the connection was cut") from error


def _failure_phrase(error: Exception) -> str:
    """Returns in few words why there is no answer, or not the wanted one."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.exceptions.ProxyError):
        return "the proxy that the environment names does not answer"
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate is not accepted"
    if isinstance(error, requests.Timeout):
        return "the server does not answer in time"
    text = str(error)
    if "NameResolutionError" in text or "getaddrinfo" in text:
        return "its name cannot be resolved (is there a network?)"
    if isinstance(error, requests.ConnectionError):
        found = re.search(r"\[Errno -?\d+\] ([\w ]+)", text)
        return f"no connection ({found[1].lower() if found else 'it was closed before an answer came'})"
    return text.splitlines()[0] if text else type(error).__name__
