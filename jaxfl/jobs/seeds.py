"""Runs that differ in their seed alone, each in a folder `seed-S` of one: what may be there, what all come to."""

import contextlib
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxfl.analysis.cells import deviation
from jaxfl.jobs import job
from jaxfl.simulation import processes
from jaxfl.simulation.directory import RunDirectory


def check(jobs: Sequence[job.Job]) -> None:
    """Raises what can be said before anything is loaded.

    Args:
        jobs: of different seeds; their directories, if any, are `seed-S` of one.

    Raises:
        ValueError: as `jaxfl.jobs.job.check`, or the folder of all is that of a single run.
    """
    out = None if jobs[0].out is None else jobs[0].out.parent
    if out is not None and (held := processes.by_first(RunDirectory(out).held_of_its_own)):
        raise ValueError(
            f"out must be a folder for the runs of several seeds, got {str(out)!r}, which holds a single run "
            f"({held[0]}); leave --seeds out and resume it, or choose another directory."
        )
    for one in jobs:
        job.check(one)


def with_others(jobs: Sequence[job.Job], made: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns summaries with those of the same runs of other seeds that were kept beside them, by seed.

    Args:
        jobs: as `check` takes them.
        made: the summaries of those that have ended.
    """
    asked = {one.seed for one in jobs}

    def kept() -> list[dict[str, Any]]:
        found = []
        for path in [] if jobs[0].out is None else jobs[0].out.parent.glob("seed-*"):
            number = path.name.removeprefix("seed-")
            if number.isdecimal() and int(number) not in asked:
                other = jobs[0]._replace(seed=int(number), out=path, resume=True)
                with contextlib.suppress(ValueError):  # a damaged one is none
                    summary = _ended(path, other.rounds)
                    if summary is not None and not RunDirectory(path).is_of_another(other.config()):
                        found.append(summary)
        return found

    return sorted([*made, *processes.by_first(kept)], key=lambda summary: summary["seed"])


def _ended(path: Path, rounds: int) -> dict[str, Any] | None:
    """Returns the summary of a run that was asked for so many rounds; a callback may have ended it before them."""
    directory = RunDirectory(path)
    summary, config = directory.summary(), directory.config() or {}
    return None if summary is None or config.get("rounds") != rounds or directory.goes_on() else summary


def across(summaries: Sequence[dict[str, Any]], out: Path | None = None) -> dict[str, dict[str, float | None]]:
    """Returns mean and standard deviation of every number of the summaries of several seeds, and writes them to `out`.

    The standard deviation is that of a sample (n - 1); None for one run, or where a number is not finite.
    """
    spread = {}
    for name in summaries[0]:
        values = [summary.get(name) for summary in summaries]  # one of an older version may have none
        numbers = [one for one in values if isinstance(one, (int, float)) and not isinstance(one, bool)]
        if name != "seed" and len(numbers) == len(values):
            spread[name] = {"mean": statistics.fmean(numbers), "std": deviation(numbers)}
    if out is not None and processes.first():
        RunDirectory(out).write_summary({"seeds": [summary["seed"] for summary in summaries], **spread})
    return spread
