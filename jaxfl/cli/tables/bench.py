"""What was measured along an axis, as words for a terminal and for a page."""

from typing import TYPE_CHECKING, Any

from jaxfl.bench import Scaling
from jaxfl.bench.axes import LOCAL

if TYPE_CHECKING:
    from rich.table import Table

SCALING_HEAD = ("a round", "fastest to slowest", "clients/s", "memory", "GFLOP/s", "of product", "compile")


def scaling_title(result: Scaling) -> str:
    """Returns what was measured and on what, on one line."""
    work, machine = result.work, result.machine
    parts = {
        "hidden": f"784-{work.get('hidden')}-10",
        "cohort": f"{work.get('cohort', 0):,} clients a round",
        "population": f"{work.get('population', 0):,} clients in all",
    }
    same = [words for name, words in parts.items() if name in work]
    where = f" on {device(machine)}" if machine else ""
    given = [f"{name}={value}" for name, value in work["options"].items() if (name, value) not in LOCAL.items()]
    method = f"{work['method']} ({', '.join(given)})" if given else work["method"]
    return f"{result.over}: {method}, {', '.join(same)}{where}"


def device(machine: dict[str, Any]) -> str:
    """Returns what a machine computes with.

    >>> device({"cores": 2, "platform": "cpu", "device": "cpu"})
    '2 CPU cores'
    """
    cores = f"{machine['cores']} CPU cores"
    return cores if machine["platform"] == "cpu" else f"{machine['device']}, {cores}"


def scaling_rows(result: Scaling) -> list[list[str]]:
    """Returns a row of words for each point, under the axis and `SCALING_HEAD`."""
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


def scaling(result: Scaling) -> "Table":
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
    """Returns three digits.

    >>> _milliseconds(0.0012345), _milliseconds(0.0123), _milliseconds(1.234)
    ('1.23', '12.3', '1,234')
    """
    value = 1000 * seconds
    return f"{value:,.{max(0, 2 - (len(str(int(value))) - 1))}f}"
