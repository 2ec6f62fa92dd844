"""The parts of the accelerator kit that time workloads, and the one that makes a table of a paper."""

import concurrent.futures
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.harness import base, results
from experiments.harness.run import Planned, planned
from experiments.speed.accelerator_parts import Setting, median_seconds, records_in, say


def workload(name: str, arguments: Sequence[str], chunks: Sequence[int | None], setting: Setting, **toy: Any) -> None:
    """Runs one of the scripts once for each chunk, the automatic one (None) first and beside its peers."""
    import importlib

    script = importlib.import_module(f"experiments.speed.{name}")
    for chunk in (None, *(setting.chunks or chunks)):
        given = [*arguments, *([] if chunk is None else ["--chunk", str(chunk), "--peers", "none"])]
        try:
            records = script.main(given)
        except (SystemExit, Exception) as error:  # a chunk too large, losses that disagree: the others go on
            say({"workload": name, "arguments": given, "error": f"{type(error).__name__}: {error}"[:2000]})
            continue
        for record in records if isinstance(records, list) else [records]:
            say({**record, "arguments": given})


def sized(setting: Setting, real: Sequence[str], toy: Sequence[str]) -> list[str]:
    """Returns a script's arguments."""
    return [*toy, "--size", "64", "--rounds", "1", "--peers", "none"] if setting.smoke else [*real, "--size", "8192"]


