"""What was measured on CPU cores, as tables, from `experiments/speed/results`; `accelerators.py` has the rest."""

import json
import statistics
from pathlib import Path
from typing import Any

from experiments.speed.rounds import WORKS
from experiments.speed.sweeps import PARTS
from jaxfl.bench import AXES, Scaling
from jaxfl.cli import tables

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "speed" / "results"
CPU, SCALING = RESULTS / "cpu.jsonl", RESULTS / "scaling.json"
POPULATION, MEMORY = RESULTS / "population.jsonl", RESULTS / "memory.jsonl"
HELD, SWEEPS = RESULTS / "held.jsonl", RESULTS / "sweeps.jsonl"
MORE, COMMANDS, VMAP = RESULTS / "more.jsonl", RESULTS / "commands.jsonl", RESULTS / "vmap.jsonl"
PEERS = {
    "fedjax": "FedJAX",
    "pfl": "pfl",
    "torch": "PyTorch loop",
    "channels_last": "PyTorch loop, channels last",
    "vmap": "PyTorch vmap",
    "own network": "somebody's own flax network in jaxfl",
}


def cpu() -> str:
    """Returns the table of workloads on two CPU cores: every peer's time over jaxfl's, in several runs."""
    head = ("workload", "peer's time / jaxfl's", "compilation", "matrix product", "share of it", "command")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, runs in cpu_runs().items():
        ratios = [f"{PEERS[peer]} {_spread(values, '{:.2f}')}" for peer, values in _ratios_of(runs).items()]
        if not ratios:
            peak = max(run["peak_bytes"] for run in runs) / 1e9
            seconds = _spread([one for run in runs for one in run["seconds"]["jaxfl"]], "{:.0f}")
            ratios = [f"no peer; {seconds} s a round, at most {peak:.1f} GB"]
        share = _spread([100 * run["share_of_product"]["median"] for run in runs], "{:.0f}")
        product = statistics.median(value for run in runs for value in run["product_gflops"])
        compilation = _spread([run["compile_seconds"] for run in runs], "{:.1f}")
        what = f"{name.partition('-')[0].upper()}: {runs[0]['what']}"
        cells = (what, ", ".join(ratios), f"{compilation} s", f"{product:.0f} GFLOP/s", f"{share} %")
        lines.append(f"| {' | '.join(cells)} | `python -m experiments.speed.rounds {name}` |")
    return "\n".join(lines)


