"""`jaxfl run`: jobs of one or several seeds under a progress bar, their notes and the table of results."""

import contextlib
import functools
import math
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxfl.analysis.comparison import mean_cell
from jaxfl.cli import run_page, tables
from jaxfl.cli.signals import TRY_AGAIN
from jaxfl.cli.tables.console import print_parts, print_table, progress_message, stderr, stdout
from jaxfl.data.clients import FederatedData
from jaxfl.files import is_missing
from jaxfl.host.text import printable
from jaxfl.jobs import job
from jaxfl.jobs.job import Job, add_saved_summaries, summarise_seeds
from jaxfl.protocols.scores import check_score, score_entry
from jaxfl.protocols.scores import score as score_of
from jaxfl.random import check_seed_or_seeds
from jaxfl.sampling import cohort_size
from jaxfl.schema import REQUIRED, Option, check_name, quoted
from jaxfl.settings import federations, options
from jaxfl.simulation import loggers, processes
from jaxfl.simulation.callbacks import EarlyStopping, ProgressBar, TimeLimit
from jaxfl.simulation.evaluation.metrics import main_metric
from jaxfl.simulation.interrupts import Stopped, answered_signal
from jaxfl.simulation.progress import Diverged, divergence_remedy
from jaxfl.simulation.result import RECOVERED, Callback, Event, Result, exit_callbacks
from jaxfl.simulation.seeds import seeds_per_program
from jaxfl.simulation.spec import share_equal_arrays

CallbackFactory = Callable[[Sequence[Job]], list[Callback]]

LOG = "log.csv"
LOGGERS: dict[str, Callable[[Job], Callback]] = {
    # the folder of the run is not there before the first event
    "csv": lambda job: _created_at_first_event(lambda: loggers.csv(f"{job.out}/{LOG}")),
    "tensorboard": lambda job: loggers.tensorboard(f"{job.out}/tensorboard"),
    "wandb": lambda job: loggers.wandb(project="jaxfl", name=_run_label(job), config=job.config(), reinit="create_new"),
    "mlflow": lambda job: loggers.mlflow(run_name=_run_label(job)),
}
FOLDER_LOGGERS = ("csv", "tensorboard")  # loggers that write into the folder of the run
MAX_SEED_RANGE = 1000  # seeds of a range such as 0-4


def run(
    method: str,
    data: str,
    items: Sequence[str],
    *,
    data_dir: str | None,
    rounds: int | None,
    cohort: str | None,
    seed: int | None,
    seeds: str | None,
    out: Path | None,
    resume: bool,
    eval_every: int | None,
    checkpoint_every: int | None,
    log: Sequence[str],
    stop_early: int | None,
    time_limit: str | None,
    html: bool,
    pictures: bool,
    quiet: bool,
    score: str | None = None,
) -> int:
    """Runs a method with one or several seeds and prints the results; returns the exit status.

    Args:
        method: its name, or `FILE.py:FACTORY`.
        data: name of a data set.
        items: options, `key=value`.
        data_dir: folder with the files of the data.
        rounds: communication rounds; None takes the default of the data.
        cohort: a share or a count, as text; None takes the default of the data.
        seed: of a single run.
        seeds: as `parse_seeds` reads them; None makes a single run.
        out: folder of the run; of several seeds each has a folder in it.
        resume: whether to continue from the checkpoints in `out`.
        eval_every: rounds between evaluations.
        checkpoint_every: rounds between checkpoints.
        log: names of `LOGGERS`.
        stop_early: as `callback_factory` takes it.
        time_limit: as `parse_duration` reads it, or None.
        html: whether a page is written into the folder of each run.
        pictures: whether pictures are drawn into the folder of each run.
        quiet: whether progress and notes are left out.
        score: of `jaxfl.protocols.scores.SCORES`, which is printed too, or None.

    Returns:
        0, or 1 if a run has diverged; 75 if one in a folder has used up its time, which the same command continues.

    Raises:
        ValueError: an argument is not allowed.
        Stopped: a signal has stopped the run.
    """
    if html and not pictures:
        raise ValueError("pictures must be drawn for the page of --html, got --no-pictures; leave one of them out.")
    settings = options.route(method, data, items)
    check_score(score, settings.complete())
    rounds, share = rounds_and_cohort(data, rounds, cohort)
    check_seed_or_seeds(seed, seeds)
    beside = ((LOG,) if "csv" in log else ()) + (run_page.FILES if html else ())
    saved = data_dir, eval_every, checkpoint_every, out, resume, beside
    jobs = [Job(settings, rounds, share, seed or 0, *saved, pictures=pictures)]
    several = seeds is not None
    if seeds is not None:
        folders = {number: None if out is None else out / f"seed-{number}" for number in parse_seeds(seeds)}
        jobs = [jobs[0]._replace(seed=number, out=folder) for number, folder in folders.items()]
        job.check_jobs(jobs)
    else:
        job.check(jobs[0])
    limit = None if time_limit is None else TimeLimit(parse_duration(time_limit))
    callbacks = callback_factory(log, stop_early, [] if limit is None else [limit], jobs)
    summaries = run_jobs(jobs, several=several, quiet=quiet, make_callbacks=callbacks, html=html, score=score)
    print_results(jobs, summaries, out, several=several, quiet=quiet, html=html, score=score)
    if limit is not None and limit.reached and out is not None:
        return TRY_AGAIN
    return int(None in summaries)


