"""The directory of a run: what lies in it, who may go on with it, and how it is read and written.

`config.json` says what was asked for. While the run goes on, `history.jsonl` and `clusters.jsonl` grow,
`checkpoint.npz` changes, with `checkpoint-before.npz` and maybe `rows.bin` (see `jaxfl.simulation.host.rows`) beside
it, and `.lock` keeps other runs away. `summary.json` says what came of it. JSON files and checkpoints are whole or not
there: they are written beside the old one and renamed over it.
"""

import contextlib
import datetime
import json
import os
import shutil
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from jaxfl.files import crc
from jaxfl.simulation.records import checkpoint
from jaxfl.simulation.records.checkpoint import Saved
from jaxfl.simulation.records.history import History, read, read_back, read_json, write_json
from jaxfl.simulation.records.identity import FIELDS
from jaxfl.typing import Params

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


CONFIG, HISTORY, SUMMARY = "config.json", "history.jsonl", "summary.json"
HEADER = {"identity": dict, "round": int, "tally": dict, "records": int}  # of a run's checkpoint
# Of a config and of an identity: where rows lie, on which devices clients are trained, and how many side by side.
ELSEWHERE = ("run.resident", "run.devices", "run.chunk")
FREE = ("rounds", "eval_every", "checkpoint_every", "data_dir", *ELSEWHERE)  # of a config: may be others on resume
PLACE = "_file"  # ends the name of what may be another, too: where a user's file lies; its content has a checksum


