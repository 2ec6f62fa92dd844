"""Which of two rows is better: what a paper claims, tested over the seeds that both rows have.

A difference is of two runs of one seed, which have the same clients and initial models. With few seeds the test finds
large differences only, and says `undecided` of the others; of one seed or two it says nothing else.
"""

import fnmatch
from collections.abc import Sequence

from experiments.harness import base, results
from experiments.harness.base import Claim, Experiment
from experiments.harness.entries import EMPTY, Entry
from jaxfl.analysis.comparison import Difference, holm, paired
from jaxfl.cli import page

LEVEL = 0.05  # of an adjusted p-value
LEAST = 3  # seeds, without which nothing is decided: of two, a standard deviation is next to no measure
WORDS = (
    "That the first row is better than the second is what the paper claims, or prints; where a claim is ours, it is a "
    "question, answered by yes or no. The difference is the mean over the seeds that both have (± its standard "
    "deviation), p that of a paired t-test. Of many tests some come out by chance: Holm's p is adjusted for all those "
    f"of the table with {LEAST} seeds or more, and decides where it is below {LEVEL}."
)


def verdict(mean: float, p: float | None, *, ours: bool = False) -> str:
    """Returns what the seeds say of a claim; of one of ours, whether it is so.

    Args:
        mean: how far the first row is ahead.
        p: adjusted; None where there are too few seeds.
        ours: whether no paper claims it.

    >>> verdict(1.0, 0.01), verdict(-1.0, 0.01), verdict(1.0, 0.5), verdict(9.0, None)
    ('reproduced', 'not reproduced', 'undecided', 'undecided')
    >>> verdict(1.0, 0.01, ours=True)
    'yes'
    """
    if p is None or p >= LEVEL:
        return "undecided"
    yes, no = ("yes", "no") if ours else ("reproduced", "not reproduced")
    return yes if mean > 0 else no


def difference(better: Entry, worse: Entry) -> Difference | None:
    """Returns how far one row is ahead of another, over the seeds that both have; None where they share none."""
    name, factor = better.cell.metric, base.UNITS[better.cell.unit]
    own, other = ({line["seed"]: line["summary"].get(name) for line in entry.lines} for entry in (better, worse))
    seeds = [seed for seed, value in own.items() if value is not None and other.get(seed) is not None]
    return paired([(factor * own[seed], factor * other[seed]) for seed in seeds], results.DIGITS)


def table(experiment: Experiment, entries: Sequence[Entry]) -> page.Table | None:
    """Returns a line for each claim of which both rows were made; None if there is none."""
    asked = [one for claim in experiment.claims for one in _columns(claim, entries)]
    tested = [found.p for _, _, found in asked if found.p is not None and found.seeds >= LEAST]
    adjusted = iter(holm(tested))
    lines = []
    for claim, where, found in asked:
        p = next(adjusted) if found.p is not None and found.seeds >= LEAST else None
        spread = "" if found.std is None else f" ± {found.std:.2f}"
        claimed = f"{claim.better} above {claim.worse}{' (ours)' if claim.ours else ''}"
        said = verdict(found.mean, p, ours=claim.ours)
        tests = [EMPTY if one is None else f"{one:.{digits}g}" for one, digits in ((found.p, 2), (p, 3))]
        lines.append([where, claimed, f"{found.mean:+.2f}{spread}", *tests, str(found.seeds), said])
    head = ["table, column", "claim", "difference", "p", "Holm's p", "seeds", "here"]
    return page.Table(head, lines) if lines else None


def _columns(claim: Claim, entries: Sequence[Entry]) -> list[tuple[Claim, str, Difference]]:
    """Returns a claim with each of its columns of which both rows were made, and how far they are apart."""
    own = {(one.cell.row, one.cell.column): one for one in entries if one.cell.table == claim.table}
    found = []
    for column in dict.fromkeys(column for _, column in own if fnmatch.fnmatchcase(column, claim.column)):
        pair = [own.get((row, column)) for row in (claim.better, claim.worse)]
        if pair[0] is not None and pair[1] is not None and (apart := difference(pair[0], pair[1])) is not None:
            found.append((claim, f"{claim.table}, {column}", apart))
    return found
