"""`jaxfl bench scaling`, and `jaxfl bench w1` to `w8`."""

from pathlib import Path
from typing import Annotated

import typer

from jaxfl.cli import signals
from jaxfl.cli.bench_command import bench_scaling
from jaxfl.cli.errors import errors

group = typer.Typer(
    no_args_is_help=True,
    help="Measure how fast rounds are on this machine: how they scale, or a workload beside other libraries.",
)


@group.command("scaling")
def scaling_command(
    over: Annotated[
        list[str] | None,
        typer.Option(
            help="What is made larger: cohort, population, width or devices. Repeat it. Default cohort.",
            metavar="AXIS",
            show_default=False,
        ),
    ] = None,
    values: Annotated[
        str | None, typer.Option(help="Of the axis, such as 10,100,1000.", metavar="V,V,...", show_default=False)
    ] = None,
    method: Annotated[
        str, typer.Option(help="A method; [bold]jaxfl methods[/] lists them.", metavar="METHOD")
    ] = "fedavg",
    items: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="An option of the method, e.g. [bold]local_epochs=5[/]; it trains for one epoch in batches of 10 "
            "unless you say otherwise. Repeat it.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    hidden: Annotated[int, typer.Option(help="Width of the network 784-H-10.", metavar="H")] = 200,
    rounds: Annotated[
        int, typer.Option(help="Rounds that are timed at each point, after another one.", metavar="R")
    ] = 10,
    out: Annotated[
        Path | None, typer.Option(help="Directory for bench.json, scaling.png and index.html.", metavar="DIR")
    ] = None,
) -> None:
    """Measure how seconds a round and memory grow along an axis.

    Try [bold]jaxfl bench scaling --over cohort --out bench/[/]. Every point runs in a process of its own, so its memory
    is its own, and one that is too much for the machine is told and takes no other with it. The exit code is then 1.
    """
    with errors():
        signals.tell("; nothing is written")
        complete = bench_scaling(over or ["cohort"], values, method, items or [], hidden, rounds, out)
    if not complete:
        raise typer.Exit(1)
