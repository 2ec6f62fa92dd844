"""Reads the results: what was chosen, who stands where, and which differences are more than chance.

Ranks are compared as Demsar does ("Statistical comparisons of classifiers over multiple data sets", Journal of Machine
Learning Research 7, 2006): Friedman's test asks whether the mean ranks differ at all; then two methods differ where
their mean ranks are further apart than Nemenyi's critical difference,

    CD = q sqrt(k (k + 1) / (6 N)),   k methods on N federations,

with q the 95 % point of the studentised range of k means and infinite degrees of freedom, divided by sqrt(2). SciPy
computes it (`scipy.stats.studentized_range`); Demsar's table 5 has the same numbers, 1.960 for two methods and 3.164
for ten.

>>> round(nemenyi(2), 3), round(nemenyi(10), 3)
(1.96, 3.164)
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from experiments.harness import results
from experiments.leaderboard.federations import FEDERATIONS, SEEDS, Federation
from experiments.leaderboard.rows import COUNT
from jaxfl.analysis.comparison import paired

FOLDER = Path(__file__).parent / "results"
LEVEL = 0.05
SHARE = 0.75  # of the methods, that a federation must have to be ranked
Count = Literal["chosen", "given", "withheld"]
Line = Mapping[str, Any]


class Standing(NamedTuple):
    """What a method came to on a federation.

    Attributes:
        row: the method.
        lines: of every seed, of what was chosen.
        edges: of `rate` and `value`, the number, those of which the lowest or highest of three or more was chosen.
    """

    row: str
    lines: list[Line]
    edges: tuple[str, ...]

    @property
    def diverged(self) -> int:
        """How many seeds have no result."""
        return sum(line["numbers"] is None for line in self.lines)

    def mean(self, name: str, moment: str = "numbers") -> float | None:
        """Returns the mean over the seeds of one of the numbers, None where a seed has none."""
        values = [line[moment][name] for line in self.lines if line[moment] is not None]
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if len(known) == len(self.lines) else None

    def std(self, name: str) -> float | None:
        """Returns the standard deviation of a sample."""
        return None if self.mean(name) is None else statistics.stdev(line["numbers"][name] for line in self.lines)


class Ranks(NamedTuple):
    """Mean ranks over blocks, and what is more than chance.

    Attributes:
        names: of the methods, the best first.
        means: their mean ranks; 1 is the best.
        blocks: N.
        apart: whether the blocks are federations, not the seeds of one.
        p: of Friedman's test; None of fewer than three methods or two blocks.
        difference: Nemenyi's critical difference at 5 %.
    """

    names: list[str]
    means: list[float]
    blocks: int
    apart: bool
    p: float | None
    difference: float


def best(lines: Sequence[Line], on: Federation) -> Line | None:
    """Returns the line with the best validation metric, the first one among equals; None if all have diverged."""
    sign = -1 if on.lower else 1
    known = [line for line in lines if line["numbers"] is not None and line["numbers"]["validation"] is not None]
    whole = [line for line in known if math.isfinite(line["numbers"]["validation"])]
    return max(whole, key=lambda line: sign * line["numbers"]["validation"], default=None)


def standings(
    on: Federation, folder: Path = FOLDER, count: Count = "chosen", beside: Path | None = None
) -> list[Standing]:
    """Returns the methods that are done on a federation, the best micro metric first; the last have diverged at a seed.

    Args:
        on: the federation.
        folder: of the results.
        count: how those that take a number of clusters come to it: it is `"chosen"` like any other number; `"given"`,
            the true one; or the true one is `"withheld"`, and it is chosen among others. The last two list nobody else.
        beside: a second folder, of newcomers' results.
    """
    if count != "chosen" and on.groups is None:
        return []
    lines = [one for place in (folder, beside) if place for one in results.read(place / f"{on.name}.jsonl")]
    last = {(one["row"], one["value"], one["rate"], one["seed"]): one for one in lines}
    found = []
    for row in dict.fromkeys(key[0] for key in last):
        tried = [one for one in last.values() if one["row"] == row and one["seed"] == SEEDS[0]]
        if count != "chosen":
            true = count == "given"
            tried = [one for one in tried if one["number"] == COUNT and (one["value"] == on.groups) is true]
        chosen = best(tried, on)
        if chosen is None:
            continue
        own = [last.get((row, chosen["value"], chosen["rate"], seed)) for seed in SEEDS]
        if None not in own:
            with_it = {"rate": [one for one in tried if one["value"] == chosen["value"]], "value": tried}
            edges = [name for name, some in with_it.items() if _at_edge(chosen[name], {one[name] for one in some})]
            found.append(Standing(row, [one for one in own if one is not None], tuple(edges)))
    return sorted(found, key=lambda one: (1 if on.lower else -1) * _counted_as(one.mean("micro"), lower=on.lower))


def level(own: Sequence[Standing], name: str = "micro", *, lower: bool) -> tuple[Standing, list[Standing]] | None:
    """Returns who has the best mean of a number, and who is not told apart from it by the seeds; None of nobody.

    By a paired t-test at 5 %, each for itself: the seeds have the same clients, rows and initial models.
    """
    values = {one.row: [line["numbers"][name] for line in one.lines] for one in own if one.mean(name) is not None}
    known = [one for one in own if one.row in values]
    if not known:
        return None
    first = (min if lower else max)(known, key=lambda one: statistics.fmean(values[one.row]))
    alike = []
    for one in known:
        found = paired(list(zip(values[first.row], values[one.row], strict=True)))
        p = 1.0 if found is None else float(found.mean == 0) if found.p is None else found.p
        if one is not first and p >= LEVEL:
            alike.append(one)
    return first, alike


def _counted_as(metric: float | None, *, lower: bool) -> float:
    """Returns a metric, the worst there is where a seed has none."""
    return metric if metric is not None else math.inf if lower else -math.inf


def _at_edge(value: Any, tried: set[Any]) -> bool:
    return len(tried) > 2 and value in (min(tried), max(tried))


def ranks(tables: Sequence[Mapping[str, float]], *, lower: Sequence[bool], apart: bool = True) -> Ranks:
    """Returns the mean ranks of the methods that are in every block.

    Args:
        tables: for each block the metric by method.
        lower: for each block whether lower is better.
        apart: whether they are federations, not the seeds of one.

    >>> found = ranks([{"a": 0.9, "b": 0.8, "c": 0.8}, {"a": 1.0, "b": 2.0, "c": 3.0}], lower=[False, True])
    >>> found.names, found.means
    (['a', 'b', 'c'], [1.0, 2.25, 2.75])
    """
    from scipy import stats

    names = [name for name in tables[0] if all(name in table for table in tables)]
    signed = [[(1 if down else -1) * table[name] for name in names] for table, down in zip(tables, lower, strict=True)]
    means = stats.rankdata(signed, axis=1).mean(axis=0)  # [k], ties share their ranks
    p = None
    if len(names) > 2 and len(tables) > 1:
        p = float(stats.friedmanchisquare(*np.transpose(signed)).pvalue)
    order = np.argsort(means, kind="stable")
    count = len(names)
    critical = nemenyi(count) * math.sqrt(count * (count + 1) / (6 * len(tables))) if count > 1 else 0.0
    return Ranks(
        [names[place] for place in order], [float(means[place]) for place in order], len(tables), apart, p, critical
    )


def nemenyi(count: int) -> float:
    """Returns q of Nemenyi's test of so many methods at 5 %."""
    from scipy import stats

    return float(stats.studentized_range.ppf(1 - LEVEL, count, math.inf)) / math.sqrt(2)


