"""The numbers that a paper printed, table by table as in print: an experiment's `targets.json`.

    {
      "tables": [
        {
          "name": "Table 1",
          "caption": "what the numbers are",
          "unit": "%",
          "columns": ["MNIST", "CIFAR-10"],
          "rows": {"IFCA": ["95.25 ± 0.40", "81.51"], "FedAvg": ["88.65", ""]},
          "notes": {"FedAvg": "what a reader must know of the row"}
        }
      ]
    }

A number is `mean ± std`, or `mean`, or `""` where the paper has none. A table of which no number is made says why in
`missing`; where single rows are not made, `missing` says it for each of them, as `notes` do.

>>> parse("95.25 ± 0.40"), parse("81.51"), parse("")
((95.25, 0.4), (81.51, None), None)
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)(?: ± (\d+(?:\.\d+)?))?")
FIELDS = {"name", "caption", "unit", "columns", "rows"}
MORE = {"notes", "missing"}


class Target(NamedTuple):
    """A number that a paper printed.

    Attributes:
        table, row, column: where.
        value, std: mean, and the standard deviation if the paper gives one.
        unit: of both.
        note: what a reader must know of its row.
        missing: why no cell makes it, `""` if one does.
    """

    table: str
    row: str
    column: str
    value: float
    std: float | None
    unit: str
    note: str
    missing: str

    @property
    def label(self) -> str:
        """Returns `table / row / column`."""
        return label(self.table, self.row, self.column)


def label(table: str, row: str, column: str) -> str:
    """Returns what a number is called."""
    return f"{table} / {row} / {column}"


def parse(text: str) -> tuple[float, float | None] | None:
    """Returns mean and standard deviation of a number as it is printed.

    Raises:
        ValueError: it is none.
    """
    if text == "":
        return None
    found = NUMBER.fullmatch(text)
    if found is None:
        raise ValueError(f"a number must be written '95.25 ± 0.40', '95.25' or '', got {text!r}.")
    mean, std = found.groups()
    return float(mean), None if std is None else float(std)


def read(path: Path) -> dict[str, Target]:
    """Returns the numbers of a `targets.json` by label, in the order of print.

    Raises:
        ValueError: a table lacks a field or has an unknown one, a row does not have a number for each column, a note is
            about no row, or a label is there twice.
    """
    found: dict[str, Target] = {}
    for table in json.loads(path.read_text(encoding="utf-8"))["tables"]:
        for target in _numbers(table):
            if target.label in found:
                raise ValueError(f"{target.label} must be in targets.json once, is there twice.")
            found[target.label] = target
    return found


def _numbers(table: dict[str, Any]) -> list[Target]:
    """Returns the numbers of one table."""
    if not FIELDS <= set(table) <= FIELDS | MORE:
        raise ValueError(
            f"a table must have {', '.join(sorted(FIELDS))}, may have notes and missing, got {set(table)}."
        )
    name, columns, notes = table["name"], table["columns"], table.get("notes", {})
    missing = table.get("missing", "")
    for what, rows in (("notes", notes), ("missing", missing if isinstance(missing, dict) else {})):
        if unknown := set(rows) - set(table["rows"]):
            raise ValueError(f"{what} of {name} must be about its rows, got {', '.join(sorted(unknown))}.")
    found = []
    for row, numbers in table["rows"].items():
        if len(numbers) != len(columns):
            raise ValueError(
                f"row {row!r} of {name} must have {len(columns)} numbers, one a column, got {len(numbers)}."
            )
        for column, number in zip(columns, map(parse, numbers), strict=True):
            if number is not None:
                why = missing.get(row, "") if isinstance(missing, dict) else missing
                more = (table["unit"], notes.get(row, ""), why)
                found.append(Target(name, row, column, *number, *more))
    return found
