"""Pictures of who is similar to whom: matrices of similarities or distances between clients as heat maps."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from jaxfl.clustering import gaps
from jaxfl.plots import style
from jaxfl.schema import check_literal, checked, quoted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

from typing import TYPE_CHECKING

from jaxfl.analysis.local_sketches import ClientSimilarity
from jaxfl.plots.runs import Run, described, order_of
from jaxfl.simulation.evaluation.metrics import cluster_is_known

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Kind = Literal["similarity", "distance"]
SHADES = ("#001A2B", "#0072B2", "#56B4E9", "#FFFFFF")  # from the least to the most similar
NEUTRAL = "#B8B0A4"  # the diagonal, and what is no number: outside the scale
SEPARATOR = "#D55E00"
MOST = 800  # of more clients, evenly chosen ones are drawn
SIDES = (0.95, 2.4)  # inches of a matrix, in many columns and in few
WIDTH = 14.0  # inches that few columns share
LINE = 0.155  # inches a line of a title is high


class Scale(NamedTuple):
    """The range of a panel's colours, and what is written beside them."""

    low: float
    high: float
    places: list[float]
    words: list[str]


@checked
def heatmap(
    matrix: ArrayLike,
    group: ArrayLike | None = None,
    *,
    of: Kind = "similarity",
    group_names: Sequence[str] = (),
    title: str = "",
) -> "Figure":
    """Draws a matrix of similarities or distances between clients: `heatmaps` with one panel.

    Args:
        matrix: float `[N, N]`.
        group: true groups, int `[N]`, or None.
        of: what the matrix holds, `"similarity"` or `"distance"`.
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
    of: Kind | Mapping[str, Kind] = "similarity",
    group_names: Sequence[str] = (),
    columns: int | None = None,
    title: str = "",
) -> "Figure":
    """Draws matrices of similarities or distances between the same clients, as figures 4 and 9 of LayerCFL (2023).

    Clients are ordered by true group, and lines part the groups: found easily, the groups are light squares along the
    diagonal. Lighter is more similar, for similarities and distances alike. Every panel has its own scale, from the
    least to the largest entry off the diagonal, and says its gap over all pairs (`clustering.gaps.gap_all_pairs`):
    above 0, every pair within a group is lighter than every pair across. The diagonal and NaN are grey.

    Args:
        matrices: float `[N, N]` by title. Of more than 800 clients, evenly chosen ones are drawn; the gap is of all.
        group: true groups, int `[N]`, below 0 where unknown; or None: clients stay in order, and there is no gap.
        of: what the matrices hold, `"similarity"` or `"distance"`; or one of the two by title.
        group_names: of groups 0, 1, ...
        columns: of the grid of panels; None chooses.
        title: of the figure.

    Raises:
        ValueError: there is no matrix, one is not square or not of the clients in `group`, or `of` is something else.
    """
    arrays = {name: np.asarray(matrix, float) for name, matrix in matrices.items()}
    group = None if group is None else np.asarray(group)
    _check(arrays, group)
    kinds: dict[str, Any] = {name: of.get(name) if isinstance(of, Mapping) else of for name in arrays}
    for name, kind in kinds.items():
        check_literal(f"of {quoted(name)}" if isinstance(of, Mapping) else "of", kind, Kind)

    total = len(next(iter(arrays.values())))
    order = np.arange(total)
    if group is not None:
        group = np.where(group < 0, -1, group)
        order = np.lexsort((order, group, group < 0))  # the unknown last
    count = min(total, MOST)
    shown = order[((np.arange(count) + 0.5) * total / count).astype(int)]
    names, edges = ([], np.array([0, count])) if group is None else _segments(group[shown], group_names)

    columns = min(len(arrays), columns or (len(arrays) if len(arrays) <= 5 else math.ceil(math.sqrt(2 * len(arrays)))))
    rows = math.ceil(len(arrays) / columns)
    scales = {name: scale_of(matrix[np.ix_(shown, shown)]) for name, matrix in arrays.items()}
    beside = 0.34 + 0.058 * max(len(word) for scale in scales.values() for word in scale.words)
    side = float(np.clip(WIDTH / columns - beside, *SIDES))
    titles = {name: _title(name, matrix, group, kinds[name], side + beside) for name, matrix in arrays.items()}
    above = LINE * max(words.count("\n") + 1 for words in titles.values()) + 0.12
    left = 0.25 + (0.068 * max(map(len, names)) if names else 0)
    wide = max(left + columns * (side + beside), 3.4)
    heading = textwrap.wrap(title, int((wide - 0.2) / 0.085))
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
        draw(axes, bar, matrix[np.ix_(shown, shown)], scales[name], kinds[name] == "distance")
        axes.set_title(titles[name], fontsize=8 if side < 2 else 9, loc="left", pad=4)
        _part(axes, names if column == 0 else [], edges, side)
    figure.text(0.1 / size[0], 1 - 0.05 / size[1], "\n".join(heading), fontsize=10, va="top")
    figure.text(left / size[0], (bottom - 0.12) / size[1], "\n".join(below), fontsize=8, va="top")
    return figure


def _check(arrays: Mapping[str, np.ndarray], group: np.ndarray | None) -> None:
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


def _segments(group: np.ndarray, group_names: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Returns the names of sorted groups, and where each starts; and the end."""
    starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    own = {-1: "unknown"} | dict(enumerate(group_names))
    return [own.get(int(one), f"group {one}") for one in group[starts]], np.append(starts, len(group))


