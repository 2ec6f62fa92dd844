"""What the campaigns have tried and found, as a table: from `experiments/reliability/results/counts.jsonl`.

Its lines are those that the campaigns append with `--out`, parts of one campaign in any number and order.
"""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "experiments" / "reliability" / "results" / "counts.jsonl"
Parts = list[dict[str, Any]]


def counts() -> str:
    """Returns the table: a row for each campaign, its parts added up."""
    parts = read()
    lines = ["| campaign | tried | findings |", "|---|---|---|"]
    for name, tried in TRIED.items():
        if own := [part for part in parts if part["campaign"] == name]:
            lines.append(f"| `{name}` | {tried(own)} | {sum(len(part['findings']) for part in own)} |")
    versions = sorted({f"Python {part['versions']['python']}, jax {part['versions']['jax']}" for part in parts})
    return "\n".join([*lines, "", f"Made with {'; '.join(versions)}."])


def read() -> Parts:
    """Returns the records."""
    return [json.loads(line) for line in RECORDS.read_text(encoding="utf-8").splitlines()]


def total(parts: Parts, name: str) -> int:
    """Returns the sum of a number over the parts; of a table of numbers, that of all in it.

    >>> total([{"runs": 3}, {"runs": {"cfl": 1, "ifca": {"same": 2}}}], "runs")
    6
    """

    def added(value: Any) -> int:
        return sum(map(added, value.values())) if isinstance(value, dict) else value

    return sum(added(part[name]) for part in parts)


def _kinds(parts: Parts) -> str:
    """Returns how many of each kind there were, the most first."""
    kinds = sum((Counter(part["kinds"]) for part in parts), Counter())
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())


def _files(parts: Parts) -> str:
    kinds = ", ".join(dict.fromkeys(kind for part in parts for kind in part["kinds"]))
    return f"{total(parts, 'files'):,} damaged files ({kinds})"


def _kills(parts: Parts) -> str:
    signals = Counter()
    for part in parts:
        for moment, count in part["moments"].items():
            signals[moment.partition(" ")[0]] += count
    told = ", ".join(f"{count:,} {name}" for name, count in sorted(signals.items()))
    return f"{total(parts, 'signals'):,} signals ({told}) to {total(parts, 'jobs'):,} runs"


def _soak(parts: Parts) -> str:
    return f"{total(parts, 'rounds'):,} rounds in long runs, {total(parts, 'runs'):,} short runs"


def _of_methods(what: str) -> Callable[[Parts], str]:
    def tried(parts: Parts) -> str:
        methods = {name for part in parts for name in part["methods"]}
        return f"{total(parts, what):,} {what} of {len(methods)} methods"

    return tried


def _disks(parts: Parts) -> str:
    cases = sum((Counter(part["cases"]) for part in parts), Counter())
    commands = ", ".join(f"{count:,} {name}" for name, count in cases.most_common())
    return f"{cases.total():,} commands ({commands}), {total(parts, 'failed'):,} of which met a full disk"


def _arrays(parts: Parts) -> str:
    processes, killed = total(parts, "processes"), total(parts, "killed")
    return f"{total(parts, 'sweeps'):,} sweeps by {processes:,} processes, of which {killed:,} were killed"


TRIED: dict[str, Callable[[Parts], str]] = {
    "fuzz_commands": lambda parts: f"{total(parts, 'lines'):,} command lines ({_kinds(parts)})",
    "fuzz_files": _files,
    "kills": _kills,
    "disks": _disks,
    "arrays": _arrays,
    "strangers": lambda parts: f"{total(parts, 'folders'):,} folders of strangers ({_kinds(parts)})",
    "soak": _soak,
    "poison": _of_methods("cases"),
    "order": _of_methods("runs"),
}
