"""Methods by name: those of jaxfl, of installed packages (entry points `jaxfl.methods`), and a user's `FILE.py:NAME`.

A method from outside is a `Row`, or a factory `(task, optimizer, *, options)` that returns a `Method`.
"""

import inspect
import warnings
from typing import Any

import optax

from jaxfl.methods import METHODS, Method, Row
from jaxfl.schema import check_name, function_options, installed_entry_points, load_entry_point, value_phrase
from jaxfl.settings import user_code
from jaxfl.tasks import Task

GROUP = "jaxfl.methods"
REMEDY = "it must be a function (task, optimizer, *, options) that returns a jaxfl.methods.Method, or a Row of one"


def names() -> list[str]:
    """Returns the names of all methods except those in files; a name of jaxfl cannot be replaced."""
    return [*METHODS, *(name for name in installed_entry_points(GROUP) if name not in METHODS)]


def rows() -> dict[str, Row]:
    """Returns the registry rows of `names`; a method that cannot be imported is left out with a warning."""
    imported = {}
    for name in names():
        try:
            imported[name] = row(name)
        except ValueError as error:
            warnings.warn(str(error), stacklevel=2)
    return imported


def is_method(name: str) -> bool:
    """Returns whether a name may be the name of a method; a file need not exist."""
    return name in METHODS or user_code.is_address(name) or name in installed_entry_points(GROUP)


def row(name: str) -> Row:
    """Returns the registry row of a method.

    Args:
        name: a key of `jaxfl.methods.METHODS`, the name of an entry point, or `FILE.py:NAME`.

    Raises:
        ValueError: there is no such method, or the object of this name is no method.

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
    result = found if isinstance(found, Row) else Row(found, _summary(found), "-")
    if not callable(result.factory):
        raise ValueError(f"{name} must be a method, got a {type(found).__name__}; {REMEDY}.")
    try:
        function_options(result.factory)
    except Exception as error:
        raise ValueError(f"{name} has options that cannot be read: {type(error).__name__}: {error}.") from error
    return result


def make(name: str, task: Task, optimizer: optax.GradientTransformation, **options: Any) -> Method:
    """Returns a method.

    Args:
        name: as for `row`.
        task: what is learned.
        optimizer: of the clients.
        **options: of its factory.

    Raises:
        ValueError: an option is refused, or a factory from outside jaxfl raises or returns no method.
    """
    factory = row(name).factory
    if name in METHODS:
        return factory(task, optimizer, **options)
    with user_code.one_line_errors(name, REMEDY):
        method = factory(task, optimizer, **options)
    if not isinstance(method, Method):
        raise ValueError(f"{name} must return a jaxfl.methods.Method, returned {value_phrase(method)}; {REMEDY}.")
    return method


def _summary(found: Any) -> str:
    """Returns the first line of the docstring of a factory's module, or of the factory."""
    texts = (inspect.getdoc(inspect.getmodule(found)), inspect.getdoc(found), "a method from outside")
    return next(text for text in texts if text).splitlines()[0].rstrip(".")
