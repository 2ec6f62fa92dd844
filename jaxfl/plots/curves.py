"""Several settings by round: the mean of their seeds, and how far these are apart."""

from typing import TYPE_CHECKING

import numpy as np

from jaxfl.analysis.comparison import Comparison
from jaxfl.analysis.lines import Line
from jaxfl.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DASHES = ("-", "--", ":", "-.")  # a new one where the colours begin again, and for every other line of one hue


def curves(comparison: Comparison) -> "Figure":
    """Draws the metric of every setting by round: mean of the seeds (line), and one standard deviation (band).

    A line marks a drift of the data.

    Args:
        comparison: of `jaxfl.analysis.comparison.compare`.
    """
    from matplotlib.ticker import MaxNLocator

    figure = style.figure((9, max(4.2, 0.5 + 0.18 * len(comparison.lines))))  # a line of its legend for each
    axes = figure.subplots()
    for place, (line, color) in enumerate(zip(comparison.lines, style.cycle(len(comparison.lines)), strict=True)):
        rounds, values = _by_round(line, comparison.metric)
        mean = values.mean(0)
        dashes = DASHES[place % len(DASHES)]
        marker = "o" if len(rounds) < 3 else ""
        axes.plot(rounds, mean, dashes, label=line.name, color=color, lw=1.6, marker=marker, ms=4)
        if len(values) > 1:
            spread = values.std(0, ddof=1)
            axes.fill_between(rounds, mean - spread, mean + spread, color=color, alpha=0.15, lw=0)
    if comparison.target is not None:
        axes.axhline(comparison.target, color="#444444", lw=1, ls=(0, (1, 3)))
    style.mark_drift(axes, (run for line in comparison.lines for run in line.runs.values()))
    axes.set_title(comparison.metric.replace("_", " "), fontsize=10, loc="left")
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.light_grid(axes)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False, handlelength=3)
    return figure


def _by_round(line: Line, metric: str) -> tuple[list[int], np.ndarray]:
    """Returns the rounds in which all runs of a setting were evaluated, and the metric `[seeds, rounds]`."""
    found = [
        {one["round"]: one[metric] for one in run.history if one.get(metric) is not None} for run in line.runs.values()
    ]
    rounds = sorted(set.intersection(*map(set, found)))
    return rounds, np.array([[one[round] for round in rounds] for one in found], float).reshape(len(found), -1)
