"""The command line: `run`, `sweep`, `compare`, `check`, `methods`, `data`, `plan`, `reproduce`, `report`, `bench`.

A command imports what it needs when it is called: `jaxfl --help` does not wait for JAX.
"""

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from jaxfl.cli import bench, completion, signals
from jaxfl.cli.arguments import (
    AsJson,
    CohortSize,
    Coordinator,
    DataDir,
    DataItems,
    DataName,
    Items,
    MethodName,
    Process,
    Processes,
    Quiet,
)
from jaxfl.cli.commands import (
    check_command,
    compare_command,
    plan_command,
    report_command,
    reproduce_command,
    sweep_command,
)
from jaxfl.cli.errors import errors

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Simulate clustered and personalised federated learning: all clients of a round in one compiled program.",
)

app.add_typer(bench.group, name="bench")


def _version(asked: bool) -> None:
    """Prints the version, and ends."""
    if asked:
        from importlib.metadata import version

        print(f"jaxfl {version('jaxfl')}")
        raise typer.Exit


@app.callback()
def with_options(
    cache: Annotated[
        bool,
        typer.Option(
            "--cache/--no-cache",
            help="Keep compiled programs in the user's cache folder, so that the same run starts at once next time.",
        ),
    ] = True,
    version: Annotated[
        bool, typer.Option("--version", help="Say which version this is.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Takes the options of all commands."""
    from jaxfl.simulation.cache import keep_programs
    from jaxfl.simulation.cores import use_cores

    use_cores()
    if cache:
        keep_programs()


@app.command("run")
def run_command(
    method: MethodName,
    data: DataName,
    data_dir: DataDir = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds in all. Default 100, on the digits 20.", metavar="R", show_default=False)
    ] = None,
    cohort: CohortSize = None,
    seed: Annotated[
        int | None, typer.Option(help="Of data, initial models, cohorts and batches; default 0.", metavar="S")
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="Several runs, and their mean: a list of seeds, in which 0-4 are five. One number is one seed and no "
            "number of runs. An accelerator trains all of them at once.",
            metavar="0,1,2",
        ),
    ] = None,
    items: Items = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for config, history, checkpoint, summary and pictures.", metavar="DIR"),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --out, bit for bit.")] = False,
    eval_every: Annotated[
        int | None, typer.Option(help="Rounds between evaluations; default a tenth of all.", metavar="R")
    ] = None,
    finetune: Annotated[
        int | None,
        typer.Option(
            help="Test every client a second time, after this many epochs on its own training rows (the run's "
            "optimiser and batch size): finetuned_micro_accuracy and so on, beside the others.",
            metavar="EPOCHS",
        ),
    ] = None,
    eval_clients: Annotated[
        int | None,
        typer.Option(help="Clients that are tested, a fixed sample; default all of up to 10,000.", metavar="K"),
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Rounds between checkpoints; default after every evaluation.", metavar="R")
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(help="Devices of each process that share a round; default all GPUs, or cores.", metavar="N|all"),
    ] = None,
    chunk: Annotated[
        str | None, typer.Option(help="Clients trained side by side; default auto.", metavar="C|auto|none")
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(help="Log each evaluation: csv, tensorboard, wandb or mlflow. Repeat it.", metavar="NAME"),
    ] = None,
    stop_early: Annotated[
        int | None,
        typer.Option(help="End the run after so many evaluations that are no better.", metavar="PATIENCE"),
    ] = None,
    time_limit: Annotated[
        str | None, typer.Option(help="End each run after this time, and keep what is done.", metavar="30m|2h|90s")
    ] = None,
    html: Annotated[
        bool,
        typer.Option(
            "--html", help="Write index.html into --out, of several seeds one each: results, pictures, clients."
        ),
    ] = False,
    quiet: Quiet = False,
    processes: Processes = None,
    process: Process = None,
    coordinator: Coordinator = None,
) -> None:
    """Run a method on a federation.

    Try [bold]jaxfl run stocfl --data rotated-digits --out runs/first[/]: clients see digits in four rotations, and
    StoCFL finds who sees which.

    Clients may be late ([bold]--set stragglers=0.5[/] of a round's train for fewer epochs), fail ([bold]--set
    dropouts=0.3[/] of them), be away ([bold]--set availability=diurnal[/] or [bold]random[/]) or attack ([bold]--set
    attack=sign-flip --set attackers=0.2[/] of all; or [bold]label-flip[/], [bold]gaussian[/]; they are left out of the
    metrics). Their data may drift ([bold]--set drift=swap --set drift_round=50[/]; or [bold]rotate[/],
    [bold]new-group[/]), and they may come and go ([bold]arrive=0.2[/], [bold]leave=0.1[/]).
    """
    from jaxfl.cli.hosts import together
    from jaxfl.cli.run_command import defaults, run_jobs, seeds_of, tell
    from jaxfl.cli.watch import watchers
    from jaxfl.jobs import job
    from jaxfl.jobs.seeds import check as check_seeds
    from jaxfl.random import check_one_or_several
    from jaxfl.settings import options

    with errors(), together(processes, process, coordinator):
        given = {"finetune": finetune, "devices": devices, "chunk": chunk, "eval_clients": eval_clients}
        flags = [f"{name}={value}" for name, value in given.items() if value is not None]
        settings = options.route(method, data, [*(items or ()), *flags])
        rounds, share = defaults(data, rounds, cohort)
        check_one_or_several(seed, seeds)
        jobs = [job.Job(settings, rounds, share, seed or 0, data_dir, eval_every, checkpoint_every, out, resume)]
        if seeds is not None:
            folders = {one: None if out is None else out / f"seed-{one}" for one in seeds_of(seeds)}
            jobs = [jobs[0]._replace(seed=one, out=folder) for one, folder in folders.items()]
            check_seeds(jobs)
        else:
            job.check(jobs[0])
        looking = watchers(log or (), stop_early, time_limit, jobs)
        several = seeds is not None
        summaries = run_jobs(jobs, several=several, quiet=quiet, watchers=looking, html=html)
        tell(jobs, summaries, out, several=several, quiet=quiet, html=html)
        if None in summaries:  # it was said which diverged
            raise typer.Exit(1)


