"""The wire of the round that is being traced; None where contributions are summed as they are.

`jaxfl.wire` sets it around the rounds of a wired method, and the engine reads it. So no method, and nothing below the
methods, imports the wire.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from jaxfl.typing import Params


class ActiveWire(Protocol):
    """The part of a wire that the engine, `jaxfl.methods.base.info` and refusals read.

    Attributes:
        changes_sums: whether the sums may be others than without the wire.
        given: False for one that gives way to a wire of the method.
        is_noisy: whether the sums are noisy, so that nothing else of single clients may reach the server.
        name: in a refusal.
    """

    changes_sums: bool
    given: bool
    is_noisy: bool
    name: str

    def over(self, run: Callable, fn: Callable, shared: Any, cohort: Any, own: Any, rows: Sequence[Params]) -> tuple:
        """Returns `run(fn, shared, cohort, own, rows)`, with contributions that have been through the wire."""
        ...

    def num_bytes(self, message: Params) -> float:
        """Returns the bytes of a client's message, a pytree of arrays or shapes, in the wire's code."""
        ...


_wire: ContextVar[ActiveWire | None] = ContextVar("wire", default=None)


def active_wire() -> ActiveWire | None:
    """Returns the wire of the round that is being traced, or None."""
    return _wire.get()


@contextlib.contextmanager
def activated(wire: ActiveWire) -> Iterator[None]:
    """Sets the wire while a round is traced.

    Raises:
        ValueError: a wire is set already.
    """
    if (other := active_wire()) is not None and other.given:
        raise ValueError("method must be wired once, got a wired method; join the links with jaxfl.wire.chain.")
    token = _wire.set(wire)
    try:
        yield
    finally:
        _wire.reset(token)


def refuse_wire(what: str, reason: str) -> None:
    """Raises ValueError if a wire that changes sums is set, by methods, or with options, whose sums it cannot change.

    Args:
        what: the method, or its option with the value.
        reason: a clause with the reason and the remedy.
    """
    wire = active_wire()
    if wire is not None and wire.changes_sums:
        raise ValueError(f"{what} does not take {wire.name}: {reason}.")


def refuse_noise(what: str, reason: str) -> None:
    """Raises ValueError if a wire with noise is set: called under options that release more than sums of clients.

    Args:
        what: an option with its value.
        reason: a clause with the reason and the remedy.
    """
    if (wire := active_wire()) is not None and wire.is_noisy:
        raise ValueError(f"{what} takes no noise: {reason}.")
