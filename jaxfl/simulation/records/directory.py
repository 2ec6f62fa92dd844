"""The directory of a run: its files, its lock, and the checks before a run is resumed.

`config.json` has the job of the run. While the run goes on, `history.jsonl` and `clusters.jsonl` grow,
`checkpoint.npz` changes, with `checkpoint-before.npz` and maybe `rows.bin` (see `jaxfl.simulation.host.rows`) and
`clients-history.parquet` (see `jaxfl.simulation.records.clients_history`) beside it, and `.jaxfl.lock` keeps other runs
away. `summary.json` says what came of it. JSON files, parquet files and checkpoints are whole or not there: they are
written beside the old one and renamed over it.

`.jaxfl` lists the files of the run before any of them is written, see `jaxfl.files`: a directory that has another file
of such a name is refused. Runs of version 0.1.0 have no list; they are recognised by their config or their checkpoint.
"""

import contextlib
import datetime
import json
import os
import shutil
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from jaxfl.files import (
    check_is_file,
    check_is_folder,
    copy_path,
    crc,
    is_empty,
    own_names,
    remove_partials,
    user_path,
    write_own_names,
)
from jaxfl.simulation.host.rows import NAME as ROWS
from jaxfl.simulation.records import checkpoint
from jaxfl.simulation.records.checkpoint import Saved
from jaxfl.simulation.records.clients_history import CLIENTS_HISTORY, ClientsHistory
from jaxfl.simulation.records.history import (
    CLUSTERS,
    NUMBER,
    EntryTypes,
    History,
    check_entries,
    read_back,
    read_json,
    read_records,
    write_json,
)
from jaxfl.simulation.records.identity import DIGEST, FIELDS, FINGERPRINT, JAX_SETTINGS, check_jax_settings
from jaxfl.typing import Params

LOCK = ".jaxfl.lock"
LOWER = "lower_is_better"  # in a summary: metrics that should fall
KEEPS_CLIENTS = "clients_history"  # in an identity: that each client's metrics are kept at every evaluation
RECORDS_VECTORS = "record_vectors"  # in an identity: that records have lists of numbers
DIVERGED = "diverged"  # in a config: the rounds that were asked for, and the reason why the run has diverged


class FolderInUse(ValueError):
    """Error of a directory in which another process runs."""


@contextlib.contextmanager
def lock_folder(folder: Path, argument: str) -> Iterator[None]:
    """Holds the lock of a directory; a thread that holds it may take it again.

    The operating system gives the lock back when a process ends, however it ends. The file stays, and is empty then.

    Args:
        folder: the directory.
        argument: the caller's name for it, which the error begins with.

    Raises:
        FolderInUse: another run holds it; the message says which.
        ValueError: there is a link, whose file would be written to, or a folder in the place of the lock.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name, lock_folder(Path(name), "out"), lock_folder(Path(name), "out"):
    ...     json.loads((Path(name) / LOCK).read_text())["pid"] == os.getpid()
    True
    """
    path = folder / LOCK
    check_is_file(path, argument)
    lock = FileLock(path, timeout=0, is_singleton=True)
    try:
        lock.acquire()
    except Timeout:
        raise FolderInUse(
            f"{argument} {str(folder)!r} is in use by another run{_holder_phrase(path)}; wait for its end, or choose "
            "another directory."
        ) from None
    try:
        if lock.lock_counter == 1:
            since = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
            with contextlib.suppress(PermissionError):  # Windows: nobody may write to a locked file, nor read it
                _write_lock(path, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}))
        yield
    finally:
        if lock.lock_counter == 1:
            with contextlib.suppress(OSError):  # the directory may be gone
                _write_lock(path, "")
        lock.release()


def _write_lock(path: Path, text: str) -> None:
    """Writes into the locked file itself: a new file of the same name would not be locked."""
    with path.open("r+", encoding="utf-8") as file:
        file.truncate()
        file.write(text)


def _holder_phrase(path: Path) -> str:
    """Returns a phrase in brackets that names the holder of the lock; an empty text where it is unknown."""
    try:
        by = json.loads(path.read_text(encoding="utf-8"))
        return f" (process {by['pid']} on {by['host']}, since {by['since']})"
    except (OSError, ValueError, TypeError, KeyError, RecursionError):  # it has not been written yet
        return ""


