"""A picture of how rounds scale on a machine."""

import math
from typing import TYPE_CHECKING

from jaxfl.bench import AXES, Scaling
from jaxfl.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
