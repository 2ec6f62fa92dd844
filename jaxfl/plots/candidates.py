"""A picture of how the number of clusters was chosen."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from jaxfl.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DISTANCE = "distance from the cluster's centre"


class Chosen(Protocol):
    """What the picture needs of a `jaxfl.Choice`."""

    @property
    def num_clusters(self) -> int:
        """K."""
        ...

    @property
    def criterion(self) -> str:
        """What K was chosen by."""
        ...

    @property
    def metric(self) -> str:
        """The task's main metric."""
        ...

    @property
    def table(self) -> Sequence[dict[str, Any]]:
        """A row for every candidate."""
        ...


def choice(choice: Chosen) -> "Figure":
    """Draws accuracy and distance by the number of clusters; a ring marks the chosen one.

    Without a distance there is one panel. Where the elbow of the distance was chosen, the chord that it is farthest
    below is dotted.

    Args:
        choice: of `jaxfl.choose_num_clusters`.
    """
    rows = choice.table
    numbers = [row["num_clusters"] for row in rows]
    names = [name for name in (choice.metric, "distance") if all(row[name] is not None for row in rows)]
    figure = style.figure((3.6 * len(names) + 0.2, 3.0))
    color, mark = style.BASE[0], style.BASE[5]
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        values = [row[name] for row in rows]
        decided = (name == "distance") == (choice.criterion == "distance")
        if decided and name == "distance":
            axes.plot([numbers[0], numbers[-1]], [values[0], values[-1]], ":", color="#444444", lw=1, label="chord")
        axes.plot(numbers, values, "-o", color=color, ms=4)
        place = numbers.index(choice.num_clusters)
        label = f"chosen: {style.count(choice.num_clusters, 'cluster')}" if decided else None
        axes.plot(
            numbers[place], values[place], "o", ms=11, mfc="none", mec=mark, mew=1.6, ls="", label=label, clip_on=False
        )
        axes.set_title(DISTANCE if name == "distance" else f"{name} on rows set aside", fontsize=10, loc="left")
        axes.set_xlabel("number of clusters")
        style.light_grid(axes)
        axes.margins(0.09, 0.12)
        if len(numbers) == 1:
            axes.set_xlim(numbers[0] - 1, numbers[0] + 1)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if decided:
            axes.legend(fontsize=8, frameon=False)
    return figure
