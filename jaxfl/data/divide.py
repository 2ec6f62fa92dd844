"""Dividing the rows of every client in two: to hold some back, or to compare two parts; the data stay as they are."""

from dataclasses import replace

import jax
import jax.numpy as jnp

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
    wanted = jnp.round(size.astype(jnp.float32) * share).astype(jnp.int32)
    held = jnp.clip(jnp.maximum(wanted, 1), 0, jnp.maximum(size - 1, 0))
    # shuffle between any start and the next one, then hold back the last rows of every client
    place = jnp.arange(split.rows.shape[0], dtype=jnp.int32)
    piece = jnp.searchsorted(jnp.sort(jnp.asarray(split.start)), place, side="right")
    order = jnp.lexsort((jax.random.bits(key_for(key, Stream.VALIDATION), place.shape, jnp.uint32), piece))
    rows = jnp.asarray(split.rows)[order]
    longest = min(split.max_size, int(share * split.max_size) + 1)
    left = replace(split, rows=rows, size=size - held)
    return left, replace(split, rows=rows, start=split.start + size - held, size=held, max_size=longest)
