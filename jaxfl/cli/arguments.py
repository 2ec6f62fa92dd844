"""Arguments and options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

from jaxfl.cli import completion

MethodName = Annotated[
    str,
    typer.Argument(
        help="A method; [bold]jaxfl methods[/] lists them.", metavar="METHOD", autocompletion=completion.methods
    ),
]
DataName = Annotated[
    str,
    typer.Option(
        "--data", help="A data set; [bold]jaxfl data[/] lists them.", metavar="NAME", autocompletion=completion.data
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
        autocompletion=completion.settings,
    ),
]
DataItems = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="An option of the data set, e.g. [bold]alpha=0.1[/]. Repeat it. [bold]jaxfl data NAME[/] lists them.",
        metavar="KEY=VALUE",
        autocompletion=completion.settings,
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
