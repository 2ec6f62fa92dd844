"""Processes that compute one run together, on one host or several: connecting, printing, ending."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator

import jax

from jaxfl.cli.tables.console import stderr
from jaxfl.schema import quoted
from jaxfl.simulation import processes

REMEDY = (
    "write --processes auto under SLURM, Open MPI or on a TPU pod, elsewhere --processes 2 --process 0 --coordinator "
    "HOST:PORT, and --process 1 in the second one"
)
GRACE_SECONDS = 2.0  # seconds for which the first process waits for the others to end


@contextlib.contextmanager
def joined_processes(count: str | None, number: int | None, coordinator: str | None) -> Iterator[None]:
    """Connects this process to the others of a run; inside, only the first process prints.

    Args:
        count: number of processes, `"auto"` to let JAX detect it (SLURM, Open MPI, TPU), or None for one process.
        number: index of this process, from 0; None with `"auto"`.
        coordinator: `HOST:PORT` of process 0; None with `"auto"`.

    Raises:
        ValueError: an option is out of range or missing, or the processes do not connect.
        ConnectionError: another process has ended during the run.
    """
    given = _distributed_arguments(count, number, coordinator)
    if given is None:
        yield
        return
    _connect_processes(*given)
    with open(os.devnull, "w") as nowhere, contextlib.ExitStack() as silence:
        if not processes.first():
            silence.enter_context(contextlib.redirect_stdout(nowhere))
            silence.enter_context(contextlib.redirect_stderr(nowhere))
        try:
            yield
            processes.gathered()  # no process ends before the files are written
        except jax.errors.JaxRuntimeError as error:
            raise ConnectionError(
                f"process {jax.process_index()}: another process of the run has ended or cannot be reached "
                f"({str(error).splitlines()[0]}); with --out, --resume continues from its checkpoint."
            ) from error


def exit_process(code: int) -> None:
    """Ends this process after an error was printed, without waiting for the others.

    They end as well: their communication fails, or JAX ends them when the first process is gone. So the first process
    ends last, and each of the others can print its error.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if processes.first():
        time.sleep(GRACE_SECONDS)
    os._exit(code)


def _distributed_arguments(
    count: str | None, number: int | None, coordinator: str | None
) -> tuple[int | None, int | None, str | None] | None:
    """Returns the arguments of `jax.distributed.initialize`, each None where JAX detects it; None for one process.

    Raises:
        ValueError: an option is out of range or missing.
    """
    if count in (None, "auto"):
        for name, value in {"process": number, "coordinator": coordinator}.items():
            if value is not None:
                raise ValueError(f"{name} needs the number of processes, got {value}; {REMEDY}.")
        return None if count is None else (None, None, None)
    if not count.isdecimal() or int(count) < 1:
        raise ValueError(f"processes must be a number from 1, or auto, got {quoted(count)}; {REMEDY}.")
    if number is None or not 0 <= number < int(count):
        raise ValueError(f"process must be from 0 to {int(count) - 1}, got {number}; {REMEDY}.")
    host, _, port = (coordinator or "").rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"coordinator must be HOST:PORT of process 0, got {quoted(coordinator)}; {REMEDY}.")
    return int(count), number, coordinator


def _connect_processes(count: int | None, number: int | None, coordinator: str | None) -> None:
    """Connects to the other processes, within five minutes."""
    jax.config.update("jax_enable_preemption_service", False)  # it would handle SIGTERM in place of the run
    which = "" if number is None else f"process {number} of {count}: "
    stderr().print(f"{which}waiting for the other processes, at most five minutes", soft_wrap=True)
    try:
        jax.distributed.initialize(coordinator, count, number)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"the processes could not connect ({str(error).splitlines()[0]}); {REMEDY}.") from error
