"""Standard output and standard error of the command line: what cannot be written is dropped, and the command goes on.

A full disk, a closed pipe and a terminal that is gone cost the lines that they do not take, and no run. Lost progress
and notes change nothing. Lost results do where they are nowhere else: then the exit status is 2.
"""

import contextlib
import errno
import io
import os
import select
import sys
from typing import Any, TextIO

INPUT, OUTPUT, ERROR = 0, 1, 2  # file descriptors

_files: dict[int, "DroppingFile"] = {}  # behind the standard streams
_in_files = False


class DroppingFile(io.FileIO):
    """A file that drops what it cannot write.

    Attributes:
        error: the first error; None where all was written.
    """

    error: OSError | None = None

    def write(self, content: Any) -> int:  # bytes of any kind, such as a view of memory
        """Returns the number of bytes that were written or dropped."""
        try:
            while (count := super().write(content)) is None:  # a pipe that does not wait, and is full
                select.select([], [self], [])
            return count
        except OSError as error:
            self.error = self.error or error
            return len(content)


def install() -> None:
    """Replaces the standard streams of this process; those that are closed lead nowhere."""
    for descriptor in (INPUT, OUTPUT, ERROR):
        try:
            os.fstat(descriptor)
        except OSError:  # or a file of the run would be opened under this number, and written to
            os.open(os.devnull, os.O_RDWR)
    sys.stdout, sys.stderr = _dropping(sys.stdout, OUTPUT), _dropping(sys.stderr, ERROR)


def results_are_in_files() -> None:
    """Sets that the results of the command are in files, and not on standard output alone."""
    global _in_files
    _in_files = True


def exit_status(status: int | str | None) -> int | str | None:
    """Returns the exit status of the process: 2 where it was 0 and results are lost, which a line tells.

    Args:
        status: of the command. A closed pipe changes none: the reader has seen enough.
    """
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    error = _files[OUTPUT].error if OUTPUT in _files else None
    if error is None or error.errno == errno.EPIPE:
        return status
    kept = "the results are in files" if _in_files else "results were lost"
    print(f"warning: standard output cannot be written ({error.strerror}); {kept}.", file=sys.stderr)
    return status or (0 if _in_files else 2)


def _dropping(stream: TextIO | None, descriptor: int) -> TextIO:
    """Returns a stream that drops what it cannot write, in place of a standard one; any other one unchanged."""
    plain = isinstance(stream, io.TextIOWrapper)
    if stream is not None and not (plain and type(getattr(stream.buffer, "raw", stream.buffer)) is io.FileIO):
        return stream  # of a notebook, of a test, or of a Windows console
    _files[descriptor] = DroppingFile(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(_files[descriptor]),
        encoding=getattr(stream, "encoding", "utf-8"),
        errors="replace",  # a character that the terminal cannot show is not an error
        line_buffering=not plain or stream.line_buffering or stream.write_through,
    )
