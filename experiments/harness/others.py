"""A method that is in no table of a paper gets a row in each: what it would have made there."""

import dataclasses
import json
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

from experiments.harness.base import Cell, Experiment
from jaxfl import files
from jaxfl.data import bounded
from jaxfl.settings import methods, user_code

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
    """Returns the methods that have a row in a folder of results, and their items.

    Raises:
        ValueError: the file is another one; the message names it.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        found = bounded.read_object(path)
        if not all(isinstance(items, list) and all(isinstance(one, str) for one in items) for items in found.values()):
            raise ValueError("it must have a list of options for each method")
        if unknown := [method for method in found if not methods.is_method(method)]:
            raise ValueError(f"there is no method {unknown[0]!r}")
    except ValueError as error:
        raise ValueError(
            f"{path} must be the list of methods that jaxfl reproduce --method writes, and is not ({error}); choose "
            "another folder, or move that file away."
        ) from error
    return found


def with_remembered(experiment: Experiment, folder: Path, named: Sequence[str] = ()) -> Experiment:
    """Returns the experiment with a row for each method that has one in a folder of results.

    The folder may be of somebody else: a method in a file is executed only where the call names it.

    Args:
        experiment: of a paper.
        folder: of the results.
        named: the methods that the call names.

    Warns:
        UserWarning: the row of a method in a file is left out, since the call does not name it.
    """
    own = {user_code.run_label(method): method for method in named}
    for method, items in remembered(folder).items():
        if user_code.is_address(method) and user_code.run_label(method) not in own:
            warnings.warn(
                f"{folder / FILE} has the method {method}, whose file is executed only if you name it; its row is left "
                f"out, add --method {method} if you trust the file.",
                stacklevel=2,
            )
            continue
        experiment = with_method(experiment, own.get(user_code.run_label(method), method), items)
    return experiment
