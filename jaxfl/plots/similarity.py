"""A picture of who is similar to whom, beside what a run has found."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxfl.analysis.client_similarity import ClientSimilarity
from jaxfl.plots import distances, style
from jaxfl.plots.runs import Run, described, order_of
from jaxfl.simulation.metrics import known

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    seen = known(result.evaluation, result.data)
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
    count = min(len(place), distances.MOST)
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
    distances.draw(axes, axes_at(left + side + 0.08, 0.12), matrix, distances.scale_of(matrix), distance=False)
    edges = np.flatnonzero(np.diff(rank)) + 1
    for edge in edges.tolist():
        for line in (axes.axhline, axes.axvline):
            line(edge, color=distances.SEPARATOR, lw=1.2 if len(edges) < 12 else 0.5)
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
