"""The laws of the contract, one function each: `check_some_law` checks the law "some law"."""

from collections.abc import Callable

from jaxfl.methods.base import Row
from jaxfl.testing.laws import clients, contract, invariance

CHECKS: dict[str, Callable[[Row], str | None]] = {
    name.removeprefix("check_").replace("_", " "): check
    for laws in (contract, invariance, clients)
    for name, check in vars(laws).items()
    if name.startswith("check_")
}
"""Every law by name: `check(row)` raises AssertionError, or returns None, or the reason why it does not apply."""
