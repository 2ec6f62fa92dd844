"""The battery that every method passes: `check_method(row)`, for the methods of jaxfl and for those you write.

A check states one law of the contract (`jaxfl.methods.Method`) and knows nothing of the method but its registry row.
All run on a federation of eight ragged clients, one of them without rows, and a linear classifier: a second or so
each, with what they compile shared.

>>> from jaxfl.methods import METHODS
>>> CHECKS["argument names"](METHODS["fedavg"])
"""

import inspect
from collections.abc import Iterator
from typing import NamedTuple

from jaxfl.methods.base import Row
from jaxfl.testing.laws import CHECKS

__all__ = ["CHECKS", "Verdict", "check_method", "verdicts"]


class Verdict(NamedTuple):
    """What a check says of a method.

    Attributes:
        law: its name, a key of `CHECKS`.
        says: the law, in a sentence.
        error: what the check raised: AssertionError where the law is broken, another error where the method fails; None
            where it holds.
        reason: why the law says nothing here, or "".
    """

    law: str
    says: str
    error: Exception | None
    reason: str


def check_method(row: Row) -> dict[str, str]:
    """Runs every check on a method.

    Args:
        row: a line of `jaxfl.methods.METHODS`, or your own `Row(factory, summary, paper, small, finds_clusters)`; the
            values of `small` must be hashable.

    Returns:
        The checks that say nothing here, by name, and why: without a second device, for example.

    Raises:
        AssertionError: a law is broken; the message says which one, and how.
    """
    outcomes = {name: check(row) for name, check in CHECKS.items()}
    return {name: reason for name, reason in outcomes.items() if reason}


def verdicts(row: Row) -> Iterator[Verdict]:
    """Yields what each check says of a method, one after another; after a broken law, too.

    Args:
        row: as for `check_method`.

    >>> from jaxfl.methods import METHODS
    >>> next(verdicts(METHODS["fedavg"]))[::2]
    ('argument names', None)
    """
    for law, check in CHECKS.items():
        error, reason = None, None
        try:
            reason = check(row)
        except Exception as broken:  # of a method that somebody writes: anything
            error = broken
        yield Verdict(law, inspect.getdoc(check) or "", error, (reason or "").removeprefix("not run: "))
