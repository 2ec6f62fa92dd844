"""The options of a function, read from its signature and its docstring, and the one check of their words and types.

An option that takes a few words is a `Literal` in the signature. Type checkers, the command line, `jaxfl methods` and
the errors below read this one annotation; `checked` refuses other words when the function is called, and values that
are of another type than a number, a word or one of `MAKERS`.

>>> @checked
... def average(models, *, weighting: Literal["rows", "uniform"] = "rows"):
...     '''Returns the average.
...
...     Args:
...         weighting: by rows, or the same for
...             every client.
...     '''
>>> function_options(average)["weighting"].line
'by rows, or the same for every client.'
>>> average([], weighting="row")
Traceback (most recent call last):
ValueError: weighting must be "rows" or "uniform", got "row"; did you mean "rows"?
"""

import difflib
import functools
import inspect
import numbers
import os
import re
import types
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

P = ParamSpec("P")
R = TypeVar("R")
REQUIRED = inspect.Parameter.empty  # the default of an option that must be given
NOUNS = {
    **{int: "a whole number", float: "a number", str: "a word", bool: "true or false", types.NoneType: "none"},
    os.PathLike: "a path",
}
# Types that functions are often given something else for, by name: they are defined above this floor.
MAKERS = {
    "Task": "jaxfl.classification(module, data) makes one",
    "GradientTransformation": "optax.sgd(0.1) is one",
    "Method": "jaxfl.methods.fedavg(task, optax.sgd(0.1)) is one",
    "Metrics": "jaxfl.Metrics(counts, values) makes one",
    "FineTune": "jaxfl.FineTune(optax.sgd(0.1), epochs=1) is one",
    "FederatedData": "jaxfl.data.load and jaxfl.data.federate make one",
    "Module": "jaxfl.models.MLP(num_classes=10) is one, and so is any flax.linen module",
}


class Option(NamedTuple):
    """One option.

    Attributes:
        name: as it is written in a call.
        default: its value where none is given, or `REQUIRED`.
        hint: its type, as annotations write it.
        line: what the docstring says of it.
        owner: who knows it, where several do.
    """

    name: str
    default: Any
    hint: Any
    line: str = ""
    owner: str = ""


def function_options(function: Callable[..., Any]) -> dict[str, Option]:
    """Returns the keyword-only options of a function by name.

    Args:
        function: any function with annotations; `functools.partial` of one, too. What its docstring says under `Args:`
            becomes the options' lines.
    """
    return dict(_keyword_options(function))


@functools.lru_cache(256)  # reading one takes a millisecond, and a table of results asks for thousands
def _keyword_options(function: Callable[..., Any]) -> dict[str, Option]:
    whole = inspect.unwrap(getattr(function, "func", function))
    hints, lines = get_type_hints(whole), docstring_lines(whole)
    return {
        word.name: Option(word.name, word.default, hints.get(word.name, Any), lines.get(word.name, ""))
        for word in inspect.signature(function).parameters.values()
        if word.kind is word.KEYWORD_ONLY
    }


