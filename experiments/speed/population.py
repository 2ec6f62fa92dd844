"""A population beyond memory: cohorts out of 1,000,000 clients whose rows lie in mapped files, beside 10,000 in memory.

Every client has 50 training rows of 28 x 28 uint8 pixels, 39 GB in all, and is tested on 10 rows of a shared set. The
file of the pool is sparse: it has its full length, and pixels (a noisy prototype of the class, another one for every
row) are written for the clients that the seed draws in the measured rounds; all others have black pixels that nobody
reads. What was written is put out of the system's cache first, so that rows come from the disk.

The method (FedAvg, unless another is named) trains the 784-200-10 network for one shuffled epoch in batches of 10 (as
in W8) or the 784-2048-10 network for five full-batch steps (as in W6). Both sides run their rounds in one process, in
turns of some rounds each; a resident turn is one call of the compiled loop. CPU seconds are those of the whole process,
with the threads that read ahead.
Start and peak memory are those of a process of its own: from the start of Python to the end of the first round, and the
most that was resident after as many rounds and an evaluation of 1,000 clients.

    python -m experiments.speed.population --folder DIR --clients 100 1000

Ditto and FedPer keep a model, or its first layer, for each client, too: 64 and 63 GB of the 784-200-10 network for
100,000 clients. Those of the streamed side stay on the host, in a temporary file (TMPDIR says where) that gets a row
for every client that has trained. Its folder is another one than that of 1,000,000 clients.

    python -m experiments.speed.population --folder DIR --population 100000 --resident 1000 --method ditto fedper
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxfl
from experiments.speed import measure
from jaxfl import sampling, tree
from jaxfl.data import FederatedData, Split, stored
from jaxfl.data.synthetic import prototypes
from jaxfl.methods import Method
from jaxfl.simulation.host.streaming import RowStream
from jaxfl.simulation.prepared import Prepared
from jaxfl.simulation.program import peak_bytes
from jaxfl.simulation.rounds import HostRounds, Rounds

ROWS, TESTED, TEST_POOL = 50, 10, 10_000
PART = 1 << 24  # row numbers written at once
NETWORKS = {"784-200-10": ((200,), 1, 10), "784-2048-10": ((2048,), 5, None)}  # hidden, epochs, batch size
METHODS: dict[str, Any] = {  # and what else they are given than epochs and batch size
    "fedavg": (jaxfl.methods.fedavg, {}),
    "ditto": (jaxfl.methods.ditto, {}),
    "fedper": (jaxfl.methods.fedper, {"personal": "Dense_0"}),  # almost all of the network
}


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the workload."""
    parser = measure.parser(__doc__, clients=100, peers="none")
    parser.add_argument(
        "--folder", type=Path, required=True, help="gets the files, or has them; 40 GB long, and sparse"
    )
    parser.add_argument("--population", type=int, default=1_000_000)
    parser.add_argument("--resident", type=int, default=10_000, help="clients of the other side")
    parser.add_argument("--turns", type=int, default=5, help="of each side, of --rounds rounds")
    parser.add_argument("--network", choices=list(NETWORKS), default="784-200-10")
    parser.add_argument("--method", choices=list(METHODS), nargs="+", default=["fedavg"])
    parser.add_argument("--alone", action="store_true", help="only the streamed run, in this process")
    parser.add_argument("--no-alone", action="store_true", help="only the turns")
    options = parser.parse_args(arguments)
    found = []
    for cohort, name in itertools.product(options.clients, options.method):
        if options.alone:
            found.append(alone(options, cohort, name))
            continue
        make(options.folder, options.population, cohort, options.rounds * (options.turns + 1))
        turns = in_turns(options, cohort, name)
        facts = {"workload": "population", "population": options.population, "cohort": cohort, "method": name}
        facts |= {"network": options.network, "resident": options.resident, **turns}
        facts |= {} if options.no_alone else {"alone": in_a_process(options, cohort, name)}
        found.append(measure.write(facts, options.out))
        print(
            f"  {name}, {cohort} of {options.population:,}: {turns['ratio']['median']:.2f} x the round of "
            f"{options.resident:,} resident clients ({turns['cpu_ratio']['median']:.2f} x its CPU seconds)"
        )
    return found


def in_a_process(options: Any, cohort: int, name: str) -> dict[str, Any]:
    """Returns what `alone` finds in a process of its own."""
    forget(options.folder / "inputs.npy")
    words = ["--alone", "--clients", cohort, "--folder", options.folder, "--network", options.network]
    words += ["--method", name]
    words += ["--rounds", options.rounds, "--turns", options.turns]
    command = [sys.executable, "-m", "experiments.speed.population", *map(str, words)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"  alone: first round after {found['start_seconds']:.1f} s, peak {found['peak_bytes'] / 1e6:.0f} MB")
    return found


