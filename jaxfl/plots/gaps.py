"""Plots of gaps: by layer, over rounds or rows, and the rounds in which they are above 0.

A gap above 0 separates the true groups (`jaxfl.clustering.gaps`).
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxfl.plots import style
from jaxfl.schema import check_word

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GapValues = Sequence[float | None] | np.ndarray
GapPanels = Mapping[str, GapValues] | Mapping[str, Mapping[str, GapValues]]

# Pattern of the last part of a layer's name, and colour.
LAYER_KINDS = {
    "convolutions": (r"Conv", style.BASE[0]),
    "dense layers": (r"Dense|FC|Linear", style.BASE[5]),
    "all layers": (r"all$", "#444444"),
    "other layers": (r"", "#8C8C8C"),
}
MAX_MARKED_POINTS = 25  # points of a line with markers, at most


def layer_gaps(
    gaps: GapValues | Mapping[str, GapValues],
    layers: Sequence[str],
    *,
    recommended: str | Mapping[str, str] | None = None,
    title: str = "",
) -> "Figure":
    """Draws the gap of every layer as a bar, as figures 5 and 8 of LayerCFL (2023).

    Convolutions and dense layers, recognised by their names (`Conv...`, `Dense...`), have their own colours. Negative
    gaps, which the paper draws as 0, are pale and hatched; a cross stands for None and NaN.

    Args:
        gaps: `[L]`; or several by the name of the distance, with a panel for each, since their units differ.
        layers: names `[L]`, in order.
        recommended: the layer to mark; or one by the name of the distance.
        title: of the figure.

    Raises:
        ValueError: a panel does not have a gap for each layer, or the recommended layer is unknown.
    """
    panels = {name: finite_or_nan(one) for name, one in (gaps if isinstance(gaps, Mapping) else {"": gaps}).items()}
    layers = list(layers)
    if not panels or not layers:
        raise ValueError(f"gaps must be of at least one distance and layer, got {len(panels)} and {len(layers)}.")
    for name, values in panels.items():
        if len(values) != len(layers):
            raise ValueError(f"gaps must be one for each of the {len(layers)} layers, got {len(values)} for {name!r}.")
    marked = dict(recommended) if isinstance(recommended, Mapping) else dict.fromkeys(panels, recommended)
    for name, layer in marked.items():
        check_word("recommended", name, panels)
        if layer is not None:
            check_word("recommended", layer, layers)

    shown = [style.plain(layer, 60) for layer in layers]
    longest = max(map(len, shown))
    wide = float(np.clip(0.42 * len(layers), 3.4, 9.0))
    slanted = 0.075 * longest > wide / len(layers) - 0.05
    figure = style.figure(
        (wide + 2.2, 2.1 * len(panels) + 0.35 + ((0.07 if len(layers) > 8 else 0.05) * longest if slanted else 0))
    )
    places = np.arange(len(layers))
    kinds = [_layer_kind(layer) for layer in layers]
    rows = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (name, values) in zip(rows, panels.items(), strict=True):
        for place, value, kind in zip(places.tolist(), values.tolist(), kinds, strict=True):
            color = LAYER_KINDS[kind][1]
            if math.isnan(value):
                axes.plot(place, 0, "x", color=color, ms=6, mew=1.4, clip_on=False, zorder=3)
            elif value < 0:
                axes.bar(place, value, 0.7, color=style.mix(color, 1.0, 0.75), edgecolor=color, hatch="////", lw=0.6)
            else:
                axes.bar(place, value, 0.7, color=color, edgecolor=color, lw=0.6)
        style.light_grid(axes)
        axes.grid(visible=False, axis="x")
        axes.axhline(0, color="#444444", lw=1)
        axes.margins(x=0.02, y=0.16)
        axes.set_ylabel("Gap")
        axes.set_title(style.plain(name, lines=True), fontsize=10, loc="left")
        if (layer := marked.get(name)) is not None:
            _mark_recommended(axes, layers.index(layer), values)
    rows[-1].set_xticks(places, shown, fontsize=8)
    if slanted:
        rows[-1].tick_params(axis="x", rotation=90 if len(layers) > 8 else 30)
    figure.suptitle(style.plain(title, lines=True), fontsize=10, x=0.01, ha="left")
    _draw_side_legend(figure, _layer_entries(kinds, panels, marked))
    return figure


def gap_curves(
    x: Sequence[float] | np.ndarray,
    curves: GapPanels,
    xlabel: str = "round",
    *,
    ylabel: str = "Gap",
    colors: Mapping[str, str] | None = None,
    title: str = "",
) -> "Figure":
    """Draws gaps over rounds, or over rows per client, a line each, as figures 7 and 10 of LayerCFL (2023).

    A line that coincides with an earlier one is dashed, so that both are visible.

    Args:
        x: `[T]`.
        curves: `[T]` by label; None and NaN leave a hole. Or several of such by the title of their panel, side by side:
            data sets, or distances in different units.
        xlabel: label of the x axis.
        ylabel: label of the y axis.
        colors: by label; None takes those of the palette in turn. A label has one colour in all panels.
        title: of the figure.

    Raises:
        ValueError: there is no curve, or one does not have a value for each x.
    """
    panels, labels = _panels(curves, len(x))
    color_of = dict(zip(labels, style.line_colors(len(labels)), strict=True)) | dict(colors or {})
    names = {label: style.plain(label) for label in labels}
    high = max(3.2, 0.7 + 0.18 * len(labels))  # inches: a line of the legend for each
    figure = style.figure((3.7 * len(panels) + 1.5 + style.legend_width(names.values()), high))
    for axes, (name, lines) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        style.light_grid(axes)
        axes.axhline(0, color="#444444", lw=1)
        seen: list[np.ndarray] = []
        for label, values in lines.items():
            again = any(np.allclose(values, one, rtol=1e-3, atol=1e-6, equal_nan=True) for one in seen)
            seen.append(values)
            marked = np.flatnonzero(
                _isolated_points(values) | (not again and len(values) <= MAX_MARKED_POINTS)
            ).tolist()
            line, color = "--" if again else "-", color_of[label]
            axes.plot(
                np.asarray(x),
                values,
                line,
                marker="o",
                markevery=marked,
                ms=3.5,
                lw=1.6,
                color=color,
                label=names[label],
            )
        axes.set_title(style.plain(name, lines=True), fontsize=10, loc="left")
        axes.set_xlabel(style.plain(xlabel, lines=True))
        axes.set_ylabel(style.plain(ylabel, lines=True))
        if len(x) == 1:
            axes.set_xlim(x[0] - 1, x[0] + 1)
        axes.xaxis.get_major_locator().set_params(integer=True)
    from matplotlib.lines import Line2D

    figure.suptitle(style.plain(title, lines=True), fontsize=10, x=0.01, ha="left")
    _draw_side_legend(figure, [Line2D([], [], color=color_of[one], lw=1.8, label=names[one]) for one in labels])
    return figure


def bars(
    x: Sequence[Any] | np.ndarray,
    values: GapPanels,
    ylabel: str,
    *,
    xlabel: str = "rows per client",
    never: str = "never",
    top: float | None = None,
    colors: Mapping[str, str] | None = None,
    title: str = "",
) -> "Figure":
    """Draws groups of bars: the first round with a gap above 0, or the share of such rounds, by rows per client.

    As figures 6 and 11 of LayerCFL (2023).

    Args:
        x: numbers or texts `[T]`, with a group of bars for each.
        values: `[T]` by label, none negative; a cross stands for None and NaN. Or several of such by the title of their
            panel, side by side.
        ylabel: label of the y axis.
        xlabel: label of the x axis.
        never: meaning of a cross.
        top: largest possible value, 1 for shares; None takes the largest value.
        colors: as in `gap_curves`.
        title: of the figure.

    Raises:
        ValueError: there are no bars, or a label does not have a value for each x.
    """
    panels, labels = _panels(values, len(x))
    color_of = dict(zip(labels, style.line_colors(len(labels)), strict=True)) | dict(colors or {})
    names = {label: style.plain(label) for label in labels}
    words = [f"{one:,}" if isinstance(one, int | np.integer) else style.plain(one, style.MAX_NAME) for one in x]
    wide = float(np.clip(0.13 * len(words) * (len(labels) + 1), 3.0, 7.5))
    high = max(3.2, 0.7 + 0.18 * len(labels))
    figure = style.figure(((wide + 0.7) * len(panels) + 1.5 + style.legend_width(names.values()), high))
    missing = False
    rows = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (name, groups) in zip(rows, panels.items(), strict=True):
        style.light_grid(axes)
        axes.grid(visible=False, axis="x")
        width = 0.84 / len(groups)
        for index, (label, heights) in enumerate(groups.items()):
            places = np.arange(len(words)) - 0.42 + (index + 0.5) * width
            there = ~np.isnan(heights)
            color = color_of[label]
            look = {"color": color, "edgecolor": color, "lw": 0.8, "label": names[label]}
            axes.bar(places[there], heights[there], 0.9 * width, **look)
            axes.plot(
                places[~there],
                np.full((~there).sum(), 0.035),
                "x",
                color=color,
                ms=5,
                mew=1.5,
                transform=axes.get_xaxis_transform(),
            )
            missing |= not there.all()
        axes.set_xticks(np.arange(len(words)), words, fontsize=8)
        if 0.075 * max(map(len, words)) > wide / len(words) - 0.05:
            axes.tick_params(axis="x", rotation=90)
        axes.set_xlim(-0.6, len(words) - 0.4)
        axes.set_title(style.plain(name, lines=True), fontsize=10, loc="left")
        axes.set_xlabel(style.plain(xlabel, lines=True))
    rows[0].set_ylabel(style.plain(ylabel, lines=True))
    some = [one for part in panels.values() for one in part.values() if not np.isnan(one).all()]
    rows[0].set_ylim(0, top if some else top or 1)
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: list[Any] = [Patch(facecolor=color_of[label], label=names[label]) for label in labels]
    if missing:
        entries.append(Line2D([], [], ls="", marker="x", ms=5, mew=1.5, color="#444444", label=style.plain(never)))
    figure.suptitle(style.plain(title, lines=True), fontsize=10, x=0.01, ha="left")
    _draw_side_legend(figure, entries)
    return figure


def finite_or_nan(values: GapValues) -> np.ndarray:
    """Returns numbers `[T]`, with NaN for None and for infinity."""
    found = np.array([math.nan if value is None else value for value in values], float)
    return np.where(np.isfinite(found), found, np.nan)


def _panels(values: GapPanels, count: int) -> tuple[dict[str, dict[str, np.ndarray]], list[str]]:
    """Returns numbers by panel and label, and all labels in the order of their first panel."""
    nested: dict[str, Any] = dict(values)
    if not all(isinstance(one, Mapping) for one in nested.values()):
        nested = {"": nested}
    panels = {name: {label: finite_or_nan(one) for label, one in part.items()} for name, part in nested.items()}
    if not panels or not all(panels.values()):
        raise ValueError("values must have at least one label in every panel, got none.")
    for part in panels.values():
        for label, one in part.items():
            if len(one) != count or not count:
                raise ValueError(f"values must be one for each of the {count} x, got {len(one)} for {label!r}.")
    return panels, list(dict.fromkeys(label for part in panels.values() for label in part))


def _isolated_points(values: np.ndarray) -> np.ndarray:
    """Returns the mask of the numbers without a neighbour on either side, which no line shows."""
    there = np.pad(~np.isnan(values), 1)
    return there[1:-1] & ~there[:-2] & ~there[2:]


def _layer_kind(layer: str) -> str:
    """Returns the kind of a layer from its name.

    >>> _layer_kind("Conv_3"), _layer_kind("params/Dense_0"), _layer_kind("all"), _layer_kind("BatchNorm_0")
    ('convolutions', 'dense layers', 'all layers', 'other layers')
    """
    last = layer.rsplit("/", 1)[-1]
    return next(kind for kind, (pattern, _) in LAYER_KINDS.items() if re.match(pattern, last))


def _mark_recommended(axes: "Axes", place: int, values: np.ndarray) -> None:
    """Draws a triangle above a bar."""
    top = max(0.0, np.nan_to_num(values[place]))
    axes.annotate(
        "▼",
        (place, top),
        (0, 3),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=8,
    )


def _layer_entries(
    kinds: Sequence[str], panels: Mapping[str, np.ndarray], marked: Mapping[str, str | None]
) -> list[Any]:
    """Returns the handles of the legend: kinds of layers, negative gaps, missing numbers, recommended layers."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: list[Any] = [Patch(facecolor=LAYER_KINDS[kind][1], label=kind) for kind in LAYER_KINDS if kind in kinds]
    if any((values < 0).any() for values in panels.values()):
        entries.append(Patch(facecolor="#E5E5E5", edgecolor="#666666", hatch="////", lw=0.6, label="below 0"))
    if any(np.isnan(values).any() for values in panels.values()):
        entries.append(Line2D([], [], ls="", marker="x", ms=6, mew=1.4, color="#444444", label="no number"))
    if any(layer is not None for layer in marked.values()):
        entries.append(Line2D([], [], ls="", marker="v", ms=5, color="#000000", label="recommended"))
    return entries


def _draw_side_legend(figure: "Figure", entries: Sequence[Any]) -> None:
    """Draws a legend to the right of the panels."""
    figure.legend(
        handles=list(entries),
        loc="outside right upper",
        handlelength=1.6,
        fontsize=8,
        frameon=False,
    )
