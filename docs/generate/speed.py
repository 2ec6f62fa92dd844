"""What was measured, as tables: from `experiments/speed/results`, on one accelerator and on two CPU cores."""

import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxfl.bench import AXES, Scaling
from jaxfl.cli import tables

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "speed" / "results"
RECORDS, CPU, SCALING = RESULTS / "h100.jsonl", RESULTS / "cpu.jsonl", RESULTS / "scaling.json"
KERNELS = RESULTS / "kernels.jsonl"
POPULATION, MEMORY = RESULTS / "population.jsonl", RESULTS / "memory.jsonl"
MORE, COMMANDS = RESULTS / "more.jsonl", RESULTS / "commands.jsonl"
PEERS = {
    "fedjax": "FedJAX",
    "pfl": "pfl",
    "torch": "PyTorch loop",
    "own network": "somebody's own flax network in jaxfl",
}


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


def cpu() -> str:
    """Returns the table of workloads on two CPU cores: every peer's time over jaxfl's, in several runs."""
    lines = ["| workload | peer's time / jaxfl's | share of the matrix product | command |", "|---|---|---|---|"]
    for name, runs in cpu_runs().items():
        ratios = [
            f"{PEERS[peer]} {_spread([run['ratio'][peer]['median'] for run in runs], '{:.2f}')}"
            for peer in runs[0]["ratio"]
        ]
        if not ratios:
            peak = max(run["peak_bytes"] for run in runs) / 1e9
            seconds = _spread([one for run in runs for one in run["seconds"]["jaxfl"]], "{:.0f}")
            ratios = [f"no peer; {seconds} s a round, at most {peak:.1f} GB"]
        share = _spread([100 * run["share_of_product"]["median"] for run in runs], "{:.0f}")
        what = f"{name.partition('-')[0].upper()}: {runs[0]['what']}"
        lines.append(f"| {what} | {', '.join(ratios)} | {share} % | `python -m experiments.speed.rounds {name}` |")
    return "\n".join(lines)


def more() -> str:
    """Returns what clustering alone and large populations take on two CPU cores."""
    lines = ["| more | beside | ratio | command |", "|---|---|---|---|"]
    for one in _lines(MORE):
        if one["workload"] == "W4":
            found, beside = one["ratio"]["scipy"], "SciPy + scikit-learn"
            what = f"cosine distances and {' / '.join(found)} linkage of {one['clients']:,} clients x 4,096 features"
            command = f"w4 --clients {one['clients']} --rounds 3"
            values = [ratio["median"] for ratio in found.values()]
        else:
            people = [f"{result['population']:,}" for result in one["results"]]
            what, command = f"a cohort of 100 out of {' / '.join(people)} clients, 784-200-10", "w8"
            beside, values = f"jaxfl at {people[0]}", [result["ratio"]["median"] for result in one["results"]]
        ratios = " / ".join(f"{value:.2f}" for value in values)
        lines.append(f"| {one['workload']}: {what} | {beside} | {ratios} | `python -m experiments.speed.{command}` |")
    return "\n".join(lines)


def commands() -> str:
    """Returns how long whole commands take."""
    lines = ["| a whole command | seconds | a round | command |", "|---|---|---|---|"]
    for one in _lines(COMMANDS):
        again = f", again {_spread(one['again_seconds'], '{:.1f}')}" if one["again_seconds"] else ""
        each = f"{one['summary']['seconds_per_round']:.2g} s, {one['summary']['rounds']} rounds"
        lines.append(f"| {one['what']} | {one['first_seconds']:.1f}{again} | {each} | `{one['command']}` |")
    return "\n".join(lines)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def cpu_machine() -> str:
    """Returns what it was measured on, in a sentence."""
    runs = [run for runs in cpu_runs().values() for run in runs if run["peers"]]
    versions = {name: value for run in runs for name, value in {**run["versions"], **run["peers"]}.items()}
    told = ", ".join(f"{name} {versions[name]}" for name in ("jax", "fedjax", "pfl", "torch"))
    product = statistics.median(value for run in runs for value in run["product_gflops"])
    cores = f"{runs[0]['cores']} CPU cores, {told}"
    return f"{cores}. A float32 matrix product ran at {product:.0f} GFLOP/s in turn with the rounds."


