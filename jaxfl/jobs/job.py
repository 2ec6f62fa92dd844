"""Jobs: runs that are defined by names and options, and the files that they write into their folder.

The directory holds `config.json` (before anything is computed; beside it copies of a user's files of
Python), `history.jsonl`, `clusters.jsonl` and the checkpoints (while it runs),
`summary.json`, `clients.csv` (a row per client), `convergence.png` and `clusters.png` (at the end).
"""

import contextlib
import functools
import json
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxfl import plots
from jaxfl.analysis.comparison import deviation
from jaxfl.data.clients import FederatedData
from jaxfl.data.drift import given_rounds
from jaxfl.data.drift.schedules import matrix_file
from jaxfl.files import is_beside, keep_copy, own_names, real_path, user_path, write_text
from jaxfl.host.text import csv_table
from jaxfl.methods.base import Method
from jaxfl.models.weights import check_weights
from jaxfl.plots.style import check_backend, import_matplotlib, write_picture
from jaxfl.random import check_seed
from jaxfl.sampling import Sampler
from jaxfl.schema import check_type
from jaxfl.settings import federations, options, user_code
from jaxfl.settings.removed import removed_in
from jaxfl.simulation import processes
from jaxfl.simulation.callbacks import EarlyStopping
from jaxfl.simulation.devices import check_compiles
from jaxfl.simulation.evaluation.finetune import FineTune
from jaxfl.simulation.evaluation.test_sets import parse_test_sets
from jaxfl.simulation.program import shapes_of, work_beside
from jaxfl.simulation.progress import Diverged
from jaxfl.simulation.records.directory import CONFIG, DIVERGED, HISTORY, SUMMARY, FolderInUse, RunDirectory
from jaxfl.simulation.records.history import History
from jaxfl.simulation.records.identity import (
    DATA_CHECKSUM,
    DIGEST,
    FINGERPRINT,
    data_identity,
    federation_fingerprint,
    jax_settings,
)
from jaxfl.simulation.records.shared import directory_at
from jaxfl.simulation.result import Callback, Result, client_columns
from jaxfl.simulation.run import run
from jaxfl.simulation.schedule import Schedule, check_checkpoints
from jaxfl.wire.wired import check_min_sum

CLIENTS = "clients.csv"
MATRIX_CHECKSUM = "drift_matrix_checksum"  # in a config: of the file of a drift's matrix
DATA_FILES = options.FILES_OF_RUNS  # among a user's files, those that are no programs
# of a summary
TIME_COLUMNS = ("seconds_per_round", "total_seconds", "compile_seconds", "evaluation_seconds", "saving_seconds")
PICTURES = ("convergence.png", "clusters.png")
DPI = 150  # of these


