"""Options as text: `key=value`, whose option it is, and the value in the option's type."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxfl.schema import REQUIRED, Option, describe, did_you_mean, quoted, words_of
from jaxfl.settings import literals

# of a run, which have words of their own on the command line and in `run_named`
BESIDE = ("seed", "rounds", "cohort", "eval_every", "checkpoint_every", "out", "resume", "data_dir")
LARGEST = {int: 2**31 - 1, float: 3.4e38}  # what compiled programs compute with: int32 and float32


def split(items: Iterable[str]) -> dict[str, str]:
    """Returns `key=value` items by key.

    Raises:
        ValueError: an item that is not of this form, or a key that is there twice.

    >>> split(["local_epochs=5", " threshold = 0.6"])
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


def read(
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
    found = {key: find(key, options, where, others, whose) for key in wanted}
    values = {key: convert(key, wanted[key], option) for key, option in found.items()}
    for key, value in values.items():
        for one in value if isinstance(value, tuple) else (value,):
            if (limit := LARGEST.get(type(one))) is not None and abs(one) > limit:
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
    fits, value = literals.fit(literals.parse(given) if isinstance(given, str) else given, option.hint)
    if not fits and isinstance(given, str):  # where text is welcome, as it was written: target=2020
        as_written = literals.fit(given, option.hint)
        fits, value = as_written if as_written[1] == given else (False, value)
    if not fits:
        if not remedy and option.default is not REQUIRED:
            remedy = f"its default is {quoted(option.default)}"
        near = did_you_mean(given, words_of(option.hint))
        end = f"; {remedy}." if near == "." and remedy else near
        raise ValueError(f"{key} must be {describe(option.hint)}, got {quoted(given)}{end}")
    if not isinstance(option.default, tuple) or isinstance(value, tuple) or value is None:
        return value
    return tuple(value) if isinstance(value, list) else (value,)  # a list is what a kept run has for a tuple


def find(
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
    if name in BESIDE:
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
