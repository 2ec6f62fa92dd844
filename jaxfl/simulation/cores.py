"""The cores of a CPU as devices that share the clients of a round."""

import contextlib
import os

import jax

from jaxfl.schema import checked

MOST_CORES = 8  # each holds the data and the state; more were not tried
# XLA ends a process in which one core waits for another for a minute, as it may in a long round; and one with a flag
# that it does not know: these are known to jaxlib 0.10 to 0.12.
PATIENCE = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=1000000",
    "--xla_cpu_collective_call_terminate_timeout_seconds=1000000",
)


@checked
def use_cores(count: int | None = None) -> int:
    """Makes the cores of the CPU devices that share the clients of a round; before JAX computes anything.

    A product of one client is too small to keep several cores busy, and what lies between products keeps one: clients
    side by side, one on each core, take 0.57 to 0.92 of the time on two (`python -m experiments.speed.rounds` with and
    without `--cores 1`). Random choices are the same, parameters but for rounding. The command line calls it, a
    notebook may.

    Args:
        count: how many; None takes those that this process may use, at most 8.

    Returns:
        How many devices there are for it: 1 where JAX has computed already, or was told of a number by `XLA_FLAGS`.

    Raises:
        ValueError: `count` is less than 1.

    >>> use_cores() >= 1
    True
    """
    if count is not None and count < 1:
        raise ValueError(f"count must be at least 1 core, got {count}; none takes those that there are.")
    flags = os.environ.get("XLA_FLAGS", "")
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if "xla_force_host_platform_device_count" not in flags:
        with contextlib.suppress(RuntimeError):  # too late: JAX has started
            jax.config.update("jax_num_cpu_devices", count or min(there, MOST_CORES))
            os.environ["XLA_FLAGS"] = " ".join([flags, *PATIENCE]).strip()
    return max(jax.config.values["jax_num_cpu_devices"], 1)
