"""What Ctrl-C and SIGTERM do to the command line, from its first moment on.

A run that has made rounds saves them and stops by itself, see `jaxfl.simulation.interrupts`. At any other moment, and
at the second signal, the process ends at once: with 130 after Ctrl-C, with 143 after SIGTERM. Python's own handlers
have to wait while JAX compiles or a round is computed; a thread that the signals wake does not.
"""

import contextlib
import os
import signal
import threading
from types import FrameType

from jaxfl.simulation import interrupts

_kept, _heard = "", 0


def install() -> None:
    """Takes the signals. Those that are ignored, as `nohup` and a shell's `&` ask for, stay so."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in interrupts.SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, hear)
    threading.Thread(target=_answer, args=(reader,), name="signals", daemon=True).start()


def hear(number: int, frame: FrameType | None) -> None:
    """Handles a signal: a run calls this when it has answered it; at any other moment the thread ends the process."""
    global _heard
    _heard = number


def heard() -> int:
    """Returns the number of the signal that a run has answered, 0 if none: one that was whole was given back."""
    return _heard


def tell(kept: str) -> None:
    """Sets what is said when the process is ended at once, after the word "interrupted": what is kept."""
    global _kept
    _kept = kept


def _answer(reader: int) -> None:
    """Waits for signals; of a run that has something to lose, for the second one."""
    asked = False
    while True:
        number = os.read(reader, 1)[0]
        if number not in interrupts.SIGNALS:
            continue  # another one that somebody handles, such as of a resized window
        if asked or not interrupts.at_stake():
            _end(number)
        asked = True
        _say("stopping after this round; once more ends at once")


def _end(number: int) -> None:
    """Ends the process, whatever its other threads do."""
    cursor = "\x1b[?25h" if os.isatty(2) else ""  # a progress bar hides it
    _say(f"{cursor}interrupted{_kept}")
    os._exit(128 + number)


def _say(words: str) -> None:
    """Writes a line of its own; not through Python's streams, which another thread may hold."""
    with contextlib.suppress(OSError):  # nobody reads it any more
        os.write(2, f"{os.linesep if os.isatty(2) else ''}{words}\n".encode())
