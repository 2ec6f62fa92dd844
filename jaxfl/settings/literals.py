"""Values written as text, and whether they are of a type as annotations write it.

>>> fit(parse("64"), tuple[int, ...])
(True, (64,))
"""

import ast
import math
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

from jaxfl.schema import parts_of


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


def said(value: Any) -> Any:
    """Returns a value as JSON can say it; what JSON does not know by its name, or by that of its type.

    Such are the defaults of a user's networks and methods (`act=nn.relu`), whose file has a checksum in the run.

    >>> said({"sizes": (1, 2), "act": math.sqrt, "made": object()})
    {'sizes': (1, 2), 'act': 'sqrt', 'made': 'object'}
    """
    if isinstance(value, dict):
        return {str(said(key)): said(one) for key, one in value.items()}
    if isinstance(value, (tuple, list)):
        return (tuple if isinstance(value, tuple) else list)(map(said, value))
    if value is None or isinstance(value, (str, int, float)):
        return value
    # never as repr has it: where something lies in memory is another place in every process
    return getattr(value, "__qualname__", type(value).__qualname__)


def fit(value: Any, hint: Any) -> tuple[bool, Any]:
    """Returns whether a value is of a type, and the value in it: an int as a float, a number as a tuple of one."""
    kind, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return True, value
    if len(members := parts_of(hint)) > 1:
        # exact types first: 1 is an int, not a float or a tuple, where both are welcome
        exact = None if value is None else type(value)
        for part in sorted(members, key=lambda part: part is not exact):
            fits, fitted = fit(value, part)
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
        fitted = [fit(one, inner[index] if length else inner[0]) for index, one in enumerate(many)]
        return all(fits for fits, _ in fitted), tuple(one for _, one in fitted)
    return isinstance(value, kind or hint), value


def can_say(hint: Any) -> bool:
    """Returns whether text can be of a type, beside none.

    >>> can_say(float | None), can_say(tuple[float, ...]), can_say(Exception | None)
    (True, True, False)
    """
    kinds = [get_origin(part) or part for part in parts_of(hint)]
    return any(kind in (Any, Literal, int, float, str, bool, tuple, list, Sequence) for kind in kinds)
