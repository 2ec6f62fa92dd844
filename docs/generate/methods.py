"""A page for each method of the registry, and the page that lists them.

All of it is read from the code: the module's docstring (paper, equations, where the official code differs), the
factory's signature and docstring (options), the registry's row (summary, paper, presets), and a measurement. A new
method has its page as soon as it has its row.
"""

import functools
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfl import models
from jaxfl.cli.tables import choices
from jaxfl.clock.asynchronous import refusal
from jaxfl.clock.work import round_work
from jaxfl.cohort import Cohort
from jaxfl.data import load
from jaxfl.data.clients import FederatedData
from jaxfl.methods import KINDS, Row
from jaxfl.methods.base import Method
from jaxfl.methods.newcomer import PHRASES
from jaxfl.models import MODELS
from jaxfl.schema import REQUIRED, describe
from jaxfl.tasks import classification
from jaxfl.typing import Array, Key

ROOT = Path(__file__).parents[2]
SECTIONS = re.compile(r"^(Args|Returns|Raises|References|Attributes|Examples?):", re.MULTILINE)
CLIENTS = 8  # of the federation that the costs are measured on


class Cost(NamedTuple):
    """What one client sends and receives in a round, and what the state holds, in bytes."""

    model: int
    up: tuple[float, float]  # in its first round, in a later one
    down: tuple[float, float]
    state: float  # whatever the number of clients
    client: float  # more for each client of the federation


MADE = {
    "GradientTransformation": "an optax optimiser",
    "Method": "a method",
    "Task": "a task",
}  # options that are objects


def overview() -> str:
    """Returns the page that lists the methods."""
    tables = "\n\n".join(_table(kind, rows) for kind, rows in KINDS.items())
    return f"""# Methods

Every method is one file in `jaxfl/methods/`, and a page here: the paper and its equations, where the official code
differs, the options and their defaults, an example, and what it costs. These pages are made from the code.
`jaxfl methods` prints the list, `jaxfl methods NAME` the options of one.

{tables}

A method that is not here: [write your own](../howto/own-method.md). GPFL (ICCV 2023) and FedCP (KDD 2023) are left
out: both train modules beside the network, with losses that are known from one code alone, and FedCP draws random
masks when it is tested, so that what a client is served would not be a model. Methods that average into a global
model take any optax optimiser for the server's step, `server_optimizer`; FedAdam and FedYogi as their paper writes
them are in `jaxfl.server`.

Clients that were not trained on: [what each method needs from a newcomer](../howto/newcomers.md).
"""


def _table(kind: str, rows: dict[str, Row]) -> str:
    """Returns the methods of a kind."""
    lines = [f"| [`{name}`]({name}.md) | {row.summary} | {row.paper} |" for name, row in rows.items()]
    return "\n".join([f"## {kind.capitalize()}", "", "| name | what it does | paper |", "|---|---|---|", *lines])


def by_kind() -> str:
    """Returns all methods in a row for each kind, with links to their files."""
    lines = ["| kind | methods |", "|---|---|"]
    for kind, rows in KINDS.items():
        lines.append(f"| {kind} | {', '.join(f'[`{name}`]({source(row)})' for name, row in rows.items())} |")
    return "\n".join(lines)


def exposure() -> str:
    """Returns the table of what the server of each method sees, with the options that change it."""
    lines = ["| method | the server sees | before the first round | in the rounds |", "|---|---|---|---|"]
    for of_kind in KINDS.values():
        for name, row in of_kind.items():
            for seen in vars(row.factory)["seen"]:
                words = "".join(f", `{option}={value}`" for option, value in seen.options.items())
                link = f"[`{name}`](../../../{source(row)})"
                lines.append(f"| {link}{words} | {seen.level} | {escape(seen.before)} | {escape(seen.rounds)} |")
    return "\n".join(lines)