def cpu_runs() -> dict[str, list[dict[str, Any]]]:
    """Returns the runs of every workload."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in _lines(CPU):
        found.setdefault(record["workload"], []).append(record)
    return found


def ratios() -> dict[str, dict[str, float]]:
    """Returns the median ratio of every workload and peer, for the picture."""
    return {
        name: {peer: statistics.median(run["ratio"][peer]["median"] for run in runs) for peer in runs[0]["ratio"]}
        for name, runs in cpu_runs().items()
    }


def scalings() -> dict[str, Scaling]:
    """Returns what was measured along each axis."""
    record = json.loads(SCALING.read_text(encoding="utf-8"))
    return {one["over"]: Scaling(**one) for one in record["scalings"]}


def scaling(over: str) -> str:
    """Returns the table of an axis, and its slope in a sentence."""
    result = scalings()[over]
    head = [AXES[over].label, *tables.SCALING_HEAD]
    lines = ["| " + " | ".join(words) + " |" for words in (head, *tables.scaling_rows(result))]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:], "", result.meaning])


def scaling_machine() -> str:
    """Returns what it was measured on, in a sentence."""
    results = list(scalings().values())
    machine = results[0].machine
    products = [row["product_gflops"]["median"] for one in results for row in one.points if "error" not in row]
    versions = f"jax {machine['versions']['jax']}"
    return (
        f"{tables.device(machine)}, {versions}. A float32 matrix product ran at {statistics.median(products):.0f} "
        f"GFLOP/s in turn with the rounds. {max((one.warning for one in results), key=len)}"
    ).strip()


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
    names = {"logistic": "logistic", "mlp32": "784-32-10", "mlp200": "784-200-10"}
    for one in records:
        single, several = (one["seconds"][count][1:] for count in ("one", "five"))
        told = [f"{statistics.median(values):.2f}" for values in (single, several, one["ratio"][1:])]
        what = f"{names[one['network']]}, {one['method']}"
        lines.append(f"| {what} | {' | '.join(told)} | {one['rounds_ratio']:.2f} | {one['ratio'][0]:.2f} |")
    return "\n".join(lines)


def kernels() -> str:
    """Returns what a GPU would start in a round, as it was once and as it is, read off compiled programs."""
    found: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for line in _lines(KERNELS):
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


def models_on_the_host() -> str:
    """Returns the table of methods whose rows of the clients were on the host; of each method the last run."""
    lines = [
        "| method | of all clients | in the file, after | peak memory | a round, times the resident one's | "
        "its CPU seconds |",
        "|---|---|---|---|---|---|",
    ]
    for record in _kept().values():
        alone, ratio = record["alone"], record["ratio"]
        lines.append(
            f"| {record['method']} | {alone['dense_bytes'] / 1e9:.1f} GB | {alone['file_bytes'] / 1e9:.1f} GB, "
            f"{alone['rounds']} rounds | {alone['peak_bytes'] / 1e9:.2f} GB | {ratio['median']:.2f} "
            f"({ratio['min']:.2f} to {ratio['max']:.2f}) | {record['cpu_ratio']['median']:.2f} |"
        )
    return "\n".join(lines)


def models_on_the_host_in_words() -> str:
    """Returns what Ditto's run says, in a sentence."""
    record = _kept()["ditto"]
    alone = record["alone"]
    return (
        f"Ditto of {record['population']:,} clients, {record['cohort']} in a round, keeps models of "
        f"{alone['dense_bytes'] / 1e9:.0f} GB; the run held at most {alone['peak_bytes'] / 1e9:.1f} GB, and a round "
        f"took {record['ratio']['median']:.1f} times that of {record['resident']:,} resident clients, with load "
        f"{record['load']:.1f} on {record['cores']} cores."
    )


def memory() -> str:
    """Returns what `jaxfl plan` says of every method, beside what a run has taken."""
    lines = ["| method | planned, MB | taken, MB | planned / taken |", "|---|---|---|---|"]
    for record in _lines(MEMORY):
        planned, taken = record["planned"], record["taken"]
        lines.append(f"| `{record['method']}` | {planned / 1e6:,.0f} | {taken / 1e6:,.0f} | {planned / taken:.2f} |")
    return "\n".join(lines)


def _kept() -> dict[str, dict[str, Any]]:
    """Returns the last run of every method whose rows of the clients were on the host."""
    return {record["method"]: record for record in _lines(POPULATION) if "dense_bytes" in record.get("alone", {})}


def _spread(values: list[float], form: str) -> str:
    """Returns the median of several runs, and the extremes where they differ."""
    middle, *ends = (form.format(value) for value in (statistics.median(values), min(values), max(values)))
    return middle if len(set(ends)) == 1 else f"{middle} ({ends[0]} to {ends[1]})"


def read() -> dict[str, dict[str, Any]]:
    """Returns the parts of the measurement by name."""
    return {part["part"]: part for part in _lines(RECORDS)}


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
