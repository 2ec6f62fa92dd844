"""The parts of the accelerator kit: each says its records as it makes them; `accelerator.py` runs them one by one."""

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

MARK = "RECORD "  # begins a line of a part's output that holds a record


class Setting(NamedTuple):
    """What a part is told."""

    smoke: bool
    data_dir: str | None
    out: Path
    seconds: float  # that the part may take
    chunks: tuple[int, ...] | None  # of the sweep, in place of the part's own


def say(record: dict[str, Any]) -> None:
    """Hands a record over: it is kept even if the part dies after it."""
    print(MARK + json.dumps(record), flush=True)


def machine(setting: Setting) -> None:
    """Says what the device is, and its limits."""
    import jax
    import jax.numpy as jnp

    size, copied = (256, 1 << 16) if setting.smoke else (8192, 1 << 30)
    device = jax.devices()[0]
    devices = [one.device_kind for one in jax.devices()]
    say({"devices": devices, "memory": device.memory_stats(), "cpus": os.cpu_count(), "versions": versions()})
    left, right = jax.random.normal(jax.random.key(1), (2, size, size))
    for precision in ("default", "tensorfloat32", "float32", "bfloat16"):
        product = jax.jit(lambda a, b, precision=precision: jnp.matmul(a, b, precision=precision))
        seconds = median_seconds(lambda product=product: product(left, right))
        exact = jnp.matmul(left[:256], right, precision="highest")
        error = jnp.linalg.norm(product(left, right)[:256] - exact) / jnp.linalg.norm(exact)
        say({"product": precision, "gflops": 2 * size**3 / seconds / 1e9, "relative_error": float(error)})
    rows = jnp.zeros(copied // 4)
    again = jax.jit(lambda array: array + 1)
    say({"copy_gbytes": 2 * copied / median_seconds(lambda: again(rows)) / 1e9})


def versions() -> dict[str, str]:
    """Returns the versions of what a figure depends on."""
    import importlib.metadata
    import platform

    names = ("jax", "jaxlib", "flax", "optax", "numpy", "torch", "fedjax")
    found = {one.name: one.version for one in importlib.metadata.distributions() if one.name in names}
    return {"python": platform.python_version(), **found}


def median_seconds(call: Callable[[], Any], times: int = 10) -> float:
    """Returns the median seconds of a call, waited for, after one warm-up."""
    import statistics

    import jax

    jax.block_until_ready(call())
    values = []
    for _ in range(times):
        began = time.perf_counter()
        jax.block_until_ready(call())
        values.append(time.perf_counter() - began)
    return statistics.median(values)


def precision(setting: Setting) -> None:
    """Trains the same rounds on the CPU and on the device, at each precision of matrix products."""
    import jax
    import numpy as np
    import optax

    import jaxfl

    data = jaxfl.data.load("rotated-digits", num_clients=40, rows_per_client=80, seed=0)
    networks = {
        "mlp": jaxfl.models.MLP(hidden=(128,), num_classes=10),
        "leaf": jaxfl.models.LeafFemnistCNN(num_classes=10, hidden=64),
    }
    for name, network in networks.items():
        if setting.smoke and name == "leaf":
            continue
        if name == "leaf":
            data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=40, seed=0)
        found: dict[str, Any] = {}
        for where, device in {"cpu": jax.devices("cpu")[0], "device": jax.devices()[0]}.items():
            for level in ("highest",) if where == "cpu" else ("default", "tensorfloat32", "highest"):
                with jax.default_device(device), jax.default_matmul_precision(level):
                    for method in ("fedavg", "stocfl"):
                        task = jaxfl.classification(network, data)
                        made = jaxfl.methods.METHODS[method].factory(task, optax.sgd(0.1))
                        plan = jaxfl.Plan(chunk=1 if where == "cpu" else 4)  # mapped convolutions are slow on a CPU
                        result = jaxfl.run(made, data, rounds=10, cohort=0.5, seed=0, plan=plan)
                        served = made.client_params(result.state, jax.numpy.arange(data.num_clients))
                        found[f"{where} {level} {method}"] = (
                            [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(served)],
                            result.summary,
                        )
        for label, (leaves, summary) in found.items():
            wanted, _ = found[f"cpu highest {label.split()[2]}"]
            gap = sum(float(((a - b) ** 2).sum()) for a, b in zip(leaves, wanted, strict=True)) ** 0.5
            size = sum(float((b**2).sum()) for b in wanted) ** 0.5
            say(
                {
                    "network": name,
                    "run": label,
                    "relative_difference_from_cpu": gap / size,
                    **{key: summary[key] for key in ("micro_accuracy", "num_clusters", "ari", "seconds_per_round")},
                }
            )


