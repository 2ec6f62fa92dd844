"""Protocols of publications: one record each, in a TOML file of this package or of the user.

A record fixes data, network, optimiser, rounds, participation, seeds and score, names what differs from the official
code, and has the published rows. `jaxfl protocol` runs methods by it.

>>> record = read("cflgp-mnist4")
>>> record.data["name"], record.rounds, record.score
('rotated+iid-mnist', 20, 'macro-last')
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jaxfl.data import FederatedData
from jaxfl.data.bounded import check_nesting, check_regular
from jaxfl.data.digest import digest, rows_digest
from jaxfl.protocols.scores import SCORES
from jaxfl.schema import REQUIRED, Option, check_name, did_you_mean, quoted
from jaxfl.settings import methods, options
from jaxfl.settings.reading import convert
from jaxfl.settings.user_code import is_address

FOLDER = Path(__file__).parent
SUFFIX = ".toml"
DIGITS = 16  # of a record's digest
Mark = Literal["C", "P", "S", "M"]
MARKS = {  # of a published row: where its number was read
    "C": "read in the official code",
    "P": "read in the paper",
    "S": "second hand, unverified",
    "M": "from memory, unverified",
}
REDUCED = "-reduced"
# Options of methods that a protocol fixes for all methods that have them; the rest of a method's are its own.
TRAINING = ("local_epochs", "batch_size", "weighting", "head_epochs")


class Published(NamedTuple):
    """A published row.

    Attributes:
        method: name as published.
        value: in percent.
        deviation: over the seeds, in percent, or None.
        mark: where the number was read, a key of `MARKS`.
        table: of the publication.
        is_like: name of the method here, or "" if there is none.
    """

    method: str
    value: float
    deviation: float | None
    mark: str
    table: str
    is_like: str


class Protocol(NamedTuple):
    """The record of a protocol.

    Attributes:
        name: of its file.
        title: one line.
        paper, code: publication, and address of the official code with its commit.
        split: "exact" for the official code's own rows, "rule" for its law with seeds of our own.
        data, model, optimizer: `name` of each, and its options.
        run: options of the run, such as augmentation.
        local: options of methods that train, fixed for all methods that have them.
        methods: the publication's values of methods' own options, by method; whoever runs them may set others. An
            option of the optimiser or the run has its owner before it, `optimizer.learning_rate`, and is fixed.
        compared: methods of the publication that are here, cheapest comparisons first.
        rounds, cohort, eval_every, seeds: as `jaxfl run` takes them.
        score: name in `jaxfl.protocols.scores.SCORES`.
        data_needed: where the data come from.
        teraflop: operations of one FedAvg run in 10^12, evaluation left out.
        deviations: sentences on what differs from the official code, or between code and paper.
        published: rows of the publication.
        digests: of the federation's rows (`row1:`) or of all of it (`fed1:`), by seed; it is checked before a run.
        reduced: keys of the form for a CPU that differ, or empty; its name ends in `REDUCED`. Of a table, the entries
            that differ; or all of it, if it has a name.
        content: all of the file but `published`.
    """

    name: str
    title: str
    paper: str
    code: str
    split: str
    data: dict[str, Any]
    model: dict[str, Any]
    optimizer: dict[str, Any]
    run: dict[str, Any]
    local: dict[str, Any]
    methods: dict[str, dict[str, Any]]
    compared: tuple[str, ...]
    rounds: int
    cohort: float | int
    eval_every: int
    seeds: tuple[int, ...]
    score: str
    data_needed: str
    teraflop: float
    deviations: tuple[str, ...]
    published: tuple[Published, ...]
    digests: dict[str, str]
    reduced: dict[str, Any]
    content: dict[str, Any]

    def digest(self) -> str:
        """Returns the digest of the record without its published rows."""
        text = json.dumps(self.content, sort_keys=True)
        return f"pro1:{hashlib.sha256(text.encode()).hexdigest()[:DIGITS]}"

    def check(self, data: FederatedData, seed: int) -> None:
        """Raises ValueError if the federation of a seed has another digest than the record says."""
        own, wanted = [rows_digest(data), digest(data)], self.digests.get(str(seed))
        if wanted is not None and wanted not in own:
            raise ValueError(
                f"the federation of {self.name} with seed {seed} must have the digest {wanted}, got {' '.join(own)}; "
                "other files or another version made it."
            )

    def fixed(self) -> dict[str, Any]:
        """Returns the values of all options that are equal for all methods, by `owner.name`, the names first."""
        parts = {"data": self.data, "model": self.model, "optimizer": self.optimizer}
        names = {owner: part["name"] for owner, part in parts.items() if owner != "data"}
        values = {
            f"{owner}.{key}": value for owner, part in parts.items() for key, value in part.items() if key != "name"
        }
        return names | values | {f"run.{key}": value for key, value in self.run.items()}

    def of_method(self, method: str) -> dict[str, Any]:
        """Returns the options of a method that the protocol fixes: those of `local` that it has."""
        known = methods.row(method).options
        return {key: value for key, value in self.local.items() if key in known}

    def settings(self, method: str) -> options.Settings:
        """Returns the settings of a run of a method, with the publication's values of its own options.

        Raises:
            ValueError: the record names an option that is unknown, or a value that is not allowed.
        """
        given = {**self.methods.get(method, {}), **self.of_method(method)}
        own = {key if "." in key else f"method.{key}": value for key, value in given.items()}
        return options.route(method, self.data["name"], **{**self.fixed(), **own})

    def as_reduced(self) -> "Protocol":
        """Returns the reduced form, which has a name and a digest of its own and no published rows.

        Raises:
            ValueError: there is none.
        """
        if not self.reduced:
            raise ValueError(f"{self.name} has no reduced form; leave --reduced out.")
        tables = {key: value for key, value in self.reduced.items() if isinstance(value, dict)}
        merged = {key: value if "name" in value else {**getattr(self, key), **value} for key, value in tables.items()}
        content = {**self.content, **self.reduced, **merged}
        del content["reduced"], content["name"]
        return _record(self.name + REDUCED, content, f"[reduced] of {self.name}")


REDUCIBLE = (
    *("rounds", "cohort", "eval_every", "seeds", "teraflop", "deviations", "digests"),
    *("data", "model", "optimizer", "run", "local"),
)
_KEYS = (
    Option("title", REQUIRED, str),
    Option("paper", REQUIRED, str),
    Option("code", REQUIRED, str),
    Option("split", REQUIRED, Literal["exact", "rule"]),
    Option("rounds", REQUIRED, int),
    Option("cohort", REQUIRED, float | int),
    Option("eval_every", 1, int),
    Option("seeds", REQUIRED, tuple[int, ...]),
    Option("score", REQUIRED, str),
    Option("data_needed", REQUIRED, str),
    Option("teraflop", REQUIRED, float),
    Option("deviations", (), tuple[str, ...]),
    Option("compared", REQUIRED, tuple[str, ...]),
    Option("data", REQUIRED, dict),
    Option("model", REQUIRED, dict),
    Option("optimizer", REQUIRED, dict),
    Option("run", {}, dict),
    Option("local", {}, dict),
    Option("methods", {}, dict),
    Option("digests", {}, dict),
    Option("reduced", {}, dict),
    Option("published", [], list[dict]),
)
_ROW_KEYS = (
    Option("method", REQUIRED, str),
    Option("value", REQUIRED, float),
    Option("deviation", None, float | None),
    Option("mark", REQUIRED, Mark),
    Option("table", REQUIRED, str),
    Option("is_like", "", str),
)


def names() -> list[str]:
    """Returns the names of all protocols that are shipped."""
    return sorted(path.stem for path in FOLDER.glob(f"*{SUFFIX}"))


def read(name: str) -> Protocol:
    """Returns the record of a protocol.

    Args:
        name: of a shipped one, or the path of a TOML file.

    Raises:
        ValueError: there is no such protocol, or its file is not a record.
        OSError: the file cannot be read.
    """
    if name.endswith(SUFFIX):
        path = Path(name)
    else:
        check_name("protocol", name, names())
        path = FOLDER / f"{name}{SUFFIX}"
    try:
        check_regular(path)
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        check_nesting(content)
    except OSError as error:
        raise OSError(f"{path} cannot be read ({error.strerror}); jaxfl protocol list names all protocols.") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be TOML, got: {error}.") from error
    if not path.stem.strip("."):
        raise ValueError(f"{path} must have a name, which is that of the folder of its runs; rename it.")
    protocol = _record(path.stem, content, str(path))
    if protocol.reduced:
        protocol.as_reduced()  # refused here, too
    return protocol


def _record(name: str, content: dict[str, Any], where: str) -> Protocol:
    """Returns the record of a file's content; raises ValueError if a key is unknown, missing, or of another type."""
    _check_entries(content, where)
    values = _values(content, _KEYS, where)
    check_name(f"score in {where}", values["score"], SCORES)
    for part in ("data", "model", "optimizer"):
        if not isinstance(values[part].get("name"), str):
            raise ValueError(f"name must be given in [{part}] of {where}; jaxfl methods and jaxfl data list names.")
    for key in values["local"]:
        check_name(f"option in [local] of {where}", key, TRAINING)
    _check_methods(values["methods"], values["local"], where)
    if not values["seeds"]:
        raise ValueError(f"seeds must be one or more in {where}, got none; write seeds = [0, 1, 2].")
    for seed, text in values["digests"].items():
        if not (seed.isdecimal() and isinstance(text, str) and text.startswith(("row1:", "fed1:"))):
            raise ValueError(
                f"digests in {where} must be texts by seed, as jaxfl protocol --digest prints them, got "
                f"{quoted(seed)} = {quoted(text)}."
            )
    for key in values["reduced"]:
        check_name(f"key in [reduced] of {where}", key, REDUCIBLE)
    rows = [_values(row, _ROW_KEYS, f"[[published]] of {where}") for row in values.pop("published")]
    _values(values["reduced"], [option._replace(default=None) for option in _KEYS], f"[reduced] of {where}")
    kept = {key: value for key, value in content.items() if key != "published"}
    published = tuple(Published(**row) for row in rows)
    return Protocol(name=name, published=published, content={"name": name, **kept}, **values)


