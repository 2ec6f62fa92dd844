"""Commands of `jaxfl`, with their arguments and help texts.

A command imports what it needs when it is called: `jaxfl --help` does not wait for JAX.
"""

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand, TyperGroup

from jaxfl.cli import completion, experiments, signals, streams
from jaxfl.cli.errors import check_words, refuse_setting, reported_errors, with_home

SEEDS = "S,S,S-S"
METHOD_HELP = "Name of a method ([bold]jaxfl methods[/] lists them), or [bold]FILE.py:FACTORY[/]."
DATA_HELP = "Name of a data set ([bold]jaxfl data[/] lists them), or [bold]FILE.py:FUNCTION[/]."

MethodName = Annotated[
    str, typer.Argument(help=METHOD_HELP, metavar="METHOD", autocompletion=completion.complete_method)
]
DataName = Annotated[
    str, typer.Option("--data", help=DATA_HELP, metavar="NAME", autocompletion=completion.complete_data)
]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", help="Folder with the files of the data, or its parent.", metavar="DIR")
]
RoundCount = Annotated[
    int | None, typer.Option(help="Total number of rounds. Default 100; 20 on the digits.", metavar="R")
]
CohortSize = Annotated[
    str | None,
    typer.Option(
        help="Clients sampled in each round: a share (0.1; 1.0 is all clients) or a count (120). Default 0.1; 0.5 on "
        "the digits.",
        metavar="SHARE|COUNT",
    ),
]
EvalEvery = Annotated[
    int | None, typer.Option(help="Rounds between evaluations. Default a tenth of all rounds.", metavar="R")
]
CheckpointEvery = Annotated[
    int | None,
    typer.Option(
        help="Rounds between checkpoints. Default after every evaluation, at most once a second.", metavar="R"
    ),
]
Loggers = Annotated[
    list[str] | None,
    typer.Option(
        "--log", help="Log evaluations to csv, tensorboard, wandb or mlflow. Can be repeated.", metavar="NAME"
    ),
]
ProcessCount = Annotated[
    str,
    typer.Option(
        "--jobs",
        help="Processes that make runs side by side, each on its share of the cores, or on a GPU. [bold]auto[/] starts "
        "them where the runs that are left are worth it and the memory suffices: at most one for each core, or for "
        "each GPU of CUDA_VISIBLE_DEVICES.",
        envvar="JAXFL_JOBS",
        metavar="N|auto",
    ),
]
Patience = Annotated[
    int | None,
    typer.Option(help="Stop a run after this many evaluations without an improvement.", metavar="PATIENCE"),
]
SetItems = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Option of the method, the data, the model, the optimiser or the run, e.g. [bold]threshold=0.6[/], "
        "[bold]num_clients=100[/], [bold]model=mlp[/], [bold]hidden=200[/], [bold]optimizer=adam[/], "
        "[bold]learning_rate=0.05[/], [bold]finetune=1[/]. Can be repeated. [bold]jaxfl methods METHOD[/] and "
        "[bold]jaxfl data NAME[/] list the options.",
        metavar="KEY=VALUE",
        autocompletion=completion.complete_setting,
    ),
]
Clone = Annotated[
    Path | None,
    typer.Option("--experiments", help="Clone of the repository. Default the one that is installed.", metavar="DIR"),
]
ScoreName = Annotated[
    str | None,
    typer.Option(
        help="Score of publications, such as macro-best or shared-last, see jaxfl.protocols.scores.", metavar="NAME"
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results, warnings and errors only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


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


class CommandGroup(TyperGroup):
    """All commands; an empty word, as of a shell's variable that is not set, is refused, and so is `-`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        """Returns the words of a command line that no argument takes.

        Raises:
            typer.Exit: with 2, where a word is empty or `-`.
        """
        with reported_errors():
            check_words(args)
        return super().parse_args(ctx, with_home(args))


app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Simulate clustered and personalised federated learning: one compiled program trains all clients of a round.",
)


def _print_version(requested: bool) -> None:
    """Prints the version and exits, if requested."""
    if requested:
        from importlib.metadata import version

        print(f"jaxfl {version('jaxfl')}")
        raise typer.Exit


@app.callback()
def with_common_options(
    cache: Annotated[
        bool,
        typer.Option(
            "--cache/--no-cache",
            help="Store compiled programs in the user's cache folder, so that later runs start without compiling.",
        ),
    ] = True,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Applies the options of all commands."""
    with reported_errors():
        from jaxfl.simulation.devices import keep_programs, use_cores

        use_cores()
        if cache:
            keep_programs()


@app.command("run", cls=SettingsCommand)
def run_command(
    method: MethodName,
    data: DataName,
    data_dir: DataDir = None,
    rounds: RoundCount = None,
    cohort: CohortSize = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the data, the initial models, the cohorts and the batches. Default 0.", metavar="S"),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="One run per seed, and their mean: a list such as 0,1,2 or a range such as 0-4 (five seeds). One "
            "number is one seed, not a number of runs. An accelerator trains several seeds at once.",
            metavar=SEEDS,
        ),
    ] = None,
    items: SetItems = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for configuration, history, checkpoints, summary and pictures.", metavar="DIR"),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue from the checkpoint in --out, with the same results bit for bit; start where there is none.",
        ),
    ] = False,
    eval_every: EvalEvery = None,
    checkpoint_every: CheckpointEvery = None,
    log: Loggers = None,
    stop_early: Patience = None,
    time_limit: Annotated[
        str | None,
        typer.Option(
            help="Stop each run after this time and keep its results; the exit status is then 75 with --out.",
            metavar="30m|2h|90s",
        ),
    ] = None,
    html: Annotated[
        bool,
        typer.Option("--html", help="Write the page index.html (results, pictures, clients) into the run's folder."),
    ] = False,
    pictures: Annotated[
        bool,
        typer.Option("--pictures/--no-pictures", help="Draw convergence.png and clusters.png into the run's folder."),
    ] = True,
    quiet: Quiet = False,
    score: ScoreName = None,
    processes: Annotated[
        str | None,
        typer.Option(
            help="Number of processes that compute the run together; start this command once for each. [bold]auto[/] "
            "under SLURM, Open MPI or on a TPU pod; elsewhere give --process and --coordinator too.",
            metavar="N|auto",
        ),
    ] = None,
    process: Annotated[
        int | None, typer.Option(help="Index of this process, from 0. Process 0 writes the files.", metavar="I")
    ] = None,
    coordinator: Annotated[
        str | None, typer.Option(help="Host of process 0 and a free port on it.", metavar="HOST:PORT")
    ] = None,
) -> None:
    """Train a method on a federation.

    Example: [bold]jaxfl run stocfl --data rotated-digits --out runs/first[/]. The clients' digits are rotated by one of
    four angles, and StoCFL finds the four groups.

    Options of [bold]--set[/] add stragglers ([bold]stragglers=0.5[/]: half of the cohort trains for fewer epochs),
    dropouts ([bold]dropouts=0.3[/]), availability ([bold]availability=diurnal[/] or [bold]random[/]), attackers
    ([bold]attack=sign-flip[/], [bold]label-flip[/] or [bold]gaussian[/] with [bold]attackers=0.2[/]; metrics leave them
    out), drift of the data ([bold]drift=swap[/], [bold]rotate[/] or [bold]new-group[/] with [bold]drift_round=50[/];
    [bold]drift=recurrent[/] or [bold]staggered[/] with [bold]drift_rounds=50,80[/]), and clients that arrive or leave
    then ([bold]arrive=0.2[/], [bold]leave=0.1[/]).
    """
    from jaxfl.cli.hosts import joined_processes

    if out is not None:
        streams.results_are_in_files()
    with reported_errors(), joined_processes(processes, process, coordinator):
        from jaxfl.cli.run import run

        status = run(
            method,
            data,
            items or (),
            data_dir=data_dir,
            rounds=rounds,
            cohort=cohort,
            seed=seed,
            seeds=seeds,
            out=out,
            resume=resume,
            eval_every=eval_every,
            checkpoint_every=checkpoint_every,
            log=log or (),
            stop_early=stop_early,
            time_limit=time_limit,
            html=html,
            pictures=pictures,
            quiet=quiet,
            score=score,
        )
        if status:
            raise typer.Exit(status)