def _title(name: str, matrix: np.ndarray, group: np.ndarray | None, kind: str, wide: float) -> str:
    """Returns a panel's title, wrapped to a width, and its gap where it has one."""
    lines = textwrap.wrap(name, int((wide - 0.1) / 0.074))
    if group is not None:
        signed = -matrix if kind == "distance" else matrix
        gap = float(gaps.gap_all_pairs(jnp.asarray(signed), jnp.asarray(group)))
        if gap < math.inf:  # else there are no two groups, or no two clients of one
            lines.append(f"Gap {number(gap)}")
    return "\n".join(lines)


def number(value: float) -> str:
    """Returns a number with two decimals, and more where it is small.

    >>> number(0.123), number(-0.0312), number(0.000123), number(12.34), number(-float("inf"))
    ('0.12', '-0.03', '0.0001', '12.34', '-inf')
    """
    if not math.isfinite(value) or value == 0:
        return f"{value:.0f}"
    decimals = max(2, -math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}" if decimals <= 6 else f"{value:.0e}"


def scale_of(matrix: np.ndarray) -> Scale:
    """Returns the range off the diagonal, and about three round numbers in it with the decimals that they need."""
    from matplotlib.ticker import MaxNLocator

    inside = matrix[~_outside(matrix)]
    low, high = (float(inside.min()), float(inside.max())) if inside.size else (0.0, 1.0)
    if high - low <= 3e-7 * max(abs(low), abs(high)):  # of one number, but for rounding
        middle, half = (low + high) / 2, max(1e-3, 1e-3 * abs(low))
        low, high = middle - half, middle + half
    places = MaxNLocator(4, steps=[1, 2, 5, 10]).tick_values(low, high)
    decimals = max(0, -math.floor(math.log10(places[1] - places[0]) + 1e-9))
    places = [float(place) + 0.0 for place in places if low <= place <= high]
    form = ".1e" if max(abs(low), abs(high)) < 1e-4 else f".{decimals}f"
    return Scale(low, high, places, [format(place, form) for place in places])


def _outside(matrix: np.ndarray) -> np.ndarray:
    return np.eye(len(matrix), dtype=bool) | ~np.isfinite(matrix)


