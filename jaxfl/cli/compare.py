"""`jaxfl compare`: finished runs side by side, as a printed table, files, a picture and a page."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import jaxfl
from jaxfl.analysis import finished
from jaxfl.analysis.comparison import Comparison, compare
from jaxfl.analysis.finished import FinishedRun
from jaxfl.cli import page
from jaxfl.cli.run_page import PAGE, command_line, format_cell
from jaxfl.cli.tables.console import print_table, stderr, stdout
from jaxfl.files import check_output, signature, write_text
from jaxfl.jobs.job import DPI
from jaxfl.jobs.loaded import written_job
from jaxfl.plots import style
from jaxfl.plots.curves import curves

COMMAND = "compare"  # in what is written
CURVE_METRICS = ("loss", "num_clusters", "ari")  # drawn beside the compared metric, where all runs have them
TABLE_NOTE = (
    "Mean and standard deviation over the seeds; the best mean is bold. Differences are from the first row, of runs of "
    "the same seed, which have the same clients, initial models and cohorts; p is of the paired t-test. A click on the "
    "name of a column sorts the table."
)
RunsBySetting = Mapping[str, Sequence[FinishedRun]]


def write_page(settings: RunsBySetting, found: Comparison, unfinished: Sequence[Path], path: Path) -> None:
    """Writes the page of a comparison.

    Args:
        settings: runs by setting, from `jaxfl.analysis.finished.read_runs`.
        found: the comparison of the settings.
        unfinished: folders that are left out.
        path: of the page.
    """
    runs = [run for line in settings.values() for run in line]
    federations = dict.fromkeys(run.summary["data"] for run in runs)
    title = f"{style.count_phrase(len(found.lines), 'setting')} on {', '.join(federations)}"
    header, *rows = found.table(bold=page.Bold.MARKED)
    blocks: list[page.PageBlock] = [
        page.Heading(1, title),
        page.Text(_runs_sentence(runs)),
        page.Heading(2, "Results"),
        page.Text(TABLE_NOTE),
        page.Table(header, [[page.Bold.of(cell) for cell in row] for row in rows], sorted=True),
    ]
    if unfinished:
        blocks.append(page.Text(f"Left out because they are not finished: {', '.join(map(str, unfinished))}."))
    with TemporaryDirectory() as folder:
        pictures = _curve_pictures(found, runs, Path(folder))
        blocks += [page.Heading(2, "Curves"), *pictures]
        blocks += [
            page.Heading(2, "Runs"),
            _runs_table(settings, [found.metric, *found.measures(), "rounds"], path.parent),
        ]
        if commands := _command_rows(settings):
            blocks += [page.Heading(2, "Commands"), page.Table(["setting", "command of its first run"], commands)]
        write_text(path, page.html(title, blocks, Path(folder), COMMAND))


def _runs_sentence(runs: Sequence[FinishedRun]) -> str:
    """Returns a sentence with the number of runs, the devices and the versions."""
    devices = dict.fromkeys(str(run.summary.get("device", "")) for run in runs)
    versions = dict.fromkeys(
        f"{name} {version}" for run in runs for name, version in run.summary.get("versions", {}).items()
    )
    made = datetime.now().isoformat(sep=" ", timespec="minutes")
    software = ", ".join([*devices, f"jaxfl {jaxfl.__version__}", *versions])
    return f"{style.count_phrase(len(runs), 'run')}; {software}; {made}."


def _curve_pictures(found: Comparison, runs: Sequence[FinishedRun], folder: Path) -> list[page.Picture]:
    """Draws the curves of the metrics that all runs have, into a folder; returns the pictures."""
    pictures = []
    for metric in dict.fromkeys((found.metric, *CURVE_METRICS)):
        if all(any(record.get(metric) is not None for record in run.history) for run in runs):
            shown = found if metric == found.metric else found._replace(metric=metric, target=None)
            curves(shown).savefig(folder / f"{metric}.png", dpi=DPI)
            text = f"{metric.replace('_', ' ')} by round: mean of the seeds, and one standard deviation"
            pictures.append(page.Picture(f"{metric}.png", text, DPI))
    return pictures


def _runs_table(settings: RunsBySetting, columns: Sequence[str], folder: Path) -> page.Table:
    """Returns the table of the runs, with the entries of the summaries that some run has.

    Args:
        settings: the runs.
        columns: the entries.
        folder: of the page; links to the pages of runs are relative to it.
    """
    runs = [(name, run) for name, line in settings.items() for run in line]
    known = [name for name in dict.fromkeys(columns) if any(run.summary.get(name) is not None for _, run in runs)]
    rows = [
        [
            name,
            str(run.seed),
            *(format_cell(run.summary.get(column)) for column in known),
            _folder_cell(run.path, folder),
        ]
        for name, run in runs
    ]
    return page.Table(["setting", "seed", *(name.replace("_", " ") for name in known), "folder"], rows, sorted=True)


def _folder_cell(run: Path, folder: Path) -> str:
    """Returns the folder of a run, as a link to the page of the run if there is one."""
    if not (run / PAGE).exists():
        return str(run)
    return page.Link.to(quote(Path(os.path.relpath(run / PAGE, folder)).as_posix()), str(run))


def _command_rows(settings: RunsBySetting) -> list[list[str]]:
    """Returns name and command of each setting, without those whose options this version does not have."""
    rows = []
    for name, line in settings.items():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            rows.append([name, page.Code(command_line(written_job(line[0].config), line[0].summary["rounds"]))])
    return rows


PICTURE_SUFFIXES = (".png", ".pdf", ".svg")  # endings of their files
CSV_START = "setting,seeds,"  # of the names of its columns
HEADS = {"markdown": f"<!-- {signature(COMMAND)} -->\n\n", "latex": f"% {signature(COMMAND)}\n", "csv": ""}


def compare_runs(
    folders: Sequence[Path],
    metric: str | None,
    target: float | None,
    files: Mapping[str, Path | None],
    plot: Path | None,
    html: Path | None = None,
    labels: Sequence[str] = (),
    columns: str | None = None,
) -> None:
    """Prints the table of some runs, and writes it, a picture and a page.

    Args:
        folders: of the runs, or above them.
        metric: what is compared; None is the main metric of the task.
        target: as `jaxfl.analysis.comparison.compare` takes it.
        files: the table's, by format: `"markdown"`, `"latex"` and `"csv"`; None writes none.
        plot: the picture's, or None.
        html: the page's, or None.
        labels: `ROW=TEXT`, as `row_labels` takes them.
        columns: of the table, `NAME,NAME,...`; None shows all.

    Raises:
        ValueError: a file cannot be written, is another one, or is of two of them; or as
            `jaxfl.analysis.finished.read_runs`, `compare` and `row_labels`.
    """
    asked: dict[Path, str] = {}
    for option, path in {**files, "plot": plot, "html": html}.items():
        if path is None:
            continue
        check_output(path, f"--{option}", CSV_START if option == "csv" else signature(COMMAND))
        if (other := asked.setdefault(path.resolve(), option)) != option:
            raise ValueError(f"--{option} must be another file than --{other}, got {str(path)!r}; rename one of them.")
    if plot is not None and plot.suffix.lower() not in PICTURE_SUFFIXES:
        raise ValueError(
            f"--plot must end with {', '.join(PICTURE_SUFFIXES)}, got {str(plot)!r}; write --plot curves.png."
        )
    found = print_comparison(folders, metric, target, html, labels, columns)
    texts = {"markdown": found.to_markdown, "latex": found.to_latex, "csv": found.to_csv}
    for form, path in files.items():
        if path is not None:
            write_text(path, HEADS[form] + texts[form]())
    if plot is not None:
        style.write_picture(curves(found), plot, dpi=150, command=COMMAND)
    if written := [str(path) for path in (*files.values(), plot, html) if path is not None]:
        print(f"written: {', '.join(written)}")


def print_comparison(
    folders: Sequence[Path],
    metric: str | None = None,
    target: float | None = None,
    html: Path | None = None,
    labels: Sequence[str] = (),
    columns: str | None = None,
) -> Comparison:
    """Prints the table of the finished runs in some folders, writes a page of them if asked, returns the comparison."""
    settings, unfinished = finished.read_runs(folders)
    settings = dict(zip(row_labels(list(settings), labels), settings.values(), strict=True))
    shown = None if columns is None else [name.strip().lower() for name in columns.split(",") if name.strip()]
    found = compare(settings, metric=metric, target=target, columns=shown)
    header, *rows = found.table()
    print_table(stdout(), header, rows, named=True)
    if html is not None:
        write_page(settings, found, unfinished, html)
    if unfinished:
        left_out = ", ".join(map(str, unfinished))
        stderr().print(f"note: left out because they are not finished: {left_out}.", markup=False, soft_wrap=True)
    return found


def row_labels(rows: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Returns what some rows are called.

    Args:
        rows: their names: the method, and what tells it from the others.
        labels: `ROW=TEXT`: of one row, or `METHOD=TEXT` of a method in all its rows. A row's own wins.

    Raises:
        ValueError: a label is of no row or method, or empty, or two rows would be called the same.

    >>> row_labels(["fedavg", "ifca num_clusters=2", "ifca num_clusters=4"], ["ifca=IFCA", "ifca num_clusters=4=Best"])
    ['fedavg', 'IFCA num_clusters=2', 'Best']
    """
    methods = {row: row.partition(" ")[0] for row in rows}
    known = sorted({*methods, *methods.values()}, key=len, reverse=True)  # a row's name may begin with another's
    texts: dict[str, str] = {}
    for label in labels:
        name = next((name for name in known if label.startswith(f"{name}=")), None)
        if name is None or not (text := label.removeprefix(f"{name}=").strip()):
            ways = ", ".join(map(repr, rows))
            raise ValueError(f"--label must be ROW=TEXT, got {label!r}; ROW is one of {ways}, or one's method alone.")
        texts[name] = text
    called = [texts.get(row, texts.get(method, method) + row.removeprefix(method)) for row, method in methods.items()]
    if twice := {name for name in called if called.count(name) > 1}:
        raise ValueError(f"--label must give rows different names, got {sorted(twice)[0]!r} twice; label each row.")
    return called
