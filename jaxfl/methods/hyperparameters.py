"""Hyperparameters as arguments of compiled programs.

A method that is made by name holds its numbers (learning rates, proximal weights, thresholds) as `Hyperparameters`. The
programs of a run (see `jaxfl.simulation.program`) take them as an argument, so that methods which differ in them alone
share all programs: a sweep over learning rates is compiled once.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Hyperparameters(NamedTuple):
    """The numbers of an object that programs take as an argument, and the way to make it of others.

    Attributes:
        build: `values -> object`, called inside a trace with numbers that are not known yet. Objects that differ in
            their values alone have the same function.
        values: the names and numbers of the object itself.
        bare: the object without hyperparameters. One that was changed later is another object, whose numbers are
            constants.
    """

    build: Callable[[Mapping[str, Any]], Any]
    values: tuple[tuple[str, float], ...]
    bare: Any


def attach(build: Callable[[Mapping[str, Any]], T], values: Mapping[str, float], built: T) -> T:
    """Returns an object with its hyperparameters.

    Args:
        build: see `Hyperparameters`.
        values: the numbers.
        built: `build(values)`, a `Method` or a `FineTune`.
    """
    return _replace(built, Hyperparameters(build, tuple(values.items()), built)) if values else built


def hyperparameters_of(thing: Any) -> Hyperparameters | None:
    """Returns the hyperparameters of an object; None if it has none, or was changed since they were attached."""
    found = getattr(thing, "hyperparameters", None)
    return found if isinstance(found, Hyperparameters) and _replace(thing, None) == found.bare else None


def _replace(thing: Any, found: Hyperparameters | None) -> Any:
    """Returns an object with other hyperparameters."""
    replace = thing._replace if hasattr(thing, "_replace") else lambda **field: dataclasses.replace(thing, **field)
    return replace(hyperparameters=found)
