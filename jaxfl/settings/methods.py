"""Methods by name: those of jaxfl, of installed packages (entry points `jaxfl.methods`), and a user's `FILE.py:NAME`.

A method from outside is a `Row`, or a factory `(task, optimizer, *, options)` that returns a `Method`.
"""

import inspect
import warnings
from typing import Any

import optax

from jaxfl.methods import METHODS, Method, Row
from jaxfl.schema import check_name, function_options, installed_entry_points, load_entry_point, quoted
from jaxfl.settings import user_code
from jaxfl.tasks import Task

GROUP = "jaxfl.methods"
REMEDY = "it must be a function (task, optimizer, *, options) that returns a jaxfl.methods.Method, or a Row of one"


def names() -> list[str]:
    """Returns the names of all methods but those of files; a name of jaxfl stays jaxfl's."""
    return [*METHODS, *(name for name in installed_entry_points(GROUP) if name not in METHODS)]


def rows() -> dict[str, Row]:
    """Returns the rows of `names`, but for those that cannot be imported, of which it warns."""
    found = {}
    for name in names():
        try:
            found[name] = row(name)
        except ValueError as error:
            warnings.warn(str(error), stacklevel=2)
    return found


def is_method(name: str) -> bool:
    """Returns whether a name may be that of a method; a file need not exist."""
    return name in METHODS or user_code.is_address(name) or name in installed_entry_points(GROUP)


def row(name: str) -> Row:
    """Returns the row of a method.

    Args:
        name: a key of `jaxfl.methods.METHODS`, the name of an entry point, or `FILE.py:NAME`.

    Raises:
        ValueError: there is no such method, or what stands there is none.

    >>> row("fedavg").paper
    'McMahan et al., AISTATS 2017'
    """
    if name in METHODS:
        return METHODS[name]
    if not is_method(name):
        if name.endswith(".py"):
            raise ValueError(f"method must be FILE.py:NAME, got {name!r}; write {name}: and the name of its factory.")
        check_name("method", name, names())
    found = user_code.load(name) if user_code.is_address(name) else load_entry_point(GROUP, name)
    made = found if isinstance(found, Row) else Row(found, _summary(found), "-")
    if not callable(made.factory):
        kind = type(found).__name__
        raise ValueError(f"{name} must be a method, got a {kind}; {REMEDY}.")
    try:
        function_options(made.factory)
    except Exception as error:
        raise ValueError(f"{name} has options that cannot be read: {type(error).__name__}: {error}.") from error
    return made


def make(name: str, task: Task, optimizer: optax.GradientTransformation, **options: Any) -> Method:
    """Returns a method.

    Args:
        name: as for `row`.
        task: what is learned.
        optimizer: of the clients.
        **options: of its factory.

    Raises:
        ValueError: an option is refused, or a factory from outside raises, or returns something else.
    """
    factory = row(name).factory
    if name in METHODS:
        return factory(task, optimizer, **options)
    with user_code.one_line_errors(name, REMEDY):
        method = factory(task, optimizer, **options)
    if not isinstance(method, Method):
        got = quoted(method) if method is None else f"a {type(method).__name__}"
        raise ValueError(f"{name} must return a jaxfl.methods.Method, returned {got}; {REMEDY}.")
    return method


def _summary(found: Any) -> str:
    """Returns what the module of a factory says first, or its own docstring."""
    texts = (inspect.getdoc(inspect.getmodule(found)), inspect.getdoc(found), "a method from outside")
    return next(text for text in texts if text).splitlines()[0].rstrip(".")