CONFIG, HISTORY, SUMMARY = "config.json", "history.jsonl", "summary.json"
RUN_FILES = (  # of every run
    *(HISTORY, CLUSTERS, CLIENTS_HISTORY, checkpoint.NAME, checkpoint.BEFORE, checkpoint.DAMAGED, ROWS),
)
OLDER_FILES = (  # of the jobs of versions that did not list their files
    *RUN_FILES, CONFIG, SUMMARY, "clients.csv", "log.csv", "index.html", "convergence.png", "clusters.png",
    "alluvial.png", "confusion.png", "personalisation.png", "classes.png", "similarity.png",
)  # fmt: skip
# keys that tell these from files of other programs
OLDER_CONFIG = {"method", "data", "data_dir", "rounds", "cohort", "seed", "eval_every", "checkpoint_every"}
OLDER_SUMMARY = {"method", "data", "num_clients", "rounds", "seed", "seconds_per_round"}
CONFIG_TYPES: EntryTypes = {
    "method|data|fingerprint|digest": (str,),
    "rounds|seed": (int,),
    "cohort": (int, float),
    "eval_every|checkpoint_every": (int, type(None)),
    "data_dir|model|optimizer|server_optimizer": (str, type(None)),
    DIVERGED: (dict,),
    ".*_(file|checksum|sha256)": (str,),
}
_METRICS = r"(.*_)?(micro|macro|std|worst_decile|p\d+)_.*|(.*_)?(loss|seconds|bytes)"
SUMMARY_TYPES: EntryTypes = {
    "method|data|fingerprint|digest|sampler|sampling|shortfall|device": (str,),
    "rounds|seed|rounds_asked|num_clients|eval_clients|seeds_together|drift_round": (int,),
    "cohort": (int, float),
    "test_rows": (int, type(None)),
    "options|versions": (dict,),
    LOWER: (list,),
    f"{_METRICS}|(wasserstein_)?(silhouette|davies_bouldin)|seconds_per_round|num_clusters|ari|nmi|purity": NUMBER,
    "ari_.*|epsilon|smallest_sum|bytes_(up|down)|rounds_to_recover": NUMBER,
}
HEADER_TYPES = {"identity": dict, "round": int, "tally": dict, "records": int}  # of a run's checkpoint
# Of a config and of an identity: where rows lie, on which devices clients are trained, and how many side by side.
MACHINE_OPTIONS = ("run.resident", "run.devices", "run.chunk")
CHANGEABLE = (
    "rounds",
    "eval_every",
    "checkpoint_every",
    "data_dir",
    DIVERGED,
    FINGERPRINT,  # is known when the data are loaded; a checkpoint's identity holds it
    DIGEST,
    *MACHINE_OPTIONS,
)  # of a config: may be others on resume
FILE_SUFFIX = "_file"  # ends the name of what may be another, too: where a user's file lies; its content has a checksum
SHA_SUFFIX = "_sha256"  # of a user's file of Python; the checksum, which older runs have as well, decides on resume