def callback_factory(
    log: Sequence[str], stop_early: int | None, limits: Sequence[Callback], jobs: Sequence[Job]
) -> CallbackFactory:
    """Returns a function that creates the callbacks of the jobs of one program.

    Args:
        log: names of `LOGGERS`.
        stop_early: evaluations without a better value of the task's main metric; None never ends a run.
        limits: callbacks that end runs after some time.
        jobs: all jobs of the command.

    Raises:
        ValueError: a name is unknown, a number is out of range, or a logger needs a folder and `--out` is not given.
        ImportError: a logger is not installed.
    """
    log = list(dict.fromkeys(log))
    for name in log:
        check_name("log", name, LOGGERS)
        if name in FOLDER_LOGGERS and jobs[0].out is None:
            raise ValueError(f"log={name} writes into the folder of the run; add --out DIR.")
        for one in jobs if name == "csv" else ():
            if (table := Path(f"{one.out}/{LOG}")).exists():
                loggers.csv(table)  # which refuses another file
        loggers.check_installed(name)
    if stop_early is not None and stop_early < 1:
        raise ValueError(f"stop_early must be at least 1 evaluation, got {stop_early}; leave it out to run all rounds.")

    def create(group: Sequence[Job]) -> list[Callback]:
        logs = [_SeedLoggers(LOGGERS[name], group) for name in log]
        stops = [] if stop_early is None else [EarlyStopping(stop_early)]
        return [*logs, *stops, *limits]

    return create


class _SeedLoggers:
    """A callback that passes each event to the logger of its seed."""

    def __init__(self, create: Callable[[Job], Callback], jobs: Sequence[Job]):
        self._first, self._loggers = jobs[0].seed, {job.seed: create(job) for job in jobs}

    def __call__(self, event: Event) -> None:
        """Passes an event on."""
        log = self._loggers[self._first if event.seed is None else event.seed]
        of_one_seed = isinstance(log, loggers.Logger)  # its metrics need no seed in their names
        log(event._replace(seed=None) if of_one_seed else event)

    def __exit__(self, *reason: Any) -> None:
        """Closes the loggers of all seeds."""
        exit_callbacks(list(self._loggers.values())).__exit__(*reason)


def _created_at_first_event(create: Callable[[], Callback]) -> Callback:
    """Returns a callback that is created when the first event arrives."""
    created = functools.cache(create)
    return lambda event: created()(event)


