"""Makes the numbers of a paper's tables: one run for every cell and seed, none twice.

    jaxfl reproduce ifca --scale smoke
    jaxfl reproduce stocfl --scale laptop --data-dir DIR --only 'IFCA M=4'

Results go to `results.jsonl` in `experiments/NAME/results/SCALE/` (or `--out`), a line as soon as a run is done. The
same command makes what is missing: what has a line is not run again, and what was interrupted goes on from its
checkpoint. A run that fails does not stop the others; its error goes to `failures.jsonl`, and the exit code is 1.
"""

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.harness import base, others, report, results, studies
from experiments.harness.base import Cell, Study
from jaxfl.cli import workers
from jaxfl.cli.plan import footprint_of
from jaxfl.cli.run import Deadline
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
from jaxfl.simulation.records.history import json_ready
from jaxfl.simulation.result import Callback

if TYPE_CHECKING:
    from rich.console import Console


class Planned(NamedTuple):
    """A run that is to be made."""

    cell: Cell  # the first one that it is for: cells may show several metrics of one run
    job: Job

    @property
    def label(self) -> str:
        """The cell and the seed."""
        return f"{self.cell.label}, seed {self.job.seed}"


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
    jobs: str = "1",
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
        jobs: processes that make runs side by side, see `jaxfl.cli.workers`; with other values than "1" each run is on
            one device.

    Returns:
        The exit status: 0 done, 1 some run failed, `signals.exit_status` after a signal.

    Raises:
        ValueError: an unknown name or scale, or a pattern that matches nothing, or seeds that no cell has; or the
            folder has a file of something else.
    """
    experiment = base.load(name)
    folder = experiment.results(scale) if out is None else out
    report.check_folder(experiment, folder)
    others.remembered(folder)  # refused here if it is of something else
    for file in (results.RESULTS, results.FAILURES):
        results.check_file(folder / file)
    arguments = {"experiment": name, "scale": scale, "data_dir": data_dir, "only": only, "seeds": seeds}
    arguments |= {"folder": str(folder), "method": method, "items": list(items), "clone": str(base.HERE)}
    if method is not None:
        if out is None:
            raise ValueError(f"method {method!r} is no row of the paper's; add --out DIR, a folder for its results.")
        _beside(experiment.results(scale), out)
        others.remember(out, method, items)
    elif items:
        raise ValueError("items are options of a method; add --method NAME.")
    chosen, wanted = _chosen(arguments)
    for study in (one for one in chosen if isinstance(one, Study) and studies.read(folder, one) is None):
        studies.check_pictures(folder, study)  # before anything is trained
    lines = results.read(folder / results.RESULTS)
    missing = {place: one for place, one in wanted.items() if results.find(lines, one.job) is None}
    console = stderr()
    _say(console, f"{name}, {scale}: {len(wanted)} runs, {len(wanted) - len(missing)} there, {len(missing)} to make")
    maker = _Maker(folder, missing, data_dir, one_device=jobs != "1")
    programs = {cell.name: (cell.seed, options.program_text(one.job.settings)) for cell, one in missing.items()}
    pool = workers.Pool(list(missing), arguments, jobs, Deadline(None), programs, quiet=False)
    try:
        pool.run(maker.make, lambda _: 1, maker.receive)
    except Stopped as stopped:
        after = f" after round {stopped.round}" if stopped.round else ""
        _say(console, f"interrupted{after}; the same command goes on", style="yellow")
        return exit_status(stopped.number)
    lines = results.read(folder / results.RESULTS)
    failed = sum(results.find(lines, one.job) is None for one in missing.values())
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
    named = [] if method is None else [method]
    written = report.write(others.with_remembered(experiment, folder, named), scale, folder)
    made = f"{len(missing) - failed} made, {len(wanted) - len(missing)} were there, {failed} failed"
    _say(console, f"{name}, {scale}: {made}; {written}", style="red" if failed else None)
    return 1 if failed else 0


def _beside(made: Path, out: Path) -> None:
    """Copies the results of the experiment to where those of another method go, unless some are there."""
    if (made / results.RESULTS).exists() and not (out / results.RESULTS).exists():
        out.mkdir(parents=True, exist_ok=True)
        write_bytes(out / results.RESULTS, (made / results.RESULTS).read_bytes())


def _chosen(arguments: Mapping[str, Any]) -> tuple[Sequence[Cell | Study], dict[workers.Cell, Planned]]:
    """Returns the cells and studies that are chosen, and the runs of the cells.

    Args:
        arguments: of `reproduce`, by name; `experiment` is its name, `folder` that of the results.

    Raises:
        ValueError: a pattern that matches nothing, or seeds that no cell has.
    """
    experiment, scale, method = base.load(arguments["experiment"]), arguments["scale"], arguments["method"]
    chosen = [*experiment.scale(scale).cells, *experiment.scale(scale).studies]
    if method is not None:
        added = others.with_method(experiment, method, arguments["items"]).scale(scale).cells
        chosen = [cell for cell in added if cell.row == method]
    chosen = base.select(chosen, arguments["only"])
    cells = base.of_seeds([one for one in chosen if isinstance(one, Cell)], arguments["seeds"])
    runs = planned(cells, arguments["data_dir"], Path(arguments["folder"]))
    return chosen, {workers.Cell(results.identifier(one.job), one.job.seed, one.label): one for one in runs}


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


class _Maker:
    """Makes runs of an experiment in a process, and adds lines to the files of the results in that of the command.

    Args:
        folder: of the results.
        runs: by what a pool calls them.
        data_dir: folder of the data's files.
        one_device: whether a run is on one device, see `jaxfl.cli.workers`.
    """

    def __init__(
        self, folder: Path, runs: Mapping[workers.Cell, Planned], data_dir: str | None, *, one_device: bool
    ) -> None:
        self._folder, self._runs, self._held, self._one_device = folder, runs, Held(data_dir), one_device
        self._begun = 0

    def make(self, cells: Sequence[workers.Cell], look: Callback) -> list[workers.Cell]:
        """Makes a run in the process of the command, under a progress bar; returns no run."""
        self._begun += 1
        label = f"[{self._begun}/{len(self._runs)}] {cells[0]}:"
        with ProgressBar(label=label) as bar:
            self.receive(cells[0], self.answer("run", cells[0], [bar, look]))
        return []

    def answer(self, what: str, cell: workers.Cell, callbacks: Sequence[Callback] = ()) -> dict[str, Any]:
        """Returns the line of a run that it makes, or goes on with, or of its failure; or the bytes of its plan.

        Args:
            what: "run" or "plan".
            cell: names the run.
            callbacks: of the run.
        """
        one = self._runs[cell]
        job = workers.on_one_device(one.job) if self._one_device else one.job
        try:
            if what == "plan":
                return {"bytes": footprint_of(job, []).total}
            with workers.CompileClock() as clock:
                _forget(job)
                jobs.check(job)
                data = self._held.load(job)
                cohort_size(job.cohort, data)  # refuses what is too large, before anything compiles
                result = jobs.execute(job, data, callbacks)
            line = results.result_line(one.cell, one.job, result)
            return {"line": json_ready(line), "cost": workers.Cost.of(clock)}
        except Exception as error:  # whatever it is, the other runs go on, and the exit code tells
            return {"failure": json_ready(results.failure_line(one.cell, one.job, error))}

    def receive(self, cell: workers.Cell, answer: Mapping[str, Any]) -> None:
        """Adds the line of a run, or of its failure, which it prints."""
        if (failure := answer.get("failure")) is not None:
            results.append(self._folder / results.FAILURES, failure)
            _say(stderr(), f"{cell} failed: {failure['error']}", style="red")
        elif (line := answer.get("line")) is not None:
            results.append(self._folder / results.RESULTS, line)
            _clean(self._runs[cell].job)


def worker_answers(arguments: Mapping[str, Any]) -> Callable[[str, str, int], dict[str, Any]]:
    """Returns the function by which a worker answers requests, see `jaxfl.cli.worker`.

    Args:
        arguments: as `_chosen` takes them.
    """
    runs = {(cell.name, cell.seed): (cell, one) for cell, one in _chosen(arguments)[1].items()}
    maker = _Maker(Path(arguments["folder"]), dict(runs.values()), arguments["data_dir"], one_device=True)
    return lambda what, name, seed: maker.answer(what, runs[name, seed][0])


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
