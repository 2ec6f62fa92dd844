"""What was measured on accelerators, as tables: from `experiments/speed/results`."""

import re
import statistics
from collections.abc import Iterator
from typing import Any

from docs.generate.speed import PEERS, RESULTS, lines_of
from jaxfl.bench import AXES, Scaling

RECORDS, LATER, KERNELS = RESULTS / "h100.jsonl", RESULTS / "h200.jsonl", RESULTS / "kernels.jsonl"
COMMITS = ("8e054af", "7473def")  # that were timed in turn, the earlier one first
NETWORKS = {"logistic": "logistic", "mlp32": "784-32-10", "mlp200": "784-200-10"}


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


def h100_scaling() -> str:
    """Returns the curves on the accelerator: a row for each axis."""
    (record,) = read()["scaling"]["records"]
    lines = ["| what grows | | milliseconds a round | memory on the GPU, GB | slope |", "|---|---|---|---|---|"]
    for result in (Scaling(**one) for one in record["scalings"]):
        values = " / ".join(f"{row['value']:,}" for row in result.points)
        times = " / ".join(f"{1000 * row['seconds']['median']:.1f}" for row in result.points)
        memory = " / ".join(f"{row['peak_bytes'] / 1e9:.1f}" for row in result.points)
        lines.append(f"| {AXES[result.over].label} | {values} | {times} | {memory} | {result.slope:.2f} |")
    return "\n".join(lines)


def h100_seeds() -> str:
    """Returns what five seeds in one program take on the accelerator, beside one seed."""
    records = read()["seeds"]["records"]
    lines = [
        "| network, method | one seed, s | five seeds, s | five / one | of the rounds alone | with compilation |",
        "|---|---|---|---|---|---|",
    ]
    for one in records:
        single, several = (one["seconds"][count][1:] for count in ("one", "five"))
        told = [f"{statistics.median(values):.2f}" for values in (single, several, one["ratio"][1:])]
        what = f"{NETWORKS[one['network']]}, {one['method']}"
        lines.append(f"| {what} | {' | '.join(told)} | {one['rounds_ratio']:.2f} | {one['ratio'][0]:.2f} |")
    return "\n".join(lines)


def h200_seeds() -> str:
    """Returns what rounds of one seed and of five take at two commits, timed in turn."""
    lines = ["| network | one seed, ms a round | five seeds | five / one |", "|---|---|---|---|"]
    for network, records in _by_commit("seeds, two commits", "network").items():
        pairs = [
            {count: 1000 * statistics.median(one["seconds_per_round"][count][1:]) for count in ("one", "five")}
            for one in records
        ]
        times = [", ".join(f"{pair[count]:.2f}" for pair in pairs) for count in ("one", "five")]
        ratios = ", ".join(f"{pair['five'] / pair['one']:.2f}" for pair in pairs)
        lines.append(f"| {NETWORKS[network]} | {times[0]} | {times[1]} | {ratios} |")
    return "\n".join(lines)


def h200_rounds() -> str:
    """Returns what rounds of whole workloads take at two commits, timed in turn."""
    lines = ["| workload | ms a round | compilation, s |", "|---|---|---|"]
    for work, records in _by_commit("rounds, two commits", "workload").items():
        times = ", ".join(f"{1000 * statistics.median(one['seconds']):.1f}" for one in records)
        waits = ", ".join(f"{one['compile_seconds']:.1f}" for one in records)
        lines.append(f"| {work.partition('-')[0].upper()}: {records[0]['what']} | {times} | {waits} |")
    return "\n".join(lines)


def _by_commit(part: str, what: str) -> dict[str, list[dict[str, Any]]]:
    """Returns the records of a part, the earlier commit's first."""
    found: dict[str, list[dict[str, Any]]] = {}
    (records,) = (line["records"] for line in lines_of(LATER) if line["part"] == part)
    for record in sorted(records, key=lambda one: COMMITS.index(one["commit"])):
        found.setdefault(record[what], []).append(record)
    return found


def kernels() -> str:
    """Returns what a GPU would start in a round, as it was once and as it is, read off compiled programs."""
    found: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for line in lines_of(KERNELS):
        name = "-".join(["784", *map(str, line["network"]), "10"]) if line["network"] else "logistic"
        step, whole, _ = line["loops"]
        total = {key: 5 * step[key] + whole[key] for key in ("kernels", "megabytes", "microseconds")}
        found.setdefault((name, line["commit"]), {})[line["seeds"]] = total | {"looks": 5 * step["looks"]}
    head = (
        "| network | at commit | kernels | looks of the host | MB, one seed | MB, five seeds | five / one, estimated |"
    )
    lines = [head, "|---|---|---|---|---|---|---|"]
    for (name, commit), by_seeds in sorted(found.items(), key=lambda one: one[0][0]):
        one, five = by_seeds[1], by_seeds[5]
        ratio = five["microseconds"] / one["microseconds"]
        moved = " | ".join(f"{each['megabytes']:,.0f}" for each in (one, five))
        lines.append(f"| {name} | `{commit}` | {one['kernels']} | {one['looks']} | {moved} | {ratio:.2f} |")
    return "\n".join(lines)


def read() -> dict[str, dict[str, Any]]:
    """Returns the parts of the measurement by name."""
    return {part["part"]: part for part in lines_of(RECORDS)}


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
    peers = ", ".join(f"{peer} {median:,.{1 if median < 100 else 0}f}" for peer, median in medians.items())
    seconds = _milliseconds(record["summary"]["jaxfl"]["median"])
    return f"| {record['workload']}: {what}, a round | {seconds} | {peers} | `{command}` |"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"
