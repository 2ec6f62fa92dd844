"""Callbacks of a run: progress bar, loggers, early stopping, time limit and best checkpoint.

A callback is called with an `Event`; one that returns True ends the run, which is evaluated and saved there.

>>> import io, jaxfl, optax
>>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
>>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
>>> method = jaxfl.methods.fedavg(task, optax.sgd(0.1))
>>> with ProgressBar(file=io.StringIO()) as bar:
...     result = jaxfl.run(method, data, rounds=2, cohort=0.5, callbacks=[bar])
"""

import collections
import contextlib
import importlib
import math
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from jaxfl.data.clients import FederatedData
from jaxfl.files import copy_path, keep_copy, user_path, write_bytes
from jaxfl.schema import check_type
from jaxfl.simulation.evaluation.metrics import (
    CAUSE_PREFIX,
    COHESION_METRICS,
    counted_clients,
    is_lower_better,
    main_metric,
)
from jaxfl.simulation.loggers import GROUP_METRICS
from jaxfl.simulation.loggers import csv as csv
from jaxfl.simulation.loggers import mlflow as mlflow
from jaxfl.simulation.loggers import scalars as scalars
from jaxfl.simulation.loggers import tensorboard as tensorboard
from jaxfl.simulation.loggers import wandb as wandb
from jaxfl.simulation.records import checkpoint
from jaxfl.simulation.records.directory import CONFIG, FILE_SUFFIX, RUN_FILES, SUMMARY, RunDirectory
from jaxfl.simulation.result import Callback, Event


class _BestValues:
    """The best value of a metric so far for each seed, and the evaluations since then; None is the task's main metric.

    Attributes:
        newest: of each seed, whether the last evaluation is the best one; one without a value is not.
    """

    def __init__(self, metric: str | None):
        self.metric = metric
        self.forget()

    def forget(self) -> None:
        """Clears all values: the same callback may be given to the next run."""
        self.newest: dict[int | None, bool] = {}
        self._best: dict[int | None, float] = {}
        self._waited: dict[int | None, int] = {}

    def begins(self, event: Event) -> bool:
        """Returns whether this is the first evaluation of the seed."""
        return event.seed not in self.newest

    def waited(self, event: Event, until: float = math.inf) -> int:
        """Returns the number of evaluations since the best one; evaluations without a value do not count.

        Args:
            event: of an evaluation, or between two.
            until: the round until which those of before a resume count.

        Raises:
            ValueError: an evaluation has no such number.
        """
        if event.record is not None:
            for record in event.earlier if self.begins(event) else ():
                if record["round"] <= until:  # JSON has null for what is not finite
                    self._take({name: math.nan if one is None else one for name, one in record.items()}, event)
            self._take(event.record, event)
        return self._waited.get(event.seed, 0)

    def _take(self, record: dict[str, Any], event: Event) -> None:
        metric = f"micro_{main_metric(record)}" if self.metric is None else self.metric
        if metric not in record:
            known = ", ".join(name for name, value in record.items() if isinstance(value, float))
            raise ValueError(f"metric must be a number of every evaluation, got {metric!r}; there are {known}.")
        value, sign = record[metric], -1 if is_lower_better(metric, event.lower) else 1
        self.newest[event.seed] = False
        if value is None:  # no client was tested: that is no better and no worse
            return
        value = -math.inf if math.isnan(value) else sign * value
        self.newest[event.seed] = better = value > self._best.get(event.seed, -math.inf)
        self._best[event.seed] = max(value, self._best.get(event.seed, -math.inf))
        self._waited[event.seed] = 0 if better else self._waited.get(event.seed, 0) + 1


class EarlyStopping:
    """A callback that ends a run whose metric has not improved for some evaluations.

    Args:
        patience: evaluations in a row that are not better than the best before them; those before a resume count.
        metric: of the records of a history; None is the main one of the task, such as `micro_accuracy`. The smaller the
            better if it is a loss, or the task says so (as of errors and perplexity), else the larger.

    Raises:
        ValueError: less than one evaluation.

    >>> stop = EarlyStopping(2)
    >>> [stop(Event(i, 9, 1, 0.5, 1.0, {"micro_accuracy": value})) for i, value in enumerate((0.5, 0.6, 0.6, 0.4))]
    [False, False, False, True]
    """

    def __init__(self, patience: int, metric: str | None = None):
        check_type("patience", patience, int)
        if patience < 1:
            raise ValueError(f"patience must be at least 1 evaluation, got {patience}.")
        self.patience, self._best = patience, _BestValues(metric)

    def __call__(self, event: Event) -> bool:
        """Returns whether to end the run."""
        return self._best.waited(event) >= self.patience

    def would_end(self, records: Sequence[dict[str, Any]], lower: tuple[str, ...] = ()) -> bool:
        """Returns whether a run with this history would have been ended; the callback must be a new one.

        >>> EarlyStopping(2).would_end([{"round": r, "micro_accuracy": 0.5} for r in (1, 2, 3)])
        True
        """
        if not records:
            return False
        *earlier, last = records
        record = {name: math.nan if one is None else one for name, one in last.items()}  # null in JSON is not finite
        return self(Event(last["round"], 0, 0, math.nan, math.nan, record, lower=lower, earlier=earlier))

    def __exit__(self, *reason: object) -> None:
        """Clears the values of the run."""
        self._best.forget()


