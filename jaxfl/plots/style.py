"""Colours, labels and figures that all pictures share."""

import functools
import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from jaxfl import files
from jaxfl.clock.totals import SECONDS
from jaxfl.data.clients import FederatedData
from jaxfl.host.text import printable
from jaxfl.schema import checked

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours for every kind of colour vision, then the same, lighter and darker.
BASE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
OTHER_COLOR = "#D9D9D9"  # clusters beyond the palette
MARKERS = ("", "s", "^", "D")  # of lines; circles stand for points without lines
NO_CLUSTER_COLOR = "#FFFFFF"  # clients without a cluster
MAX_NAME = 40  # characters of the name of a class or a group


def palette() -> list[str]:
    """Returns 22 colours: seven hues for every kind of colour vision, black, then lighter and darker hues.

    >>> len(set(palette()))
    22
    """
    return [*BASE, "#000000", *(mix(color, 1.0, 0.55) for color in BASE), *(mix(color, 0.0, 0.45) for color in BASE)]


def line_colors(count: int) -> list[str]:
    """Returns `count_phrase` colours for lines."""
    own = [color for color in palette() if color != "#F0E442"]  # yellow lines are hard to see on white
    return [own[index % len(own)] for index in range(count)]


def line_style(place: int) -> tuple[str, str]:
    """Returns colour and marker of the line at a position; the seven hues repeat with other markers.

    >>> line_style(0), line_style(7), line_style(14)
    (('#0072B2', ''), ('#0072B2', 's'), ('#0072B2', '^'))
    """
    own = line_colors(7)
    return own[place % len(own)], MARKERS[place // len(own) % len(MARKERS)]


def class_colors(count: int) -> list[str]:
    """Returns up to 22 colours for areas side by side: those of the palette, softened, a grey in place of black."""
    return [mix("#6B6B6B" if color == "#000000" else color, 1.0, 0.15) for color in palette()[:count]]


def cluster_order(found: np.ndarray, group: np.ndarray | None) -> list[int]:
    """Returns the clusters (slots) in the order of their colours: by the group of most clients, then by size.

    Args:
        found: slots `[N]`, -1 for no cluster.
        group: true groups `[N]`, or None.

    >>> cluster_order(np.array([7, 7, 3, -1, 5, 5]), np.array([1, 1, 0, 0, 1, 0]))
    [5, 3, 7]
    """
    group = np.zeros(len(found), int) if group is None else np.asarray(group)
    clusters, size = np.unique(found[found >= 0], return_counts=True)
    most = [int(np.bincount(group[found == cluster]).argmax()) for cluster in clusters]
    keys = sorted(zip(most, -size, clusters, strict=True))
    return [int(cluster) for _, _, cluster in keys]


def cluster_colors(order: Sequence[int]) -> dict[int, str]:
    """Returns a colour for every cluster; those beyond the palette share a grey."""
    own = palette()
    return {cluster: own[place] if place < len(own) else OTHER_COLOR for place, cluster in enumerate(order)}


def legend_entries(found: np.ndarray, order: Sequence[int], color_of: Mapping[int, str]) -> list[tuple[str, str]]:
    """Returns labels and colours of the clusters that have clients, those beyond the palette in one entry."""
    shown = list(order[: len(palette())])
    sizes = [(cluster, int((found == cluster).sum()), color_of[cluster]) for cluster in shown]
    entries = [(f"{number} ({clients:,})", color) for number, clients, color in sizes if clients]
    rest = np.intersect1d(order[len(shown) :], found)
    if len(rest):
        entries.append((f"{len(rest)} more ({np.isin(found, rest).sum():,})", OTHER_COLOR))
    if (found < 0).any():
        entries.append((f"none ({(found < 0).sum():,})", NO_CLUSTER_COLOR))
    return entries


def mix(color: str, level: float, share: float) -> str:
    """Returns a colour mixed with white (level 1) or black (0).

    >>> mix("#0072B2", 1.0, 0.5)
    '#80B8D8'
    """
    parts = [int(color[at : at + 2], 16) for at in (1, 3, 5)]
    return "#" + "".join(f"{round((1 - share) * part + share * 255 * level):02X}" for part in parts)


def ink(color: str) -> str:
    """Returns black or white, whichever is more legible on a colour."""
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 130 else "#FFFFFF"


def count_phrase(number: int, noun: str) -> str:
    """Returns a number with its noun, in the plural where needed.

    >>> count_phrase(1, "class"), count_phrase(4800, "client")
    ('1 class', '4,800 clients')
    """
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number:,} {noun if number == 1 else plural}"


def plain(text: str, most: int = 200, *, lines: bool = False) -> str:
    r"""Returns a text as matplotlib draws it letter by letter: without mathematics, and in legends, too.

    Args:
        text: with names of the user in it.
        most: characters; of a longer text the first are drawn.
        lines: whether line ends stay, and the text is a title and no name: legends leave names out that are empty or
            begin with an underscore, unless there is a space before them.

    >>> print(plain("$50K to $60K"), plain("a\x1bb"), plain("abcdef", 4))
    \$50K to \$60K a\x1bb abc…
    """
    text = printable(str(text), lines=lines)
    text = text if len(text) <= most else f"{text[: most - 1]}…"
    text = f"\N{NO-BREAK SPACE}{text}" if not lines and text[:1] in ("", "_") else text
    return text.replace("$", r"\$")


