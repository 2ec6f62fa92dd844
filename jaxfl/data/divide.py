"""Dividing the rows of every client in two: to hold some back, or to compare two parts; the data stay as they are."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl.data.clients import Split
from jaxfl.random import Stream, key_for
from jaxfl.typing import Key


def divide_rows(key: Key, split: Split, share: float) -> tuple[Split, Split]:
    """Divides every client's rows in two, at random: the same division in every round of a run.

    Args:
        key: of the run.
        split: the clients' rows; clients may share a range.
        share: of the rows held back, rounded to whole rows: at least one, and never all; none of a single row.

    Returns:
        The rows that are left, and those held back.
    """
    size = jnp.asarray(split.size)
    held = _held(size, share)
    # shuffle between any start and the next one, then hold back the last rows of every client
    place = jnp.arange(split.rows.shape[0], dtype=jnp.int32)
    piece = jnp.searchsorted(jnp.sort(jnp.asarray(split.start)), place, side="right")
    order = jnp.lexsort((jax.random.bits(key_for(key, Stream.VALIDATION), place.shape, jnp.uint32), piece))
    rows = jnp.asarray(split.rows)[order]
    sizes = np.arange(split.max_size + 1, dtype=np.int32)
    helds = _held(sizes, share, np)
    left = replace(split, rows=rows, size=size - held, max_size=int((sizes - helds).max()))
    return left, replace(split, rows=rows, start=split.start + size - held, size=held, max_size=int(helds.max()))


def _held(size: Any, share: float, xp: Any = jnp) -> Any:
    """Returns how many of `size` rows are held back, by JAX or by NumPy."""
    wanted = xp.round(size.astype(np.float32) * np.float32(share)).astype(np.int32)
    return xp.clip(xp.maximum(wanted, 1), 0, xp.maximum(size - 1, 0))
