"""A picture of which classes are taken for which, cluster by cluster."""

import math
from typing import TYPE_CHECKING

import numpy as np

from jaxfl.analysis.class_confusion import ClassConfusion
from jaxfl.plots import style
from jaxfl.plots.runs import Run, heading, order_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = 12  # of more clusters, the largest
WRITTEN = 12  # up to so many classes, a cell says its percent
CELL, SIDES = 0.23, (1.2, 2.8)  # inches, of a cell that says its percent, and of a panel
LETTER = 0.09  # inches that the name of a class takes
RIGHT, WRONG = style.BASE[0], style.BASE[5]


def class_confusion(found: ClassConfusion, result: Run) -> "Figure":
    """Draws the confusion matrix of every cluster: of each class, which share of its rows is taken for which class.

    A row is a class, a column what is predicted. Blue is right, orange is wrong; a darker cell holds a larger share of
    its row (by its square root, so that a few rows are seen, too). A row is empty where the cluster's clients have no
    test rows of the class. Of more than 12 clusters the largest are drawn.

    Args:
        found: of `jaxfl.class_confusion`.
        result: of the run; clusters have the numbers and colours that they have in `clusters(result)`.
    """
    if not len(found.cluster):
        raise ValueError("found must have a cluster with test rows, got none: nobody who counts was tested.")
    order = order_of(result)
    color_of = style.cluster_colors(order)
    rows = dict(zip(found.cluster.tolist(), found.counts, strict=True))
    largest = sorted(rows, key=lambda one: -rows[one].sum())[:PANELS]
    shown = [one for one in [*order, -1] if one in largest]
    names, number = style.class_names(result.data), found.counts.shape[1]
    side = max(SIDES[0], CELL * number) if number <= WRITTEN else SIDES[1]
    columns = min(len(shown), max(1, int(12 / (side + 0.25))))
    if len(shown) > columns:
        columns = -(-len(shown) // -(-len(shown) // columns))  # full lines
    lines = math.ceil(len(shown) / columns)
    letters = 0.075 * max(map(len, names))
    left, above, below, between = 0.5 + letters, 0.45, 0.3 + letters, 0.25
    total = style.count(int(found.counts.sum()), "test row")
    words = f"{heading(result)}: {total}, {style.count(sum(one >= 0 for one in rows), 'cluster')}"
    words += "" if len(shown) == len(rows) else f"; the {PANELS} with most rows are drawn"
    wide = max(left + columns * (side + between), 0.2 + style.title_width(words), 4.5)
    size = (wide, 0.4 + lines * (side + above) + below + 0.25)
    figure = style.figure(size, None)
    for place, one in enumerate(shown):
        line, column = divmod(place, columns)
        x, y = left + column * (side + between), size[1] - 0.4 - (line + 1) * (side + above)
        axes = figure.add_axes((x / size[0], y / size[1], side / size[0], side / size[1]))
        _draw(axes, rows[one])
        head = "no cluster" if one < 0 else f"cluster {one}"
        _head(axes, head, color_of.get(one, style.NOBODY), rows[one], side)
        _name(axes, names, side, rows=column == 0, columns=place + columns >= len(shown))
    figure.text(0.1 / size[0], 1 - 0.1 / size[1], words, fontsize=10, va="top")
    foot = "row: class, column: predicted; percent of the row" if number <= WRITTEN else "row: class, column: predicted"
    figure.text(0.1 / size[0], 0.1 / size[1], f"{foot}; blue: right, orange: wrong", fontsize=8)
    return figure


def _draw(axes: "Axes", counts: np.ndarray) -> None:
    """Draws the shares of a cluster's rows `[L, L]`."""
    from matplotlib.colors import to_rgb

    number = len(counts)
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    ink = np.where(np.eye(number, dtype=bool)[..., None], to_rgb(RIGHT), to_rgb(WRONG))
    image = 1 - np.sqrt(share)[..., None] * (1 - ink)  # from white to the full colour
    axes.imshow(image, interpolation="nearest", extent=(0, number, number, 0))
    axes.spines[:].set_color("#BBBBBB")
    if number > WRITTEN:
        return
    axes.set_xticks(np.arange(1, number), minor=True)
    axes.set_yticks(np.arange(1, number), minor=True)
    axes.grid(which="minor", color="#E5E5E5", lw=0.5)
    axes.tick_params(which="minor", length=0)
    for row, column in zip(*np.nonzero(counts), strict=True):
        percent, light = 100 * share[row, column], image[row, column] @ (0.299, 0.587, 0.114)
        told = f"{percent:.0f}" if percent >= 0.5 else "·"
        color = "#000000" if light > 0.51 else "#FFFFFF"
        axes.text(column + 0.5, row + 0.53, told, ha="center", va="center", fontsize=6, color=color)


def _head(axes: "Axes", name: str, color: str, counts: np.ndarray, side: float) -> None:
    """Writes a cluster's number, in its colour, and how many of its rows are right, above a panel of `side` inches."""
    from matplotlib.patches import Rectangle

    edge, box, low = "#BBBBBB" if color == style.NOBODY else color, 0.14 / side, 1 + 0.05 / side
    where = {"transform": axes.transAxes, "clip_on": False}
    axes.add_patch(Rectangle((0, low), box, box, facecolor=color, edgecolor=edge, lw=0.5, **where))
    right = np.trace(counts) / max(counts.sum(), 1)
    axes.text(1.4 * box, low + box / 2, f"{name}: {100 * right:.1f} %", fontsize=8, va="center", **where)


def _name(axes: "Axes", names: list[str], side: float, *, rows: bool, columns: bool) -> None:
    """Writes the classes beside the rows and below the columns of a panel of `side` inches: as many as have room."""
    at = np.arange(0, len(names), math.ceil(len(names) * LETTER / side))
    axes.set(xticks=[], yticks=[])
    size = 7 if len(names) <= WRITTEN else 5
    if rows:
        axes.set_yticks(at + 0.5, [names[one] for one in at], fontsize=size)
    if columns:
        turned = 90 if max(map(len, names)) > (2 if len(names) <= WRITTEN else 1) else 0
        axes.set_xticks(at + 0.5, [names[one] for one in at], fontsize=size, rotation=turned)
    axes.tick_params(length=0, pad=2)
