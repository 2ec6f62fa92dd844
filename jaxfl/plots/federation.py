"""Plot of a federation: rows and classes of every client."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxfl.data.clients import FederatedData
from jaxfl.data.describe import WIDE, label_counts
from jaxfl.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_STACKED = 10  # up to this many classes are stacked colours, more are rows of a heat map
MAX_COLUMNS = 800  # of more clients, evenly spaced ones are drawn
MAX_NUMBERED_CLIENTS = 40  # more clients have no numbers
MAX_NAMED = 60  # more groups have no names
WIDTH = 8.0  # inches, of all clients
LEFT = 0.85
GROUP_SHADES = ("#4D4D4D", "#A6A6A6")  # of neighbouring groups; a colour would be taken for a class


def labels(data: FederatedData) -> "Figure":
    """Draws the labels of every client as a column, ordered by true group and, within a group, by decreasing size.

    Where no groups are known, many clients are ordered by their most frequent class, which shows common patterns. Above
    are the training rows of each client, below are the groups. Up to 10 classes are colours whose heights are their
    shares of the client's training rows; more classes are the rows of a heat map.

    Args:
        data: the federation; of more than 800 clients, evenly spaced ones are drawn.
    """
    counts, sizes = label_counts(data), np.asarray(data.train.size)
    group = np.zeros(len(sizes), int) if data.group is None else np.asarray(data.group)
    order, how = np.lexsort((np.arange(len(sizes)), -sizes, group)), "the largest first"
    total = len(order)
    if data.group is None and total > MAX_NUMBERED_CLIENTS:
        order, how = (
            np.lexsort((-counts.max(1) / np.maximum(sizes, 1), counts.argmax(1))),
            "by their most frequent class",
        )
    columns = min(total, MAX_COLUMNS)
    shown = counts[order[((np.arange(columns) + 0.5) * total / columns).astype(int)]]
    shares = shown / np.maximum(shown.sum(1, keepdims=True), 1)  # [columns, L]

    names, edges = _group_edges(data, group[order])
    across = all(0.075 * len(name) <= WIDTH * one / total for name, one in zip(names, np.diff(edges), strict=True))
    heat = data.num_classes > MAX_STACKED
    high = float(np.clip(0.09 * data.num_classes, 2.6, 5.8)) if heat else 2.6
    below = (
        0.4 if data.group is None else 0.6 if across else 0.6 + 0.062 * max(map(len, names)) * (len(names) <= MAX_NAMED)
    )
    right = 1.0 if heat else 0.55 + 0.075 * max(map(len, style.class_names(data)))
    size = (LEFT + WIDTH + right, below + 0.25 + high + 0.12 + 0.8 + 0.5)
    figure = style.figure(size, None)

    def place(bottom: float, height: float, left: float = LEFT, width: float = WIDTH) -> "Axes":
        return figure.add_axes((left / size[0], bottom / size[1], width / size[0], height / size[1]))

    strip, share, rows = place(below, 0.12), place(below + 0.25, high), place(below + 0.37 + high, 0.8)
    _draw_rows(rows, sizes[order])
    if heat:
        bar = place(below + 0.25, min(high, 2.6), LEFT + WIDTH + 0.2, 0.13)
        _draw_heat(share, bar, shares, style.class_names(data), total, high)
    else:
        _draw_shares(share, shares, style.class_names(data), total)
    if data.group is not None:
        _draw_groups(strip, names, edges, across)
    strip.set_axis_off()
    for axes in (strip, share, rows):
        axes.set(xlim=(0, total), xticks=[])
        for edge in edges[1:-1] if len(edges) <= MAX_NAMED else ():
            axes.axvline(edge, color="#CCCCCC" if axes is rows else "#FFFFFF", lw=0.8 if axes is rows else 1.2)
    if total <= MAX_NUMBERED_CLIENTS:  # the clients' numbers, and a line between any two
        share.set_xticks(np.arange(total) + 0.5, [str(client) for client in order], fontsize=6)
        share.tick_params(axis="x", length=0, pad=1)
        share.vlines(np.arange(1, total), *share.get_ylim(), color="#FFFFFF", lw=1.0)
    words = [
        style.count_phrase(total, "client"),
        f"{sizes.sum():,} training rows",
        style.count_phrase(data.num_classes, "class"),
    ]
    figure.text(LEFT / size[0], 1 - 0.3 / size[1], f"{style.plain(data.name)}: {', '.join(words)}", fontsize=10)
    kinds = f"clients, {how}"
    if data.group is not None:
        kinds = f"clients of {style.count_phrase(len(names), 'true group')}, in each {how}"
    drawn = "" if columns == total else f"; {columns:,} of {total:,}, evenly chosen, are drawn"
    where = ((LEFT + WIDTH / 2) / size[0], 0.15 / size[1])
    figure.text(*where, kinds + drawn, fontsize=8, ha="center")
    return figure


def _group_edges(data: FederatedData, group: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Returns the names of sorted groups with their sizes, and the start of each among the clients, with the end."""
    if data.group is None:
        return [""], np.array([0, len(group)])
    groups, starts = np.unique(group, return_index=True)
    edges = np.append(starts, len(group))
    names = zip(style.group_names(data, groups), np.diff(edges), strict=True)
    return [f"{name} ({clients:,})" for name, clients in names], edges


