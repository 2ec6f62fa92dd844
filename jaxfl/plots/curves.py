"""Several settings by round: the mean of their seeds, and how far these are apart."""

from typing import TYPE_CHECKING

import numpy as np

from jaxfl.analysis.comparison import Comparison, Line
from jaxfl.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from matplotlib.figure import Figure

import math
from typing import TYPE_CHECKING

from jaxfl.bench import AXES, Scaling

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


DISTANCE = "distance from the cluster's centre"


class Chosen(Protocol):
    """What the picture needs of a `jaxfl.Choice`."""

    @property
    def num_clusters(self) -> int:
        """K."""
        ...

    @property
    def criterion(self) -> str:
        """What K was chosen by."""
        ...

    @property
    def metric(self) -> str:
        """The task's main metric."""
        ...

    @property
    def table(self) -> Sequence[dict[str, Any]]:
        """A row for every candidate."""
        ...


def choice(choice: Chosen) -> "Figure":
    """Draws accuracy and distance by the number of clusters; a ring marks the chosen one.

    Without a distance there is one panel. Where the elbow of the distance was chosen, the chord that it is farthest
    below is dotted.

    Args:
        choice: of `jaxfl.choose_num_clusters`.
    """
    rows = choice.table
    numbers = [row["num_clusters"] for row in rows]
    names = [name for name in (choice.metric, "distance") if all(row[name] is not None for row in rows)]
    figure = style.figure((3.6 * len(names) + 0.2, 3.0))
    color, mark = style.BASE[0], style.BASE[5]
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        values = [row[name] for row in rows]
        decided = (name == "distance") == (choice.criterion == "distance")
        if decided and name == "distance":
            axes.plot([numbers[0], numbers[-1]], [values[0], values[-1]], ":", color="#444444", lw=1, label="chord")
        axes.plot(numbers, values, "-o", color=color, ms=4)
        place = numbers.index(choice.num_clusters)
        label = f"chosen: {style.count(choice.num_clusters, 'cluster')}" if decided else None
        axes.plot(
            numbers[place], values[place], "o", ms=11, mfc="none", mec=mark, mew=1.6, ls="", label=label, clip_on=False
        )
        axes.set_title(DISTANCE if name == "distance" else f"{name} on rows set aside", fontsize=10, loc="left")
        axes.set_xlabel("number of clusters")
        style.light_grid(axes)
        axes.margins(0.09, 0.12)
        if len(numbers) == 1:
            axes.set_xlim(numbers[0] - 1, numbers[0] + 1)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if decided:
            axes.legend(fontsize=8, frameon=False)
    return figure


DECADE = 10.0  # the least that an axis of seconds spans
IDEALS = {1.0: "proportional", 0.0: "constant", -1.0: "linear speed-up"}


def scaling(*results: Scaling) -> "Figure":
    """Draws seconds a round, memory and the share of the machine's matrix product, a line of panels for each axis.

    Seconds: the median, a band from the fastest to the slowest round, and the slope that one would wish for (dashes).
    Memory: the most that the point's process held; below the dots is what Python and JAX take without any work.
    Points that failed are left out.

    Args:
        *results: of `jaxfl.bench.scaling`.

    Raises:
        ValueError: nothing was measured along one of them.
    """
    if not results:
        raise ValueError("results must have at least one scaling, got none.")
    figure = style.figure((11, 3.2 * len(results) + 0.2))
    for result, (seconds, memory, share) in zip(results, figure.subplots(len(results), 3, squeeze=False), strict=True):
        rows = [row for row in result.points if "error" not in row]
        if not rows:
            raise ValueError(f"results must hold points that were measured, got none for {result.over}.")
        values = [row["value"] for row in rows]
        draw_seconds(seconds, result)
        memory.plot(values, [row["peak_bytes"] / 1e6 for row in rows], "-o", color=style.BASE[0], ms=4)
        empty = max(row["empty_bytes"] for row in rows) / 1e6
        if empty:  # of a GPU they take nothing
            memory.axhline(empty, color="#444444", lw=1, ls=":", label="Python and JAX alone")
            memory.legend(fontsize=8, frameon=False)
        memory.set_title("memory at most, MB")
        _band(share, values, [row["share_of_product"] for row in rows], 100)
        share.set_title("of the machine's matrix product, %")
        for axes in (seconds, memory, share):
            axes.set_title(axes.get_title(), fontsize=10, loc="left")
            axes.set_title("")
            finish(axes, result.over, values)
    return figure


def draw_seconds(axes: "Axes", result: Scaling) -> None:
    """Draws seconds a round by value, and the ideal."""
    rows = [row for row in result.points if "error" not in row]
    values = [row["value"] for row in rows]
    _band(axes, values, [row["seconds"] for row in rows], 1000)
    ideal = AXES[result.over].ideal
    fixed = rows[-1 if ideal > 0 else 0]  # small cohorts and narrow layers are held up by what does not grow
    wished = [1000 * fixed["seconds"]["median"] * (value / fixed["value"]) ** ideal for value in values]
    axes.plot(values, wished, "--", color="#444444", lw=1, label=IDEALS[ideal])
    slope = "" if result.slope is None else f", slope {result.slope:.2f}"
    axes.set(yscale="log", title=f"ms a round{slope}")
    axes.legend(fontsize=8, frameon=False)


def finish(axes: "Axes", over: str, values: list[int]) -> None:
    """Gives axes the measured values as ticks, and numbers that people read."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.set_xlabel(AXES[over].label)
    axes.set_xticks(values, [f"{value:,}" for value in values])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="minor", length=0)
    if axes.get_yscale() == "log":
        low, high = axes.get_ylim()
        if high / low < DECADE:  # or noise would fill the panel
            low, high = (math.sqrt(low * high) * DECADE**power for power in (-0.5, 0.5))
            axes.set_ylim(low, high)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 200 else (1,)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    style.light_grid(axes)


def _band(axes: "Axes", values: list[int], spreads: list[dict[str, float]], factor: float) -> None:
    """Draws medians, and a band between the extremes."""
    low, middle, high = ([factor * one[name] for one in spreads] for name in ("min", "median", "max"))
    axes.fill_between(values, low, high, color=style.BASE[0], alpha=0.2, lw=0)
    axes.plot(values, middle, "-o", color=style.BASE[0], ms=4)


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
