"""Which of two rows is better: what a paper claims, tested over the seeds that both rows have.

A difference is of two runs of one seed, which have the same clients and initial models. With few seeds the test finds
large differences only, and says `undecided` of the others; of one seed it says nothing else.
"""

import fnmatch
from collections.abc import Sequence

from experiments.harness import base
from experiments.harness.base import Claim, Experiment
from experiments.harness.entries import EMPTY, Entry
from jaxfl.analysis.lines import Difference, paired
from jaxfl.cli import page

LEVEL = 0.05  # of a p-value, each for itself
WORDS = (
    "That the first row is better than the second is what the paper claims, or prints; where a claim is ours, it is a "
    "question, answered by yes or no. The difference is the mean over the seeds that "
    f"both have (± its standard deviation), p that of a paired t-test, each for itself; at p < {LEVEL} it decides."
)


def verdict(found: Difference, *, ours: bool = False) -> str:
    """Returns what the seeds say of a claim; of one of ours, whether it is so.

    >>> verdict(Difference(1.0, 0.1, 0.01, 3)), verdict(Difference(-1.0, 0.1, 0.01, 3))
    ('reproduced', 'not reproduced')
    >>> verdict(Difference(1.0, 2.0, 0.5, 3)), verdict(Difference(9.0, None, None, 1))
    ('undecided', 'undecided')
    >>> verdict(Difference(1.0, 0.1, 0.01, 3), ours=True)
    'yes'
    """
    if found.p is None or found.p >= LEVEL:
        return "undecided"
    yes, no = ("yes", "no") if ours else ("reproduced", "not reproduced")
    return yes if found.mean > 0 else no


def difference(better: Entry, worse: Entry) -> Difference | None:
    """Returns how far one row is ahead of another, over the seeds that both have; None where they share none."""
    name, factor = better.cell.metric, base.UNITS[better.cell.unit]
    own, other = ({line["seed"]: line["summary"].get(name) for line in entry.lines} for entry in (better, worse))
    seeds = [seed for seed, value in own.items() if value is not None and other.get(seed) is not None]
    return paired([(factor * own[seed], factor * other[seed]) for seed in seeds])


def table(experiment: Experiment, entries: Sequence[Entry]) -> page.Table | None:
    """Returns a line for each claim of which both rows were made; None if there is none."""
    lines = [line for claim in experiment.claims for line in _lines(claim, entries)]
    head = ["table, column", "claim", "difference", "p", "seeds", "here"]
    return page.Table(head, lines) if lines else None


def _lines(claim: Claim, entries: Sequence[Entry]) -> list[list[str]]:
    """Returns the lines of a claim, one for each of its columns."""
    own = {(one.cell.row, one.cell.column): one for one in entries if one.cell.table == claim.table}
    lines = []
    for column in dict.fromkeys(column for _, column in own if fnmatch.fnmatchcase(column, claim.column)):
        pair = [own.get((row, column)) for row in (claim.better, claim.worse)]
        if pair[0] is None or pair[1] is None or (found := difference(pair[0], pair[1])) is None:
            continue
        spread = "" if found.std is None else f" ± {found.std:.2f}"
        p = EMPTY if found.p is None else f"{found.p:.2g}"
        claimed = f"{claim.better} above {claim.worse}{' (ours)' if claim.ours else ''}"
        where, said = f"{claim.table}, {column}", verdict(found, ours=claim.ours)
        lines.append([where, claimed, f"{found.mean:+.2f}{spread}", p, str(found.seeds), said])
    return lines