@app.command("sweep", cls=SettingsCommand)
def sweep_command(
    methods: Annotated[
        str,
        typer.Argument(
            help="Methods, such as [bold]fedavg,ifca,stocfl[/], or a TOML file.",
            metavar="METHOD,...|FILE",
            autocompletion=completion.complete_method_list,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder, which gets a subfolder for each setting.", metavar="DIR")],
    data: Annotated[
        str | None, typer.Option(help=DATA_HELP, metavar="NAME", autocompletion=completion.complete_data)
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds of every setting, as in [bold]jaxfl run[/]. Default 0.", metavar=SEEDS)
    ] = None,
    items: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Values of an option of [bold]jaxfl run[/], such as [bold]threshold=0.3,0.5,auto[/], for every method "
            "that has it, or [bold]stocfl.threshold=...[/], [bold]fedavg.finetune=1[/] for one method. Can be "
            "repeated; all combinations are run.",
            metavar="KEY=VALUE,...",
        ),
    ] = None,
    rounds: RoundCount = None,
    cohort: CohortSize = None,
    eval_every: EvalEvery = None,
    checkpoint_every: CheckpointEvery = None,
    data_dir: DataDir = None,
    log: Loggers = None,
    stop_early: Patience = None,
    time_limit: Annotated[
        str | None,
        typer.Option(
            help="Stop the sweep after this time and keep what is made; the exit status is then 75, and the same "
            "command continues.",
            metavar="30m|2h|90s",
        ),
    ] = None,
    html: Annotated[
        bool, typer.Option("--html", help="Write index.html with all runs into --out, and one into each run's folder.")
    ] = False,
    pictures: Annotated[
        bool, typer.Option("--pictures", help="Draw convergence.png and clusters.png of each run, as --html does.")
    ] = False,
    jobs: ProcessCount = "auto",
    quiet: Quiet = False,
    score: ScoreName = None,
) -> None:
    """Train several methods with several values of options and several seeds, and compare them.

    Example: [bold]jaxfl sweep fedavg,ifca,stocfl --data rotated-digits --seeds 0-2 --out runs/sweep[/]. The same
    command continues after an interruption and repeats no finished run; with more values or seeds, only the new ones
    are run. [bold]jaxfl compare runs/sweep --latex table.tex[/] then writes the table.
    """
    streams.results_are_in_files()
    with reported_errors():
        from jaxfl.cli.sweep import sweep

        given = {"data": data, "seeds": seeds, "rounds": rounds, "cohort": cohort}
        given |= {"eval_every": eval_every, "checkpoint_every": checkpoint_every}
        given |= {"log": ",".join(log or ()) or None, "stop_early": stop_early, "time_limit": time_limit}
        status = sweep(methods, given, items or (), data_dir, out, quiet, html, pictures, jobs, score)
    if status:
        raise typer.Exit(status)


