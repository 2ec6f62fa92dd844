"""Loggers: callbacks that write the metrics of each evaluation to TensorBoard, Weights & Biases, MLflow or a table.

Of these services an error before the run ends it; one during the run is a warning, and the run goes on without the log.
"""

import contextlib
import functools
import importlib
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jaxfl.files import user_path, write_text
from jaxfl.host.text import csv_cell
from jaxfl.simulation.result import Callback, Event

GROUP_METRICS = ("ari", "nmi", "purity")  # of data without true groups they are never known
LONGEST_LINE = 1 << 20  # bytes of the names of a table's columns
MODULES = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow"}  # by the extra that installs it


def csv(path: str | os.PathLike) -> Callback:
    """Returns a callback that appends a row of metrics to a CSV file after each evaluation.

    The columns are those of the first evaluation. Of a file that is there the columns count, and rows are added to it.
    Rows of evaluations that a resumed run makes again, since it was stopped before their checkpoint, are removed; those
    that it was killed before writing are added. A row is replaced where all rows are tested in the end (`Event.again`).

    Args:
        path: of the file.

    Raises:
        ValueError: the file's folder is not there, or the file is another table.
    """
    file = user_path(path)
    if not file.parent.is_dir():
        raise ValueError(f"path must be in a folder that is there, got {str(path)!r}; make it first.")
    if file.exists():
        _check_table(file)
    return _TableLogger(file)


def _check_table(file: Path) -> None:
    """Checks, before a run is begun, that a file that is there is empty, or a table of a run.

    Raises:
        ValueError: it is another one, or no file, such as a device, whose lines may have no end.
    """
    head = b""
    if file.is_file():
        with file.open("rb") as table:
            head = table.readline(LONGEST_LINE)
    if not file.is_file() or (head and b"round" not in head.strip().split(b",")):
        raise ValueError(
            f"{file} must be a table of a run, with a column round and a metric, or new; choose another name."
        )


class _TableLogger:
    """A callback that appends the metrics of each evaluation to a CSV file."""

    def __init__(self, file: Path):
        self._file, self._written = file, dict[int | None, str]()  # the last row of each seed

    def __call__(self, event: Event) -> None:
        """Writes a row, if the event has a new evaluation.

        Raises:
            OSError: the file cannot be written; the message names it.
        """
        if event.record is None:
            return
        try:
            self._write(event, event.record)
        except OSError as error:
            raise OSError(
                f"{self._file} cannot be written to ({error.strerror or error}); set it right and resume, or leave the "
                "table out."
            ) from error

    def _write(self, event: Event, record: dict[str, Any]) -> None:
        """Writes the row of a record."""
        file, written = self._file, self._written
        known = scalars(event)  # and metrics that may have a value later
        later = [name for name, value in record.items() if value is None and name not in GROUP_METRICS]
        values = [name for name in record if name in known or name in later]
        head = ["round", *([] if event.seed is None else ["seed"]), *values]
        with file.open("a+", encoding="utf-8") as table:
            table.seek(0)
            names = (table.readline() or ",".join(head)).strip().split(",")
            if "round" not in names or not {*names} & {*values}:
                raise ValueError(
                    f"{file} must be a table of a run, with a column round and a metric, or new; choose another name."
                )
            if not table.tell():
                if wrong := [name for name in head if csv_cell(name) != name or set(name) & set(',"\r\n')]:
                    raise ValueError(
                        f"{file} must have columns with names that are one cell and no formula, got {wrong[0]!r}; "
                        "rename what the method says of a round, or leave the table out."
                    )
                table.write(",".join(names) + "\n")
        if event.earlier and event.seed not in written:
            before = [event._replace(record=one, round=one["round"]) for one in event.earlier]
            _extend_table(file, [_table_row(one, names) for one in before], names)
        row, last = _table_row(event, names), written.get(event.seed)
        if event.again and last is not None:
            write_text(file, file.read_text(encoding="utf-8").replace(f"\n{last}", f"\n{row}"))
        else:
            with file.open("rb") as table:
                table.seek(-1, os.SEEK_END)
                whole = table.read() == b"\n"  # the last row of another program may have no line end
            with file.open("a", encoding="utf-8") as table:
                table.write(row if whole else f"\n{row}")
        written[event.seed] = row

    def __exit__(self, *reason: object) -> None:
        """Clears the values of the run: the same callback may be given to a resumed run."""
        self._written.clear()


