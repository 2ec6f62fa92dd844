"""What was measured on an accelerator, as a table: from `experiments/speed/results/h100.jsonl`."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "experiments" / "speed" / "results" / "h100.jsonl"
PEERS = {"fedjax": "FedJAX", "torch": "PyTorch loop"}


def h100() -> str:
    """Returns the table of workloads: jaxfl's seconds, and how many times as long the peers took."""
    parts = read()
    lines = ["| workload | jaxfl | peers, times as long | command |", "|---|---|---|---|"]
    for workload in ("w2", "w3", "w6"):
        for record in parts[workload]["records"]:
            if record["ratio"]:
                name = "-".join([workload, *([record["model"]] if "model" in record else [])])
                command = f"python -m experiments.speed.rounds {name} --clients {record['clients']}"
                lines.append(_against_peers(record, command))
    for record in parts["w8"]["records"][:1]:
        numbers = record["results"]
        people = " / ".join(f"{one['population']:,}" for one in numbers)
        times = " / ".join(_milliseconds(one["summary"]["median"]) for one in numbers)
        what = f"W8: a cohort of 100 of {people} clients, a round"
        lines.append(f"| {what} | {times} | | `python -m experiments.speed.w8` |")
    kit = "`python -m experiments.speed.accelerator`"
    (w1, *_), (w5, *others), (w7, *_) = (parts[name]["records"] for name in ("w1", "w5", "w7"))
    alone = next(one for one in others if one["chunk"] == 1)
    lines += [
        f"| W1: {w1['rounds']:,} rounds, {w1['chunk']} of 1,000 users, batches of 10, CIFAR-10's shapes | "
        f"{w1['seconds']:.1f} s | | {kit} |",
        f"| W5: IFCA with 4 models, {w5['chunk']} of 1,200 clients, a round | "
        f"{_milliseconds(w5['seconds_per_round'])} | "
        f"jaxfl, one client after another: {alone['seconds_per_round'] / w5['seconds_per_round']:.0f} | {kit} |",
        f"| W7: FeSEM with 4 centres, {w7['clients']:,} LEAF networks of {w7['rows']} rows, a round | "
        f"{w7['seconds_per_round']:.2f} s, at most {w7['peak_bytes'] / 1e9:.1f} GB | | {kit} |",
    ]
    return "\n".join(lines)


def machine() -> str:
    """Returns what it was measured on, in a sentence."""
    (one, *rest) = read()["machine"]["records"]
    rates = {record["product"]: record["gflops"] / 1000 for record in rest if "product" in record}
    waits = sorted(_compilations(read()))
    versions = ", ".join(f"{name} {one['versions'][name]}" for name in ("jax", "torch", "fedjax"))
    return (
        f"One {one['devices'][0]}, {one['cpus']} CPU cores, {versions}. A large float32 matrix product runs at "
        f"{rates['default']:.0f} TFLOP/s with JAX's default precision and at {rates['float32']:.0f} with "
        f'`jax_default_matmul_precision="highest"`. Compilation, which is not in the times, took {waits[0]:.0f} to '
        f"{waits[-1]:.0f} s."
    )


def read() -> dict[str, dict[str, Any]]:
    """Returns the parts of the measurement by name."""
    lines = RECORDS.read_text(encoding="utf-8").splitlines()
    return {part["part"]: part for part in map(json.loads, lines)}


def _compilations(parts: Any) -> Iterator[float]:
    """Yields all seconds of compilation, however deep."""
    if isinstance(parts, dict):
        if isinstance(parts.get("compile_seconds"), float):
            yield parts["compile_seconds"]
        parts = list(parts.values())
    for part in parts if isinstance(parts, list) else ():
        yield from _compilations(part)


def _against_peers(record: dict[str, Any], command: str) -> str:
    """Returns a row of the table."""
    what = re.sub(
        r"\d{4,}(?= clients)", lambda number: f"{int(number[0]):,}", record["what"].replace("mlp", "784-200-10")
    )
    medians = {PEERS[peer]: ratio["median"] for peer, ratio in record["ratio"].items()}
    peers = ", ".join(f"{peer} {median:,.{_digits(median)}f}" for peer, median in medians.items())
    seconds = _milliseconds(record["summary"]["jaxfl"]["median"])
    return f"| {record['workload']}: {what}, a round | {seconds} | {peers} | `{command}` |"


def _digits(ratio: float) -> int:
    return 1 if ratio < 100 else 0


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"
