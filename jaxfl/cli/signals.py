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

_exit_note, _answered = "", 0


def install() -> None:
    """Takes the signals. Those that are ignored, as `nohup` and a shell's `&` ask for, stay so."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in interrupts.SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handle)
    threading.Thread(target=_watch_signals, args=(reader,), name="signals", daemon=True).start()


def handle(number: int, frame: FrameType | None) -> None:
    """Handles a signal: a run calls this when it has answered it; at any other moment the thread ends the process."""
    global _answered
    _answered = number


def answered_signal() -> int:
    """Returns the number of the signal that a run has answered, 0 if none: one that was whole was given back."""
    return _answered


def set_exit_note(kept: str) -> None:
    """Sets what is said when the process is ended at once, after the word "interrupted": what is kept."""
    global _exit_note
    _exit_note = kept


def _watch_signals(reader: int) -> None:
    """Waits for signals; of a run that has something to lose, for the second one."""
    asked = False
    while True:
        number = os.read(reader, 1)[0]
        if number not in interrupts.SIGNALS:
            continue  # another one that somebody handles, such as of a resized window
        if asked or not interrupts.at_stake():
            _exit_at_once(number)
        asked = True
        _write_line("stopping after this round; once more ends at once")


def _exit_at_once(number: int) -> None:
    """Ends the process, whatever its other threads do."""
    cursor = "\x1b[?25h" if os.isatty(2) else ""  # a progress bar hides it
    _write_line(f"{cursor}interrupted{_exit_note}")
    os._exit(128 + number)


def _write_line(words: str) -> None:
    """Writes a line of its own; not through Python's streams, which another thread may hold."""
    with contextlib.suppress(OSError):  # nobody reads it any more
        os.write(2, f"{os.linesep if os.isatty(2) else ''}{words}\n".encode())
