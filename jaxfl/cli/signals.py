"""Signal handling of the command line, from the start of the process: Ctrl-C, SIGTERM, SIGHUP, SIGUSR1 and others.

A run with finished rounds saves them and stops, see `jaxfl.simulation.interrupts`. At any other moment, and at the
second Ctrl-C or SIGTERM, the process ends at once. `exit_status` says how. Python's own handlers wait while JAX
compiles or computes a round; a thread that reads signals from a pipe does not.
"""

import atexit
import contextlib
import os
import signal
import threading

from jaxfl.host.operating_system import signal_descriptor, signal_numbers
from jaxfl.simulation import interrupts

TRY_AGAIN = 75  # exit status of a run that has used up its time (`EX_TEMPFAIL`): the same command continues it
_LIMITS = signal_numbers("SIGUSR1", "SIGXCPU")  # announce the end of the time that the run was given

_exit_note = ""


def exit_status(number: int) -> int:
    """Returns the exit status of a process that a signal has stopped: 75 for SIGUSR1 and SIGXCPU, else 128 + number.

    >>> exit_status(signal.SIGTERM), exit_status(signal.SIGUSR1)
    (143, 75)
    """
    return TRY_AGAIN if number in _LIMITS else 128 + number


def install() -> None:
    """Installs the handlers. Signals that are ignored, as under `nohup` or a shell's `&`, stay ignored."""
    reader = signal_descriptor()
    if reader is None:
        return
    for number in interrupts.SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupts.note_answered)
    atexit.register(_ignore_all)  # registered first, so called last
    threading.Thread(target=_watch_signals, args=(reader,), name="signals", daemon=True).start()


def ignore_notices() -> None:
    """Ignores the signals that announce an end, where the command has ended: its exit status stands."""
    for number in interrupts.NOTICES:
        signal.signal(number, signal.SIG_IGN)


def _ignore_all() -> None:
    """Ignores all signals while Python clears up, when nothing is left that could take long.

    Python gives its own handlers back before the process is gone, and a signal would end it with another status.
    """
    for number in interrupts.SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def set_exit_note(note: str) -> None:
    """Sets the text after the word "interrupted" where the process ends at once: what is saved."""
    global _exit_note
    _exit_note = note


def _watch_signals(reader: int) -> None:
    """Ends the process at a signal; where a run has unsaved rounds, at the second one that is no announcement."""
    warned = pressed = False
    while True:
        number = os.read(reader, 1)[0]
        if number not in interrupts.SIGNALS:
            continue  # another signal, such as of a resized window
        notice = number in interrupts.NOTICES
        if not interrupts.at_stake() or (pressed and not notice):
            _exit_at_once(number)
        if not warned:
            _write_line("stopping after this round; a second Ctrl-C or SIGTERM ends at once")
        warned, pressed = True, pressed or not notice


def _exit_at_once(number: int) -> None:
    """Ends the process, regardless of other threads."""
    cursor = "\x1b[?25h" if os.isatty(2) else ""  # a progress bar hides it
    _write_line(f"{cursor}interrupted{_exit_note}")
    os._exit(exit_status(number))


def _write_line(text: str) -> None:
    """Writes a line to standard error; not through Python's stream, which another thread may have locked."""
    with contextlib.suppress(OSError):  # standard error is closed
        os.write(2, f"{os.linesep if os.isatty(2) else ''}{text}\n".encode())