def draw(axes: "Axes", bar: "Axes", matrix: np.ndarray, scale: Scale, distance: bool) -> None:
    """Draws a matrix and its colours."""
    from matplotlib.colors import LinearSegmentedColormap

    shades = SHADES[::-1] if distance else SHADES
    edge = len(matrix)
    image = axes.imshow(
        np.ma.masked_array(matrix, _outside(matrix)),
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
    colors.set_ticks(scale.places, labels=scale.words)
    colors.ax.tick_params(labelsize=7, length=2, pad=1.5)
    colors.outline.set_color("#BBBBBB")


def _part(axes: "Axes", names: Sequence[str], edges: np.ndarray, side: float) -> None:
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


SIDE = 4.4  # inches, of the matrix
STRIP = 0.17  # inches, of a colour beside it
COLUMN = 22  # entries of a legend


def similarity(found: ClientSimilarity, result: Run) -> "Figure":
    """Draws how similar clients are to each other, in the order of the clusters that a run has found.

    Lighter is more similar, and lines part the clusters: those that suit the data are light squares along the diagonal.
    The two strips on the left tell each client's cluster, in the colours of `clusters(result)`, and its true group
    where known; with clusters found exactly the strips are the same.

    Only clients whose cluster is known are drawn, as by `clusters`.

    Args:
        found: of `jaxfl.client_similarity`. Of more than 800 clients, evenly chosen ones are drawn.
        result: of the run.

    Raises:
        ValueError: the run knows nobody's cluster of these clients.
    """
    seen = cluster_is_known(result.evaluation, result.data)
    here = seen[found.clients]
    if not here.any():
        raise ValueError(
            f"found must have clients that the run has tested, {seen.sum():,} of {len(seen):,}, got none of them; it "
            "is of another run."
        )
    clients, cosines = found.clients[here], found.matrix[np.ix_(here, here)]
    cluster, group = np.asarray(result.evaluation.cluster), result.data.group
    group = None if group is None else np.asarray(group)
    order = order_of(result)
    rank = np.array([order.index(one) if one >= 0 else len(order) for one in cluster[clients].tolist()])
    within = np.zeros(len(rank), int) if group is None else group[clients]
    place = np.lexsort((clients, within, rank))
    count = min(len(place), MOST)
    place = place[((np.arange(count) + 0.5) * len(place) / count).astype(int)]
    matrix, rank = cosines[np.ix_(place, place)], rank[place]

    color_of = style.cluster_colors(order)
    strips = {"cluster": [color_of.get(int(one), style.NOBODY) for one in cluster[clients][place]]}
    legends = {"cluster (clients)": style.legend_entries(cluster[seen], order, color_of)}
    if group is not None:
        groups = np.unique(group)
        colors = style.cluster_colors(groups.tolist())
        strips["group"] = [colors[one] for one in group[clients][place].tolist()]
        legends["true group"] = _named(style.group_names(result.data, groups), list(colors.values()))
    columns = sum(-(-len(entries) // COLUMN) for entries in legends.values())
    left, side, bar = 0.2 + STRIP * len(strips) + 0.1, SIDE, 0.75
    title = described(result)
    size = (max(left + side + bar + 1.15 * columns, 0.3 + style.title_width(title)), 0.75 + side + 0.35)
    figure = style.figure(size, None)

    def axes_at(x: float, wide: float) -> "Axes":
        return figure.add_axes((x / size[0], 0.35 / size[1], wide / size[0], side / size[1]))

    axes = axes_at(left, side)
    draw(axes, axes_at(left + side + 0.08, 0.12), matrix, scale_of(matrix), distance=False)
    edges = np.flatnonzero(np.diff(rank)) + 1
    for edge in edges.tolist():
        for line in (axes.axhline, axes.axvline):
            line(edge, color=SEPARATOR, lw=1.2 if len(edges) < 12 else 0.5)
    for number, (name, colors) in enumerate(strips.items()):
        _strip(axes_at(0.2 + STRIP * number, STRIP - 0.03), name, colors)
    _legends(figure, legends, (left + side + bar) / size[0], 1 - 0.72 / size[1])
    words = "cosine of clients' gradients at the initial model; lighter: more similar"
    words += "" if count == len(cluster) else f"; {count:,} of {style.count(len(cluster), 'client')}"
    figure.text(0.2 / size[0], 1 - 0.1 / size[1], title, fontsize=10, va="top")
    figure.text(0.2 / size[0], 0.1 / size[1], words, fontsize=8)
    return figure


def _named(names: Sequence[str], colors: Sequence[str]) -> list[tuple[str, str]]:
    """Returns labels and colours of groups: those beyond the colours in one line."""
    shown = [(name, color) for name, color in zip(names, colors, strict=True) if color != style.OTHERS]
    rest = len(names) - len(shown)
    return [*shown, *([(f"{rest} more", style.OTHERS)] if rest else [])]


def _strip(axes: "Axes", name: str, colors: Sequence[str]) -> None:
    """Draws the clients' colours from above to below."""
    from matplotlib.colors import to_rgb

    axes.imshow(np.array([[to_rgb(one)] for one in colors]), aspect="auto", interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color("#BBBBBB")
    axes.set_title(name, fontsize=7, rotation=90, pad=3)


def _legends(figure: "Figure", legends: dict[str, list[tuple[str, str]]], x: float, y: float) -> None:
    """Draws legends from left to right."""
    from matplotlib.patches import Patch

    wide = figure.get_size_inches()[0]
    for title, entries in legends.items():
        columns = -(-len(entries) // COLUMN)
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
