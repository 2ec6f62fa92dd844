"""Options of a function, read from its signature and docstring, and checks of their values and types.

An option that takes one of a few words is annotated with a `Literal`. Type checkers, the command line, `jaxfl methods`
and the errors below read this annotation. `checked` refuses other words when the function is called, and values of a
wrong type where the annotation is a number, a word or one of `MAKERS`.

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
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

P = ParamSpec("P")
R = TypeVar("R")
TRACEABLE = "may be traced"
# The type of an option whose numbers are computed with, and decide neither a shape nor a branch, but for 0, which may
# switch something off. Runs by name make them arguments of the compiled programs, so that no number compiles anew. A
# share of models that are left out is none: it decides a whole number of them, which is counted exactly on the host.
Traceable = Annotated[float, TRACEABLE]
REQUIRED = inspect.Parameter.empty  # the default of an option that must be given
NOUNS = {
    **{int: "a whole number", float: "a number", str: "a word", bool: "true or false", types.NoneType: "none"},
    os.PathLike: "a path",
}
# By name, types that callers often confuse with others, and how to make one; they are defined in packages above this.
MAKERS = {
    "Task": "jaxfl.classification(module, data) makes one",
    "GradientTransformation": "optax.sgd(0.1) is one",
    "Method": "jaxfl.methods.fedavg(task, optax.sgd(0.1)) is one",
    "Metrics": "jaxfl.Metrics(counts, values) makes one",
    "Steps": "jaxfl.Steps(20) is one",
    "FineTune": "jaxfl.FineTune(optax.sgd(0.1), epochs=1) is one",
    "FederatedData": "jaxfl.data.load and jaxfl.data.federate make one",
    "Module": "jaxfl.models.MLP(num_classes=10) is one, and so is any flax.linen module",
}


class Option(NamedTuple):
    """One option.

    Attributes:
        name: keyword of the option.
        default: value of an option that is not given, or `REQUIRED`.
        hint: type annotation.
        line: description in the docstring.
        owner: part that has the option (a skew, a source), where options of several parts are merged.
        traceable: whether its numbers may be arguments of compiled programs, see `Traceable`.
    """

    name: str
    default: Any
    hint: Any
    line: str = ""
    owner: str = ""
    traceable: bool = False


def function_options(function: Callable[..., Any]) -> dict[str, Option]:
    """Returns the keyword-only options of a function by name.

    Args:
        function: function with annotations, or a `functools.partial` of one. The section `Args:` of its docstring gives
            the options' lines.
    """
    return dict(_keyword_options(function))


@functools.lru_cache(256)  # one takes a millisecond, and a table of results needs thousands
def _keyword_options(function: Callable[..., Any]) -> dict[str, Option]:
    unwrapped = inspect.unwrap(getattr(function, "func", function))
    hints, lines = get_type_hints(unwrapped, include_extras=True), docstring_lines(unwrapped)
    options = {}
    for given in inspect.signature(function).parameters.values():
        if given.kind is given.KEYWORD_ONLY:
            hint = hints.get(given.name, Any)
            traceable = Traceable in (hint, *get_args(hint))
            hint = get_type_hints(unwrapped).get(given.name, Any) if traceable else hint
            options[given.name] = Option(
                given.name, given.default, hint, lines.get(given.name, ""), traceable=traceable
            )
    return options


def parameter_options(function: Callable[..., Any]) -> dict[str, Option]:
    """Returns the parameters of a function, or of a class's `__init__`, that are given by name or by place, by name.

    Args:
        function: of a user: an annotation that cannot be evaluated, as of a type that is imported for a type checker
            alone, allows any value.

    >>> def noisy(rows: int, noise: Traceable = 0.1, **others): ...
    >>> [(one.name, one.default, one.hint, one.traceable) for one in parameter_options(noisy).values()]
    [('rows', <class 'inspect._empty'>, <class 'int'>, False), ('noise', 0.1, <class 'float'>, True)]
    """
    called = (
        function.__init__ if isinstance(function, type) else function
    )  # flax.nnx hides the signature of its classes
    lines = docstring_lines(function)
    try:
        parameters = list(inspect.signature(called, eval_str=True).parameters.values())
    except NameError:
        unread = inspect.signature(called).parameters.values()
        parameters = [parameter.replace(annotation=parameter.empty) for parameter in unread]
    options = {}
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            hint = Any if parameter.annotation is parameter.empty else parameter.annotation
            traceable = hint == Traceable
            options[parameter.name] = Option(
                parameter.name,
                REQUIRED if parameter.default is parameter.empty else parameter.default,
                float if traceable else hint,
                lines.get(parameter.name, ""),
                traceable=traceable,
            )
    return options


def docstring_lines(documented: Any) -> dict[str, str]:
    """Returns the description of each argument or attribute in a docstring, joined to one line, by name.

    Args:
        documented: a function or a class whose docstring has a section `Args:` or `Attributes:` in Google's style.
            A description of several names (`a, b: ...`) is the line of each of them.
    """
    doc = inspect.getdoc(documented) or ""
    section = re.search(r"^(?:Args|Attributes):\n((?:(?: +.*)?\n)*(?: +.*)?)", doc, re.MULTILINE)
    entries = re.split(r"^ {4}(?=\S)", section[1], flags=re.MULTILINE)[1:] if section else []
    described = [" ".join(entry.split()).partition(":") for entry in entries]
    return {name.strip("* "): line.strip() for names, _, line in described for name in names.split(",")}


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Returns the function with checks: it refuses a word outside the `Literal` of an argument, and a wrong type.

    The function then raises ValueError and TypeError, see `check_literal` and `check_type`.
    """
    arguments = inspect.signature(function).parameters
    if any(isinstance(each.annotation, str) for each in arguments.values()):  # from __future__ import annotations
        arguments = inspect.signature(function, eval_str=True).parameters
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    hints = {name: each.annotation for name, each in arguments.items() if each.kind not in variadic}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        values = {**dict(zip(arguments, args, strict=False)), **kwargs}
        given = [(name, values[name], hint) for name, hint in hints.items() if name in values]
        for name, value, hint in given:
            if isinstance(value, str) and literal_values(hint):
                check_literal(name, value, hint)
        for name, value, hint in given:
            check_type(name, value, hint)
            if literal_values(hint):
                check_literal(name, value, hint)
        return function(*args, **kwargs)

    return call


