"""`jaxfl bench scaling`, and `jaxfl bench w1` to `w8`."""

from pathlib import Path
from typing import Annotated

import typer

from jaxfl.cli import signals
from jaxfl.cli.arguments import Clone
from jaxfl.cli.errors import errors
from jaxfl.cli.experiments import WORKS

group = typer.Typer(
    no_args_is_help=True,
    help="Measure how fast rounds are on this machine: how they scale, or a workload beside other libraries.",
)


@group.command("scaling")
def scaling_command(
    over: Annotated[
        list[str] | None,
        typer.Option(
            help="What is made larger: cohort, population, width, devices, seeds or all. Repeat it. Default cohort.",
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
        from jaxfl.cli.bench_command import bench_scaling

        signals.tell("; nothing is written")
        complete = bench_scaling(over or ["cohort"], values, method, items or [], hidden, rounds, out)
    if not complete:
        raise typer.Exit(1)


def works_command(
    context: typer.Context,
    more: Annotated[list[str] | None, typer.Argument(help="More workloads.", metavar="[w1 w2 ...]")] = None,
    clients: Annotated[
        str | None, typer.Option(help="Clients of a round, such as 100,1000, if not its own.", metavar="C,C,...")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Timed rounds, after a warm-up.", metavar="R")] = None,
    chunk: Annotated[int | None, typer.Option(help="Clients that jaxfl trains side by side.", metavar="C")] = None,
    peers: Annotated[
        str | None,
        typer.Option(help="Such as fedjax,torch, or none. Default those that are found.", metavar="NAMES"),
    ] = None,
    environments: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the peers' environments; [bold]python -m experiments.speed.peers DIR[/] makes them.",
            metavar="DIR",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory for bench.json, bench.png and index.html.", metavar="DIR")
    ] = None,
    clone: Clone = None,
) -> None:
    """Measures workloads of `experiments/speed`; the first one is the name of the command."""
    with errors():
        from jaxfl.cli.bench_works import bench_works

        given = {"clients": clients, "rounds": rounds, "chunk": chunk, "peers": peers, "environments": environments}
        complete = bench_works([str(context.info_name), *(more or [])], **given, out=out, clone=clone)
    if not complete:
        raise typer.Exit(1)


for _name, _what in WORKS.items():
    group.command(_name, help=f"{_what} In turn with the peers that are found.", short_help=_what)(works_command)
