"""What looks on while a run goes: a progress bar, loggers of the metrics, and what ends a run or keeps its best round.

A callback is called with an `Event`; one that returns True ends the run, which is evaluated and saved there.

>>> import io, jaxfl, optax
>>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
>>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
>>> method = jaxfl.methods.fedavg(task, optax.sgd(0.1))
>>> with ProgressBar(file=io.StringIO()) as bar:
...     result = jaxfl.run(method, data, rounds=2, cohort=0.5, callbacks=[bar])
"""

import collections
import importlib
import math
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from jaxfl.simulation.loggers import csv as csv
from jaxfl.simulation.loggers import mlflow as mlflow
from jaxfl.simulation.loggers import scalars as scalars
from jaxfl.simulation.loggers import tensorboard as tensorboard
from jaxfl.simulation.loggers import wandb as wandb
from jaxfl.simulation.metrics import main_metric
from jaxfl.simulation.result import Event
from jaxfl.simulation.stopping import BestCheckpoint as BestCheckpoint
from jaxfl.simulation.stopping import EarlyStopping as EarlyStopping
from jaxfl.simulation.stopping import TimeLimit as TimeLimit

LONG = 60  # seconds after which a run's last line says how evaluations and checkpoints could take less of them
SILENT = 60  # seconds without a line after which there is one, evaluation or not


class ProgressBar:
    """Shows round, training loss, main metric and number of clusters of the last evaluation, speed and time left.

    At the end it tells the time of the whole run, and what of it went into compiling and evaluating.

    A bar in a terminal, one updated line in a notebook, and everywhere else, such as in the log of a job, a plain line
    per evaluation and one a minute in between. Use it as a context manager to see something while the run compiles;
    alone, it starts with the first event. It closes itself when the last round is done, and starts anew with an event
    of another seed or run.

    Args:
        file: where to; None is the standard error stream.
        label: shown in front.
    """

    def __init__(self, file: TextIO | None = None, label: str = ""):
        self.file, self.label = file or sys.stderr, label
        self.records: dict[int | None, dict[str, Any]] = {}  # the last of each seed
        self.diverged: dict[int | None, int] = {}
        self._show: Callable[[Event], None] | None = None
        self._close: Callable[[], None] = lambda: None

    def __enter__(self) -> "ProgressBar":
        """Starts it; until the first event it says that the run compiles."""
        self._open()
        return self

    def __exit__(self, *reason: object) -> None:
        """Takes it off the screen's care, and forgets the run."""
        self._end()
        self.records.clear()
        self.diverged.clear()

    def __call__(self, event: Event) -> None:
        """Shows an event."""
        show = self._show or self._open()
        if event.record is not None:
            self.records[event.seed] = event.record
            more = 0 if event.again else event.record.get("diverged", 0)
            self.diverged[event.seed] = self.diverged.get(event.seed, 0) + more
        show(event)
        if event.round >= event.rounds:
            self._end()

    def _end(self) -> None:
        self._close()
        self._show, self._close = None, lambda: None

    def _open(self) -> Callable[[Event], None]:
        if self.file is sys.stderr and _in_a_notebook():
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
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=24),
            progress.TextColumn("{task.fields[text]}"),
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
        told = collections.defaultdict[int | None, float](lambda: began)  # when the last line was written, by seed

        def show(event: Event) -> None:
            now = time.monotonic()
            over = event.round >= event.rounds  # told twice where a callback has ended it: with all times
            if event.record is not None or over or now - told[event.seed] >= SILENT:
                told[event.seed] = now
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
        told = "no test rows" if record else ""
        parts = [
            f"loss {event.train_loss:{'.3f' if event.train_loss < 1e6 else '.3g'}}",
            f"{main} {measured:{form}}" if measured is not None else told,
            # of all clients, as evaluation assigns them; a round may see a few of them
            f"clusters {record.get('num_clusters', event.num_clusters)}",
            f"{diverged} diverged" if diverged else "",
            f"{1 / max(event.seconds_per_round, 1e-9):.3g} rounds/s",
            f"ETA {_clock(event.seconds_left)}" if event.round < event.rounds else _took(event),
        ]
        return "  ".join(part for part in parts if part)


def _took(event: Event) -> str:
    """Returns how long a run took, and what of it was no training.

    >>> _took(Event(2, 2, 1, 0.5, 1.0, None, seconds=47.8, compile_seconds=20.0, evaluation_seconds=24.0))
    'took 48 s (compile 20 s, evaluation 24 s)'
    >>> _took(Event(2, 2, 1, 0.5, 1.0, None, seconds=90.0, compile_seconds=5.0, evaluation_seconds=60.0))
    'took 1:30 (compile 5.0 s, evaluation 1:00); eval_every and test_rows make evaluation shorter'
    >>> _took(Event(2, 2, 1, 0.5, 1.0, None, seconds=287.0, compile_seconds=23.0, saving_seconds=179.0))
    'took 4:47 (compile 23 s, evaluation 0.0 s, saving 2:59); checkpoint_every makes saving rarer'
    """
    apart = f"compile {_clock(event.compile_seconds)}, evaluation {_clock(event.evaluation_seconds)}"
    if event.saving_seconds > max(1.0, event.seconds / 20):
        apart += f", saving {_clock(event.saving_seconds)}"
    much = event.seconds / 4 if event.seconds > LONG else math.inf
    hint = "; eval_every and test_rows make evaluation shorter" if event.evaluation_seconds > much else ""
    hint += "; checkpoint_every makes saving rarer" if event.saving_seconds > much else ""
    return f"took {_clock(event.seconds)} ({apart}){hint}"


def _in_a_notebook() -> bool:
    """Returns whether a Jupyter kernel runs this; one that was imported, to start others, does not."""
    shell = sys.modules.get("IPython")
    return "ipykernel" in sys.modules and shell is not None and shell.get_ipython() is not None


def _clock(seconds: float) -> str:
    """Returns `m:ss`, or `h:mm:ss`, or what is less than a minute in seconds.

    >>> _clock(0.42), _clock(75), _clock(4000)
    ('0.4 s', '1:15', '1:06:40')
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"
