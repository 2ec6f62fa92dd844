"""Studies of an experiment: made once, kept in `studies/` as JSON and pictures beside the results.

A study has a file for its words and numbers, written last: where it is, the study is not made again. Delete it to make
the study again; pictures of others beside it are not replaced.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

import jaxfl
from experiments.harness.base import Cell, Made, Study
from jaxfl.cli.tables.console import stderr
from jaxfl.data.clients import FederatedData
from jaxfl.files import check_output, signature
from jaxfl.jobs.job import execute
from jaxfl.methods.base import Method
from jaxfl.plots.style import write_picture
from jaxfl.settings import options
from jaxfl.simulation.callbacks import SILENT, ProgressBar
from jaxfl.simulation.records.history import EntryTypes, check_entries, read_json, write_json
from jaxfl.simulation.result import Result

FOLDER = "studies"
FOUND_TYPES: EntryTypes = {"text": (str,), "numbers": (dict,), "table": (list,), "pictures": (dict,)}


def read(folder: Path, study: Study) -> dict[str, Any] | None:
    """Returns what a study found out: `text`, `numbers`, `table`, `pictures` (files by what they show); None if not.

    Raises:
        ValueError: the file is another one, or names a picture elsewhere, which a report would show.
    """
    path = _path(folder, study)
    if (found := read_json(path)) is None:
        return None
    try:
        if missing := [name for name in FOUND_TYPES if name not in found]:
            raise ValueError(f"{missing[0]} is missing")
        check_entries(found, FOUND_TYPES)
        for row in found["table"]:
            if not isinstance(row, dict) or row.keys() != found["table"][0].keys():
                raise ValueError("the rows of its table must have the same names")
        for file in found["pictures"].values():
            picture = path.parent / str(file)
            if str(file) != picture.name or picture.is_symlink() or not picture.is_file():
                raise ValueError(f"{str(file)!r} is no picture beside it")
    except ValueError as error:
        raise ValueError(
            f"{path} must be what a study has found, and is not ({error}); choose another folder, or remove the file "
            "to make the study again."
        ) from error
    return found


def write(folder: Path, study: Study, data_dir: str | None) -> dict[str, Any]:
    """Makes a study and returns what it found out.

    Args:
        folder: of the experiment's results.
        study: of a scale.
        data_dir: folder of the data's files.

    Raises:
        ValueError: as `check_pictures`.
    """
    began, path = time.perf_counter(), _path(folder, study)
    check_pictures(folder, study)
    made: Made = study.make(data_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures = {text: f"{path.stem}-{slug(text)}.png" for text in made.pictures}
    for text, figure in made.pictures.items():
        write_picture(figure, path.parent / pictures[text], dpi=100, command="report")
    found = {
        "label": study.label,
        "text": made.text,
        "numbers": made.numbers,
        "table": made.table,
        "pictures": pictures,
        "seconds": round(time.perf_counter() - began, 1),
        "versions": {"jaxfl": jaxfl.__version__, "jax": jax.__version__},
    }
    write_json(path, found)
    return found


def check_pictures(folder: Path, study: Study) -> None:
    """Checks that the pictures of a study, if there are some, were drawn by an experiment.

    Raises:
        ValueError: one is another; the message names it.
    """
    path = _path(folder, study)
    for picture in sorted(path.parent.glob(f"{path.stem}-*.png")):
        check_output(picture, "out", signature("report"))


def train(cell: Cell, data_dir: str | None) -> tuple[Method, Result]:
    """Runs a cell at its first seed, and returns the method and the result with its state, which tables do not keep."""
    job = cell.job(cell.seeds[0])
    data = load(cell, data_dir)
    with ProgressBar(label=f"{cell.label}:") as bar:
        result = execute(job, data, [bar])
    return options.build(job.settings, data), result


@contextlib.contextmanager
def counting(label: str, rounds: int) -> Iterator[Callable[[int], None]]:
    """Shows how far a study's own rounds are, on the standard error stream: `with counting(...) as count: count(1)`.

    A bar in a terminal, elsewhere a line a minute.
    """
    from rich import progress

    console, told = stderr(), time.monotonic()
    if not console.is_terminal:

        def count(done: int) -> None:
            nonlocal told
            if time.monotonic() - told >= SILENT:
                told = time.monotonic()
                console.print(f"{label} round {done}/{rounds}", soft_wrap=True, markup=False)

        yield count
        return
    columns = (
        progress.TextColumn("{task.description} round {task.completed:.0f}/{task.total:.0f}"),
        progress.BarColumn(),
    )
    with progress.Progress(*columns, progress.TimeRemainingColumn(), console=console) as bar:
        shown = bar.add_task(label, total=rounds)
        yield lambda done: bar.update(shown, completed=done)


def load(cell: Cell, data_dir: str | None) -> FederatedData:
    """Returns the federation of a cell at its first seed."""
    return options.load(cell.job(cell.seeds[0]).settings, data_dir=data_dir, seed=cell.seeds[0])


def method(cell: Cell, data: FederatedData, **changed: Any) -> Method:
    """Returns the method of a cell, some of its options changed."""
    return options.build(options.route(cell.method, cell.data, cell.items, **changed), data)


def slug(text: str) -> str:
    """Returns a name for a file.

    >>> slug("Figure 4 / PCA of 400 clients")
    'figure-4-pca-of-400-clients'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _path(folder: Path, study: Study) -> Path:
    return folder / FOLDER / f"{slug(study.label)}.json"