def _ratios_of(runs: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Returns the median ratios of every peer, in the order of `PEERS`, of the runs that it was part of."""
    found = {peer: [run["ratio"][peer]["median"] for run in runs if peer in run["ratio"]] for peer in PEERS}
    return {peer: values for peer, values in found.items() if values}


def held() -> str:
    """Returns what jaxfl and its peers hold at most in rounds on two CPU cores; of several runs the last."""
    last = {record["workload"]: record for record in lines_of(HELD)}
    sides = [side for side in ("jaxfl", *PEERS) if any(side in record["held"] for record in last.values())]
    head = ("workload", *(PEERS.get(side, side) for side in sides), "command")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in (name for name in WORKS if name in last):
        record = last[name]
        sizes = [f"{record['held'][side] / 1e9:.2f} GB" if side in record["held"] else "" for side in sides]
        what = f"{name.partition('-')[0].upper()}: {record['what']}"
        lines.append(f"| {what} | {' | '.join(sizes)} | `python -m experiments.speed.rounds {name} --memory` |")
    return "\n".join(lines)


def vmap() -> str:
    """Returns how PyTorch does where it trains many clients in one call, too."""
    products = [value for record in lines_of(VMAP) for value in record["product_gflops"]]
    told = f"A float32 matrix product ran at {statistics.median(products):.0f} GFLOP/s in turn with the rounds."
    lines = [told, "", "| workload | PyTorch loop / jaxfl | PyTorch vmap / jaxfl | command |", "|---|---|---|---|"]
    for name, runs in _by_workload(VMAP).items():
        ratios = [_spread([run["ratio"][peer]["median"] for run in runs], "{:.2f}") for peer in ("torch", "vmap")]
        command = f"`python -m experiments.speed.rounds {name} --peers torch,vmap`"
        lines.append(f"| {name.partition('-')[0].upper()}: {runs[0]['what']} | {' | '.join(ratios)} | {command} |")
    return "\n".join(lines)


def more() -> str:
    """Returns what clustering alone and large populations take on two CPU cores."""
    lines = ["| more | beside | ratio | command |", "|---|---|---|---|"]
    for one in lines_of(MORE):
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
    for one in lines_of(COMMANDS):
        again = f", again {_spread(one['again_seconds'], '{:.1f}')}" if one["again_seconds"] else ""
        each = f"{one['summary']['seconds_per_round']:.2g} s, {one['summary']['rounds']} rounds"
        lines.append(f"| {one['what']} | {one['first_seconds']:.1f}{again} | {each} | `{one['command']}` |")
    return "\n".join(lines)


def sweeps() -> str:
    """Returns how long whole sweeps take, beside one process and beside jaxfl before it had several."""
    head = ("a whole sweep", "runs", "seconds", "`--jobs 1`, times as long", "before, times as long")
    head += ("seconds / (those of rounds + one compilation)", "command")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, part in PARTS.items():
        records = [one for one in lines_of(SWEEPS) if one["workload"] == f"sweep-{name}"]
        own, single, before = ([one for one in records if one["side"] == side] for side in ("jaxfl", "one", "base"))
        alone, earlier = (
            _spread([other["seconds"] / one["seconds"] for one, other in zip(own, side, strict=True)], "{:.2f}")
            for side in (single, before)
        )
        share = _spread([one["seconds"] / (one["rounds"] + one["compilation"]) for one in own], "{:.2f}")
        goals = {side: f"; goal {part.goal:g}" if side == part.beside else "" for side in ("base", "rounds")}
        cells = (part.what, f"{own[0]['runs']}", _spread([one["seconds"] for one in own], "{:.1f}"), alone)
        cells += (earlier + goals["base"], share + goals["rounds"], f"`python -m experiments.speed.sweeps {name}`")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Returns the records of a file of results."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def cpu_machine() -> str:
    """Returns what it was measured on, in a sentence."""
    runs = [run for runs in cpu_runs().values() for run in runs if run["peers"]]
    versions = {name: value for run in runs for name, value in {**run["versions"], **run["peers"]}.items()}
    told = ", ".join(f"{name} {versions[name]}" for name in ("jax", "fedjax", "pfl", "torch"))
    return f"{runs[0]['cores']} CPU cores, {told}."


def cpu_runs() -> dict[str, list[dict[str, Any]]]:
    """Returns the runs of every workload."""
    return _by_workload(CPU)


def _by_workload(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns the records of every workload, W2 before W10."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(lines_of(path), key=lambda record: int(record["workload"][1:].partition("-")[0])):
        found.setdefault(record["workload"], []).append(record)
    return found


def ratios() -> dict[str, dict[str, float]]:
    """Returns the median ratio of every workload and peer, for the picture."""
    return {
        name: {peer: statistics.median(values) for peer, values in _ratios_of(runs).items()}
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
        f"{tables.device_phrase(machine)}, {versions}. A float32 matrix product ran at "
        f"{statistics.median(products):.0f} GFLOP/s in turn with the rounds. "
        f"{max((one.warning for one in results), key=len)}"
    ).strip()


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
    for record in lines_of(MEMORY):
        planned, taken = record["planned"], record["taken"]
        lines.append(f"| `{record['method']}` | {planned / 1e6:,.0f} | {taken / 1e6:,.0f} | {planned / taken:.2f} |")
    return "\n".join(lines)


def _kept() -> dict[str, dict[str, Any]]:
    """Returns the last run of every method whose rows of the clients were on the host."""
    return {record["method"]: record for record in lines_of(POPULATION) if "dense_bytes" in record.get("alone", {})}


def _spread(values: list[float], form: str) -> str:
    """Returns the median of several runs, and the extremes where they differ."""
    middle, *ends = (form.format(value) for value in (statistics.median(values), min(values), max(values)))
    return middle if len(set(ends)) == 1 else f"{middle} ({ends[0]} to {ends[1]})"
