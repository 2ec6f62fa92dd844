"""Plots of a run: metrics by round, and the clusters of all clients."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from jaxfl.data.clients import FederatedData
from jaxfl.plots import style
from jaxfl.plots.style import NO_CLUSTER_COLOR
from jaxfl.simulation.evaluation.metrics import Evaluation, cluster_is_known, main_metric
from jaxfl.simulation.records.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_INNER_LEGEND = 5  # lines up to which the legend is inside the panel
MAX_MARKED = 12  # points of a line with markers, at most
MAX_NUMBERED = 120  # clients up to which a square has the number of its cluster


class Run(Protocol):
    """The fields of a `jaxfl.Result` that are drawn."""

    @property
    def history(self) -> History:
        """The records of all evaluations."""
        ...

    @property
    def evaluation(self) -> Evaluation:
        """The last evaluation."""
        ...

    @property
    def data(self) -> FederatedData:
        """The federation."""
        ...


def convergence(result: Run | Mapping[str, Run | History], x: style.X = "round") -> "Figure":
    """Draws accuracy, loss and number of clusters by round, or by simulated hours.

    Accuracy, or the main metric of another task: micro (line), macro (dashes) and, for one run, the band from the 10th
    to the 90th percentile of the clients. Loss: on the test rows (line) and in training (dashes). Clusters: their
    number, and that of the true groups where known. A dashed vertical line marks a drift.

    Args:
        result: result of a run; or several results or histories by name.
        x: `"round"`, or `"seconds_simulated"` for runs with a clock, see `jaxfl.ClientClock`.

    Raises:
        TypeError: several results have no names.
        ValueError: the mapping is empty, or a run has no clock and is to be drawn by its time.
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
    names = {name: style.plain(name) for name in runs}
    beside = style.legend_width(names.values())
    aside = len(runs) > MAX_INNER_LEGEND or beside > 0  # inside, a long legend would cover the lines
    size = (12.5 + beside if aside else 11, max(3.4, 0.5 + 0.18 * len(runs)))  # inches: a line of the legend for each
    figure = style.figure(size)
    measured, loss, clusters = figure.subplots(1, 3)
    histories = [one if isinstance(one, History) else one.history for one in runs.values()]
    style.check_x(x, histories)
    main = main_metric(next((one[-1] for one in histories if len(one)), {}))
    drawn = style.plain(main, style.MAX_NAME)
    for place, (name, one) in enumerate(runs.items()):
        history = one if isinstance(one, History) else one.history
        color, mark = style.line_style(place)
        places = [style.along(x, value) for value in history.column(x)]

        def draw(
            axes: "Axes",
            column: str,
            label: str,
            dashes: str = "-",
            *,
            of=history,
            at=places,
            name=name,
            color=color,
            mark=mark,
        ) -> None:
            values = np.array([math.nan if value is None else value for value in of.column(column)], float)
            if np.isfinite(values).any():
                if several:
                    label = names[name] if column == f"micro_{main}" else ""
                marker, every = mark or ("o" if len(values) < 3 else ""), -(-len(values) // MAX_MARKED)
                look = {"color": color, "marker": marker, "ms": 4, "markevery": every}
                axes.plot(at, values, dashes, label=label or None, **look)

        if not several:
            low, high = (_none_as_nan(history.column(f"p{q}_{main}")) for q in (10, 90))
            measured.fill_between(places, low, high, color=color, alpha=0.2, lw=0, label="10 % to 90 % of the clients")
        draw(measured, f"micro_{main}", "micro")
        draw(measured, f"macro_{main}", "macro", "--")
        draw(loss, "loss", "test")
        draw(loss, "train_loss", "training", "--")
        draw(clusters, "num_clusters", "found")
    first = next(iter(runs.values()))
    if not isinstance(first, History) and first.data.group is not None:
        groups = len(np.unique(np.asarray(first.data.group)))
        clusters.axhline(groups, color="#444444", lw=1, ls=":", label="true groups")
    titles = (f"{drawn} on the clients' test rows", "loss", "number of clusters")
    if several:
        titles = (f"{drawn} (dashes: macro)", "loss (dashes: training)", "number of clusters")
    shown = sorted({style.along(x, value) for history in histories for value in history.column(x)})
    for axes, title in zip((measured, loss, clusters), titles, strict=True):
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlabel(style.X_LABELS[x])
        style.light_grid(axes)
        if x == "round":
            style.mark_drift(axes, runs.values())
            axes.xaxis.get_major_locator().set_params(integer=True)
        if x == "round" and len(shown) == 1:  # matplotlib would show fractions of rounds
            axes.set(xticks=shown, xlim=(shown[0] - 1, shown[0] + 1))
        if axes.get_legend_handles_labels()[0] and not (aside and axes is measured):
            axes.legend(fontsize=8, frameon=False)
    if aside:
        figure.legend(*measured.get_legend_handles_labels(), loc="outside right upper", fontsize=8, frameon=False)
    if main == "accuracy":
        measured.set_ylim(top=min(1.02, measured.get_ylim()[1]))  # so that markers at 1 are not cut
    if loss.dataLim.ymin >= 0:  # a log-likelihood may be negative
        loss.set_ylim(0, max(loss.get_ylim()[1], 1.05 * loss.dataLim.ymax))
    clusters.set_ylim(0, max(clusters.get_ylim()[1] * 1.1, 2))
    clusters.yaxis.get_major_locator().set_params(integer=True)
    if not several:
        figure.suptitle("" if isinstance(first, History) else run_name(first), fontsize=10, x=0.01, ha="left")
    return figure


def participation(result: Run) -> "Figure":
    """Draws how often clients of each quartile of speed, and of each true group, report in a round.

    The picture of what a deadline or over-selection does (see `jaxfl.ClientClock`): lines that part are clients that
    the model sees less of than of others. The dotted line is the mean over all clients.

    Args:
        result: result of a run whose policy may cut clients.

    Raises:
        ValueError: no client of the run could be cut.
    """
    records = [record for record in result.history if "participation_by_speed" in record]
    if not records:
        raise ValueError(
            "result must be of a run that may cut clients, got one that waits for all; give ClientClock a deadline or "
            "over_select."
        )
    places = [record["round"] for record in records]
    sides: list[tuple[str, str, Sequence[str]]] = [
        (
            "participation_by_speed",
            "by speed",
            ("slowest quarter", "second quarter", "third quarter", "fastest quarter"),
        )
    ]
    if "participation_by_group" in records[-1]:
        count = len(records[-1]["participation_by_group"])
        names = [style.plain(name, style.MAX_NAME) for name in result.data.group_names] or [*map(str, range(count))]
        sides.append(("participation_by_group", "by true group", names[:count]))
    figure = style.figure((5.2 * len(sides), 3.4))
    for axes, (column, title, names) in zip(figure.subplots(1, len(sides), squeeze=False)[0], sides, strict=True):
        for place, name in enumerate(names):
            values = [math.nan if one[column][place] is None else one[column][place] for one in records]
            color, mark = style.line_style(place)
            look = {"color": color, "marker": mark or ("o" if len(places) < 3 else ""), "ms": 4}
            axes.plot(places, values, label=name, markevery=-(-len(places) // MAX_MARKED), **look)
        mean = [float(np.nanmean([np.nan if one is None else one for one in record[column]])) for record in records]
        axes.plot(places, mean, ":", color="#444444", lw=1, label="mean")
        axes.set_title(f"reports of a client in a round, {title}", fontsize=10, loc="left")
        axes.set_xlabel("round")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_ylim(0, None)
        style.light_grid(axes)
        axes.legend(fontsize=8, frameon=False)
    return figure


def clusters(result: Run) -> "Figure":
    """Draws every client as a square in the row of its true group, in the colour of its cluster.

    If the clusters are the groups, every row has one colour. Where the groups are unknown there is one block, sorted by
    cluster. Only clients in the evaluation sample that have not left are drawn.

    Args:
        result: result of a run.
    """
    data, found = result.data, np.asarray(result.evaluation.cluster)
    group = np.zeros(len(found), int) if data.group is None else np.asarray(data.group)
    seen = cluster_is_known(result.evaluation, data)
    found, group = found[seen], group[seen]
    groups = np.unique(group)
    order = drawing_order(result)
    color_of = style.cluster_colors(order)
    blocks, width = _layout([np.flatnonzero(group == one) for one in groups], found, order)
    gap = 0.0 if len(found) <= MAX_NUMBERED and all(len(block) <= width for block in blocks) else 0.03 * width
    lines = [math.ceil(len(block) / width) for block in blocks]
    tops = [float(sum(lines[:place]) + gap * place) for place in range(len(blocks))]

    names, entries = style.group_names(data, groups), style.legend_entries(found, order, color_of)
    cell, title = max(0.07, min(0.4, 7.0 / width)), run_title(result)  # inches
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
    """Returns each group's clients sorted by cluster, and the squares per line for a ratio of about 2.5 to 1."""
    rank = {cluster: place for place, cluster in enumerate(order)}
    blocks = [
        block[np.argsort([rank.get(int(found[i]), len(rank)) for i in block], kind="stable")] for block in members
    ]
    longest = max(map(len, blocks))
    wish = longest if len(found) <= MAX_NUMBERED and longest <= 20 else math.ceil(math.sqrt(2.5 * len(found)))
    return blocks, math.ceil(longest / math.ceil(longest / wish))  # so that lines are full


def _draw_squares(
    axes: "Axes",
    blocks: Sequence[np.ndarray],
    tops: Sequence[float],
    width: int,
    found: np.ndarray,
    color_of: Mapping[int, str],
) -> None:
    """Draws a square for every client, with the number of its cluster where there is room."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    squares, colors = [], []
    for block, top in zip(blocks, tops, strict=True):
        for place, client in enumerate(block):
            x, y, cluster = place % width, top + place // width, int(found[client])
            squares.append(Rectangle((x + 0.06, y + 0.06), 0.88, 0.88))
            colors.append(color_of.get(cluster, NO_CLUSTER_COLOR))
            if len(found) <= MAX_NUMBERED and cluster >= 0:
                ink = style.ink(colors[-1])
                size = 7 if cluster < 100 else 5
                axes.text(x + 0.5, y + 0.53, str(cluster), ha="center", va="center", size=size, color=ink)
    edges = ["#BBBBBB" if color == NO_CLUSTER_COLOR else color for color in colors]
    widths = [0.5 if color == NO_CLUSTER_COLOR else 0.0 for color in colors]
    axes.add_collection(PatchCollection(squares, facecolors=colors, edgecolors=edges, lw=widths, snap=False))


def drawing_order(result: Run) -> list[int]:
    """Returns the clusters in the order of their colours in all plots of a run; clusters that are drawn come first."""
    found, seen = np.asarray(result.evaluation.cluster), cluster_is_known(result.evaluation, result.data)
    group = np.zeros(len(found), int) if result.data.group is None else np.asarray(result.data.group)
    order = style.cluster_order(found[seen], group[seen])
    return order + [one for one in style.cluster_order(found, group) if one not in order]


def run_name(result: Run) -> str:
    """Returns the name of a run, to be drawn: every title begins with it, such as "stocfl on mnist"."""
    method = (getattr(result, "summary", None) or {}).get("method")
    return style.plain(result.data.name if method is None else f"{method} on {result.data.name}")


def run_title(result: Run) -> str:
    """Returns a title: name of the run, clients, clusters, and their agreement with the true groups."""
    metrics = result.evaluation.metrics
    held_out = 0 if result.data.held_out is None else int(np.asarray(result.data.held_out).sum())
    about = [f"{metrics['eval_clients']:,} tested"] if "eval_clients" in metrics else []
    about += [f"{held_out:,} held out"] if held_out else []  # their clusters are drawn and not counted
    apart = f" ({', '.join(about)})" if about else ""
    clients, found = (
        style.count_phrase(*one) for one in ((result.data.num_clients, "client"), (metrics["num_clusters"], "cluster"))
    )
    words = f"{run_name(result)}: {clients}{apart}, {found} found"
    if metrics.get("ari") is None:
        return words
    groups = len(np.unique(np.asarray(result.data.group)))
    return f"{words}, {style.count_phrase(groups, 'true group')}, ARI {metrics['ari']:.3f}"


def _none_as_nan(values: Sequence[Any]) -> np.ndarray:
    """Returns an array of numbers, with NaN for None."""
    return np.array([math.nan if value is None else value for value in values], float)
