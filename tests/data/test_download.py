"""Downloads from a server on this machine: resumed, verified, unpacked, and every failure named."""

import bz2
import dataclasses
import errno
import gzip
import hashlib
import http.server
import io
import os
import shutil
import socket
import stat
import tarfile
import threading
import warnings
import zipfile
from collections import namedtuple

import numpy as np
import pytest

from jaxfl.data.sources import download as module
from jaxfl.data.sources.base import Remote, folders
from tests.messages import mentions

CONTENT = np.random.Generator(np.random.PCG64(0)).bytes(400_000)


@dataclasses.dataclass
class Server:
    """What it serves, how it misbehaves, and what was asked of it."""

    url: str
    content: bytes = CONTENT
    ranges: bool = True  # whether it heeds Range
    lengths: bool = True  # whether it announces how much it sends
    cuts: list[int] = dataclasses.field(default_factory=list)  # bytes of each answer after which it hangs up
    statuses: list[int] = dataclasses.field(default_factory=list)  # failures, one an answer
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    asked: list[str | None] = dataclasses.field(default_factory=list)  # the Range header of each request
    sent: list[int] = dataclasses.field(default_factory=list)  # bytes of each answer


@pytest.fixture
def server(monkeypatch):
    """A server in a thread, reached without any proxy and asked again without waiting."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(module, "BACKOFF", 0.0)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked = self.headers.get("Range")
            served.asked.append(asked)
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and served.ranges else 0
            if served.statuses or start >= len(served.content):
                served.sent.append(0)
                return self.send_error(served.statuses.pop(0) if served.statuses else 416)
            body = served.content[start:]
            self.send_response(206 if start else 200)
            headers = (
                {"Content-Range": f"bytes {start}-{len(served.content) - 1}/{len(served.content)}"} if start else {}
            )
            for key, value in (headers | served.headers).items():
                self.send_header(key, value)
            if served.lengths:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            body = body[: served.cuts.pop(0)] if served.cuts else body
            served.sent.append(len(body))
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        served = Server(f"http://127.0.0.1:{listener.server_port}")
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield served
        listener.shutdown()
        thread.join()


def remote(server, name="images.bin", kind="sha256", members=(), sized=True):
    checksum = f"{kind}:{hashlib.new(kind, server.content).hexdigest()}"
    return Remote(f"{server.url}/{name}", len(server.content) if sized else 0, checksum, tuple(members))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", ["md5", "sha256"])
@pytest.mark.parametrize("sized", [True, False])
def test_a_file_arrives_once_and_is_not_asked_for_again(server, tmp_path, kind, sized):
    calls = []
    one = remote(server, kind=kind, sized=sized)
    folder = module.download("set", [one], tmp_path, progress=lambda *call: calls.append(call))
    assert folder == folders("set", tmp_path)[0]
    assert (folder / "images.bin").read_bytes() == CONTENT and names(folder) == ["images.bin"]
    assert calls[0] == ("images.bin", 0, len(CONTENT)) and calls[-1] == ("images.bin", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls) and 3 <= len(calls) <= 8
    module.download("set", [one], tmp_path)
    assert len(server.asked) == 1


def test_of_several_that_want_a_file_one_downloads_it(server, tmp_path):
    """As the jobs of an array do that start together: here two threads, of which the first is held up."""
    arrived, go, waited = threading.Event(), threading.Event(), []

    def held_up(*call):
        arrived.set()
        go.wait(30)

    def second():
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            threading.Timer(0.2, go.set).start()
            folder = module.download(*given)
        waited.extend([str(one.message) for one in told if "waits" in str(one.message)])
        assert (folder / "images.bin").read_bytes() == CONTENT

    given = ("set", [remote(server)], tmp_path)
    first = threading.Thread(target=module.download, args=given, kwargs={"progress": held_up})
    first.start()
    assert arrived.wait(30)
    second()
    first.join()
    assert len(server.asked) == 1 and names(tmp_path / "set") == ["images.bin"]
    assert waited == [f"another process downloads set into {tmp_path / 'set'}; this one waits for it."]


def test_only_what_is_missing_or_different_is_downloaded(server, tmp_path):
    remotes = [remote(server, name) for name in ("a", "b", "c")]
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "a").write_bytes(CONTENT)
    (folder / "b").write_bytes(CONTENT[::-1])  # the right size, another content
    module.download("set", remotes, tmp_path)
    assert len(server.asked) == 2 and all((folder / name).read_bytes() == CONTENT for name in "abc")
    assert names(folder) == ["a", "b", "b.before", "c"] and (folder / "b.before").read_bytes() == CONTENT[::-1]


def test_a_link_in_place_of_a_partial_file_is_not_followed(server, tmp_path):
    folder, mine = tmp_path / "set", tmp_path / "mine"
    folder.mkdir()
    mine.write_bytes(b"mine")
    (folder / "a.partial").symlink_to(mine)
    module.download("set", [remote(server, "a")], tmp_path)
    assert mine.read_bytes() == b"mine" and (folder / "a").read_bytes() == CONTENT and names(folder) == ["a"]


def test_an_interrupted_download_goes_on_where_it_stopped(server, tmp_path):
    def interrupt(name, done, total):
        if done > 150_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        module.download("set", [remote(server)], tmp_path, progress=interrupt)
    kept = (tmp_path / "set" / "images.bin.partial").stat().st_size
    assert names(tmp_path / "set") == ["images.bin.partial"] and 150_000 < kept < len(CONTENT)
    calls = []
    module.download("set", [remote(server)], tmp_path, progress=lambda *call: calls.append(call))
    assert (tmp_path / "set" / "images.bin").read_bytes() == CONTENT and names(tmp_path / "set") == ["images.bin"]
    assert server.asked == [None, f"bytes={kept}-"] and server.sent[1] == len(CONTENT) - kept
    assert calls[0] == ("images.bin", kept, len(CONTENT))


@pytest.mark.parametrize("lengths", [True, False])
def test_a_cut_connection_is_resumed_within_the_call(server, tmp_path, lengths):
    server.lengths, server.cuts = lengths, [100_000, 100_000, 100_000]
    module.download("set", [remote(server)], tmp_path)
    assert (tmp_path / "set" / "images.bin").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-", "bytes=200000-", "bytes=300000-"]
    assert server.sent == [100_000] * 4


def test_a_connection_cut_too_often_fails_and_keeps_what_came(server, tmp_path):
    server.cuts = [50_000] * 4
    with pytest.raises(FileNotFoundError, match=mentions("images.bin", "4 times", "200,000 bytes")):
        module.download("set", [remote(server)], tmp_path)
    module.download("set", [remote(server)], tmp_path)
    assert server.asked[-1] == "bytes=200000-" and (tmp_path / "set" / "images.bin").read_bytes() == CONTENT


def test_a_busy_server_is_asked_again_and_an_absent_file_is_not(server, tmp_path):
    server.statuses = [503, 502]
    module.download("set", [remote(server)], tmp_path)
    assert len(server.asked) == 3
    server.statuses = [404]
    with pytest.raises(FileNotFoundError, match=mentions("other.bin", "HTTP 404")):
        module.download("set", [remote(server, "other.bin")], tmp_path)
    assert len(server.asked) == 4
    server.statuses = [503] * 4
    with pytest.raises(FileNotFoundError, match=mentions("HTTP 503", "4 times", "0 bytes")):
        module.download("set", [remote(server, "other.bin")], tmp_path)


def leave_partial(tmp_path, content):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "images.bin.partial").write_bytes(content)


def test_a_server_that_ignores_range_starts_over(server, tmp_path):
    server.ranges = False
    leave_partial(tmp_path, CONTENT[:1000])
    module.download("set", [remote(server)], tmp_path)
    assert (tmp_path / "set" / "images.bin").read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-"] and server.sent == [len(CONTENT)]


def test_an_answer_for_another_range_starts_over(server, tmp_path):
    server.headers = {"Content-Range": "bytes 7-9/10"}
    leave_partial(tmp_path, CONTENT[:1000])
    module.download("set", [remote(server)], tmp_path)
    assert (tmp_path / "set" / "images.bin").read_bytes() == CONTENT and server.asked == ["bytes=1000-", None]


@pytest.mark.parametrize("sized, asked", [(True, [None]), (False, [f"bytes={len(CONTENT) + 5}-", None])])
def test_a_partial_file_that_is_too_long_starts_over(server, tmp_path, sized, asked):
    leave_partial(tmp_path, CONTENT + b"extra")  # without a size only the server, by 416, knows
    module.download("set", [remote(server, sized=sized)], tmp_path)
    assert (tmp_path / "set" / "images.bin").read_bytes() == CONTENT and server.asked == asked


@pytest.mark.parametrize("content, requests", [(CONTENT, 0), (CONTENT[::-1], 1)])
def test_a_complete_partial_file_is_taken_if_it_is_the_right_one(server, tmp_path, content, requests):
    leave_partial(tmp_path, content)
    module.download("set", [remote(server)], tmp_path)
    assert (tmp_path / "set" / "images.bin").read_bytes() == CONTENT and len(server.asked) == requests


def test_a_file_that_is_labelled_as_compressed_stays_as_it_is(server, tmp_path):
    server.content, server.headers = gzip.compress(CONTENT[:100]), {"Content-Encoding": "gzip"}
    module.download("set", [remote(server, "a.gz")], tmp_path)
    assert (tmp_path / "set" / "a.gz").read_bytes() == server.content


@pytest.mark.parametrize("start", [0, 1000])
def test_a_wrong_checksum_is_named_and_nothing_stays(server, tmp_path, start):
    one = remote(server)
    server.content = CONTENT[::-1]
    leave_partial(tmp_path, CONTENT[:start])
    got = hashlib.sha256(CONTENT[:start] + CONTENT[::-1][start:]).hexdigest()
    with pytest.raises(ValueError, match=mentions(one.url, one.checksum, got)):
        module.download("set", [one], tmp_path)
    assert names(tmp_path / "set") == []


@pytest.mark.parametrize("size, got", [(399_999, "more"), (400_001, "400,000"), (10, "more")])
def test_a_wrong_size_is_named_and_nothing_stays(server, tmp_path, size, got):
    one = remote(server)._replace(num_bytes=size)
    with pytest.raises(ValueError, match=mentions("images.bin", f"{size:,} bytes", got)):
        module.download("set", [one], tmp_path)
    assert names(tmp_path / "set") == [] and len(server.asked) == 1


def test_a_file_under_the_name_survives_a_failed_download(server, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "images.bin").write_text("mine")
    server.statuses = [404]
    with pytest.raises(FileNotFoundError, match=mentions("images.bin", "size", "checksum")):
        module.download("set", [remote(server)], tmp_path)
    assert (tmp_path / "set" / "images.bin").read_text() == "mine"


def test_no_server_and_no_network_are_named(server, tmp_path, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: refused
        away = remote(server)._replace(url=f"http://127.0.0.1:{closed.getsockname()[1]}/images.bin")
        with pytest.raises(FileNotFoundError, match=mentions("images.bin", "connection refused", "/set")):
            module.download("set", [away], tmp_path)
        monkeypatch.setenv("http_proxy", away.url.removesuffix("/images.bin"))
        with pytest.raises(FileNotFoundError, match=mentions("images.bin", "proxy")):
            module.download("set", [away._replace(url="http://example.invalid/images.bin")], tmp_path)
        monkeypatch.delenv("http_proxy")

    def unresolved(*arguments, **options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unresolved)
    with pytest.raises(FileNotFoundError, match=mentions("images.bin", "resolved")):
        module.download("set", [away._replace(url="http://example.invalid/images.bin")], tmp_path)
    with pytest.raises(FileNotFoundError, match=mentions("gopher://example.invalid/images.bin")):
        module.download("set", [away._replace(url="gopher://example.invalid/images.bin")], tmp_path)


def test_what_the_disk_refuses_is_named(server, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda folder: usage(0, 0, 300_000))
        with pytest.raises(ValueError, match=mentions("set", "0.4 MB", "0.3 MB")):
            module.download("set", [remote(server)], tmp_path)
        (tmp_path / "set" / "images.bin.partial").write_bytes(CONTENT[:200_000])
        module.download("set", [remote(server)], tmp_path)  # the other half fits
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=mentions("set", "Not a directory", "data_dir")):
        module.download("set", [remote(server)], tmp_path / "file")

    def full(name, done, total):
        if done:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(ValueError, match=mentions("set", "No space left on device")):
        module.download("set", [remote(server, "more.bin")], tmp_path, progress=full)
    assert (tmp_path / "set" / "more.bin.partial").stat().st_size > 0


def test_what_cannot_be_downloaded_is_said_before_anything_is_asked(server, tmp_path):
    with pytest.raises(ValueError, match=mentions("set", "downloaded", "/set")):
        module.download("set", [], tmp_path)
    for bad, message in [
        (remote(server)._replace(checksum="sha1:00"), ("checksum", "sha1:00", "md5:", 32, "sha256:", 64)),
        (remote(server)._replace(checksum=""), ("checksum", '""', "md5:", "sha256:")),
        (remote(server, ".."), ("name of a file",)),
        (remote(server, "a.rar", members=["*"]), ("a.rar", ".zip", ".tar.gz", ".tgz", ".tar.bz2")),
    ]:
        with pytest.raises(ValueError, match=mentions(*message)):
            module.download("set", [bad], tmp_path)
    assert server.asked == [] and names(tmp_path) == []


MEMBERS = {"data/a.json": b"a" * 3000, "../../b.json": b"b", "data/readme.txt": b"r", "/tmp/c.json": b""}
LINK = "data/link.json"


def zipped(members, *, link=True):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("data")
        for name, content in members.items():
            archive.writestr(name, content)
        if link:
            info = zipfile.ZipInfo(LINK)
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, "/etc/hostname")
    return file.getvalue()


def tarred(members, *, link=True):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        if link:
            info = tarfile.TarInfo(LINK)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/hostname"
            archive.addfile(info)
    return file.getvalue()


ARCHIVES = {
    "all.zip": zipped,
    "all.tar.gz": lambda members, **options: gzip.compress(tarred(members, **options)),
    "all.tgz": lambda members, **options: gzip.compress(tarred(members, **options)),
    "all.tar.bz2": lambda members, **options: bz2.compress(tarred(members, **options)),
}


@pytest.fixture(params=ARCHIVES)
def archive(request):
    return request.param


def test_an_archive_is_unpacked_flat_and_not_downloaded_again(server, tmp_path, archive):
    server.content = ARCHIVES[archive](MEMBERS)
    one = remote(server, archive, members=["*.json"])
    folder = module.download("set", [one], tmp_path / "in")
    assert names(folder) == ["a.json", f"{archive}.done", "b.json", "c.json"]
    assert [(folder / f"{name}.json").read_bytes() for name in "abc"] == [b"a" * 3000, b"b", b""]
    assert names(tmp_path) == ["in"] and names(tmp_path / "in") == ["set"]
    module.download("set", [one], tmp_path / "in")
    assert len(server.asked) == 1
    module.download("set", [one._replace(members=("data/*.txt",))], tmp_path / "in")  # others are wanted
    assert (folder / "readme.txt").read_bytes() == b"r" and len(server.asked) == 2


@pytest.mark.parametrize("harm", ["remove", "truncate", "forget", "scribble"])
def test_an_archive_whose_files_are_gone_is_downloaded_again(server, tmp_path, harm):
    server.content = zipped(MEMBERS)
    one = remote(server, "all.zip", members=["*.json"])
    folder = module.download("set", [one], tmp_path)
    if harm in ("remove", "forget"):
        (folder / {"remove": "a.json", "forget": "all.zip.done"}[harm]).unlink()
    else:
        (folder / {"truncate": "a.json", "scribble": "all.zip.done"}[harm]).write_text("[1]")
    module.download("set", [one], tmp_path)
    assert len(server.asked) == 2 and (folder / "a.json").read_bytes() == b"a" * 3000


def test_an_archive_put_there_by_hand_is_used_and_stays(server, tmp_path, archive):
    server.content = ARCHIVES[archive](MEMBERS)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / archive).write_bytes(server.content)
    folder = module.download("set", [remote(server, archive, members=["a.json", "b.*"])], tmp_path)
    assert names(folder) == sorted(["a.json", "b.json", archive, f"{archive}.done"]) and server.asked == []


def test_an_interrupted_unpacking_downloads_nothing_again(server, tmp_path, monkeypatch):
    server.content = zipped(MEMBERS)
    one = remote(server, "all.zip", members=["*.json"])

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", full)
        with pytest.raises(ValueError, match=mentions("No space left on device")):
            module.download("set", [one], tmp_path)
    assert names(tmp_path / "set") == ["all.zip.partial"]
    module.download("set", [one], tmp_path)
    assert len(server.asked) == 1 and (tmp_path / "set" / "b.json").read_bytes() == b"b"


def test_a_pattern_without_a_member_is_named(server, tmp_path, archive):
    server.content = ARCHIVES[archive](MEMBERS)
    for pattern in ("*.csv", "*link*"):  # a link is no file
        with pytest.raises(ValueError, match=mentions(archive, pattern)):
            module.download("set", [remote(server, archive, members=["*.json", pattern])], tmp_path)
    assert names(tmp_path / "set") == [f"{archive}.partial"]


def test_two_members_of_one_name_are_refused(server, tmp_path, archive):
    server.content = ARCHIVES[archive]({"train/a.json": b"1", "test/a.json": b"2"})
    with pytest.raises(ValueError, match=mentions("a.json", archive)):
        module.download("set", [remote(server, archive, members=["*.json"])], tmp_path)
    module.download("set", [remote(server, archive, members=["test/*.json"])], tmp_path)
    assert (tmp_path / "set" / "a.json").read_bytes() == b"2"


def damage(content):
    return {
        "truncated": content[: len(content) // 2],
        "another format": b"<html>" * 500,
        "empty": b"",
        "flipped": content[:60] + bytes(255 - byte for byte in content[60:120]) + content[120:],
    }


@pytest.mark.parametrize("how", damage(b""))
def test_a_damaged_archive_is_named(server, tmp_path, archive, how):
    # With the right checksum: it is damaged where it comes from. Empty, it cannot even be asked for.
    whole = ARCHIVES[archive]({"a.json": CONTENT[:3000], "b.json": CONTENT[:2000]}, link=False)
    server.content = damage(whole)[how]
    one = remote(server, archive, members=["*.json"])
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / archive).write_bytes(server.content)
    with pytest.raises(ValueError, match=mentions(archive, "unpacked", "checksum")):
        module.download("set", [one], tmp_path)
    assert names(tmp_path / "set") == [archive]