@app.command("plan", cls=SettingsCommand)
def plan_command(
    method: MethodName,
    data: DataName,
    data_dir: DataDir = None,
    cohort: CohortSize = None,
    seeds: Annotated[
        str | None, typer.Option(help="Plan for several seeds, as in [bold]jaxfl run[/].", metavar=SEEDS)
    ] = None,
    time: Annotated[
        bool, typer.Option("--time", help="Also train three rounds and print the seconds per round.")
    ] = False,
    items: SetItems = None,
) -> None:
    """Print the memory that a run needs, before it is started."""
    with reported_errors():
        from jaxfl.cli.plan import plan

        plan(method, data, items or (), data_dir=data_dir, cohort=cohort, seeds=seeds, time=time)


@app.command("compare")
def compare_command(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of finished runs, or folders that contain some.", metavar="DIR...")
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="Metric that is compared, as in history.jsonl, or a column: [bold]tuned[/], [bold]unseen[/], "
            "[bold]worst[/]. [bold]ROW=NAME[/] is for one row, or for a method in all its rows. Can be repeated. "
            "Default the task's main metric, e.g. micro_accuracy.",
            metavar="NAME",
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            help="Report the rounds and bytes until the metric reaches this value. Default a value that every run "
            "reaches.",
            metavar="VALUE",
        ),
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table in Markdown.", metavar="FILE")] = None,
    latex: Annotated[Path | None, typer.Option(help="Write the table in LaTeX (booktabs).", metavar="FILE")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the numbers as CSV.", metavar="FILE")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Plot the metric by round: mean and standard deviation over seeds.", metavar="FILE"),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write one page with the table, curves and a list of the runs.", metavar="FILE")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of a row, or of a method in all its rows: --label my.py:factory=Ours. Can be repeated.",
            metavar="ROW=TEXT",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="Columns of the table, in order, such as micro,ari. Default all.", metavar="NAME,..."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(help="[bold]data[/]: methods x data sets, with a column for each data set.", metavar="data"),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace files that an earlier comparison has written, edited ones too.")
    ] = False,
    score: ScoreName = None,
) -> None:
    """Compare finished runs: mean and standard deviation over seeds, paired differences, cost.

    Example: [bold]jaxfl compare runs --latex table.tex --plot curves.png[/]. Runs that differ in their seed only are
    one row. Differences are from the row of the first folder, of runs of one seed on the same federation.
    """
    with reported_errors():
        from jaxfl.cli.compare import compare_runs

        files = {"markdown": markdown, "latex": latex, "csv": csv}
        compare_runs(
            folders, metric or (), target, files, plot, html, label or (), columns, by, replace=replace, score=score
        )


