"""Plots of StoCFL's representations: clusters by round, and clusters by threshold."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxfl.methods.stocfl.representation import check_points
from jaxfl.plots import maps, style
from jaxfl.typing import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LabelArray = np.ndarray | Array | Sequence[int]
PANEL_SIDE = 2.9  # inches, of a panel
PANEL_COLUMNS = 5  # of panels, at most


def representations(
    points: np.ndarray | Array,
    clusterings: Mapping[str, LabelArray],
    *,
    group: LabelArray | None = None,
    group_names: Sequence[str] = (),
    seed: int = 0,
) -> "Figure":
    """Draws the t-SNE of the clients' representations, with a panel for each clustering.

    All panels have the same dots, in the colours of the clusters. A slot has one colour in all panels; a merged cluster
    keeps that of its largest part. With true groups, which are the first panel, a cluster has the colour of the group
    of most of its clients, or another one if a larger cluster has that. Where there are more clusters than colours,
    clusters that never had two clients and the smallest ones are grey. Distances in the plane have no meaning. As
    figures 3(a) and 8 of Zeng et al., "Stochastic Clustered Federated Learning", 2023.

    Args:
        points: representations `[N, d]`, for example `representation` of a state of `methods.stocfl` or what
            `jaxfl.representations` returns.
        clusterings: slots `[N]` by title, in the order of the panels, such as `{"round 5": ..., "round 10": ...}`; -1
            for clients without a cluster.
        group: true groups `[N]`, for an additional first panel.
        group_names: a name for each group.
        seed: of t-SNE.

    Raises:
        ValueError: a shape is wrong, there is nothing to draw, or a point is not finite.

    >>> points = np.repeat(np.eye(3), 4, 0)
    >>> figure = representations(points, {"round 1": [0, 1, 2, 3] * 3, "round 2": np.repeat([0, 1, 2], 4)})
    >>> [axes.get_title() for axes in figure.axes]
    ['round 1: 4 clusters', 'round 2: 3 clusters']
    """
    rows = check_points(points).astype(np.float64)
    if not clusterings:
        raise ValueError('clusterings must name at least one clustering, got none; {"round 5": state.cluster} is fine.')
    found = {name: _checked_labels(f"clusterings[{name!r}]", slots, len(rows)) for name, slots in clusterings.items()}
    truth = None if group is None else _checked_labels("group", group, len(rows))
    if truth is not None and truth.min() < 0:
        raise ValueError(f"group must be at least 0 for all clients, got {truth.min()}; name the groups 0, 1, 2, ...")

    rows = rows - rows.mean(0, keepdims=True)
    places = maps.tsne(rows, max(1.0, min(maps.PERPLEXITY, (len(rows) - 1) / 3)), seed)
    group_colors = {} if truth is None else style.cluster_colors([int(one) for one in np.unique(truth)])
    colors = _cluster_colors(list(found.values()), truth, group_colors)
    panels = {f"{style.plain(name)}: {_clusters_phrase(slots)}": (slots, colors) for name, slots in found.items()}
    if truth is not None:
        number = style.count_phrase(len(group_colors), "true group")
        panels = {number: (truth, group_colors)} | panels
    lines = -(-len(panels) // PANEL_COLUMNS)
    columns = -(-len(panels) // lines)
    entries, title = _representation_entries(list(found.values()), colors, truth, group_colors, group_names)
    width = 0.4 + 0.085 * max(10, *(len(label) for label, _ in entries)) if entries else 0.0
    per_column = max(1, int(lines * PANEL_SIDE / 0.19) - 2)
    legend_columns = -(-len(entries) // per_column)
    figure = style.figure((PANEL_SIDE * columns + width * legend_columns, (PANEL_SIDE + 0.15) * lines))
    grid = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, (name, (labels, color_of)) in zip(grid, panels.items(), strict=False):
        _draw_panel(axes, name, places, [color_of.get(int(label), style.NO_CLUSTER_COLOR) for label in labels])
    for axes in grid[len(panels) :]:
        axes.remove()
    if entries:
        maps.draw_legend(figure, entries, legend_columns, title)
    return figure


def threshold_sweep(rows: Sequence[Mapping[str, Any]]) -> "Figure":
    """Draws the number of clusters at every threshold, and their agreement with the true groups.

    The axis of the number is logarithmic; dashes are the clients of the largest cluster. Ranges of thresholds at which
    the clusters are the true groups are shaded.

    Args:
        rows: result of `jaxfl.threshold_sweep`.

    Raises:
        ValueError: there are no rows.

    >>> rows = [{"threshold": tau, "clusters": k, "largest": 4 // k} for tau, k in [(0.2, 1), (0.5, 2), (0.9, 4)]]
    >>> len(threshold_sweep(rows).axes)  # groups unknown
    1
    """
    if not rows:
        raise ValueError("rows must hold at least one threshold, got none; take them from jaxfl.threshold_sweep.")
    rows = sorted(rows, key=lambda row: row["threshold"])
    taus = [row["threshold"] for row in rows]
    scored = all(row.get("ari") is not None for row in rows)
    figure = style.figure((3.9 * (1 + scored) + 0.2, 3.1))
    panels = figure.subplots(1, 1 + scored, squeeze=False)[0]
    mark = "o" if len(rows) < 3 else ""
    panels[0].plot(taus, [row["clusters"] for row in rows], color=style.BASE[0], marker=mark, label="clusters")
    largest = [row["largest"] for row in rows]
    panels[0].plot(taus, largest, "--", color="#666666", lw=1, marker=mark, label="clients of the largest")
    panels[0].set_yscale("log")
    panels[0].yaxis.set_major_formatter("{x:g}")
    panels[0].set_title("clusters and their sizes", fontsize=10, loc="left")
    if scored:
        panels[1].plot(taus, [row["ari"] for row in rows], color=style.BASE[5], marker=mark)
        panels[1].set_title("agreement with the true groups (ARI)", fontsize=10, loc="left")
        exact = [row["ari"] == 1 for row in rows]
        for place, (low, high) in enumerate(_true_intervals(exact)):
            for axes in panels:
                label = "the true groups" if axes is panels[0] and not place else None
                axes.axvspan(taus[low], taus[high], color=style.BASE[2], alpha=0.15, lw=0, label=label)
    for axes in panels:
        axes.set_xlabel("threshold on the cosine")
        style.light_grid(axes)
    panels[0].legend(fontsize=8, frameon=False)
    return figure


def _checked_labels(name: str, labels: LabelArray, count: int) -> np.ndarray:
    """Returns labels as an array `[N]`.

    Raises:
        ValueError: there is not one integer for each client.
    """
    found = np.asarray(labels)
    if found.shape != (count,) or not np.issubdtype(found.dtype, np.integer):
        raise ValueError(
            f"{name} must be one integer for each of the {count} clients, got {found.dtype} of shape {found.shape}; "
            "give as many as points has rows."
        )
    return found


def _clusters_phrase(slots: np.ndarray) -> str:
    """Returns the number of clusters that have clients, as a phrase."""
    return style.count_phrase(len(np.unique(slots[slots >= 0])), "cluster")


def _cluster_colors(
    found: Sequence[np.ndarray], truth: np.ndarray | None, group_colors: Mapping[int, str]
) -> dict[int, str]:
    """Returns a colour for every slot; slots with the most clients in a panel come first."""
    sizes = [np.bincount(slots[slots >= 0], minlength=1 + max(map(np.max, found))) for slots in found]  # [panel][slot]
    most = np.max(sizes, 0)
    order = [int(slot) for slot in np.lexsort((-sizes[-1], -most)) if most[slot] > 0]
    many = len(order) > len(style.palette())
    free = [color for color in style.palette() if color not in group_colors.values()]
    colors: dict[int, str] = {}
    for slot in order:
        wish = style.OTHER_COLOR
        if truth is not None and most[slot] > 1:
            place = max(range(len(found)), key=lambda place, slot=slot: (sizes[place][slot], place))
            wish = group_colors[int(np.bincount(truth[found[place] == slot]).argmax())]
        if many and most[slot] == 1:  # a single client needs no colour
            colors[slot] = style.OTHER_COLOR
        elif wish != style.OTHER_COLOR and wish not in colors.values():
            colors[slot] = wish
        else:
            colors[slot] = free.pop(0) if free else style.OTHER_COLOR
    return colors


def _representation_entries(
    found: Sequence[np.ndarray],
    colors: Mapping[int, str],
    truth: np.ndarray | None,
    group_colors: Mapping[int, str],
    group_names: Sequence[str],
) -> tuple[list[tuple[str, str]], str]:
    """Returns labels and colours of the legend and its title: true groups, or clusters."""
    if truth is not None:
        title = "true group"
        entries = [
            (style.plain(group_names[one] if one < len(group_names) else f"group {one}", style.MAX_NAME), color)
            for one, color in group_colors.items()
            if color != style.OTHER_COLOR
        ]
    else:
        title = "slot (most clients)"
        entries = [
            (f"{slot} ({max(int((slots == slot).sum()) for slots in found):,})", color)
            for slot, color in colors.items()
            if color != style.OTHER_COLOR
        ]
    shown = np.unique(np.concatenate(found))
    if any(colors.get(int(slot)) == style.OTHER_COLOR for slot in shown) or style.OTHER_COLOR in group_colors.values():
        entries.append(("smaller ones", style.OTHER_COLOR))
    if shown[0] < 0:
        entries.append(("no cluster", style.NO_CLUSTER_COLOR))
    return entries, title


def _draw_panel(axes: "Axes", title: str, places: np.ndarray, colors: Sequence[str]) -> None:
    """Draws a panel with a dot for each client."""
    maps.draw_map(axes, places, colors)
    axes.set_title(title, fontsize=9)
    axes.set(xticks=[], yticks=[])  # positions and distances have no meaning
    axes.grid(False)


def _true_intervals(exact: Sequence[bool]) -> list[tuple[int, int]]:
    """Returns the first and last index of every run of True.

    >>> _true_intervals([False, True, True, False, True])
    [(1, 2), (4, 4)]
    """
    edge = np.diff(np.concatenate([[0], np.asarray(exact, int), [0]]))
    return [(int(a), int(b) - 1) for a, b in zip(np.flatnonzero(edge > 0), np.flatnonzero(edge < 0), strict=True)]
