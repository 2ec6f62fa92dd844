"""Accuracy by simulated time: four methods, three clocks, three policies, two federations, three seeds.

    python -m experiments.clock --data-dir DIR           makes the runs that are missing
    python -m experiments.clock --data-dir DIR --rates   makes those by which the learning rates were chosen
    python -m experiments.clock --list                   prints the command of each run

A run is a line of `results/runs.jsonl`; a run that is there is not made again. Processes that are started beside each
other, such as one for each core (`taskset -c 0 python -m experiments.clock ...`), share the runs: each takes the next
program, of three clocks and three seeds, that no other one has.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock, Timeout

from experiments.clock import grid
from experiments.leaderboard.play import same_shapes
from experiments.wire.grid import Setting, command_line
from jaxfl.data import FederatedData
from jaxfl.jobs import job as jobs
from jaxfl.settings import options
from jaxfl.simulation.devices import keep_programs

RUNS, RATES = "runs", "rates"
RATE_SEED = 3  # none of the grid


def main(words: list[str] | None = None) -> None:
    """Makes the runs that are missing, or prints them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", help="the folder of the data's files, or the one above it")
    parser.add_argument("--federation", choices=[on.name for on in grid.FEDERATIONS], help="of this one alone")
    parser.add_argument("--clock", choices=grid.CLOCKS, help="with this one alone")
    parser.add_argument("--rates", action="store_true", help="the runs by which the learning rates were chosen")
    parser.add_argument("--list", action="store_true", help="print the command of each run")
    given = parser.parse_args(words)
    wanted = [one for one in grid.FEDERATIONS if given.federation in (None, one.name)]
    file = RATES if given.rates else RUNS
    for on in wanted:
        groups = rate_settings(on) if given.rates else program_settings(on, given.clock)
        if given.list:
            for setting, seed in (run for group in groups.values() for run in group):
                print(command_line(setting, seed))
        else:
            make(on, file, groups, given.data_dir)


Run = tuple[Setting, int]


def program_settings(on: grid.Federation, clock: str | None = None) -> dict[str, list[Run]]:
    """Returns the runs of a federation with a clock, or with all of them, and their seeds, by what shares a program."""
    clocks = grid.CLOCKS if clock is None else (clock,)
    return {
        f"{on.name}-{one.method}-{one.policy}": [(one.setting(name), seed) for name in clocks for seed in grid.SEEDS]
        for one in grid.PROGRAMS
        if one.on == on
    }


def rate_settings(on: grid.Federation) -> dict[str, list[Run]]:
    """Returns the runs by which the learning rates of a federation were chosen: synchronous, of another seed."""
    found = {}
    for method in grid.METHODS:
        setting = grid.Program(on, method, "synchronous").setting("equal")
        for rate in on.tried:
            tried = Setting(method, {**setting.options, **on.trial, "learning_rate": rate})
            found[f"{on.name}-{method}-{rate}"] = [(tried, RATE_SEED)]
    return found


def make(on: grid.Federation, file: str, groups: dict[str, list[Run]], data_dir: str | None) -> None:
    """Makes the runs of a federation that are missing."""
    path = grid.RESULTS / f"{file}.jsonl"
    keep_programs()
    path.parent.mkdir(exist_ok=True)
    every = [run for group in groups.values() for run in group]
    missing = missing_runs(path, every)
    print(
        f"{on.title}: {len(every)} runs, {len(every) - len(missing)} there; the others take about "
        f"{on.core_seconds * len(missing) / 3600:.1f} core-hours",
        flush=True,
    )
    data: dict[int, FederatedData] = {}
    for name, runs in groups.items() if missing else ():
        lock = FileLock(Path(tempfile.gettempdir()) / f"jaxfl-clock-{name}.lock", timeout=0)
        try:
            with lock:
                tools = None
                for setting, seed in missing_runs(path, runs):
                    data = data or load(setting, sorted({seed for _, seed in every}), data_dir)
                    tools = make_run(path, setting, seed, data[seed], tools)
        except Timeout:  # another process makes them
            continue


def missing_runs(path: Path, runs: Iterable[Run]) -> list[Run]:
    """Returns the runs that have no line in a file."""
    there = grid.read(path)
    return [(one, seed) for one, seed in runs if grid.run_name(one.method, one.options, seed) not in there]


def load(setting: Setting, seeds: list[int], data_dir: str | None) -> dict[int, FederatedData]:
    """Returns the federation of each seed, of equal shapes."""
    settings = grid.job_of(setting, seeds[0]).settings
    found = [options.load(settings, data_dir=data_dir, seed=seed) for seed in seeds]
    return dict(zip(seeds, same_shapes(found), strict=True))


def make_run(path: Path, setting: Setting, seed: int, data: FederatedData, tools: jobs.Tools | None) -> jobs.Tools:
    """Makes a run and adds its line to a file; returns its objects, for the other runs of its program."""
    began, job = time.process_time(), grid.job_of(setting, seed)
    tools = jobs.Tools.of(job, data, tools)
    found = grid.record(job, data, jobs.execute(job, data, tools=tools))
    seconds = round(time.process_time() - began, 1)
    line = {**setting._asdict(), "seed": seed, "processor_seconds": seconds, **found}
    with path.open("a", encoding="utf-8") as lines:  # a line is written at once: processes may share the file
        lines.write(json.dumps(line, separators=(",", ":")) + "\n")
    print(f"{command_line(setting, seed)}\n  accuracy {found['curve'][-1][2]:.3f}, {seconds:.0f} s", flush=True)
    return tools


if __name__ == "__main__":
    main()
