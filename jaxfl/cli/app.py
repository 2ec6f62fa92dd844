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
from typer.core import TyperCommand

from jaxfl.cli import completion, experiments, signals
from jaxfl.cli.errors import refuse_setting, reported_errors
from jaxfl.cli.experiments import WORKLOADS

MethodName = Annotated[
    str,
    typer.Argument(
        help="A method; [bold]jaxfl methods[/] lists them.", metavar="METHOD", autocompletion=completion.complete_method
    ),
]
DataName = Annotated[
    str,
    typer.Option(
        "--data",
        help="A data set; [bold]jaxfl data[/] lists them.",
        metavar="NAME",
        autocompletion=completion.complete_data,
    ),
]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", help="Folder of the data's files (or the one above it).", metavar="DIR")
]
CohortSize = Annotated[
    str | None,
    typer.Option(
        help="Clients of a round: a share (0.1; 1.0 is everyone) or a count (120). Default 0.1, on the digits 0.5.",
        metavar="SHARE|COUNT",
    ),
]
Processes = Annotated[
    str | None,
    typer.Option(
        help="Processes that make the run together, each started with this command on its host: [bold]auto[/] under "
        "SLURM, Open MPI or on a TPU pod, elsewhere their number with --process and --coordinator.",
        metavar="N|auto",
    ),
]
Process = Annotated[
    int | None, typer.Option(help="Which of the --processes this is, from 0; 0 writes the files.", metavar="I")
]
Coordinator = Annotated[
    str | None, typer.Option(help="Where process 0 runs, and a free port there.", metavar="HOST:PORT")
]
Items = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="An option of the method, the data, the model or the optimiser, e.g. [bold]threshold=0.6[/], "
        "[bold]num_clients=100[/], [bold]model=mlp[/], [bold]hidden=200[/], [bold]optimizer=adam[/], "
        "[bold]learning_rate=0.05[/]. Repeat it. [bold]jaxfl methods METHOD[/] and [bold]jaxfl data NAME[/] list them.",
        metavar="KEY=VALUE",
        autocompletion=completion.complete_setting,
    ),
]
DataItems = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="An option of the data set, e.g. [bold]alpha=0.1[/]. Repeat it. [bold]jaxfl data NAME[/] lists them.",
        metavar="KEY=VALUE",
        autocompletion=completion.complete_setting,
    ),
]
Clone = Annotated[
    Path | None,
    typer.Option("--experiments", help="A clone of the repository, if this is not run inside one.", metavar="DIR"),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Say nothing on the way: results, warnings and errors alone.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


TIMED = 3  # rounds that `jaxfl plan --time` trains


class SettingsCommand(TyperCommand):
    """A command with `--set`, which refuses an option that is written as a flag, with the words to type instead."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        """Returns the words of a command line that no argument takes.

        Raises:
            typer.Exit: with 2, where an unknown flag is an option of `--set`.
        """
        words = list(args)  # parsing empties it
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # typer's class of an unknown flag is private, its attribute is not
            with reported_errors():
                refuse_setting(getattr(error, "option_name", ""), words)
            raise


def sweep_command(
    what: Annotated[
        str,
        typer.Argument(
            help="Methods, such as [bold]fedavg,ifca,stocfl[/], or a TOML file.",
            metavar="METHOD,...|FILE",
            autocompletion=completion.complete_method_list,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Directory, which gets a folder for each setting.", metavar="DIR")],
    data: Annotated[
        str | None,
        typer.Option(
            help="A data set; [bold]jaxfl data[/] lists them.", metavar="NAME", autocompletion=completion.complete_data
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
    with reported_errors():
        from jaxfl.cli.sweep import sweep

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
    with reported_errors():
        from jaxfl.cli.compare import compare_runs

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
    with reported_errors():
        from jaxfl.cli.check import check_laws

        kept = check_laws(method, items or ())
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
    from jaxfl.cli.run import parse_seeds

    with reported_errors():
        signals.set_exit_note("; the same command goes on")
        code = experiments.import_experiments("harness.run", clone).reproduce(
            name,
            scale,
            data_dir=data_dir,
            only=only,
            seeds=None if seeds is None else parse_seeds(seeds),
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
    with reported_errors():
        print(experiments.import_experiments("harness.report", clone).reports(name, scale, out), end="")


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
    from jaxfl.cli.run import parse_seeds, rounds_and_cohort
    from jaxfl.cli.tables.console import progress_message, stderr
    from jaxfl.jobs import job
    from jaxfl.settings import options
    from jaxfl.simulation.footprint import footprint

    with reported_errors():
        settings = options.route(method, data, items or ())
        rounds, share = rounds_and_cohort(data, None, cohort)
        several = 1 if seeds is None else len(parse_seeds(seeds))
        drift = settings.data.get("drift_round") or 0
        job.check(wanted := job.Job(settings, max(rounds, drift + 1), share))
        console = stderr()
        with progress_message(console, f"loading {data}"):
            federation = options.load(settings, data_dir=data_dir)
        with progress_message(console, f"compiling {method} for {federation.num_clients} clients"):
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
            with progress_message(console, f"training {TIMED} rounds"):
                short = wanted._replace(rounds=TIMED, eval_every=1)
                made = job.execute(short, federation.at(0), tools=tools).summary  # before the drift, if there is one
            after = f"after {made['compile_seconds']:.1f} s of compilation"
            print(f"{'a round':<10} {made['seconds_per_round']:>12.3g} s     median of {TIMED}, {after}")


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
    with reported_errors():
        from jaxfl.cli.measure import bench_scaling

        signals.set_exit_note("; nothing is written")
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
    with reported_errors():
        from jaxfl.cli.measure import bench_works

        given = {"clients": clients, "rounds": rounds, "chunk": chunk, "peers": peers, "environments": environments}
        complete = bench_works([str(context.info_name), *(more or [])], **given, out=out, clone=clone)
    if not complete:
        raise typer.Exit(1)


for _name, _what in WORKLOADS.items():
    group.command(_name, help=f"{_what} In turn with the peers that are found.", short_help=_what)(works_command)


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Simulate clustered and personalised federated learning: all clients of a round in one compiled program.",
)

app.add_typer(group, name="bench")


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
    from jaxfl.simulation.devices import keep_programs, use_cores

    use_cores()
    if cache:
        keep_programs()


@app.command("run", cls=SettingsCommand)
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
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Rounds between checkpoints; default after every evaluation.", metavar="R")
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
    from jaxfl.cli.hosts import joined_processes
    from jaxfl.cli.run import callback_factory, parse_seeds, print_results, rounds_and_cohort, run_jobs
    from jaxfl.jobs import job
    from jaxfl.jobs.job import check_seeds_of as check_seeds
    from jaxfl.random import check_seed_or_seeds
    from jaxfl.settings import options

    with reported_errors(), joined_processes(processes, process, coordinator):
        settings = options.route(method, data, items or ())
        rounds, share = rounds_and_cohort(data, rounds, cohort)
        check_seed_or_seeds(seed, seeds)
        jobs = [job.Job(settings, rounds, share, seed or 0, data_dir, eval_every, checkpoint_every, out, resume)]
        if seeds is not None:
            folders = {one: None if out is None else out / f"seed-{one}" for one in parse_seeds(seeds)}
            jobs = [jobs[0]._replace(seed=one, out=folder) for one, folder in folders.items()]
            check_seeds(jobs)
        else:
            job.check(jobs[0])
        looking = callback_factory(log or (), stop_early, time_limit, jobs)
        several = seeds is not None
        summaries = run_jobs(jobs, several=several, quiet=quiet, watchers=looking, html=html)
        print_results(jobs, summaries, out, several=several, quiet=quiet, html=html)
        if None in summaries:  # it was said which diverged
            raise typer.Exit(1)


app.command("compare")(compare_command)
app.command("sweep", cls=SettingsCommand)(sweep_command)
app.command("check", cls=SettingsCommand)(check_command)


@app.command("methods")
def methods_command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show the options of this one.", metavar="[METHOD]", autocompletion=completion.complete_method
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the methods, or the options of one."""
    from jaxfl.cli import tables
    from jaxfl.cli.tables.console import print_parts, stdout
    from jaxfl.settings import methods

    with reported_errors():
        if name is not None:
            methods.row(name)
        if as_json:
            print(json.dumps(tables.method_rows(list(methods.rows()) if name is None else [name]), indent=2))
        elif name is not None:
            print_parts(stdout(), *tables.method_page(name))
        else:
            stdout().print(tables.methods_table())


@app.command("data")
def data_command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A data set, such as rotated-mnist, or a source, such as mnist.",
            metavar="NAME",
            autocompletion=completion.complete_data_or_source,
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
    from jaxfl.cli.data import DataRequest, show_data
    from jaxfl.cli.tables.console import stderr, stdout

    with reported_errors():
        if out is not None and not plot:
            raise ValueError(f"out is the directory of the pictures of --plot, got {out} without it; add --plot.")
        pictures = (out or Path(".")) if plot else None
        wanted = DataRequest(name, data_dir, tuple(items or ()), seed, pictures, download, save, as_json)
        if download:
            signals.set_exit_note("; what has arrived is kept, the same command goes on")
        show_data(wanted, stdout(), stderr())


app.command("plan", cls=SettingsCommand)(plan_command)
app.command("reproduce", cls=SettingsCommand)(reproduce_command)
app.command("report")(report_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a pipe or a terminal has no letter for is no error
            stream.reconfigure(errors="replace")
    app(args=list(sys.argv[1:] if arguments is None else arguments), prog_name="jaxfl")
