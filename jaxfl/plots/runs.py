"""Pictures of a run. Every function takes what `jaxfl.run` returned and returns a matplotlib figure."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from jaxfl.data.clients import FederatedData
from jaxfl.plots import style
from jaxfl.plots.style import NOBODY
from jaxfl.simulation.evaluation.metrics import Evaluation, cluster_is_known, main_metric
from jaxfl.simulation.records.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW = 5  # lines whose legend stands among them
MARKED = 12  # points of a line with markers, or fewer
NUMBERED = 120  # up to so many clients, a square says the number of its cluster


class Run(Protocol):
    """What the pictures need of a `jaxfl.Result`."""

    @property
    def history(self) -> History:
        """The records."""
        ...

    @property
    def evaluation(self) -> Evaluation:
        """The last evaluation."""
        ...

    @property
    def data(self) -> FederatedData:
        """The federation."""
        ...


def convergence(result: Run | Mapping[str, Run | History]) -> "Figure":
    """Draws accuracy, loss and number of clusters by round.

    Accuracy, or the main metric of another task: micro (line), macro (dashes) and, for one run, the band from the 10th
    to the 90th percentile of the clients. Loss: on the test rows (line) and while training (dashes). Clusters: found,
    and the number of true groups where known. A line marks a drift.

    Args:
        result: of a run; or several by name, results or histories, to compare.

    Raises:
        TypeError: several without names.
        ValueError: there is none.
    """
    if isinstance(result, list):
        raise TypeError("result must be of a run, or of several by name, got a list; give {name: result}.")
    several = isinstance(result, Mapping)
    for name, one in result.items() if isinstance(result, Mapping) else ():
        if isinstance(one, list):
            raise TypeError(
                f"result[{name!r}] must be one run, got a list; jaxfl.plots.curves.curves draws means over seeds."
            )
    runs = dict(result) if isinstance(result, Mapping) else {"": result}
    if not runs:
        raise ValueError("result must name at least one run, got none.")
    aside = len(runs) > FEW  # a legend of so many lines would cover them
    figure = style.figure((12.5 if aside else 11, max(3.4, 0.5 + 0.18 * len(runs))))  # a line of its legend for each
    measured, loss, clusters = figure.subplots(1, 3)
    histories = [one if isinstance(one, History) else one.history for one in runs.values()]
    main = main_metric(next((one[-1] for one in histories if len(one)), {}))
    for place, (name, one) in enumerate(runs.items()):
        history = one if isinstance(one, History) else one.history
        color, mark = style.line(place)
        rounds = history.column("round")

        def draw(
            axes: "Axes", column: str, label: str, dashes: str = "-", *, of=history, name=name, color=color, mark=mark
        ) -> None:
            values = np.array([math.nan if value is None else value for value in of.column(column)], float)
            if np.isfinite(values).any():
                if several:
                    label = name if column == f"micro_{main}" else ""
                marker, every = mark or ("o" if len(values) < 3 else ""), -(-len(values) // MARKED)
                look = {"color": color, "marker": marker, "ms": 4, "markevery": every}
                axes.plot(of.column("round"), values, dashes, label=label or None, **look)

        if not several:
            low, high = (_numbers(history.column(f"p{q}_{main}")) for q in (10, 90))
            measured.fill_between(rounds, low, high, color=color, alpha=0.2, lw=0, label="10 % to 90 % of the clients")
        draw(measured, f"micro_{main}", "micro")
        draw(measured, f"macro_{main}", "macro", "--")
        draw(loss, "loss", "test")
        draw(loss, "train_loss", "training", "--")
        draw(clusters, "num_clusters", "found")
    first = next(iter(runs.values()))
    if not isinstance(first, History) and first.data.group is not None:
        groups = len(np.unique(np.asarray(first.data.group)))
        clusters.axhline(groups, color="#444444", lw=1, ls=":", label="true groups")
    titles = (f"{main} on the clients' test rows", "loss", "number of clusters")
    if several:
        titles = (f"{main} (dashes: macro)", "loss (dashes: training)", "number of clusters")
    shown = sorted({round for history in histories for round in history.column("round")})
    for axes, title in zip((measured, loss, clusters), titles, strict=True):
        style.mark_drift(axes, runs.values())
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlabel("round")
        style.light_grid(axes)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if len(shown) == 1:  # an axis of a single point has fractions of rounds
            axes.set(xticks=shown, xlim=(shown[0] - 1, shown[0] + 1))
        if axes.get_legend_handles_labels()[0] and not (aside and axes is measured):
            axes.legend(fontsize=8, frameon=False)
    if aside:
        figure.legend(*measured.get_legend_handles_labels(), loc="outside right upper", fontsize=8, frameon=False)
    if main == "accuracy":
        measured.set_ylim(top=min(1.02, measured.get_ylim()[1]))  # 1 is seen whole
    if loss.dataLim.ymin >= 0:  # a log-likelihood may be below
        loss.set_ylim(0, max(loss.get_ylim()[1], 1.05 * loss.dataLim.ymax))
    clusters.set_ylim(0, max(clusters.get_ylim()[1] * 1.1, 2))
    clusters.yaxis.get_major_locator().set_params(integer=True)
    if not several:
        figure.suptitle("" if isinstance(first, History) else heading(first), fontsize=10, x=0.01, ha="left")
    return figure


def clusters(result: Run) -> "Figure":
    """Draws every client as a square: in the row of its true group, in the colour of its found cluster.

    Found exactly, every row has one colour of its own. Where the groups are unknown there is one block, sorted by
    cluster. Of a run that tests a sample of its clients, only these are drawn; clients that have left are not.

    Args:
        result: of a run.
    """
    data, found = result.data, np.asarray(result.evaluation.cluster)
    group = np.zeros(len(found), int) if data.group is None else np.asarray(data.group)
    seen = cluster_is_known(result.evaluation, data)
    found, group = found[seen], group[seen]
    groups = np.unique(group)
    order = order_of(result)
    color_of = style.cluster_colors(order)
    blocks, width = _layout([np.flatnonzero(group == one) for one in groups], found, order)
    gap = 0.0 if len(found) <= NUMBERED and all(len(block) <= width for block in blocks) else 0.03 * width
    lines = [math.ceil(len(block) / width) for block in blocks]
    tops = [float(sum(lines[:place]) + gap * place) for place in range(len(blocks))]

    names, entries = style.group_names(data, groups), style.legend_entries(found, order, color_of)
    cell, title = max(0.07, min(0.4, 7.0 / width)), described(result)  # inches
    wide, high = width * cell, (tops[-1] + lines[-1]) * cell
    per_column = max(8, int(high / 0.2))
    left = 0.25 + 0.1 * max(map(len, names))
    right = 0.5 + 0.95 * math.ceil(len(entries) / per_column)
    beside = 0.2 * min(per_column, len(entries)) + 0.3
    size = max(left + wide + right, left + style.title_width(title)), max(high, beside) + 0.6
    figure = style.figure(size, None)
    axes = figure.add_axes((left / size[0], 1 - (0.4 + high) / size[1], wide / size[0], high / size[1]))
    _draw_squares(axes, blocks, tops, width, found, color_of)
    axes.set(xlim=(0, width), ylim=(high / cell, 0), xticks=[])
    axes.set_yticks([top + line / 2 for top, line in zip(tops, lines, strict=True)], names)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.text(left / size[0], 1 - 0.25 / size[1], title, fontsize=10)
    from matplotlib.patches import Patch

    figure.legend(
        handles=[Patch(facecolor=color, edgecolor="#BBBBBB", label=label) for label, color in entries],
        title="cluster (clients)",
        alignment="left",
        ncols=math.ceil(len(entries) / per_column),
        loc="upper left",
        bbox_to_anchor=((left + wide + 0.1) / size[0], 1 - 0.35 / size[1]),
        columnspacing=1.0,
        handlelength=1.0,
        fontsize=8,
        title_fontsize=8,
        frameon=False,
    )
    return figure


def _layout(members: list[np.ndarray], found: np.ndarray, order: Sequence[int]) -> tuple[list[np.ndarray], int]:
    """Returns every group's clients sorted by cluster, and the squares of a line: about 2.5 times as wide as high."""
    rank = {cluster: place for place, cluster in enumerate(order)}
    blocks = [
        block[np.argsort([rank.get(int(found[i]), len(rank)) for i in block], kind="stable")] for block in members
    ]
    longest = max(map(len, blocks))
    wish = longest if len(found) <= NUMBERED and longest <= 20 else math.ceil(math.sqrt(2.5 * len(found)))
    return blocks, math.ceil(longest / math.ceil(longest / wish))  # full lines


