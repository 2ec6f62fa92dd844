"""What `jaxfl check` does: the battery of laws on one method, a line for each."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import optax

from jaxfl.cli.tables.console import stdout
from jaxfl.schema import REQUIRED, function_options
from jaxfl.settings import methods, options, own
from jaxfl.testing import CHECKS, Verdict, verdicts
from jaxfl.testing.small import linear_task

if TYPE_CHECKING:
    from rich.console import Console

HOLDS, BROKEN, NOT_RUN = "holds", "BROKEN", "not run"
STYLES = {HOLDS: "green", BROKEN: "red", NOT_RUN: "dim"}


def check_laws(name: str, items: Iterable[str]) -> bool:
    """Prints what each law says of a method; returns whether all hold.

    Args:
        name: as for `jaxfl.settings.methods.row`.
        items: `key=value`, options of the method.

    Raises:
        ValueError: there is no such method or option, or the method cannot be made.
    """
    from rich import progress

    row = methods.row(name)
    known = function_options(row.factory)
    read = options.read(options.split(items), list(known.values()), f"method {name}")
    row = row._replace(small={**row.small, **{option.name: value for option, value in read}})
    if missing := [key for key, one in known.items() if one.default is REQUIRED and key not in row.small]:
        raise ValueError(f"{missing[0]} must be given for method {name}; add --set {missing[0]}=...")
    methods.make(name, linear_task(), optax.sgd(0.3), **row.small)  # refuses, before every law would
    console, found = stdout(), []
    bar = progress.Progress(
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}"),
        progress.BarColumn(24),
        progress.TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    laws, told = iter(CHECKS), {}
    with bar:
        task = bar.add_task(next(laws), total=len(CHECKS))
        for verdict in verdicts(row):
            found.append(_outcome_word(verdict))
            _print_verdict(console, found[-1], verdict.law, _explain_verdict(verdict, told))
            bar.update(task, advance=1, description=next(laws, ""))
    broken, silent = found.count(BROKEN), found.count(NOT_RUN)
    told = f"{name} breaks {broken} of {len(found)} laws" if broken else f"{name} keeps all {len(found)} laws"
    console.print(f"\n{told}{f', {silent} of which say nothing here' if silent and not broken else ''}", markup=False)
    return not broken


def _outcome_word(verdict: Verdict) -> str:
    """Returns what came of a check in a word."""
    return BROKEN if verdict.error is not None else NOT_RUN if verdict.reason else HOLDS


def _explain_verdict(verdict: Verdict, told: dict[str, str]) -> str:
    """Returns what a law says, or what is wrong; an error that another law was told of is named by that.

    Args:
        verdict: of the law.
        told: the law by error, to which this one is added.
    """
    if verdict.error is None:
        return verdict.reason or verdict.says
    first = told.setdefault(text := error_line(verdict.error), verdict.law)
    return text if first == verdict.law else f"it raised the {type(verdict.error).__name__} of {first!r}"


def _print_verdict(console: "Console", outcome: str, law: str, why: str) -> None:
    """Prints a line: the outcome, the law, and what it says or what is wrong."""
    from rich.table import Table
    from rich.text import Text

    if not console.is_terminal:
        console.print(f"{outcome:<8} {law:<17} {why}", markup=False, soft_wrap=True)
        return
    line = Table.grid(padding=(0, 1))
    line.add_column(width=8)
    line.add_column(width=17)
    line.add_column()
    line.add_row(Text(outcome, STYLES[outcome]), law, Text(why, STYLES[outcome] if outcome != HOLDS else ""))
    console.print(line)


def error_line(error: Exception) -> str:
    """Returns an error in a line: what is wrong, and where in the user's file, if it is from there.

    >>> error_line(AssertionError("info.loss must be [8],\\nis [7]")), error_line(TypeError("no"))
    ('info.loss must be [8], is [7]', 'it raised TypeError: no')
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    if isinstance(error, AssertionError) and lines[0]:
        return f"{' '.join(lines)}{own.place(error)}"
    first = " ".join(lines[: 2 if lines[0].endswith(":") else 1])  # JAX goes on for a page
    return f"it raised {type(error).__name__}: {first}{own.place(error)}"