def check_type(name: str, value: Any, hint: Any) -> None:
    """Raises TypeError if a value is certainly not of a type; values that may be traced, and other types, pass.

    Args:
        name: name of the argument.
        value: its value.
        hint: its type. Numbers, words, paths and the types of `MAKERS` are checked, alone or in a union.

    >>> check_type("local_epochs", 5, int | None)
    >>> check_type("local_epochs", "5", int | None)
    Traceback (most recent call last):
    TypeError: local_epochs must be a whole number or none, got "5".
    """
    parts = [part for part in union_members(hint) if get_origin(part) is not Literal]
    with_maker = [part for part in parts if getattr(part, "__name__", "") in MAKERS]
    if not parts or not {*parts} <= {*NOUNS, None, *with_maker} or any(_may_be(value, part) for part in parts):
        return
    if literal_values(hint) and isinstance(value, str):
        return  # `check_literal` checks the words
    remedy = "".join(f"; {MAKERS[part.__name__]}" for part in with_maker)
    raise TypeError(f"{name} must be {describe(hint)}, got {value_phrase(value)}{remedy}.")


def _may_be(value: Any, part: Any) -> bool:
    """Returns whether a value may be of one type, which is a number, a word, None, or a class."""
    if part is None or isinstance(value, (bool, str, types.NoneType)):
        return type(value) is (types.NoneType if part is None else part)
    if part in (int, float):  # arrays and tracers may be one; NumPy's floats are numbers, but not whole numbers
        fits = isinstance(value, numbers.Integral if part is int else numbers.Real)
        return fits or hasattr(value, "dtype") and not isinstance(value, numbers.Real)
    if part in (bool, str):
        return part is bool and hasattr(value, "dtype")
    fields = getattr(part, "_fields", ())  # an object with all fields of a tuple of functions can replace it
    return isinstance(value, part) or bool(fields) and all(hasattr(value, field) for field in fields)


def is_known(value: Any) -> bool:
    """Returns whether a number has a value: inside a trace that of a `Traceable` option is not known.

    >>> import jax
    >>> known = []
    >>> jax.eval_shape(lambda value: known.append(is_known(value)), 0.1)
    >>> is_known(0.1), known
    (True, [False])
    """
    return all(base.__name__ != "Tracer" for base in type(value).__mro__)  # JAX's, which is not imported for a name


def is_zero(value: Any) -> bool:
    """Returns whether a number is known to be 0, which may switch something off: a 0 is never traced."""
    return is_known(value) and value == 0


def check_literal(name: str, value: Any, hint: Any) -> None:
    """Raises ValueError unless a value is one of the words of a type, or may be of another member of the union.

    Args:
        name: name of the argument.
        value: its value.
        hint: a type with a `Literal` in it. In a union with other types (`float | Literal["auto"]`) only text is
            checked.

    >>> check_literal("threshold", 0.3, float | Literal["auto"])
    >>> check_literal("threshold", "high", float | Literal["auto"])
    Traceback (most recent call last):
    ValueError: threshold must be a number or "auto", got "high".
    """
    words, others = literal_values(hint), [part for part in union_members(hint) if get_origin(part) is not Literal]
    kind = str if isinstance(value, str) else type(value)  # NumPy's str_ counts as str
    if any(type(word) is kind and value == word for word in words) or (value is None and None in others):
        return
    if isinstance(value, str) or set(others) <= {None}:
        raise ValueError(f"{name} must be {describe(hint)}, got {quoted(value)}{did_you_mean(value, words)}")


