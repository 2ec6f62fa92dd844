"""Grids of runs by name, each kept as one line, so that a command goes on where it was stopped."""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jaxfl

RESULTS = Path(__file__).parent / "results"
# 80 clients of 40 rows under four rotations, half of them in a round, with a network of 4,810 numbers
DATA = {"data": "rotated-digits", "num_clients": 80, "rows_per_client": 40}
TRAINING = {"model": "mlp", "hidden": 64, "learning_rate": 0.1, "local_epochs": 5, "batch_size": 10}
SEEDS = (0, 1, 2)
KEPT = ("micro_accuracy", "worst_decile_accuracy", "num_clusters", "ari", "epsilon", "noise", "smallest_sum")


class Setting(NamedTuple):
    """A row of a grid, run with every seed.

    Attributes:
        method: its name.
        options: as `jaxfl.run_named` takes them, with `data`, `rounds` and `cohort`.
    """

    method: str
    options: dict[str, Any]


Run = Callable[[Setting, int], dict[str, Any]]


def command(doc: str | None, name: str, settings: Iterable[Setting], run: Run | None = None) -> None:
    """Makes the runs of a grid that are missing; `--list` prints them instead.

    Args:
        doc: of the module.
        name: of the file of results.
        settings: the grid, the most wanted first.
        run: what makes a run; None runs methods by their names.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print each run, as a command if it is one")
    given = parser.parse_args()
    done = {_run_key(line) for line in kept(name)}
    for setting in settings:
        for seed in SEEDS:
            line = {**setting._asdict(), "seed": seed}
            if given.list:
                print(command_line(setting, seed) if run is None else json.dumps(line))
            elif _run_key(line) not in done:
                text = json.dumps({**line, **(run or run_by_name)(setting, seed)}, separators=(",", ":"))
                RESULTS.mkdir(exist_ok=True)
                with path_of(name).open("a", encoding="utf-8") as file:
                    file.write(text + "\n")


def run_by_name(setting: Setting, seed: int) -> dict[str, Any]:
    """Returns the summary and the curve of a run: round, accuracy, and bytes sent by all clients until then."""
    result = jaxfl.run_named(setting.method, seed=seed, **setting.options)
    return record(result)


def record(result: jaxfl.Result) -> dict[str, Any]:
    """Returns what is kept of a result."""
    curve = [[row["round"], round(row["micro_accuracy"], 4), row["bytes_up"]] for row in result.history]
    return {"summary": {name: _short(result.summary[name]) for name in KEPT if name in result.summary}, "curve": curve}


def kept(name: str) -> list[dict[str, Any]]:
    """Returns the records of a grid."""
    path = path_of(name)
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def by_setting(name: str) -> Iterator[tuple[Setting, list[dict[str, Any]]]]:
    """Yields each setting of a grid that has a record, with its records of all seeds."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in kept(name):
        found.setdefault(_run_key({**line, "seed": None}), []).append(line)
    for lines in found.values():
        yield Setting(lines[0]["method"], lines[0]["options"]), lines


def command_line(setting: Setting, seed: int) -> str:
    """Returns the command of a run.

    >>> command_line(Setting("fedavg", {"data": "rotated-digits", "rounds": 2, "cohort": 0.5, "clip": 1.0}), 0)
    'jaxfl run fedavg --data rotated-digits --rounds 2 --cohort 0.5 --seed 0 --set clip=1.0'
    """
    options = dict(setting.options)
    first = {name: options.pop(name) for name in ("data", "rounds", "cohort", "eval_every") if name in options}
    words = [f"--{name.replace('_', '-')} {value}" for name, value in {**first, "seed": seed}.items()]
    words += [f"--set {name}={str(value).lower() if value is True else value}" for name, value in options.items()]
    return " ".join([f"jaxfl run {setting.method}", *words])


def path_of(name: str) -> Path:
    """Returns the file of a grid's results."""
    return RESULTS / f"{name}.jsonl"


def _run_key(line: dict[str, Any]) -> str:
    """Returns the name of a run."""
    return json.dumps([line["method"], line["options"], line["seed"]], sort_keys=True)


def _short(value: Any) -> Any:
    """Returns a number with four decimals, anything else as it is."""
    return round(value, 4) if isinstance(value, float) else value
