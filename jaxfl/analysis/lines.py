"""What a comparison has in a line: the runs of one setting, by seed, and how far they are from those of another."""

import math
import statistics
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from jaxfl.analysis.cells import deviation
from jaxfl.simulation.history import History


class Run(Protocol):
    """What a comparison needs of a `jaxfl.Result`, or of a run that was kept."""

    @property
    def history(self) -> History:
        """The records."""
        ...

    @property
    def summary(self) -> dict[str, Any]:
        """What came of it."""
        ...


class Difference(NamedTuple):
    """How far two settings are from each other, over the seeds that both have."""

    mean: float
    std: float | None  # of a sample; None for one seed
    p: float | None  # of the paired t-test; None for one seed, or where all differences are equal
    seeds: int


def paired(pairs: Sequence[tuple[float, float]], digits: int | None = None) -> Difference | None:
    """Returns how far the first of each pair is ahead of the second, and Student's paired t-test; None of no pairs.

    Args:
        pairs: two numbers of each seed.
        digits: decimal ones that the numbers were rounded to; None: to none.

    >>> found = paired([(2.0, 1.0), (4.0, 2.0), (6.0, 3.0)])
    >>> found.mean, found.std, round(found.p, 3), found.seeds
    (2.0, 1.0, 0.074, 3)
    """
    from scipy import stats

    if not pairs:
        return None
    differences = [one - other for one, other in pairs]
    std = deviation(differences)
    mean, count = statistics.fmean(differences), len(differences)
    # 0.82 - 0.80 and 0.92 - 0.90 are equal but for rounding
    share = 4 * sys.float_info.epsilon if digits is None else 10.0 ** (1 - digits)  # one of the last digit
    rounding = share * max(abs(value) for pair in pairs for value in pair)
    p = float(2 * stats.t.sf(abs(mean) * math.sqrt(count) / std, count - 1)) if std and std > rounding else None
    return Difference(mean, std, p, count)


class Line(NamedTuple):
    """A setting.

    Attributes:
        name: what the table calls it.
        runs: by seed.
    """

    name: str
    runs: dict[int, Run]

    def values(self, measure: str) -> list[float]:
        """Returns an entry of the summaries, NaN of runs whose own is not finite; empty where none has it.

        Where no summary has it, it is what stands last in the histories, as `train_loss`.
        """
        found = [run.summary.get(measure) for run in self.runs.values()]
        if all(value is None for value in found):
            return [*self.last(measure).values()]
        return [math.nan if value is None else float(value) for value in found]  # as JSON says what is not finite

    def last(self, metric: str) -> dict[int, float]:
        """Returns what a number of the summaries or the histories is in the end, by seed, of the runs that have it.

        NaN where it is not finite: a run that has diverged must not leave a difference to the seeds that have not.
        Empty where none is, as `values`.
        """
        found = {}
        for seed, run in self.runs.items():
            told = [one[metric] for one in (run.summary, *reversed(list(run.history))) if metric in one]
            if told:
                found[seed] = math.nan if told[0] is None else told[0]
        return {} if all(math.isnan(value) for value in found.values()) else found

    def reached(self, metric: str, target: float, columns: Sequence[str], *, lower: bool = False) -> list[float] | None:
        """Returns the sum of some columns of the history where each run reaches the target; None if one never does."""
        found = []
        for run in self.runs.values():
            known = [one for one in run.history if one.get(metric) is not None]
            records = [one for one in known if (one[metric] <= target if lower else one[metric] >= target)]
            if not records:
                return None
            found.append(float(sum(records[0][name] for name in columns)))
        return found
