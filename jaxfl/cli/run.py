"""What `jaxfl run` does beside telling: a run under a progress bar, and what there is to say of it."""

import contextlib
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxfl import data as federations
from jaxfl.cli import run_page, signals, tables
from jaxfl.cli.tables.console import print_table, progress_message, stderr, stdout
from jaxfl.data.clients import FederatedData
from jaxfl.jobs import job
from jaxfl.jobs.job import Job, across, with_others
from jaxfl.sampling import cohort_size
from jaxfl.schema import REQUIRED, Option, check_name, quoted
from jaxfl.settings import options
from jaxfl.simulation import loggers
from jaxfl.simulation.callbacks import EarlyStopping, ProgressBar, TimeLimit
from jaxfl.simulation.evaluation.metrics import main_metric
from jaxfl.simulation.interrupts import Stopped
from jaxfl.simulation.progress import Diverged
from jaxfl.simulation.result import RECOVERED, Callback, Event, Result, leaving
from jaxfl.simulation.seeds import alike, together

CallbackFactory = Callable[[Sequence[Job]], list[Callback]]

# What writes the numbers of a run somewhere else; the first two write into its folder.
LOGGERS: dict[str, Callable[[Job], Callback]] = {
    "csv": lambda job: _created_at_first_event(
        lambda: loggers.csv(f"{job.out}/log.csv")
    ),  # the run has made the folder then
    "tensorboard": lambda job: loggers.tensorboard(f"{job.out}/tensorboard"),
    "wandb": lambda job: loggers.wandb(project="jaxfl", name=_run_label(job), config=job.config(), reinit="create_new"),
    "mlflow": lambda job: loggers.mlflow(run_name=_run_label(job)),
}
FOLDER_LOGGERS = ("csv", "tensorboard")


def callback_factory(
    log: Sequence[str], stop_early: int | None, time_limit: str | None, jobs: Sequence[Job]
) -> CallbackFactory:
    """Returns what makes the callbacks of some of the jobs, which are run in one program.

    Args:
        log: names of `LOGGERS`.
        stop_early: evaluations without a better value of the task's main metric; None never ends a run.
        time_limit: as `parse_duration` reads it, or None.
        jobs: all.

    Raises:
        ValueError: a name is unknown, a number is not possible, or there is no folder to write to.
        ImportError: a logger is not installed.
    """
    log = list(dict.fromkeys(log))
    for name in log:
        check_name("log", name, LOGGERS)
        if name in FOLDER_LOGGERS and jobs[0].out is None:
            raise ValueError(f"log={name} writes into the folder of the run; add --out DIR.")
        loggers.check(name)
    limit = None if time_limit is None else parse_duration(time_limit)
    if stop_early is not None and stop_early < 1:
        raise ValueError(
            f"stop_early must be at least 1 evaluation, got {stop_early}; leave it out to make all rounds."
        )

    def make(group: Sequence[Job]) -> list[Callback]:
        made = [_SeedLoggers(LOGGERS[name], group) for name in log]
        stops = [] if stop_early is None else [EarlyStopping(stop_early)]
        return [*made, *stops, *([] if limit is None else [TimeLimit(limit)])]

    return make


class _SeedLoggers:
    """Tells each seed's logger of its own events, and all of them that they are over."""

    def __init__(self, make: Callable[[Job], Callback], jobs: Sequence[Job]):
        self._first, self._made = jobs[0].seed, {job.seed: make(job) for job in jobs}

    def __call__(self, event: Event) -> None:
        """Tells the logger of the event's seed."""
        log = self._made[self._first if event.seed is None else event.seed]
        alone = isinstance(log, loggers.Logger)  # nobody else's numbers go there: they need no seed in their names
        log(event._replace(seed=None) if alone else event)

    def __exit__(self, *reason: Any) -> None:
        """Leaves all of them."""
        leaving(list(self._made.values())).__exit__(*reason)


