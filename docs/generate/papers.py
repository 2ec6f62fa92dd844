"""Tables of the experiments' READMEs, each between comments that say which numbers it has.

    <!-- made: stocfl paper | Table 1 | MNIST 4800 x 50, 10 %; MNIST 2400 x 100, 10 % | clusters -->

is the experiment and its scale, the table, the columns, and, if they are wanted, the clusters that were found;
`stocfl paper | claims` is which of two rows is better.
"""

import functools
import statistics
from collections.abc import Sequence

from docs.generate.results import EXPERIMENTS
from experiments.harness import base, claims, entries
from experiments.harness.entries import Entry, number
from jaxfl.cli import page

BETWEEN = " | "
COLUMN = "MNIST 1200 x 200, 10 %"  # of StoCFL's table 1: the column for the front page
NAMES = {
    "FedAvg, chain": "FedAvg, a chain of clients",
    "FedProx": "FedProx, mu = 0.05",
    "Ditto": "Ditto, lambda = 0.1",
    "StoCFL": "StoCFL, tau = 0.5, lambda = 0.05",
    "StoCFL, auto": 'StoCFL, `threshold="auto"`',
    "StoCFL, official": 'StoCFL, `preset="official"`',
}
FIVE = ("FedAvg", "IFCA M=4", "StoCFL", "FedAvg, chain", "StoCFL, official")


def table(place: str) -> str:
    """Returns a table: ours, in brackets the paper's, for the rows of which a number was made.

    Raises:
        ValueError: the experiment has no such table or column at this scale.
    """
    where, name, *more = place.split(BETWEEN)
    experiment, scale = where.split(" ")
    found = numbers(experiment, scale)
    if name == "claims":
        return page.markdown([claims.table(base.load(experiment), found) or page.Text("None was tested.")]).strip()
    columns, *more = more
    wanted = columns.split("; ")
    cells = {(one.cell.row, one.cell.column): one for one in found if one.cell.table == name}
    if unknown := [column for column in wanted if column not in {column for _, column in cells}]:
        raise ValueError(f"{experiment} has no column {unknown[0]!r} in {name!r} at {scale} scale.")
    lines = [BETWEEN.join(["", name, *wanted]).strip() + " |", "|" + "---|" * (1 + len(wanted))]
    for row in dict.fromkeys(row for row, _ in cells):
        made = [cells.get((row, column)) for column in wanted]
        if any(one is not None and one.lines for one in made):
            lines.append(f"| {row} | {BETWEEN.join(_number(one, 'clusters' in more) for one in made)} |")
    return "\n".join(lines)


def table_1(names: Sequence[str] | None = None) -> str:
    """Returns a column of StoCFL's table 1 beside the paper's; None takes all rows of which a number was made."""
    found = {one.cell.row: one for one in numbers("stocfl", "paper") if one.cell.column == COLUMN and one.target}
    lines = ["| method | micro accuracy, % | in the paper | clusters | ARI | seeds |", "|---|---|---|---|---|---|"]
    for row in names or [row for row, one in found.items() if one.lines]:
        called = NAMES.get(row, row.replace("M=", "K = ").replace("IFCA K", "IFCA, K"))
        lines.append(f"| {called} | {BETWEEN.join(_cells(found[row]))} |")
    return "\n".join(lines)


def five_rows() -> str:
    """Returns five of these rows, for the README."""
    return table_1(FIVE)


def _cells(entry: Entry) -> list[str]:
    """Returns accuracy, the paper's, clusters, ARI and seeds."""
    clusters, ari = (statistics.fmean(entry.values(name)) for name in ("num_clusters", "ari"))
    own = clusters == entry.values("num_clients")[0]
    found = ["one a client", ""] if own else [f"{clusters:.3g}", f"{ari:z.2f}"]
    return [number(entry.mean, entry.std), entry.papers, *found, str(len(entry.lines))]


@functools.cache
def numbers(experiment: str, scale: str) -> list[Entry]:
    """Returns every cell of a scale with its results."""
    return entries.collect(base.load(experiment), scale, EXPERIMENTS / experiment / "results" / scale)


def _number(entry: Entry | None, clusters: bool) -> str:
    """Returns what a cell says."""
    if entry is None:
        return ""
    paper = "" if entry.target is None else f" ({entry.target.value:.2f})"
    if not entry.lines:
        return f"not made{paper}"
    seeds = len(entry.lines)
    few = "" if seeds == len(entry.cell.seeds) else f", {seeds} seed{'s' * (seeds > 1)}"
    told = f"{entry.mean:.2f}{few}{paper}"
    if clusters:
        number, ari = (sum(entry.values(name)) / seeds for name in ("num_clusters", "ari"))
        told += f"; {number:.3g} cluster{'s' * (number > 1)}, ARI {ari:z.2f}"
    return told