def _run_label(job: Job) -> str:
    """Returns the name of a run in a logger: method, data and seed, and its folder, by which settings differ."""
    folder = "" if job.out is None else f", {printable(str(job.out))}"
    return f"{job.identity()['method']} on {job.settings.data_name}, seed {job.seed}{folder}"


class Deadline:
    """A callback that ends a run when the time of its sweep is over.

    Args:
        until: by `time.monotonic`, whose clock all processes of a machine share; None is never.
    """

    def __init__(self, until: float | None):
        self.until = until

    def __call__(self, event: Event) -> bool:
        """Returns whether to end the run."""
        return self.is_over()

    def is_over(self) -> bool:
        """Returns whether the time is over."""
        return self.until is not None and time.monotonic() >= self.until


def parse_duration(text: str) -> float:
    """Returns the seconds of a duration such as `1h30m`.

    Raises:
        ValueError: the text is not a duration above 0.

    >>> parse_duration("30m"), parse_duration("1h30m"), parse_duration("90"), parse_duration("1.5h")
    (1800.0, 5400.0, 90.0, 5400.0)
    """
    number = r"(\d+(?:\.\d+)?)"
    found = re.fullmatch(f"(?:{number}h)?(?:{number}m)?(?:{number}s)?", re.sub(f"^{number}$", r"\1s", text.strip()))
    parts = found.groups() if found else ()
    seconds = sum(float(part or 0) * scale for part, scale in zip(parts, (3600, 60, 1), strict=False))
    if seconds <= 0:
        raise ValueError(f"time_limit must be a duration above 0, got {quoted(text)}; write 30m, 2h, 1h30m or 90s.")
    return seconds


def run_jobs(
    jobs: Sequence[job.Job],
    *,
    several: bool,
    quiet: bool = False,
    make_callbacks: CallbackFactory | None = None,
    html: bool = False,
    shared: list[job.Tools] | None = None,
    score: str | None = None,
) -> list[dict[str, Any] | None]:
    """Runs jobs that differ in their seed only, several in one program where that is fast and their data allow it.

    Args:
        jobs: checked by `job.check`.
        several: whether `--seeds` was given.
        quiet: whether progress and notes are left out.
        make_callbacks: creates the callbacks of the jobs of one program, beside the progress bar.
        html: whether a page is written into the folder of each job.
        shared: the tools of other seeds' runs, or an empty list, which is updated in place; None shares none.
        score: that the summaries that are returned have, too, or None.

    Returns:
        The summary of each job, None if the run has diverged, which is printed. States and data are freed after each
        program.

    Raises:
        ValueError: a page is requested without a folder.
        Stopped: a signal has stopped the run; a line says what is saved.
    """
    if html and any(one.out is None for one in jobs):
        raise ValueError("html is a page in the folder of the run; add --out DIR.")
    shared = [] if shared is None else shared
    summaries, most = [], seeds_per_program(len(jobs))
    for first in range(0, len(jobs), most):
        group = jobs[first : first + most]
        data = [_load_federation(one, quiet) for one in group]
        same = share_equal_arrays(data) if len(group) > 1 and not group[0].of_its_data else None
        if same is not None:
            summaries += _run_program(group, same, f"{len(group)} seeds", shared, quiet, make_callbacks, html, score)
            continue
        for one in group:
            label = f"seed {one.seed}" if several else ""
            summaries += _run_program([one], [data.pop(0)], label, shared, quiet, make_callbacks, html, score)
    return summaries