def reductions(setting: Setting) -> None:
    """Times sums of C models of d numbers by K clusters."""
    import jax
    import jax.numpy as jnp

    sizes = [(32, 1000)] if setting.smoke else [(128, 1_626_442), (1024, 159_010), (4096, 610)]
    for count, numbers in sizes:
        values = jax.random.normal(jax.random.key(0), (count, numbers))
        for clusters in (1, 4, 64):
            labels = jax.random.randint(jax.random.key(1), (count,), 0, clusters)

            def onehot(values, labels, clusters=clusters):
                return jnp.matmul(jax.nn.one_hot(labels, clusters).T, values, precision="highest")

            def fast(values, labels, clusters=clusters):
                return jnp.matmul(jax.nn.one_hot(labels, clusters).T, values)

            def scatter(values, labels, clusters=clusters):
                return jax.ops.segment_sum(values, labels, clusters)

            exact = onehot(values, labels)
            for name, form in {"one-hot": onehot, "one-hot, default precision": fast, "segment sum": scatter}.items():
                run = jax.jit(form)
                error = float(jnp.linalg.norm(run(values, labels) - exact) / jnp.linalg.norm(exact))
                seconds = median_seconds(functools.partial(run, values, labels), 5)
                rate = values.nbytes / seconds / 1e9
                say({"sum": name, "C": count, "d": numbers, "K": clusters, "ms": seconds * 1e3, "gbytes": rate,
                     "relative_error": error})  # fmt: skip


