"""Self-contained HTML page of a run: command, results, pictures and a table of the clients."""

import shlex
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import jaxfl
from jaxfl import plots
from jaxfl.cli import page, tables
from jaxfl.data.drift import given_rounds
from jaxfl.files import is_missing, write_text
from jaxfl.jobs import job as jobs
from jaxfl.plots import style
from jaxfl.settings.options import OWNERS
from jaxfl.simulation import processes
from jaxfl.simulation.records.directory import RunDirectory
from jaxfl.simulation.result import Result
from jaxfl.simulation.schedule import Schedule
from jaxfl.tasks.metrics import ACCURACY

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "index.html"
FILES = (PAGE, "alluvial.png", "confusion.png", "personalisation.png", "classes.png", "similarity.png")
MAX_LISTED = 10_000  # clients in the table; of more, the first
MAX_COMPARED = 200  # clients whose data are compared; of more, a random sample


def write_run_page(result: Result, job: jobs.Job) -> None:
    """Writes the page of a run into its folder, and the pictures that are missing there.

    Args:
        result: of the run, its summary completed by `jaxfl.jobs.job.execute`.
        job: with a folder.

    Raises:
        OSError: a file cannot be written; the message says what is saved.
    """
    if job.out is None or not processes.first():
        return
    with RunDirectory(job.out, "out").name_disk_errors("all but the page is kept"):
        summary = result.summary
        metrics = {name: value for name, value in result.evaluation.metrics.items() if name != "clusters"}
        title = f"{summary['method']} on {summary['data']}"
        head, cells = tables.result_row(summary)
        blocks: list[page.PageBlock] = [
            page.Heading(1, title),
            page.Text(_run_sentence(summary)),
            page.Table(["command"], [[page.Code(command_line(job, summary["rounds"]))]]),
            page.Heading(2, "Results"),
            page.Table(head, [cells]),
            *(page.Text(line) for line in (*tables.privacy_lines([summary]), *tables.shortfall_lines([summary]))),
            page.Heading(2, "Pictures"),
            *_run_pictures(result, job.out),
            page.Heading(2, "Clients"),
            *_client_blocks(result),
            page.Heading(2, "All metrics"),
            page.Table(["metric", "value"], [[name, format_cell(value)] for name, value in metrics.items()]),
            page.Heading(2, "Options"),
            page.Table(["option", "value"], [[name, str(value)] for name, value in summary["options"].items()]),
        ]
        write_text(job.out / PAGE, page.html(title, blocks, job.out, "run"))


def lacks_pictures(folder: Path) -> bool:
    """Returns whether fewer pictures are beside the page of a run than are in it; a page that is not there has none."""
    shown = 0 if is_missing(folder / PAGE) else page.count_pictures((folder / PAGE).read_text(encoding="utf-8"))
    names = [name for name in (*jobs.PICTURES, *FILES) if name != PAGE]
    return shown > sum(not is_missing(folder / name) for name in names)


def command_line(job: jobs.Job, rounds: int) -> str:
    """Returns the command line that repeats a run, without its folder.

    Args:
        job: of the run.
        rounds: that were completed; a run may end before its last.
    """
    settings, server = job.settings_in_use(), job.settings.server_name
    if rounds <= max(given_rounds(settings.data), default=0):  # ended before the drift, which a run must reach
        rounds = job.rounds
    words = ["jaxfl", "run", settings.method_name, "--data", settings.data_name]
    words += [] if job.data_dir is None else ["--data-dir", str(job.data_dir)]
    words += ["--rounds", str(rounds), "--cohort", str(job.cohort), "--seed", str(job.seed)]
    every = job.eval_every or (None if rounds == job.rounds else Schedule.of(job.rounds).eval_every)
    words += [] if every is None else ["--eval-every", str(every)]
    chosen = {"model": settings.model_name, "optimizer": settings.optimizer_name}
    chosen |= {} if server is None else {"server_optimizer": server}
    for owner in OWNERS:
        chosen |= {f"{owner}.{name}": value for name, value in getattr(settings, owner).items()}
    return shlex.join([*words, *(word for name, value in chosen.items() for word in ("--set", f"{name}={value}"))])


def _run_pictures(result: Result, folder: Path) -> list[page.Picture]:
    """Draws the pictures that apply to a run; returns these and the two that every run has."""
    pictures = [
        page.Picture("convergence.png", "metrics, loss and clusters by round", jobs.DPI),
        page.Picture("clusters.png", "clients by true group, in the colour of their cluster", jobs.DPI),
    ]

    def add(draw: Callable[[Result], "Figure"], name: str, text: str) -> None:
        style.write_picture(draw(result), folder / name, dpi=jobs.DPI, command="run")
        pictures.append(page.Picture(name, text, jobs.DPI))

    history, evaluation = result.history.clusters, result.evaluation
    if history is not None and len(np.unique(history)) > 1 and len(history) > 1:
        add(plots.alluvial, "alluvial.png", "clients that move between clusters")
    if result.data.group is not None and len(np.unique(evaluation.cluster)) > 1:
        add(plots.confusion, "confusion.png", "clusters against true groups")
    if evaluation.finetuned is not None and np.isfinite(evaluation.finetuned.values[evaluation.main]).any():
        add(plots.personalisation, "personalisation.png", "each client before and after fine-tuning")
    tested = evaluation.metrics[f"micro_{evaluation.main}"] is not None
    if result.method is not None and result.method.task.metrics is ACCURACY and tested:
        matrices = jaxfl.class_confusion(result)
        add(lambda result: plots.class_confusion(matrices, result), "classes.png", "confusion of classes, by cluster")
    if (np.asarray(result.data.train.size) > 0).sum() > 1 and len(np.unique(evaluation.cluster)) > 1:
        matrix = jaxfl.client_similarity(result, clients=MAX_COMPARED)
        add(lambda result: plots.similarity(matrix, result), "similarity.png", "similarity of clients, by cluster")
    return pictures


def _run_sentence(summary: dict[str, Any]) -> str:
    """Returns a sentence with the size, the seed, the device and the versions of a run."""
    versions = ", ".join(f"{name} {version}" for name, version in summary["versions"].items())
    return (
        f"{style.count_phrase(summary['num_clients'], 'client')}, {summary['rounds']} rounds of {summary['cohort']}, "
        f"seed {summary['seed']}; {summary['device']}, jaxfl {jaxfl.__version__}, {versions}; "
        f"{datetime.now().isoformat(sep=' ', timespec='minutes')}."
    )


def _client_blocks(result: Result) -> list[page.PageBlock]:
    """Returns the table of the clients, with a sentence above it."""
    frame = result.clients()
    note = "Clusters have the same numbers as in the pictures. A click on a column's name sorts the table."
    note += f" The first {MAX_LISTED:,} of {len(frame):,} clients." if len(frame) > MAX_LISTED else ""
    rows = [[format_cell(value) for value in row] for row in frame.head(MAX_LISTED).itertuples(index=False)]
    return [page.Text(note), page.Table(list(frame.columns), rows, sorted=True)]


def format_cell(value: Any) -> str:
    """Returns a value as the text of a cell; empty for None and NaN.

    >>> format_cell(0.123456), format_cell(float("nan")), format_cell(3), format_cell("90°")
    ('0.1235', '', '3', '90°')
    """
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        return ""
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)
