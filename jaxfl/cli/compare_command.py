"""`jaxfl compare`: reads runs, prints them side by side, and writes the table and a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jaxfl.analysis import kept
from jaxfl.analysis.comparison import Comparison, compare
from jaxfl.cli.errors import errors
from jaxfl.cli.tables.console import stderr, stdout
from jaxfl.plots.curves import curves
from jaxfl.simulation.history import write_text

if TYPE_CHECKING:
    from rich.table import Table

WIDE = 200  # columns where no terminal says how many: no cell is cut


def compare_command(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Directories that jaxfl run --out has written, or of several such.", metavar="DIR..."),
    ],
    metric: Annotated[
        str | None,
        typer.Option(
            help="What is compared: an entry of history.jsonl; default micro_accuracy, or the task's main metric.",
            metavar="NAME",
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            help="Count rounds and bytes until the metric is this; default what every run reaches.", metavar="VALUE"
        ),
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table for a README.", metavar="FILE")] = None,
    latex: Annotated[Path | None, typer.Option(help="Write the table for a paper (booktabs).", metavar="FILE")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the numbers.", metavar="FILE")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the metric by round: mean and deviation over seeds.", metavar="FILE")
    ] = None,
) -> None:
    """Set finished runs beside each other: mean and deviation over seeds, differences at equal seeds, cost.

    Try [bold]jaxfl compare runs --latex table.tex --plot curves.png[/]. Runs that differ in their seed alone are one
    row; the first directory's is the one that the others are compared with.
    """
    with errors():
        found = tell(folders, metric, target)
        for path, text in ((markdown, found.to_markdown), (latex, found.to_latex), (csv, found.to_csv)):
            if path is not None:
                write_text(path, text())
        if plot is not None:
            curves(found).savefig(plot, dpi=150)
        if written := [str(path) for path in (markdown, latex, csv, plot) if path is not None]:
            print(f"written: {', '.join(written)}")


def tell(folders: Sequence[Path], metric: str | None = None, target: float | None = None) -> Comparison:
    """Prints the table of the finished runs in some folders, and returns the comparison."""
    settings, unfinished = kept.read(folders)
    found = compare(settings, metric=metric, target=target)
    console = stdout()
    if not console.is_terminal:
        console.width = WIDE
    console.print(table(found))
    if unfinished:
        left_out = ", ".join(map(str, unfinished))
        stderr().print(f"note: left out, since they are not finished: {left_out}.", markup=False, soft_wrap=True)
    return found


def table(found: Comparison) -> "Table":
    """Returns the comparison for a terminal."""
    from rich.table import Table

    header, *rows = found.table()
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for place, title in enumerate(header):
        made.add_column(title, justify="right" if place else "left")
    for row in rows:
        made.add_row(*row)
    return made
