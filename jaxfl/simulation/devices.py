"""Devices of a CPU, and the cache of compiled programs on disk."""

import contextlib
import hashlib
import os
import platform
from pathlib import Path

import jax
import platformdirs

from jaxfl.schema import checked

MAX_CORES = 8  # each holds the data and the state; more were not tried
# XLA ends a process in which one core waits for another for a minute, as it may in a long round; and one with a flag
# that it does not know: these are known to jaxlib 0.10 to 0.12.
PATIENCE = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=1000000",
    "--xla_cpu_collective_call_terminate_timeout_seconds=1000000",
)


@checked
def use_cores(count: int | None = None) -> int:
    """Makes the CPU's cores devices that share the clients of a round; call it before JAX computes anything.

    A product of one client is too small to keep several cores busy, and what lies between products keeps one: clients
    side by side, one on each core, take 0.57 to 0.92 of the time on two (`python -m experiments.speed.rounds` with and
    without `--cores 1`). Random choices are the same, parameters but for rounding. The command line calls it, a
    notebook may.

    Args:
        count: how many; None takes those that this process may use, at most 8.

    Returns:
        How many devices there are for it: 1 where JAX has computed already, or `XLA_FLAGS` sets a number.

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
            jax.config.update("jax_num_cpu_devices", count or min(there, MAX_CORES))
            os.environ["XLA_FLAGS"] = " ".join([flags, *PATIENCE]).strip()
    return max(jax.config.values["jax_num_cpu_devices"], 1)


def check_compiles() -> None:
    """Raises ValueError where JAX is told to compile nothing: the rounds of a run are a compiled program."""
    if jax.config.values["jax_disable_jit"]:
        raise ValueError(
            "JAX_DISABLE_JIT must be off, since the rounds of a run are a compiled program, got True; leave it out, or "
            "call jax.config.update('jax_disable_jit', False). jax.debug.print shows the numbers in a program."
        )


MAX_CACHE_BYTES = 1 << 30  # bytes
MIN_COMPILE_SECONDS = 0.1  # seconds of compilation: what is quicker is not worth a file


def keep_programs(folder: str | Path | None = None, *, max_bytes: int = MAX_CACHE_BYTES) -> Path | None:
    """Sets JAX's persistent cache of compiled programs on disk. The command line calls it; a notebook may.

    A program is found again where its shapes, options and versions are the same; results do not depend on it. The
    oldest are removed where there are too many. Programs for another processor lie in a folder of their own: a home
    that several machines share is no danger.

    Args:
        folder: None is `jaxfl/programs` in the user's cache folder (`~/.cache` on Linux).
        max_bytes: of all programs together.

    Returns:
        The folder; None where `JAX_COMPILATION_CACHE_DIR` sets another one, which stays, or where the
        folder cannot be written to.

    >>> import tempfile
    >>> before = jax.config.jax_compilation_cache_dir
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kept = keep_programs(folder)
    >>> kept is None if before else kept.parent == Path(folder)
    True
    """
    if jax.config.values["jax_compilation_cache_dir"]:
        return None
    parent = platformdirs.user_cache_path("jaxfl") / "programs" if folder is None else Path(folder)
    place = parent / _processor_name()
    try:
        place.mkdir(parents=True, exist_ok=True)
        (place / ".writable").touch()
    except OSError:  # a home that is read-only or full: the run goes on without
        return None
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_compilation_cache_max_size", max_bytes)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_SECONDS)
    return place


def _processor_name() -> str:
    """Returns a name of the CPU's instruction set: programs for another one may not run here."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:  # not Linux
        features = platform.processor()
    return hashlib.sha256(f"{platform.machine()} {features}".encode()).hexdigest()[:12]
