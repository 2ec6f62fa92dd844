"""Options as text: `key=value`, whose option it is, and the value in the option's type.

>>> fit_type(parse("64"), tuple[int, ...])
(True, (64,))
"""

import ast
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from jaxfl.schema import REQUIRED, Option, describe, did_you_mean, literal_values, quoted, union_members


def parse(text: str) -> Any:
    """Returns the Python literal that the text is, or the text; `none`, `true` and `false` may be written small.

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
    """Returns a value as JSON can say it; what JSON does not know by its name, or by that of its type.

    Such are the defaults of a user's networks and methods (`act=nn.relu`), whose file has a checksum in the run.

    >>> json_value({"sizes": (1, 2), "act": math.sqrt, "made": object()})
    {'sizes': (1, 2), 'act': 'sqrt', 'made': 'object'}
    """
    if isinstance(value, dict):
        return {str(json_value(key)): json_value(one) for key, one in value.items()}
    if isinstance(value, (tuple, list)):
        return (tuple if isinstance(value, tuple) else list)(map(json_value, value))
    if value is None or isinstance(value, (str, int, float)):
        return value
    # never as repr has it: where something lies in memory is another place in every process
    return getattr(value, "__qualname__", type(value).__qualname__)


def fit_type(value: Any, hint: Any) -> tuple[bool, Any]:
    """Returns whether a value is of a type, and the value in it: an int as a float, a number as a tuple of one."""
    kind, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return True, value
    if len(members := union_members(hint)) > 1:
        # exact types first: 1 is an int, not a float or a tuple, where both are welcome
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
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        return fits, float(value) if fits else value
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool), value
    if (kind or hint) in (Sequence, tuple, list):
        many = value if isinstance(value, (list, tuple)) else (value,)
        length = None if not parts or parts[-1] is Ellipsis or kind is not tuple else len(parts)
        inner = [part for part in parts if part is not Ellipsis] or [Any]
        if length is not None and len(many) != length:
            return False, value
        fitted = [fit_type(one, inner[index] if length else inner[0]) for index, one in enumerate(many)]
        return all(fits for fits, _ in fitted), tuple(one for _, one in fitted)
    return isinstance(value, kind or hint), value


def has_text_form(hint: Any) -> bool:
    """Returns whether text can be of a type, beside none.

    >>> has_text_form(float | None), has_text_form(tuple[float, ...]), has_text_form(Exception | None)
    (True, True, False)
    """
    kinds = [get_origin(part) or part for part in union_members(hint)]
    return any(kind in (Any, Literal, int, float, str, bool, tuple, list, Sequence) for kind in kinds)


# of a run, which have words of their own on the command line and in `run_named`
RUN_ARGUMENTS = ("seed", "rounds", "cohort", "eval_every", "checkpoint_every", "out", "resume", "data_dir")
LARGEST_NUMBERS = {int: 2**31 - 1, float: 3.4e38}  # what compiled programs compute with: int32 and float32


def split_items(items: Iterable[str]) -> dict[str, str]:
    """Returns `key=value` items by key.

    Raises:
        ValueError: an item that is not of this form, or a key that is there twice.

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
    whose: Callable[[str], str] = lambda name: "",
) -> list[tuple[Option, Any]]:
    """Returns the options that are wanted, with their values.

    Args:
        wanted: text or values, by key.
        options: those that there are.
        where: whose they are, for messages.
        others: names that choose something else, and may be meant by an unknown key.
        whose: says what has an option that is not here, as `find` takes it.

    Raises:
        ValueError: an option that is not there, or a value of the wrong type.
    """
    found = {key: find_option(key, options, where, others, whose) for key in wanted}
    values = {key: convert(key, wanted[key], option) for key, option in found.items()}
    for key, value in values.items():
        for one in value if isinstance(value, tuple) else (value,):
            if (limit := LARGEST_NUMBERS.get(type(one))) is not None and abs(one) > limit:
                raise ValueError(f"{key} must be at most {limit}, got {value}.")
    return [(option, values[key]) for key, option in found.items()]


def convert(key: str, given: Any, option: Option, remedy: str = "") -> Any:
    """Returns the value of an option in the option's type: the only place where text becomes one.

    Args:
        key: what the option is called in messages.
        given: text, or a value. One number is a tuple of one where there may be several.
        option: whose type counts.
        remedy: the end of the message; if empty, it tells the default.

    Raises:
        ValueError: it is not of the option's type.

    >>> convert("sizes", "64", Option("sizes", (128,), tuple[int, ...]))
    (64,)
    """
    fits, value = fit_type(parse(given) if isinstance(given, str) else given, option.hint)
    if not fits and isinstance(given, str):  # where text is welcome, as it was written: target=2020
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
    return tuple(value) if isinstance(value, list) else (value,)  # a list is what a kept run has for a tuple


def find_option(
    key: str,
    options: Sequence[Option],
    where: str,
    others: Sequence[str] = (),
    whose: Callable[[str], str] = lambda name: "",
) -> Option:
    """Returns the option that a key means, `name` or `owner.name`.

    Args:
        key: what was written.
        options: those that there are.
        where: whose they are, for messages.
        others: names that choose something else, and may be meant by an unknown key.
        whose: says what has an option of this name that is not here; "" where nothing has.

    Raises:
        ValueError: there is none, or there are several.
    """
    owner, dot, name = key.rpartition(".")
    found = [option for option in options if option.name == name and (not dot or option.owner == owner)]
    if len(found) > 1:
        ways = " or ".join(f"{option.owner}.{option.name}" for option in found)
        raise ValueError(f"option {quoted(key)} is ambiguous; write {ways}.")
    if found:
        return found[0]
    if name in RUN_ARGUMENTS:
        raise ValueError(f"{name} is no option of {where}; it stands beside them: --{name.replace('_', '-')}.")
    names = [option.name for option in options]
    having = "" if name in names else whose(name)
    near = f"; it belongs to {having}." if having else did_you_mean(name, [*names, *others])
    by_owner: dict[str, list[str]] = {}
    for option in options:
        by_owner.setdefault(option.owner, []).append(option.name)
    listing = "; ".join(f"{owner}: {', '.join(names)}".removeprefix(": ") for owner, names in by_owner.items())
    also = f"; and {', '.join(others)} to choose those" if others else ""
    raise ValueError(f"unknown option {quoted(key)} for {where}{near} Known: {listing}{also}.")
