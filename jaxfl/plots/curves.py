"""Curves: settings by round, a choice of the number of clusters, and the scaling of rounds."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from jaxfl.analysis.comparison import Comparison, ComparisonByData, Line
from jaxfl.bench import AXES, Scaling
from jaxfl.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


TITLES = {
    "distance": "distance from the cluster's centre",
    "silhouette": "silhouette of gradients",
    "davies_bouldin": "Davies-Bouldin index of gradients",
    "wasserstein_silhouette": "silhouette of sorted class shares",
    "wasserstein_davies_bouldin": "Davies-Bouldin of sorted class shares",
}


class ChoiceLike(Protocol):
    """The fields of a `jaxfl.Choice` that are drawn."""

    @property
    def num_clusters(self) -> int:
        """K."""
        ...

    @property
    def criterion(self) -> str:
        """The criterion: `"accuracy"`, `"distance"`, or a score of clusters that is in the table."""
        ...

    @property
    def metric(self) -> str:
        """The task's main metric."""
        ...

    @property
    def table(self) -> Sequence[dict[str, Any]]:
        """A row for every candidate."""
        ...


def choice(choice: ChoiceLike) -> "Figure":
    """Draws accuracy, distance and the criterion by the number of clusters; a ring marks the chosen one.

    There is no panel of a distance that the method lacks. Where the criterion was the distance, its chord is dotted:
    the elbow is the point farthest below.

    Args:
        choice: result of `jaxfl.choose_num_clusters`.
    """
    rows = choice.table
    numbers = [row["num_clusters"] for row in rows]
    decisive = choice.metric if choice.criterion == "accuracy" else choice.criterion
    names = [name for name in (choice.metric, "distance") if all(row[name] is not None for row in rows)]
    names += [] if decisive in (choice.metric, "distance") else [decisive]  # not defined for one cluster
    figure = style.figure((3.6 * len(names) + 0.2, 3.0))
    color, mark = style.BASE[0], style.BASE[5]
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        values = [math.nan if row[name] is None else row[name] for row in rows]
        decided = name == decisive
        if decided and name == "distance":
            axes.plot([numbers[0], numbers[-1]], [values[0], values[-1]], ":", color="#444444", lw=1, label="chord")
        axes.plot(numbers, values, "-o", color=color, ms=4)
        place = numbers.index(choice.num_clusters)
        label = f"chosen: {style.count_phrase(choice.num_clusters, 'cluster')}" if decided else None
        axes.plot(
            numbers[place], values[place], "o", ms=11, mfc="none", mec=mark, mew=1.6, ls="", label=label, clip_on=False
        )
        axes.set_title(TITLES.get(name, f"{style.plain(name)} on rows set aside"), fontsize=10, loc="left")
        axes.set_xlabel("number of clusters")
        style.light_grid(axes)
        axes.margins(0.09, 0.12)
        if len(numbers) == 1:
            axes.set_xlim(numbers[0] - 1, numbers[0] + 1)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if decided:
            axes.legend(fontsize=8, frameon=False)
    return figure


DECADE = 10.0  # smallest ratio between the ends of an axis of seconds
IDEALS = {1.0: "proportional", 0.0: "constant", -1.0: "linear speed-up"}


def scaling(*results: Scaling) -> "Figure":
    """Draws seconds per round, memory and the share of the machine's matrix product, a row of panels for each axis.

    Seconds: the median, a band from the fastest to the slowest round, and the ideal slope (dashes). Memory: the peak of
    the point's process; the dotted line is the memory of Python and JAX alone. Points that failed are left out.

    Args:
        *results: results of `jaxfl.bench.scaling`.

    Raises:
        ValueError: an axis has no measured point.
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
        if empty:  # 0 on a GPU
            memory.axhline(empty, color="#444444", lw=1, ls=":", label="Python and JAX alone")
            memory.legend(fontsize=8, frameon=False)
        memory.set_title("memory at most, MB")
        _draw_band(share, values, [row["share_of_product"] for row in rows], 100)
        share.set_title("of the machine's matrix product, %")
        for axes in (seconds, memory, share):
            axes.set_title(axes.get_title(), fontsize=10, loc="left")
            axes.set_title("")
            finish_axes(axes, result.over, values)
    return figure


def draw_seconds(axes: "Axes", result: Scaling) -> None:
    """Draws milliseconds per round by value, and the ideal."""
    rows = [row for row in result.points if "error" not in row]
    values = [row["value"] for row in rows]
    _draw_band(axes, values, [row["seconds"] for row in rows], 1000)
    ideal = AXES[result.over].ideal
    fixed = rows[-1 if ideal > 0 else 0]  # constant costs dominate small cohorts and narrow layers
    ideals = [1000 * fixed["seconds"]["median"] * (value / fixed["value"]) ** ideal for value in values]
    axes.plot(values, ideals, "--", color="#444444", lw=1, label=IDEALS[ideal])
    slope = "" if result.slope is None else f", slope {result.slope:.2f}"
    axes.set(yscale="log", title=f"ms a round{slope}")
    axes.legend(fontsize=8, frameon=False)


def finish_axes(axes: "Axes", over: str, values: list[int]) -> None:
    """Sets the measured values as ticks of the x axis, and plain numbers on the y axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.set_xlabel(AXES[over].label)
    axes.set_xticks(values, [f"{value:,}" for value in values])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="minor", length=0)
    if axes.get_yscale() == "log":
        low, high = axes.get_ylim()
        if high / low < DECADE:  # otherwise noise would fill the panel
            low, high = (math.sqrt(low * high) * DECADE**power for power in (-0.5, 0.5))
            axes.set_ylim(low, high)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 200 else (1,)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    style.light_grid(axes)