def _created_at_first_event(make: Callable[[], Callback]) -> Callback:
    """Returns a callback that is made when it is told something."""
    made = functools.cache(make)
    return lambda event: made()(event)


def _run_label(job: Job) -> str:
    """Returns what a run is called elsewhere."""
    return f"{job.identity()['method']} on {job.settings.data_name}, seed {job.seed}"


def parse_duration(text: str) -> float:
    """Returns a time in seconds.

    Raises:
        ValueError: it is none.

    >>> parse_duration("30m"), parse_duration("1h30m"), parse_duration("90"), parse_duration("1.5h")
    (1800.0, 5400.0, 90.0, 5400.0)
    """
    number = r"(\d+(?:\.\d+)?)"
    found = re.fullmatch(f"(?:{number}h)?(?:{number}m)?(?:{number}s)?", re.sub(f"^{number}$", r"\1s", text.strip()))
    parts = found.groups() if found else ()
    seconds = sum(float(part or 0) * scale for part, scale in zip(parts, (3600, 60, 1), strict=False))
    if seconds <= 0:
        raise ValueError(f"time_limit must be a time above 0, got {quoted(text)}; write 30m, 2h, 1h30m or 90s.")
    return seconds


MAX_SEED_RANGE = 1000  # seeds of a range


def run_jobs(
    jobs: Sequence[job.Job],
    *,
    several: bool,
    quiet: bool = False,
    watchers: CallbackFactory | None = None,
    html: bool = False,
) -> list[dict[str, Any] | None]:
    """Runs jobs that differ in their seed alone: as many in one program as is fast, where their data are alike.

    Args:
        jobs: checked by `job.check`.
        several: whether several seeds were asked for, of which this may be one.
        quiet: whether nothing is said on the way.
        watchers: what looks on beside the progress bar, of the runs of one program.
        html: whether a page is written into the folder of each.

    Returns:
        The summary of each, None if the run has diverged, which is said. State and data are let go: many runs take the
        memory of those that are one program.

    Raises:
        ValueError: there is no folder for a page.
        Stopped: after it is said what is kept.
    """
    if html and any(one.out is None for one in jobs):
        raise ValueError("html is a page in the folder of the run; add --out DIR.")
    shared, summaries, most = [], [], together(len(jobs))
    for first in range(0, len(jobs), most):
        group = jobs[first : first + most]
        data = [_load_federation(one, quiet) for one in group]
        same = alike(data) if len(group) > 1 and not group[0].of_its_data else None
        if same is not None:
            summaries += _run_program(group, same, f"{len(group)} seeds", shared, quiet, watchers, html)
            continue
        for one in group:
            label = f"seed {one.seed}" if several else ""
            summaries += _run_program([one], [data.pop(0)], label, shared, quiet, watchers, html)
    return summaries


def _load_federation(one: job.Job, quiet: bool) -> FederatedData:
    """Returns the data of a job; refuses a cohort that is too large, before anything is said to compile."""
    _stop_if_signalled()
    with progress_message(stderr(quiet=quiet), f"loading {one.settings.data_name}"):
        data = options.load(one.settings, data_dir=one.data_dir, seed=one.seed)
        cohort_size(one.cohort, data)
        return data