class Job(NamedTuple):
    """A run by names: settings, rounds, cohort, seed and folder.

    `beside` names files that the caller adds there. `stop_early` is the patience of `EarlyStopping`, where a run that
    it has ended is finished. `pictures` says whether `PICTURES` are drawn.
    """

    settings: options.Settings
    rounds: int
    cohort: int | float
    seed: int = 0
    data_dir: str | None = None
    eval_every: int | None = None
    checkpoint_every: int | None = None
    out: Path | None = None
    resume: bool = False
    beside: tuple[str, ...] = ()
    stop_early: int | None = None
    pictures: bool = True

    def config(self) -> dict[str, Any]:
        """Returns what `config.json` holds."""
        files = self.settings.files()
        return {
            **self.identity(),
            "rounds": self.rounds,
            "eval_every": self.eval_every,
            "checkpoint_every": self.checkpoint_every,
            "data_dir": None if self.data_dir is None else str(real_path(Path(self.data_dir))),
            **{f"{owner}_file": str(real_path(path)) for owner, path in files.items()},
            **{
                f"{owner}_sha256": user_code.file_sha256(path)
                for owner, path in files.items()
                if owner not in DATA_FILES
            },
        }

    @property
    def of_its_data(self) -> bool:
        """Whether the task is built from the data's values, as a user's own may be, and not from their shapes alone."""
        settings = self.settings
        return user_code.is_address(settings.task_name) or settings.run.get("class_weights") == "balanced"

    def directory(self) -> RunDirectory | None:
        """Returns the folder of the run, None without one."""
        return directory_at(self.out, resume=self.resume, argument="out")

    def outputs(self) -> tuple[str, ...]:
        """Returns the names of the files that are written into the folder, beside those of every run."""
        files = self.settings.files().values()
        copies = [path.name for path in files if is_beside(path.name) and not self._is_copy(path)]
        return (CONFIG, SUMMARY, CLIENTS, *(PICTURES if self.pictures else ()), *copies, *self.beside)

    def _is_copy(self, path: Path) -> bool:
        """Returns whether a user's file is in the folder of the run already."""
        return self.out is not None and real_path(path).parent == real_path(self.out)

    def begun(self) -> bool:
        """Returns whether the folder has files of the run."""
        return self.out is not None and bool(RunDirectory(self.out).files())

    def done(self) -> dict[str, Any] | None:
        """Returns the summary of the run in the folder; None if it is not finished."""
        summary = None if self.out is None else RunDirectory(self.out).summary()
        if summary is None or summary.get("rounds") == self.rounds or self._is_stopped_early(summary):
            return summary
        return None

    def _is_stopped_early(self, summary: dict[str, Any]) -> bool:
        """Returns whether early stopping has ended the run that has a summary, by its history."""
        if self.stop_early is None or self.out is None or summary.get("rounds_asked") != self.rounds:
            return False
        records = History(self.out / HISTORY).records if (self.out / HISTORY).exists() else []
        if summary.get("test_rows") is not None:  # the last evaluation was made again with all rows
            records = [*records[:-1], *records[-2:-1]]
        return EarlyStopping(self.stop_early).would_end(records, tuple(summary.get("lower_is_better", ())))

    def divergence(self) -> str | None:
        """Returns the reason why the run in the folder has diverged, so that making it again would, too; else None."""
        config = None if self.out is None else RunDirectory(self.out).config()
        found = (config or {}).get(DIVERGED, {})
        same = found.get("rounds") == self.rounds and not RunDirectory(self.out or "").is_of_another(self.config())
        return str(found.get("reason")) if same else None

    def evaluated(self) -> int | None:
        """Returns the rounds between evaluations of the run in the folder; None if there is no run."""
        config = None if self.out is None else RunDirectory(self.out).config()
        return None if config is None else Schedule.of(self.rounds, config.get("eval_every")).eval_every

    def identity(self) -> dict[str, Any]:
        """Returns all that the numbers depend on; not the rounds, which may be added, nor the folder of the data.

        A resumed run keeps its first identity: options that are newer and have their defaults are left out, and options
        that have been removed since have their old defaults.
        """
        began, settings = self._began(), self.settings_in_use()
        identity = {**settings.complete(), **jax_settings(), "cohort": self.cohort, "seed": self.seed}
        if own := federations.user_checksum(self.settings.data_name, self.data_dir, self.settings.data.get("other")):
            identity[DATA_CHECKSUM] = own
        if matrix := matrix_file(self.settings.data.get("drift_matrix")):
            identity[MATRIX_CHECKSUM] = user_code.file_checksum(matrix)
        identity = json.loads(json.dumps(identity))  # as it is read back: tuples are lists
        if began is None:
            return identity
        defaults = json.loads(json.dumps(settings.defaults()))
        identity |= removed_in(self.settings.method_name, began)
        younger = {name for name, value in defaults.items() if name not in began and identity[name] == value}
        if DATA_CHECKSUM not in began:  # of an older version
            younger.add(DATA_CHECKSUM)
        elif DATA_CHECKSUM not in identity:  # the files are gone: whoever has the data can go on
            identity[DATA_CHECKSUM] = began[DATA_CHECKSUM]
        if MATRIX_CHECKSUM not in began:
            younger.add(MATRIX_CHECKSUM)
        return {name: value for name, value in identity.items() if name not in younger}

    def settings_in_use(self) -> options.Settings:
        """Returns the settings, of a resumed run with the default network that it began with."""
        began = self._began()
        return self.settings if began is None else self.settings.as_begun(began)

    def _began(self) -> dict[str, Any] | None:
        """Returns the config of a run that is resumed; None of a new one."""
        return processes.by_first(RunDirectory(self.out).config) if self.resume and self.out is not None else None