def make(folder: Path, population: int, cohort: int, rounds: int) -> None:
    """Writes the files, if they are not there, and the rows of those who are drawn.

    Args:
        folder: of the federation.
        population: N.
        cohort: C.
        rounds: of the run.
    """
    pool = population * ROWS
    if not (folder / stored.HEADER).exists():
        folder.mkdir(parents=True)
        first = np.arange(population, dtype=np.int64)
        arrays = {
            "train.start": (first * ROWS).astype(np.int32),
            "train.size": np.full(population, ROWS, np.int32),
            "test.start": (first * TESTED % TEST_POOL).astype(np.int32),
            "test.size": np.full(population, TESTED, np.int32),
            "test.rows": np.arange(pool, pool + TEST_POOL, dtype=np.int32),
            "mean": np.float32(127),
            "std": np.float32(64),
        }
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)
        rows = np.lib.format.open_memmap(folder / "train.rows.npy", "w+", np.int32, (pool,))
        for begin in range(0, pool, PART):
            rows[begin : begin + PART] = np.arange(begin, min(begin + PART, pool))
        said = {name: (array.dtype, array.shape) for name, array in arrays.items()}
        said |= {"train.rows": (rows.dtype, rows.shape)}
        for name, kind, shape in (("inputs", np.uint8, (28, 28)), ("labels", np.int32, ())):
            sparse = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", kind, (pool + TEST_POOL, *shape))
            said[name] = (sparse.dtype, sparse.shape)
        blank = prototypes(1, ROWS, (28, 28), 10)
        blank = replace(blank, test=Split.pack([np.zeros(TESTED, int)]), name="population")
        stored.write_header(folder, blank, said)
    inputs, labels = (np.load(folder / f"{name}.npy", mmap_mode="r+") for name in ("inputs", "labels"))
    data, key = stored.load(folder), jax.random.key(0)
    draw = jax.jit(lambda key, round: sampling.uniform(key, round, data, cohort).ids)
    drawn = np.unique(np.concatenate([np.asarray(draw(key, jnp.int32(round))) for round in range(rounds)]))
    centre = np.random.default_rng(0).integers(0, 128, (10, 28, 28), np.uint8)
    for begin, count in [(pool, TEST_POOL), *((int(client) * ROWS, ROWS) for client in drawn)]:
        rng = np.random.default_rng(begin)
        of = rng.integers(0, 10, count)
        labels[begin : begin + count] = of
        inputs[begin : begin + count] = centre[of] + rng.integers(0, 128, (count, 28, 28), np.uint8)
    inputs.flush()
    del inputs
    forget(folder / "inputs.npy")


def forget(path: Path) -> None:
    """Puts a file out of the system's cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def method_of(name: str, network: str, data: FederatedData) -> Method:
    """Returns a method of a network."""
    (factory, given), (hidden, epochs, batch_size) = METHODS[name], NETWORKS[network]
    task = jaxfl.classification(jaxfl.models.MLP(hidden, 10), data)
    return factory(task, optax.sgd(0.05), local_epochs=epochs, batch_size=batch_size, **given)


def in_turns(options: Any, cohort: int, method_name: str) -> dict[str, Any]:
    """Returns the seconds of a round of both sides, turn by turn, and their ratios."""
    saved, few = stored.load(options.folder), prototypes(options.resident, ROWS, (28, 28), 10)
    key, total = jax.random.key(0), options.rounds * (options.turns + 1)
    sides = {}
    for name, data in (("streamed", saved), ("resident", few)):
        method = method_of(method_name, options.network, data)
        prepared = Prepared.of(method, data, cohort, resident=True)
        stream = RowStream(data, key, cohort, prepared.plan, sampling.uniform, total) if name == "streamed" else None
        rows = data.on_device() if stream is None else stream.blank
        if stream is not None and method.per_client is not None:
            program: Rounds = HostRounds(prepared, key, sampling.uniform, stream, None)
        else:
            program = Rounds(prepared, key, rows, sampling.uniform, stream)
        sides[name] = [program, program.start()]
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.turns + 1):
        for name, side in sides.items():
            began, used, left = time.perf_counter(), time.process_time(), options.rounds
            while left:
                side[1], made = side[0].advance(side[1], left)
                left -= made.count
            seconds[name].append((time.perf_counter() - began) / options.rounds)
            cpu[name].append((time.process_time() - used) / options.rounds)

    def ratio(of: dict[str, list[float]]) -> dict[str, Any]:
        return measure.spread_of([a / b for a, b in zip(of["streamed"][1:], of["resident"][1:], strict=True)])

    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "medians": medians,
        "ratio": ratio(seconds),
        "cpu_ratio": ratio(cpu),
    }


def alone(options: Any, cohort: int, name: str) -> dict[str, Any]:
    """Returns start and peak memory of the streamed run in this process, and prints them as JSON."""
    first: list[float] = []
    saved = stored.load(options.folder)
    total, method = options.rounds * (options.turns + 1), method_of(name, options.network, saved)
    result = jaxfl.run(
        method,
        saved,
        rounds=total,
        cohort=cohort,
        eval_every=total,
        eval_clients=1000,
        resident=False,
        callbacks=[lambda event: first.append(time.time())],
    )
    found = {
        "start_seconds": first[0] - began_at(),
        "seconds_per_round": result.summary["seconds_per_round"],
        "evaluation_seconds": result.summary["evaluation_seconds"],
        "micro_accuracy": result.summary["micro_accuracy"],
        "rounds": total,
        "peak_bytes": peak_bytes(),
    }
    if method.per_client is not None:
        rows = getattr(result.state, method.per_client)
        trained = int((rows.index.place >= 0).sum())
        found |= {"dense_bytes": tree.num_bytes(rows.shapes), "file_bytes": trained * rows.row_bytes}
    print(json.dumps(found))
    return found


def began_at() -> float:
    """Returns when this process was started, in seconds since 1970."""
    fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    booted = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    return int(booted.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
