"""Limits and facts of a machine, and summaries of times."""

import contextlib
import ctypes
import importlib.metadata
import os
import platform
import statistics
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PACKAGES = ("jax", "jaxlib", "flax", "numpy")


def matrix_product(size: int) -> Callable[[], float]:
    """Returns the machine's limit as a function to time: a square float32 product, `2 * size**3` operations."""
    numbers = np.sin(np.arange(size**2, dtype=np.float32)).reshape(size, size)  # no two alike, and nothing to compile
    left, right = jnp.asarray(numbers), jnp.asarray(numbers.T)
    product = jax.jit(jnp.matmul)
    return lambda: float(product(left, right)[0, 0])


def keep_memory() -> None:
    """Sets glibc to keep freed memory; programs that run in turn would otherwise free and allocate it again.

    It brings W6 of `experiments/speed` nearer to what each side takes alone (without it, in turn: 1.8 and 1.5 times
    that); in some runs the sides still slow each other down.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library: nothing to tell
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((-1, 2**31 - 1), (-2, 256 << 20), (-3, 32 << 20)):  # M_TRIM_, M_TOP_PAD, M_MMAP_
            mallopt(parameter, value)


def spread_of(values: list[float]) -> dict[str, Any]:
    """Returns the median, the extremes and the values themselves.

    >>> spread_of([3.0, 1.0, 2.0])
    {'median': 2.0, 'min': 1.0, 'max': 3.0, 'values': [3.0, 1.0, 2.0]}
    """
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "values": values}


def facts() -> dict[str, Any]:
    """Returns the machine, ready for JSON: versions, device, cores and their load by other programs."""
    device = jax.devices()[0]
    versions = {name: importlib.metadata.version(name) for name in PACKAGES if name in sys.modules}
    return {
        "versions": {"python": platform.python_version(), **versions},
        "cores": os.cpu_count(),
        "device": device.device_kind,
        "platform": device.platform,
        "load": os.getloadavg()[0],
    }
