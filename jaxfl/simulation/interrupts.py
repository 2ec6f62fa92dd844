"""Signals while a run goes on: noted at once, answered after a whole round.

An exception that a signal's handler raises may come out anywhere, in a callback of JAX too, which prints it and goes
on. So the handler of a run notes the signal and raises nothing. The run looks between two calls of its compiled rounds,
about a second or one round apart, saves, and stops with `Stopped`. One whose rounds are all made is given back instead,
with a warning: a handler of the caller's own was told of the signal, and may stop what comes after it.

The signals are Ctrl-C and Ctrl-backslash, the SIGTERM of schedulers, the SIGHUP of a terminal that is closed or a
connection that is lost, SIGUSR1, which SLURM sends some time before the end of a job if asked, and the SIGXCPU of a
limit of processor time.

This module imports nothing that takes time: the command line needs it before it imports JAX.
"""

import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from jaxfl.host.operating_system import signal_numbers

# Announcements: each may come several times (SIGXCPU does every second) and another signal after it, with time left.
NOTICES = signal_numbers("SIGHUP", "SIGUSR1", "SIGXCPU")
SIGNALS = (*signal_numbers("SIGINT", "SIGTERM", "SIGQUIT"), *NOTICES)
# A caller's handler of another signal may mean anything, and not the end of the run.
_ENDING = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A run was asked to stop, and has.

    Attributes:
        number: of the signal.
        round: the last whole one.
        rounds: those that were asked for.
        saved: the round of the last checkpoint; 0 where there is none.
        outcomes: what came of the seeds of the last program, where all rounds were made; else empty.
    """

    number: int = signal.SIGINT

    def __init__(self, round: int, rounds: int, saved: int, outcomes: Sequence[Any] = ()):
        self.round, self.rounds, self.saved, self.outcomes = round, rounds, saved, outcomes
        kept = f"the checkpoint is of round {saved}, resume=True goes on from it" if saved else "nothing is kept"
        super().__init__(f"stopped after round {round} of {rounds}; {kept}")


class Deferred:
    """Signals that wait until the run can stop: a context manager, which raises `Stopped` at its end if one came.

    The handlers that were there before are put back. One of the caller's own for SIGINT or SIGTERM is called first;
    where there is none, a signal ends the process, as it would have. A second SIGINT, SIGTERM or SIGQUIT is that of
    the handlers before, at once.

    One may be inside another, as a run of a sweep is: the outer one then has a signal that the inner one has answered.

    Outside of the main thread, where Python lets nobody set handlers, for signals that are ignored (as under `nohup`),
    and for other signals that the caller has a handler for, it does nothing.

    Args:
        stopped: makes the exception.

    Attributes:
        asked: whether a signal came, here or at another process of the run.
        number: of the first signal; 0 where none came.
        at_stake: whether stopping at once would lose rounds; the run says so.

    >>> with Deferred(lambda: Stopped(3, 20, saved=3)) as signals:
    ...     signals.asked
    False
    """

    def __init__(self, stopped: Callable[[], Stopped]):
        self.at_stake = False
        self._stopped = stopped
        self._number: int | None = None  # of a signal to this process
        self._pressed = False  # whether one came that is no announcement
        self._heard = 0
        self._before: dict[int, Any] = {}
        self._outer: Deferred | None = None

    @property
    def asked(self) -> bool:
        """Returns whether a signal came."""
        return self.number > 0

    @property
    def number(self) -> int:
        """Returns the number of the signal that came."""
        return self._number or self._heard

    def hear(self, number: int) -> None:
        """Takes a signal to another process of the run, or 0; the next one to this process is its first."""
        self._heard = number

    def __enter__(self) -> "Deferred":
        """Takes the signals."""
        global _active
        if threading.current_thread() is threading.main_thread():
            before = {number: signal.getsignal(number) for number in SIGNALS}
            self._before = {number: handler for number, handler in before.items() if _may_take(number, handler)}
            for number in self._before:
                signal.signal(number, self._note)
            around = _active is not None and _active._note in before.values()  # and not one that is being answered
            self._outer, _active = _active if around else None, self
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Gives them back, and stops if one came; an error goes first."""
        self._put_back()
        if not self.asked or kind is not None:
            return
        before = self._before.get(self.number)
        if before is signal.SIG_DFL:
            signal.raise_signal(self.number)  # ends the process
        elif before not in (None, signal.default_int_handler):
            before(self.number, None)
        stopped = self._stopped()
        stopped.number = self.number
        raise stopped

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal."""
        if number not in NOTICES:
            if self._pressed:
                one: Deferred | None = self
                while one is not None:
                    one._put_back()
                    one = one._outer
                signal.raise_signal(number)
            self._pressed = True
        self._number = self._number or number

    def _put_back(self) -> None:
        global _active
        for number, before in self._before.items():
            signal.signal(number, before)
        if _active is self and (self._outer is not None or not self.asked):
            _active = self._outer


_active: Deferred | None = None  # of the main thread; one that was asked stays: it is being answered
_answered = 0


def at_stake() -> bool:
    """Returns whether a run that has made rounds goes on, or stops because it was asked to."""
    one = _active
    while one is not None and not one.at_stake:
        one = one._outer
    return one is not None


def note_answered(number: int, frame: FrameType | None) -> None:
    """Records a signal that a run has answered: the handler of the command line, for all signals."""
    global _answered
    _answered = number


def answered_signal() -> int:
    """Returns the number of the signal that arrived in the last round of a run, which is complete then; 0 if none."""
    return _answered


def _may_take(number: int, handler: Any) -> bool:
    """Returns whether a run may take a signal from the handler that is there."""
    if handler in (signal.SIG_IGN, None):  # ignored ones stay so (nohup), and so do those that Python knows nothing of
        return False
    outer = isinstance(getattr(handler, "__self__", None), Deferred)
    return outer or number in _ENDING or handler in (signal.SIG_DFL, note_answered)
