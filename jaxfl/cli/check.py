"""`jaxfl check`: the battery of laws on one method, a line for each law."""

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import optax

from jaxfl.cli.tables.console import stdout
from jaxfl.methods import Method, Row
from jaxfl.schema import function_options
from jaxfl.settings import methods, models, optimizers, options, tasks, user_code
from jaxfl.tasks import Task
from jaxfl.testing import CHECKS, Verdict, verdicts
from jaxfl.testing.small import CLASSES, RATE, federation, linear_task

if TYPE_CHECKING:
    from rich.console import Console

HOLDS, BROKEN, NOT_RUN = "holds", "BROKEN", "not run"
STYLES = {HOLDS: "green", BROKEN: "red", NOT_RUN: "dim"}


def check_laws(name: str, items: Iterable[str]) -> bool:
    """Prints the verdict of every law on a method; returns whether all hold.

    Args:
        name: as for `jaxfl.settings.methods.row`.
        items: `key=value`, options of the method; and `optimizer`, `server_optimizer`, `model` and `task`, with which
            the method is checked, and their options.

    Raises:
        ValueError: a name or an option is unknown, or a factory refuses its arguments.
    """
    from rich import progress

    row = _chosen_row(name, options.split_items(items))
    console, found = stdout(), []
    bar = progress.Progress(
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(24),
        progress.TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    laws, law_by_error = iter(CHECKS), {}
    with bar:
        task = bar.add_task(next(laws), total=len(CHECKS))
        for verdict in verdicts(row):
            found.append(_outcome_word(verdict))
            _print_verdict(console, found[-1], verdict.law, _explain_verdict(verdict, law_by_error))
            bar.update(task, advance=1, description=next(laws, ""))
    broken, silent = found.count(BROKEN), found.count(NOT_RUN)
    end = f"{name} breaks {broken} of {len(found)} laws" if broken else f"{name} keeps all {len(found)} laws"
    skipped = f", {silent} of which do not apply here" if silent and not broken else ""
    console.print(f"\n{end}{skipped}")
    return not broken


def _chosen_row(name: str, wanted: dict[str, str]) -> Row:
    """Returns the registry row of a method, whose factory has the chosen options, optimisers and task.

    Args:
        name: of the method.
        wanted: texts by key.

    Raises:
        ValueError: a name or an option is unknown, or a factory refuses its arguments.
    """
    row = methods.row(name)
    own_task, own_optimizer = {"model", "task"} & wanted.keys(), "optimizer" in wanted
    server = options.choose_server(name, wanted)
    model, task = wanted.pop("model", "logistic"), wanted.pop("task", "auto")
    optimizer = wanted.pop("optimizer", "sgd")
    own = function_options(row.factory)
    own.pop("server_optimizer", None)
    having = {
        "method": own,
        "model": models.options(model) if own_task else {},
        "task": tasks.options(task),
        "optimizer": optimizers.options(optimizer),
        "server": optimizers.server_options(server),
    }
    known = [option._replace(owner=owner) for owner, its in having.items() for option in its.values()]
    named = {"method": name, "model": model, "task": task, "optimizer": optimizer, "server": server}
    where = f"method {name}, optimizer {optimizer}" + (f", model {model}, task {task}" if own_task else "")
    chosen = options.by_owner(wanted, known, where)
    options.check_required(chosen | {"method": row.small | chosen["method"]}, known, named)
    small = row.small | chosen["method"]
    if server is not None:
        small["server_optimizer"] = optimizers.server_optimizer(server, chosen["server"])
    steps = learned = None  # those of the laws
    if own_optimizer or chosen["optimizer"]:
        usual = {} if own_optimizer else {"learning_rate": RATE}
        steps = optimizers.client_optimizer(optimizer, usual | chosen["optimizer"])
    if own_task:
        with models.one_line_errors(model):
            network = models.create(model, CLASSES, **chosen["model"])
            learned = tasks.create(task, network, federation(), chosen["task"])
    methods.make(name, learned or linear_task(), steps or optax.sgd(RATE), **small)  # refused here, not by every law
    return _with_parts(row._replace(small=small), learned, steps)


def _with_parts(row: Row, learned: Task | None, steps: optax.GradientTransformation | None) -> Row:
    """Returns the registry row with a factory that takes this task and optimiser in the place of the given ones."""
    if learned is None and steps is None:
        return row

    @functools.wraps(row.factory)
    def factory(task: Task, optimizer: optax.GradientTransformation, **chosen: Any) -> Method:
        return row.factory(learned or task, steps or optimizer, **chosen)

    return row._replace(factory=factory)


def _outcome_word(verdict: Verdict) -> str:
    """Returns the outcome of a law as a word."""
    return BROKEN if verdict.error is not None else NOT_RUN if verdict.reason else HOLDS


def _explain_verdict(verdict: Verdict, law_by_error: dict[str, str]) -> str:
    """Returns the statement of a law that holds, or its error; a repeated error refers to the first law that had it.

    Args:
        verdict: of the law.
        law_by_error: first law of each error; updated in place.
    """
    if verdict.error is None:
        return verdict.reason or verdict.says
    first = law_by_error.setdefault(text := error_line(verdict.error), verdict.law)
    return text if first == verdict.law else f"it raised the {type(verdict.error).__name__} of {first!r}"


def _print_verdict(console: "Console", outcome: str, law: str, why: str) -> None:
    """Prints a line: the outcome, the law, and its statement or error."""
    from rich.table import Table
    from rich.text import Text

    if not console.is_terminal:
        console.print(f"{outcome:<8} {law:<17} {why}", soft_wrap=True)
        return
    line = Table.grid(padding=(0, 1))
    line.add_column(width=8)
    line.add_column(width=17)
    line.add_column()
    line.add_row(Text(outcome, STYLES[outcome]), law, Text(why, STYLES[outcome] if outcome != HOLDS else ""))
    console.print(line)


def error_line(error: BaseException) -> str:
    """Returns an error on one line, with its place in the user's file if it was raised there.

    >>> error_line(AssertionError("info.loss must be [8],\\nis [7]")), error_line(TypeError("no"))
    ('info.loss must be [8], is [7]', 'it raised TypeError: no')
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    if isinstance(error, AssertionError) and lines[0]:
        return f"{' '.join(lines)}{user_code.error_location(error)}"
    first = " ".join(lines[: 2 if lines[0].endswith(":") else 1])  # JAX goes on for a page
    return f"it raised {type(error).__name__}: {first}{user_code.error_location(error)}"
