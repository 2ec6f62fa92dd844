"""Options of methods and runs, as a table and ready for JSON."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxfl.methods import METHODS, Row
from jaxfl.models import networks
from jaxfl.schema import REQUIRED, Option, describe, function_options, join_with_or, literal_values, quoted
from jaxfl.settings import methods, options, own, reading, wire_options

if TYPE_CHECKING:
    from rich.table import Table

Presets = Mapping[str, Mapping[str, Any]]
OWN = "FILE.py:NAME is your own."
# Descriptions that are a symbol of the paper in the docstring.
SYMBOLS = {"B": "B, rows of a step", "E": "E, passes over a client's rows in a round", "K": "K, models to learn"}


def method_rows(names: Sequence[str]) -> list[dict[str, Any]]:
    """Returns name, summary, paper, what the server sees and a newcomer needs, and options of methods, for JSON.

    >>> row = method_rows(["fesem"])[0]["options"]["proximal_weight"]
    >>> row["default"], row["presets"], row["type"]
    (0.1, {'paper': 0.1, 'official': 0.0}, 'a number or none')
    """
    return [
        {
            "name": name,
            "summary": methods.row(name).summary,
            "paper": methods.row(name).paper,
            "server_sees": methods.row(name).server_sees,
            "newcomer_needs": newcomer.needs if (newcomer := methods.row(name).newcomer({})) else None,
            "options": option_rows(method_options_by_name(name).values(), methods.row(name).presets),
        }
        for name in names
    ]


def method_options_by_name(name: str) -> dict[str, Option]:
    """Returns the options of a method by name; those described `as in` another method have the line of that method."""
    own = function_options(methods.row(name).factory)
    return {option: said._replace(line=_plain_line(said)) for option, said in own.items()}


def _plain_line(option: Option) -> str:
    """Returns the description of an option, for readers who do not see the equations.

    >>> _plain_line(Option("local_epochs", 5, int, "as in `layercfl`."))
    "E, passes over a client's rows in a round."
    """
    while (other := re.match(r"as in `(\w+)`", option.line)) and other[1] in METHODS:
        option = function_options(METHODS[other[1]].factory)[option.name]
    return re.sub(r"^[BEK](?=[.;])", lambda symbol: SYMBOLS[symbol[0]], option.line)


def option_rows(chosen: Iterable[Option], presets: Presets) -> dict[str, dict[str, Any]]:
    """Returns options by name, ready for JSON; infinity, which JSON does not have, is a string.

    Args:
        chosen: the options.
        presets: values that replace None, by preset.
    """
    rows = {}
    for option in chosen:
        default, by_preset = default_by_preset(option, presets)
        rows[option.name] = {
            "default": None if default is REQUIRED else _json_value(default),
            "required": default is REQUIRED,
            "presets": {preset: _json_value(value) for preset, value in by_preset.items()},
            "type": describe(option.hint),
            "words": list(literal_values(option.hint)),
            "line": option.line,
        }
    return rows


def default_by_preset(option: Option, presets: Presets) -> tuple[Any, dict[str, Any]]:
    """Returns the default of an option under the first preset, which is the usual one, and its value under each.

    >>> default_by_preset(Option("mu", None, float), {"paper": {"mu": 0.1}, "official": {"mu": 0.0}})
    (0.1, {'paper': 0.1, 'official': 0.0})
    """
    values = {preset: rule[option.name] for preset, rule in presets.items() if option.name in rule}
    default = next(iter(values.values()), None) if option.default is None else option.default
    return default, values


def method_page(name: str) -> "list[Table | str]":
    """Returns the page of a method: a table of its options, and one of those of every run."""
    row = methods.row(name)
    own = method_options_by_name(name)
    server = own.pop("server_optimizer", None)
    entries = [_option_cells(option, row.presets) for option in own.values()]
    if server is not None:
        servers = ["Or one of these, with its options:", *_optimizer_lines(options.SERVERS, "server."), OWN]
        entries.append(("server_optimizer", "none", _join_lines(server.line, *servers)))
    optimizers = ["the local optimiser, with these options:", *_optimizer_lines(options.OPTIMIZERS), OWN]
    models = ["a network; each data set has a default one. With their options:", *_network_lines()]
    of_run = [
        ("optimizer", "sgd", _join_lines(*optimizers)),
        ("model", "", _join_lines(*models)),
        *(_option_cells(option, {}) for option in options.options_of_runs(name) if _takes(row, option)),
    ]
    title = f"{name}: {row.summary} ({row.paper})"
    heads = {"Set by --set OPTION=VALUE:": entries, "Options of every run:": of_run}
    return [
        title,
        row.seen({}).sentence,
        *([newcomer.sentence] if (newcomer := row.newcomer({})) else []),
        *(part for head, rows in heads.items() for part in ("", head, "", _options_table(rows))),
    ]


def own_row(name: str, owner: str) -> dict[str, Any]:
    """Returns name, summary and options of a user's data, network, task or optimiser, for JSON.

    Args:
        name: `FILE.py:NAME`.
        owner: "data", "model", "task" or "optimizer".
    """
    chosen = own.options(name, owner)
    return {"name": name, "owner": owner, "summary": own.summary(name), "options": option_rows(chosen.values(), {})}


def own_page(name: str, owner: str) -> "list[Table | str]":
    """Returns the page of a user's data, network, task or optimiser: a table of its options."""
    rows = [_option_cells(option, {}) for option in own.options(name, owner).values()]
    title = f"{name}: {own.summary(name)}"
    flag = f"--data {name}" if owner == "data" else f"--set {owner}={name}"
    flag += f", or --set server_optimizer={name} for the server" if owner == "optimizer" else ""
    if not rows:
        return [title, f"Chosen by {flag}; it has no options."]
    return [title, f"Chosen by {flag}. Set by --set OPTION=VALUE:", "", _options_table(rows)]


