"""Heat maps of similarities or distances between clients."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from jaxfl.analysis.local_sketches import ClientSimilarity
from jaxfl.clustering import gaps
from jaxfl.plots import style
from jaxfl.plots.runs import Run, drawing_order, run_title
from jaxfl.schema import check_literal, checked, quoted
from jaxfl.simulation.evaluation.metrics import cluster_is_known

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MatrixKind = Literal["similarity", "distance"]
SHADES = ("#001A2B", "#0072B2", "#56B4E9", "#FFFFFF")  # from the least to the most similar
NEUTRAL = "#B8B0A4"  # the diagonal and NaN
SEPARATOR = "#D55E00"
MAX_DRAWN = 800  # of more clients, evenly spaced ones are drawn
PANEL_SIDES = (0.95, 2.4)  # inches of a matrix: the smallest and the largest
WIDTH = 14.0  # inches of all columns, at most
LINE = 0.155  # inches of a line of a title


class ColorScale(NamedTuple):
    """The range of a panel's colours, and the ticks beside them."""

    low: float
    high: float
    ticks: list[float]
    labels: list[str]


@checked
def heatmap(
    matrix: ArrayLike,
    group: ArrayLike | None = None,
    *,
    of: MatrixKind = "similarity",
    group_names: Sequence[str] = (),
    title: str = "",
) -> "Figure":
    """Draws a matrix of similarities or distances between clients: `heatmaps` with one panel.

    Args:
        matrix: float `[N, N]`.
        group: true groups, int `[N]`, or None.
        of: content of the matrix, `"similarity"` or `"distance"`.
        group_names: of groups 0, 1, ...
        title: of the panel.

    Raises:
        ValueError: as `heatmaps`.
    """
    return heatmaps({title: matrix}, group, of=of, group_names=group_names)


def heatmaps(
    matrices: Mapping[str, ArrayLike],
    group: ArrayLike | None = None,
    *,
    of: MatrixKind | Mapping[str, MatrixKind] = "similarity",
    group_names: Sequence[str] = (),
    columns: int | None = None,
    title: str = "",
) -> "Figure":
    """Draws matrices of similarities or distances between the same clients, as figures 4 and 9 of LayerCFL (2023).

    Clients are ordered by true group, with lines between the groups; well separated groups are light squares along the
    diagonal. Lighter is more similar, for similarities and distances alike. Every panel has its own scale, from the
    smallest to the largest entry off the diagonal, and its gap over all pairs (`clustering.gaps.gap_all_pairs`): above
    0, every pair within a group is more similar than every pair across groups. The diagonal and NaN are grey.

    Args:
        matrices: float `[N, N]` by title. Of more than 800 clients, evenly spaced ones are drawn; the gap is of all.
        group: true groups, int `[N]`, below 0 where unknown; or None: clients stay in order, and there is no gap.
        of: content of the matrices, `"similarity"` or `"distance"`; or one of the two by title.
        group_names: of groups 0, 1, ...
        columns: of the grid of panels; None chooses the number.
        title: of the figure.

    Raises:
        ValueError: there is no matrix, one is not square or not of the clients in `group`, or `of` is not allowed.
    """
    arrays = {name: np.asarray(matrix, float) for name, matrix in matrices.items()}
    group = None if group is None else np.asarray(group)
    _check_matrices(arrays, group)
    kinds: dict[str, Any] = {name: of.get(name) if isinstance(of, Mapping) else of for name in arrays}
    for name, kind in kinds.items():
        check_literal(f"of {quoted(name)}" if isinstance(of, Mapping) else "of", kind, MatrixKind)

    total = len(next(iter(arrays.values())))
    order = np.arange(total)
    if group is not None:
        group = np.where(group < 0, -1, group)
        order = np.lexsort((order, group, group < 0))  # unknown groups last
    count = min(total, MAX_DRAWN)
    shown = order[((np.arange(count) + 0.5) * total / count).astype(int)]
    names, edges = ([], np.array([0, count])) if group is None else _group_segments(group[shown], group_names)

    columns = min(len(arrays), columns or (len(arrays) if len(arrays) <= 5 else math.ceil(math.sqrt(2 * len(arrays)))))
    rows = math.ceil(len(arrays) / columns)
    scales = {name: color_scale(matrix[np.ix_(shown, shown)]) for name, matrix in arrays.items()}
    beside = 0.34 + 0.058 * max(len(label) for scale in scales.values() for label in scale.labels)
    side = float(np.clip(WIDTH / columns - beside, *PANEL_SIDES))
    titles = {name: _panel_title(name, matrix, group, kinds[name], side + beside) for name, matrix in arrays.items()}
    above = LINE * max(text.count("\n") + 1 for text in titles.values()) + 0.12
    left = 0.25 + (0.068 * max(map(len, names)) if names else 0)
    wide = max(left + columns * (side + beside), 3.4)
    heading = list(map(style.plain, textwrap.wrap(title, int((wide - 0.2) / 0.085))))
    footer = "clients" if group is None else "clients by true group"
    footer += "; lighter: more similar"
    footer += "" if count == total else f"; {count:,} of {total:,}, evenly chosen, are drawn"
    below = textwrap.wrap(footer, int((wide - left) / 0.066))
    top, bottom = 0.05 + 0.2 * len(heading), 0.22 + 0.14 * len(below)
    size = (wide, top + rows * (side + above) + bottom)
    figure = style.figure(size, None)
    for place, (name, matrix) in enumerate(arrays.items()):
        row, column = divmod(place, columns)
        x, y = left + column * (side + beside), size[1] - top - (row + 1) * (side + above)
        axes = figure.add_axes((x / size[0], y / size[1], side / size[0], side / size[1]))
        bar = figure.add_axes(((x + side + 0.07) / size[0], y / size[1], 0.09 / size[0], side / size[1]))
        draw_matrix(axes, bar, matrix[np.ix_(shown, shown)], scales[name], kinds[name] == "distance")
        axes.set_title(titles[name], fontsize=8 if side < 2 else 9, loc="left", pad=4)
        _draw_group_lines(axes, names if column == 0 else [], edges, side)
    figure.text(0.1 / size[0], 1 - 0.05 / size[1], "\n".join(heading), fontsize=10, va="top")
    figure.text(left / size[0], (bottom - 0.12) / size[1], "\n".join(below), fontsize=8, va="top")
    return figure


