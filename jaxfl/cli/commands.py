"""The commands with a module of their own for what they do, which is imported when they do it: JAX takes a second."""

from pathlib import Path
from typing import Annotated

import typer

from jaxfl.cli import completion, experiments, signals
from jaxfl.cli.arguments import Clone, CohortSize, DataDir, DataName, Items, MethodName, Quiet
from jaxfl.cli.errors import errors

TIMED = 3  # rounds that `jaxfl plan --time` trains


def sweep_command(
    what: Annotated[
        str,
        typer.Argument(
            help="Methods, such as [bold]fedavg,ifca,stocfl[/], or a TOML file.",
            metavar="METHOD,...|FILE",
            autocompletion=completion.several,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Directory, which gets a folder for each setting.", metavar="DIR")],
    data: Annotated[
        str | None,
        typer.Option(
            help="A data set; [bold]jaxfl data[/] lists them.", metavar="NAME", autocompletion=completion.data
        ),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="As in jaxfl run; default 0.", metavar="0,1,2")] = None,
    items: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Values of an option, [bold]threshold=0.3,0.5,auto[/], for the methods that have it; "
            "[bold]stocfl.threshold=...[/] for one of them. Repeat it: all combinations are run.",
            metavar="KEY=VALUE,...",
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="As in jaxfl run.", metavar="R")] = None,
    cohort: CohortSize = None,
    eval_every: Annotated[int | None, typer.Option(help="As in jaxfl run.", metavar="R")] = None,
    data_dir: DataDir = None,
    html: Annotated[
        bool,
        typer.Option("--html", help="Write a page of all runs, index.html, into the directory, and one of each."),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run several methods with several values of options and several seeds, and compare them.

    Try [bold]jaxfl sweep fedavg,ifca,stocfl --data rotated-digits --seeds 0-2 --out runs/sweep[/]. The same command
    goes on after an interruption, and makes nothing twice; with more values or seeds it makes those. Then [bold]jaxfl
    compare runs/sweep --latex table.tex[/] writes the table.
    """
    with errors():
        from jaxfl.cli.sweep_command import sweep

        given = {"data": data, "seeds": seeds, "rounds": rounds, "cohort": cohort, "eval_every": eval_every}
        asked = {name: value for name, value in given.items() if value is not None}
        complete = sweep(what, asked, items or (), data_dir, out, quiet, html)
    if not complete:  # it was said which diverged
        raise typer.Exit(1)


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
    html: Annotated[
        Path | None, typer.Option(help="Write one page: table, curves, and the runs one by one.", metavar="FILE")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            help="What a row is called, or a method in all its rows: --label my.py:factory=Ours. Several are possible.",
            metavar="ROW=TEXT",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="Show these columns, in this order, such as micro,ari; default all.", metavar="NAME,..."),
    ] = None,
) -> None:
    """Set finished runs beside each other: mean and deviation over seeds, differences at equal seeds, cost.

    Try [bold]jaxfl compare runs --latex table.tex --plot curves.png[/]. Runs that differ in their seed alone are one
    row; the first directory's is the one that the others are compared with.
    """
    with errors():
        from jaxfl.cli.compare_command import compare_runs

        files = {"markdown": markdown, "latex": latex, "csv": csv}
        compare_runs(folders, metric, target, files, plot, html, label or (), columns)


def check_command(
    method: MethodName,
    items: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="An option of the method on the battery's eight clients, e.g. [bold]num_clusters=2[/]; else the row's "
            "[bold]small[/]. Repeat it.",
            metavar="KEY=VALUE",
        ),
    ] = None,
) -> None:
    """Run the battery of laws that every method keeps, on one of jaxfl or on your own.

    Try [bold]jaxfl check my_method.py:factory[/]: shapes, seeds, chunks, devices, padding, resuming, clients without
    rows and with NaN, and what else a run relies on. After a broken law the others are checked all the same, and the
    exit code is 1.
    """
    with errors():
        from jaxfl.cli.check_command import check

        kept = check(method, items or ())
    raise typer.Exit(0 if kept else 1)


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
    seeds: Annotated[
        str | None,
        typer.Option(help="Only these of a cell's seeds, as in [bold]jaxfl run[/].", metavar="S,S,S-S"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory of the results, if not the experiment's own.", metavar="DIR")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="Make a row of this method alone, one of yours too, beside the paper's; with --out."),
    ] = None,
    items: Items = None,
    clone: Clone = None,
) -> None:
    """Make the numbers of a paper's tables that are still missing, and the report.

    Try [bold]jaxfl reproduce ifca[/]. Results are appended to results.jsonl; the same command goes on after an
    interruption, and does nothing where nothing is missing. The exit code is 1 if a run failed.
    """
    from jaxfl.cli.run_command import seeds_of

    with errors():
        signals.tell("; the same command goes on")
        code = experiments.module("harness.run", clone).reproduce(
            name,
            scale,
            data_dir=data_dir,
            only=only,
            seeds=None if seeds is None else seeds_of(seeds),
            out=out,
            method=method,
            items=items or (),
        )
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


def plan_command(
    method: MethodName,
    data: DataName,
    data_dir: DataDir = None,
    cohort: CohortSize = None,
    seeds: Annotated[
        str | None, typer.Option(help="Of several runs, as in [bold]jaxfl run[/].", metavar="S,S,S-S")
    ] = None,
    time: Annotated[bool, typer.Option("--time", help=f"Train {TIMED} rounds, and say what one takes.")] = False,
    items: Items = None,
) -> None:
    """Say what a run will take in memory, and on demand how long."""
    from jaxfl.cli.run_command import defaults, seeds_of
    from jaxfl.cli.tables.console import saying, stderr
    from jaxfl.jobs import job
    from jaxfl.settings import options
    from jaxfl.simulation.footprint import footprint

    with errors():
        settings = options.route(method, data, items or ())
        rounds, share = defaults(data, None, cohort)
        several = 1 if seeds is None else len(seeds_of(seeds))
        drift = settings.data.get("drift_round") or 0
        job.check(wanted := job.Job(settings, max(rounds, drift + 1), share))
        console = stderr()
        with saying(console, f"loading {data}"):
            federation = options.load(settings, data_dir=data_dir)
        with saying(console, f"compiling {method} for {federation.num_clients} clients"):
            tools = job.Tools.of(wanted, federation)
            taken = footprint(
                tools.method,
                federation,
                cohort=share,
                plan=options.plan(settings),
                devices=settings.run.get("devices"),
                resident=settings.run.get("resident", "auto"),
                seeds=several,
            )
        print(taken)
        if time:
            with saying(console, f"training {TIMED} rounds"):
                short = wanted._replace(rounds=TIMED, eval_every=1)
                made = job.execute(short, federation.at(0), tools=tools).summary  # before the drift, if there is one
            after = f"after {made['compile_seconds']:.1f} s of compilation"
            print(f"{'a round':<10} {made['seconds_per_round']:>12.3g} s     median of {TIMED}, {after}")
