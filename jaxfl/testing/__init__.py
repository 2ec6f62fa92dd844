"""The battery that every method passes: `check_method(row)`, for the methods of jaxfl and for those you write.

A check states one law of the contract (`jaxfl.methods.Method`) and knows nothing of the method but its registry row.
All run on a federation of eight ragged clients, one of them without rows, and a linear classifier: a second or so
each, with what they compile shared.

>>> from jaxfl.methods import METHODS
>>> CHECKS["argument names"](METHODS["fedavg"])
"""

from jaxfl.methods.base import Row
from jaxfl.testing.laws import CHECKS

__all__ = ["CHECKS", "check_method"]


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