def by_federation(
    folder: Path = FOLDER, count: Count = "chosen", beside: Path | None = None
) -> dict[str, list[Standing]]:
    """Returns the standings of every federation that has some, by its name; arguments as of `standings`."""
    found = {on.name: standings(on, folder, count, beside) for on in FEDERATIONS}
    return {name: own for name, own in found.items() if own}


def counted(table: Mapping[str, Sequence[Standing]]) -> dict[str, Sequence[Standing]]:
    """Returns the federations that have at least three quarters of the methods that the fullest one has."""
    most = max(map(len, table.values()), default=0)
    return {name: own for name, own in table.items() if len(own) >= SHARE * most}


def mean_ranks(table: Mapping[str, Sequence[Standing]]) -> Ranks | None:
    """Returns the ranks over the federations, of the methods that are on all of them; None of less than two.

    Federations that have only begun are left out, see `counted`. Of a single federation its seeds are the blocks: each
    has other clients, rows and initial models.
    """
    table = counted(table)
    lower = {on.name: on.lower for on in FEDERATIONS}
    if len(table) == 1:
        ((name, own),) = table.items()
        blocks = [
            {one.row: _counted_as((one.lines[place]["numbers"] or {}).get("micro"), lower=lower[name]) for one in own}
            for place in range(len(SEEDS))
        ]
        directions = [lower[name]] * len(blocks)
    else:
        directions = [lower[name] for name in table]
        blocks = [
            {one.row: _counted_as(one.mean("micro"), lower=down) for one in own}
            for own, down in zip(table.values(), directions, strict=True)
        ]
    everywhere = set.intersection(*(set(block) for block in blocks)) if blocks else set()
    return ranks(blocks, lower=directions, apart=len(table) > 1) if len(everywhere) > 1 else None


def order(table: Mapping[str, Sequence[Standing]]) -> list[str]:
    """Returns the methods in the order of their mean ranks.

    One that is not on every federation has no mean rank. It stands where its mean place on its own federations puts it.
    """
    places: dict[str, list[int]] = {}
    for own in table.values():
        for place, one in enumerate(own):
            places.setdefault(one.row, []).append(place)
    names = sorted(places, key=lambda name: statistics.fmean(places[name]))
    found = mean_ranks(table)
    if found is None:
        return names
    ranked = iter(found.names)
    return [next(ranked) if name in found.names else name for name in names]
