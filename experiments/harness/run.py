"""Makes the numbers of a paper's tables: one run for every cell and seed, none twice.

    jaxfl reproduce ifca --scale smoke
    jaxfl reproduce stocfl --scale laptop --data-dir DIR --only 'IFCA M=4'

Results go to `results.jsonl` in `experiments/NAME/results/SCALE/` (or `--out`), a line as soon as a run is done. The
same command makes what is missing: what has a line is not run again, and what was interrupted goes on from its
checkpoint. A run that fails does not stop the others; its error goes to `failures.jsonl`, and the exit code is 1.
"""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from experiments.harness import base, others, report, results, studies
from experiments.harness.base import Cell, Study
from jaxfl.cli.signals import exit_status
from jaxfl.cli.tables.console import progress_message, stderr
from jaxfl.data.clients import FederatedData
from jaxfl.files import write_bytes
from jaxfl.jobs import job as jobs
from jaxfl.jobs.job import Job
from jaxfl.sampling import cohort_size
from jaxfl.settings import options
from jaxfl.simulation.callbacks import ProgressBar
from jaxfl.simulation.interrupts import Stopped, answered_signal
from jaxfl.simulation.result import Result

if TYPE_CHECKING:
    from rich.console import Console


class Planned(NamedTuple):
    """A run that is to be made."""

    cell: Cell  # the first one that it is for: cells may show several metrics of one run
    job: Job


def reproduce(
    name: str,
    scale: str,
    *,
    data_dir: str | None = None,
    only: str | None = None,
    seeds: Sequence[int] | None = None,
    out: Path | None = None,
    method: str | None = None,
    items: Sequence[str] = (),
) -> int:
    """Makes what is missing of an experiment, and writes its report.

    Args:
        name: of the experiment.
        scale: `smoke`, `laptop` or `paper`.
        data_dir: folder of the data's files.
        only: makes only the cells and studies whose label, `table / row / column`, holds this pattern.
        seeds: makes only these seeds of the cells; studies have seeds of their own.
        out: folder of the results.
        method: makes a row of this method alone, see `others.with_method`, beside the results of the experiment.
        items: `key=value` of that method.

    Returns:
        The exit status: 0 done, 1 some run failed, `signals.exit_status` after a signal.

    Raises:
        ValueError: an unknown name or scale, or a pattern that matches nothing, or seeds that no cell has; or the
            folder has a file of something else.
    """
    experiment = base.load(name)
    folder = experiment.results(scale) if out is None else out
    report.check_folder(experiment, folder)
    for file in (results.RESULTS, results.FAILURES):
        results.check_file(folder / file)
    chosen = [*experiment.scale(scale).cells, *experiment.scale(scale).studies]
    if method is not None:
        if out is None:
            raise ValueError(f"method {method!r} is no row of the paper's; add --out DIR, a folder for its results.")
        chosen = [
            cell for cell in others.with_method(experiment, method, items).scale(scale).cells if cell.row == method
        ]
        _beside(experiment.results(scale), out)
        others.remember(out, method, items)
    elif items:
        raise ValueError("items are options of a method; add --method NAME.")
    chosen = base.select(chosen, only)
    cells = base.of_seeds([one for one in chosen if isinstance(one, Cell)], seeds)
    lines = results.read(folder / results.RESULTS)
    wanted = planned(cells, data_dir, folder)
    missing = [one for one in wanted if results.find(lines, one.job) is None]
    console = stderr()
    _say(console, f"{name}, {scale}: {len(wanted)} runs, {len(wanted) - len(missing)} there, {len(missing)} to make")
    failed, held = 0, Held(data_dir)
    for place, one in enumerate(missing, 1):
        if code := _asked_to_stop(console):
            return code
        label = f"[{place}/{len(missing)}] {one.cell.label}, seed {one.job.seed}:"
        try:
            result = _run(one.job, held, label)
        except Stopped as stopped:
            _say(console, f"{label} interrupted after round {stopped.round}; the same command goes on", style="yellow")
            return exit_status(stopped.number)
        except Exception as error:  # whatever it is, the other runs go on, and the exit code tells
            failure = results.failure_line(one.cell, one.job, error)
            results.append(folder / results.FAILURES, failure)
            failed += 1
            _say(console, f"{label} failed: {failure['error']}", style="red")
            continue
        results.append(folder / results.RESULTS, results.result_line(one.cell, one.job, result))
        _clean(one.job)
    for study in (one for one in chosen if isinstance(one, Study) and studies.read(folder, one) is None):
        if code := _asked_to_stop(console):
            return code
        _say(console, f"{study.label}:")
        try:
            studies.write(folder, study, data_dir)
        except Stopped as stopped:
            _say(console, f"{study.label}: interrupted; the same command makes it again", style="yellow")
            return exit_status(stopped.number)
        except Exception as error:  # as above
            failed += 1
            _say(console, f"{study.label} failed: {type(error).__name__}: {error}", style="red")
    written = report.write(others.with_remembered(experiment, folder), scale, folder)
    made = f"{len(missing) - failed} made, {len(wanted) - len(missing)} were there, {failed} failed"
    _say(console, f"{name}, {scale}: {made}; {written}", style="red" if failed else None)
    return 1 if failed else 0


