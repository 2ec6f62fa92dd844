"""Alluvial plot of a run: the clusters of all clients at every evaluation."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxfl.plots import style
from jaxfl.plots.runs import Run, drawing_order, run_name
from jaxfl.plots.style import NO_CLUSTER_COLOR

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_EVALUATIONS = 11  # of more evaluations, evenly chosen ones are drawn
GAP = 0.02  # between clusters, as a share of the height of all clients
WIDE = 0.12  # half the width of a column, in units of the distance between columns
TALL = 0.03  # share of the height from which a cluster has room for its number
MAX_GROUPS = 40  # of more true groups, none are drawn
NEUTRAL_COLOR = "#8A8A8A"


def alluvial(result: Run) -> "Figure":
    """Draws the clusters as blocks, a column for each evaluation, and the clients between two columns as bands.

    A band has the colour of the cluster that it leaves. Where the true groups are known, the last bands lead to them:
    if the clusters are the groups, each group has one colour. Colours and numbers are those of `clusters(result)`;
    clusters beyond the 22 colours are one grey block, and clients that have not arrived or have left are a white one.
    Of more than 11 evaluations, evenly spaced ones are drawn, including the first and the last.

    Args:
        result: result of a run, or of `jaxfl.load`.

    Raises:
        ValueError: the history has no clusters (runs with more than 10,000 clients), or those of other clients.
    """
    from matplotlib.patches import Patch

    found, group = result.history.clusters, result.data.group
    if found is None:
        raise ValueError(
            "result.history must have the clusters at every evaluation, got none: they are recorded for up to 10,000 "
            "clients, and not by older versions."
        )
    if found.shape[1] != result.data.num_clients:
        raise ValueError(
            f"result.history must have the clusters of each of the {result.data.num_clients} clients, got "
            f"{found.shape[1]}; put clusters.jsonl back as it was."
        )
    group = None if group is None else np.asarray(group)
    # the clusters of clients outside the evaluation sample are not up to date
    tested = result.evaluation.rows > 0 if "eval_clients" in result.history[-1] else np.ones(found.shape[1], bool)
    found, group = found[:, tested], None if group is None else group[tested]
    rounds = result.history.column("round")
    title, found = _flow_title(result, found), found.copy()
    drifting = getattr(result, "drifting", None)
    for clusters, done in zip(found, rounds, strict=True):
        data = result.data if drifting is None else drifting.at(int(done))
        if data.absent is not None:
            clusters[np.asarray(data.absent)[tested]] = -1
    columns = np.unique(np.linspace(0, len(rounds) - 1, min(len(rounds), MAX_EVALUATIONS)).round().astype(int))

    order = drawing_order(result)
    earlier, size = np.unique(found[found >= 0], return_counts=True)
    order += [int(one) for one in earlier[np.argsort(-size, kind="stable")] if one not in set(order)]
    color_of = style.cluster_colors(order)
    shown = len(style.palette())
    lane_of = {cluster: min(place, shown) for place, cluster in enumerate(order)} | {-1: shown + 1}
    lanes = [np.array([lane_of[one] for one in row]) for row in found[columns].tolist()]
    colors = [color_of.get(one, NO_CLUSTER_COLOR) for one in order[:shown]]
    colors += [style.OTHER_COLOR] * (shown + 1 - len(colors)) + [NO_CLUSTER_COLOR]
    ticks = [f"round {rounds[column]}" for column in columns]
    names = None
    if group is not None and len(groups := np.unique(group)) <= MAX_GROUPS:
        lanes.append(np.searchsorted(groups, group))
        ticks.append("true group")
        names = style.group_names(result.data, groups)

    most = max(len(np.unique(lane)) for lane in lanes)
    wide = max(min(2.6 + 1.0 * len(ticks), 12), 1.5 + style.title_width(title))  # the legend is beside the title
    figure = style.figure((wide, min(4.6 + 0.1 * max(most - 10, 0), 6.5)))
    axes = figure.subplots()
    _draw_flow(axes, lanes, colors, order, names)
    axes.set_xticks(range(len(ticks)), ticks, fontsize=8)
    axes.set(yticks=[], xlim=(-WIDE, max(len(ticks) - 1, 1) + WIDE))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    entries = style.legend_entries(found[-1], order, color_of)
    figure.legend(
        handles=[Patch(facecolor=color, edgecolor="#BBBBBB", label=label) for label, color in entries],
        title=f"cluster (clients)\nafter round {rounds[-1]}",
        alignment="left",
        loc="outside right upper",
        handlelength=1.0,
        fontsize=8,
        title_fontsize=8,
        frameon=False,
    )
    return figure


def _draw_flow(
    axes: "Axes",
    lanes: Sequence[np.ndarray],
    colors: Sequence[str],
    order: Sequence[int],
    names: Sequence[str] | None,
) -> None:
    """Draws columns and bands.

    Args:
        axes: empty axes.
        lanes: index of each client's block from the top, `[N]` for each column.
        colors: of the blocks.
        order: cluster of each block.
        names: of the blocks of the last column, where these are true groups.
    """
    total = len(lanes[0])
    tops = []
    for column, lane in enumerate(lanes):
        is_groups = names is not None and column == len(lanes) - 1
        top = _block_tops(lane)
        tops.append(top)
        for one, start in top.items():
            height = int((lane == one).sum())
            color = NEUTRAL_COLOR if is_groups else colors[one]
            edge = "#BBBBBB" if color == NO_CLUSTER_COLOR else color
            axes.bar(column, height, 2 * WIDE, start, color=color, edgecolor=edge, lw=0.5, zorder=2)
            middle = start + height / 2
            if is_groups and names is not None:
                axes.text(column + 1.3 * WIDE, middle, names[one], va="center", fontsize=8)
            elif height >= TALL * total and color not in (NO_CLUSTER_COLOR, style.OTHER_COLOR):
                ink = style.ink(color)
                axes.text(column, middle, str(order[one]), ha="center", va="center_baseline", fontsize=8, color=ink)
    for column in range(len(lanes) - 1):
        _draw_bands(axes, column, lanes[column : column + 2], tops[column : column + 2], colors)
    most = max(map(len, tops))
    axes.set_ylim(total * (1 + GAP * most), -GAP * total)


def _block_tops(lane: np.ndarray) -> dict[int, float]:
    """Returns the upper edge of each block, in clients from the top."""
    present, heights = np.unique(lane, return_counts=True)
    starts = np.concatenate([[0], np.cumsum(heights)[:-1]]) + GAP * len(lane) * np.arange(len(present))
    return dict(zip(present.tolist(), starts.tolist(), strict=True))


def _draw_bands(
    axes: "Axes", column: int, lanes: Sequence[np.ndarray], tops: Sequence[dict[int, float]], colors: Sequence[str]
) -> None:
    """Draws the bands between two columns."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    left, right = column + WIDE, column + 1 - WIDE
    middle = column + 0.5
    leaving, coming = dict(tops[0]), dict(tops[1])  # start of the next band of each block
    pairs, counts = np.unique(np.stack(lanes), axis=1, return_counts=True)
    for (a, b), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
        y, z = leaving[a], coming[b]
        leaving[a], coming[b] = y + count, z + count
        points = [(left, y), (middle, y), (middle, z), (right, z)]
        back = [(right, z + count), (middle, z + count), (middle, y + count), (left, y + count)]
        curve = [Path.CURVE4] * 3
        path = Path([*points, *back], [Path.MOVETO, *curve, Path.LINETO, *curve])
        color = NEUTRAL_COLOR if colors[a] in (NO_CLUSTER_COLOR, style.OTHER_COLOR) else colors[a]
        axes.add_patch(PathPatch(path, facecolor=color, alpha=0.4, lw=0))


def _flow_title(result: Run, found: np.ndarray) -> str:
    """Returns the title: the number of clients, and the rounds between which the last one has moved."""
    rounds, moved = result.history.column("round"), np.flatnonzero((found[1:] != found[:-1]).any(1))
    words = f"{run_name(result)}: {style.count_phrase(found.shape[1], 'client')}"
    if len(found) == 1:
        return words
    if not len(moved):
        return f"{words}, no client moved after round {rounds[0]}"
    last = int(moved[-1])
    several = style.count_phrase(int((found[last + 1] != found[last]).sum()), "client")
    return f"{words}; the last to move: {several} between rounds {rounds[last]} and {rounds[last + 1]}"
