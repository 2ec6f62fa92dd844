"""Whole sweeps, as somebody types them: each in a process of its own, from its start to its table.

    digits   36 runs: four methods at three learning rates and three seeds
    stocfl   18 runs of StoCFL on 200 clients
    rates    60 runs of 100 rounds: 20 learning rates and three seeds

Each turn runs a sweep with this clone, with this clone in one process (`--jobs 1`), and with another clone (`--base
DIR`, such as a worktree of an earlier commit), one after the other and each with an empty cache folder, so that all
compile. What a file given by `--out` has already is not measured again:

    python -m experiments.speed.sweeps digits stocfl rates --base DIR --out FILE
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxfl.bench.machine import facts

HERE = Path(__file__).resolve().parents[2]
SMALL = "fedavg --data rotated-digits --set num_clients=4 --set learning_rate=0.1,0.2 --rounds 2"
RATES = ",".join(f"{0.01 * number:.2f}" for number in range(1, 21))


class Part(NamedTuple):
    """A sweep, and what it is to reach."""

    what: str
    words: str
    goal: float  # of the ratio
    beside: str  # the side that the ratio is of; "rounds" are the runs' own seconds, and one compilation


PARTS = {
    "digits": Part(
        "four methods on the digits at three learning rates and three seeds",
        "fedavg,fedprox,ifca,stocfl --data rotated-digits --set learning_rate=0.05,0.1,0.2 --seeds 0-2",
        3.0,
        "base",
    ),
    "stocfl": Part(
        "StoCFL on 200 clients of the digits at three learning rates, two thresholds and three seeds, 100 rounds",
        "stocfl --data rotated-digits --set num_clients=200 --set rows_per_client=28 --set hidden=200 "
        "--set learning_rate=0.05,0.1,0.2 --set threshold=0.4,0.5 --seeds 0-2 --rounds 100 --cohort 0.5",
        1.8,
        "base",
    ),
    "rates": Part(
        "FedAvg on the digits at 20 learning rates and three seeds, 100 rounds",
        f"fedavg --data rotated-digits --set learning_rate={RATES} --seeds 0-2 --rounds 100",
        1.3,
        "rounds",
    ),
}


def timed(words: Sequence[str], clone: Path) -> dict[str, Any]:
    """Returns the seconds of a sweep, and what its runs say of themselves.

    Args:
        words: of the command, without its folder.
        clone: whose jaxfl is run.

    Raises:
        SystemExit: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "jaxfl", "sweep", *words, "--out", f"{folder}/runs"]
        environment = {**os.environ, "XDG_CACHE_HOME": f"{folder}/cache", "PYTHONPATH": str(clone)}
        began = time.perf_counter()
        made = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - began
        if made.returncode:
            raise SystemExit(f"{' '.join(command[1:])} failed:\n{made.stderr}")
        files = sorted(Path(folder).glob("runs/*/seed-*/summary.json"))
        summaries = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    rounds = sum(one["rounds"] * one["seconds_per_round"] for one in summaries)
    compilation = max(one["compile_seconds"] for one in summaries)
    return {"seconds": seconds, "runs": len(summaries), "rounds": rounds, "compilation": compilation}


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Measures the parts that are named, writes a line for each sweep, and prints the ratios; returns the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=list(PARTS), metavar="NAME", help=", ".join(PARTS))
    parser.add_argument("--base", type=Path, help="another clone, which is measured too")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, help="file that gets a line for each sweep")
    parser.add_argument("--smoke", action="store_true", help="two runs of two rounds for each part")
    options = parser.parse_args(arguments)
    lines = options.out.read_text(encoding="utf-8").splitlines() if options.out and options.out.exists() else []
    records = [json.loads(line) for line in lines]
    sides = {"jaxfl": (HERE, []), "one": (HERE, ["--jobs", "1"])}
    if options.base is not None:
        sides["base"] = (options.base.resolve(), [])
    for name in options.names:
        words = (SMALL if options.smoke else PARTS[name].words).split()
        for turn in range(options.turns):
            for side, (clone, more) in sides.items():
                place = {"workload": f"sweep-{name}", "side": side, "turn": turn}
                if any(place.items() <= one.items() for one in records):
                    continue
                record = {**place, "command": f"jaxfl sweep {' '.join([*words, *more])}"}
                record |= timed([*words, *more], clone) | facts()
                print(f"{name} {turn} {side}: {record['seconds']:.1f} s", flush=True)
                records.append(record)
                if options.out is not None:
                    with options.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(record) + "\n")
        for line in ratios(name, records):
            print(line, flush=True)
    return records


def ratios(name: str, records: Sequence[dict[str, Any]]) -> list[str]:
    """Returns a line for each side: its seconds, beside those of this clone in the same turn."""
    by_side: dict[str, dict[int, dict[str, Any]]] = {}
    for one in records:
        if one["workload"] == f"sweep-{name}":
            by_side.setdefault(one["side"], {})[one["turn"]] = one
    part, own = PARTS[name], by_side["jaxfl"]
    found = {
        side: [turns[turn]["seconds"] / own[turn]["seconds"] for turn in turns if turn in own]
        for side, turns in by_side.items()
    }
    found["rounds"] = [one["seconds"] / (one["rounds"] + one["compilation"]) for one in own.values()]
    lines = [f"{name}: {own[min(own)]['runs']} runs, {statistics.median(one['seconds'] for one in own.values()):.1f} s"]
    for side, values in found.items():
        if side != "jaxfl" and values:
            bound = ("at most" if side == "rounds" else "at least") + f" {part.goal}"
            goal = f", goal {bound}" if side == part.beside else ""
            what = "of rounds and one compilation" if side == "rounds" else f"{side} / jaxfl"
            lines.append(f"  {what}: {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f}){goal}")
    return lines


if __name__ == "__main__":
    main()
