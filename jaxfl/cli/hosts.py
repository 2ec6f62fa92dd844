"""The processes of a run, on one host or on several: how they find each other, and that one of them speaks."""

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
    "HOST:PORT, and --process 1 for the second one"
)
GRACE_SECONDS = 2.0  # seconds that the first process lets the others go before it


@contextlib.contextmanager
def joined_processes(count: str | None, number: int | None, coordinator: str | None) -> Iterator[None]:
    """Makes this process one of a run's; all but the first print nothing meanwhile, and an error comes out.

    Args:
        count: of the processes, `"auto"` to let JAX find out (SLURM, Open MPI, TPU), or None for a run of one process.
        number: of this process, from 0; None with `"auto"`.
        coordinator: `HOST:PORT` of process 0; None with `"auto"`.

    Raises:
        ValueError: an option is out of range or missing, or the processes do not find each other.
        ConnectionError: another process has ended while the run went on.
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
            processes.gathered()  # nobody leaves before the files are written
        except jax.errors.JaxRuntimeError as error:
            raise ConnectionError(
                f"process {jax.process_index()}: another process of the run has ended, or cannot be reached any more "
                f"({str(error).splitlines()[0]}); with --out, --resume goes on from its checkpoint."
            ) from error


def exit_process(code: int) -> None:
    """Ends this process, after an error that was told, without a word to the others, who may wait for it for ever.

    They end as well: what they exchange breaks off, or JAX ends them once the first process is not there any more. So
    it goes last: others that tell the same error shall do it themselves.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if processes.first():
        time.sleep(GRACE_SECONDS)
    os._exit(code)


def _distributed_arguments(
    count: str | None, number: int | None, coordinator: str | None
) -> tuple[int | None, int | None, str | None] | None:
    """Returns what JAX is to be told, None where it finds out; nothing for a run of one process."""
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
    """Meets the other processes."""
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM from the run
    which = "" if number is None else f"process {number} of {count}: "
    stderr().print(f"{which}waiting for the other processes, for five minutes at most", soft_wrap=True)
    try:
        jax.distributed.initialize(coordinator, count, number)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"the processes did not find each other ({str(error).splitlines()[0]}); {REMEDY}.") from error
