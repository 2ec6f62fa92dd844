"""A long run, and many runs in one process: nothing is compiled again, and memory and open files stay as they are.

    python -m experiments.reliability.soak --rounds 50000 --runs 500 --out experiments/reliability/results/soak.jsonl

The long run evaluates and saves now and then. The many runs have another seed each: other data of the same shapes,
other initial models, a directory of their own. A tenth as many runs more have a method of their own each: they compile,
and their programs must be let go. Clients train one at a time: with chunks, an evaluation has a program for every power
of two of the models and test sets that differ.

A finding is: a compilation after the first evaluation (the first run), more open files or threads than then, or more
memory than then by a figure that is printed: the resident set, after a garbage collection.
"""

import contextlib
import gc
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import optax

import jaxfl
from experiments.reliability.campaign import parser, until
from experiments.speed import measure
from experiments.speed.w8 import Compilations
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Method

GROWTH = {"long run": 30, "many runs": 30, "own methods": 150}  # megabytes: programs of the last few are kept
MEASURED = 20  # times


class OutOfTime(Exception):
    """The long run has had its share of `--minutes`."""


class Watch:
    """What the process holds, from the first time on that it is asked.

    Args:
        every: calls between two measurements.
    """

    def __init__(self, every: int):
        self.every, self.calls, self.compilations = max(1, every), 0, Compilations()
        self.held: list[dict[str, int]] = []

    def look(self) -> None:
        """Measures, if it is time to."""
        if self.calls % self.every == 0:
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.held.append(
                {
                    "megabytes": pages * os.sysconf("SC_PAGE_SIZE") >> 20,
                    "files": len(os.listdir("/proc/self/fd")),
                    "threads": threading.active_count(),
                    "compilations": self.compilations.count,
                }
            )
        self.calls += 1

    def record(self, part: str, *, compiles: bool = False) -> dict[str, Any]:
        """Returns what was measured, and what is wrong with it."""
        if not self.held:
            return {"part": part, "held": [], "findings": ["out of time before anything was measured"]}
        first, last = self.held[0], self.held[-1]
        limits = {"megabytes": GROWTH[part], "files": 0, "threads": 0} | ({} if compiles else {"compilations": 0})
        findings = [
            f"{name}: {first[name]} -> {last[name]}" for name in limits if last[name] - first[name] > limits[name]
        ]
        return {"part": part, "held": self.held, "growth_limit": limits, "findings": findings}


def federation(seed: int) -> FederatedData:
    """Returns a tiny federation; of the same shapes for every seed."""
    return jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20, seed=seed)


def made(data: FederatedData) -> Method:
    """Returns a method."""
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    return jaxfl.methods.ifca(task, optax.sgd(0.05), num_clusters=2, local_epochs=1, batch_size=10)


def long_run(method: Method, rounds: int, seed: int, folder: Path, more: Callable[[], bool]) -> dict[str, Any]:
    """Makes one run; one that is out of time is stopped."""
    data, watch, done = federation(seed), Watch(1), 0
    every = max(1, rounds // MEASURED)

    def look(event: jaxfl.Event) -> None:
        nonlocal done
        done = event.round
        if event.record is not None:
            watch.look()
        if not more():
            raise OutOfTime

    options = {"eval_every": every, "checkpoint_every": every, "checkpoint_dir": folder / "long", "plan": jaxfl.Plan(1)}
    with contextlib.suppress(OutOfTime):
        jaxfl.run(method, data, rounds=rounds, cohort=4, seed=seed, callbacks=[look], **options)
    return {**watch.record("long run"), "rounds": done}


def many_runs(
    runs: int, first: int, folder: Path, part: str, method: Callable[[FederatedData], Method], more: Callable[[], bool]
) -> dict[str, Any]:
    """Makes runs one after another, with a seed each.

    Args:
        runs: how many.
        first: the first seed.
        folder: for their directories.
        part: of the campaign.
        method: returns a run's.
        more: whether there is time for another one.
    """
    watch = Watch(runs // MEASURED)
    for seed in range(first, first + runs):
        if seed > first + 1 and not more():  # the second is compared with the first
            break
        data = federation(seed)
        options = {"eval_every": 2, "checkpoint_dir": folder / part / str(seed), "plan": jaxfl.Plan(1)}
        jaxfl.run(method(data), data, rounds=4, cohort=4, seed=seed, **options)
        watch.look()
    return {**watch.record(part, compiles=part == "own methods"), "runs": watch.calls}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the campaign, prints what it found, and returns 1 if that is anything."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=50_000, help="of the long run")
    options.add_argument("--runs", type=int, default=500)
    given = options.parse_args(arguments)
    jax.clear_caches()
    one, each = made(federation(given.seed)), given.minutes and given.minutes / 3
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = [long_run(one, given.rounds, given.seed, folder, until(each))]
        for part, method, runs in (
            ("many runs", lambda data: one, given.runs),
            ("own methods", made, given.runs // 10),
        ):
            parts.append(many_runs(max(2, runs), given.seed, folder, part, method, until(each)))
    findings = [f"{part['part']}, {finding}" for part in parts for finding in part["findings"]]
    print(*findings, sep="\n")
    record = {"campaign": "soak", "seed": given.seed, "rounds": parts[0]["rounds"]}
    record |= {"runs": sum(part["runs"] for part in parts[1:])}
    measure.write({**record, "parts": parts, "findings": findings}, given.out)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