def check(job: Job) -> None:
    """Checks all that can be checked before anything is loaded.

    Raises:
        ValueError: a number is out of range, a file is missing, or the directory holds another run, one that has made
            more rounds, or those of several seeds.
    """
    test_rows, drift_rounds = job.settings.run.get("test_rows"), given_rounds(job.settings.data)
    schedule = Schedule.of(job.rounds, job.eval_every, job.checkpoint_every, test_rows, drift_rounds)
    check_checkpoints(job.checkpoint_every, job.out, "out")
    if isinstance(job.cohort, float) and not 0 < job.cohort <= 1:
        raise ValueError(
            f"cohort must be a share in (0, 1] or a count, got {job.cohort}; 0.1 is a tenth of the clients, 1.0 "
            "everyone, 120 as many clients."
        )
    if isinstance(job.cohort, int) and job.cohort < 1:
        raise ValueError(f"cohort must be at least 1, got {job.cohort}; 0.1 is a tenth of the clients, 1.0 everyone.")
    check_seed(job.seed)
    if weights := job.settings.files().get("weights"):
        check_weights(weights)
    options.plan(job.settings)
    options.model(job.settings, num_classes=1)
    options.check_optimizers(job.settings)
    options.sampler(job.settings)
    options.channel(job.settings)
    options.error_feedback(job.settings)
    options.aggregator(job.settings)
    options.privacy(job.settings)
    parse_test_sets(job.settings.run.get("test_sets"))
    check_min_sum(job.settings.run.get("min_sum", 1))
    options.clock(job.settings)
    options.edges(job.settings)
    options.finetune(job.settings)
    options.schedule(job.settings)
    check_compiles()
    if job.out is not None:
        _check_copies(job)
    if job.out is not None and job.pictures:
        check_backend()
    if directory := job.directory():
        if below := processes.by_first(lambda: _seeds_in(directory)):
            raise ValueError(
                f"out must be the folder of one run, got {str(job.out)!r}, in which are {', '.join(below[:5])}; give "
                "one of these, go on with all by --seeds, or choose another directory."
            )
        names = job.outputs()
        directory.check(job.config(), resume=job.resume, names=names)
        written = {real_path(directory.path / name) for name in names}
        data = job.settings.data
        read = federations.user_files(job.settings.data_name, job.data_dir, data.get("other"))
        tables = [job.settings.files().get(name) for name in ("clock", "edges")]
        read = [*read, matrix_file(data.get("drift_matrix")), *tables]
        for path in filter(None, read):
            if real_path(path) in written:
                raise ValueError(
                    f"out must be a folder in which no data are replaced, got {str(job.out)!r} with {path.name!r}, "
                    "which is read; choose another directory."
                )
        schedule.check_done(directory.done())


def _check_copies(job: Job) -> None:
    """Checks that the copies of a user's files are different files of the run's folder.

    Raises:
        ValueError: two files have one name, and another content.
    """
    named: dict[str, tuple[str, Path]] = {}
    for owner, path in job.settings.files().items():
        other, first = named.setdefault(path.name, (owner, path))
        if is_beside(path.name) and first.read_bytes() != path.read_bytes():
            raise ValueError(
                f"{owner} and {other} must be in files of different names, whose copies are kept in out, got "
                f"{str(path)!r} and {str(first)!r}; rename one of them, or write both into one file."
            )


def _seeds_in(directory: RunDirectory) -> list[str]:
    """Returns the folders of the runs of several seeds in a directory that holds no run of its own."""
    if directory.own_files():
        return []
    return sorted(path.parent.name for path in directory.path.glob(f"seed-*/{HISTORY}"))


