"""A method that is in no table of a paper gets a row in each: what it would have made there."""

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path

from experiments.harness.base import Cell, Experiment
from jaxfl import files
from jaxfl.settings import methods

FILE = "methods.json"  # of a folder of results: those that have a row there, with their items
TRAINING = ("local_epochs", "batch_size", "weighting")  # options of methods that a table sets for all of its rows


def with_method(experiment: Experiment, method: str, items: Sequence[str] = ()) -> Experiment:
    """Returns the experiment with a row for one more method, which bears its name, in every column of its tables.

    The row has data, network, rounds and cohort of the column's FedAvg, or of its first row, and of its method's
    options how a client trains and what it weighs. Columns that are no federations get none: their rows differ in their
    data or in what is told of them.

    Args:
        experiment: of a paper.
        method: a name that `jaxfl run` takes, also `FILE.py:NAME`.
        items: `key=value`, beside these.

    Raises:
        ValueError: there is no such method, or one of its options must be given.

    >>> from experiments.harness.base import load
    >>> cell = with_method(load("ifca"), "fesem", ["num_clusters=2"]).scale("smoke").cells[-1]
    >>> cell.label, "num_clusters=2" in cell.items, "weighting=uniform" in cell.items
    ('Digits / fesem / m=8, n=80', True, True)
    """
    has = methods.row(method).options

    def row(cells: Sequence[Cell]) -> tuple[Cell, ...]:
        columns: dict[tuple[str, str], list[Cell]] = {}
        for cell in sorted(cells, key=lambda cell: cell.method != "fedavg"):
            columns.setdefault((cell.table, cell.column), []).append(cell)
        return tuple(
            dataclasses.replace(first, row=method, method=method, items=(*kept(first), *items))
            for first, *others in columns.values()
            if all((one.data, one.metric) == (first.data, first.metric) for one in others)
        )

    def kept(cell: Cell) -> list[str]:
        lost = {name for name in methods.row(cell.method).options if name not in TRAINING or name not in has}
        return [item for item in cell.items if re.split("[=.]", item)[0] not in lost]

    scales = {
        name: dataclasses.replace(scale, cells=(*scale.cells, *row(scale.cells)))
        for name, scale in experiment.scales.items()
    }
    return dataclasses.replace(experiment, scales=scales)


def remember(folder: Path, method: str, items: Sequence[str]) -> None:
    """Notes that a method has a row in a folder of results; with other items it takes the place of its row."""
    folder.mkdir(parents=True, exist_ok=True)
    there = {**remembered(folder), method: [*items]}
    files.write_text(folder / FILE, json.dumps(there, indent=1, sort_keys=True) + "\n")


def remembered(folder: Path) -> dict[str, list[str]]:
    """Returns the methods that have a row in a folder of results, and their items."""
    return json.loads((folder / FILE).read_text(encoding="utf-8")) if (folder / FILE).is_file() else {}


def with_remembered(experiment: Experiment, folder: Path) -> Experiment:
    """Returns the experiment with a row for each method that has one in a folder of results."""
    for method, items in remembered(folder).items():
        experiment = with_method(experiment, method, items)
    return experiment
