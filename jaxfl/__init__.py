"""Simulate clustered and personalised federated learning: all clients of a round in one compiled program."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxfl.public import *  # noqa: F403 (for type checkers; at run time `__getattr__` finds the names)


def __getattr__(name: str) -> Any:
    """Returns a module of the package, or a public name; the first public name imports all of them.

    They are imported lazily because the command line handles Ctrl-C before it imports JAX, which takes seconds.
    """
    try:
        return importlib.import_module(f"jaxfl.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"jaxfl.{name}":
            raise
    public = importlib.import_module("jaxfl.public")
    try:
        return getattr(public, name)
    except AttributeError:
        raise AttributeError(f"module 'jaxfl' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    """Returns the public names."""
    return sorted({*globals(), *__getattr__("__all__"), "__version__"})
