"""Callbacks that end a run before its last round, or keep the round that was the best."""

import math
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxfl.data.clients import FederatedData
from jaxfl.files import keep_copy
from jaxfl.schema import check_type
from jaxfl.simulation import checkpoint
from jaxfl.simulation.directory import CONFIG, PLACE, RunDirectory
from jaxfl.simulation.loggers import OF_GROUPS
from jaxfl.simulation.metrics import counting, is_lower_better, main_metric
from jaxfl.simulation.result import Callback, Event


class _Best:
    """The best value of a metric so far, of each seed, and for how long it has been; None is the task's main one.

    Attributes:
        newest: of each seed, whether the last evaluation is the best one; one of nobody is not.
    """

    def __init__(self, metric: str | None):
        self.metric = metric
        self.forget()

    def forget(self) -> None:
        """Forgets the run that has ended: the same callback may be given to the next one."""
        self.newest: dict[int | None, bool] = {}
        self._best: dict[int | None, float] = {}
        self._waited: dict[int | None, int] = {}

    def begins(self, event: Event) -> bool:
        """Returns whether it is the first evaluation that is told of this seed."""
        return event.seed not in self.newest

    def waited(self, event: Event, until: float = math.inf) -> int:
        """Returns how many evaluations there were since the best one, of nobody not counted.

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
        if value is None:  # nobody was tested: that is no better and no worse
            return
        value = -math.inf if math.isnan(value) else sign * value
        self.newest[event.seed] = better = value > self._best.get(event.seed, -math.inf)
        self._best[event.seed] = max(value, self._best.get(event.seed, -math.inf))
        self._waited[event.seed] = 0 if better else self._waited.get(event.seed, 0) + 1


class EarlyStopping:
    """Ends a run whose metric has not become better for some evaluations.

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
        self.patience, self._best = patience, _Best(metric)

    def __call__(self, event: Event) -> bool:
        """Returns whether to end the run."""
        return self._best.waited(event) >= self.patience

    def __exit__(self, *reason: object) -> None:
        """Forgets the run."""
        self._best.forget()


def check_measured(callbacks: Sequence[Callback], data: FederatedData, *, tuned: bool) -> None:
    """Raises ValueError if a callback waits for a metric that is never known: of rows, groups or models that are not.

    Args:
        callbacks: of the run.
        data: that it runs on.
        tuned: whether models are fine-tuned, too.
    """
    for one in callbacks:
        if isinstance(one, EarlyStopping | BestCheckpoint) and (lacking := _lacking(one._best.metric, data, tuned)):
            raise ValueError(
                f"{type(one).__name__} with metric={one._best.metric!r} needs {lacking}; give it metric='train_loss', "
                "or 'validation_loss' where there are validation rows."
            )


def _lacking(metric: str | None, data: FederatedData, tuned: bool) -> str:
    """Returns what a run lacks for a metric, in words; nothing where it lacks nothing."""
    name = "loss" if metric is None else metric.removeprefix("finetuned_")
    if metric not in (None, name) and not tuned:
        return "models that are fine-tuned, and finetune is None"
    if name.startswith("validation_"):
        return "rows that are set apart (validation=0.1), and there are none" if data.validation is None else ""
    if name in OF_GROUPS:
        return "true groups, and the data name none" if data.group is None else ""
    tested = np.asarray(data.test.size) > 0
    if name.startswith("unseen_"):
        held_out = data.held_out is not None and (tested & np.asarray(data.held_out)).any()
        return "" if held_out else "test rows of clients that are held out, and there are none"
    of_tests = re.match(r"loss$|(micro|macro|std|worst_decile|p\d+)_", name)
    return "test rows, and no client that counts has any" if of_tests and not tested[counting(data)].any() else ""


class TimeLimit:
    """Ends a run after some time; a round that has begun is ended first.

    Args:
        seconds: since the run was begun or resumed, compilation included; of seeds that are made one after another, as
            on a CPU, for each of them.

    Raises:
        ValueError: no time at all.
    """

    def __init__(self, seconds: float):
        check_type("seconds", seconds, float)
        if not seconds > 0:
            raise ValueError(f"seconds must be above 0, got {seconds}.")
        self.seconds = seconds

    def __call__(self, event: Event) -> bool:
        """Returns whether to end the run."""
        return event.seconds >= self.seconds


def _round_in(folder: Path) -> float:
    """Returns the round of the checkpoint that a folder holds; -1 where there is none."""
    saved = checkpoint.newest(folder)
    return -1 if saved is None else saved.header["round"]


class BestCheckpoint:
    """Keeps the round whose metric was the best, in a folder of its own that `jaxfl.load` gives back.

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
        self.folder, self._best = Path(folder), _Best(metric)

    def __call__(self, event: Event) -> None:
        """Keeps the state if it is the best so far."""
        folder = self.folder if event.seed is None else self.folder / f"seed-{event.seed}"
        if event.record is None or event.keep is None or (event.whole and event.earlier):
            return
        # the round of which a checkpoint is there: a run may have been stopped before it was written
        until = _round_in(folder) if self._best.begins(event) else math.inf
        self._best.waited(event, until)
        if not self._best.newest[event.seed]:
            return
        event.keep(folder)
        above = self.folder.parent if event.seed is None else self.folder.parent / f"seed-{event.seed}"
        if (config := RunDirectory(above).config()) is not None:
            shutil.copyfile(above / CONFIG, folder / CONFIG)
            copies = {above / Path(place).name for name, place in config.items() if name.endswith(PLACE)}
            for copy in filter(Path.is_file, copies):  # the user's files that the run depends on
                keep_copy(copy, folder)

    def __exit__(self, *reason: object) -> None:
        """Forgets the run."""
        self._best.forget()