def _draw_squares(
    axes: "Axes",
    blocks: Sequence[np.ndarray],
    tops: Sequence[float],
    width: int,
    found: np.ndarray,
    color_of: Mapping[int, str],
) -> None:
    """Draws every client, with the number of its cluster where there is room."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    squares, colors = [], []
    for block, top in zip(blocks, tops, strict=True):
        for place, client in enumerate(block):
            x, y, cluster = place % width, top + place // width, int(found[client])
            squares.append(Rectangle((x + 0.06, y + 0.06), 0.88, 0.88))
            colors.append(color_of.get(cluster, NOBODY))
            if len(found) <= NUMBERED and cluster >= 0:
                ink = style.ink(colors[-1])
                size = 7 if cluster < 100 else 5
                axes.text(x + 0.5, y + 0.53, str(cluster), ha="center", va="center", size=size, color=ink)
    edges = ["#BBBBBB" if color == NOBODY else color for color in colors]
    widths = [0.5 if color == NOBODY else 0.0 for color in colors]
    axes.add_collection(PatchCollection(squares, facecolors=colors, edgecolors=edges, lw=widths, snap=False))


def order_of(result: Run) -> list[int]:
    """Returns the clusters in the order of their colours in every picture of a run: those that are drawn come first."""
    found, seen = np.asarray(result.evaluation.cluster), cluster_is_known(result.evaluation, result.data)
    group = np.zeros(len(found), int) if result.data.group is None else np.asarray(result.data.group)
    order = style.cluster_order(found[seen], group[seen])
    return order + [one for one in style.cluster_order(found, group) if one not in order]


def heading(result: Run) -> str:
    """Returns what has run, which every title begins with, such as "stocfl on mnist"."""
    method = (getattr(result, "summary", None) or {}).get("method")
    return result.data.name if method is None else f"{method} on {result.data.name}"


def described(result: Run) -> str:
    """Returns what has run, how many clusters were found, and how well they agree with the groups."""
    metrics = result.evaluation.metrics
    held_out = 0 if result.data.held_out is None else int(np.asarray(result.data.held_out).sum())
    about = [f"{metrics['eval_clients']:,} tested"] if "eval_clients" in metrics else []
    about += [f"{held_out:,} held out"] if held_out else []  # whose clusters are drawn, and in no number
    apart = f" ({', '.join(about)})" if about else ""
    clients, found = (
        style.count(*one) for one in ((result.data.num_clients, "client"), (metrics["num_clusters"], "cluster"))
    )
    words = f"{heading(result)}: {clients}{apart}, {found} found"
    if metrics.get("ari") is None:
        return words
    groups = len(np.unique(np.asarray(result.data.group)))
    return f"{words}, {style.count(groups, 'true group')}, ARI {metrics['ari']:.3f}"


def _numbers(values: Sequence[Any]) -> np.ndarray:
    """Returns numbers, NaN for None."""
    return np.array([math.nan if value is None else value for value in values], float)