class Tools(NamedTuple):
    """Objects that are built from a job's names; several seeds that share them share the compiled program.

    Attributes:
        method: the method.
        sampler: draws the cohorts.
        finetune: what clients train before they are tested a second time, or None.
        suits: the shapes of the data they were made for: on others nothing could be shared.
    """

    method: Method
    sampler: Sampler
    finetune: FineTune | None
    suits: Any

    @classmethod
    def of(cls, job: Job, data: FederatedData, others: "Tools | None" = None) -> "Tools":
        """Returns the objects of a job; or `others`, those of a job that differs only in its seed, where they suit the
        data.
        """
        suits = shapes_of(data.in_programs())
        if others is not None and others.suits == suits and not job.of_its_data:
            return others
        settings = job.settings_in_use()
        return cls(options.build(settings, data), options.sampler(settings), options.finetune(settings), suits)


def execute(job: Job, data: FederatedData, callbacks: Sequence[Callback] = (), tools: Tools | None = None) -> Result:
    """Runs a job and writes its folder; returns the result.

    Args:
        job: checked by `check`.
        data: from `options.load`.
        callbacks: called with every `Event`.
        tools: of `Tools.of`, from a run of another seed; None makes them.

    Returns:
        The result, its summary completed with the method and all options.
    """
    tools = Tools.of(job, data, tools)
    with _write_configs([job], [data]) as notes, _drawing_ahead(job):
        try:
            result = run(
                tools.method, data, seed=job.seed, checkpoint_dir=job.out, callbacks=callbacks, **_arguments(job, tools)
            )
        except Diverged as error:
            for note in notes:
                note(error)
            raise
        return _write_result(job, result)


def _drawing_ahead(job: Job) -> contextlib.AbstractContextManager[None]:
    """Returns the context in which matplotlib is imported while XLA compiles, if the job's pictures will need it."""
    draws = job.pictures and job.out is not None and processes.first()
    return work_beside(import_matplotlib) if draws else contextlib.nullcontext()


def execute_jobs(
    jobs: Sequence[Job], data: Sequence[FederatedData], callbacks: Sequence[Callback], tools: Tools
) -> list[Result | Diverged]:
    """Runs jobs that differ only in their seeds, as `jaxfl.run` does with `seeds`, and writes their folders.

    Args:
        jobs: checked by `check`; their directories, if any, are `seed-S` of one.
        data: of each, from `options.load` and `share_equal_arrays`.
        callbacks: called with every `Event`.
        tools: of all.

    Returns:
        What `execute` returns or raises, for each.
    """
    first = jobs[0]
    out = None if first.out is None else first.out.parent
    with _write_configs(jobs, data) as notes:
        try:
            found: Sequence[Any] = run(
                tools.method,
                data,
                seeds=[job.seed for job in jobs],
                checkpoint_dir=out,
                callbacks=callbacks,
                **_arguments(first, tools),
            )
        except Diverged as error:
            found = error.outcomes
            for note, one in zip(notes, found, strict=False):
                if isinstance(one, Diverged):
                    note(one)
        return [
            _write_result(job, one) if isinstance(one, Result) else one for job, one in zip(jobs, found, strict=True)
        ]


def _arguments(job: Job, tools: Tools) -> dict[str, Any]:
    """Returns the arguments of a run that do not depend on the seed."""
    return {
        "rounds": job.rounds,
        "cohort": job.cohort,
        "sampler": tools.sampler,
        "clock": options.clock(job.settings),
        "edges": options.edges(job.settings),
        "eval_every": job.eval_every,
        "test_rows": job.settings.run.get("test_rows"),
        "eval_clients": job.settings.run.get("eval_clients"),
        "finetune": tools.finetune,
        "test_sets": job.settings.run.get("test_sets"),
        "record_vectors": job.settings.run.get("record_vectors", False),
        "clients_history": job.settings.run.get("clients_history", False),
        "checkpoint_every": job.checkpoint_every,
        "resume": job.resume,
        "plan": options.plan(job.settings),
        "devices": job.settings.run.get("devices"),
        "resident": job.settings.run.get("resident", "auto"),
        "config": job.identity(),
    }