class Finished:
    """A callback of a run that has ended, by early stopping perhaps: resumed, it trains no round more.

    It is evaluated again, and its files are written.
    """

    def __call__(self, event: Event) -> bool:
        """Returns that the run ends."""
        return True


def check_measured(callbacks: Sequence[Callback], data: FederatedData, *, tuned: bool) -> None:
    """Raises ValueError if a callback needs a metric that the run cannot have, for lack of rows, groups or fine-tuning.

    Args:
        callbacks: of the run.
        data: that it runs on.
        tuned: whether models are fine-tuned, too.
    """
    for one in callbacks:
        if isinstance(one, EarlyStopping | BestCheckpoint) and (
            lacking := _lacking_phrase(one._best.metric, data, tuned)
        ):
            raise ValueError(
                f"{type(one).__name__} with metric={one._best.metric!r} needs {lacking}; give it metric='train_loss', "
                "or 'validation_loss' where there are validation rows."
            )


def _lacking_phrase(metric: str | None, data: FederatedData, tuned: bool) -> str:
    """Returns a phrase for what a metric needs and the run lacks; an empty text where nothing is lacking."""
    name = "loss" if metric is None else metric.removeprefix("finetuned_")
    if metric not in (None, name) and not tuned:
        return "models that are fine-tuned, and finetune is None"
    if name.startswith("validation_"):
        return "rows that are set apart (validation=0.1), and there are none" if data.validation is None else ""
    if name in GROUP_METRICS:
        return "true groups, and the data name none" if data.group is None else ""
    if name.startswith(CAUSE_PREFIX):
        known = ", ".join(sorted(data.causes)) if len(data.causes) > 1 else "none"
        lacking = name.removeprefix(CAUSE_PREFIX) not in data.causes or len(data.causes) < 2
        return f"one of several causes of the groups, and these are {known}" if lacking else ""
    if name in COHESION_METRICS:
        return "data without true groups, which these have" if data.group is not None else ""
    tested = np.asarray(data.test.size) > 0
    if name.startswith("unseen_"):
        held_out = data.held_out is not None and (tested & np.asarray(data.held_out)).any()
        return "" if held_out else "test rows of clients that are held out, and there are none"
    of_tests = re.match(r"loss$|(micro|macro|std|worst_decile|p\d+)_", name)
    return (
        "test rows, and no client that counts has any" if of_tests and not tested[counted_clients(data)].any() else ""
    )


class TimeLimit:
    """A callback that ends a run after some time, at the end of a round.

    Args:
        seconds: since the run was begun or resumed, compilation included; of seeds that are made one after another, as
            on a CPU, for each of them.

    Attributes:
        reached: whether it has ended a run before its last round.

    Raises:
        ValueError: no time at all.
    """

    def __init__(self, seconds: float):
        check_type("seconds", seconds, float)
        if not seconds > 0:
            raise ValueError(f"seconds must be above 0, got {seconds}.")
        self.seconds, self.reached = seconds, False

    def __call__(self, event: Event) -> bool:
        """Returns whether to end the run."""
        over = event.seconds >= self.seconds
        self.reached |= over and event.round < event.rounds
        return over


def _saved_round(folder: Path) -> float:
    """Returns the round of the newest checkpoint in a folder; -1 where there is none."""
    saved = checkpoint.newest(folder)
    return -1 if saved is None else saved.header["round"]