@app.command("methods")
def methods_command(
    name: Annotated[
        str | None,
        typer.Argument(
            help=f"{METHOD_HELP} Or FILE.py:NAME of a network, a task or an optimiser.",
            metavar="[METHOD]",
            autocompletion=completion.complete_method,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the methods, or the options of one method, or of a network, a task or an optimiser in a file of yours."""
    with reported_errors():
        from jaxfl.cli.methods import print_methods

        print_methods(name, as_json=as_json)


@app.command("data")
def data_command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a data set, such as rotated-mnist, or of a source, such as mnist; or "
            "[bold]FILE.py:FUNCTION[/].",
            metavar="[NAME]",
            autocompletion=completion.complete_data_or_source,
        ),
    ] = None,
    data_dir: DataDir = None,
    items: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Option of the data set, e.g. [bold]alpha=0.1[/]. Can be repeated. [bold]jaxfl data NAME[/] lists "
            "the options.",
            metavar="KEY=VALUE",
            autocompletion=completion.complete_setting,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the skew's random choices.", metavar="S")] = 0,
    plot: Annotated[
        bool,
        typer.Option(
            "--plot", help="Draw NAME-labels.png (labels by client), NAME-montage.png (examples), NAME-drift.png."
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the pictures of --plot. Default this folder.", metavar="DIR")
    ] = None,
    download: Annotated[
        bool,
        typer.Option("--download", help="First download the files of the source into --data-dir, and verify them."),
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Save the federation in a folder, which [bold]--data saved --data-dir DIR[/] maps into memory; or the "
            "examples of the source, before any skew, in one FILE.npz, which is read faster.",
            metavar="DIR|FILE.npz",
        ),
    ] = None,
    digest: Annotated[
        bool,
        typer.Option(
            "--digest",
            help="Print the digest of the federation, which is equal for equal rows, views and causes of all clients, "
            "and that of the first client's pixels.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the data sets, or describe a federation.

    [bold]jaxfl data[/]: the sources, with size, licence and the files found on this machine, and the skews.

    [bold]jaxfl data mnist[/]: a source, and the data sets that are made from it.

    [bold]jaxfl data rotated-mnist[/]: a data set: options and, if its files are found, clients, rows, classes, groups.

    Example: [bold]jaxfl data dirichlet-digits --set alpha=0.1 --plot[/] draws the labels of every client, and examples.

    Files are searched in --data-dir, else in $JAXFL_DATA, else in ~/.cache/jaxfl. Only --download downloads files.
    """
    with reported_errors():
        from jaxfl.cli.data import DataRequest, show_data
        from jaxfl.cli.tables.console import stderr, stdout

        if out is not None and not plot:
            raise ValueError(f"out is the folder for the pictures of --plot, got {out} without it; add --plot.")
        pictures = (out or Path(".")) if plot else None
        request = DataRequest(name, data_dir, tuple(items or ()), seed, pictures, download, save, as_json, digest)
        if download:
            signals.set_exit_note("; downloaded parts are kept, and the same command continues")
        show_data(request, stdout(), stderr())


@app.command("protocol", cls=SettingsCommand)
def protocol_command(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of a protocol, the path of a record of your own (FILE.toml), or [bold]list[/].",
            metavar="NAME|list",
            autocompletion=completion.complete_protocol,
        ),
    ] = "list",
    method: Annotated[
        str | None,
        typer.Option(
            help="Methods to run, such as [bold]fedavg,ifca[/] or [bold]FILE.py:FACTORY[/]; without it the protocol is "
            "told.",
            metavar="METHOD,...",
            autocompletion=completion.complete_method_list,
        ),
    ] = None,
    items: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Option of a method's own, such as [bold]threshold=0.6[/] or [bold]ifca.num_clusters=8[/]; all others "
            "are fixed. Can be repeated.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    reduced: Annotated[
        bool, typer.Option("--reduced", help="The form for a CPU, which has a name and digest of its own.")
    ] = False,
    digest: Annotated[
        bool, typer.Option("--digest", help="Print the digest of each seed's federation, and train nothing.")
    ] = False,
    data_dir: DataDir = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", "--seed", help="Seeds. Default the protocol's.", metavar=SEEDS)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs. Default runs/NAME.", metavar="DIR")] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(
            help="Stop after this time; the exit status is then 75, and the same command continues.",
            metavar="30m|2h|90s",
        ),
    ] = None,
    jobs: ProcessCount = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """List the protocols of publications, tell one, or run methods by it beside the published numbers.

    Example: [bold]jaxfl protocol cflgp-mnist4 --method ifca --data-dir DIR[/]. Data, split, network, optimiser, rounds,
    seeds and score are the publication's. The same command continues after an interruption.
    """
    if method is not None:
        streams.results_are_in_files()
    with reported_errors():
        from jaxfl.cli.protocol import ProtocolRequest, show_protocol

        chosen = name, method, tuple(items or ()), seeds
        status = show_protocol(
            ProtocolRequest(*chosen, data_dir, out, jobs, time_limit, reduced, digest, as_json=as_json, quiet=quiet)
        )
    if status:
        raise typer.Exit(status)


