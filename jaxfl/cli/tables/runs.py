"""Tables of methods, of the results of runs, and of measurements."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxfl.bench import Scaling
from jaxfl.bench.axes import LOCAL
from jaxfl.methods import KINDS
from jaxfl.settings import methods as known
from jaxfl.simulation.evaluation.metrics import CAUSE_PREFIX, main_metric

if TYPE_CHECKING:
    from rich.table import Table


SCALING_HEAD = ("a round", "fastest to slowest", "clients/s", "memory", "GFLOP/s", "of product", "compile")


def scaling_title(result: Scaling) -> str:
    """Returns the title of a measurement: axis, method, sizes and machine."""
    work, machine = result.work, result.machine
    parts = {
        "hidden": f"784-{work.get('hidden')}-10",
        "cohort": f"{work.get('cohort', 0):,} clients a round",
        "population": f"{work.get('population', 0):,} clients in all",
    }
    same = [words for name, words in parts.items() if name in work]
    where = f" on {device_phrase(machine)}" if machine else ""
    given = [f"{name}={value}" for name, value in work["options"].items() if (name, value) not in LOCAL.items()]
    method = f"{work['method']} ({', '.join(given)})" if given else work["method"]
    return f"{result.over}: {method}, {', '.join(same)}{where}"


def device_phrase(machine: dict[str, Any]) -> str:
    """Returns the processor of a machine, as a phrase.

    >>> device_phrase({"cores": 2, "platform": "cpu", "device": "cpu"})
    '2 CPU cores'
    """
    cores = f"{machine['cores']} CPU cores"
    return cores if machine["platform"] == "cpu" else f"{machine['device']}, {cores}"


def scaling_rows(result: Scaling) -> list[list[str]]:
    """Returns a row of cells for each point, under the axis and `SCALING_HEAD`."""
    lines = []
    for row in result.points:
        if "error" in row:
            lines.append([f"{row['value']:,}", "failed", *[""] * (len(SCALING_HEAD) - 1)])
            continue
        seconds, share = row["seconds"], row["share_of_product"]["median"]
        lines.append(
            [
                f"{row['value']:,}",
                f"{_milliseconds(seconds['median'])} ms",
                f"{_milliseconds(seconds['min'])} to {_milliseconds(seconds['max'])}",
                f"{row['clients_per_second']:,.0f}",
                f"{row['peak_bytes'] / 1e6:,.0f} MB",
                f"{row['gflops']:,.1f}",
                f"{share:.1%}" if share < 0.1 else f"{share:.0%}",
                f"{row['compile_seconds']:.1f} s",
            ]
        )
    return lines


def scaling_table(result: Scaling) -> "Table":
    """Returns the table of an axis."""
    from rich.table import Table

    table = Table(title=scaling_title(result), title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column(result.over, justify="right", no_wrap=True)
    for name in SCALING_HEAD:
        table.add_column(name, justify="right", no_wrap=True)
    for line in scaling_rows(result):
        table.add_row(*line)
    return table


def _milliseconds(seconds: float) -> str:
    """Returns a time in milliseconds with three digits.

    >>> _milliseconds(0.0012345), _milliseconds(0.0123), _milliseconds(1.234)
    ('1.23', '12.3', '1,234')
    """
    value = 1000 * seconds
    return f"{value:,.{max(0, 2 - (len(str(int(value))) - 1))}f}"


ASSUMED = "poisson-assumed"  # `sampling` of a summary
# title: key of the summary, factor (-1 for the reciprocal), format; OPTIONAL_COLUMNS where a run has a value
RESULT_COLUMNS = {
    # {} is the task's main metric
    "micro": ("micro_{}", 1, "{:.4f}"),
    "macro": ("macro_{}", 1, "{:.4f}"),
    "tuned": ("finetuned_micro_{}", 1, "{:.4f}"),
    "validation": ("validation_micro_{}", 1, "{:.4f}"),
    "attack success": ("attack_success_rate", 1, "{:.4f}"),
    "worst 10%": ("worst_decile_{}", 1, "{:.4f}"),
    "clusters": ("num_clusters", 1, "{:g}"),
    "ARI": ("ari", 1, "{:z.3f}"),
    "silhouette": ("silhouette", 1, "{:z.3f}"),
    "Davies-Bouldin": ("davies_bouldin", 1, "{:.3f}"),
    "Wasserstein": ("wasserstein_silhouette", 1, "{:z.3f}"),
    "diverged": ("diverged", 1, "{:g}"),
    "epsilon": ("epsilon", 1, "{:.2f}"),
    "hours": ("seconds_simulated", 1 / 3600, "{:.3g}"),
    "rounds/s": ("seconds_per_round", -1, "{:.3g}"),
    "compile": ("compile_seconds", 1, "{:.1f} s"),
    "memory": ("peak_bytes", 1e-6, "{:.0f} MB"),
}
COHESION_COLUMNS = ("silhouette", "Davies-Bouldin", "Wasserstein")  # of data without true groups
OPTIONAL_COLUMNS = ("tuned", "validation", "attack success", *COHESION_COLUMNS, "diverged", "epsilon", "hours")


def results_table(
    runs: Sequence[dict[str, Any]], spread: dict[str, dict[str, float | None]] | None
) -> tuple[str, list[str], list[list[str]], str]:
    """Returns title, head, rows and caption of a table with a row for each run, and mean and deviation of several.

    Args:
        runs: the summary of one, or of one for each seed.
        spread: of several, from `jaxfl.jobs.job.summarise_seeds`; then the first column is the seed.
    """
    one, columns = runs[0], _shown_columns(runs)
    main = main_metric(one)
    tested = f" ({one['eval_clients']} tested)" if one["eval_clients"] < one["num_clients"] else ""
    clients = f"{one['num_clients']} clients{tested}, {one['rounds']} rounds of {one['cohort']}"
    measured = "" if main == "accuracy" else f", {main}"
    title = f"{one['method']} on {one['data']}: {clients}{measured}"
    rows = [[_number_cell(run.get(key), *how) for key, *how in columns.values()] for run in runs]
    if spread is None:
        return title, list(columns), rows, ""
    rows = [[str(run["seed"]), *row] for run, row in zip(runs, rows, strict=True)]
    for statistic in ("mean", "std") if len(runs) > 1 else ():
        # no deviation of a rate: it is not the rate of the deviation
        values = [
            spread[key][statistic] if key in spread and (statistic == "mean" or factor > 0) else None
            for key, factor, _ in columns.values()
        ]
        how = [rest for _, *rest in columns.values()]
        rows.append([statistic, *(_number_cell(value, *one) for value, one in zip(values, how, strict=True))])
    most = max(run["seeds_together"] for run in runs)
    several = f"{most} seeds at a time, in one program" if most > 1 else "seeds one after another"
    return title, ["seed", *columns], rows, several if len(runs) > 1 else "one seed, no deviation"


def privacy_lines(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Returns a line for the privacy of runs with noise: what epsilon is of, and what it does not cover.

    >>> told = {"noise": 1.0, "clip": 0.5, "epsilon": 2.0, "delta": 0.001, "relation": "add-remove"}
    >>> privacy_lines([told | {"sampling": "poisson(0.1, capacity=24)", "accountant": "PLD"}])[0][:64]
    'epsilon 2.00 at delta 0.001 (adding or removing a client; PLD), '
    >>> privacy_lines([{}]), privacy_lines([told | {"epsilon": None, "sampling": "mine"}])
    ([], ['noise 1 and clip 0.5, without an epsilon: no accountant covers the sampling, mine.'])
    """
    one = runs[0]
    if one.get("noise") is None:
        return []
    if one["epsilon"] is None:
        reason = "there is no noise" if one["noise"] == 0 else f"no accountant covers the sampling, {one['sampling']}"
        return [f"noise {one['noise']:g} and clip {one['clip']:g}, without an epsilon: {reason}."]
    cohorts = f"of cohorts by {one['sampling']}"
    if one["sampling"] == ASSUMED:
        cohorts = f"{ASSUMED}: cohorts have a fixed size and are accounted as if drawn by Poisson sampling"
    relation = "adding or removing a client" if one["relation"] == "add-remove" else one["relation"]
    return [
        f"epsilon {one['epsilon']:.2f} at delta {one['delta']:.3g} ({relation}; {one['accountant']}), {cohorts}, with "
        f"noise {one['noise']:.4g} and clip {one['clip']:g}. It covers the models after each round; evaluations, "
        "tuning and further seeds are not counted."
    ]