def legend_width(labels: Iterable[str]) -> float:
    """Returns the inches that labels of 8 points take beyond the 2 that figures have for them."""
    return max(0.0, 0.075 * max(map(len, labels), default=0) - 2)


def title_width(text: str) -> float:
    """Returns the width of a title of 10 points, in inches."""
    return 0.08 * len(text)


def group_names(data: FederatedData, groups: np.ndarray) -> list[str]:
    """Returns a name for each true group, to be drawn; `["all"]` where the groups are unknown."""
    if data.group is None:
        return ["all"]
    names = dict(enumerate(data.group_names))
    return [plain(names.get(int(group), f"group {group}"), MAX_NAME) for group in groups]


def class_names(data: FederatedData) -> list[str]:
    """Returns a name for every class, to be drawn; its number where it has none."""
    names = dict(enumerate(data.class_names))
    return [plain(names.get(one, str(one)), MAX_NAME) for one in range(data.num_classes)]


X = Literal["round", "seconds_simulated"]
X_LABELS = {"round": "round", SECONDS: "simulated hours"}  # by the entry of the history on a horizontal axis
HOUR = 3600.0  # seconds


def along(x: str, value: float | None) -> float:
    """Returns the place of a record on a horizontal axis of `X_LABELS`; NaN where it has none.

    >>> along("round", 5), along("seconds_simulated", 1800.0)
    (5.0, 0.5)
    """
    return math.nan if value is None else value / (HOUR if x == SECONDS else 1.0)


def check_x(x: X, histories: Iterable[Iterable[Mapping[str, Any]]]) -> None:
    """Raises ValueError unless all histories have the entry of a horizontal axis."""
    if x not in X_LABELS:
        raise ValueError(f"x must be one of {', '.join(X_LABELS)}, got {x!r}; round is the default.")
    if any(record.get(x) is None for history in histories for record in history):
        raise ValueError(f"x must be round where a run has no clock, got {x!r}; give all runs one (clock=lognormal).")


def mark_drift(axes: "Axes", runs: Iterable[Any]) -> None:
    """Draws a line at the rounds of drift in the summaries of runs."""
    summaries = (getattr(run, "summary", None) or {} for run in runs)
    rounds = {round for summary in summaries for round in drift_rounds_of(summary)}
    for place, round in enumerate(sorted(rounds)):
        axes.axvline(round, color="#444444", lw=1, ls="--", zorder=0, label="drift" if not place else None)


def drift_rounds_of(summary: Mapping[str, Any]) -> list[int]:
    """Returns the rounds of all changes by a drift; of a run of an older version of its only one."""
    first = [summary["drift_round"]] if "drift_round" in summary else []
    return [stage["round"] for stage in summary.get("drift_stages", [])] or first


def light_grid(axes: "Axes") -> None:
    """Adds a light grid behind the lines of axes, and removes the frame."""
    axes.grid(color="#E5E5E5", lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


@checked
def figure(size: tuple[float, float], layout: Literal["constrained"] | None = "constrained") -> "Figure":
    """Returns an empty figure that is not registered with pyplot.

    Args:
        size: width and height in inches.
        layout: of matplotlib.
    """
    return _figure_type()(figsize=size, layout=layout)


def write_picture(figure: "Figure", path: Path, *, dpi: int, command: str) -> None:
    """Writes a figure atomically, see `jaxfl.files.replacing`; its metadata say which command wrote it.

    Args:
        figure: the figure.
        path: of the file, whose ending says what it is: `.png`, `.pdf` or `.svg`.
        dpi: dots per inch.
        command: of jaxfl.
    """
    form = path.suffix[1:].lower()
    metadata = {"Software" if form == "png" else "Creator": files.signature(command)}
    with files.replacing(path) as file:
        figure.savefig(file, format=form, dpi=dpi, metadata=metadata)


def check_backend() -> None:
    """Raises ValueError if `MPLBACKEND` is none of matplotlib's, which cannot be imported then."""
    if not (asked := os.environ.get("MPLBACKEND")):
        return
    try:
        import matplotlib  # noqa: F401 (to have it imported is the purpose)
    except ValueError as error:
        raise ValueError(
            f"MPLBACKEND must be a backend of matplotlib, got {asked!r} ({error}); leave it out."
        ) from None


def import_matplotlib() -> None:
    """Imports what draws and writes figures; the first time on a machine, matplotlib then looks for fonts."""
    check_backend()
    import matplotlib.backends.backend_agg  # noqa: F401 (to have it imported is the purpose)

    _figure_type()


@functools.cache
def _figure_type() -> "type[Figure]":
    """Returns a class of figures that notebooks show without pyplot.

    Their texts are drawn letter by letter, also where a `matplotlibrc`, of the current folder perhaps, sets LaTeX.
    """
    import io

    check_backend()
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.text import Text

    class NotebookFigure(Figure):
        def draw(self, renderer: Any) -> None:
            layout = self.get_layout_engine()
            for text in self.findobj(Text):
                text.set_usetex(False)
            without_latex = matplotlib.rc_context({"text.usetex": False})  # for texts that drawing creates
            with warnings.catch_warnings(), without_latex:  # of a letter that the font lacks a box is drawn
                warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
                if self.canvas.is_saving() and isinstance(layout, ConstrainedLayoutEngine) and self.axes:
                    layout.execute(self)  # matplotlib asks for no more, and draws again without a layout for the file
                else:
                    super().draw(renderer)

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=110)
            return buffer.getvalue()

    return NotebookFigure