def battery(setting: Setting) -> None:
    """Runs the contract battery and the float64 loops on the device, in several processes."""
    workers = 2 if setting.smoke else max(2, min(14, (os.cpu_count() or 2) - 2))
    files = ["tests/methods/test_contract.py", "tests/methods/test_reference.py"]
    chosen = ["-k", "fedavg-info or fedavg-chunks"] if setting.smoke else []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", *files, *chosen, "-n", str(workers), "-q", f"--junitxml={report}"]
        command += ["-p", "no:benchmark"]  # warns of xdist where it is installed, and warnings are errors here
        # the laws are about rounding, which tf32 would hide
        environment = {"JAX_DEFAULT_MATMUL_PRECISION": "highest", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        environment |= {"JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "")}
        if not environment["JAX_PLATFORMS"]:
            environment["JAX_PLATFORMS"] = "cpu" if setting.smoke else "cuda,cpu"
        log = setting.out / "battery.log"
        with log.open("w") as file:
            child = subprocess.Popen(command, env={**os.environ, **environment}, stdout=file, stderr=file)
            try:
                child.wait(setting.seconds)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGINT)
                child.wait(30)
        if not report.exists():
            raise RuntimeError(f"pytest wrote no report: {log.read_text()[-2000:]}")
        suite = xml.etree.ElementTree.parse(report).getroot()[0]
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    failed = {}
    for case in suite.iter("testcase"):
        for bad in (*case.iter("failure"), *case.iter("error")):
            failed[case.get("name")] = (bad.get("message") or "")[:300]
    say({**counts, "seconds": float(suite.get("time", 0)), "workers": workers, "failed": failed})


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

    users, rounds, cohort = (8, 4, 2) if setting.smoke else (1000, 1500, 50)
    data = ours.prototypes(users, 50, (32, 32, 3), 10)
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
    real, toy = ["--clients", "100", "--peers", "torch"], ["--clients", "2", "--hidden", "8"]
    workload("rounds", ["w2", *sized(setting, real, toy)], (1,) if setting.smoke else (1, 4, 16, 50), setting)


def w3(setting: Setting) -> None:
    """Many small clients; the peers are left out at 10,000, where they take minutes a round."""
    works, chunks = ["w3-logistic", "w3-mlp"], (1,) if setting.smoke else (100, 1000)
    beside = ["--clients", "1000", "--peers", "fedjax,torch"]
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

    clients, cohort = (8, 4) if setting.smoke else (1200, 120)
    data = ours.prototypes(clients, 200, (28, 28), 10, rotation=np.arange(clients) % 4)
    task = jaxfl.classification(jaxfl.models.MLP((200,), 10), data)
    method = jaxfl.methods.ifca(task, optax.sgd(0.05), num_clusters=4, local_epochs=1, batch_size=50)
    for chunk in (None, *(setting.chunks or ((1,) if setting.smoke else (1, 30, 60)))):
        rounds = ours.Rounds(method, data, cohort=cohort, chunk=chunk)
        seconds = median_seconds(rounds.side().round, 5)
        say({"workload": "W5", "chunk": rounds.plan.chunk, "asked_chunk": chunk, "seconds_per_round": seconds,
             "compile_seconds": rounds.compile_seconds})  # fmt: skip


def w6(setting: Setting) -> None:
    """StoCFL's local work at 64 and 4,800 clients."""
    real, toy = ["--clients", "64", "4800", "--peers", "torch"], ["--clients", "3", "--hidden", "16"]
    workload("rounds", ["w6", *sized(setting, real, toy)], (1,) if setting.smoke else (8, 32, 128, 256), setting)


def w7(setting: Setting) -> None:
    """Times FeSEM(4) with LEAF's network, all of 3,550 clients taking part."""
    import jax
    import optax

    import jaxfl
    from experiments.speed import ours
    from jaxfl.simulation.program import peak_bytes

    clients, rows = (6, 10) if setting.smoke else (3550, 60)
    data = ours.prototypes(clients, rows, (28, 28), 62)
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


COLUMNS = ("MNIST 4800 x 50, 100 %", "MNIST 4800 x 50, 10 %")
ROWS = ("StoCFL", "FedAvg", "FedProx", "IFCA M=4", "IFCA M=2", "IFCA M=6", "Ditto", "StoCFL, official", "FedAvg, chain")


def table1(setting: Setting) -> None:
    """Makes StoCFL's table 1 row by row with the command that anybody would use, until time is up."""
    began, folder = time.perf_counter(), setting.out / "stocfl"
    scale = "smoke" if setting.smoke else "paper"
    labels = [f"Table 1 / {row} / {column}" for column in COLUMNS for row in ROWS]
    for label in ["Digits / FedAvg / 8 x 80, 50 %"] if setting.smoke else labels:
        left = setting.seconds - (time.perf_counter() - began)
        if left < 5:
            break
        command = [sys.executable, "-m", "jaxfl.cli", "reproduce", "stocfl", "--scale", scale, "--only", label]
        command += ["--out", str(folder), *(["--data-dir", setting.data_dir] if setting.data_dir else [])]
        child = subprocess.Popen(command)
        try:
            code = child.wait(left)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)
            code = child.wait(60)
        say({"label": label, "exit": code, "seconds": time.perf_counter() - began})


PARTS: dict[str, tuple[Callable[[Setting], None], int]] = {  # with the seconds that it may take
    "machine": (machine, 60),
    "precision": (precision, 120),
    "reductions": (reductions, 60),
    "battery": (battery, 270),
    "w6": (w6, 240),
    "w2": (w2, 150),
    "w3": (w3, 130),
    "w8": (w8, 120),
    "w5": (w5, 120),
    "w1": (w1, 240),
    "w7": (w7, 240),
    "table1": (table1, 900),
}