@contextlib.contextmanager
def _write_configs(jobs: Sequence[Job], data: Sequence[FederatedData]) -> Iterator[list[Callable[[Diverged], None]]]:
    """Locks the folders of jobs and writes their configs; yields what notes that a run has diverged, for each folder.

    The config has the fingerprint and the digest of the federation.

    If a run ends before it has saved anything, for example because it is refused, an older config is restored.
    """
    notes = []
    with contextlib.ExitStack() as stack:
        for job, federation in zip(jobs, data, strict=True):
            if directory := job.directory():
                stack.enter_context(directory.locked(job.outputs()))
                known = data_identity(federation)
                config = job.config() | {FINGERPRINT: federation_fingerprint(known)}
                config |= {DIGEST: known[DIGEST]} if DIGEST in known else {}
                restore = stack.enter_context(directory.configured(config))
                notes.append(functools.partial(_note_divergence, directory, restore, job.rounds))
                for path in job.settings.files().values() if processes.first() else ():
                    with directory.name_disk_errors("nothing was begun"):
                        keep_copy(path, directory.path)  # of a run that is held, the file is as it was: it was checked
        yield notes


def _note_divergence(directory: RunDirectory, restore: Callable[[], None], rounds: int, error: Diverged) -> None:
    """Restores an older config of a run that has diverged before it has saved anything, and notes the divergence."""
    restore()
    if config := processes.by_first(directory.config):
        directory.write_config(config | {DIVERGED: {"rounds": rounds, "reason": str(error)}})


def _write_result(job: Job, result: Result) -> Result:
    """Writes summary, clients and pictures; returns the result with the complete summary."""
    complete = job.settings_in_use().complete()
    if job.out is not None and DATA_CHECKSUM in (began := processes.by_first(RunDirectory(job.out).config) or {}):
        complete[DATA_CHECKSUM] = began[DATA_CHECKSUM]  # of what was read: the file may be another by now
    names = {"method": complete.pop("method"), "data": complete.pop("data")}
    summary = {**names, **result.summary, "options": complete, "data": result.data.name}
    result = result._replace(summary=summary)
    if (directory := job.directory()) is None:
        return result
    before = directory.summary() or {}
    if summary["seconds_per_round"] is None and before.get("rounds") == summary["rounds"]:  # no round was left to make
        summary |= {name: before[name] for name in TIME_COLUMNS if name in before}
    try:
        if processes.first():
            with directory.name_disk_errors("all but the list of clients is kept"):
                write_text(
                    directory.path / CLIENTS, csv_table(client_columns(result.data, result.evaluation, result.times))
                )
            for name, draw in zip(PICTURES, (plots.convergence, plots.clusters), strict=True):
                with directory.name_disk_errors("all but the pictures is kept"):
                    if job.pictures:
                        write_picture(draw(result), directory.path / name, dpi=DPI, command="run")
                    elif name in (own_names(directory.path) or ()):  # one of fewer rounds
                        (directory.path / name).unlink(missing_ok=True)
    except Exception:  # what cannot be drawn takes nothing of the run
        directory.write_summary(summary)
        raise
    directory.write_summary(summary)  # last: of a run that was stopped before, what is missing is made again
    return result


