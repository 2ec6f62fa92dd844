"""What `jaxfl run` does beside telling: a run under a progress bar, and what there is to say of it."""

import re
from typing import Any

from jaxfl.cli import job, options
from jaxfl.cli.tables.console import saying, stderr
from jaxfl.sampling import cohort_size
from jaxfl.schema import REQUIRED, Option, quoted
from jaxfl.simulation.callbacks import ProgressBar
from jaxfl.simulation.interrupts import Stopped
from jaxfl.simulation.progress import Diverged

MOST = 1000  # seeds of a range


def run_job(one: job.Job, label: str, shared: list[job.Tools]) -> dict[str, Any] | None:
    """Runs one job under a progress bar.

    Args:
        one: checked by `job.check`.
        label: what the bar begins with; empty for a single run.
        shared: what runs of other seeds were made with, empty for the first; it is kept there for the next.

    Returns:
        The summary, None if the run has diverged, which is said; state and data are let go, so that many runs take the
        memory of one.

    Raises:
        Stopped: after it is said what is kept.
    """
    console = stderr()
    with saying(console, f"loading {one.settings.data_name}"):
        data = options.load(one.settings, data_dir=one.data_dir, seed=one.seed)
        cohort_size(one.cohort, data)  # refuses what is too large, before anything is said to compile
    bar = ProgressBar(label=label)
    if not console.is_terminal:
        console.print(f"{label} compiling {one.settings.method_name} on {data.num_clients} clients".strip())
    try:
        with bar:
            shared[:] = [job.Tools.of(one, data, *shared)]
            summary = job.execute(one, data, [bar], *shared).summary
    except Stopped as stopped:
        kept = "nothing was kept" if one.out is not None else "nothing was kept; --out DIR would keep checkpoints"
        if stopped.saved:
            kept = f"it is saved in {one.out}, and the same command with --resume goes on from there"
        console.print(
            f"interrupted after round {stopped.round} of {stopped.rounds}; {kept}", style="yellow", soft_wrap=True
        )
        raise
    except Diverged as error:
        console.print(f"error: {label + ': ' if label else ''}{error}", style="red", soft_wrap=True, markup=False)
        return None
    if count := summary["diverged"]:
        console.print(
            f"warning: {count} of {summary['updates']} updates of clients were not finite and were left out; "
            "lower the learning rate (--set learning_rate=...).",
            style="yellow",
            soft_wrap=True,
        )
    if not summary["resident"]:
        console.print("note: the clients' rows stayed on the host, and a round's were sent ahead (resident).")
    if summary["micro_accuracy"] is None:
        console.print("note: nobody has test rows; nothing was tested.")
    if count := summary["empty_clients"]:
        console.print(f"note: {count} of {data.num_clients} clients have no training rows; they train nothing.")
    return summary


def seeds_of(text: str) -> list[int]:
    """Returns the seeds of a list, in which `0-4` stands for five of them.

    Raises:
        ValueError: it is no list of whole numbers, names one twice, or a range is too long.

    >>> seeds_of("0,1,2"), seeds_of("0-2,7"), seeds_of("3")
    ([0, 1, 2], [0, 1, 2, 7], [3])
    """

    def spelled_out(ends: re.Match[str]) -> str:
        first, last = map(int, ends.groups())
        if not 0 <= last - first < MOST:
            raise ValueError(f"seeds must be ranges of 1 to {MOST}, got {quoted(ends[0])}; write --seeds 0-4.")
        return ",".join(map(str, range(first, last + 1)))

    listed = re.sub(r"(\d+)-(\d+)", spelled_out, text)
    seeds = options.convert("seeds", listed, Option("seeds", REQUIRED, tuple[int, ...]), "write --seeds 0,1,2 or 0-4")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must differ, got {quoted(text)}.")
    return list(seeds)
