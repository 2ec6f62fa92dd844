"""Makes what is missing of the tables of protocols: the methods of each publication, and FedAvg with fine-tuning.

    python -m experiments.protocols cflgp-mnist4 clove-skew1-mnist --data-dir DIR
    python -m experiments.protocols --list

A run is a line of `results/PROTOCOL.jsonl`, with the `jaxfl protocol` that makes it; a run that is there is not made
again. The first three seeds of a protocol are taken. The seeds of a method share one compiled program.
"""

import argparse
import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.harness import results
from experiments.leaderboard.play import same_shapes
from jaxfl import protocols
from jaxfl.data import FederatedData
from jaxfl.jobs import job as jobs
from jaxfl.protocols import Protocol
from jaxfl.protocols.scores import SCORES, score
from jaxfl.settings import options
from jaxfl.simulation.devices import keep_programs
from jaxfl.simulation.progress import Diverged
from jaxfl.simulation.records.history import History

RESULTS = Path(__file__).parent / "results"
BESIDE = "fedavg_ft"  # in every table, after the publication's methods
MOST_SEEDS, MOST_METHODS = 3, 8


def main(words: list[str] | None = None) -> int:
    """Does what a command line asks for, and returns the exit code: 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("protocols", nargs="*", metavar="PROTOCOL", help="a name, or a TOML file")
    parser.add_argument("--method", action="append", help="this method alone")
    parser.add_argument("--reduced", action="store_true", help="the protocols' forms for a CPU")
    parser.add_argument("--data-dir", help="the folder of the data's files, or the one above it")
    parser.add_argument("--list", action="store_true", help="print the protocols, and how many of their runs are made")
    given = parser.parse_args(words)
    if given.list:
        for name in protocols.names():
            one = protocols.read(name)
            for form in (one, one.as_reduced()) if one.reduced else (one,):
                print(f"{form.name}: {len(found(form))} of {len(methods_of(form)) * len(seeds_of(form))} runs")
        return 0
    try:
        chosen = [protocols.read(name) for name in given.protocols]
        chosen = [one.as_reduced() for one in chosen] if given.reduced else chosen
        asked = {one.name: given.method or methods_of(one) for one in chosen}
        for one in chosen:
            for method in asked[one.name]:
                one.settings(method)
    except ValueError as error:
        parser.error(str(error))
    keep_programs()
    return int(sum(make(one, asked[one.name], given.data_dir) for one in chosen) > 0)


def methods_of(protocol: Protocol) -> tuple[str, ...]:
    """Returns the methods of a protocol's table."""
    first = tuple(one for one in protocol.compared if one != BESIDE)[:MOST_METHODS]
    return (*first, BESIDE)


def seeds_of(protocol: Protocol) -> tuple[int, ...]:
    """Returns the seeds of a protocol's table."""
    return protocol.seeds[:MOST_SEEDS]


def job_of(protocol: Protocol, method: str, seed: int) -> jobs.Job:
    """Returns a run of a protocol's table."""
    settings = protocol.settings(method)
    return jobs.Job(settings, protocol.rounds, protocol.cohort, seed, eval_every=protocol.eval_every)


def found(protocol: Protocol) -> dict[tuple[str, int], dict[str, Any]]:
    """Returns the lines of a protocol's table that are made, by method and seed."""
    lines = results.read(path_of(protocol))
    made = {
        (method, seed): results.find(lines, job_of(protocol, method, seed))
        for method in methods_of(protocol)
        for seed in seeds_of(protocol)
    }
    return {key: line for key, line in made.items() if line is not None}


def path_of(protocol: Protocol) -> Path:
    """Returns the file of a protocol's results."""
    return RESULTS / f"{protocol.name}.jsonl"


def make(protocol: Protocol, asked: Sequence[str], data_dir: str | None) -> int:
    """Makes the runs of some methods that are missing, and returns how many failed.

    Raises:
        ValueError: a federation has another digest than the protocol says.
    """
    seeds, failed = seeds_of(protocol), 0
    lines = results.read(path_of(protocol))
    wanted = {
        method: [seed for seed in seeds if results.find(lines, job_of(protocol, method, seed)) is None]
        for method in asked
    }
    if not any(wanted.values()):
        return 0
    try:
        data = load(protocol, data_dir)
    except FileNotFoundError as error:
        _say(f"{protocol.name}: {error}")
        return 1
    for method, missing in wanted.items():
        tools = None
        for seed in missing:
            job = job_of(protocol, method, seed)
            label = f"{protocol.name} / {method}, seed {seed}"
            try:
                tools = jobs.Tools.of(job, data[seed], tools)
                line = line_of(protocol, method, job, data[seed], tools)
            except Exception as error:  # whatever it is, the others go on, and the exit code tells
                failed += 1
                _say(f"{label}: failed, {type(error).__name__}: {error}")
                continue
            results.append(path_of(protocol), line)
            value = line["scores"].get(protocol.score)
            told = "diverged" if value is None else f"{protocol.score} {100 * value:.2f}"
            _say(f"{label}: {told}, {line['processor_seconds']:.0f} processor seconds")
    return failed


def load(protocol: Protocol, data_dir: str | None) -> dict[int, FederatedData]:
    """Returns the federation of each seed, of equal shapes; raises ValueError if one has another digest."""
    settings = protocol.settings(BESIDE)
    data = {seed: options.load(settings, data_dir=data_dir, seed=seed) for seed in seeds_of(protocol)}
    for seed, one in data.items():
        protocol.check(one, seed)
    return dict(zip(data, same_shapes(list(data.values())), strict=True))


def line_of(protocol: Protocol, method: str, job: jobs.Job, data: FederatedData, tools: jobs.Tools) -> dict[str, Any]:
    """Makes a run, and returns the line that is kept of it."""
    began, history = time.process_time(), History()
    with contextlib.suppress(Diverged):
        history = jobs.execute(job, data, tools=tools).history
    last = history[-1] if history else {}
    scores = {name: value for name in SCORES if history and (value := score(name, history)) is not None}
    reduced = ["--reduced"] if protocol.name.endswith(protocols.REDUCED) else []
    words = ["jaxfl", "protocol", protocol.name.removesuffix(protocols.REDUCED), *reduced, "--method", method]
    return {
        "id": results.identifier(job),
        "method": method,
        "seed": job.seed,
        "command": " ".join([*words, "--seeds", str(job.seed), "--data-dir", "DIR"]),
        "scores": results.short(scores),
        "clusters": last.get("num_clusters"),
        **{name: results.short(value) for name, value in last.items() if name.partition("_")[0] == "ari"},
        "processor_seconds": round(time.process_time() - began, 1),
        "configuration": results.configuration(job),
    }


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
