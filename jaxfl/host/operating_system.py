"""Differences between operating systems, each with a fallback where one of them lacks what the others have.

This module imports nothing that takes time: the command line needs it before it imports JAX.
"""

import contextlib
import ctypes
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


def return_freed_memory() -> None:
    """Gives memory that was freed back to the system, where the C library keeps it (glibc).

    Of what XLA takes to compile ResNet-18 it would otherwise keep half a gigabyte, beside the arrays of the run.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library; Windows has none by this name
        ctypes.CDLL(None).malloc_trim(0)


def module_command(module: str) -> list[str]:
    """Returns the beginning of a command that executes a module of jaxfl in a separate process of this Python.

    The process looks for modules where this one does, and nowhere else: `python -m` would look in the current folder
    first, which may be of somebody else and hold a `json.py`.
    """
    code = f"import sys; sys.path[:] = {sys.path!r}; import runpy; runpy.run_module({module!r}, run_name='__main__')"
    return [sys.executable, "-c", code]


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