class RunDirectory:
    """The directory of one run.

    Args:
        path: the directory; `open` and `write_config` make it.
        argument: the caller's name for it, which errors begin with.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     directory = RunDirectory(folder)
    ...     directory.write_config({"method": "fedavg", "rounds": 3})
    ...     directory.config(), directory.is_of_another({"method": "fedavg", "rounds": 9}), directory.held()
    ({'method': 'fedavg', 'rounds': 3}, False, [])
    """

    def __init__(self, path: str | os.PathLike, argument: str = "checkpoint_dir"):
        self.path, self.argument = Path(path), argument

    @classmethod
    def at(
        cls, path: str | os.PathLike | None, *, resume: bool, argument: str = "checkpoint_dir"
    ) -> "RunDirectory | None":
        """Returns the directory at `path`, or None where there is no path and nothing is kept.

        Raises:
            ValueError: there is no path, and a run is to be resumed.
        """
        if path is None and resume:
            raise ValueError(
                f"resume needs {argument}, the directory of the run to go on with, got None; give {argument}, or leave "
                "resume out."
            )
        return None if path is None else cls(path, argument)

    def held(self) -> list[str]:
        """Returns the files of a run that are there; a config alone is of one that was refused before it began."""
        names = (HISTORY, checkpoint.NAME, checkpoint.BEFORE, SUMMARY)
        return [name for name in names if (self.path / name).exists()]

    def held_of_its_own(self) -> list[str]:
        """Returns those of `held` that a run of this very directory has: a summary may be of the seeds below it."""
        return [name for name in self.held() if name != SUMMARY]

    def check(self, config: dict[str, Any], *, resume: bool) -> None:
        """Refuses by its config what would be refused, before anything is loaded or written.

        Args:
            config: what the run is, as `write_config` would write it.
            resume: whether to go on with the run that is there.

        Raises:
            ValueError: the path is a file, or the directory is in use, or holds a run that is not to be resumed, or
                another run.
        """
        if (self.path / NAME).exists():
            with self.alone():
                pass
        self._refuse_unless_free(resume)
        if self.held():
            self._refuse_another(_fixed(self.config() or config), _fixed(config))

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Makes the directory, and keeps other runs out of it.

        Raises:
            ValueError: the path is a file, or another run is there.
            OSError: the directory cannot be made or written to.
        """
        self._refuse_file()
        with contextlib.ExitStack() as stack:
            with self.told("nothing was begun"):
                self.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(held(self.path, self.argument))
            yield

    @contextlib.contextmanager
    def told(self, kept: str) -> Iterator[None]:
        """Says of a disk that is full, read-only or gone where it is and what is kept.

        Raises:
            OSError: one was raised while something was written.
        """
        try:
            yield
        except OSError as error:
            raise OSError(
                f"{self.argument} {str(self.path)!r} cannot be written to ({error.strerror or error}); {kept}; set it "
                "right and resume, or choose another directory."
            ) from error

    def open(self, identity: dict[str, Any], *, resume: bool) -> Saved | None:
        """Makes the directory, and returns the checkpoint to go on from; None where the run starts.

        Args:
            identity: what the run's numbers depend on, see `identity.identity_of`.
            resume: whether to go on with the run that is there.

        Raises:
            ValueError: as in `check`, or no checkpoint that is there can be used.
        """
        saved = self.check_identity(identity, resume=resume)
        self.path.mkdir(parents=True, exist_ok=True)
        if saved is not None:
            rounds, records = saved.header["round"], saved.header["records"]
            if (found := len(self._records(rounds))) < records:
                raise ValueError(
                    f"{self.path / HISTORY} must hold {records} records of the first {rounds} rounds, found {found}; "
                    "put the file back as it was, or choose another directory."
                )
            checkpoint.set_aside(saved)
        return saved

    def check_identity(self, identity: dict[str, Any], *, resume: bool) -> Saved | None:
        """Returns the newest checkpoint, if there is one; refuses that of another run.

        Args:
            identity: what the run's numbers depend on, see `identity.identity_of`.
            resume: whether to go on with the run that is there.

        Raises:
            ValueError: as in `open`, but for its history.
        """
        self._refuse_unless_free(resume)
        saved = checkpoint.newest(self.path)
        if saved is not None:
            if not all(isinstance(saved.header.get(name), kind) for name, kind in HEADER.items()):
                raise ValueError(f"{saved.path} is not the checkpoint of a run; remove it or choose another directory.")
            held, wanted = (one | dict.fromkeys(ELSEWHERE) for one in (saved.header["identity"], identity))
            if FIELDS not in held:  # a run of an older version
                wanted.pop(FIELDS, None)
            self._refuse_another(held, wanted)
        return saved

    def behind(self, identity: dict[str, Any], *, resume: bool) -> int:
        """Returns the rounds that a run has behind it, and writes nothing; refuses what `check_identity` does."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the checkpoint before: told when it is opened
            saved = self.check_identity(identity, resume=resume)
        return 0 if saved is None else saved.header["round"]

    def _records(self, rounds: int) -> list[dict[str, Any]]:
        """Returns the records of the first `rounds`."""
        path = self.path / HISTORY
        return [one for one in read(path) if one["round"] <= rounds] if rounds and path.exists() else []

    def is_of_another(self, config: dict[str, Any]) -> bool:
        """Returns whether the directory's config is there, and of another run than `config`."""
        saved = self.config()
        return saved is not None and bool(_differing(_fixed(saved), _fixed(config)))

    def done(self) -> int:
        """Returns the rounds that a resumed run has behind it: those of the newest checkpoint that can be used.

        Raises:
            ValueError: there are checkpoints, and none can be used.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the one before: told when it is opened
            saved = checkpoint.newest(self.path)
        done = saved.header.get("round") if saved else 0
        return done if isinstance(done, int) else 0  # of no run: refused when it is opened

    def goes_on(self) -> bool:
        """Returns whether the run was given more rounds than its summary knows of, and has not ended."""
        summary = self.summary() or {}
        ended, asked = summary.get("rounds", 0), (self.config() or {}).get("rounds", 0)
        if asked > summary.get("rounds_asked", asked):  # of which it may have made none
            return True
        path = self.path / HISTORY
        told = max((one["round"] for one in read(path)), default=0) if path.exists() else 0
        if asked > ended >= told:
            with contextlib.suppress(ValueError):  # of checkpoints that cannot be used nobody goes on
                told = self.done()
        return told > ended

    def config(self) -> dict[str, Any] | None:
        """Returns what was asked for; None if nothing was written."""
        return read_json(self.path / CONFIG)

    def summary(self) -> dict[str, Any] | None:
        """Returns what came of the run; None if it has not ended."""
        return read_json(self.path / SUMMARY)

    def history(self, rounds: int = 0) -> History:
        """Returns the run's history, which writes itself; of records that are there, those of the first `rounds`."""
        return History.writing(self.path / HISTORY, self._records(rounds))

    def write_config(self, config: dict[str, Any]) -> None:
        """Writes what is asked for, and makes the directory."""
        with self.told("nothing was begun"):
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.path / CONFIG, config)

    @contextlib.contextmanager
    def configured(self, config: dict[str, Any]) -> Iterator[None]:
        """Writes what is asked for; where a run ends with an error and has saved nothing, what was there comes back."""
        before, saved = self.config(), self._saved_at()
        self.write_config(config)
        try:
            yield
        except BaseException:
            if before is not None and self._saved_at() == saved:
                self.write_config(before)
            raise

    def _saved_at(self) -> int | None:
        """Returns when the newest checkpoint was written, in nanoseconds; None if there is none."""
        path = self.path / checkpoint.NAME
        return path.stat().st_mtime_ns if path.exists() else None

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Writes what came of the run."""
        with self.told("its rounds are done and kept"):
            write_json(self.path / SUMMARY, summary)

    def save(self, state: Params, header: dict[str, Any]) -> None:
        """Writes a checkpoint, and keeps the one before; the header holds the run's `identity`."""
        checkpoint.save(self.path, state, header)

    def remove(self) -> None:
        """Removes the directory and all that is in it; nothing if it is not there."""
        if self.path.exists():
            shutil.rmtree(self.path)

    def _refuse_file(self) -> None:
        """Raises if there is a file at the path."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(
                f"{self.argument} must be a directory, got the file {str(self.path)!r}; choose another name."
            )

    def _refuse_unless_free(self, resume: bool) -> None:
        """Raises if there is a file at the path, or a directory with a run that is not to be resumed."""
        self._refuse_file()
        if not resume and (held := self.held()):
            raise ValueError(
                f"{self.argument} {str(self.path)!r} ({held[0]}) holds a run already; resume it (resume=True, "
                "--resume) or choose another directory."
            )

    def _refuse_another(self, saved: dict[str, Any], wanted: dict[str, Any]) -> None:
        """Raises if two descriptions of a run differ; says in what."""
        for name in _differing(saved, wanted)[:1]:
            owner, _, checksum = name.partition("_")
            if checksum == "checksum" and saved.get(name) and wanted.get(name):
                copy = self.path / str(saved.get(owner, "")).rpartition(":")[0]
                kept = copy.is_file() and crc(copy.read_bytes()) == saved[name]
                back = f"put it back (a copy is {copy})" if kept else "put it back"
                raise ValueError(
                    f"{self.argument} {str(self.path)!r} holds a run whose {owner} is in a file that has changed; "
                    f"{back}, or choose another directory."
                )
            raise ValueError(
                f"{self.argument} {str(self.path)!r} holds a run with {name}={saved.get(name)!r}, got "
                f"{wanted.get(name)!r}; resume it with the configuration that wrote it, or choose another directory."
            )


def _fixed(config: dict[str, Any]) -> dict[str, Any]:
    """Returns of a `config.json` what numbers depend on: rounds may be added, where the data lie does not matter."""
    return {name: value for name, value in config.items() if name not in FREE and not name.endswith(PLACE)}


def _differing(saved: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Returns the names whose values differ, as JSON reads them back."""
    saved, wanted = read_back(saved), read_back(wanted)
    return [name for name in {**saved, **wanted} if saved.get(name) != wanted.get(name)]