def docstring_lines(documented: Any) -> dict[str, str]:
    """Returns what a docstring says of each argument or attribute, each on one line.

    Args:
        documented: a function or a class whose docstring has a section `Args:` or `Attributes:` in Google's style.
            What is said of several names at once (`a, b: ...`) is the line of each.
    """
    doc = inspect.getdoc(documented) or ""
    section = re.search(r"^(?:Args|Attributes):\n((?:(?: +.*)?\n)*(?: +.*)?)", doc, re.MULTILINE)
    entries = re.split(r"^ {4}(?=\S)", section[1], flags=re.MULTILINE)[1:] if section else []
    told = [" ".join(entry.split()).partition(":") for entry in entries]
    return {name.strip("* "): line.strip() for names, _, line in told for name in names.split(",")}


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Returns the function, which refuses a word that is not of its `Literal`, and a value of another type.

    It raises ValueError and TypeError, see `check_literal` and `check_type`.
    """
    words = inspect.signature(function).parameters
    if any(isinstance(word.annotation, str) for word in words.values()):  # from __future__ import annotations
        words = inspect.signature(function, eval_str=True).parameters
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    hints = {name: word.annotation for name, word in words.items() if word.kind not in several}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given = {**dict(zip(words, args, strict=False)), **kwargs}
        here = [(name, given[name], hint) for name, hint in hints.items() if name in given]
        for name, value, hint in here:
            if isinstance(value, str) and literal_values(hint):
                check_literal(name, value, hint)
        for name, value, hint in here:
            check_type(name, value, hint)
            if literal_values(hint):
                check_literal(name, value, hint)
        return function(*args, **kwargs)

    return call


def check_type(name: str, value: Any, hint: Any) -> None:
    """Raises TypeError if a value is surely not of a type; whatever may be traced, and all other types, may pass.

    Args:
        name: of the argument.
        value: what was given for it.
        hint: a type. Numbers, words, paths and the types of `MAKERS` are looked at, alone or beside each other.

    >>> check_type("local_epochs", 5, int | None)
    >>> check_type("local_epochs", "5", int | None)
    Traceback (most recent call last):
    TypeError: local_epochs must be a whole number or none, got "5".
    """
    parts = [part for part in union_members(hint) if get_origin(part) is not Literal]
    made = [part for part in parts if getattr(part, "__name__", "") in MAKERS]
    if not parts or not {*parts} <= {*NOUNS, None, *made} or any(_may_be(value, part) for part in parts):
        return
    if literal_values(hint) and isinstance(value, str):
        return  # `check_literal` knows the words
    remedy = "".join(f"; {MAKERS[part.__name__]}" for part in made)
    got = quoted(value) if isinstance(value, (str, numbers.Number, types.NoneType)) else f"a {type(value).__name__}"
    raise TypeError(f"{name} must be {describe(hint)}, got {got}{remedy}.")


def _may_be(value: Any, part: Any) -> bool:
    """Returns whether a value may be of one type: a number, a word, None, or a class."""
    if part is None or isinstance(value, (bool, str, types.NoneType)):
        return type(value) is (types.NoneType if part is None else part)
    if part in (int, float):  # arrays and what is traced may be; numpy's floats are numbers, and no whole ones
        fits = isinstance(value, numbers.Integral if part is int else numbers.Real)
        return fits or hasattr(value, "dtype") and not isinstance(value, numbers.Real)
    if part in (bool, str):
        return part is bool and hasattr(value, "dtype")
    fields = getattr(part, "_fields", ())  # anything with the parts of a tuple of functions is as good as it
    return isinstance(value, part) or bool(fields) and all(hasattr(value, field) for field in fields)


def check_literal(name: str, value: Any, hint: Any) -> None:
    """Raises ValueError unless a value is one of the words of a type, or of another of its parts.

    Args:
        name: of the argument.
        value: what was given for it.
        hint: a type with a `Literal` in it. Beside other types (`float | Literal["auto"]`) only text is looked at.

    >>> check_literal("threshold", 0.3, float | Literal["auto"])
    >>> check_literal("threshold", "high", float | Literal["auto"])
    Traceback (most recent call last):
    ValueError: threshold must be a number or "auto", got "high".
    """
    words, others = literal_values(hint), [part for part in union_members(hint) if get_origin(part) is not Literal]
    kind = str if isinstance(value, str) else type(value)  # NumPy's texts are texts
    if any(type(word) is kind and value == word for word in words) or (value is None and None in others):
        return
    if isinstance(value, str) or set(others) <= {None}:
        raise ValueError(f"{name} must be {describe(hint)}, got {quoted(value)}{did_you_mean(value, words)}")


def check_word(name: str, value: Any, words: Iterable[str]) -> None:
    """Raises ValueError unless a value is one of the words, which may depend on the data.

    >>> check_word("recommended", "Conv_3", ["Conv_0", "Dense_0"])
    Traceback (most recent call last):
    ValueError: recommended must be "Conv_0" or "Dense_0", got "Conv_3"; did you mean "Conv_0"?
    """
    words = list(words)
    if value not in words:
        known = join_with_or(list(map(quoted, words)))
        raise ValueError(f"{name} must be {known}, got {quoted(value)}{did_you_mean(value, words)}")


def check_name(what: str, name: Any, known: Iterable[str]) -> None:
    """Raises ValueError, with all the names there are, unless a name is one of them.

    >>> check_name("model", "mpl", ["mlp", "logistic"])
    Traceback (most recent call last):
    ValueError: unknown model "mpl"; did you mean "mlp"? Known: mlp, logistic.
    """
    known = list(known)
    if name not in known:
        listing = ", ".join(known) or "none"
        raise ValueError(f"unknown {what} {quoted(name)}{did_you_mean(name, known)} Known: {listing}.")


def did_you_mean(name: Any, known: Iterable[Any]) -> str:
    """Returns the end of a sentence about a name that is none of those known: the nearest of them, if one is near.

    >>> did_you_mean("smiling", ["Smiling", "Young"]), did_you_mean("xyz", ["Smiling", "Young"])
    ('; did you mean "Smiling"?', '.')
    """
    small = {str(one).lower(): one for one in known}
    near = difflib.get_close_matches(str(name).lower(), small, n=1, cutoff=0.5)
    return f"; did you mean {quoted(small[near[0]])}?" if near else "."


@functools.cache
def installed_entry_points(group: str) -> dict[str, EntryPoint]:
    """Returns what installed packages bring, by name: the entry points of a group, none of which is imported.

    Args:
        group: `"jaxfl.methods"`, `"jaxfl.models"` or `"jaxfl.data"`.
    """
    return {point.name: point for point in entry_points(group=group)}


def load_entry_point(group: str, name: str) -> Any:
    """Returns what an entry point names, imported.

    Raises:
        ValueError: it cannot be imported.
    """
    point = installed_entry_points(group)[name]
    try:
        return point.load()
    except Exception as error:
        package = point.dist.name if point.dist else "an installed package"
        raise ValueError(
            f"{name} of {package} ({point.value}) cannot be imported: {type(error).__name__}: {error}; repair or "
            f"uninstall {package}."
        ) from error


def literal_values(hint: Any) -> tuple[Any, ...]:
    """Returns the words that a type allows: those of its `Literal`, alone or beside other types.

    >>> literal_values(Literal["single", "complete"] | None), literal_values(str | None)
    (('single', 'complete'), ())
    """
    return tuple(word for part in union_members(hint) if get_origin(part) is Literal for word in get_args(part))


def union_members(hint: Any) -> list[Any]:
    """Returns the members of a union, or the type itself; the type of None is None."""
    union = get_origin(hint) in (Union, types.UnionType)
    parts = get_args(hint) if union else (hint,)
    return [None if part is types.NoneType else part for part in parts]


def describe(hint: Any) -> str:
    """Returns a type in words.

    >>> describe(Literal["single", "complete", "average"] | None)
    '"single", "complete", "average" or none'
    """
    parts = sorted(union_members(hint), key=lambda part: get_origin(part) not in (None, Literal))  # lists at the end
    return join_with_or([noun for part in parts for noun in _nouns(part)])


def join_with_or(names: Sequence[str]) -> str:
    """Returns names as they are said: `a, b or c`."""
    return " or ".join([", ".join(names[:-1]), *names[-1:]] if len(names) > 1 else names)


def quoted(value: Any) -> str:
    """Returns a value as messages show it: text in quotation marks."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _nouns(hint: Any) -> list[str]:
    """Returns what a type that is no union is called; every word of a `Literal` for itself."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Literal:
        return list(map(quoted, parts))
    if kind is not None:
        return [f"a list, each entry {describe(parts[0])}" if parts else "a list"]
    name = getattr(hint, "__name__", str(hint))
    return [NOUNS.get(type(None) if hint is None else hint, f"a {name}" if name in MAKERS else name)]