def _beside(made: Path, out: Path) -> None:
    """Copies the results of the experiment to where those of another method go, unless some are there."""
    if (made / results.RESULTS).exists() and not (out / results.RESULTS).exists():
        out.mkdir(parents=True, exist_ok=True)
        write_bytes(out / results.RESULTS, (made / results.RESULTS).read_bytes())


def planned(cells: Sequence[Cell], data_dir: str | None, folder: Path) -> list[Planned]:
    """Returns the runs of some cells, each once; all with the first seed before any with the second."""
    found: dict[str, Planned] = {}
    for turn in range(max((len(cell.seeds) for cell in cells), default=0)):
        for cell in (cell for cell in cells if turn < len(cell.seeds)):
            job = cell.job(cell.seeds[turn], data_dir=data_dir, resume=True)
            name = results.identifier(job)
            found.setdefault(name, Planned(cell, job._replace(out=folder / results.UNFINISHED / name)))
    return list(found.values())


class Held:
    """The last federation that was loaded: the rows of a column share theirs."""

    def __init__(self, data_dir: str | None):
        self.data_dir = data_dir
        self.key: str | None = None
        self.data: FederatedData | None = None

    def load(self, job: Job) -> FederatedData:
        """Returns the federation of a run."""
        key = repr((job.settings.data_name, sorted(job.settings.data.items()), job.seed))
        if self.data is None or key != self.key:
            self.data = None  # frees the old one first
            with progress_message(stderr(), f"loading {job.settings.data_name}"):
                self.data = options.load(job.settings, data_dir=self.data_dir, seed=job.seed)
            self.key = key
        return self.data


def _run(job: Job, held: Held, label: str) -> Result:
    """Makes a run, or goes on with it."""
    _forget(job)
    jobs.check(job)
    data = held.load(job)
    cohort_size(job.cohort, data)  # refuses what is too large, before anything compiles
    with ProgressBar(label=label) as bar:
        return jobs.execute(job, data, [bar])


def _forget(job: Job) -> None:
    """Removes what an interrupted run left behind if its defaults were others than they are now."""
    directory = job.directory()
    if directory is not None and directory.is_of_another(job.config()):
        directory.remove()


def _asked_to_stop(console: "Console") -> int:
    """Returns the exit code if a signal came when the run before was whole, and says so; else 0."""
    if not (number := answered_signal()):
        return 0
    _say(console, "interrupted; the same command goes on", style="yellow")
    return exit_status(number)


def _clean(job: Job) -> None:
    """Removes checkpoint and history: their run has its line."""
    if directory := job.directory():
        directory.remove()
        with contextlib.suppress(OSError):  # not empty: of an interrupted run
            directory.path.parent.rmdir()


def _say(console: "Console", text: str, style: str | None = None) -> None:
    """Prints a line."""
    console.print(text, style=style, soft_wrap=True, markup=False)


if __name__ == "__main__":
    from jaxfl import cli

    cli.main(["reproduce", *sys.argv[1:]])
