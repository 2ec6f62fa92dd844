"""What campaigns have in common: some options, and how long something may take."""

import argparse
import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jaxfl.simulation import interrupts


def parser(description: str | None) -> argparse.ArgumentParser:
    """Returns the options that all campaigns have."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seed", type=int, default=0, help="of what is drawn")
    options.add_argument("--minutes", type=float, help="ends about then, with what was done so far")
    options.add_argument("--out", type=Path, help="file that gets the JSON line appended")
    return options


def heed_signals() -> None:
    """Lets this process be interrupted, and those that it begins be stopped, where `nohup` or `&` have switched it off.

    A signal that is ignored is ignored by the processes that this one begins; one that is handled is not.
    """
    for number in interrupts.SIGNALS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """Ends its block at Ctrl-C, without the case that was going on: what was done before is written behind it."""
    with contextlib.suppress(KeyboardInterrupt):
        yield


def until(minutes: float | None) -> Callable[[], bool]:
    """Returns what says whether there is time left; None is for ever.

    >>> until(None)(), until(0)()
    (True, False)
    """
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    return lambda: time.monotonic() < end


@contextlib.contextmanager
def within(seconds: int, error: type[BaseException]) -> Iterator[None]:
    """Raises the error in the block after some seconds; in the main thread alone, where signals are handled."""

    def late(*_: Any) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