def _takes(row: Row, option: Option) -> bool:
    """Returns whether a method takes an option of runs: not those of a wire or of noise, where it refuses them."""
    if row.no_wire:
        return option.name not in {one.name for one in wire_options.OPTIONS}
    return row.server_sees == "sums" or option.name not in wire_options.PRIVACY_OPTIONS[1:]


def _network_lines() -> list[str]:
    """Returns a line for each network, with the defaults of its options."""
    lines = []
    for name in networks.MODELS:
        own = (f"{option.name}={default_text(option.default)}" for option in networks.options(name).values())
        lines.append(f"{name}: {', '.join(own)}".removesuffix(": "))
    return [*lines, OWN]


def _options_table(entries: Iterable[tuple[str, str, str]]) -> "Table":
    """Returns a table as wide as the terminal, from name, default and description; long lines are wrapped."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("option", no_wrap=True)
    table.add_column("default", max_width=24)
    table.add_column("what it is")
    for entry in entries:
        table.add_row(*map(Text, entry))
    return table


def _option_cells(option: Option, presets: Presets) -> tuple[str, str, str]:
    """Returns the row of an option: its name, its default with the presets that differ, and its description.

    >>> from typing import Literal
    >>> option = Option("by", None, Literal["rows", "size"] | None, "whose `weight`")
    >>> _option_cells(option, {"paper": {"by": "rows"}, "official": {"by": "size"}})
    ('by', 'rows\\nofficial: size', 'whose weight\\n"rows" or "size"')
    """
    default, values = default_by_preset(option, presets)
    others = [f"{preset}: {default_text(value)}" for preset, value in values.items() if value != default]
    words = list(map(quoted, literal_values(option.hint)))
    more = ["" if all(word in option.line for word in words) else join_with_or(words)]
    more += [] if reading.has_text_form(option.hint) else ["In Python only."]
    return option.name, "\n".join([default_text(default), *others]), _join_lines(option.line, *more)


def default_text(value: Any) -> str:
    """Returns a default in the syntax of `--set`.

    >>> default_text((0, 90)), default_text(None), default_text(float("inf"))
    ('(0, 90)', 'none', 'infinity')
    """
    if value is REQUIRED:
        return "to be given"
    if isinstance(value, float) and math.isinf(value):
        return "infinity"
    return str(value).lower() if value is None or isinstance(value, bool) else str(reading.json_value(value))


def key_values(chosen: Mapping[str, Any]) -> str:
    """Returns `key=value` texts, quoted where a shell would interpret them."""
    words = {name: "..." if value is REQUIRED else default_text(value) for name, value in chosen.items()}
    return ", ".join(f"{name}='{word}'" if "(" in word else f"{name}={word}" for name, word in words.items())


def _optimizer_lines(optimizers: Mapping[str, tuple[Any, Mapping[str, float]]], owner: str = "") -> list[str]:
    """Returns a line for each optimiser, with its options."""
    return [
        f"{name}: {key_values({f'{owner}{key}': default for key, default in own.items()})}"
        for name, (_, own) in optimizers.items()
    ]


def _join_lines(*lines: str) -> str:
    """Returns the lines that are not empty, without backquotes."""
    return "\n".join(line.replace("`", "") for line in lines if line)


def _json_value(value: Any) -> Any:
    return default_text(value) if isinstance(value, float) and math.isinf(value) else reading.json_value(value)
