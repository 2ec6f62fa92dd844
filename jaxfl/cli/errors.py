"""What the command line makes of errors and warnings: one line, and an exit code."""

import contextlib
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

from jaxfl.settings import own
from jaxfl.simulation.interrupts import Stopped


@contextlib.contextmanager
def errors() -> Iterator[None]:
    """Shows what the library refuses as one red line, and exits with 2; with 130 or 143 where a run was stopped.

    What it warns of is a yellow line.
    """
    import typer

    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            yield
    except BrokenPipeError:  # of `jaxfl ... | head`: typer ends quietly
        raise
    except (ValueError, OSError, MemoryError, ImportError) as error:
        told = f"error: {' '.join(str(error).split())}{own.place(error)}"
        _print(told, "red")
        _leave(2)
        raise typer.Exit(2) from None
    except Exception as error:
        if not isinstance(error, typer.Exit):
            _leave(1, error)
        raise
    except Stopped as stopped:  # what is kept was said
        raise typer.Exit(128 + stopped.number) from None


def _warn(message: Warning | str, *place: Any) -> None:
    """Shows a warning, without the place in the code that Python adds."""
    _print(f"warning: {' '.join(str(message).split())}", "yellow")


def _print(text: str, style: str) -> None:
    """Shows a line."""
    from jaxfl.cli.tables.console import stderr

    stderr().print(text, style=style, soft_wrap=True, markup=False)


def _leave(code: int, error: Exception | None = None) -> None:
    """Ends the process if it is one of several, which would wait for it; an error is printed before."""
    import jax

    from jaxfl.cli.hosts import leave

    if jax.distributed.is_initialized():
        if error is not None:
            traceback.print_exception(error)
        leave(code)
