"""Differences between operating systems, each with a fallback where one of them lacks what the others have.

This module imports nothing that takes time: the command line needs it before it imports JAX.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None


def signal_numbers(*names: str) -> tuple[signal.Signals, ...]:
    """Returns the signals of these names that this system has.

    >>> signal_numbers("SIGINT", "SIGNONE")
    (<Signals.SIGINT: 2>,)
    """
    return tuple(number for name in names if isinstance(number := getattr(signal, name, None), signal.Signals))


def signal_descriptor() -> int | None:
    """Returns a file descriptor from which the number of every handled signal can be read, a byte each.

    None where the system has none: then Python's handlers alone are called, between two steps of its main thread.
    """
    if not hasattr(signal, "set_wakeup_fd"):
        return None
    reader, writer = os.pipe()
    if hasattr(os, "set_blocking"):  # Windows neither needs nor, before Python 3.12, has it
        os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def peak_memory() -> int:
    """Returns the peak bytes of memory of this process; 0 where the system does not tell."""
    if resource is None:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # counts the program that started this one, too
    return peak if sys.platform == "darwin" else peak * 1024


def flush_folder(folder: Path) -> None:
    """Writes the names of the files in a folder to the disk, such as the new name of a file that was renamed.

    Nothing is done where a folder cannot be opened (Windows) or flushed (some network file systems).
    """
    with contextlib.suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