def _table_row(event: Event, names: list[str]) -> str:
    """Returns the row of an evaluation in a table with these columns."""
    row = {"round": event.round, "seed": event.seed, **scalars(event)}
    return ",".join("" if row.get(name) is None else str(row[name]) for name in names) + "\n"


def _extend_table(file: Path, earlier: list[str], names: list[str]) -> None:
    """Appends the rows of a resumed run that are missing: a killed process may not have written the last ones."""
    _remove_later_rows(file, earlier[-1], names)
    rows = file.read_text(encoding="utf-8").splitlines(keepends=True)
    known = [_finite_cells(row) for row in rows]
    there = [place for place, row in enumerate(earlier) if _finite_cells(row) in known]
    if lacking := earlier[max(there, default=-1) + 1 :]:
        whole = rows if rows[-1].endswith("\n") else rows[:-1]  # a crash may have cut the last one short
        write_text(file, "".join([*whole, *lacking]))


def _remove_later_rows(file: Path, last: str, names: list[str]) -> None:
    """Removes a run's rows after a given one if all are of later rounds; rows of other seeds stay."""
    rows = file.read_text(encoding="utf-8").splitlines(keepends=True)
    known = [_finite_cells(row) for row in rows]
    if _finite_cells(last) not in known:
        return

    def of(row: str, name: str) -> str | None:
        return dict(zip(names, row.strip().split(","), strict=False)).get(name)

    place, seed = len(rows) - known[::-1].index(_finite_cells(last)), of(last, "seed")
    behind = [row for row in rows[place:] if row.endswith("\n")]  # a crash may cut a row short
    others = [row for row in behind if of(row, "seed") != seed]
    rounds = [int(of(row, "round") or 0) for row in behind if of(row, "seed") == seed]
    if all(round > int(of(last, "round") or 0) for round in rounds):
        write_text(file, "".join([*rows[:place], *others]))


def _finite_cells(row: str) -> list[str]:
    """Returns the cells of a row, empty for numbers that are not finite, as in the history of a resumed run."""
    return ["" if number in ("nan", "inf", "-inf") else number for number in row.strip().split(",")]


class Logger:
    """A callback with an action at the end of its run, however it ends: `jaxfl.run` exits it as a context manager.

    Where a run has several seeds, the names of a seed's numbers begin with `seed-S/`.

    Args:
        log: writes numbers by their names, those of an event.
        end: called at the end of the run with whether it has failed.
    """

    def __init__(self, log: Callable[[dict[str, float], Event], object], end: Callable[[bool], object]):
        self._log, self._end, self._whole = log, end, False

    def __call__(self, event: Event) -> None:
        """Logs the metrics of a new evaluation, if the event has one."""
        if values := scalars(event):
            first = "" if event.seed is None else f"seed-{event.seed}/"
            self._log({f"{first}{name}": value for name, value in values.items()}, event)
        self._whole |= event.round >= event.rounds

    def __exit__(self, kind: type[BaseException] | None, *reason: object) -> None:
        """Closes the log; it is marked as failed if the run was stopped or has diverged."""
        self._end(kind is not None and not self._whole)  # of several seeds one may have come to its end


def tensorboard(directory: str) -> Logger:
    """Returns a callback that writes each evaluation's numbers for TensorBoard.

    Args:
        directory: the log directory.

    Raises:
        ImportError: the extra is not installed.
        ConnectionError: the log cannot be opened.
    """
    module = _import_logger("tensorboard")
    with _opening("tensorboard"):
        writer = module.SummaryWriter(str(user_path(directory)))

    def log(values: dict[str, float], event: Event) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, event.round)
        writer.flush()

    return _service_logger("tensorboard", log, lambda failed: writer.close())