def _check_matrices(arrays: Mapping[str, np.ndarray], group: np.ndarray | None) -> None:
    """Raises ValueError unless all matrices are square and of the same clients."""
    if not arrays:
        raise ValueError("matrices must name at least one matrix, got none.")
    count = len(next(iter(arrays.values()))) if group is None else len(group)
    clients = "the first has rows" if group is None else "group has clients"
    for name, matrix in arrays.items():
        if matrix.shape != (count, count) or count == 0:
            raise ValueError(
                f"matrices must be square, with as many rows as {clients} ({count}), got shape {matrix.shape} for "
                f"{name!r}; pass one [N, N] of the same clients each."
            )


def _group_segments(group: np.ndarray, group_names: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Returns the names of sorted groups, and the start of each among the clients, with the end."""
    starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    own = {-1: "unknown"} | dict(enumerate(group_names))
    names = [style.plain(own.get(int(one), f"group {one}"), style.MAX_NAME) for one in group[starts]]
    return names, np.append(starts, len(group))


def _panel_title(name: str, matrix: np.ndarray, group: np.ndarray | None, kind: str, wide: float) -> str:
    """Returns the title of a panel, wrapped to a width in inches, with its gap where it has one."""
    lines = list(map(style.plain, textwrap.wrap(name, int((wide - 0.1) / 0.074))))
    if group is not None:
        signed = -matrix if kind == "distance" else matrix
        gap = float(gaps.gap_all_pairs(jnp.asarray(signed), jnp.asarray(group)))
        if gap < math.inf:  # infinite without two groups, or without two clients of one group
            lines.append(f"Gap {format_gap(gap)}")
    return "\n".join(lines)


def format_gap(value: float) -> str:
    """Returns a number with two decimals, or with more where it is small.

    >>> format_gap(0.123), format_gap(-0.0312), format_gap(0.000123), format_gap(12.34), format_gap(-float("inf"))
    ('0.12', '-0.03', '0.0001', '12.34', '-inf')
    """
    if not math.isfinite(value) or value == 0:
        return f"{value:.0f}"
    decimals = max(2, -math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}" if decimals <= 6 else f"{value:.0e}"


def color_scale(matrix: np.ndarray) -> ColorScale:
    """Returns the range of the entries off the diagonal, with about three round numbers as ticks."""
    from matplotlib.ticker import MaxNLocator

    inside = matrix[~_excluded_entries(matrix)]
    low, high = (float(inside.min()), float(inside.max())) if inside.size else (0.0, 1.0)
    if high - low <= 3e-7 * max(abs(low), abs(high)):  # all entries are equal up to rounding
        middle, half = (low + high) / 2, max(1e-3, 1e-3 * abs(low))
        low, high = middle - half, middle + half
    ticks = MaxNLocator(4, steps=[1, 2, 5, 10]).tick_values(low, high)
    decimals = max(0, -math.floor(math.log10(ticks[1] - ticks[0]) + 1e-9))
    ticks = [float(tick) + 0.0 for tick in ticks if low <= tick <= high]
    form = ".1e" if max(abs(low), abs(high)) < 1e-4 else f".{decimals}f"
    return ColorScale(low, high, ticks, [format(tick, form) for tick in ticks])


def _excluded_entries(matrix: np.ndarray) -> np.ndarray:
    """Returns the mask `[N, N]` of the diagonal and of entries that are not finite."""
    return np.eye(len(matrix), dtype=bool) | ~np.isfinite(matrix)


def draw_matrix(axes: "Axes", bar: "Axes", matrix: np.ndarray, scale: ColorScale, distance: bool) -> None:
    """Draws a matrix and its colour bar."""
    from matplotlib.colors import LinearSegmentedColormap

    shades = SHADES[::-1] if distance else SHADES
    edge = len(matrix)
    image = axes.imshow(
        np.ma.masked_array(matrix, _excluded_entries(matrix)),
        cmap=LinearSegmentedColormap.from_list("similar", shades).with_extremes(bad=NEUTRAL),
        vmin=scale.low,
        vmax=scale.high,
        interpolation="nearest",
        aspect="auto",
        extent=(0, edge, edge, 0),
    )
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color("#BBBBBB")
    colors: Any = axes.figure.colorbar(image, cax=bar)
    colors.set_ticks(scale.ticks, labels=scale.labels)
    colors.ax.tick_params(labelsize=7, length=2, pad=1.5)
    colors.outline.set_color("#BBBBBB")


def _draw_group_lines(axes: "Axes", names: Sequence[str], edges: np.ndarray, side: float) -> None:
    """Draws lines between groups, and their names where they have room."""
    width = 0.5 if len(edges) > 12 else 0.7 if side < 1.2 else 1.2
    for edge in edges[1:-1]:
        axes.axhline(edge, color=SEPARATOR, lw=width)
        axes.axvline(edge, color=SEPARATOR, lw=width)
    room = np.diff(edges) / edges[-1] * side >= 0.115
    if names:
        middles = (edges[:-1] + edges[1:]) / 2
        axes.set_yticks(middles[room], [name for name, fits in zip(names, room, strict=True) if fits], fontsize=8)
        axes.tick_params(axis="y", length=0, pad=2)


MATRIX_SIDE = 4.4  # inches, of the matrix
STRIP = 0.17  # inches, of a strip of colours beside it
LEGEND_ROWS = 22  # entries of a legend


def similarity(found: ClientSimilarity, result: Run) -> "Figure":
    """Draws the matrix of the clients' similarities, ordered by the clusters of a run.

    Lighter is more similar, with lines between the clusters; clusters that suit the data are light squares along the
    diagonal. The strips on the left are each client's cluster, in the colours of `clusters(result)`, and its true group
    where known; they are the same if the clusters are the groups.

    Only clients whose cluster is known are drawn, as in `clusters`.

    Args:
        found: result of `jaxfl.client_similarity`. Of more than 800 clients, evenly spaced ones are drawn.
        result: result of the run.

    Raises:
        ValueError: the run has tested none of these clients.
    """
    seen = cluster_is_known(result.evaluation, result.data)
    here = seen[found.clients]
    if not here.any():
        raise ValueError(
            f"found must have some of the clients that the run has tested ({seen.sum():,} of {len(seen):,}), got none; "
            "give the similarity of this run."
        )
    clients, cosines = found.clients[here], found.matrix[np.ix_(here, here)]
    cluster, group = np.asarray(result.evaluation.cluster), result.data.group
    group = None if group is None else np.asarray(group)
    order = drawing_order(result)
    rank = np.array([order.index(one) if one >= 0 else len(order) for one in cluster[clients].tolist()])
    within = np.zeros(len(rank), int) if group is None else group[clients]
    place = np.lexsort((clients, within, rank))
    count = min(len(place), MAX_DRAWN)
    place = place[((np.arange(count) + 0.5) * len(place) / count).astype(int)]
    matrix, rank = cosines[np.ix_(place, place)], rank[place]

    color_of = style.cluster_colors(order)
    strips = {"cluster": [color_of.get(int(one), style.NO_CLUSTER_COLOR) for one in cluster[clients][place]]}
    legends = {"cluster (clients)": style.legend_entries(cluster[seen], order, color_of)}
    if group is not None:
        groups = np.unique(group)
        colors = style.cluster_colors(groups.tolist())
        strips["group"] = [colors[one] for one in group[clients][place].tolist()]
        legends["true group"] = _group_entries(style.group_names(result.data, groups), list(colors.values()))
    columns = sum(-(-len(entries) // LEGEND_ROWS) for entries in legends.values())
    left, side, bar = 0.2 + STRIP * len(strips) + 0.1, MATRIX_SIDE, 0.75
    title = run_title(result)
    size = (max(left + side + bar + 1.15 * columns, 0.3 + style.title_width(title)), 0.75 + side + 0.35)
    figure = style.figure(size, None)

    def axes_at(x: float, wide: float) -> "Axes":
        return figure.add_axes((x / size[0], 0.35 / size[1], wide / size[0], side / size[1]))

    axes = axes_at(left, side)
    draw_matrix(axes, axes_at(left + side + 0.08, 0.12), matrix, color_scale(matrix), distance=False)
    edges = np.flatnonzero(np.diff(rank)) + 1
    for edge in edges.tolist():
        for line in (axes.axhline, axes.axvline):
            line(edge, color=SEPARATOR, lw=1.2 if len(edges) < 12 else 0.5)
    for number, (name, colors) in enumerate(strips.items()):
        _draw_strip(axes_at(0.2 + STRIP * number, STRIP - 0.03), name, colors)
    _draw_legends(figure, legends, (left + side + bar) / size[0], 1 - 0.72 / size[1])
    words = "cosine of clients' gradients at the initial model; lighter: more similar"
    words += "" if count == len(cluster) else f"; {count:,} of {style.count_phrase(len(cluster), 'client')}"
    figure.text(0.2 / size[0], 1 - 0.1 / size[1], title, fontsize=10, va="top")
    figure.text(0.2 / size[0], 0.1 / size[1], words, fontsize=8)
    return figure


def _group_entries(names: Sequence[str], colors: Sequence[str]) -> list[tuple[str, str]]:
    """Returns labels and colours of groups, those beyond the palette in one entry."""
    shown = [(name, color) for name, color in zip(names, colors, strict=True) if color != style.OTHER_COLOR]
    rest = len(names) - len(shown)
    return [*shown, *([(f"{rest} more", style.OTHER_COLOR)] if rest else [])]


def _draw_strip(axes: "Axes", name: str, colors: Sequence[str]) -> None:
    """Draws the clients' colours as a strip, from top to bottom."""
    from matplotlib.colors import to_rgb

    axes.imshow(np.array([[to_rgb(one)] for one in colors]), aspect="auto", interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color("#BBBBBB")
    axes.set_title(name, fontsize=7, rotation=90, pad=3)


def _draw_legends(figure: "Figure", legends: dict[str, list[tuple[str, str]]], x: float, y: float) -> None:
    """Draws legends from left to right, from a point in figure coordinates."""
    from matplotlib.patches import Patch

    wide = figure.get_size_inches()[0]
    for title, entries in legends.items():
        columns = -(-len(entries) // LEGEND_ROWS)
        figure.legend(
            handles=[Patch(facecolor=color, edgecolor="#BBBBBB", label=label) for label, color in entries],
            title=title,
            alignment="left",
            ncols=columns,
            loc="upper left",
            bbox_to_anchor=(x, y),
            borderaxespad=0,
            columnspacing=1.0,
            handlelength=1.0,
            fontsize=8,
            title_fontsize=8,
            frameon=False,
        )
        x += 1.15 * columns / wide