def _load_federation(one: job.Job, quiet: bool) -> FederatedData:
    """Returns the federation of a job.

    Raises:
        ValueError: the cohort is larger than the federation.
    """
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
    make_callbacks: CallbackFactory | None,
    html: bool,
    score: str | None,
) -> list[dict[str, Any] | None]:
    """Runs jobs in one program, under a progress bar; returns their summaries, None for a run that has diverged.

    Args:
        jobs: one or more.
        data: the federation of each.
        label: start of the bar; empty for a single run.
        shared: the tools of other seeds' runs, empty for the first program; updated in place.
        quiet: whether progress and notes are left out.
        make_callbacks: creates the callbacks beside the bar.
        html: whether a page is written for each job.
        score: that the summaries have, too, or None.
    """
    _stop_if_signalled()
    console, first = stderr(quiet=quiet), jobs[0]
    bar = ProgressBar(label=label)
    callbacks = [*([] if quiet else [bar]), *(make_callbacks(jobs) if make_callbacks else ())]
    if not console.is_terminal:
        console.print(f"{label} compiling {first.settings.method_name} on {data[0].num_clients} clients".strip())
    try:
        with contextlib.nullcontext() if quiet else bar:
            shared[:] = [job.Tools.of(first, data[0], *shared)]
            if len(jobs) > 1:
                outcomes = job.execute_jobs(jobs, data, callbacks, *shared)
            else:
                outcomes = [_execute_or_diverge(first, data[0], callbacks, *shared)]
    except Stopped as stopped:
        out = first.out if len(jobs) == 1 or first.out is None else first.out.parent
        saved = "nothing was saved" if out is not None else "nothing was saved; --out DIR saves checkpoints"
        if stopped.saved:
            again = "the same command" if first.resume else "the same command with --resume"
            saved = f"saved in {out}; {again} continues from there"
        stderr().print(
            f"interrupted after round {stopped.round} of {stopped.rounds}; {saved}", style="yellow", soft_wrap=True
        )
        raise
    for outcome, one in zip(outcomes, jobs, strict=True):
        if isinstance(outcome, Result):
            _complete_log(outcome, one)
            if html:
                run_page.write_run_page(outcome, one)
    summaries = [
        _report_outcome(outcome, one, label if len(jobs) == 1 else f"seed {one.seed}", quiet)
        for one, outcome in zip(jobs, outcomes, strict=True)
    ]
    if score is not None:
        for summary, outcome in zip(summaries, outcomes, strict=True):
            if summary is not None:
                summary[score_entry(score)] = score_of(score, outcome.history)
    return summaries


def _complete_log(result: Result, one: job.Job) -> None:
    """Writes the table of a finished run that lacks it: no evaluation was left that would have written a row."""
    if one.out is None or LOG not in one.beside or not processes.first() or not is_missing(table := one.out / LOG):
        return
    if records := result.history.records:
        last = Event(records[-1]["round"], one.rounds, 0, math.nan, 0.0, records[-1], earlier=records[:-1])
        loggers.csv(table)(last)


def _stop_if_signalled() -> None:
    """Raises `Stopped` if a signal arrived in the last round of an earlier run: it is complete, no other is started."""
    if number := answered_signal():
        stderr().print("interrupted; the last run is complete, no other was started", style="yellow", soft_wrap=True)
        stopped = Stopped(0, 0, 0)
        stopped.number = number
        raise stopped


def _execute_or_diverge(
    one: job.Job, data: FederatedData, callbacks: Sequence[Callback], tools: job.Tools
) -> Result | Diverged:
    """Returns the result of a single job, or the error if it has diverged."""
    try:
        return job.execute(one, data, callbacks, tools)
    except Diverged as error:
        return error


