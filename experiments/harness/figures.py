"""The pictures of a report: ours beside the paper's, and convergence by method."""

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxfl import plots
from jaxfl.plots import style
from jaxfl.simulation.records.history import History

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS, PAPERS = "#0072B2", "#D55E00"
MANY = 50  # clusters, from which on a scale is logarithmic


class Point(NamedTuple):
    """One cell of a table: what came out, and what the paper says; None where there is none."""

    row: str
    column: str
    mean: float | None
    std: float | None
    value: float | None
    error: float | None


def comparison(points: Sequence[Point], axis: str) -> "Figure":
    """Draws every cell of a table as two marks on a line: ours, and the paper's; bars are standard deviations.

    Rows and columns without a number are left out.

    Args:
        points: the cells of one table, some of them with a number.
        axis: what the numbers are.
    """
    points = [point for point in points if point.mean is not None or point.value is not None]
    rows = list(dict.fromkeys(point.row for point in points))
    columns = list(dict.fromkeys(point.column for point in points))
    wide = min(len(columns), 4)
    high = -(-len(columns) // wide)
    figure = style.figure((1.6 + 2.6 * wide, high * (0.9 + 0.32 * len(rows)) + 0.3))
    panels = figure.subplots(high, wide, squeeze=False, sharey=True).ravel()
    for axes, column in zip(panels, columns, strict=False):
        for point in (point for point in points if point.column == column):
            place = rows.index(point.row)
            if point.value is not None:
                axes.errorbar(point.value, place - 0.12, xerr=point.error, fmt="D", mfc="white", ms=5, color=PAPERS)
            if point.mean is not None:
                axes.errorbar(point.mean, place + 0.12, xerr=point.std, fmt="o", ms=5, color=OURS)
        axes.set_title(column, fontsize=9, loc="left")
        axes.set_yticks(range(len(rows)), rows, fontsize=9)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.margins(x=0.15)
        axes.tick_params(axis="x", labelsize=8)
        style.light_grid(axes)
    for axes in panels[len(columns) :]:
        axes.set_visible(False)
    handles = [
        panels[0].plot([], [], mark, color=color, mfc=fill, label=label)[0]
        for mark, color, fill, label, values in (
            ("o", OURS, OURS, "here", [point.mean for point in points]),
            ("D", PAPERS, "white", "paper", [point.value for point in points]),
        )
        if any(value is not None for value in values)
    ]
    figure.legend(handles=handles, loc="outside lower right", ncols=2, fontsize=8, frameon=False)
    figure.supxlabel(axis, fontsize=8, x=0.02, ha="left")
    return figure


def convergence(curves: Mapping[str, Sequence[Mapping[str, Sequence[Any]]]]) -> "Figure":
    """Draws accuracy, loss and number of clusters by round, a colour for each row, the mean over its seeds.

    Args:
        curves: for each row, the history of every seed as columns of equal length.
    """
    figure = plots.convergence({row: averaged(histories) for row, histories in curves.items()})
    clusters = figure.axes[-1]
    if clusters.get_ylim()[1] > MANY:  # beside a model for each client, a few clusters are a line on the floor
        clusters.set_yscale("log")
        clusters.set_ylim(bottom=0.8)
    return figure


def averaged(histories: Sequence[Mapping[str, Sequence[Any]]]) -> History:
    """Returns the mean of several histories, round by round; where one has no number, of the others.

    >>> averaged([{"round": [1, 2], "loss": [2.0, None]}, {"round": [1, 2], "loss": [4.0, 1.0]}]).column("loss")
    [3.0, 1.0]
    """
    history = History()
    for place, round in enumerate(histories[0]["round"]):
        record: dict[str, Any] = {"round": round}
        for name in histories[0]:
            values = [one[name][place] for one in histories if one["round"] == histories[0]["round"]]
            known = [value for value in values if value is not None]
            record[name] = round if name == "round" else statistics.fmean(known) if known else None
        history.append(record)
    return history
