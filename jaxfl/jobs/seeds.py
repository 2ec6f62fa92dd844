"""Runs that differ in their seed alone, each in a folder `seed-S` of one: what may be there, what all come to."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


def across(summaries: Sequence[dict[str, Any]], out: Path | None = None) -> dict[str, dict[str, float | None]]:
    """Returns mean and standard deviation of every number of the summaries of several seeds, and writes them to `out`.

    The standard deviation is that of a sample (n - 1); None for one run.
    """
    spread = {}
    for name in summaries[0]:
        values = [summary[name] for summary in summaries]
        if name != "seed" and all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in values):
            deviation = statistics.stdev(values) if len(values) > 1 else None
            spread[name] = {"mean": statistics.fmean(values), "std": deviation}
    if out is not None and processes.first():
        RunDirectory(out).write_summary({"seeds": [summary["seed"] for summary in summaries], **spread})
    return spread