def _run_program(
    jobs: Sequence[job.Job],
    data: Sequence[FederatedData],
    label: str,
    shared: list[job.Tools],
    quiet: bool,
    watchers: CallbackFactory | None,
    html: bool,
) -> list[dict[str, Any] | None]:
    """Runs jobs in one program, under a progress bar.

    Args:
        jobs: one or more.
        data: of each.
        label: what the bar begins with; empty for a single run.
        shared: what runs of other seeds were made with, empty for the first; it is kept there for the next.
        quiet: whether nothing is said on the way.
        watchers: what looks on beside the bar.
        html: whether a page is written of each.
    """
    _stop_if_signalled()
    console, first = stderr(quiet=quiet), jobs[0]
    bar = ProgressBar(label=label)
    callbacks = [*([] if quiet else [bar]), *(watchers(jobs) if watchers else ())]
    if not console.is_terminal:
        console.print(f"{label} compiling {first.settings.method_name} on {data[0].num_clients} clients".strip())
    try:
        with contextlib.nullcontext() if quiet else bar:
            shared[:] = [job.Tools.of(first, data[0], *shared)]
            if len(jobs) > 1:
                found = job.execute_together(jobs, data, callbacks, *shared)
            else:
                found = [_execute_or_diverge(first, data[0], callbacks, *shared)]
    except Stopped as stopped:
        out = first.out if len(jobs) == 1 or first.out is None else first.out.parent
        kept = "nothing was kept" if out is not None else "nothing was kept; --out DIR would keep checkpoints"
        if stopped.saved:
            again = "the same command" if first.resume else "the same command with --resume"
            kept = f"it is saved in {out}, and {again} goes on from there"
        stderr().print(
            f"interrupted after round {stopped.round} of {stopped.rounds}; {kept}", style="yellow", soft_wrap=True
        )
        raise
    for one, mine in zip(found, jobs, strict=True):
        if html and isinstance(one, Result):
            run_page.write_run_page(one, mine)
    return [
        _report_outcome(one, mine, label if len(jobs) == 1 else f"seed {mine.seed}", quiet)
        for mine, one in zip(jobs, found, strict=True)
    ]


def _stop_if_signalled() -> None:
    """Raises `Stopped` if a run before was asked to stop after its last round: it is whole, and no other is begun."""
    if number := signals.answered_signal():
        stderr().print("interrupted; the run before is whole, and no other was begun", style="yellow", soft_wrap=True)
        stopped = Stopped(0, 0, 0)
        stopped.number = number
        raise stopped


def _execute_or_diverge(
    one: job.Job, data: FederatedData, callbacks: Sequence[Callback], tools: job.Tools
) -> Result | Diverged:
    """Runs a single job."""
    try:
        return job.execute(one, data, callbacks, tools)
    except Diverged as error:
        return error


def _report_outcome(outcome: Result | Diverged, asked: job.Job, label: str, quiet: bool) -> dict[str, Any] | None:
    """Returns the summary of a run after what there is to say of it; None if it has diverged."""
    console, notes, prefix = stderr(), stderr(quiet=quiet), f"{label}: " if label else ""
    if isinstance(outcome, Diverged):
        console.print(f"error: {prefix}{outcome}", style="red", soft_wrap=True, markup=False)
        return None
    summary, clients = outcome.summary, outcome.summary["num_clients"]
    if count := summary["diverged"]:
        console.print(
            f"warning: {count} of {summary['updates']} updates of clients were not finite and were left out; "
            "lower the learning rate (--set learning_rate=...).",
            style="yellow",
            soft_wrap=True,
        )
    if summary["rounds"] < asked.rounds:
        again = "the same command" if asked.resume else "the same command with --resume"
        on = "" if asked.out is None else f"; {again} goes on"
        notes.print(f"note: {prefix}ended after round {summary['rounds']} of {asked.rounds}{on}.", soft_wrap=True)
    if not summary["resident"]:
        notes.print("note: the clients' rows stayed on the host, and a round's were sent ahead (resident).")
    if not summary["resident_state"]:
        notes.print("note: the clients' own models stayed on the host, in a file (resident).")
    if summary[f"micro_{main_metric(summary)}"] is None:
        untested = "nobody has test rows; nothing was tested"
        if outcome.evaluation.rows.any():
            untested = "nobody who is trained on was tested; what there is of others is in summary.json"
        notes.print(f"note: {untested}.", soft_wrap=True)
    if told := drift_sentence(summary):
        notes.print(f"note: {prefix}{told}.", soft_wrap=True)
    if count := summary["empty_clients"]:
        notes.print(f"note: {count} of {clients} clients have no training rows; they train nothing.")
    return summary