def check_word(name: str, value: Any, words: Iterable[str]) -> None:
    """Raises ValueError unless a value is one of several words, which may depend on the data.

    >>> check_word("recommended", "Conv_3", ["Conv_0", "Dense_0"])
    Traceback (most recent call last):
    ValueError: recommended must be "Conv_0" or "Dense_0", got "Conv_3"; did you mean "Conv_0"?
    """
    words = list(words)
    if value not in words:
        known = join_with_or(list(map(quoted, words)))
        raise ValueError(f"{name} must be {known}, got {quoted(value)}{did_you_mean(value, words)}")


def check_name(what: str, name: Any, known: Iterable[str]) -> None:
    """Raises ValueError, whose message lists the known names, unless a name is one of them.

    >>> check_name("model", "mpl", ["mlp", "logistic"])
    Traceback (most recent call last):
    ValueError: unknown model "mpl"; did you mean "mlp"? Known: mlp, logistic.
    """
    known = list(known)
    if name not in known:
        listing = ", ".join(known) or "none"
        raise ValueError(f"unknown {what} {quoted(name)}{did_you_mean(name, known)} Known: {listing}.")


def did_you_mean(name: Any, known: Iterable[Any]) -> str:
    """Returns the end of a sentence about an unknown name: the most similar known name, if one is similar.

    >>> did_you_mean("smiling", ["Smiling", "Young"]), did_you_mean("xyz", ["Smiling", "Young"])
    ('; did you mean "Smiling"?', '.')
    """
    lower = {str(candidate).lower(): candidate for candidate in known}
    near = difflib.get_close_matches(str(name).lower(), lower, n=1, cutoff=0.5)
    return f"; did you mean {quoted(lower[near[0]])}?" if near else "."


@functools.cache
def installed_entry_points(group: str) -> dict[str, EntryPoint]:
    """Returns the entry points that installed packages define for a group, by name; none is imported.

    Args:
        group: `"jaxfl.methods"`, `"jaxfl.models"` or `"jaxfl.data"`.
    """
    return {point.name: point for point in entry_points(group=group)}


def load_entry_point(group: str, name: str) -> Any:
    """Returns the imported object of an entry point.

    Raises:
        ValueError: the object cannot be imported.
    """
    point = installed_entry_points(group)[name]
    try:
        return point.load()
    except (Exception, SystemExit) as error:
        package = point.dist.name if point.dist else "an installed package"
        raise ValueError(
            f"{name} of {package} ({point.value}) cannot be imported: {type(error).__name__}: {error}; repair or "
            f"uninstall {package}."
        ) from error


def literal_values(hint: Any) -> tuple[Any, ...]:
    """Returns the words of a type: those of its `Literal`, alone or in a union.

    >>> literal_values(Literal["single", "complete"] | None), literal_values(str | None)
    (('single', 'complete'), ())
    """
    return tuple(word for part in union_members(hint) if get_origin(part) is Literal for word in get_args(part))


def union_members(hint: Any) -> list[Any]:
    """Returns the members of a union, or the type itself; the type of None is None."""
    union = get_origin(hint) in (Union, types.UnionType)
    parts = get_args(hint) if union else (hint,)
    plain = [get_args(part)[0] if get_origin(part) is Annotated else part for part in parts]
    return [None if part is types.NoneType else part for part in plain]


def describe(hint: Any) -> str:
    """Returns a phrase that describes a type.

    >>> describe(Literal["single", "complete", "average"] | None)
    '"single", "complete", "average" or none'
    >>> describe(int | float | None)
    'a number or none'
    """
    parts = sorted(union_members(hint), key=lambda part: get_origin(part) not in (None, Literal))  # lists at the end
    parts = [part for part in parts if part is not int or float not in parts]  # every number may be whole
    return join_with_or([noun for part in parts for noun in _nouns(part)])


def join_with_or(names: Sequence[str]) -> str:
    """Returns names as a phrase: `a, b or c`."""
    return " or ".join([", ".join(names[:-1]), *names[-1:]] if len(names) > 1 else names)


def value_phrase(value: Any) -> str:
    """Returns a value as messages show it where it is of a wrong type; of objects the name of their type.

    >>> value_phrase("5"), value_phrase(None), value_phrase({})
    ('"5"', 'None', 'a dict')
    """
    plain = isinstance(value, (str, numbers.Number, types.NoneType))
    return quoted(value) if plain else f"a {type(value).__name__}"


def quoted(value: Any) -> str:
    """Returns a value as messages show it; text is put in quotation marks."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _nouns(hint: Any) -> list[str]:
    """Returns nouns for a type that is not a union; of a `Literal`, each of its words."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Literal:
        return list(map(quoted, parts))
    if kind is not None:
        return [f"a list, each entry {describe(parts[0])}" if parts else "a list"]
    name = getattr(hint, "__name__", str(hint))
    return [NOUNS.get(type(None) if hint is None else hint, f"a {name}" if name in MAKERS else name)]