class RunDirectory:
    """The directory of one run.

    Args:
        path: the directory; `open` and `write_config` make it.
        argument: the caller's name for it, which errors begin with.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     directory = RunDirectory(folder)
    ...     directory.write_config({"method": "fedavg", "rounds": 3})
    ...     directory.config(), directory.is_of_another({"method": "fedavg", "rounds": 9}), directory.files()
    ({'method': 'fedavg', 'rounds': 3}, False, [])
    """

    def __init__(self, path: str | os.PathLike, argument: str = "checkpoint_dir"):
        self.path, self.argument = user_path(path), argument

    @classmethod
    def at(
        cls, path: str | os.PathLike | None, *, resume: bool, argument: str = "checkpoint_dir"
    ) -> "RunDirectory | None":
        """Returns the directory at `path`; None without a path, where nothing is written.

        Raises:
            ValueError: there is no path, and a run is to be resumed.
        """
        if path is None and resume:
            raise ValueError(
                f"resume needs {argument}, the directory of the run to go on with, got None; give {argument}, or leave "
                "resume out."
            )
        return None if path is None else cls(path, argument)

    def files(self) -> list[str]:
        """Returns the names of a run's files in the directory; a config alone is that of a run that was refused."""
        names = (HISTORY, checkpoint.NAME, checkpoint.BEFORE, SUMMARY)
        return [name for name in names if (self.path / name).exists()]

    def own_files(self) -> list[str]:
        """Returns the names of `files` without the summary, which may be of the seeds below this directory."""
        return [name for name in self.files() if name != SUMMARY]

    def check(self, config: dict[str, Any], *, resume: bool, names: Sequence[str] = ()) -> None:
        """Checks by its config that a run may start here or be resumed, before anything is loaded or written.

        Args:
            config: what the run is, as `write_config` would write it.
            resume: whether to go on with the run that is there.
            names: of files that the run will write, beside those of every run.

        Raises:
            FolderInUse: another run holds the directory.
            ValueError: the path is a file, or the directory holds a run that is not to be resumed, another run, or a
                file that no run has written.
        """
        with contextlib.ExitStack() as stack:
            if os.path.lexists(self.path / LOCK):
                stack.enter_context(lock_folder(self.path, self.argument))
            self._refuse_file()
            self.check_names((*RUN_FILES, *names))
            self._refuse_unless_free(resume)
            if self.files():
                self._refuse_another(_fixed_entries(self.config() or config), _fixed_entries(config))

    @contextlib.contextmanager
    def locked(self, names: Sequence[str] = ()) -> Iterator[None]:
        """Creates and locks the directory, and lists the files of the run.

        Args:
            names: of files that the run will write, beside those of every run.

        Raises:
            FolderInUse: another run holds the directory.
            ValueError: the path is a file, or the directory holds a file that no run has written.
            OSError: the directory cannot be made or written to.
        """
        self._refuse_file()
        self.check_names((*RUN_FILES, *names))  # a refused directory gets no lock
        with contextlib.ExitStack() as stack:
            with self.name_disk_errors("nothing was begun"):
                self.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(lock_folder(self.path, self.argument))
                remove_partials(self.path)
                self.claim((*RUN_FILES, *names))
            yield

    def claim(self, names: Iterable[str]) -> None:
        """Lists files as those of the run, which may be replaced from then on.

        Raises:
            ValueError: as in `check_names`.
            OSError: the list cannot be written.
        """
        self.check_names(names := set(names))
        listed = own_names(self.path)
        if listed is None or not names <= listed:
            write_own_names(self.path, names | self._own_names())

    def check_names(self, names: Iterable[str]) -> None:
        """Checks that files of these names are not there, are empty, or are those of the run.

        Raises:
            ValueError: there is another file; the message names it.
        """
        there = [name for name in names if os.path.lexists(self.path / name) and not is_empty(self.path / name)]
        own = self._own_names() if there else set()  # read after the files, which another process lists before
        for name in there:
            if name not in own:
                raise ValueError(
                    f"{self.argument} {str(self.path)!r} has a file {name!r} that no run of jaxfl has written, and it "
                    "would be replaced; choose another directory, or move that file away."
                )
            check_is_file(self.path / name, self.argument)

    def _own_names(self) -> set[str]:
        """Returns the names of the files of the run: those listed, or those of a run of an older version."""
        if (listed := own_names(self.path)) is not None:
            return listed
        config, summary = {}, {}
        with contextlib.suppress(ValueError, OSError):  # a damaged file is none of ours
            config = self.config() or {}
        with contextlib.suppress(ValueError, OSError):
            summary = self.summary() or {}
        names: set[str] = set()
        if any(checkpoint.is_checkpoint(self.path / name) for name in (checkpoint.NAME, checkpoint.BEFORE)):
            names |= {*RUN_FILES}
        if OLDER_CONFIG <= config.keys() or OLDER_SUMMARY <= summary.keys():
            names |= {*OLDER_FILES, *(Path(str(one)).name for key, one in config.items() if key.endswith(FILE_SUFFIX))}
        if "seeds" in summary and isinstance(summary.get("rounds"), dict):  # mean and deviation
            names |= {SUMMARY}
        return {name for name in names if os.path.lexists(self.path / name)}

    @contextlib.contextmanager
    def name_disk_errors(self, kept: str) -> Iterator[None]:
        """Adds the directory and what was saved to the error of a disk that is full, read-only or gone.

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
        """Creates the directory, and returns the checkpoint to resume from; None where the run starts.

        Args:
            identity: what the run's numbers depend on, see `identity.identity_of`.
            resume: whether to go on with the run that is there.

        Raises:
            ValueError: as in `check`, or no checkpoint that is there can be used.
        """
        saved = self.check_identity(identity, resume=resume)
        self.path.mkdir(parents=True, exist_ok=True)
        if saved is not None:
            self._check_records(saved)
            checkpoint.set_aside(saved)
        return saved

    def check_identity(self, identity: dict[str, Any], *, resume: bool) -> Saved | None:
        """Returns the newest checkpoint, if there is one; raises ValueError for that of another run.

        Args:
            identity: what the run's numbers depend on, see `identity.identity_of`.
            resume: whether to go on with the run that is there.

        Raises:
            ValueError: as in `open`, but for its history.
        """
        self._refuse_unless_free(resume)
        saved = self.newest()
        if saved is not None:
            held, wanted = (one | dict.fromkeys(MACHINE_OPTIONS) for one in (saved.header["identity"], identity))
            for name in (FIELDS, DIGEST):
                if name not in held:  # a run of an older version
                    wanted.pop(name, None)
            self._refuse_another(held, wanted)
        return saved

    def newest(self) -> Saved | None:
        """Returns the newest checkpoint, None without one.

        Raises:
            ValueError: it is damaged, or not that of a run.
        """
        saved = checkpoint.newest(self.path)
        if saved and not all(isinstance(saved.header.get(name), kind) for name, kind in HEADER_TYPES.items()):
            raise ValueError(f"{saved.path} is not the checkpoint of a run; remove it or choose another directory.")
        return saved

    def checked_rounds_done(self, identity: dict[str, Any], *, resume: bool) -> int:
        """Returns the rounds done of a run that may be resumed, see `check_identity`; writes nothing."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the checkpoint before: `open` warns of it
            saved = self.check_identity(identity, resume=resume)
        return 0 if saved is None else saved.header["round"]

    def _check_records(self, saved: Saved) -> None:
        """Checks that the history has the records of a checkpoint.

        Raises:
            ValueError: some are missing.
        """
        rounds, records = saved.header["round"], saved.header["records"]
        kept = self._records(rounds)
        if (found := len(kept)) < records:
            raise ValueError(
                f"{self.path / HISTORY} must hold {records} records of the first {rounds} rounds, found {found}; put "
                "the file back as it was, or choose another directory."
            )
        if saved.header["identity"].get(KEEPS_CLIENTS):
            clients = self.path / CLIENTS_HISTORY
            held = ClientsHistory.read(clients).rounds if clients.exists() else []
            if lacking := sorted({one["round"] for one in kept if one.get("loss") is not None}.difference(held)):
                raise ValueError(
                    f"{clients} must hold the clients' metrics of round {lacking[0]}, and does not; put the file back "
                    "as it was, or choose another directory."
                )

    def _records(self, rounds: int) -> list[dict[str, Any]]:
        """Returns the records of the first `rounds`."""
        path = self.path / HISTORY
        return [one for one in read_records(path) if one["round"] <= rounds] if rounds and path.exists() else []

    def is_of_another(self, config: dict[str, Any]) -> bool:
        """Returns whether the directory's config is there, and of another run than `config`."""
        saved = self.config()
        return saved is not None and bool(_differing_names(_fixed_entries(saved), _fixed_entries(config)))

    def done(self) -> int:
        """Returns the rounds done of the newest checkpoint that can be read.

        Raises:
            ValueError: there are checkpoints, and none can be used.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the one before: `open` warns of it
            saved = checkpoint.newest(self.path)
        done = saved.header.get("round") if saved else 0
        return done if isinstance(done, int) else 0  # of no run: refused when it is opened

    def check_readable(self) -> None:
        """Checks that the files of a run are none, or can be read.

        Raises:
            ValueError: one is damaged, or no file, or the history lacks records; the message names it.
            OSError: one cannot be opened.
        """
        for name in (LOCK, *(own_names(self.path) or ())):
            check_is_file(self.path / name, self.argument)
        self.config()
        self.summary()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the checkpoint before: `open` warns of it
            saved = self.newest()
        if (self.path / HISTORY).exists():
            history = History(self.path / HISTORY)
            _ = history.moves, history.clients
        if saved is not None:
            self._check_records(saved)

    def is_unfinished(self) -> bool:
        """Returns whether the run was resumed with more rounds than its summary has, and has not finished them."""
        summary = self.summary() or {}
        ended, asked = summary.get("rounds", 0), (self.config() or {}).get("rounds", 0)
        if asked > summary.get("rounds_asked", asked):  # of which it may have made none
            return True
        path = self.path / HISTORY
        last = max((one["round"] for one in read_records(path)), default=0) if path.exists() else 0
        if asked > ended >= last:
            with contextlib.suppress(ValueError):  # a run cannot be resumed from unreadable checkpoints
                last = self.done()
        return last > ended

    def config(self) -> dict[str, Any] | None:
        """Returns the config of the run; None if nothing was written."""
        return self._read(CONFIG, CONFIG_TYPES)

    def summary(self) -> dict[str, Any] | None:
        """Returns the summary of the run, or of the seeds below the directory; None if it has not ended."""
        return self._read(SUMMARY, SUMMARY_TYPES)

    def _read(self, name: str, entry_types: EntryTypes) -> dict[str, Any] | None:
        """Returns the content of a JSON file of the directory; None if there is no file.

        Raises:
            ValueError: it is no JSON, or an entry has another type than it must.
        """
        content = read_json(self.path / name)
        if content is None or (name == SUMMARY and "seeds" in content and not self.own_files()):
            return content  # of several seeds, a number is its mean and deviation
        try:
            check_entries(content, entry_types)
            if not all(isinstance(one, str) for one in content.get(LOWER, ())):
                raise ValueError(f"{LOWER} must be a list of texts, got {content[LOWER]}")
        except ValueError as error:
            raise ValueError(
                f"{self.path / name} is damaged, or not of this version of jaxfl: {error}; put it back as it was, or "
                "choose another directory."
            ) from error
        return content

    def history(self, rounds: int = 0) -> History:
        """Returns the history of the first `rounds`, which writes later records to its file."""
        return History.writing(self.path / HISTORY, self._records(rounds))

    def write_config(self, config: dict[str, Any]) -> None:
        """Creates the directory and writes the config."""
        with self.name_disk_errors("nothing was begun"):
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.path / CONFIG, config)

    @contextlib.contextmanager
    def configured(self, config: dict[str, Any]) -> Iterator[Callable[[], None]]:
        """Writes the config; if a run ends with an error before it has saved anything, the old config is restored.

        Yields:
            What restores it, for a run of several seeds in one program: its error does not end the others.
        """
        before, saved = self.config(), self._saved_at()

        def restore() -> None:
            nonlocal before
            if before is not None and self._saved_at() == saved:
                self.write_config(before)
            before = None  # what is written to it later stays

        self.write_config(config)
        try:
            yield restore
        except BaseException:
            restore()
            raise

    def _saved_at(self) -> int | None:
        """Returns the time of the newest checkpoint in nanoseconds; None if there is none."""
        path = self.path / checkpoint.NAME
        return path.stat().st_mtime_ns if path.exists() else None

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Writes the summary of the run."""
        with self.name_disk_errors("its rounds are done and kept"):
            write_json(self.path / SUMMARY, summary)

    def save(self, state: Params, header: dict[str, Any]) -> None:
        """Writes a checkpoint, and keeps the one before; the header holds the run's `identity`."""
        checkpoint.save(self.path, state, header)

    def remove(self) -> None:
        """Removes the directory and all that is in it; nothing if it is not there."""
        if self.path.exists():
            shutil.rmtree(self.path)

    def _refuse_file(self) -> None:
        """Raises ValueError if there is a file at the path, or in the place of a folder above it."""
        check_is_folder(self.path, self.argument)

    def _refuse_unless_free(self, resume: bool) -> None:
        """Raises ValueError if there is a file at the path, or a directory with a run that is not to be resumed."""
        self._refuse_file()
        if not resume and (held := self.files()):
            raise ValueError(
                f"{self.argument} {str(self.path)!r} ({held[0]}) holds a run already; resume it (resume=True, "
                "--resume) or choose another directory."
            )

    def _refuse_another(self, saved: dict[str, Any], wanted: dict[str, Any]) -> None:
        """Raises ValueError if two descriptions of a run differ, and names the first difference."""
        names = _differing_names(saved, wanted)
        for name in names[:1]:
            owner, _, checksum = name.partition("_")
            if checksum == "checksum" and saved.get(name) and wanted.get(name):
                address = str(saved.get(owner) or saved.get(f"run.{owner}"))
                copy = copy_path(self.path, address.rpartition(":")[0] or address, saved[name])
                kept = copy.is_file() and crc(copy.read_bytes()) == saved[name]
                back = f"put it back (a copy is {copy})" if kept else "put it back"
                raise ValueError(
                    f"{self.argument} {str(self.path)!r} holds a run whose {owner} is in a file that has changed; "
                    f"{back}, or choose another directory."
                )
            if name in JAX_SETTINGS:
                check_jax_settings(saved, f"{self.argument} {str(self.path)!r}", ", or choose another directory")
            told = ["data", DIGEST] if name == "data" and DIGEST in names else [name]  # a checksum alone says less
            before, now = (", ".join(f"{one}={config.get(one)!r}" for one in told) for config in (saved, wanted))
            raise ValueError(
                f"{self.argument} {str(self.path)!r} holds a run with {before}, got {now}; resume it with the "
                "configuration that wrote it, or choose another directory."
            )


def _fixed_entries(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the entries of a `config.json` that must not change on resume: those that numbers depend on."""
    apart = (FILE_SUFFIX, SHA_SUFFIX)
    return {name: value for name, value in config.items() if name not in CHANGEABLE and not name.endswith(apart)}


def _differing_names(saved: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Returns the names whose values differ, as JSON reads them back."""
    saved, wanted = read_back(saved), read_back(wanted)
    return [name for name in {**saved, **wanted} if saved.get(name) != wanted.get(name)]
