"""Options as text: parsing of `key=value`, the option that a key names, and its value in the option's type.

>>> fit_type(parse("64"), tuple[int, ...])
(True, (64,))
"""

import ast
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from jaxfl.schema import REQUIRED, Option, describe, did_you_mean, literal_values, quoted, union_members


def parse(text: str) -> Any:
    """Returns the text as a Python literal, or unchanged; `none`, `true` and `false` may be in lower case.

    >>> parse("1e-3"), parse("(1, 2)"), parse("none"), parse("uniform")
    (0.001, (1, 2), None, 'uniform')
    """
    words = {"none": None, "null": None, "true": True, "false": False}
    if text.strip().lower() in words:
        return words[text.strip().lower()]
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def json_value(value: Any) -> Any:
    """Returns a value in JSON's types; an object of another type becomes its name, or the name of its type.

    Defaults of a user's networks and methods may be such objects (`act=nn.relu`); the run has a checksum of their file.

    >>> json_value({"sizes": (1, 2), "act": len, "made": object()})
    {'sizes': (1, 2), 'act': 'len', 'made': 'object'}
    """
    if isinstance(value, dict):
        return {str(json_value(key)): json_value(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return (tuple if isinstance(value, tuple) else list)(map(json_value, value))
    if value is None or isinstance(value, (str, int, float)):
        return value
    # not by repr, which has an address in memory that differs in every process
    return getattr(value, "__qualname__", type(value).__qualname__)


def fit_type(value: Any, hint: Any) -> tuple[bool, Any]:
    """Returns whether a value fits a type, and the value in that type: an int as a float, a number as a 1-tuple."""
    kind, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return True, value
    if len(members := union_members(hint)) > 1:
        # exact types first: where several types are allowed, 1 is an int, not a float or a tuple
        exact = None if value is None else type(value)
        for part in sorted(members, key=lambda part: part is not exact):
            fits, fitted = fit_type(value, part)
            if fits:
                return True, fitted
        return False, value
    if kind is Literal:
        return value in parts, value
    if hint is None:
        return value is None, value
    if hint is float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        fits = number and abs(value) <= sys.float_info.max  # a whole number may be beyond it
        return fits, float(value) if fits else value
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool), value
    if (kind or hint) in (Sequence, tuple, list):
        many = value if isinstance(value, (list, tuple)) else (value,)
        length = None if not parts or parts[-1] is Ellipsis or kind is not tuple else len(parts)
        inner = [part for part in parts if part is not Ellipsis] or [Any]
        if length is not None and len(many) != length:
            return False, value
        fitted = [fit_type(item, inner[index] if length else inner[0]) for index, item in enumerate(many)]
        return all(fits for fits, _ in fitted), tuple(item for _, item in fitted)
    return isinstance(value, kind or hint), value


def has_text_form(hint: Any) -> bool:
    """Returns whether text can express a value of a type other than None.

    >>> has_text_form(float | None), has_text_form(tuple[float, ...]), has_text_form(Exception | None)
    (True, True, False)
    """
    kinds = [get_origin(part) or part for part in union_members(hint)]
    return any(kind in (Any, Literal, int, float, str, bool, tuple, list, Sequence) for kind in kinds)


# flags of the command line and arguments of `run_named`, which are no options
RUN_ARGUMENTS = (
    *("seed", "seeds", "rounds", "cohort", "eval_every", "checkpoint_every", "stop_early", "time_limit", "log"),
    *("out", "resume", "data", "data_dir", "html", "quiet"),
)
LARGEST_NUMBERS = {int: 2**31 - 1, float: 3.4e38}  # of int32 and float32, the types of compiled programs


def split_items(items: Iterable[str]) -> dict[str, str]:
    """Returns `key=value` items by key.

    Raises:
        ValueError: an item is not of this form, or two items have the same key.

    >>> split_items(["local_epochs=5", " threshold = 0.6"])
    {'local_epochs': '5', 'threshold': '0.6'}
    """
    texts = {}
    for item in items:
        key, _, value = (part.strip() for part in item.partition("="))
        if not key or not value:
            raise ValueError(f"--set must be key=value, got {quoted(item)}; write --set local_epochs=5.")
        if key in texts:
            raise ValueError(f"{key} must be set once, got {quoted(texts[key])} and {quoted(value)}; leave one out.")
        texts[key] = value
    return texts


def read_options(
    wanted: Mapping[str, Any],
    options: Sequence[Option],
    where: str,
    others: Sequence[str] = (),
    owners_of: Callable[[str], str] = lambda name: "",
) -> list[tuple[Option, Any]]:
    """Returns the given options with their values.

    Args:
        wanted: text or values, by key.
        options: that are available.
        where: phrase for their owners, for messages.
        others: further names for the correction of a misspelt key.
        owners_of: see `find_option`.

    Raises:
        ValueError: there is no such option, or a value is of the wrong type or too large.
    """
    found = {key: find_option(key, options, where, others, owners_of) for key in wanted}
    values = {key: convert(key, wanted[key], option) for key, option in found.items()}
    for key, value in values.items():
        for number in value if isinstance(value, tuple) else (value,):
            if (limit := LARGEST_NUMBERS.get(type(number))) is not None and abs(number) > limit:
                raise ValueError(f"{key} must be at most {limit}, got {value}.")
    return [(option, values[key]) for key, option in found.items()]


def convert(key: str, given: Any, option: Option, remedy: str = "") -> Any:
    """Returns the value of an option in the option's type.

    Args:
        key: name of the option in messages.
        given: text, or a value. A single number becomes a 1-tuple where a tuple is expected.
        option: with the type.
        remedy: the end of the message; if empty, it is the default.

    Raises:
        ValueError: the value is not of the option's type.

    >>> convert("sizes", "64", Option("sizes", (128,), tuple[int, ...]))
    (64,)
    """
    fits, value = fit_type(parse(given) if isinstance(given, str) else given, option.hint)
    if not fits and isinstance(given, str):  # where text is allowed, unparsed: target=2020
        as_written = fit_type(given, option.hint)
        fits, value = as_written if as_written[1] == given else (False, value)
    if not fits:
        if not remedy and option.default is not REQUIRED:
            remedy = f"its default is {quoted(option.default)}"
        near = did_you_mean(given, literal_values(option.hint))
        end = f"; {remedy}." if near == "." and remedy else near
        raise ValueError(f"{key} must be {describe(option.hint)}, got {quoted(given)}{end}")
    if not isinstance(option.default, tuple) or isinstance(value, tuple) or value is None:
        return value
    return tuple(value) if isinstance(value, list) else (value,)  # JSON of a saved run has a list for a tuple


def find_option(
    key: str,
    options: Sequence[Option],
    where: str,
    others: Sequence[str] = (),
    owners_of: Callable[[str], str] = lambda name: "",
) -> Option:
    """Returns the option of a key, `name` or `owner.name`.

    Args:
        key: as written.
        options: that are available.
        where: phrase for their owners, for messages.
        others: further names for the correction of a misspelt key.
        owners_of: `name -> phrase` with other owners of an option of this name, or "".

    Raises:
        ValueError: there is no such option, or there are several.
    """
    owner, dot, name = key.rpartition(".")
    found = [option for option in options if option.name == name and (not dot or option.owner == owner)]
    if len(found) > 1:
        ways = " or ".join(f"{option.owner}.{option.name}" for option in found)
        raise ValueError(f"option {quoted(key)} is ambiguous; write {ways}.")
    if found:
        return found[0]
    if name in RUN_ARGUMENTS:
        raise ValueError(f"{name} is no option of {where}; write --{name.replace('_', '-')} instead of --set {name}.")
    names = [option.name for option in options]
    owners = "" if name in names else owners_of(name)
    near = f"; it belongs to {owners}." if owners else did_you_mean(name, [*names, *others])
    by_owner: dict[str, list[str]] = {}
    for option in options:
        by_owner.setdefault(option.owner, []).append(option.name)
    listing = "; ".join(f"{owner}: {', '.join(names)}".removeprefix(": ") for owner, names in by_owner.items())
    also = f"; and the choices {', '.join(others)}" if others else ""
    raise ValueError(f"unknown option {quoted(key)} for {where}{near} Known: {listing}{also}.")
