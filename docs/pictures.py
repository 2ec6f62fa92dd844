"""Draws pictures of pages from results: `python -m docs.pictures` writes `docs/pages/images/*.svg`.

They are narrow and in large letters, so that they can be read on a phone, and on a white ground of their own.
"""

import functools
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch
from matplotlib.ticker import LogLocator, NullLocator
from PIL import Image
from sklearn.datasets import load_sample_image

from docs.generate import clock, speed
from experiments.clock import grid
from jaxfl.data.views.corruptions import KINDS, SCALES, corrupt
from jaxfl.plots import style
from jaxfl.plots.curves import draw_seconds, finish_axes

FOLDER = Path(__file__).parent / "pages" / "images"
INK, GREY, PALE = "#222222", "#777777", "#eeeeee"
CLUSTERS = ("#3f6d9e", "#b85c00", "#3a7d34")
WIDTH = 4.8  # inches
SIDE = 32  # pixels of a corrupted photograph
SHOWN_LEVELS = (1, 3, 5)


def canvas(height: float) -> tuple[Figure, Axes]:
    """Returns an empty figure, measured in tenths of an inch from the lower left corner."""
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 10 * WIDTH), ylim=(0, 10 * height))
    axes.axis("off")
    return figure, axes


def box(axes: Axes, x: float, y: float, wide: float, high: float, text: str = "", color: str = PALE) -> None:
    """Draws a box, and its text in the middle."""
    shape = FancyBboxPatch((x, y), wide, high, boxstyle="round,pad=0,rounding_size=0.5", fc=color, ec=INK, lw=0.8)
    axes.add_patch(shape)
    say(axes, x + wide / 2, y + high / 2, text, color=INK if color in (PALE, "white") else "white")


def say(axes: Axes, x: float, y: float, text: str, *, color: str = INK, size: float = 9, at: str = "center") -> None:
    """Writes a text around a point."""
    axes.text(x, y, text, color=color, fontsize=size, ha=at, va="center", linespacing=1.3)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str = GREY) -> None:
    """Draws an arrow."""
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=9, lw=1, color=color, shrinkA=0, shrinkB=0)
    )


def round_() -> Figure:
    """One round: the cohort is sent models, trains them, and its sums go back by cluster."""
    figure, axes = canvas(3.4)
    box(axes, 2, 26, 44, 6.5)
    say(axes, 4, 29.2, "server", at="left")
    for k, color in enumerate(CLUSTERS):
        box(axes, 15 + 10 * k, 27.2, 8.5, 4, f"model {k}", color)
    members = (0, 2, 1, 0, 2, 1, 2, 1)
    sampled = {0, 2, 3, 6}
    for client, cluster in enumerate(members):
        x, taken = 2 + 5.6 * client, client in sampled
        box(axes, x, 6, 4.4, 4.4, str(client), CLUSTERS[cluster] if taken else "white")
        if taken:
            arrow(axes, (x + 1.5, 25.6), (x + 1.5, 11.2))
            arrow(axes, (x + 3, 11.2), (x + 3, 25.6), CLUSTERS[cluster])
    say(axes, 24, 2.6, "clients; the coloured ones are the cohort of this round", color=GREY)
    say(axes, 29, 18.4, "down: models\nup: sums, by cluster", size=8.5, color=GREY)
    return figure


