"""How long something may take."""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


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
