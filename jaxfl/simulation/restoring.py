"""The state of a checkpoint, whether its rows of the clients are in it, in a file beside it, or are to be there now."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxfl.methods.base import slots_of
from jaxfl.simulation import processes
from jaxfl.simulation.checkpoint import Saved
from jaxfl.simulation.kept_rows import NAME, Index, KeptRows, bytes_of, check_of
from jaxfl.simulation.rows_here import with_field
from jaxfl.typing import Params


def restored(saved: Saved, shapes: Any, field: str | None, *, kept: bool) -> Any:
    """Returns the state of a checkpoint, in host memory, with its rows where they are to be now.

    Args:
        saved: of a run whose rows were on the host, or were not.
        shapes: of the method's first state.
        field: of the state that has the rows, see `Method.per_client`.
        kept: whether they are to stay on the host.

    Raises:
        ValueError: the checkpoint holds the state of another method, or its rows are not there.
    """
    if field is None:
        return saved.state(shapes)
    whole, count, folder = getattr(shapes, field), shapes.cluster.shape[0], saved.path.parent
    if not on_host(saved, field):
        state = saved.state(shapes)
        return with_field(state, field, _from_whole(getattr(state, field), folder)) if kept else state
    if processes.several():
        raise ValueError(
            f"the run in {folder} keeps rows in {NAME}, which one process can go on with, and not several."
        )
    first = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype), whole)
    state = saved.state(with_field(shapes, field, Index.of_nobody(first, count)))
    rows = KeptRows(getattr(state, field), folder)
    return with_field(state, field, rows if kept else rows.take(np.arange(count)))


def on_host(saved: Saved, field: str | None) -> bool:
    """Returns whether a checkpoint's rows of the clients are in a file beside it."""
    return field is not None and f".{field}.place" in saved.arrays


def _from_whole(rows: Params, folder: Path) -> KeptRows:
    """Returns rows `[N, ...]` on the host, but for those that are the same for most clients."""
    leaves, structure = jax.tree.flatten(rows)
    checks = np.array([check_of(bytes_of(leaves, row)) for row in range(slots_of(rows))], np.uint32)
    _, member, sizes = np.unique(checks, return_index=True, return_counts=True)
    usual = int(member[sizes.argmax()])
    first = [leaf[usual : usual + 1] for leaf in leaves]

    def differs(row: int) -> bool:
        return not all(map(np.array_equal, bytes_of(leaves, row), bytes_of(first, 0)))

    kept = KeptRows(Index.of_nobody(jax.tree.unflatten(structure, first), len(checks)), folder)
    kept.write(np.arange(len(checks)), rows, np.array([differs(row) for row in range(len(checks))]))
    kept.settle()
    return kept
