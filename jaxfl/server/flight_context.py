"""The asynchronous round that is being traced; None where all clients start from the state of the round.

`jaxfl.clock.asynchronous` sets it around the rounds of an asynchronous method, and the engine reads it, as it reads the
wire (see `jaxfl.server.wire_context`).
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from jaxfl.typing import Array, Params


class ActiveFlight(Protocol):
    """The part of an asynchronous round that the engine reads."""

    def over(self, run: Callable, fn: Callable, shared: Any, cohort: Any, own: Any, rows: Sequence[Params]) -> tuple:
        """Returns `run(fn, shared, cohort, own, rows)`, where each client works from what it was sent at its start."""
        ...


_flight: ContextVar[ActiveFlight | None] = ContextVar("flight", default=None)


def active_flight() -> ActiveFlight | None:
    """Returns the asynchronous round that is being traced, or None."""
    return _flight.get()


@contextlib.contextmanager
def activated_flight(flight: ActiveFlight) -> Iterator[None]:
    """Sets the asynchronous round while it is traced."""
    token = _flight.set(flight)
    try:
        yield
    finally:
        _flight.reset(token)


def update_start(received: Array, found: Array) -> Array:
    """Returns the cluster from whose model the update of a client is taken, whose cluster may change in a round.

    A wire takes it from the model that the client has received; an asynchronous round from that of the cluster which it
    contributes to, as it was when the client started: so the sum of a round is that of the models, if all are of it.

    Args:
        received: the client's cluster before `[]`.
        found: that to which it contributes `[]`.
    """
    return received if active_flight() is None else found


def refuse_asynchronous(what: str, reason: str) -> None:
    """Raises ValueError if an asynchronous round is traced, by methods, or with options, whose rule needs rounds.

    Args:
        what: the method, or its option with the value.
        reason: a clause with the reason and the remedy.
    """
    if active_flight() is not None:
        raise ValueError(f"asynchronous must be none for {what}, got one: {reason}.")