def _check_entries(value: Any, where: str) -> None:
    """Raises ValueError if an entry is of a type that JSON lacks, or the address of a program.

    A record may be somebody else's, and is told without an execution of what it names.
    """
    if isinstance(value, dict):
        for key, entry in value.items():
            _check_entries(key, where)
            _check_entries(entry, where)
    elif isinstance(value, list):
        for entry in value:
            _check_entries(entry, where)
    elif is_address(value):
        raise ValueError(
            f"{where} must name what jaxfl has, got {quoted(value)}, a file of Python; run it by jaxfl sweep, or a "
            "method by --method."
        )
    elif not isinstance(value, str | int | float):
        raise ValueError(f"{where} must have texts, numbers, true, false, lists and tables, got {value}.")


def _check_methods(tables: Mapping[str, Any], local: Mapping[str, Any], where: str) -> None:
    """Raises ValueError unless the tables of methods have options that the protocol does not fix for all."""
    for name, own in tables.items():
        check_name(f"method in [methods] of {where}", name, methods.names())
        if not isinstance(own, dict):
            raise ValueError(f"[methods.{name}] of {where} must be a table of options, got {quoted(own)}.")
        for key in own:
            owner = key.rpartition(".")[0]
            if key in local or owner not in ("", "optimizer", "run"):
                fixed = "[local]" if key in local else f"[{owner}]"
                raise ValueError(
                    f"{quoted(key)} in [methods.{name}] of {where} is fixed for all methods in {fixed}; write it there."
                )


def _values(given: Mapping[str, Any], known: "tuple[Option, ...] | list[Option]", where: str) -> dict[str, Any]:
    """Returns the values of a table in their types, with defaults; raises ValueError in one line."""
    for key in given:
        if key not in [option.name for option in known]:
            near = did_you_mean(key, [option.name for option in known])
            raise ValueError(f"unknown entry {quoted(key)} in {where}{near}")
    values = {}
    for option in known:
        if option.name not in given and option.default is REQUIRED:
            raise ValueError(f"{option.name} must be given in {where}.")
        value = given.get(option.name, option.default)
        values[option.name] = convert(f"{option.name} in {where}", value, option) if option.name in given else value
    return values
