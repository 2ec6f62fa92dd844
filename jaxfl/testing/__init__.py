"""Battery of tests that every method passes: `check_method(row)`, for the methods of jaxfl and for your own.

A check tests one law of the contract (`jaxfl.methods.Method`); it depends on the registry row of the method alone. All
checks use a federation of eight clients of different sizes, one of them without rows, and a linear classifier. They
share compiled functions, and each takes about a second.

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
    """The outcome of one check of a method.

    Attributes:
        law: name of the law, a key of `CHECKS`.
        says: the law as a sentence.
        error: exception of the check: AssertionError if the law is broken, another error if the method fails, None if
            the law holds.
        reason: why the law does not apply here, or "".
    """

    law: str
    says: str
    error: BaseException | None
    reason: str


def check_method(row: Row) -> dict[str, str]:
    """Runs every check on a method.

    Args:
        row: registry row of `jaxfl.methods.METHODS`, or your own `Row(factory, summary, paper, small, finds_clusters)`;
            the values of `small` must be hashable.

    Returns:
        The checks that do not apply here, by name, with the reason, such as a missing second device.

    Raises:
        AssertionError: a law is broken; the message names the law and the difference.
    """
    outcomes = {name: check(row) for name, check in CHECKS.items()}
    return {name: reason for name, reason in outcomes.items() if reason}


def verdicts(row: Row) -> Iterator[Verdict]:
    """Yields the verdict of each check of a method in turn; a broken law does not end the iteration.

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
        except (Exception, SystemExit) as broken:  # a user's method may raise any error
            error = broken
        yield Verdict(law, inspect.getdoc(check) or "", error, (reason or "").removeprefix("not run: "))
