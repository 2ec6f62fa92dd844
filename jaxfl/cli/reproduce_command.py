"""`jaxfl reproduce` and `jaxfl report`: the tables of papers, made again and set beside what the papers say."""

from pathlib import Path
from typing import Annotated

import typer

from jaxfl.cli import experiments, signals
from jaxfl.cli.arguments import Clone, DataDir
from jaxfl.cli.errors import errors


def reproduce_command(
    name: Annotated[str, typer.Argument(help="A folder of experiments/, such as [bold]ifca[/].", metavar="NAME")],
    scale: Annotated[str, typer.Option(help="smoke (seconds a row, no files), laptop or paper.")] = "smoke",
    data_dir: DataDir = None,
    only: Annotated[
        str | None,
        typer.Option(
            help="Only cells whose [bold]table / row / column[/] holds this; * is anything.", metavar="PATTERN"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory of the results, if not the experiment's own.", metavar="DIR")
    ] = None,
    clone: Clone = None,
) -> None:
    """Make the numbers of a paper's tables that are still missing, and the report.

    Try [bold]jaxfl reproduce ifca[/]. Results are appended to results.jsonl; the same command goes on after an
    interruption, and does nothing where nothing is missing. The exit code is 1 if a run failed.
    """
    with errors():
        signals.tell("; the same command goes on")
        code = experiments.module("harness.run", clone).reproduce(name, scale, data_dir=data_dir, only=only, out=out)
    raise typer.Exit(code)


def report_command(
    name: Annotated[str | None, typer.Argument(help="One experiment; all if not given.", metavar="[NAME]")] = None,
    scale: Annotated[
        str | None, typer.Option(help="smoke, laptop or paper; all with results if not given.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory that reproduce --out wrote to.", metavar="DIR")] = None,
    clone: Clone = None,
) -> None:
    """Set what was made beside what the papers say: tables, pictures and a page; nothing is trained."""
    with errors():
        print(experiments.module("harness.report", clone).reports(name, scale, out), end="")
