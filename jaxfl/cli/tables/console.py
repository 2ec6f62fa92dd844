"""Where the command line writes: results to one stream, everything else to the other."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPED = 100  # columns, where no terminal says how many it has


def stdout() -> "Console":
    """Returns the console for results."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPED)


def stderr(*, quiet: bool = False) -> "Console":
    """Returns the console for what is not a result; a quiet one prints nothing."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, quiet=quiet)


def write(console: "Console", *parts: "Table | str") -> None:
    """Prints tables, and text as it is: brackets are no markup, and a long line is left to the terminal."""
    for part in parts:
        if isinstance(part, str):
            console.print(part, markup=False, soft_wrap=True)
        else:
            console.print(part)


@contextlib.contextmanager
def saying(console: "Console", text: str) -> Iterator[None]:
    """Says what goes on: a spinner in a terminal, a line elsewhere."""
    if console.is_terminal:
        with console.status(text):
            yield
    else:
        console.print(text)
        yield


class Transfer(contextlib.AbstractContextManager["Transfer"]):
    """A bar for each file of a download: its name, bytes, speed and the time left.

    An instance is the `progress` of `jaxfl.data.sources.download.download`.
    """

    def __init__(self, console: "Console"):
        from rich import progress

        self.bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(24),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(compact=True),
            console=console,
        )
        self.tasks: dict[str, progress.TaskID] = {}

    def __enter__(self) -> "Transfer":
        """Begins to draw."""
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves the bars as they are."""
        self.bars.stop()

    def __call__(self, file_name: str, done: int, total: int) -> None:
        """Moves the bar of a file; a total of 0 is unknown."""
        if file_name not in self.tasks:
            self.tasks[file_name] = self.bars.add_task(file_name, total=total or None)
        self.bars.update(self.tasks[file_name], completed=done, total=total or None)
