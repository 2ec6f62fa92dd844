"""What looks on at a run of the command line beside the progress bar: `--log`, `--stop-early`, `--time-limit`."""

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from jaxfl.jobs.job import Job
from jaxfl.schema import check_name, quoted
from jaxfl.simulation import loggers
from jaxfl.simulation.callbacks import EarlyStopping, TimeLimit
from jaxfl.simulation.result import Callback, Event, leaving

Watchers = Callable[[Sequence[Job]], list[Callback]]

# What writes the numbers of a run somewhere else; the first two write into its folder.
LOGGERS: dict[str, Callable[[Job], Callback]] = {
    "csv": lambda job: _at_first_event(lambda: loggers.csv(f"{job.out}/log.csv")),  # the run has made the folder then
    "tensorboard": lambda job: loggers.tensorboard(f"{job.out}/tensorboard"),
    "wandb": lambda job: loggers.wandb(project="jaxfl", name=_name(job), config=job.config(), reinit="create_new"),
    "mlflow": lambda job: loggers.mlflow(run_name=_name(job)),
}
NEED_A_FOLDER = ("csv", "tensorboard")


def watchers(log: Sequence[str], stop_early: int | None, time_limit: str | None, jobs: Sequence[Job]) -> Watchers:
    """Returns what makes the callbacks of some of the jobs, which are run in one program.

    Args:
        log: names of `LOGGERS`.
        stop_early: evaluations without a better value of the task's main metric; None never ends a run.
        time_limit: as `seconds_of` reads it, or None.
        jobs: all.

    Raises:
        ValueError: a name is unknown, a number is not possible, or there is no folder to write to.
        ImportError: a logger is not installed.
    """
    log = list(dict.fromkeys(log))
    for name in log:
        check_name("log", name, LOGGERS)
        if name in NEED_A_FOLDER and jobs[0].out is None:
            raise ValueError(f"log={name} writes into the folder of the run; add --out DIR.")
        loggers.check(name)
    limit = None if time_limit is None else seconds_of(time_limit)
    if stop_early is not None and stop_early < 1:
        raise ValueError(
            f"stop_early must be at least 1 evaluation, got {stop_early}; leave it out to make all rounds."
        )

    def make(group: Sequence[Job]) -> list[Callback]:
        made = [_OfEach(LOGGERS[name], group) for name in log]
        stops = [] if stop_early is None else [EarlyStopping(stop_early)]
        return [*made, *stops, *([] if limit is None else [TimeLimit(limit)])]

    return make


class _OfEach:
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


def _at_first_event(make: Callable[[], Callback]) -> Callback:
    """Returns a callback that is made when it is told something."""
    made = functools.cache(make)
    return lambda event: made()(event)


def _name(job: Job) -> str:
    """Returns what a run is called elsewhere."""
    return f"{job.identity()['method']} on {job.settings.data_name}, seed {job.seed}"


def seconds_of(text: str) -> float:
    """Returns a time in seconds.

    Raises:
        ValueError: it is none.

    >>> seconds_of("30m"), seconds_of("1h30m"), seconds_of("90"), seconds_of("1.5h")
    (1800.0, 5400.0, 90.0, 5400.0)
    """
    number = r"(\d+(?:\.\d+)?)"
    found = re.fullmatch(f"(?:{number}h)?(?:{number}m)?(?:{number}s)?", re.sub(f"^{number}$", r"\1s", text.strip()))
    parts = found.groups() if found else ()
    seconds = sum(float(part or 0) * scale for part, scale in zip(parts, (3600, 60, 1), strict=False))
    if seconds <= 0:
        raise ValueError(f"time_limit must be a time above 0, got {quoted(text)}; write 30m, 2h, 1h30m or 90s.")
    return seconds