def _report_outcome(outcome: Result | Diverged, one: job.Job, label: str, quiet: bool) -> dict[str, Any] | None:
    """Prints warnings and notes on a run; returns its summary, None if it has diverged."""
    console, notes, prefix = stderr(), stderr(quiet=quiet), f"{label}: " if label else ""
    if isinstance(outcome, Diverged):
        console.print(f"error: {prefix}{outcome}", style="red", soft_wrap=True)
        return None
    summary, clients = outcome.summary, outcome.summary["num_clients"]
    if count := summary["diverged"]:
        console.print(
            f"warning: {count} of {summary['updates']} updates of clients were not finite and were left out; "
            f"{divergence_remedy(outcome.data, summary.get('noise'))} (--set learning_rate=...).",
            style="yellow",
            soft_wrap=True,
        )
    if summary["rounds"] < one.rounds:
        again = "the same command" if one.resume else "the same command with --resume"
        on = "" if one.out is None else f"; {again} continues"
        notes.print(f"note: {prefix}ended after round {summary['rounds']} of {one.rounds}{on}.", soft_wrap=True)
    if not summary["resident"]:
        notes.print("note: the clients' rows stayed on the host; those of each round were sent ahead (resident).")
    if not summary["resident_state"]:
        notes.print("note: the clients' own models stayed on the host, in a file (resident).")
    if summary[f"micro_{main_metric(summary)}"] is None:
        untested = "no client has test rows; nothing was tested"
        if outcome.evaluation.rows.any():
            untested = "none of the trained clients was tested; metrics of the others are in summary.json"
            unseen = f"unseen_micro_{main_metric(summary)}"
            if summary.get(unseen) is not None:  # such as the users of LEAF's test set, split by user
                untested += f", {unseen} {summary[unseen]:.4f}"
        notes.print(f"note: {untested}.", soft_wrap=True)
    if sentence := drift_sentence(summary):
        notes.print(f"note: {prefix}{sentence}.", soft_wrap=True)
    if count := summary["empty_clients"]:
        notes.print(f"note: {count} of {clients} clients have no training rows and are not trained.")
    return summary


def drift_sentence(summary: dict[str, Any]) -> str:
    """Returns the main metric before, at and after a drift as a sentence; empty without a drift.

    >>> numbers = {"before_drift_micro_accuracy": 0.9, "at_drift_micro_accuracy": 0.4, "micro_accuracy": 0.8}
    >>> drift_sentence({**numbers, "drift_round": 50, "rounds_to_recover": None})
    'drift after round 50: accuracy 0.9000 before, 0.4000 at it, 0.8000 at the end; not recovered to within 0.01'
    >>> numbers |= {"area_micro_accuracy": 0.7, "return_gain_micro_accuracy": 0.3, "rounds_to_recover": 9}
    >>> print(drift_sentence({**numbers, "drift_round": 50, "drift_stages": [{}, {"round": 70, "at": 0.7}]}))
    drift after round 50: accuracy 0.9000 before, 0.4000 at it, 0.8000 at the end; recovered after 9 rounds; 1 more, the
    last after round 70 with 0.7000 at it; mean after the first 0.7000; at the return +0.3000 against the first change
    """
    if "drift_round" not in summary:
        return ""
    main = main_metric(summary)
    names = {"before": f"before_drift_micro_{main}", "at it": f"at_drift_micro_{main}", "at the end": f"micro_{main}"}
    values = ", ".join(f"{summary[name]:.4f} {when}" for when, name in names.items() if summary[name] is not None)
    rounds = summary["rounds_to_recover"]
    ended = f"recovered after {rounds} rounds" if rounds is not None else f"not recovered to within {RECOVERED:g}"
    stages = summary.get("drift_stages", [])[1:]
    if not stages:
        return f"drift after round {summary['drift_round']}: {main} {values}; {ended}"
    last = stages[-1]
    more = f"{len(stages)} more, the last after round {last['round']}"
    more += "" if last["at"] is None else f" with {last['at']:.4f} at it"
    mean = f"mean after the first {summary[f'area_micro_{main}']:.4f}"
    gain = summary.get(f"return_gain_micro_{main}")
    back = [] if gain is None else [f"at the return {gain:+.4f} against the first change"]
    return "; ".join([f"drift after round {summary['drift_round']}: {main} {values}", ended, more, mean, *back])


