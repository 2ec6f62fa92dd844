"""The list of methods, their options, and the table at the end of a run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxfl import sampling
from jaxfl.cli import options
from jaxfl.methods import METHODS
from jaxfl.simulation.run import Result

if TYPE_CHECKING:
    from rich.table import Table

# title: key of the summary, factor (-1 for the reciprocal), format
COLUMNS = {
    "micro": ("micro_accuracy", 1, "{:.4f}"),
    "macro": ("macro_accuracy", 1, "{:.4f}"),
    "tuned": ("finetuned_micro_accuracy", 1, "{:.4f}"),  # only where there is one
    "worst 10%": ("worst_decile_accuracy", 1, "{:.4f}"),
    "clusters": ("num_clusters", 1, "{:g}"),
    "ARI": ("ari", 1, "{:.3f}"),
    "rounds/s": ("seconds_per_round", -1, "{:.3g}"),
    "compile": ("compile_seconds", 1, "{:.1f} s"),
    "memory": ("peak_bytes", 1e-6, "{:.0f} MB"),
}


def results(runs: Sequence[Result], spread: dict[str, dict[str, float]] | None) -> "Table":
    """Returns a table with a row for each run, and the mean and the deviation of several.

    Args:
        runs: one, or one for each seed.
        spread: of several, from `jaxfl.cli.job.across`.
    """
    from rich.table import Table

    one = runs[0].summary
    columns = {name: how for name, how in COLUMNS.items() if name != "tuned" or how[0] in one}
    clients = f"{one['num_clients']} clients, {one['rounds']} rounds of {one['cohort']}"
    table = Table(
        title=f"{one['method']} on {one['data']}: {clients}", title_justify="left", box=None, padding=(0, 2, 0, 0)
    )
    for name in [*(["seed"] if spread is not None else []), *columns]:
        table.add_column(name, justify="right", no_wrap=True)
    for run in runs:
        cells = [_cell(run.summary[key], *how) for key, *how in columns.values()]
        table.add_row(*([str(run.summary["seed"])] if spread is not None else []), *cells)
    if spread is not None:
        for statistic in ("mean", "std"):
            # no deviation of a rate: it is not the rate of the deviation
            values = [
                spread[key][statistic] if key in spread and (statistic == "mean" or factor > 0) else None
                for key, factor, _ in columns.values()
            ]
            how = [rest for _, *rest in columns.values()]
            table.add_row(statistic, *(_cell(value, *one) for value, one in zip(values, how, strict=True)))
    return table


def _cell(value: float | None, factor: float, form: str) -> str:
    """Returns a number in a table."""
    if value is None:
        return "-"
    return form.format(1 / max(value, 1e-9) if factor < 0 else value * factor)


def method_rows(names: Sequence[str]) -> list[dict[str, Any]]:
    """Returns what is known about methods, ready for JSON; an option that must be given is null."""
    return [
        {
            "name": name,
            "summary": METHODS[name].summary,
            "paper": METHODS[name].paper,
            "options": {
                option: None if default is options.REQUIRED else default
                for option, default in METHODS[name].options.items()
            },
        }
        for name in names
    ]


def methods() -> "Table":
    """Returns the table of all methods."""
    from rich.table import Table

    table = Table("name", "summary", "paper")
    for row in method_rows(list(METHODS)):
        table.add_row(row["name"], row["summary"], row["paper"])
    return table


def method_options(name: str) -> str:
    """Returns a method's options as `--set` takes them, and those of every run.

    >>> print(method_options("fedsgd").splitlines()[1])
      --set weighting=rows
    """
    row = METHODS[name]
    own = dict(row.options)
    averages = "server_optimizer" in own
    own.pop("server_optimizer", None)
    return "\n".join(
        [
            f"{name}: {row.summary} ({row.paper})",
            *items(own),
            *(servers() if averages else []),
            "Every run:",
            f"  --set optimizer={'|'.join(options.OPTIMIZERS)}, and of these:",
            *(f"    {optimizer}: {key_values(own)}" for optimizer, (_, own) in options.OPTIMIZERS.items()),
            "  --set model=NAME, and the model's options; each data set has a model that suits it",
            "  --set chunk=auto, clients trained side by side; none takes the whole cohort",
            f"  --set availability={'|'.join(sampling.PATTERNS)}, who can be sampled, and of diurnal:",
            "    availability_period=24.0",
            "  --set dropouts=0.0, the share of the sampled clients that fail",
            "  --set finetune=none, epochs of every client before a second test, as --finetune",
        ]
    )


def servers() -> list[str]:
    """Returns what the server of a method that averages may take its step with, a line each."""
    return [
        f"  --set server_optimizer=none|{'|'.join(options.SERVERS)}, and of these:",
        *(
            f"    {server}: {key_values({f'server.{key}': default for key, default in own.items()})}"
            for server, (_, own) in options.SERVERS.items()
        ),
    ]


def items(chosen: dict[str, Any]) -> list[str]:
    """Returns options and their defaults, a line each."""
    return [f"  --set {key_values({name: default})}" for name, default in chosen.items()]


def key_values(chosen: dict[str, Any]) -> str:
    """Returns `key=value` in words that a shell leaves alone, where that can be."""
    words = {name: "..." if value is options.REQUIRED else str(value) for name, value in chosen.items()}
    quoted = {name: f"'{value}'" if "(" in value else value.lower() for name, value in words.items()}
    return ", ".join(f"{name}={value}" for name, value in quoted.items())