def wandb(**options: Any) -> Logger:
    """Returns a callback that writes each evaluation's numbers to Weights & Biases.

    Args:
        **options: of `wandb.init`, e.g. `project="federations"`.

    Raises:
        ImportError: the extra is not installed.
        ConnectionError: the log cannot be opened, such as without a login.
    """
    module = _import_logger("wandb")
    with _opening("wandb"):
        run = module.init(**options)

    def log(values: dict[str, float], event: Event) -> None:
        if event.seed is None:
            run.log(values, step=event.round)
            return
        own = f"seed-{event.seed}"  # its rounds are an axis of its own: a step of the service must never fall
        run.define_metric(f"{own}/*", step_metric=f"{own}/round")
        run.log({f"{own}/round": event.round, **values})

    return _service_logger("wandb", log, lambda failed: run.finish(exit_code=int(failed)))


def mlflow(**options: Any) -> Logger:
    """Returns a callback that writes each evaluation's numbers to MLflow, into the active run or a new one.

    Args:
        **options: of `mlflow.start_run`, e.g. `run_name="first"`; used if no run is active.

    Raises:
        ImportError: the extra is not installed.
        ConnectionError: the log cannot be opened.
    """
    client = _import_logger("mlflow")
    with _opening("mlflow"):
        active = client.active_run()
        run = (client.start_run(**options) if active is None else active).info.run_id
        if active is None:
            client.end_run("RUNNING")  # it goes on, but is not the active one: each of several seeds has its own

    def end(failed: bool) -> None:
        if active is None:
            client.MlflowClient().set_terminated(run, "FAILED" if failed else "FINISHED")

    def log(values: dict[str, float], event: Event) -> None:
        client.log_metrics(values, step=event.round, run_id=run)

    return _service_logger("mlflow", log, end)


@contextlib.contextmanager
def _opening(name: str) -> Iterator[None]:
    """Raises ConnectionError in place of a service's own errors, which are of many types."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise ConnectionError(
            f"the {name} log cannot be opened ({_one_line(error)}); set it right, or leave --log {name} out."
        ) from error


def _service_logger(
    name: str, log: Callable[[dict[str, float], Event], object], end: Callable[[bool], object]
) -> Logger:
    """Returns the logger of a service, whose first error is a warning and ends the log; arguments as of `Logger`."""
    lost = False

    def attempt(act: Callable[..., object], *arguments: Any) -> None:
        nonlocal lost
        try:
            if not lost or act is end:
                act(*arguments)
        except (Exception, SystemExit) as error:
            if not lost:
                warnings.warn(
                    f"the {name} log is not complete ({_one_line(error)}); the run goes on without it.", stacklevel=3
                )
            lost = True

    return Logger(functools.partial(attempt, log), functools.partial(attempt, end))


def _one_line(error: BaseException) -> str:
    """Returns an error's type and the first line of its message."""
    return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])


def scalars(event: Event) -> dict[str, float]:
    """Returns the metrics of an event's new evaluation; nothing without one.

    >>> scalars(Event(1, 2, 4, 0.5, 0.1, {"round": 1, "micro_accuracy": 0.5, "ari": None, "clusters": []}))
    {'micro_accuracy': 0.5}
    """
    record = event.record or {}
    return {
        name: float(value)
        for name, value in record.items()
        if name != "round" and isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def check_installed(name: str) -> None:
    """Raises ImportError if a logger is not installed."""
    if name in MODULES:
        _import_logger(name)


def _import_logger(name: str) -> Any:
    """Returns the module of a logger; the error says how to install it."""
    module = MODULES[name]
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:  # an installed one may fail in any way
        missing = isinstance(error, ModuleNotFoundError) and error.name == module
        why = "" if missing else f", whose import fails ({_one_line(error)})"
        raise ImportError(f"the {name} callback needs {module}{why}: pip install 'jaxfl[{name}]'.") from error