def print_results(
    jobs: Sequence[job.Job],
    summaries: Sequence[dict[str, Any] | None],
    out: Path | None,
    *,
    several: bool,
    quiet: bool,
    html: bool,
    score: str | None = None,
) -> None:
    """Prints the table of the results, and the paths of pictures and pages.

    Args:
        jobs: all jobs.
        summaries: of each, from `run_jobs`.
        out: the common folder, or None.
        several: whether `--seeds` was given.
        quiet: whether the paths are left out.
        html: whether pages were written.
        score: that is printed too, or None.
    """
    if finished := [summary for summary in summaries if summary is not None]:
        finished = add_saved_summaries(jobs, finished) if several else finished
        title, head, rows, caption = tables.results_table(finished, summarise_seeds(finished, out) if several else None)
        print_parts(stdout(), title)
        print_table(stdout(), head, rows, named=several)
        if caption:
            print_parts(stdout(), caption)
        if score is not None:
            print_parts(stdout(), _score_line(score, finished))
        print_parts(stdout(), *tables.privacy_lines(finished), *tables.shortfall_lines(finished))
    for one, summary in zip(jobs, summaries, strict=True):
        if one.out is not None and summary is not None and not quiet:
            if one.pictures:
                print_parts(stdout(), f"pictures: {' and '.join(str(one.out / name) for name in job.PICTURES)}")
            if html:
                print_parts(stdout(), f"page: {one.out / run_page.PAGE}")


def _score_line(score: str, summaries: Sequence[dict[str, Any]]) -> str:
    """Returns a line with a score in percent: mean and deviation of several runs, or why there is none.

    >>> _score_line("macro-best", [{"macro-best accuracy": 0.5}, {"macro-best accuracy": 0.75}, {}])
    'macro-best: 62.50 ± 17.68 % (2 seeds)'
    """
    values = [value for one in summaries if (value := one.get(score_entry(score))) is not None]
    if not values:
        return f"{score}: the run has no such score"
    several = f" ({len(values)} seeds)" if len(values) > 1 else ""
    return f"{score}: {mean_cell([100 * value for value in values], 2, spread=True)} %{several}"


def parse_seeds(text: str) -> list[int]:
    """Returns the seeds of a list such as `0,1,2`, in which `0-4` stands for five seeds.

    Raises:
        ValueError: the text is not a list of integers, repeats a seed, or has a range that is too long.

    >>> parse_seeds("0,1,2"), parse_seeds("0-2,7"), parse_seeds("3")
    ([0, 1, 2], [0, 1, 2, 7], [3])
    """

    def expand_range(ends: re.Match[str]) -> str:
        first, last = map(int, ends.groups())
        if not 0 <= last - first < MAX_SEED_RANGE:
            raise ValueError(
                f"seeds must be ranges of 1 to {MAX_SEED_RANGE}, got {quoted(ends[0])}; write --seeds 0-4."
            )
        return ",".join(map(str, range(first, last + 1)))

    listed = re.sub(r"(\d+)-(\d+)", expand_range, text)
    seeds = options.convert("seeds", listed, Option("seeds", REQUIRED, tuple[int, ...]), "write --seeds 0,1,2 or 0-4")
    if not seeds:
        raise ValueError(f"seeds must be one or more, got {quoted(text)}; write --seeds 0-4.")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must differ, got {quoted(text)}; write each once.")
    return list(seeds)


def rounds_and_cohort(data: str, rounds: int | None, cohort: str | None) -> tuple[int, int | float]:
    """Returns the rounds and the cohort (a share as a float, a count as an int), with the defaults of the data."""
    small = not federations.dataset(data).needs_files
    rounds = (20 if small else 100) if rounds is None else rounds
    if cohort is None:
        return rounds, 0.5 if small else 0.1
    share_or_count = Option("cohort", REQUIRED, int | float)
    return rounds, options.convert("cohort", cohort, share_or_count, "write --cohort 0.1 or --cohort 120")
