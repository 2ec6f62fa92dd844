"""Plots of the outcome of a run: confusion of classes, clusters against true groups, gains of fine-tuning."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxfl.analysis.class_confusion import ClassConfusion
from jaxfl.plots import maps, style
from jaxfl.plots.runs import Run, drawing_order, run_name, run_title
from jaxfl.simulation.evaluation.metrics import cluster_is_known, is_lower_better

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MAX_PANELS = 12  # of more clusters, the largest are drawn
MAX_WRITTEN = 12  # classes up to which a cell has its percentage
PERCENT_CELL, CONFUSION_SIDES = 0.23, (1.2, 2.8)  # inches, of a cell with its percentage, and of a panel
LETTER = 0.09  # inches of the name of a class
RIGHT, WRONG = style.BASE[0], style.BASE[5]


def class_confusion(found: ClassConfusion, result: Run) -> "Figure":
    """Draws the confusion matrix of every cluster: the shares of the predictions for each class.

    A row is a class, a column is a prediction. Blue is right, orange is wrong; darker is a larger share of the row (by
    its square root, so that small shares are visible). A row is empty where the cluster's clients have no test rows of
    the class. Of more than 12 clusters the largest are drawn.

    Args:
        found: result of `jaxfl.class_confusion`.
        result: result of the run, for the numbers and colours of `clusters(result)`.

    Raises:
        ValueError: no cluster has test rows.
    """
    if not len(found.cluster):
        raise ValueError("found must have a cluster with test rows, got none: no honest client was tested.")
    order = drawing_order(result)
    color_of = style.cluster_colors(order)
    rows = dict(zip(found.cluster.tolist(), found.counts, strict=True))
    largest = sorted(rows, key=lambda one: -rows[one].sum())[:MAX_PANELS]
    shown = [one for one in [*order, -1] if one in largest]
    names, number = style.class_names(result.data), found.counts.shape[1]
    side = max(CONFUSION_SIDES[0], PERCENT_CELL * number) if number <= MAX_WRITTEN else CONFUSION_SIDES[1]
    columns = min(len(shown), max(1, int(12 / (side + 0.25))))
    if len(shown) > columns:
        columns = -(-len(shown) // -(-len(shown) // columns))  # full lines
    lines = math.ceil(len(shown) / columns)
    letters = 0.075 * max(map(len, names))
    left, above, below, between = 0.5 + letters, 0.45, 0.3 + letters, 0.25
    total = style.count_phrase(int(found.counts.sum()), "test row")
    words = f"{run_name(result)}: {total}, {style.count_phrase(sum(one >= 0 for one in rows), 'cluster')}"
    words += "" if len(shown) == len(rows) else f"; the {MAX_PANELS} with most rows are drawn"
    wide = max(left + columns * (side + between), 0.2 + style.title_width(words), 4.5)
    size = (wide, 0.4 + lines * (side + above) + below + 0.25)
    figure = style.figure(size, None)
    for place, one in enumerate(shown):
        line, column = divmod(place, columns)
        x, y = left + column * (side + between), size[1] - 0.4 - (line + 1) * (side + above)
        axes = figure.add_axes((x / size[0], y / size[1], side / size[0], side / size[1]))
        _draw_confusion(axes, rows[one])
        head = "no cluster" if one < 0 else f"cluster {one}"
        _draw_panel_head(axes, head, color_of.get(one, style.NO_CLUSTER_COLOR), rows[one], side)
        _draw_class_names(axes, names, side, rows=column == 0, columns=place + columns >= len(shown))
    figure.text(0.1 / size[0], 1 - 0.1 / size[1], words, fontsize=10, va="top")
    foot = (
        "row: class, column: predicted; percent of the row"
        if number <= MAX_WRITTEN
        else "row: class, column: predicted"
    )
    figure.text(0.1 / size[0], 0.1 / size[1], f"{foot}; blue: right, orange: wrong", fontsize=8)
    return figure


def _draw_confusion(axes: "Axes", counts: np.ndarray) -> None:
    """Draws the confusion matrix `[L, L]` of a cluster, as shares of its rows."""
    from matplotlib.colors import to_rgb

    number = len(counts)
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    ink = np.where(np.eye(number, dtype=bool)[..., None], to_rgb(RIGHT), to_rgb(WRONG))
    image = 1 - np.sqrt(share)[..., None] * (1 - ink)  # from white to the full colour
    axes.imshow(image, interpolation="nearest", extent=(0, number, number, 0))
    axes.spines[:].set_color("#BBBBBB")
    if number > MAX_WRITTEN:
        return
    axes.set_xticks(np.arange(1, number), minor=True)
    axes.set_yticks(np.arange(1, number), minor=True)
    axes.grid(which="minor", color="#E5E5E5", lw=0.5)
    axes.tick_params(which="minor", length=0)
    for row, column in zip(*np.nonzero(counts), strict=True):
        percent, light = 100 * share[row, column], image[row, column] @ (0.299, 0.587, 0.114)
        text = f"{percent:.0f}" if percent >= 0.5 else "·"
        color = "#000000" if light > 0.51 else "#FFFFFF"
        axes.text(column + 0.5, row + 0.53, text, ha="center", va="center", fontsize=6, color=color)


def _draw_panel_head(axes: "Axes", name: str, color: str, counts: np.ndarray, side: float) -> None:
    """Writes the number of a cluster, in its colour, and its accuracy above a panel of `side` inches."""
    from matplotlib.patches import Rectangle

    edge, box, low = "#BBBBBB" if color == style.NO_CLUSTER_COLOR else color, 0.14 / side, 1 + 0.05 / side
    where = {"transform": axes.transAxes, "clip_on": False}
    axes.add_patch(Rectangle((0, low), box, box, facecolor=color, edgecolor=edge, lw=0.5, **where))
    right = np.trace(counts) / max(counts.sum(), 1)
    axes.text(1.4 * box, low + box / 2, f"{name}: {100 * right:.1f} %", fontsize=8, va="center", **where)


def _draw_class_names(axes: "Axes", names: list[str], side: float, *, rows: bool, columns: bool) -> None:
    """Writes the classes beside the rows and below the columns of a panel of `side` inches, where there is room."""
    at = np.arange(0, len(names), math.ceil(len(names) * LETTER / side))
    axes.set(xticks=[], yticks=[])
    size = 7 if len(names) <= MAX_WRITTEN else 5
    if rows:
        axes.set_yticks(at + 0.5, [names[one] for one in at], fontsize=size)
    if columns:
        turned = 90 if max(map(len, names)) > (2 if len(names) <= MAX_WRITTEN else 1) else 0
        axes.set_xticks(at + 0.5, [names[one] for one in at], fontsize=size, rotation=turned)
    axes.tick_params(length=0, pad=2)


MAX_GROUP_ROWS = 40  # of more true groups, the smallest share a row
CELL = 0.36  # inches
BETTER, WORSE = style.BASE[0], style.BASE[5]


def confusion(result: Run) -> "Figure":
    """Draws the numbers of clients of each true group in each cluster.

    A row is a group, a column is a cluster with the number and colour of `clusters(result)`; darker is a larger share
    of the row. If the clusters are the groups, each row and each column has one number. Clusters beyond the 22 colours
    share a column, groups beyond the 40 largest share a row. Only clients in the evaluation sample that have not left
    are counted.

    Args:
        result: result of a run, or of `jaxfl.load`.

    Raises:
        ValueError: the true groups are unknown.
    """
    found, group = np.asarray(result.evaluation.cluster), result.data.group
    if group is None:
        raise ValueError("result.data must have true groups, got none; plots.clusters draws clusters without them.")
    seen, order = cluster_is_known(result.evaluation, result.data), drawing_order(result)
    found, group = found[seen], np.asarray(group)[seen]
    color_of, colors = style.cluster_colors(order), len(style.palette())
    heads = [(str(one), found == one, color_of[one]) for one in order[:colors] if one in found]
    rest = np.intersect1d(order[colors:], found)
    heads += [(f"{len(rest)} more", np.isin(found, rest), style.OTHER_COLOR)] if len(rest) else []
    heads += [("none", found < 0, style.NO_CLUSTER_COLOR)] if (found < 0).any() else []

    groups, size = np.unique(group, return_counts=True)
    largest = np.sort(groups[np.argsort(-size, kind="stable")[:MAX_GROUP_ROWS]])
    rows = list(zip(style.group_names(result.data, largest), [group == one for one in largest], strict=True))
    if len(groups) > MAX_GROUP_ROWS:
        rows.append((f"{len(groups) - MAX_GROUP_ROWS} more groups", ~np.isin(group, largest)))
    counts = np.array([[int((mine & here).sum()) for _, here, _ in heads] for _, mine in rows])

    names = [f"{name} ({line.sum():,})" for (name, _), line in zip(rows, counts, strict=True)]
    cell = max(CELL, 0.085 * max(len(f"{count:,}") for count in counts.flat))
    title = run_title(result)
    wide = max(1.2 + 0.09 * max(map(len, names)) + cell * len(heads), 0.2 + style.title_width(title))
    figure = style.figure((wide, 1.3 + CELL * len(rows)))
    axes = figure.subplots()
    _draw_counts(axes, counts, [(word, color) for word, _, color in heads], cell / CELL)
    axes.set_yticks(np.arange(len(rows)) + 0.5, names, fontsize=8)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


def _draw_counts(axes: "Axes", counts: np.ndarray, heads: Sequence[tuple[str, str]], wide: float) -> None:
    """Draws a table of counts below the clusters' numbers and colours.

    Args:
        axes: empty axes.
        counts: clients `[rows, columns]`.
        heads: labels and colours of the columns.
        wide: ratio of a cell's width to its height.
    """
    from matplotlib.patches import Rectangle

    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    for row, column in np.ndindex(counts.shape):
        if not counts[row, column]:
            continue
        color = style.mix(style.BASE[0], 1.0, 0.92 * (1 - float(share[row, column])))
        axes.add_patch(Rectangle((column, row), 1, 1, facecolor=color, edgecolor="#FFFFFF", lw=1))
        words, ink = f"{counts[row, column]:,}", style.ink(color)
        axes.text(column + 0.5, row + 0.5, words, ha="center", va="center_baseline", fontsize=8, color=ink)
    for column, (word, color) in enumerate(heads):
        edge = "#BBBBBB" if color == style.NO_CLUSTER_COLOR else color
        axes.add_patch(Rectangle((column + 0.06, -1.0), 0.88, 0.82, facecolor=color, edgecolor=edge, lw=0.5))
        size, ink = 8 if len(word) < 3 else 6, style.ink(color)
        axes.text(column + 0.5, -0.58, word, ha="center", va="center_baseline", fontsize=size, color=ink)
    lines = {"color": "#E5E5E5", "lw": 0.6, "zorder": 0}
    axes.hlines(np.arange(len(counts) + 1), 0, len(heads), **lines)
    axes.vlines(np.arange(len(heads) + 1), 0, len(counts), **lines)
    axes.set(xlim=(0, len(heads)), ylim=(len(counts), -1.05), xticks=[], aspect=1 / wide, anchor="W")
    axes.set_title("cluster", fontsize=8, loc="left")
    axes.set_ylabel("true group (clients)", fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def personalisation(result: Run) -> "Figure":
    """Draws the accuracy (or other main metric) of each client before and after fine-tuning.

    Left, a dot is a client in the colour of its cluster, and the line is no change. Right, the change of every client,
    with the largest gain first.

    Args:
        result: result of a run with `finetune`, or of `jaxfl.load`.

    Raises:
        ValueError: the run did not fine-tune, or no client was tested.
    """
    evaluation = result.evaluation
    if evaluation.finetuned is None:
        raise ValueError(
            "result must have fine-tuned models, got none; run with finetune=jaxfl.FineTune(...) or --set finetune=1."
        )
    main = evaluation.main
    before, after = evaluation.values[main], evaluation.finetuned.values[main]
    known = np.isfinite(before) & np.isfinite(after)
    if not known.any():
        raise ValueError(f"result must have the {main} of some client, got none: no client has test rows.")
    order, drawn = drawing_order(result), style.plain(main, style.MAX_NAME)
    color_of, found = style.cluster_colors(order), np.asarray(evaluation.cluster)[known]
    before, after = before[known], after[known]
    lower = is_lower_better(main, (getattr(result, "summary", None) or {}).get("lower_is_better", ()))
    gain = np.sort(before - after if lower else after - before)[::-1]

    entries = style.legend_entries(found, order, color_of)
    columns = -(-len(entries) // 18)
    figure = style.figure((8.6 + 0.95 * columns, 4.2))
    dots, change = figure.subplots(1, 2)
    maps.draw_map(dots, np.stack([before, after], 1), [color_of.get(int(one), style.NO_CLUSTER_COLOR) for one in found])
    dots.axline((before[0], before[0]), slope=1, color="#444444", lw=1, ls=":", zorder=0)
    dots.set_title(f"{drawn} of each client", fontsize=10, loc="left")
    dots.set_xlabel("before fine-tuning", fontsize=9)
    dots.set_ylabel("after", fontsize=9)
    place = np.arange(len(gain) + 1) / len(gain) * 100
    steps = np.append(gain, gain[-1])
    for where, color in ((steps >= 0, BETTER), (steps < 0, WORSE)):
        change.fill_between(place, np.where(where, steps, 0), step="post", color=color, lw=0)
    change.axhline(0, color="#444444", lw=0.8)
    better, worse = int((gain > 0).sum()), int((gain < 0).sum())
    change.set_title(
        f"{better:,} better, {worse:,} worse, {len(gain) - better - worse:,} the same", fontsize=10, loc="left"
    )
    change.set_xlabel("clients, the largest gain first (%)", fontsize=9)
    change.set_ylabel(f"{'lower' if lower else 'higher'} {drawn} by", fontsize=9)
    change.tick_params(labelsize=8)
    change.set_xlim(0, 100)
    style.light_grid(change)
    means = f"mean {drawn} {before.mean():.4g} before fine-tuning, {after.mean():.4g} after"
    title = f"{run_name(result)}: {style.count_phrase(len(gain), 'client')}, {means}"
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    maps.draw_legend(figure, entries, columns)
    return figure