@app.command("check", cls=SettingsCommand)
def check_command(
    method: MethodName,
    items: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Option of the method for a federation of eight clients, e.g. [bold]num_clusters=2[/]. Default the "
            "registry row's [bold]small[/]. Or [bold]optimizer[/], [bold]server_optimizer[/], [bold]model[/], "
            "[bold]task[/] to check it with, and their options. Can be repeated.",
            metavar="KEY=VALUE",
        ),
    ] = None,
) -> None:
    """Check a method, built in or your own, against the laws that every method must satisfy.

    Example: [bold]jaxfl check my_method.py:factory[/] checks shapes, seeds, chunks, devices, padding, resuming, clients
    without rows and with NaN, and more. All laws are checked, also after one fails; the exit status is then 1.
    """
    with reported_errors():
        from jaxfl.cli.check import check_laws

        complete = check_laws(method, items or ())
    raise typer.Exit(0 if complete else 1)


@app.command("reproduce", cls=SettingsCommand)
def reproduce_command(
    name: Annotated[str, typer.Argument(help="Folder of experiments/, such as [bold]ifca[/].", metavar="NAME")],
    scale: Annotated[str, typer.Option(help="smoke (seconds per row, no files), laptop or paper.")] = "smoke",
    data_dir: DataDir = None,
    only: Annotated[
        str | None,
        typer.Option(
            help="Run only cells whose [bold]table / row / column[/] contains this; * matches anything.",
            metavar="PATTERN",
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="Run only these of a cell's seeds, as in [bold]jaxfl run[/].", metavar=SEEDS),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results. Default the experiment's own.", metavar="DIR")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="Add a row of this method, built in or your own, and run it alone; needs --out."),
    ] = None,
    items: SetItems = None,
    jobs: ProcessCount = "1",
    clone: Clone = None,
) -> None:
    """Compute the missing numbers of a paper's tables, and the report.

    Example: [bold]jaxfl reproduce ifca[/]. Results are appended to results.jsonl. The same command continues after an
    interruption, and does nothing if no number is missing. The exit status is 1 if a run failed.
    """
    streams.results_are_in_files()
    with reported_errors():
        status = experiments.reproduce(
            name,
            scale,
            data_dir=data_dir,
            only=only,
            seeds=seeds,
            out=out,
            method=method,
            items=items or (),
            jobs=jobs,
            clone=clone,
        )
    raise typer.Exit(status)


