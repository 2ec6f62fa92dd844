"""The pictures of the page: everybody's numbers on every federation, and mean ranks with the critical difference."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.leaderboard.federations import FEDERATIONS, Federation
from experiments.leaderboard.table import LEVEL, Count, Ranks, Standing, by_federation, mean_ranks, order
from jaxfl.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

IMAGES = Path(__file__).parents[2] / "docs" / "pages" / "images"
COMMAND = "leaderboard"  # in what is written
PICTURES = ("leaderboard.png", "leaderboard-ranks.png")
BASE = "fedavg"
TITLES: dict[Count, str] = {
    "chosen": "Number of clusters not given",
    "given": "Number of clusters given",
    "withheld": "Number of clusters not given, and the true one is not among those tried",
}
WIDTH, LINE, COLUMN = 2.0, 0.24, 1.05  # inches: names, a row, a column


def draw(folder: Path, out: Path = IMAGES, beside: Path | None = None) -> list[Path]:
    """Draws what the results of a folder say, with those of newcomers `beside` it, and returns the files."""
    tables: dict[Count, dict[str, list[Standing]]] = {count: by_federation(folder, count, beside) for count in TITLES}
    pictures = {PICTURES[0]: heatmap(tables)}
    if (ranks := mean_ranks(tables["chosen"])) is not None:
        pictures[PICTURES[1]] = critical_differences(ranks)
    for name, figure in pictures.items():
        style.write_picture(figure, out / name, dpi=110, command=COMMAND)
    return [out / name for name in pictures]


def heatmap(tables: Mapping[Count, Mapping[str, Sequence[Standing]]]) -> "Figure":
    """Draws every method on every federation, coloured by how far it is from FedAvg there.

    Args:
        tables: by how methods come to a number of clusters, the standings by the federation's name.
    """
    shown: dict[Count, list[str]] = {count: names for count, table in tables.items() if (names := order(table))}
    heights = [max(len(names), 1) for names in shown.values()]
    figure = style.figure((WIDTH + COLUMN * len(FEDERATIONS), 1.2 + LINE * (sum(heights) + 3 * len(heights))))
    panels = figure.subplots(len(shown) or 1, 1, squeeze=False, height_ratios=heights or [1]).ravel()
    for axes, (count, names) in zip(panels, shown.items(), strict=False):
        _panel(axes, names, tables[count], tables["chosen"])
        axes.set_title(TITLES[count], fontsize=9, loc="left", fontweight="bold")
    figure.supxlabel(
        "Mean over five seeds: accuracy in %, of ratings the squared error. Blue is better than FedAvg, orange is "
        "worse, the best is bold; grey was not made, or not at every seed.",
        fontsize=7,
        x=0.02,
        ha="left",
    )
    return figure


def _panel(
    axes: "Axes",
    names: Sequence[str],
    table: Mapping[str, Sequence[Standing]],
    everybody: Mapping[str, Sequence[Standing]],
) -> None:
    """Draws one table."""
    colors = np.full((len(names), len(FEDERATIONS), 4), (0.95, 0.95, 0.95, 1.0))
    for column, on in enumerate(FEDERATIONS):
        found = {one.row: value for one in table.get(on.name, ()) if (value := one.mean("micro")) is not None}
        base = next((one.mean("micro") for one in everybody.get(on.name, ()) if one.row == BASE), None)
        best = (min if on.lower else max)(found.values(), default=None)
        gains = {name: _gain(on, value, base) for name, value in found.items()}
        diverged = {one.row for one in table.get(on.name, ()) if one.diverged}
        widest = max((abs(gain) for gain in gains.values()), default=0) or 1.0
        for row, name in enumerate(names):
            if name in found:
                colors[row, column] = _color(gains[name] / widest)
                weight = "bold" if found[name] == best else "normal"
                axes.text(column, row, _word(on, found[name]), ha="center", va="center", fontsize=8, fontweight=weight)
            elif name in diverged:
                axes.text(column, row, "diverged", ha="center", va="center", fontsize=7)
    axes.imshow(colors, aspect="auto")
    axes.set_xticks(range(len(FEDERATIONS)), [on.title.replace(" ", "\n", 1) for on in FEDERATIONS], fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _gain(on: Federation, value: float, base: float | None) -> float:
    """Returns how much better a value is than FedAvg's."""
    return 0.0 if base is None else (base - value if on.lower else value - base)


def _color(gain: float) -> tuple[float, float, float, float]:
    """Returns white for 0, blue to 1 and orange to -1, which all eyes tell apart; pale: black is read on them."""
    share = min(abs(gain), 1.0) ** 0.5
    far = (0.45, 0.70, 0.88) if gain > 0 else (0.96, 0.75, 0.42)
    red, green, blue = (1 - share * (1 - part) for part in far)
    return red, green, blue, 1.0


def _word(on: Federation, value: float) -> str:
    return f"{value:.3f}" if on.lower else f"{100 * value:.1f}"


def critical_differences(ranks: Ranks) -> "Figure":
    """Draws the mean ranks on a line, as Demsar does; methods under one bar do not differ by Nemenyi's test."""
    count = len(ranks.names)
    half = (count + 1) // 2
    bars = groups(ranks)
    figure = style.figure((8.0, 1.2 + 0.2 * half + 0.12 * len(bars)))
    axes = figure.subplots()
    floor = -0.5 - 0.45 * len(bars)
    for place, (name, mean) in enumerate(zip(ranks.names, ranks.means, strict=True)):
        left = place < half
        level = floor - (place if left else count - 1 - place) - 0.5
        edge = 0.4 if left else count + 0.6
        axes.plot([mean, mean, edge], [0, level, level], color="#777777", lw=0.7)
        axes.text(edge, level, f" {name} {mean:.1f} ", ha="right" if left else "left", va="center", fontsize=8)
    for level, (first, last) in enumerate(bars):
        axes.plot([first - 0.05, last + 0.05], [-0.4 - 0.45 * level] * 2, color="black", lw=2.5, solid_capstyle="butt")
    axes.plot([1, count], [0, 0], color="black", lw=1)
    axes.plot([1, 1 + ranks.difference], [1.3, 1.3], color="black", lw=1.5)
    axes.text(1, 1.5, f"critical difference {ranks.difference:.2f} at {LEVEL:.0%}", fontsize=8, va="bottom")
    for tick in range(1, count + 1):
        axes.plot([tick, tick], [0, 0.25], color="black", lw=0.7)
        axes.text(tick, 0.35, str(tick), ha="center", fontsize=7)
    axes.set(xlim=(-2.5, count + 3.5), ylim=(floor - half - 0.5, 2.6))
    axes.axis("off")
    return figure


def groups(ranks: Ranks) -> list[tuple[float, float]]:
    """Returns the bars: the widest runs of mean ranks that are no further apart than the critical difference.

    >>> groups(Ranks(["a", "b", "c", "d"], [1.0, 1.5, 2.2, 4.0], 8, True, 0.01, 1.0))
    [(1.0, 1.5), (1.5, 2.2)]
    """
    means, found = ranks.means, []
    for place, first in enumerate(means):
        last = max(mean for mean in means[place:] if mean - first <= ranks.difference)
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found
