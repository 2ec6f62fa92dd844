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
from collections.abc import Callable
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
    further: bool = False  # whether the part `launch` runs its other arms


def say(record: dict[str, Any]) -> None:
    """Hands a record over: it is kept even if the part dies after it."""
    sys.stdout.write(MARK + json.dumps(record) + "\n")  # at once: parts have threads
    sys.stdout.flush()


def records_in(text: str) -> list[dict[str, Any]]:
    """Returns the records that a process has handed over, from all that it printed."""
    return [json.loads(line.removeprefix(MARK)) for line in text.splitlines() if line.startswith(MARK)]


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

    clients, rows, rounds = (8, 20, 2) if setting.smoke else (40, 80, 10)
    data = jaxfl.data.load("rotated-digits", num_clients=clients, rows_per_client=rows, seed=0)
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
            levels = ("default",) if setting.smoke else ("default", "tensorfloat32", "highest")
            for level in ("highest",) if where == "cpu" else levels:
                with jax.default_device(device), jax.default_matmul_precision(level):
                    for method in ("fedavg",) if setting.smoke else ("fedavg", "stocfl"):
                        task = jaxfl.classification(network, data)
                        made = jaxfl.methods.METHODS[method].factory(task, optax.sgd(0.1))
                        plan = jaxfl.Plan(chunk=1 if where == "cpu" else 4)  # mapped convolutions are slow on a CPU
                        result = jaxfl.run(made, data, rounds=rounds, cohort=0.5, seed=0, plan=plan)
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
        command += ["-o", "minversion=8"]  # an older pytest will do where it finds the tests by PYTHONPATH
        # the laws are about rounding, which tf32 would hide
        environment = {"JAX_DEFAULT_MATMUL_PRECISION": "highest", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        environment |= {"JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "")}
        environment |= {"PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])}
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