def _draw_band(axes: "Axes", values: list[int], spreads: list[dict[str, float]], factor: float) -> None:
    """Draws medians, and a band from the minimum to the maximum."""
    low, middle, high = ([factor * one[name] for one in spreads] for name in ("min", "median", "max"))
    axes.fill_between(values, low, high, color=style.BASE[0], alpha=0.2, lw=0)
    axes.plot(values, middle, "-o", color=style.BASE[0], ms=4)


DASHES = ("-", "--", ":", "-.")  # by position, so that lines of one colour differ
MAX_ACROSS = 3  # panels of federations beside each other


def curves(comparison: Comparison | ComparisonByData, metric: str | None = None, x: style.X = "round") -> "Figure":
    """Draws the metric of every setting by round or by simulated hours: mean of the seeds, and one standard deviation.

    Of several federations each has a panel. A line marks a drift of the data, a dotted one the target.

    Args:
        comparison: result of `jaxfl.analysis.comparison.compare` or `compare_by_data`.
        metric: entry of the histories; None draws the one that each setting is compared by.
        x: `"round"`, or `"seconds_simulated"` for runs with a clock: the mean of the seeds at each evaluation.

    Raises:
        ValueError: a run has no clock and is to be drawn by its time.
    """
    from matplotlib.ticker import MaxNLocator

    parts = {"": comparison} if isinstance(comparison, Comparison) else comparison.parts
    style.check_x(x, (run.history for part in parts.values() for line in part.lines for run in line.runs.values()))
    names = list(dict.fromkeys(line.name for part in parts.values() for line in part.lines))
    looks: dict[str, dict[str, Any]] = {
        name: {"label": style.plain(name), "color": color, "ls": DASHES[place % len(DASHES)]}
        for place, (name, color) in enumerate(zip(names, style.line_colors(len(names)), strict=True))
    }
    across = min(len(parts), MAX_ACROSS)
    down = math.ceil(len(parts) / across)
    beside = style.legend_width(map(style.plain, names))
    legend = 0.5 + 0.18 * len(names)  # inches: a line of the legend for each
    figure = style.figure(
        ((9 if across == 1 else 2.4 + 3.6 * across) + beside, max(4.2 if down == 1 else 3.2 * down, legend))
    )
    panels = figure.subplots(down, across, squeeze=False).flat
    labelled: dict[str, Any] = {}
    for (data, part), axes in zip(parts.items(), panels, strict=False):
        _draw_curves(axes, part, metric, looks, x)
        drawn = [metric] if metric else dict.fromkeys(line.metric for line in part.lines)
        title = " or ".join(drawn).replace("_", " ") + (f", {data}" if data else "")
        axes.set_title(style.plain(title), fontsize=10, loc="left")
        axes.set_xlabel(style.X_LABELS[x])
        if x == "round":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        style.light_grid(axes)
        labelled = {**dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True)), **labelled}
    for axes in panels:  # of the last row of panels
        axes.set_axis_off()
    shown = {look["label"]: look for look in looks.values()}
    labels = [*shown, *(label for label in labelled if label not in shown)]
    handles = [labelled[label] for label in labels]
    figure.legend(handles, labels, loc="outside right upper", fontsize=8, frameon=False, handlelength=3)
    return figure


def _draw_curves(
    axes: "Axes", found: Comparison, metric: str | None, looks: dict[str, dict[str, Any]], x: style.X
) -> None:
    """Draws a metric of every setting by round, or the one that each is compared by, with the target and the drift."""
    for line in found.lines:
        rounds, values = _values_by_round(line, line.metric if metric is None else metric)
        if x != "round":
            known = [{one["round"]: one[x] for one in run.history} for run in line.runs.values()]
            rounds = [style.along(x, float(np.mean([one[round] for one in known]))) for round in rounds]
        mean, look = values.mean(0), looks[line.name]
        axes.plot(rounds, mean, lw=1.6, marker="o" if len(rounds) < 3 else "", ms=4, **look)
        if len(values) > 1:
            spread = values.std(0, ddof=1)
            axes.fill_between(rounds, mean - spread, mean + spread, color=look["color"], alpha=0.15, lw=0)
    if found.target is not None and metric is None:
        axes.axhline(found.target, color="#444444", lw=1, ls=(0, (1, 3)))
    if x == "round":
        style.mark_drift(axes, (run for line in found.lines for run in line.runs.values()))


def _values_by_round(line: Line, metric: str) -> tuple[list[int], np.ndarray]:
    """Returns the rounds in which all runs of a setting were evaluated, and the metric `[seeds, rounds]`."""
    found = [
        {one["round"]: one[metric] for one in run.history if one.get(metric) is not None} for run in line.runs.values()
    ]
    rounds = sorted(set.intersection(*map(set, found)))
    return rounds, np.array([[one[round] for round in rounds] for one in found], float).reshape(len(found), -1)
