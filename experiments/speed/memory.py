"""What `jaxfl plan` says that a run takes in memory, beside what it takes: a line for every method.

A process for each method makes the run twice: the first time compiles and is not measured, of the second counts what
the process holds at most beyond what it held before. On a GPU a process makes it once, and its peak on the device
counts. Models are large beside all else: a network 64-3000-3000-10, 24 clients of 40 rows, 8 in a round, one
full-batch step, two rounds and an evaluation.

    python -m experiments.speed.memory --out FILE
"""

import argparse
import gc
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import optax

import jaxfl
from experiments.speed import measure
from jaxfl.host.operating_system import return_freed_memory
from jaxfl.methods import METHODS, Method
from jaxfl.simulation.program import peak_bytes

CLIENTS, ROWS, COHORT, ROUNDS = 24, 40, 8, 2
OPTIONS: dict[str, Any] = {"local_epochs": 1, "batch_size": None, "num_clusters": 4}  # of methods that have them
LARGE = ".*_1"  # the layer between the hidden ones, for each client where methods have layers of each
OWN: dict[str, dict[str, Any]] = {
    "fedper": {"personal": LARGE},
    "fedrep": {"personal": LARGE, "head_epochs": 1},
    "lg_fedavg": {"shared": ".*_[02]", "warmup_rounds": 1},
    "flhc": {"warmup_rounds": 1},
    "feddrift": {"rounds_per_step": 1},  # so that a step begins in these rounds
}
WIDTH = {"fesem_ma": 1200}  # its matching takes a time that is cubic in the width


def make(name: str, hidden: int) -> tuple[Method, jaxfl.data.FederatedData]:
    """Returns a method and its data."""
    data = jaxfl.data.load("rotated-digits", num_clients=CLIENTS, rows_per_client=ROWS)
    width = min(hidden, WIDTH.get(name, hidden))
    task = jaxfl.classification(jaxfl.models.create(METHODS[name].network, 10, hidden=(width, width)), data)
    options = {key: value for key, value in OPTIONS.items() if key in METHODS[name].options}
    return METHODS[name].factory(task, optax.sgd(0.05), **options, **OWN.get(name, {})), data


def measured(name: str, hidden: int) -> dict[str, Any]:
    """Returns what was planned and what was taken, by this process."""
    method, data = make(name, hidden)
    plan = jaxfl.footprint(method, data, cohort=COHORT)

    def run() -> None:
        jax.block_until_ready(jaxfl.run(method, data, rounds=ROUNDS, cohort=COHORT, seed=0).state)

    if on_host := jax.default_backend() == "cpu":
        run()
        gc.collect()
        return_freed_memory()  # memory that was freed would be taken again, and not be seen
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = resident() if on_host else 0
    run()
    parts = {key: getattr(plan, key) for key in ("data", "state", "working", "evaluation", "start", "host", "model")}
    taken = peak_bytes() - before if not on_host else resident("VmHWM") - before
    return {"method": name, "planned": plan.total, "taken": taken, "parts": parts}


def resident(line: str = "VmRSS") -> int:
    """Returns the bytes that this process holds, or (`VmHWM`) the most that it has held."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(lines[line].split()[0])


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Measures every method that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--hidden", type=int, default=3000, help="units of each of the two hidden layers")
    parser.add_argument("--alone", action="store_true", help="in this process, of one method")
    parser.add_argument("--out", type=Path, help="file that gets the JSON lines appended")
    options = parser.parse_args(arguments)
    found = []
    for name in options.methods:
        if options.alone:
            found.append(measure.write({"workload": "memory", **measured(name, options.hidden)}, options.out))
            continue
        words = ["--methods", name, "--hidden", str(options.hidden), "--alone"]
        command = [sys.executable, "-m", "experiments.speed.memory", *words]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(json.dumps(found[-1]) + "\n")
        planned, taken = found[-1]["planned"], found[-1]["taken"]
        print(f"{name:<12} planned {planned / 1e6:8.1f} MB, taken {taken / 1e6:8.1f} MB: {planned / taken:.2f}")
    return found


if __name__ == "__main__":
    main()
