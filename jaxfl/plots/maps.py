"""Maps of the clients' local models in the plane."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from jaxfl.analysis.local_sketches import Sketches
from jaxfl.plots import style
from jaxfl.plots.runs import Run, drawing_order, run_name
from jaxfl.schema import check_literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Map = Literal["pca", "tsne"]
MAPS: tuple[Map, ...] = get_args(Map)
PERPLEXITY = 30.0  # of t-SNE, the effective number of neighbours; smaller for few clients
MAX_EXACT = 500  # clients up to which t-SNE is computed without approximation, which takes seconds
MAP_SIDE = 4.2  # inches, of a map


def models(sketches: Sketches, *, by: Map | Sequence[Map] = MAPS, result: Run | None = None, seed: int = 0) -> "Figure":
    """Draws every client's local model as a dot in the plane, in the colour of its cluster.

    `"pca"` (principal components) keeps distances as well as a plane can. `"tsne"` (van der Maaten and Hinton, 2008)
    keeps neighbours: it separates clusters that overlap in the first two components, but their sizes and distances have
    no meaning. As figure 4 of FeSEM (World Wide Web 2022), which draws 400 clients.

    Args:
        sketches: result of `jaxfl.local_sketches`. Clients without a local model (no rows, or diverged) are left out.
        by: `"pca"`, `"tsne"`, or both, side by side.
        result: result of the run, for the numbers and colours of `clusters(result)`; None orders the clusters of these
            clients by size.
        seed: of t-SNE.

    Raises:
        ValueError: a map is unknown, or fewer than two clients have a local model.
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
        order = drawing_order(result)
        order += [cluster for cluster in style.cluster_order(found, None) if cluster not in order]
    color_of = style.cluster_colors(order)
    entries = style.legend_entries(found, order, color_of)
    columns = -(-len(entries) // 18)
    head = "" if result is None else f"{run_name(result)}: "
    head += f"local models of {style.count_phrase(len(points), 'client')}"
    if len(points) < len(sketches.trained):
        head += f"; {len(sketches.trained) - len(points):,} without one (no rows, or diverged) are left out"
    wide = max(MAP_SIDE * len(maps) + 0.3 + 0.95 * columns, 0.2 + style.title_width(head))
    figure = style.figure((wide, MAP_SIDE + 0.2))
    points = points.astype(np.float64)
    points = points - points.mean(0, keepdims=True)
    for name, axes in zip(maps, np.atleast_1d(figure.subplots(1, len(maps))), strict=True):
        if name == "pca":
            places, shares = principal_components(points)
            title = "principal components"
            words = [f"component {one + 1} ({100 * share:.1f} % of the variance)" for one, share in enumerate(shares)]
        else:
            perplexity = max(1.0, min(PERPLEXITY, (len(points) - 1) / 3))
            places, words = tsne(points, perplexity, seed), ["", ""]
            title = f"t-SNE, perplexity {perplexity:.3g}"
        draw_map(axes, places, [color_of.get(int(cluster), style.NO_CLUSTER_COLOR) for cluster in found])
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlabel(words[0], fontsize=9)
        axes.set_ylabel(words[1], fontsize=9)
        if name == "tsne":
            axes.set(xticks=[], yticks=[])  # positions and distances have no meaning
    figure.suptitle(head, fontsize=10, x=0.01, ha="left")
    draw_legend(figure, entries, columns)
    return figure


def principal_components(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first two principal components of points, `[M, 2]`, and their shares of the variance `[2]`.

    Args:
        points: `[M, d]` with mean 0.
    """
    from sklearn.decomposition import PCA

    places, shares = np.zeros((len(points), 2)), np.zeros(2)
    if points.any():  # equal models have no direction
        number = min(2, *points.shape)
        found = PCA(number, svd_solver="full").fit(points)
        places[:, :number], shares[:number] = found.transform(points), found.explained_variance_ratio_
    return places, shares


def tsne(points: np.ndarray, perplexity: float, seed: int) -> np.ndarray:
    """Returns the t-SNE of points, `[M, 2]`, initialised with their principal components.

    Args:
        points: `[M, d]` with mean 0.
        perplexity: below M.
        seed: of the method.
    """
    from sklearn.manifold import TSNE

    start = principal_components(points)[0]
    spread = start[:, 0].std()
    if spread == 0:
        return start
    start = (1e-4 / spread * start).astype(np.float32)
    method = "exact" if len(points) <= MAX_EXACT else "barnes_hut"
    return TSNE(perplexity=perplexity, init=start, method=method, random_state=seed).fit_transform(points)


def draw_map(axes: "Axes", places: np.ndarray, colors: Sequence[str]) -> None:
    """Draws a dot for each client, in random order so that no cluster hides another."""
    order = np.random.default_rng(0).permutation(len(places))
    own = [colors[place] for place in order]
    edges = ["#888888" if color in (style.NO_CLUSTER_COLOR, style.OTHER_COLOR) else "#FFFFFF" for color in own]
    size = float(np.clip(6000 / len(places), 8, 42))
    axes.scatter(*places[order].T, s=size, c=own, edgecolors=edges, linewidths=0.4, alpha=0.9)
    style.light_grid(axes)
    axes.set_aspect("equal", adjustable="datalim")
    axes.tick_params(labelsize=8)


def draw_legend(
    figure: "Figure", entries: Sequence[tuple[str, str]], columns: int, title: str = "cluster (clients)"
) -> None:
    """Draws a legend of labels and colours to the right of the maps."""
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
