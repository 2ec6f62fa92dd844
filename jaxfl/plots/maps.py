"""A picture of the clients' own models: who is near whom."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from jaxfl.analysis.local_sketches import Sketches
from jaxfl.plots import style
from jaxfl.plots.runs import Run, heading, order_of
from jaxfl.schema import check_literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Map = Literal["pca", "tsne"]
MAPS: tuple[Map, ...] = get_args(Map)
PERPLEXITY = 30.0  # of t-SNE, about how many neighbours a client has; fewer among few
EXACT = 500  # up to so many clients t-SNE takes seconds without approximating, and without threads in each other's way
SIDE = 4.2  # inches, of a map


def models(sketches: Sketches, *, by: Map | Sequence[Map] = MAPS, result: Run | None = None, seed: int = 0) -> "Figure":
    """Draws every client's local model as a dot in the plane, in the colour of its cluster.

    `"pca"` (principal components) keeps distances as well as a plane can: clusters lie apart as far as their models do.
    `"tsne"` (van der Maaten and Hinton, 2008) keeps neighbours: clusters come apart that overlap in the first two
    components, but their sizes and distances say nothing. As figure 4 of FeSEM (World Wide Web 2022), which draws 400
    clients.

    Args:
        sketches: of `jaxfl.local_sketches`. Clients without a model of their own (no rows, or diverged) are left out.
        by: `"pca"`, `"tsne"`, or several, side by side.
        result: of the run: clusters have the numbers and colours that they have in `clusters(result)`; without it, the
            largest among these clients is the first.
        seed: of t-SNE.

    Raises:
        ValueError: a map is unknown, or fewer than two clients have a model of their own.
    """
    maps = [by] if isinstance(by, str) else list(by)
    if not maps:
        raise ValueError('by must be "pca", "tsne" or several of them, got none.')
    for one in maps:
        check_literal("by", one, Map)
    points, found = sketches.points[sketches.trained], sketches.cluster[sketches.trained]
    if len(points) < 2:
        raise ValueError(
            f"sketches must hold the models of at least 2 clients with training rows, got {len(points)}; give "
            "local_sketches more clients, or a smaller learning rate if theirs diverged."
        )
    if result is None:
        order = style.cluster_order(found, None)
    else:
        order = order_of(result)
        order += [cluster for cluster in style.cluster_order(found, None) if cluster not in order]
    color_of = style.cluster_colors(order)
    entries = style.legend_entries(found, order, color_of)
    columns = -(-len(entries) // 18)
    head = "" if result is None else f"{heading(result)}: "
    head += f"local models of {style.count(len(points), 'client')}"
    if len(points) < len(sketches.trained):
        head += f"; {len(sketches.trained) - len(points):,} without one (no rows, or diverged) are left out"
    wide = max(SIDE * len(maps) + 0.3 + 0.95 * columns, 0.2 + style.title_width(head))
    figure = style.figure((wide, SIDE + 0.2))
    points = points.astype(np.float64)
    points = points - points.mean(0, keepdims=True)
    for name, axes in zip(maps, np.atleast_1d(figure.subplots(1, len(maps))), strict=True):
        if name == "pca":
            places, shares = principal(points)
            title = "principal components"
            words = [f"component {one + 1} ({100 * share:.1f} % of the variance)" for one, share in enumerate(shares)]
        else:
            perplexity = max(1.0, min(PERPLEXITY, (len(points) - 1) / 3))
            places, words = neighbours(points, perplexity, seed), ["", ""]
            title = f"t-SNE, perplexity {perplexity:.3g}"
        draw(axes, places, [color_of.get(int(cluster), style.NOBODY) for cluster in found])
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlabel(words[0], fontsize=9)
        axes.set_ylabel(words[1], fontsize=9)
        if name == "tsne":
            axes.set(xticks=[], yticks=[])  # places and distances say nothing
    figure.suptitle(head, fontsize=10, x=0.01, ha="left")
    legend(figure, entries, columns)
    return figure


def principal(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns points on their first two principal components `[M, 2]`, and the components' shares of the variance.

    Args:
        points: `[M, d]`, their mean is 0.
    """
    from sklearn.decomposition import PCA

    places, shares = np.zeros((len(points), 2)), np.zeros(2)
    if points.any():  # equal models have no direction
        number = min(2, *points.shape)
        found = PCA(number, svd_solver="full").fit(points)
        places[:, :number], shares[:number] = found.transform(points), found.explained_variance_ratio_
    return places, shares


def neighbours(points: np.ndarray, perplexity: float, seed: int) -> np.ndarray:
    """Returns points placed by t-SNE `[M, 2]`, from their principal components on.

    Args:
        points: `[M, d]`, their mean is 0.
        perplexity: below M.
        seed: of the method.
    """
    from sklearn.manifold import TSNE

    start = principal(points)[0]
    spread = start[:, 0].std()
    if spread == 0:
        return start
    start = (1e-4 / spread * start).astype(np.float32)
    method = "exact" if len(points) <= EXACT else "barnes_hut"
    return TSNE(perplexity=perplexity, init=start, method=method, random_state=seed).fit_transform(points)


def draw(axes: "Axes", places: np.ndarray, colors: Sequence[str]) -> None:
    """Draws dots, in an order that hides no cluster behind another."""
    order = np.random.default_rng(0).permutation(len(places))
    own = [colors[place] for place in order]
    edges = ["#888888" if color in (style.NOBODY, style.OTHERS) else "#FFFFFF" for color in own]
    size = float(np.clip(6000 / len(places), 8, 42))
    axes.scatter(*places[order].T, s=size, c=own, edgecolors=edges, linewidths=0.4, alpha=0.9)
    style.light_grid(axes)
    axes.set_aspect("equal", adjustable="datalim")
    axes.tick_params(labelsize=8)


def legend(
    figure: "Figure", entries: Sequence[tuple[str, str]], columns: int, title: str = "cluster (clients)"
) -> None:
    """Draws labels and colours beside the maps: the clusters' numbers and sizes."""
    from matplotlib.lines import Line2D

    figure.legend(
        handles=[
            Line2D([], [], ls="", marker="o", ms=6, mfc=color, mec="#888888", mew=0.4, label=label)
            for label, color in entries
        ],
        title=title,
        alignment="left",
        ncols=columns,
        loc="outside right upper",
        columnspacing=1.0,
        handlelength=1.0,
        fontsize=8,
        title_fontsize=8,
        frameon=False,
    )