def run_named(
    method: str,
    data: str,
    *,
    rounds: int,
    cohort: int | float,
    seed: int = 0,
    out: str | os.PathLike | None = None,
    resume: bool = False,
    data_dir: str | os.PathLike | None = None,
    eval_every: int | None = None,
    checkpoint_every: int | None = None,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Result:
    """Runs a method by its name, as `jaxfl run` does, with the same files: either can resume the other's runs.

    Args:
        method: a method's name, or `FILE.py:NAME`.
        data: a data set's name.
        rounds: communication rounds in all.
        cohort: clients of a round: a share (float in (0, 1]) or a count (int).
        seed: of the data, the initial models, the cohorts and the batches.
        out: the folder, which gets all that `jaxfl run --out` writes; None keeps nothing.
        resume: go on with the run that is in the folder.
        data_dir: where the data's files lie.
        eval_every: rounds between evaluations; None is a tenth of all, rounded down, or 1.
        checkpoint_every: rounds between checkpoints; None saves after every evaluation, at most once a second.
        callbacks: called with every `Event`.
        **settings: what `--set` takes: `model="mlp"`, `num_clusters=4`.

    Raises:
        ValueError: a name, an option or a number is not possible, or the folder holds another run.
        Diverged: clients send nothing finite any more.
    """
    if out == "":
        raise ValueError('out must be a folder, got ""; "." is the current one, None keeps nothing.')
    settings = {name: _as_python(value) for name, value in settings.items()}
    rounds, cohort, seed, eval_every, checkpoint_every = map(
        _as_python, (rounds, cohort, seed, eval_every, checkpoint_every)
    )
    check_type("rounds", rounds, int)
    check_type("cohort", cohort, int | float)
    job = Job(
        options.route(method, data, **settings),
        rounds,
        cohort,
        seed,
        None if data_dir is None else str(user_path(data_dir)),
        eval_every,
        checkpoint_every,
        None if out is None else user_path(out),
        resume,
    )
    check(job)
    return execute(job, options.load(job.settings, data_dir=job.data_dir, seed=seed), callbacks)


def _as_python(value: Any) -> Any:
    """Returns a NumPy number or text as Python's, which JSON can represent."""
    return value.item() if isinstance(value, np.generic) else value


def check_jobs(jobs: Sequence[Job], *, in_use: bool = False) -> None:
    """Checks all that can be checked before anything is loaded.

    Args:
        jobs: of different seeds; their directories, if any, are `seed-S` of one.
        in_use: whether other processes may hold some of the folders; these have been checked by them.

    Raises:
        ValueError: as `jaxfl.jobs.job.check`, or the folder of all is that of a single run.
    """
    out = None if jobs[0].out is None else jobs[0].out.parent
    if out is not None and (held := processes.by_first(RunDirectory(out).own_files)):
        raise ValueError(
            f"out must be a folder for the runs of several seeds, got {str(out)!r}, which holds a single run "
            f"({held[0]}); leave --seeds out and resume it, or choose another directory."
        )
    if out is not None:
        processes.by_first(lambda: RunDirectory(out, "out").check_names([SUMMARY]))
    for one in jobs:
        with contextlib.suppress(*([FolderInUse] if in_use else [])):
            check(one)


def add_saved_summaries(jobs: Sequence[Job], made: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns summaries by seed, together with those of the other seeds' finished runs in the same folder.

    Args:
        jobs: as `check` takes them.
        made: the summaries of those that have ended.
    """
    asked = {one.seed for one in jobs}

    def kept() -> list[dict[str, Any]]:
        found = []
        for path in [] if jobs[0].out is None else jobs[0].out.parent.glob("seed-*"):
            number = path.name.removeprefix("seed-")
            if number.isdecimal() and int(number) not in asked:
                other = jobs[0]._replace(seed=int(number), out=path, resume=True)
                with contextlib.suppress(ValueError):  # a damaged one is none
                    summary = _finished_summary(path, other.rounds)
                    if summary is not None and not RunDirectory(path).is_of_another(other.config()):
                        found.append(summary)
        return found

    return sorted([*made, *processes.by_first(kept)], key=lambda summary: summary["seed"])


def _finished_summary(path: Path, rounds: int) -> dict[str, Any] | None:
    """Returns the summary of a finished run of so many rounds, which a callback may have ended earlier; else None."""
    directory = RunDirectory(path)
    summary, config = directory.summary(), directory.config() or {}
    return None if summary is None or config.get("rounds") != rounds or directory.is_unfinished() else summary


def summarise_seeds(summaries: Sequence[dict[str, Any]], out: Path | None = None) -> dict[str, dict[str, float | None]]:
    """Returns mean and standard deviation of every number in the summaries of several seeds, and writes them to `out`.

    The standard deviation is that of a sample (n - 1); None for one run, or where a number is not finite.
    """
    spread = {}
    for name in summaries[0]:
        values = [summary.get(name) for summary in summaries]  # one of an older version may have none
        numbers = [one for one in values if isinstance(one, (int, float)) and not isinstance(one, bool)]
        if name != "seed" and len(numbers) == len(values):
            spread[name] = {"mean": statistics.fmean(numbers), "std": deviation(numbers)}
    if out is not None and processes.first():
        directory = RunDirectory(out, "out")
        with directory.name_disk_errors("the runs of all seeds are kept"):
            directory.claim([SUMMARY])
        directory.write_summary({"seeds": [summary["seed"] for summary in summaries], **spread})
    return spread