def newcomers() -> str:
    """Returns the table of what each method needs from a newcomer, with the options that change it, and the costs."""
    lines = [
        "| method | a newcomer needs | is served | receives | sends | passes over its rows |",
        "|---|---|---|---|---|---|",
    ]
    for of_kind in KINDS.values():
        for name, row in of_kind.items():
            for one in row.newcomers:
                words = "".join(f", `{option}={value}`" for option, value in one.options.items())
                words += ", where it joins" * one.joins
                cells = (PHRASES[one.needs], escape(one.served), one.down, one.up or "nothing", one.passes or "none")
                lines.append(f"| [`{name}`](../../../{source(row)}){words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def policies() -> str:
    """Returns the table of what each method does with a deadline, without rounds, on a wire and with rows elsewhere."""
    lines = [
        "| method | partial work | FedBuff | FedAsync | wire | noise | rows in host memory | newcomers join |",
        "|---|---|---|---|---|---|---|---|",
    ]
    data = load("rotated-digits", num_clients=CLIENTS, rows_per_client=20).in_programs()
    task = classification(models.MLP(hidden=(8,), num_classes=10), data)
    for of_kind in KINDS.values():
        for name, row in of_kind.items():
            method = row.factory(task, optax.sgd(0.1), **row.small)
            why = refusal(method, data)
            reason = why.partition(": ")[2].partition(";")[0] if why else ""
            flies = ("no: " + reason, "no") if why else ("yes", "no" if refusal(method, data, "fedasync") else "yes")
            noise = not row.no_wire and row.server_sees == "sums"
            cells = [_trainings(method, data) == 1, *flies, not row.no_wire, noise, method.reads == "cohort"]
            cells += [method.join is not None]
            words = " | ".join(cell if isinstance(cell, str) else "yes" if cell else "no" for cell in cells)
            lines.append(f"| [`{name}`](../../../{source(row)}) | {words} |")
    return "\n".join(lines)


def _trainings(method: Method, data: FederatedData) -> float:
    """Returns how many local trainings a client of the cohort makes in a round."""
    found = []

    def work(key: Key, data: FederatedData) -> Array:
        cohort = Cohort.of(jnp.arange(4))
        made = round_work(method, method.round, key, method.init(key, data), data, cohort, traffic=False)
        found.append(made.trainings)
        return made.operations

    jax.eval_shape(work, jax.random.key(0), data)
    return found[0]


def page(name: str, row: Row, cost: Cost) -> str:
    """Returns the page of a method."""
    module = sys.modules[row.factory.__module__]
    said = inspect.getdoc(row.factory) or ""
    about = SECTIONS.split(without_doctests(said))[0].strip().partition("\n")[2]
    parts = [
        f"# `{name}`",
        f"{row.summary[0].upper()}{row.summary[1:]}. *{row.paper}.*",
        "## The method",
        prose(without_doctests(inspect.getdoc(module) or "")),
        "## Options",
        "After the task and the clients' optimiser, by keyword. On the command line: `--set NAME=VALUE`.",
        prose(about.strip()),
        *(options(name, row) or ["It has none."]),
        *presets(row),
        "## Example",
        example(name, row),
        "## What the server sees",
        f"{escape(row.seen({}).sentence)} [What does the server learn?](../howto/server-learns.md) has all methods.",
        "## What a newcomer needs",
        f"{escape(row.newcomers[0].sentence)} [Serve newcomers](../howto/newcomers.md) has all methods.",
        "## What it costs",
        costs(name, row, cost),
        "## Source",
        f"`{source(row)}`. Everything that a method must fulfil: [write your own](../howto/own-method.md).",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def options(name: str, row: Row) -> list[str]:
    """Returns the options as a definition list."""
    found = []
    for option in choices.method_options_by_name(name).values():
        default, by_preset = choices.default_by_preset(option, row.presets)
        shown = "must be given" if default is REQUIRED else f"default `{literal(default)}`"
        if option.default is None and by_preset and "preset" in row.options:
            shown += ", from the preset"
        kind = re.sub(
            r"(a )?\b(GradientTransformation|Method|Task)\b", lambda made: MADE[made[2]], describe(option.hint)
        )
        found.append(f"`{option.name}` ({shown}; {kind})\n:   {_capital(escape(option.line))}")
    return found


def presets(row: Row) -> list[str]:
    """Returns the table of what the presets mean, if there are any to choose from."""
    if "preset" not in row.options:
        return []
    names = list(dict.fromkeys(option for values in row.presets.values() for option in values))
    head = [
        f"| option | {' | '.join(f'`{literal(preset)}`' for preset in row.presets)} |",
        "|---" * (len(row.presets) + 1),
    ]
    rows = [
        f"| `{option}` | {' | '.join(f'`{literal(values.get(option))}`' for values in row.presets.values())} |"
        for option in names
    ]
    words = "What `preset` stands for. An option that is given beside it wins."
    return ["### Presets", words, "\n".join([head[0], f"{head[1]}|", *rows])]


def example(name: str, row: Row) -> str:
    """Returns the command line and the Python of a first run."""
    needed = {option: row.small[option] for option, default in row.options.items() if default is REQUIRED}
    words = "".join(f" --set {option}={value}" for option, value in needed.items())
    words += "" if row.network == "mlp" else f" --set model={row.network}"
    tuned = "" if row.adapts is None else f", finetune=jaxfl.FineTune(optax.sgd({row.options[row.adapts]}))"
    kind = "finetuned_micro_accuracy" if tuned else "micro_accuracy"
    given = "".join(f", {option}={value!r}" for option, value in needed.items())
    return f"""```sh
jaxfl run {name} --data rotated-digits{words} --out runs/{name}
```

```python
import jaxfl
import optax

data = jaxfl.data.load("rotated-digits", num_clients=40, rows_per_client=80, seed=0)
task = jaxfl.classification(jaxfl.models.{MODELS[row.network].__name__}(hidden=(128,), num_classes=10), data)
method = jaxfl.methods.{row.factory.__name__}(task, optax.sgd(0.1){given})
result = jaxfl.run(method, data, rounds=20, cohort=0.5, seed=0{tuned})
print(result.summary["{kind}"], result.summary["num_clusters"])
```"""


def measure(row: Row) -> Cost:
    """Returns what a method costs with its default options, on a small federation and a small network.

    The bytes are those of `Info`, of a program that computes nothing else: compiled in a fraction of a second. The
    state is never filled: its shapes say how large it is.
    """
    import jax
    import jax.numpy as jnp
    import optax

    from jaxfl import tree
    from jaxfl.cohort import Cohort

    key, (few, many, task) = jax.random.key(0), _measured_on(row.network)
    needed = {option: row.small[option] for option, default in row.options.items() if default is REQUIRED}
    method = row.factory(task, optax.sgd(0.1), **needed)
    shapes = {data.num_clients: jax.eval_shape(method.init, key, data) for data in (few, many)}
    one, two = (tree.num_bytes(shapes[clients]) for clients in (CLIENTS, 2 * CLIENTS))

    def sent(state: Any, data: Any) -> tuple[Any, Any]:
        info = method.round(key, state, data, Cohort.of(range(CLIENTS)))[1]
        return info.bytes_up, info.bytes_down

    # Nobody is known yet; everybody has been for long. The contract names `round` and `cluster`, the rest are flags and
    # models. What was found in the data is there from the start: vectors of zeros would be none.
    new = jax.tree.map(lambda leaf: jnp.full(leaf.shape, leaf.dtype == jnp.float32, leaf.dtype), shapes[CLIENTS])
    old = jax.tree.map(lambda leaf: jnp.full(leaf.shape, leaf.dtype == bool, leaf.dtype), shapes[CLIENTS])
    states = [new._replace(cluster=new.cluster - 1), old._replace(round=old.round + 1000)]
    counted = jax.jit(sent)
    up, down = zip(*[[float(value) / CLIENTS for value in counted(state, few)] for state in states], strict=True)
    per_client = (two - one) / CLIENTS
    return Cost(tree.num_bytes(jax.eval_shape(task.init, key)), up, down, one - CLIENTS * per_client, per_client)


@functools.cache
def _measured_on(network: str) -> tuple[Any, Any, Any]:
    """Returns a federation, one of twice as many clients, and the task of a network."""
    import jaxfl

    load = functools.partial(jaxfl.data.load, "rotated-digits", rows_per_client=20, seed=0)
    few, many = (load(num_clients=clients) for clients in (CLIENTS, 2 * CLIENTS))
    return few, many, jaxfl.classification(jaxfl.models.create(network, 10, hidden=(128,)), few)


def costs(name: str, row: Row, cost: Cost) -> str:
    """Returns the costs in words."""

    def of_a_model(count: float) -> str:
        return f"{_number(count / cost.model)} | {count:,.0f}"

    lines = ["| | models | bytes |", "|---|---|---|"]
    for what, values in (("a client receives in a round", cost.down), ("a client sends in a round", cost.up)):
        if values[0] == values[1]:
            lines.append(f"| {what} | {of_a_model(values[0])} |")
        else:
            lines.append(f"| {what}, at first | {of_a_model(values[0])} |")
            lines.append(f"| {what}, later, at most | {of_a_model(values[1])} |")
    lines.append(f"| the state holds, however many clients there are | {of_a_model(cost.state)} |")
    lines.append(f"| and more for each client | {of_a_model(cost.client)} |")
    whole = 10_000 * cost.client + cost.state
    words = (
        f"Measured with the default options and a network of {cost.model // 4:,} parameters ({cost.model:,} bytes), "
        f"while this page was made; what is exchanged once, before the first round, is counted in it. "
        f"With 10,000 clients of this network, the state takes {whole / 1e6:,.1f} MB."
    )
    if "slots" in row.options:
        words += " The models of clusters are held in slots; `slots` says how many there are at first."
    plan = f"`jaxfl plan {name} --data NAME` prints what a run will take in memory, before it is taken."
    return "\n".join(lines) + f"\n\n{words}\n\n{plan}"


def source(row: Row) -> str:
    """Returns the path of a method's file in the repository."""
    return Path(inspect.getfile(inspect.unwrap(row.factory))).relative_to(ROOT).as_posix()


def without_doctests(text: str) -> str:
    """Returns a docstring without its examples.

    >>> without_doctests("One.\\n\\n>>> 1 + 1\\n2\\n\\nTwo.")
    'One.\\n\\nTwo.'
    """
    return re.sub(r"^>>> .*(?:\n.+)*\n*", "", text, flags=re.MULTILINE).strip()


def prose(text: str) -> str:
    """Returns a docstring as Markdown: indented blocks, the equations, stay as they are written.

    >>> print(prose("With <v, w>:\\n\\n    w <- w - eta\\n\\nand `a < b`."))
    With &lt;v, w>:
    <BLANKLINE>
    ```text
    w <- w - eta
    ```
    <BLANKLINE>
    and `a < b`.
    """
    found = []
    for block in re.split(r"\n\n(?=\S)|(?<=\S)\n\n(?=    )", text):
        if block.startswith("    "):
            found.append(f"```text\n{textwrap.dedent(block).rstrip()}\n```")
        else:
            found.append(escape(block))
    return "\n\n".join(found)


def escape(text: str) -> str:
    """Returns text in which no `<` outside of code begins a tag, and no `#` at the start of a line a heading.

    >>> print(escape("a < `b < c`\\n#1"))
    a &lt; `b < c`
    &#35;1
    """
    parts = re.split(r"(`[^`]*`)", text)
    escaped = "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)
    return re.sub(r"^#", "&#35;", escaped, flags=re.MULTILINE)


def literal(value: Any) -> str:
    """Returns a value as it is written in Python.

    >>> literal(float("inf")), literal("rows")
    ('math.inf', '"rows"')
    """
    if isinstance(value, str):
        return f'"{value}"'
    return "math.inf" if value == float("inf") else repr(value)


def _number(value: float) -> str:
    """Returns a number of models: exact where it is whole, two digits elsewhere."""
    if abs(value - round(value)) < 0.005:
        return f"{round(value)}"
    return f"{value:.2f}"


def _capital(text: str) -> str:
    """Returns a sentence that begins with a capital letter, unless it begins with a symbol or code."""
    word = re.match(r"(?:a|[a-z]{2,})\b", text)
    return text[0].upper() + text[1:] if word and word[0] not in SYMBOLS else text


SYMBOLS = {"alpha", "eps", "eta", "gamma", "lambda", "mu", "tau"}