app.command("compare")(compare_command)
app.command("sweep")(sweep_command)
app.command("check")(check_command)


@app.command("methods")
def methods_command(
    name: Annotated[
        str | None,
        typer.Argument(help="Show the options of this one.", metavar="[METHOD]", autocompletion=completion.methods),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the methods, or the options of one."""
    from jaxfl.cli import tables
    from jaxfl.cli.tables.console import stdout, write
    from jaxfl.settings import methods

    with errors():
        if name is not None:
            methods.row(name)
        if as_json:
            print(json.dumps(tables.method_rows(list(methods.rows()) if name is None else [name]), indent=2))
        elif name is not None:
            write(stdout(), *tables.method_options(name))
        else:
            stdout().print(tables.methods())


@app.command("data")
def data_command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A data set, such as rotated-mnist, or a source, such as mnist.",
            metavar="NAME",
            autocompletion=completion.named,
        ),
    ] = None,
    data_dir: DataDir = None,
    items: DataItems = None,
    seed: Annotated[int, typer.Option(help="Of the choices that the skew makes.", metavar="S")] = 0,
    plot: Annotated[
        bool, typer.Option("--plot", help="Write NAME-labels.png (labels by client) and NAME-montage.png (examples).")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Directory for the pictures; default the current one.", metavar="DIR")
    ] = None,
    download: Annotated[
        bool,
        typer.Option("--download", help="Get the files first, verified, into the folder of the source in --data-dir."),
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Write the federation into a folder, for [bold]--data saved --data-dir DIR[/], which maps its files; "
            "or the source's examples, before any skew, into one FILE.npz: read faster.",
            metavar="DIR|FILE.npz",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what data there are, or what a federation looks like.

    [bold]jaxfl data[/]: the sources, with size, licence and what is found on this machine, and the skews.

    [bold]jaxfl data mnist[/]: a source, and which data sets can be cut from it.

    [bold]jaxfl data rotated-mnist[/]: a data set: options and, if its files are found, clients, rows, classes, groups.

    Try [bold]jaxfl data dirichlet-digits --set alpha=0.1 --plot[/]: it draws who has which labels, and examples.

    Files are looked for in --data-dir, else in $JAXFL_DATA, else in ~/.cache/jaxfl. Only --download gets any.
    """
    from jaxfl.cli.data_command import Wanted, show
    from jaxfl.cli.tables.console import stderr, stdout

    with errors():
        if out is not None and not plot:
            raise ValueError(f"out is the directory of the pictures of --plot, got {out} without it; add --plot.")
        pictures = (out or Path(".")) if plot else None
        wanted = Wanted(name, data_dir, tuple(items or ()), seed, pictures, download, save, as_json)
        if download:
            signals.tell("; what has arrived is kept, the same command goes on")
        show(wanted, stdout(), stderr())


app.command("plan")(plan_command)
app.command("reproduce")(reproduce_command)
app.command("report")(report_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a pipe or a terminal has no letter for is no error
            stream.reconfigure(errors="replace")
    app(args=list(sys.argv[1:] if arguments is None else arguments), prog_name="jaxfl")
