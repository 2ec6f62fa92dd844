"""A picture of clients that move: which cluster each was in at every evaluation of a run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxfl.plots import style
from jaxfl.plots.runs import Run, heading, order_of
from jaxfl.plots.style import NOBODY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 11  # of more evaluations, evenly chosen ones are drawn
GAP = 0.02  # between clusters, of the height of all clients
WIDE = 0.12  # a column, of the way to the next
TALL = 0.03  # of the height: a cluster that is as high has room for its number
GROUPS = 40  # of more true groups, none are drawn
NEUTRAL = "#8A8A8A"


def alluvial(result: Run) -> "Figure":
    """Draws the clusters as blocks, a column for each evaluation, and the clients who go from one to the next as bands.

    A band has the colour of the cluster that it leaves. Where the true groups are known, the last bands lead to them:
    found exactly, each is fed by one colour. Colours and numbers are those of `clusters(result)`; clusters beyond the
    22 colours are one grey block, and who is not there yet, or has left, is in a white one. Of more than 11
    evaluations, evenly chosen ones are drawn, first and last included.

    Args:
        result: of a run, or of `jaxfl.load`.

    Raises:
        ValueError: the clusters were not kept (of more than 10,000 clients).
    """
    from matplotlib.patches import Patch

    found, group = result.history.clusters, result.data.group
    if found is None:
        raise ValueError(
            "result.history must know the clusters at every evaluation, got none: they are kept of up to 10,000 "
            "clients, and not of runs of older versions."
        )
    group = None if group is None else np.asarray(group)
    # of a sample the others' clusters are no news
    tested = result.evaluation.rows > 0 if "eval_clients" in result.history[-1] else np.ones(found.shape[1], bool)
    found, group = found[:, tested], None if group is None else group[tested]
    rounds = result.history.column("round")
    title, found = _title(result, found), found.copy()
    drift = (getattr(result, "summary", None) or {}).get("drift_round", rounds[-1] + 1)
    for data, then in (
        (getattr(result, "began", None), np.array(rounds) < drift),
        (result.data, np.array(rounds) >= drift),
    ):
        if data is not None and data.absent is not None:
            found[np.ix_(then, np.asarray(data.absent)[tested])] = -1
    columns = np.unique(np.linspace(0, len(rounds) - 1, min(len(rounds), COLUMNS)).round().astype(int))

    order = order_of(result)
    earlier, size = np.unique(found[found >= 0], return_counts=True)
    order += [int(one) for one in earlier[np.argsort(-size, kind="stable")] if one not in set(order)]
    color_of = style.cluster_colors(order)
    shown = len(style.palette())
    lane_of = {cluster: min(place, shown) for place, cluster in enumerate(order)} | {-1: shown + 1}
    lanes = [np.array([lane_of[one] for one in row]) for row in found[columns].tolist()]
    colors = [color_of.get(one, NOBODY) for one in order[:shown]]
    colors += [style.OTHERS] * (shown + 1 - len(colors)) + [NOBODY]
    words = [f"round {rounds[column]}" for column in columns]
    names = None
    if group is not None and len(groups := np.unique(group)) <= GROUPS:
        lanes.append(np.searchsorted(groups, group))
        words.append("true group")
        names = style.group_names(result.data, groups)

    most = max(len(np.unique(lane)) for lane in lanes)
    wide = max(min(2.6 + 1.0 * len(words), 12), 1.5 + style.title_width(title))  # the legend is beside the title
    figure = style.figure((wide, min(4.6 + 0.1 * max(most - 10, 0), 6.5)))
    axes = figure.subplots()
    _draw(axes, lanes, colors, order, names)
    axes.set_xticks(range(len(words)), words, fontsize=8)
    axes.set(yticks=[], xlim=(-WIDE, max(len(words) - 1, 1) + WIDE))
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


def _draw(
    axes: "Axes",
    lanes: Sequence[np.ndarray],
    colors: Sequence[str],
    order: Sequence[int],
    names: Sequence[str] | None,
) -> None:
    """Draws columns and bands.

    Args:
        axes: empty.
        lanes: place of each client's block, from the top `[N]`, for each column.
        colors: of the blocks.
        order: the clusters, as blocks.
        names: of the blocks of the last column, where these are true groups.
    """
    total = len(lanes[0])
    tops = []
    for column, lane in enumerate(lanes):
        is_groups = names is not None and column == len(lanes) - 1
        top = _tops(lane)
        tops.append(top)
        for one, start in top.items():
            height = int((lane == one).sum())
            color = NEUTRAL if is_groups else colors[one]
            edge = "#BBBBBB" if color == NOBODY else color
            axes.bar(column, height, 2 * WIDE, start, color=color, edgecolor=edge, lw=0.5, zorder=2)
            middle = start + height / 2
            if is_groups and names is not None:
                axes.text(column + 1.3 * WIDE, middle, names[one], va="center", fontsize=8)
            elif height >= TALL * total and color not in (NOBODY, style.OTHERS):
                ink = style.ink(color)
                axes.text(column, middle, str(order[one]), ha="center", va="center_baseline", fontsize=8, color=ink)
    for column in range(len(lanes) - 1):
        _draw_bands(axes, column, lanes[column : column + 2], tops[column : column + 2], colors)
    most = max(map(len, tops))
    axes.set_ylim(total * (1 + GAP * most), -GAP * total)


def _tops(lane: np.ndarray) -> dict[int, float]:
    """Returns where each block begins, from the top."""
    present, heights = np.unique(lane, return_counts=True)
    starts = np.concatenate([[0], np.cumsum(heights)[:-1]]) + GAP * len(lane) * np.arange(len(present))
    return dict(zip(present.tolist(), starts.tolist(), strict=True))


def _draw_bands(
    axes: "Axes", column: int, lanes: Sequence[np.ndarray], tops: Sequence[dict[int, float]], colors: Sequence[str]
) -> None:
    """Draws the bands from a column to the next."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    left, right = column + WIDE, column + 1 - WIDE
    middle = column + 0.5
    leaving, coming = dict(tops[0]), dict(tops[1])  # where the next band of a block begins
    pairs, counts = np.unique(np.stack(lanes), axis=1, return_counts=True)
    for (a, b), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
        y, z = leaving[a], coming[b]
        leaving[a], coming[b] = y + count, z + count
        points = [(left, y), (middle, y), (middle, z), (right, z)]
        back = [(right, z + count), (middle, z + count), (middle, y + count), (left, y + count)]
        curve = [Path.CURVE4] * 3
        path = Path([*points, *back], [Path.MOVETO, *curve, Path.LINETO, *curve])
        color = NEUTRAL if colors[a] in (NOBODY, style.OTHERS) else colors[a]
        axes.add_patch(PathPatch(path, facecolor=color, alpha=0.4, lw=0))


def _title(result: Run, found: np.ndarray) -> str:
    """Returns how many clients there are, and when the last of them has moved."""
    rounds, moved = result.history.column("round"), np.flatnonzero((found[1:] != found[:-1]).any(1))
    words = f"{heading(result)}: {style.count(found.shape[1], 'client')}"
    if len(found) == 1:
        return words
    if not len(moved):
        return f"{words}, nobody moved after round {rounds[0]}"
    last = int(moved[-1])
    several = style.count(int((found[last + 1] != found[last]).sum()), "client")
    return f"{words}; the last to move: {several} between rounds {rounds[last]} and {rounds[last + 1]}"
