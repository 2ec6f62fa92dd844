"""One page of several runs, which needs nothing beside it: the table, curves, the runs one by one, their commands."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import jaxfl
from jaxfl.analysis.comparison import Comparison
from jaxfl.analysis.kept import Kept
from jaxfl.cli import page
from jaxfl.cli.run_page import PAGE, command, word
from jaxfl.files import write_text
from jaxfl.jobs.job import DPI
from jaxfl.jobs.kept import KeptRun
from jaxfl.plots import style
from jaxfl.plots.curves import curves

DRAWN = ("loss", "num_clusters", "ari")  # beside the metric that is compared, where all runs have them
TOLD = (
    "Mean and standard deviation over the seeds; the best mean is bold. Differences are from the first row, of runs of "
    "the same seed, which have the same clients, initial models and cohorts; p is of the paired t-test. The name of a "
    "column sorts."
)
Settings = Mapping[str, Sequence[Kept]]


def write(settings: Settings, found: Comparison, unfinished: Sequence[Path], path: Path) -> None:
    """Writes the page.

    Args:
        settings: as `jaxfl.analysis.kept.read` has found them.
        found: the comparison of these.
        unfinished: folders that were left out.
        path: of the page.
    """
    runs = [run for line in settings.values() for run in line]
    federations = dict.fromkeys(run.summary["data"] for run in runs)
    title = f"{style.count(len(found.lines), 'setting')} on {', '.join(federations)}"
    header, *rows = found.table(bold=page.Bold.MARKED)
    blocks: list[page.Block] = [
        page.Heading(1, title),
        page.Text(_made(runs)),
        page.Heading(2, "Results"),
        page.Text(TOLD),
        page.Table(header, [[page.Bold.of(cell) for cell in row] for row in rows], sorted=True),
    ]
    if unfinished:
        blocks.append(page.Text(f"Left out, since they are not finished: {', '.join(map(str, unfinished))}."))
    with TemporaryDirectory() as folder:
        pictures = _pictures(found, runs, Path(folder))
        blocks += [page.Heading(2, "Curves"), *pictures]
        blocks += [page.Heading(2, "Runs"), _runs(settings, [found.metric, *found.measures(), "rounds"], path.parent)]
        if commands := _commands(settings):
            blocks += [page.Heading(2, "Commands"), page.Table(["setting", "command of its first run"], commands)]
        write_text(path, page.html(title, blocks, Path(folder)))


def _made(runs: Sequence[Kept]) -> str:
    """Returns what ran where, in a sentence."""
    devices = dict.fromkeys(str(run.summary.get("device", "")) for run in runs)
    versions = dict.fromkeys(
        f"{name} {version}" for run in runs for name, version in run.summary.get("versions", {}).items()
    )
    made = datetime.now().isoformat(sep=" ", timespec="minutes")
    return f"{style.count(len(runs), 'run')}; {', '.join([*devices, f'jaxfl {jaxfl.__version__}', *versions])}; {made}."


def _pictures(found: Comparison, runs: Sequence[Kept], folder: Path) -> list[page.Picture]:
    """Returns curves of what all runs have, by round."""
    pictures = []
    for metric in dict.fromkeys((found.metric, *DRAWN)):
        if all(any(record.get(metric) is not None for record in run.history) for run in runs):
            shown = found if metric == found.metric else found._replace(metric=metric, target=None)
            curves(shown).savefig(folder / f"{metric}.png", dpi=DPI)
            words = f"{metric.replace('_', ' ')} by round: mean of the seeds, and one standard deviation"
            pictures.append(page.Picture(f"{metric}.png", words, DPI))
    return pictures


def _runs(settings: Settings, columns: Sequence[str], folder: Path) -> page.Table:
    """Returns a row for every run, with the entries of the summaries that some run has.

    Args:
        settings: the runs.
        columns: the entries.
        folder: of the page, from which a link leads to the page of each run that has one.
    """
    runs = [(name, run) for name, line in settings.items() for run in line]
    known = [name for name in dict.fromkeys(columns) if any(run.summary.get(name) is not None for _, run in runs)]
    rows = [
        [name, str(run.seed), *(word(run.summary.get(column)) for column in known), _where(run.path, folder)]
        for name, run in runs
    ]
    return page.Table(["setting", "seed", *(name.replace("_", " ") for name in known), "folder"], rows, sorted=True)


def _where(run: Path, folder: Path) -> str:
    """Returns the folder of a run, which leads to the run's page if there is one."""
    if not (run / PAGE).exists():
        return str(run)
    return page.Link.to(quote(Path(os.path.relpath(run / PAGE, folder)).as_posix()), str(run))


def _commands(settings: Settings) -> list[list[str]]:
    """Returns the command of each setting; none of those that another version has asked for otherwise."""
    rows = []
    for name, line in settings.items():
        with contextlib.suppress(ValueError, KeyError):
            rows.append([name, page.Code(command(KeptRun(line[0].path).job, line[0].summary["rounds"]))])
    return rows
