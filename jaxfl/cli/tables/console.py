"""Consoles of the command line: results on standard output, everything else on standard error.

What they print is data: brackets are no markup, and control characters are written as escapes.
"""

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from jaxfl.host.text import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.table import Table

PIPED_WIDTH = 100  # characters of a line, where the output is not a terminal
GAP = 2  # characters between the columns of a table


def stdout() -> "Console":
    """Returns the console for results."""
    console = _console_type()(highlight=False, emoji=False, markup=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    return console


def stderr(*, quiet: bool = False) -> "Console":
    """Returns the console for everything else; a quiet one prints nothing."""
    return _console_type()(stderr=True, highlight=False, emoji=False, markup=False, quiet=quiet)


@functools.cache
def _console_type() -> "type[Console]":
    """Returns a class of consoles whose output has no control characters but those of the console itself."""
    from rich.console import Console

    class DataConsole(Console):
        def render(self, renderable: "RenderableType", options: "ConsoleOptions | None" = None) -> "Iterable[Segment]":
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=printable(segment.text, lines=True))

    return DataConsole


def print_parts(console: "Console", *parts: "Table | str") -> None:
    """Prints tables and texts; long lines are not wrapped."""
    for part in parts:
        if isinstance(part, str):
            console.print(part, soft_wrap=True)
        else:
            console.print(part)


def print_table(console: "Console", head: Sequence[str], rows: Sequence[Sequence[str]], *, named: bool) -> None:
    """Prints a table without cutting cells: columns for which a terminal has no room are printed below the others.

    Where the output is not a terminal, a row is one line.

    Args:
        console: to print on.
        head: names of the columns, wrapped where room is short.
        rows: the cells.
        named: whether the first column names the rows: then each part of the table begins with it.
    """
    from rich.cells import cell_len
    from rich.table import Table

    head, rows = list(map(printable, head)), [list(map(printable, row)) for row in rows]
    cells = [max(cell_len(row[place]) for row in rows) for place in range(len(head))]
    wide = [max(one, cell_len(name)) for one, name in zip(cells, head, strict=True)]
    room, whole = console.width, sum(wide) + GAP * (len(wide) - 1)
    first = [0] if named else []
    parts = [list(range(len(head)))]
    if not console.is_terminal:
        console.width = max(room, whole)
    elif whole > room:
        words = [max(map(cell_len, name.split())) for name in head]
        wide = [max(one, min(word, room // 3)) for one, word in zip(cells, words, strict=True)]
        wide[0] = min(wide[0], room // 2)
        parts = [first]
        for place in range(len(first), len(head)):
            if parts[-1] != first and sum(wide[one] + GAP for one in [*parts[-1], place]) > room + GAP:
                parts.append(first)
            parts[-1] = [*parts[-1], place]
    for part in parts:
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
        for place in part:
            justify = "left" if [place] == first else "right"
            table.add_column(head[place], justify=justify, width=wide[place], overflow="fold")
        for row in rows:
            table.add_row(*(row[place] for place in part))
        console.print(*([] if part is parts[0] else [""]), table, sep="\n")


@contextlib.contextmanager
def progress_message(console: "Console", text: str) -> Iterator[None]:
    """Shows a message while the block runs: with a spinner in a terminal, as a line elsewhere."""
    if console.is_terminal:
        from rich.text import Text

        with console.status(Text(text)):
            yield
    else:
        console.print(text)
        yield


class TransferBars(contextlib.AbstractContextManager["TransferBars"]):
    """Progress bars of a download, one for each file: name, bytes, speed and the time left.

    An instance is the `progress` of `jaxfl.data.sources.download.download`.
    """

    def __init__(self, console: "Console"):
        from rich import progress

        self.bars = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(24),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(compact=True),
            console=console,
        )
        self.tasks: dict[str, progress.TaskID] = {}

    def __enter__(self) -> "TransferBars":
        """Starts the bars."""
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops the bars and leaves them on the screen."""
        self.bars.stop()

    def __call__(self, file_name: str, done: int, total: int) -> None:
        """Updates the bar of a file, in bytes; a total of 0 is unknown."""
        if file_name not in self.tasks:
            self.tasks[file_name] = self.bars.add_task(file_name, total=total or None)
        self.bars.update(self.tasks[file_name], completed=done, total=total or None)