def plan() -> Figure:
    """The same cohort of eight clients, walked through in chunks of one, of four, and over two devices."""
    figure, axes = canvas(3.3)
    rows = (
        ("chunk = 1", 1, 1, "a CPU"),
        ("chunk = 4", 4, 1, "a GPU"),
        ("chunk = 2,\ntwo devices", 2, 2, "several GPUs"),
    )
    for row, (name, chunk, devices, where) in enumerate(rows):
        y = 24 - 9.5 * row
        say(axes, 1.5, y + 2.6, name, at="left")
        say(axes, 46.5, y + 2.6, where, at="right", color=GREY, size=8.5)
        steps = 8 // (chunk * devices)
        x = 13.0
        for _ in range(steps):
            count = chunk * devices
            for place in range(count):
                bottom = y + 2.6 + 1.3 * (count / 2 - place - 1)
                color = CLUSTERS[place // chunk]
                axes.add_patch(FancyBboxPatch((x, bottom), 2.2, 1, boxstyle="square,pad=0", fc=color, ec="none"))
            x += 3.2
        arrow(axes, (13, y - 1.2), (13 + 3.2 * steps, y - 1.2))
    say(axes, 13, 0.9, "time; each bar is a client that trains", color=GREY, size=8.5, at="left")
    return figure


def state() -> Figure:
    """The state: slots for models, which of them are in use, and the slot of each client."""
    figure, axes = canvas(2.7)
    alive = (True, True, True, False)
    say(axes, 1.5, 23.5, "models [K]", at="left")
    for k, lives in enumerate(alive):
        box(axes, 15 + 8 * k, 21.3, 6.5, 4.4, f"slot {k}", CLUSTERS[k] if lives else "white")
    say(axes, 1.5, 15.6, "in use", at="left")
    for k, lives in enumerate(alive):
        say(axes, 18.2 + 8 * k, 15.6, "yes" if lives else "no")
    say(axes, 1.5, 8.2, "cluster [N]", at="left")
    for client, cluster in enumerate((0, 0, 2, 1, 2, 0, 1, -1)):
        box(axes, 15 + 4 * client, 6, 3.4, 4.4, str(cluster), CLUSTERS[cluster] if cluster >= 0 else "white")
    say(axes, 15, 2.6, "client 0 to 7; -1: no cluster yet", color=GREY, size=8.5, at="left")
    return figure


def seed() -> Figure:
    """A random number is named by its address."""
    figure, axes = canvas(1.7)
    parts = (("seed", "0"), ("stream", "batches"), ("round", "3"), ("client", "7"))
    for place, (name, value) in enumerate(parts):
        x = 1.5 + 8.8 * place
        say(axes, x + 3.8, 14.4, name, color=GREY)
        box(axes, x, 7.4, 7.6, 4.6, value, "white")
    arrow(axes, (36.5, 9.7), (39, 9.7))
    box(axes, 39.5, 7.4, 7, 4.6, "key", CLUSTERS[0])
    say(axes, 24, 3, "not part of it: cohort, chunk, devices, interruptions", color=GREY, size=8.5)
    return figure


def bars() -> Figure:
    """How many times as long the peers take, for every workload of the page on speed."""
    peers = {"fedjax": ("FedJAX", "#3f6d9e"), "pfl": ("pfl", "#b85c00"), "torch": ("PyTorch loop", "#3a7d34")}
    found = {name: {peer: one[peer] for peer in peers if peer in one} for name, one in speed.ratios().items()}
    found = {name: one for name, one in found.items() if one}
    total = sum(len(one) + 0.8 for one in found.values())
    figure = Figure(figsize=(WIDTH, 0.6 + 0.19 * total), facecolor="white", layout="constrained")
    axes, place = figure.subplots(), 0.0
    for name, one in found.items():
        first = place
        for peer, ratio in one.items():
            axes.barh(place, ratio - 1, 0.85, left=1, color=peers[peer][1])
            axes.text(
                max(ratio, 1), place, f" {ratio:.2g}" if ratio < 10 else f" {ratio:.0f}", va="center", fontsize=8.5
            )
            place += 1
        axes.text(-0.02, (first + place - 1) / 2, name, ha="right", va="center", transform=axes.get_yaxis_transform())
        place += 0.8
    axes.axvline(1, color=INK, lw=1)
    axes.set(xscale="log", yticks=[], xlabel="peer's time / jaxfl's; right of the line jaxfl is faster")
    axes.set_xlim(0.7, 1.6 * axes.get_xlim()[1])
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.invert_yaxis()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.legend(
        handles=[Patch(color=color, label=label) for label, color in peers.values()], fontsize=8.5, frameon=False
    )
    return figure


def scaling() -> Figure:
    """Seconds a round along every axis that was measured."""
    results = speed.scalings()
    lines = -(-len(results) // 2)
    figure = Figure(figsize=(WIDTH, 2.3 * lines), facecolor="white", layout="constrained")
    places = list(figure.subplots(lines, 2, squeeze=False).flat)
    for axes, result in zip(places, results.values(), strict=False):
        draw_seconds(axes, result)
        finish_axes(axes, result.over, [row["value"] for row in result.points if "error" not in row])
        axes.set_title(axes.get_title(), fontsize=9)
        axes.tick_params(labelsize=8)
        axes.xaxis.label.set_size(9)
        axes.legend(fontsize=7.5, frameon=False)
    for axes in places[len(results) :]:
        axes.remove()
    return figure


def corruptions() -> Figure:
    """A photograph of 32 x 32 pixels with every corruption in some levels of both scales."""
    photograph = Image.fromarray(load_sample_image("flower.jpg")).crop((130, 0, 557, 427))
    image = np.asarray(photograph.resize((SIDE, SIDE), Image.Resampling.BOX))[None]
    figure = Figure(figsize=(WIDTH, 0.44 * (2 + len(KINDS))), facecolor="white")
    axes = figure.add_axes((0.27, 0, 0.73, 1))
    columns: list[tuple[Any, int]] = [(SCALES[0], 0), *((scale, level) for scale in SCALES for level in SHOWN_LEVELS)]
    step = SIDE + 4
    canvas = np.full((step * len(KINDS), step * len(columns), 3), 255, np.uint8)
    kinds: list[Any] = [*KINDS]
    for row, kind in enumerate(kinds):
        for column, (scale, level) in enumerate(columns):
            corner = step * row, step * column
            canvas[corner[0] : corner[0] + SIDE, corner[1] : corner[1] + SIDE] = corrupt(
                image, kind, level, scale=scale
            )
        axes.text(-6, step * row + SIDE / 2, kind, fontsize=9, ha="right", va="center", color=INK)
    axes.imshow(canvas, interpolation="none")  # a file of these pixels alone
    for column, (_, level) in enumerate(columns):
        axes.text(step * column + SIDE / 2, -6, str(level) if column else "clean", fontsize=9, ha="center", color=INK)
    for number, scale in enumerate(SCALES):
        middle = step * (1 + len(SHOWN_LEVELS) * (number + 0.5)) - 2
        axes.text(middle, -22, f"scale={scale}, level", fontsize=9, ha="center", color=INK)
    axes.set(xlim=(0, canvas.shape[1]), ylim=(canvas.shape[0], -36))
    axes.axis("off")
    return figure


def accuracy_by_time(name: str) -> Figure:
    """Accuracy by simulated seconds, a panel for each method and clock: the mean of the seeds, and all between them.

    Dashes are the mean of the worst group, or of the worst tenth of the clients.
    """
    made = clock.settings(name)
    methods = list(dict.fromkeys(method for method, _ in made))
    figure = Figure(figsize=(7.6, 0.6 + 1.9 * len(methods)), facecolor="white", layout="constrained")
    panels = figure.subplots(len(methods), len(grid.CLOCKS), sharex="col", sharey="row", squeeze=False)
    for row, method in zip(panels, methods, strict=True):
        for axes, devices in zip(row, grid.CLOCKS, strict=True):
            if (method, devices) not in made:
                axes.set_axis_off()
                continue
            for color, (policy, label) in zip(style.line_colors(3), clock.POLICIES.items(), strict=True):
                lines = clock.records(name, method, policy, devices)
                curves = np.array([[point[1:] for point in line["curve"]] for line in lines])  # [seeds, E, 3]
                times, values = curves[..., 0].mean(0), 100 * curves[..., 1]
                axes.plot(times, values.mean(0), color=color, lw=1.5, label=label)
                axes.fill_between(times, values.min(0), values.max(0), color=color, alpha=0.2, lw=0)
                axes.plot(times, 100 * curves[..., 2].mean(0), "--", color=color, lw=0.9)
            axes.set_title(f"{clock.NAMES[method]}, {devices}", fontsize=9, loc="left")
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_locator(NullLocator())
            axes.tick_params(labelsize=8)
            style.light_grid(axes)
        row[0].set_ylabel("accuracy, %", fontsize=9)
    for axes in panels[-1]:
        axes.set_xlabel("simulated seconds", fontsize=9)
    figure.legend(
        *panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=9, frameon=False
    )
    return figure


def slow_group() -> Figure:
    """What each policy does to the slow group of rotated MNIST: its share of the updates, and its accuracy."""
    figure = Figure(figsize=(7.6, 3.1), facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
    place, colors = clock.TIERS.index("slow"), style.line_colors(3)
    for number, (color, (policy, label)) in enumerate(zip(colors, clock.POLICIES.items(), strict=True)):
        found = {
            method: clock.records("rotated", method, policy, "tiers") for method in clock.methods("rotated", "tiers")
        }
        shares = [line["groups"]["updates"] for lines in found.values() for line in lines]
        at = np.arange(len(clock.TIERS)) + 0.27 * (number - 1)
        left.bar(at, 100 * np.mean(shares, 0), 0.25, color=color, label=label)
        for x, lines in enumerate(found.values()):
            accuracy = 100 * np.array([line["groups"]["accuracy"] for line in lines])  # [seeds, groups]
            where = x + 0.27 * (number - 1)
            right.bar(where, accuracy[:, place].mean(), 0.25, color=color)
            right.plot([where - 0.12, where + 0.12], 2 * [np.delete(accuracy, place, 1).mean()], color=INK, lw=1.5)
    left.axhline(25, color=GREY, lw=1, ls=":")
    left.set_xticks(range(4), [f"{90 * turn}°\n{tier}" for turn, tier in enumerate(clock.TIERS)], fontsize=8)
    left.set_title("share of the updates by group, %", fontsize=9, loc="left")
    names = [clock.NAMES[method].replace(", ", "\n") for method in clock.methods("rotated", "tiers")]
    right.set_xticks(range(len(names)), names, fontsize=8)
    right.set_title("accuracy of the slow group, %; line: other groups", fontsize=9, loc="left")
    for axes in (left, right):
        axes.tick_params(labelsize=8)
        style.light_grid(axes)
        axes.grid(axis="x", visible=False)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=9, frameon=False)
    return figure


PICTURES = {
    **{"round": round_, "plan": plan, "state": state, "seed": seed, "speed": bars, "scaling": scaling},
    "corruptions": corruptions,
    **{f"time-{on.name}": functools.partial(accuracy_by_time, on.name) for on in grid.FEDERATIONS},
    "time-slow-group": slow_group,
}

if __name__ == "__main__":
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "jaxfl", "font.family": "sans-serif"})
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        draw().savefig(FOLDER / f"{name}.svg", metadata={"Date": None, "Creator": None})
