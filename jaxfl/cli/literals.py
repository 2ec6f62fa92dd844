"""Values written as text, and whether they are of a type as annotations write it.

>>> fit(parse("64"), tuple[int, ...]), describe(int | None)
((True, (64,)), 'a whole number or none')
"""

import ast
import inspect
import math
import types
import typing
from collections.abc import Sequence
from typing import Any


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


def fit(value: Any, hint: Any) -> tuple[bool, Any]:
    """Returns whether a value is of a type, and the value in it: an int as a float, a number as a tuple of one."""
    kind, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True, value
    if kind in (typing.Union, types.UnionType):
        # exact types first: 1 is an int, not a float or a tuple, where both are welcome
        for part in sorted(parts, key=lambda part: type(value) is not part):
            fits, fitted = fit(value, part)
            if fits:
                return True, fitted
        return False, value
    if kind is typing.Literal:
        return value in parts, value
    if hint in (None, types.NoneType):
        return value is None, value
    if hint is float:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        return fits, float(value) if fits else value
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool), value
    if inspect.isclass(kind or hint) and issubclass(kind or hint, Sequence) and hint is not str:
        many = value if isinstance(value, (list, tuple)) else (value,)
        length = None if not parts or parts[-1] is Ellipsis or kind is not tuple else len(parts)
        inner = [part for part in parts if part is not Ellipsis] or [Any]
        if length is not None and len(many) != length:
            return False, value
        fitted = [fit(one, inner[index] if length else inner[0]) for index, one in enumerate(many)]
        return all(fits for fits, _ in fitted), tuple(one for _, one in fitted)
    return isinstance(value, hint), value


def describe(hint: Any) -> str:
    """Returns a type in words."""
    kind, parts = typing.get_origin(hint), typing.get_args(hint)
    names = {int: "a whole number", float: "a number", str: "a word", bool: "true or false", types.NoneType: "none"}
    if kind in (typing.Union, types.UnionType):
        return " or ".join(describe(part) for part in parts)
    if kind is typing.Literal:
        return " or ".join(map(repr, parts))
    if kind is not None:
        return f"a list, each entry {describe(parts[0])}" if parts else "a list"
    return names.get(hint, getattr(hint, "__name__", str(hint)))