def drift_sentence(summary: dict[str, Any]) -> str:
    """Returns how clients were served around a drift; nothing where there was none.

    >>> numbers = {"before_drift_micro_accuracy": 0.9, "at_drift_micro_accuracy": 0.4, "micro_accuracy": 0.8}
    >>> drift_sentence({**numbers, "drift_round": 50, "rounds_to_recover": None})
    'drift after round 50: accuracy 0.9000 before, 0.4000 at it, 0.8000 at the end; not recovered to within 0.01'
    """
    if "drift_round" not in summary:
        return ""
    main = main_metric(summary)
    names = {"before": f"before_drift_micro_{main}", "at it": f"at_drift_micro_{main}", "at the end": f"micro_{main}"}
    told = ", ".join(f"{summary[name]:.4f} {when}" for when, name in names.items() if summary[name] is not None)
    rounds = summary["rounds_to_recover"]
    ended = f"recovered after {rounds} rounds" if rounds is not None else f"not recovered to within {RECOVERED:g}"
    return f"drift after round {summary['drift_round']}: {main} {told}; {ended}"


def print_results(
    jobs: Sequence[job.Job],
    summaries: Sequence[dict[str, Any] | None],
    out: Path | None,
    *,
    several: bool,
    quiet: bool,
    html: bool,
) -> None:
    """Prints the table of what came of the runs, and what can be looked at.

    Args:
        jobs: all.
        summaries: of each, from `run_jobs`.
        out: the folder of all, or None.
        several: whether several seeds were asked for.
        quiet: whether no file is named.
        html: whether pages were written.
    """
    if made := [summary for summary in summaries if summary is not None]:
        made = with_others(jobs, made) if several else made
        title, head, rows, caption = tables.results_table(made, across(made, out) if several else None)
        print(title)
        print_table(stdout(), head, rows, named=several)
        if caption:
            print(caption)
    for one, summary in zip(jobs, summaries, strict=True):
        if one.out is not None and summary is not None and not quiet:
            print(f"pictures: {' and '.join(str(one.out / name) for name in job.PICTURES)}")
            if html:
                print(f"page: {one.out / run_page.PAGE}")


def parse_seeds(text: str) -> list[int]:
    """Returns the seeds of a list, in which `0-4` stands for five of them.

    Raises:
        ValueError: it is no list of whole numbers, names one twice, or a range is too long.

    >>> parse_seeds("0,1,2"), parse_seeds("0-2,7"), parse_seeds("3")
    ([0, 1, 2], [0, 1, 2, 7], [3])
    """

    def spelled_out(ends: re.Match[str]) -> str:
        first, last = map(int, ends.groups())
        if not 0 <= last - first < MAX_SEED_RANGE:
            raise ValueError(
                f"seeds must be ranges of 1 to {MAX_SEED_RANGE}, got {quoted(ends[0])}; write --seeds 0-4."
            )
        return ",".join(map(str, range(first, last + 1)))

    listed = re.sub(r"(\d+)-(\d+)", spelled_out, text)
    seeds = options.convert("seeds", listed, Option("seeds", REQUIRED, tuple[int, ...]), "write --seeds 0,1,2 or 0-4")
    if not seeds:
        raise ValueError(f"seeds must be one or more, got {quoted(text)}; write --seeds 0-4.")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must differ, got {quoted(text)}; name each once.")
    return list(seeds)


def rounds_and_cohort(data: str, rounds: int | None, cohort: str | None) -> tuple[int, int | float]:
    """Returns rounds and cohort; a share is a float, a count an int."""
    small = federations.dataset(data).source == "digits"
    rounds = (20 if small else 100) if rounds is None else rounds
    if cohort is None:
        return rounds, 0.5 if small else 0.1
    share_or_count = Option("cohort", REQUIRED, int | float)
    return rounds, options.convert("cohort", cohort, share_or_count, "write --cohort 0.1 or --cohort 120")