def shortfall_lines(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Returns a line for what the method could not do, with the seeds of several runs; no line if all was done.

    >>> shortfall_lines([{"seed": 0, "shortfall": ""}]), shortfall_lines([{"seed": 0, "shortfall": "No split."}])
    ([], ['not done: No split.'])
    >>> shortfall_lines([{"seed": seed, "shortfall": "No split." if seed else ""} for seed in range(3)])
    ['not done at seeds 1, 2: No split.']
    """
    seeds: dict[str, list[str]] = {}
    for run in runs:
        seeds.setdefault(run.get("shortfall") or "", []).append(str(run["seed"]))  # a run of an older version has none
    if len(seeds) == 1:
        return [f"not done: {sentences}" for sentences in seeds if sentences]
    return [f"not done at seeds {', '.join(numbers)}: {text}" for text, numbers in seeds.items() if text]


def result_row(run: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Returns names and values of the columns of `results_table` for one run."""
    columns = _shown_columns([run])
    return list(columns), [_number_cell(run[key], *how) for key, *how in columns.values()]


def _shown_columns(runs: Sequence[dict[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """Returns key, factor and format of the columns that are shown for these runs."""
    columns = {name: (key.format(main_metric(runs[0])), *how) for name, (key, *how) in RESULT_COLUMNS.items()}
    nothing = {name: (None, 0) if name == "diverged" else (None,) for name in OPTIONAL_COLUMNS}  # without a column
    shown: dict[str, tuple[Any, ...]] = {}
    for name, how in columns.items():
        if name not in nothing or any(run.get(how[0]) not in nothing[name] for run in runs):
            shown[name] = how
        if name == "ARI":
            by_cause = sorted({key for run in runs for key in run if key.startswith(CAUSE_PREFIX)})
            shown |= {f"ARI {key.removeprefix(CAUSE_PREFIX)}": (key, *how[1:]) for key in by_cause}
    return shown


def _number_cell(value: float | None, factor: float, form: str) -> str:
    """Returns a number as the text of a cell; the reciprocal for a negative factor."""
    if value is None:
        return "-"
    return form.format(1 / max(value, 1e-9) if factor < 0 else value * factor)


def methods_table() -> "Table":
    """Returns the table of all methods."""
    from rich.table import Table
    from rich.text import Text

    table, rows = Table("name", "summary", "server sees", "paper"), known.rows()
    ours = {name for of_kind in KINDS.values() for name in of_kind}
    others = {name: row for name, row in rows.items() if name not in ours}
    for kind, of_kind in {**KINDS, "others": others}.items():
        for place, (name, row) in enumerate(of_kind.items()):
            if not place:
                table.add_row(Text(kind, "bold"))
            table.add_row(name, row.summary, row.server_sees, row.paper, end_section=place == len(of_kind) - 1)
    return table