def w1(setting: Setting) -> None:
    """Times 1,500 rounds of pfl's CIFAR-10 benchmark: 1,000 users x 50 rows, cohort 50, batch 10, one epoch."""
    import optax

    import jaxfl
    from experiments.speed import ours
    from jaxfl.data.synthetic import prototypes

    users, rows, rounds, cohort = (8, 20, 1, 2) if setting.smoke else (1000, 50, 1500, 50)
    data = prototypes(users, rows, (32, 32, 3), 10)
    task = jaxfl.classification(jaxfl.models.CifarBenchmarkCNN(num_classes=10), data)
    method = jaxfl.methods.fedavg(task, optax.sgd(0.1), local_epochs=1, batch_size=10)
    for chunk in (None, *(setting.chunks or ((1,) if setting.smoke else (10, 25)))):
        made = ours.Rounds(method, data, cohort=cohort, chunk=chunk)
        one_round, count = made.side().round, rounds if chunk is None else max(1, rounds // 10)
        first, began = one_round(), time.perf_counter()
        for _ in range(count):
            last = one_round()
        say({"workload": "W1", "rounds": count, "asked_chunk": chunk, "chunk": made.plan.chunk,
             "seconds": time.perf_counter() - began, "compile_seconds": made.compile_seconds,
             "loss": [first, last]})  # fmt: skip


def w2(setting: Setting) -> None:
    """LEAF's FEMNIST network."""
    real, toy = ["--clients", "100", "--peers", "torch,vmap"], ["--clients", "2", "--hidden", "8"]
    workload("rounds", ["w2", *sized(setting, real, toy)], (1,) if setting.smoke else (1, 4, 16, 50), setting)


def w3(setting: Setting) -> None:
    """Many small clients; the peers are left out at 10,000, where they take minutes a round."""
    works, chunks = ["w3-logistic", "w3-mlp"], (1,) if setting.smoke else (100, 1000)
    beside = ["--clients", "1000", "--peers", "fedjax,torch,vmap"]
    workload("rounds", [*works, *sized(setting, beside, ["--clients", "4"])], chunks, setting)
    if not setting.smoke:
        alone = ["--clients", "10000", "--peers", "none"]
        workload("rounds", [*works, *sized(setting, alone, [])], chunks, setting)


def w5(setting: Setting) -> None:
    """Times IFCA: four models 784-200-10, 120 of 1,200 clients of 200 rows, batches of 50."""
    import numpy as np
    import optax

    import jaxfl
    from experiments.speed import ours
    from jaxfl.data.synthetic import prototypes

    clients, cohort = (8, 4) if setting.smoke else (1200, 120)
    data = prototypes(clients, 200, (28, 28), 10, rotation=np.arange(clients) % 4)
    task = jaxfl.classification(jaxfl.models.MLP((200,), 10), data)
    method = jaxfl.methods.ifca(task, optax.sgd(0.05), num_clusters=4, local_epochs=1, batch_size=50)
    for chunk in (None, *(setting.chunks or ((1,) if setting.smoke else (1, 30, 60)))):
        rounds = ours.Rounds(method, data, cohort=cohort, chunk=chunk)
        seconds = median_seconds(rounds.side().round, 5)
        say({"workload": "W5", "chunk": rounds.plan.chunk, "asked_chunk": chunk, "seconds_per_round": seconds,
             "compile_seconds": rounds.compile_seconds})  # fmt: skip


def w6(setting: Setting) -> None:
    """StoCFL's local work at 64 and 4,800 clients."""
    real, toy = ["--clients", "64", "4800", "--peers", "torch,vmap"], ["--clients", "3", "--hidden", "16"]
    workload("rounds", ["w6", *sized(setting, real, toy)], (1,) if setting.smoke else (8, 32, 128, 256), setting)


def w7(setting: Setting) -> None:
    """Times FeSEM(4) with LEAF's network, all of 3,550 clients taking part."""
    import jax
    import optax

    import jaxfl
    from experiments.speed import ours
    from jaxfl.data.synthetic import prototypes
    from jaxfl.simulation.program import peak_bytes

    clients, rows = (6, 10) if setting.smoke else (3550, 60)
    data = prototypes(clients, rows, (28, 28), 62)
    hidden = 8 if setting.smoke else 2048
    task = jaxfl.classification(jaxfl.models.LeafFemnistCNN(num_classes=62, hidden=hidden), data)
    method = jaxfl.methods.fesem(task, optax.sgd(0.03), num_clusters=4, local_epochs=1, batch_size=20)
    for chunk in (None, *(setting.chunks or ())):
        began = time.perf_counter()
        rounds = ours.Rounds(method, data, chunk=chunk)
        jax.block_until_ready(rounds.state)
        ready = time.perf_counter() - began
        seconds = median_seconds(rounds.side().round, 1 if setting.smoke else 2)
        say({"workload": "W7", "clients": clients, "rows": rows, "chunk": rounds.plan.chunk, "asked_chunk": chunk,
             "seconds_per_round": seconds, "compile_seconds": rounds.compile_seconds, "ready_seconds": ready,
             "peak_bytes": peak_bytes()})  # fmt: skip


def w8(setting: Setting) -> None:
    """A cohort of 100 out of growing populations."""
    toy = ["--population", "20", "40", "--clients", "2"]
    arguments = sized(setting, ["--population", "1000", "10000", "100000"], toy)
    workload("w8", arguments, (1,) if setting.smoke else (25, 50), setting)


def seeds(setting: Setting) -> None:
    """Times one seed beside five that share a program, whole calls of `jaxfl.run` after one that compiles."""
    import jax
    import numpy as np
    import optax

    import jaxfl
    from jaxfl.data.synthetic import prototypes

    clients, cohort, rounds, times, networks = 1000, 100, 200, 3, {"logistic": (), "mlp32": (32,), "mlp200": (200,)}
    if setting.smoke:
        clients, cohort, rounds, times, networks = 8, 4, 2, 1, {"logistic": ()}
    data = prototypes(clients, 50, (28, 28), 10)
    for name, hidden in networks.items():
        task = jaxfl.classification(jaxfl.models.MLP(hidden, 10), data)
        for label in ("fedavg",) if setting.smoke else ("fedavg", "ifca"):
            made = jaxfl.methods.METHODS[label].factory(task, optax.sgd(0.1), local_epochs=1, batch_size=10)
            given = {"rounds": rounds, "cohort": cohort, "eval_every": rounds}
            calls = {"one": lambda m=made, g=given: [jaxfl.run(m, data, seed=0, **g)],
                     "five": lambda m=made, g=given: jaxfl.run(m, data, seeds=range(5), **g)}  # fmt: skip
            spent: dict[str, list[float]] = {"one": [], "five": []}
            for _ in range(times + 1):  # the first calls compile
                results = {}
                for count, call in calls.items():
                    began = time.perf_counter()
                    results[count] = call()
                    spent[count].append(time.perf_counter() - began)
            apart, together = (jax.tree.leaves(results[count][0].state) for count in ("one", "five"))
            say({"network": name, "method": label, "clients": clients, "cohort": cohort, "rounds": rounds,
                 "seconds": spent, "ratio": [five / one for one, five in zip(*spent.values(), strict=True)],
                 "rounds_ratio": 5 * results["five"][0].summary["seconds_per_round"]
                 / results["one"][0].summary["seconds_per_round"],
                 "seeds_together": results["five"][0].summary["seeds_together"],
                 "largest_difference": max(float(np.abs(np.asarray(a, np.float64) - np.asarray(b)).max())
                                           for a, b in zip(apart, together, strict=True))})  # fmt: skip


def launch(setting: Setting) -> None:
    """Times small models' rounds with several options of XLA, each in a process of its own; compares their bits.

    With `setting.further` the other arms, beside the first one.
    """
    from experiments.speed.launch import ARMS, FURTHER, FURTHER_WORKS, WORKS

    until, first = time.monotonic() + setting.seconds, {}
    arms = list(ARMS) if not setting.further else ["base", *FURTHER]
    works = [*WORKS, *(FURTHER_WORKS if setting.further else ())]
    for arm in arms:
        command = [sys.executable, "-m", "experiments.speed.launch", arm, *(works[:1] if setting.smoke else works)]
        command += ["--smoke", "--rounds", "1"] if setting.smoke else []
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=max(1, until - time.monotonic()))
            text, problem = done.stdout, done.stderr[-2000:] if done.returncode else None
        except subprocess.TimeoutExpired as error:
            text, problem = (error.stdout or b"").decode(), "no time left"
        for record in records_in(text):
            bits = first.setdefault(record["workload"], record["bits"][0])
            say({**record, "same_bits": [one == bits for one in record["bits"]]})
        if problem is not None:
            say({"arm": arm, "error": problem})