class BestCheckpoint:
    """A callback that saves the round with the best metric in a separate folder, which `jaxfl.load` reads.

    Args:
        folder: gets the checkpoint, and the history until then; of several seeds `seed-S` in it. One that holds another
            run, or is that of this one, is refused when something is kept; what this run has left there before is
            replaced.
        metric: as for `EarlyStopping`.

    In the folder of a run (`runs/a/best`) the run's config is copied, so that `jaxfl.load` needs nothing else. The last
    evaluation of a run with `test_rows`, which is of all rows, is not compared with those of some; unless the run is
    resumed later.
    """

    def __init__(self, folder: str | os.PathLike, metric: str | None = None):
        self.folder, self._best = user_path(folder), _BestValues(metric)

    def check_folders(self, seeds: Sequence[int | None]) -> None:
        """Raises ValueError if a folder has a whole run, or a file that no run has written; None is of a single run."""
        for seed in seeds:
            folder = self._folder(seed)
            if (folder / SUMMARY).exists():
                raise ValueError(
                    f"folder must be one for the best round alone, got {str(folder)!r}, which holds a run that has "
                    "ended; choose another."
                )
            RunDirectory(folder, "folder").check_names((*RUN_FILES, CONFIG))

    def _folder(self, seed: int | None) -> Path:
        """Returns the folder of a seed; None is that of a single run."""
        return self.folder if seed is None else self.folder / f"seed-{seed}"

    def __call__(self, event: Event) -> None:
        """Saves the state if its metric is the best so far."""
        folder = self._folder(event.seed)
        if event.record is None or event.keep is None or (event.whole and event.earlier):
            return
        # the round of which a checkpoint is there: a run may have been stopped before it was written
        until = _saved_round(folder) if self._best.begins(event) else math.inf
        self._best.waited(event, until)
        if not self._best.newest[event.seed]:
            return
        event.keep(folder)
        above = self.folder.parent if event.seed is None else self.folder.parent / f"seed-{event.seed}"
        if (config := RunDirectory(above).config()) is not None:
            with RunDirectory(folder, "folder").name_disk_errors("the best checkpoint is kept, without its config"):
                copies = []
                for name in (name for name in config if name.endswith(FILE_SUFFIX)):  # that the run depends on
                    checksum = config.get(f"{name.removesuffix(FILE_SUFFIX)}_checksum", "")
                    copies.append(copy_path(above, Path(config[name]).name, checksum))
                copies = [copy for copy in copies if copy.is_file()]
                beside = [copy.name for copy in copies if copy.parent == above]
                RunDirectory(folder, "folder").claim([CONFIG, *beside])
                write_bytes(folder / CONFIG, (above / CONFIG).read_bytes())
                for copy in copies:
                    keep_copy(copy, folder)

    def __exit__(self, *reason: object) -> None:
        """Clears the values of the run."""
        self._best.forget()


LONG = 60  # seconds after which a run's last line says how evaluations and checkpoints could take less of them
SILENT = 60  # seconds without a line after which there is one, evaluation or not


