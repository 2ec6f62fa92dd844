"""What is known of every cell: the numbers that were made, the one that the paper printed, and what failed."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.harness import base, results
from experiments.harness.base import Cell, Experiment
from experiments.harness.targets import Target

EMPTY = "–"


class Entry(NamedTuple):
    """A cell with what is known of it."""

    cell: Cell
    target: Target | None
    lines: list[dict[str, Any]]  # a result for each seed that has one
    failure: str | None  # of the first seed whose last try failed

    def values(self, name: str | None = None) -> list[float]:
        """Returns the cell's metric, or another number of the summary, of every seed that has it."""
        factor = base.UNITS[self.cell.unit] if name is None else 1.0
        found = [line["summary"].get(name or self.cell.metric) for line in self.lines]
        return [factor * value for value in found if value is not None]

    @property
    def mean(self) -> float | None:
        """Returns the mean over the seeds."""
        return statistics.fmean(self.values()) if self.values() else None

    @property
    def std(self) -> float | None:
        """Returns the standard deviation of a sample; None of less than two seeds."""
        return statistics.stdev(self.values()) if len(self.values()) > 1 else None

    @property
    def gap(self) -> float | None:
        """Returns ours minus the paper's."""
        return None if self.target is None or self.mean is None else self.mean - self.target.value

    @property
    def ours(self) -> str:
        """Returns mean and deviation, and how many seeds if some are missing."""
        seeds = "" if len(self.lines) in (0, len(self.cell.seeds)) else f" [{len(self.lines)}/{len(self.cell.seeds)}]"
        return number(self.mean, self.std) + seeds

    @property
    def papers(self) -> str:
        """Returns the paper's number."""
        return EMPTY if self.target is None else number(self.target.value, self.target.std)


def number(value: float | None, spread: float | None = None) -> str:
    """Returns a number and what it varies by, in two decimals.

    >>> number(91.054, 0.3), number(4.0), number(None)
    ('91.05 ± 0.30', '4.00', '–')
    """
    if value is None:
        return EMPTY
    return f"{value:.2f}" if spread is None else f"{value:.2f} ± {spread:.2f}"


def collect(experiment: Experiment, scale: str, folder: Path) -> list[Entry]:
    """Returns every cell of a scale with its results and the paper's number."""
    lines = results.read(folder / results.RESULTS, ("seed", "summary", "history"))
    failures = results.read(folder / results.FAILURES, ("error",))
    targets = base.targets(experiment.name)
    entries = []
    for cell in experiment.scale(scale).cells:
        jobs = [cell.job(seed) for seed in cell.seeds]
        found = [results.find(lines, job) for job in jobs]
        tried = (results.find(failures, job) for job, line in zip(jobs, found, strict=True) if line is None)
        failure = next((line["error"] for line in tried if line is not None), None)
        entries.append(Entry(cell, targets.get(cell.label), [line for line in found if line is not None], failure))
    return entries


def tables(entries: Sequence[Entry]) -> list[str]:
    """Returns the names of the tables."""
    return list(dict.fromkeys(entry.cell.table for entry in entries))


def runs(entries: Sequence[Entry]) -> list[Entry]:
    """Returns the first cell of every run: the cells of a row may show several metrics of one."""
    first: dict[str, Entry] = {}
    for entry in entries:
        first.setdefault(results.identifier(entry.cell.job(entry.cell.seeds[0])), entry)
    return list(first.values())