def w9(setting: Setting) -> None:
    """ResNet-18 with group normalisation, beside PyTorch."""
    real, toy = ["--peers", "torch,vmap"], ["--clients", "2", "--hidden", "32"]
    workload("rounds", ["w9-10", "w9-50", *sized(setting, real, toy)], (), setting)


def scaling(setting: Setting) -> None:
    """Makes the curves of `jaxfl bench scaling`; one device has none of devices."""
    folder = setting.out / "scaling"
    command = [sys.executable, "-m", "jaxfl.cli", "bench", "scaling", "--out", str(folder)]
    if setting.smoke:
        command += ["--over", "cohort", "--values", "2", "--rounds", "1", "--hidden", "4"]
    else:
        command += [word for axis in ("cohort", "population", "width", "seeds") for word in ("--over", axis)]
    code = subprocess.run(command, timeout=setting.seconds).returncode
    say({"exit": code, **json.loads((folder / "bench.json").read_text())})


SIDE_BY_SIDE = 4  # runs: while one compiles or is evaluated, others train
WANTED = ("Table 1 / * / MNIST", "Table 6 / * / Shifted MNIST")


def lacking(scale: str) -> tuple[list[Planned], list[Planned]]:
    """Returns the runs of StoCFL's tables that have no committed line, first seeds first: large ones, and all others.

    Ditto's models, one for each client, take up to 31 GB twice: only its first seeds are made, one after another. The
    chain, whose clients train one after another, is for a CPU.
    """
    stocfl = base.load("stocfl")
    cells = stocfl.scale(scale).cells
    if scale == "paper":
        cells = [cell for wanted in WANTED for cell in base.select(cells, wanted)]
    lines = results.read(stocfl.results(scale) / results.RESULTS)
    runs = [one for one in planned(cells, None, Path()) if results.find(lines, one.job) is None]
    first = [one for one in runs if one.cell.row == "Ditto" and one.job.seed == one.cell.seeds[0]]
    return first, [one for one in runs if one.cell.row not in ("Ditto", "FedAvg, chain")]


def table1(setting: Setting) -> None:
    """Makes what is missing of StoCFL's tables of MNIST, a folder for each run, until time is up.

    The lines of `OUT/stocfl/*/results.jsonl` belong into `experiments/stocfl/results/paper/results.jsonl`.
    """
    until, scale = time.monotonic() + setting.seconds, "smoke" if setting.smoke else "paper"

    def make(number: int, one: Planned) -> None:
        began = time.monotonic()
        command = [sys.executable, "-m", "jaxfl.cli", "reproduce", "stocfl", "--scale", scale]
        command += ["--only", one.cell.label, "--seeds", str(one.job.seed)]
        command += ["--out", str(setting.out / "stocfl" / str(number))]
        command += ["--data-dir", setting.data_dir] if setting.data_dir else []
        code = "no time left"
        if until - began > 5:
            child = subprocess.Popen(command, env={**os.environ, "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95"})
            try:
                code = child.wait(until - began)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGINT)  # it keeps a checkpoint, if that does not take long
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(15)
                child.kill()
                code = child.wait()
        say({"run": one.cell.label, "seed": one.job.seed, "exit": code, "seconds": time.monotonic() - began})

    number = itertools.count()
    for runs, together in zip(lacking(scale), (1, SIDE_BY_SIDE), strict=True):
        with concurrent.futures.ThreadPoolExecutor(together) as pool:
            for made in [pool.submit(make, next(number), one) for one in runs[: 2 if setting.smoke else None]]:
                made.result()