class ProgressBar:
    """A callback that shows round, training loss, main metric, number of clusters, speed and remaining time.

    At the end it tells the time of the whole run, and what of it went into compiling and evaluating.

    A bar in a terminal, one updated line in a notebook, and everywhere else, such as in the log of a job, a plain line
    per evaluation and one a minute in between. Use it as a context manager to see something while the run compiles;
    alone, it starts with the first event. It closes itself when the last round is done, and starts anew with an event
    of another seed or run. What cannot be written (a full disk, a closed pipe) is dropped: the run goes on.

    Args:
        file: where to; None is the standard error stream.
        label: shown in front.
    """

    def __init__(self, file: TextIO | None = None, label: str = ""):
        self.file, self.label = file or sys.stderr, label  # None where the process has no standard error stream
        self.records: dict[int | None, dict[str, Any]] = {}  # the last of each seed
        self.diverged: dict[int | None, int] = {}
        self._show: Callable[[Event], None] | None = None
        self._close: Callable[[], None] = lambda: None

    def __enter__(self) -> "ProgressBar":
        """Starts the bar, which shows that the run compiles until the first event."""
        with contextlib.suppress(OSError):
            self._open()
        return self

    def __exit__(self, *reason: object) -> None:
        """Closes the bar and clears the values of the run."""
        self._end()
        self.records.clear()
        self.diverged.clear()

    def __call__(self, event: Event) -> None:
        """Shows an event."""
        if event.record is not None:
            self.records[event.seed] = event.record
            more = 0 if event.again else event.record.get("diverged", 0)
            self.diverged[event.seed] = self.diverged.get(event.seed, 0) + more
        with contextlib.suppress(OSError):
            (self._show or self._open())(event)
        if event.round >= event.rounds:
            self._end()

    def _end(self) -> None:
        with contextlib.suppress(OSError):
            self._close()
        self._show, self._close = None, lambda: None

    def _open(self) -> Callable[[Event], None]:
        if self.file is None or self.file.closed:
            self._show = lambda event: None
        elif self.file is sys.stderr and _in_a_notebook():
            self._show = self._notebook()
        elif self.file.isatty():
            self._show = self._terminal()
        else:
            self._show = self._lines()
        return self._show

    def _terminal(self) -> Callable[[Event], None]:
        from rich import console, progress

        bar = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=24),
            progress.TextColumn("{task.fields[text]}", markup=False),
            console=console.Console(file=self.file),
        )
        task = bar.add_task(f"{self.label} compiling".strip(), total=None, text="")
        bar.start()
        self._close = bar.stop

        def show(event: Event) -> None:
            bar.update(
                task,
                description=self._place(event),
                completed=event.round,
                total=event.rounds,
                text=self._text(event),
            )
            bar.refresh()  # a short run would be over before the next frame

        return show

    def _notebook(self) -> Callable[[Event], None]:
        display = importlib.import_module("IPython.display")  # there, if there is a notebook
        handle = display.display({"text/plain": f"{self.label} compiling".strip()}, raw=True, display_id=True)

        def show(event: Event) -> None:
            full = round(24 * event.round / event.rounds)
            line = f"{'█' * full}{'░' * (24 - full)} {self._line(event)}"
            handle.update({"text/plain": line}, raw=True)

        return show

    def _lines(self) -> Callable[[Event], None]:
        began = time.monotonic()
        printed = collections.defaultdict[int | None, float](lambda: began)  # when the last line was written, by seed

        def show(event: Event) -> None:
            now = time.monotonic()
            over = event.round >= event.rounds  # a second event where a callback has ended it: with all times
            if event.record is not None or over or now - printed[event.seed] >= SILENT:
                printed[event.seed] = now
                print(self._line(event), file=self.file, flush=True)

        return show

    def _line(self, event: Event) -> str:
        return f"{self._place(event)}  {self._text(event)}"

    def _place(self, event: Event) -> str:
        label = self.label if event.seed is None else f"seed {event.seed}"
        return f"{label} round {event.round}/{event.rounds}".strip()

    def _text(self, event: Event) -> str:
        record, diverged = self.records.get(event.seed, {}), self.diverged.get(event.seed, 0)
        main = main_metric(record)
        measured = record.get(f"micro_{main}")
        form = ".3f" if main == "accuracy" else ".4g"
        untested = "no test rows" if record else ""
        parts = [
            f"loss {event.train_loss:{'.3f' if event.train_loss < 1e6 else '.3g'}}",
            f"{main} {measured:{form}}" if measured is not None else untested,
            # of all clients, as evaluation assigns them; a round may see a few of them
            f"clusters {record.get('num_clusters', event.num_clusters)}",
            f"{diverged} diverged" if diverged else "",
            f"{1 / max(event.seconds_per_round, 1e-9):.3g} rounds/s",
            f"ETA {_format_seconds(event.seconds_left)}" if event.round < event.rounds else _duration_phrase(event),
        ]
        return "  ".join(part for part in parts if part)


def _duration_phrase(event: Event) -> str:
    """Returns a phrase with the time of a run, and the parts of it that were not training.

    >>> _duration_phrase(Event(2, 2, 1, 0.5, 1.0, None, seconds=47.8, compile_seconds=20.0, evaluation_seconds=24.0))
    'took 48 s (compile 20 s, evaluation 24 s)'
    >>> _duration_phrase(Event(2, 2, 1, 0.5, 1.0, None, seconds=90.0, compile_seconds=5.0, evaluation_seconds=60.0))
    'took 1:30 (compile 5.0 s, evaluation 1:00); eval_every and test_rows make evaluation shorter'
    >>> _duration_phrase(Event(2, 2, 1, 0.5, 1.0, None, seconds=287.0, compile_seconds=23.0, saving_seconds=179.0))
    'took 4:47 (compile 23 s, evaluation 0.0 s, saving 2:59); checkpoint_every makes saving rarer'
    """
    apart = f"compile {_format_seconds(event.compile_seconds)}, evaluation {_format_seconds(event.evaluation_seconds)}"
    if event.saving_seconds > max(1.0, event.seconds / 20):
        apart += f", saving {_format_seconds(event.saving_seconds)}"
    much = event.seconds / 4 if event.seconds > LONG else math.inf
    hint = "; eval_every and test_rows make evaluation shorter" if event.evaluation_seconds > much else ""
    hint += "; checkpoint_every makes saving rarer" if event.saving_seconds > much else ""
    return f"took {_format_seconds(event.seconds)} ({apart}){hint}"


def _in_a_notebook() -> bool:
    """Returns whether this process is a Jupyter kernel, and not one that has only imported it."""
    shell = sys.modules.get("IPython")
    return "ipykernel" in sys.modules and shell is not None and shell.get_ipython() is not None


def _format_seconds(seconds: float) -> str:
    """Returns a duration as `m:ss` or `h:mm:ss`, or in seconds below a minute.

    >>> _format_seconds(0.42), _format_seconds(75), _format_seconds(4000)
    ('0.4 s', '1:15', '1:06:40')
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"
