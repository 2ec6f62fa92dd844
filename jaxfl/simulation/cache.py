"""Compiled programs that are kept on disk: the second run of the same shapes does not wait for the compiler."""

import hashlib
import platform
from pathlib import Path

import jax
import platformdirs

MOST = 1 << 30  # bytes
LEAST = 0.1  # seconds of compilation: what is quicker is not worth a file


def keep_programs(folder: str | Path | None = None, *, max_bytes: int = MOST) -> Path | None:
    """Keeps compiled programs on disk, by JAX's own persistent cache; the command line calls it, a notebook may.

    A program is found again where its shapes, options and versions are the same; results do not depend on it. The
    oldest are removed where there are too many. Programs for another processor lie in a folder of their own: a home
    that several machines share is no danger.

    Args:
        folder: None is `jaxfl/programs` in the user's cache folder (`~/.cache` on Linux).
        max_bytes: of all programs together.

    Returns:
        The folder; None where JAX was told of another one (`JAX_COMPILATION_CACHE_DIR`), which stays, or where the
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
    place = parent / _processor()
    try:
        place.mkdir(parents=True, exist_ok=True)
        (place / ".writable").touch()
    except OSError:  # a home that is read-only or full: the run goes on without
        return None
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_compilation_cache_max_size", max_bytes)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST)
    return place


def _processor() -> str:
    """Returns a name for what the CPU can do: programs use its instructions, and others may not have them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        told = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:  # not Linux
        told = platform.processor()
    return hashlib.sha256(f"{platform.machine()} {told}".encode()).hexdigest()[:12]