def _draw_rows(axes: "Axes", sizes: np.ndarray) -> None:
    """Draws the training rows of each client."""
    from matplotlib.ticker import MaxNLocator, NullFormatter, StrMethodFormatter

    axes.stairs(sizes, np.arange(len(sizes) + 1), fill=True, color="#8C8C8C", lw=0)
    style.light_grid(axes)
    some = sizes[sizes > 0]
    if len(some) and some.max() >= WIDE * some.min():
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.08 * max(1, sizes.max(initial=0)))
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("training\nrows", fontsize=8)
    axes.tick_params(labelsize=8)


def _draw_shares(axes: "Axes", shares: np.ndarray, names: Sequence[str], total: int) -> None:
    """Draws the shares of the classes, stacked with the first at the bottom."""
    from matplotlib.patches import Patch

    own = style.class_colors(len(names))
    colors = np.array([[int(color[at : at + 2], 16) for at in (1, 3, 5)] for color in (*own, "#FFFFFF")], np.uint8)
    heights = (np.arange(500) + 0.5) / 500
    classes = (np.cumsum(shares, axis=1)[:, None, :] < heights[None, :, None]).sum(
        2
    )  # [columns, 500], L above the last class
    extent = (0, total, 0, 1)
    axes.imshow(colors[classes.T], origin="lower", aspect="auto", interpolation="nearest", extent=extent)
    axes.set_ylabel("share of the labels", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.spines[:].set_visible(False)
    axes.legend(
        handles=[Patch(facecolor=color, label=name) for color, name in zip(own, names, strict=True)][::-1],
        title="class",
        alignment="left",
        loc="upper left",
        bbox_to_anchor=(1.01, 1.03),
        handlelength=1.0,
        fontsize=8,
        title_fontsize=8,
        frameon=False,
    )


def _draw_heat(axes: "Axes", bar: "Axes", shares: np.ndarray, names: Sequence[str], total: int, high: float) -> None:
    """Draws the shares of the classes as a heat map with a row for each class, the first at the top."""
    from matplotlib.colors import LinearSegmentedColormap

    # Clients with few rows have large shares, which must not make all others pale.
    most = float(np.quantile(shares[shares > 0], 0.99)) if (shares > 0).any() else 1.0
    colors = LinearSegmentedColormap.from_list("shares", ["#FFFFFF", "#56B4E9", "#0072B2", "#001A2B"])
    extent = (0, total, len(names), 0)
    image = axes.imshow(shares.T, cmap=colors, vmin=0, vmax=most, aspect="auto", interpolation="nearest", extent=extent)
    step = math.ceil(len(names) * 0.085 / high)
    places = np.arange(0, len(names), step)
    axes.set_yticks(places + 0.5, [names[place] for place in places.tolist()], fontsize=6)
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel("class", fontsize=8)
    axes.spines[:].set_color("#BBBBBB")
    scale = axes.figure.colorbar(image, cax=bar, extend="max" if shares.max(initial=0) > most else "neither")
    scale.ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    scale.ax.tick_params(labelsize=8)
    scale.set_label("share of the client's rows", fontsize=8)
    scale.outline.set_visible(False)


def _draw_groups(axes: "Axes", names: Sequence[str], edges: np.ndarray, across: bool) -> None:
    """Draws a strip of the groups, with their names below where there is room."""
    for place in range(len(names)):
        axes.axvspan(edges[place], edges[place + 1], color=GROUP_SHADES[place % 2], lw=0)
    axes.set(ylim=(0, 1))
    if len(names) > MAX_NAMED:
        names = ()
    middles = (edges[:-1] + edges[1:]) / 2 / edges[-1] * WIDTH  # inches
    for name, middle, at in zip(names, middles, middles if across else _spread_positions(middles, 0.135), strict=False):
        x, at_x = middle / WIDTH * edges[-1], at / WIDTH * edges[-1]
        if across:
            axes.text(x, -0.6, name, fontsize=8, ha="center", va="top")
        else:
            axes.plot([x, at_x], [0, -1.2], color="#8C8C8C", lw=0.6, clip_on=False)
            axes.text(at_x, -1.5, name, fontsize=7.5, ha="center", va="top", rotation=90)


def _spread_positions(places: np.ndarray, distance: float) -> np.ndarray:
    """Returns ascending positions in inches, moved as little as possible so that neighbours are a distance apart."""
    spread = places - distance * np.arange(len(places))
    # Isotonic regression: averages of falling runs, until none falls.
    runs: list[tuple[float, int]] = []
    for place in spread.tolist():
        runs.append((place, 1))
        while len(runs) > 1 and runs[-2][0] > runs[-1][0]:
            (one, few), (other, more) = runs.pop(-2), runs.pop()
            runs.append(((one * few + other * more) / (few + more), few + more))
    risen = np.repeat([mean for mean, _ in runs], [many for _, many in runs])
    limit = max(0.0, WIDTH - distance * (len(places) - 1))
    return np.clip(risen, 0, limit) + distance * np.arange(len(places))
