"""Signal handling of the command line: Ctrl-C and SIGTERM, from the start of the process.

A run with finished rounds saves them and stops, see `jaxfl.simulation.interrupts`. At any other moment, and at the
second signal, the process ends at once: with status 130 after Ctrl-C, with 143 after SIGTERM. Python's own handlers
wait while JAX compiles or computes a round; a thread that reads signals from a pipe does not.
"""

import contextlib
import os
import signal
import threading
from types import FrameType

from jaxfl.simulation import interrupts

_exit_note, _answered = "", 0


def install() -> None:
    """Installs the handlers. Signals that are ignored, as under `nohup` or a shell's `&`, stay ignored."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in interrupts.SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handle)
    threading.Thread(target=_watch_signals, args=(reader,), name="signals", daemon=True).start()


def handle(number: int, frame: FrameType | None) -> None:
    """Records a signal that a run has answered; at any other moment the thread ends the process."""
    global _answered
    _answered = number


def answered_signal() -> int:
    """Returns the number of the signal that arrived in the last round of a run, which is complete then; 0 if none."""
    return _answered


def set_exit_note(note: str) -> None:
    """Sets the text after the word "interrupted" where the process ends at once: what is saved."""
    global _exit_note
    _exit_note = note


def _watch_signals(reader: int) -> None:
    """Ends the process at a signal; where a run has unsaved rounds, at the second one."""
    warned = False
    while True:
        number = os.read(reader, 1)[0]
        if number not in interrupts.SIGNALS:
            continue  # another signal, such as of a resized window
        if warned or not interrupts.at_stake():
            _exit_at_once(number)
        warned = True
        _write_line("stopping after this round; a second signal ends at once")


def _exit_at_once(number: int) -> None:
    """Ends the process, regardless of other threads."""
    cursor = "\x1b[?25h" if os.isatty(2) else ""  # a progress bar hides it
    _write_line(f"{cursor}interrupted{_exit_note}")
    os._exit(128 + number)


def _write_line(text: str) -> None:
    """Writes a line to standard error; not through Python's stream, which another thread may have locked."""
    with contextlib.suppress(OSError):  # standard error is closed
        os.write(2, f"{os.linesep if os.isatty(2) else ''}{text}\n".encode())