@app.command("report")
def report_command(
    name: Annotated[str | None, typer.Argument(help="One experiment. Default all.", metavar="[NAME]")] = None,
    scale: Annotated[
        str | None,
        typer.Option(help="smoke, laptop or paper. Default every scale that has results.", show_default=False),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder that reproduce --out has written.", metavar="DIR")] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            help="Also show the row of this [bold]FILE.py:FACTORY[/], whose file is executed. Can be repeated.",
            metavar="METHOD",
        ),
    ] = None,
    clone: Clone = None,
) -> None:
    """Compare the results with the numbers of the papers: tables, pictures and a page. Nothing is trained."""
    streams.results_are_in_files()
    with reported_errors():
        experiments.report(name, scale, out, methods or (), clone)


bench = typer.Typer(
    no_args_is_help=True,
    help="Measure the speed of rounds on this machine: how it scales, or workloads beside other libraries.",
)
app.add_typer(bench, name="bench")


@bench.command("scaling")
def scaling_command(
    over: Annotated[
        list[str] | None,
        typer.Option(
            help="Axis that is increased: cohort, population, width, devices, seeds or all. Can be repeated. Default "
            "cohort.",
            metavar="AXIS",
            show_default=False,
        ),
    ] = None,
    values: Annotated[
        str | None, typer.Option(help="Values of the axis, such as 10,100,1000.", metavar="V,V,...", show_default=False)
    ] = None,
    method: Annotated[str, typer.Option(help=METHOD_HELP, metavar="METHOD")] = "fedavg",
    items: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Option of the method, e.g. [bold]local_epochs=5[/]; the default is one epoch with batches of 10 "
            "rows. Can be repeated.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    hidden: Annotated[int, typer.Option(help="Width of the network 784-H-10.", metavar="H")] = 200,
    rounds: Annotated[
        int, typer.Option(help="Timed rounds at each point, after one round of warm-up.", metavar="R")
    ] = 10,
    out: Annotated[
        Path | None, typer.Option(help="Folder for bench.json, scaling.png and index.html.", metavar="DIR")
    ] = None,
) -> None:
    """Measure how seconds per round and memory grow along an axis.

    Example: [bold]jaxfl bench scaling --over cohort --out bench/[/]. Every point is measured in its own process, so
    that its memory is its own. A point that fails is reported, the others are measured, and the exit status is 1.
    """
    with reported_errors():
        from jaxfl.cli.measure import bench_scaling

        signals.set_exit_note("; no file was written")
        complete = bench_scaling(over or ["cohort"], values, method, items or [], hidden, rounds, out)
    if not complete:
        raise typer.Exit(1)


def workloads_command(
    context: typer.Context,
    more: Annotated[list[str] | None, typer.Argument(help="More workloads.", metavar="[w1 w2 ...]")] = None,
    clients: Annotated[
        str | None,
        typer.Option(help="Clients per round, such as 100,1000. Default the workload's own.", metavar="C,C,..."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Timed rounds, after a warm-up.", metavar="R")] = None,
    chunk: Annotated[int | None, typer.Option(help="Clients that jaxfl trains side by side.", metavar="C")] = None,
    peers: Annotated[
        str | None,
        typer.Option(help="Libraries, such as fedjax,torch, or none. Default those that are found.", metavar="NAMES"),
    ] = None,
    environments: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the peers' environments; [bold]python -m experiments.speed.peers DIR[/] makes them.",
            metavar="DIR",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for bench.json, bench.png and index.html.", metavar="DIR")
    ] = None,
    clone: Clone = None,
) -> None:
    """Measures workloads of `experiments/speed`; the first one is the name of the command."""
    with reported_errors():
        from jaxfl.cli.measure import bench_workloads

        given = {"clients": clients, "rounds": rounds, "chunk": chunk, "peers": peers, "environments": environments}
        complete = bench_workloads([str(context.info_name), *(more or [])], **given, out=out, clone=clone)
    if not complete:
        raise typer.Exit(1)


for _name, _line in experiments.WORKLOADS.items():
    bench.command(_name, help=f"{_line} Measured in turn with the peers that are found.", short_help=_line)(
        workloads_command
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command line and exits.

    Args:
        arguments: its words, without the name of the program; None takes those of the process.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that the terminal cannot show is not an error
            stream.reconfigure(errors="replace")
    app(args=list(sys.argv[1:] if arguments is None else arguments), prog_name="jaxfl")
