"""The rows of some clients, cut out of a state's rows of all: what a round and an evaluation are given of them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxfl import tree
from jaxfl.methods.base import slots_of
from jaxfl.typing import AnyArray, Array, Params


@struct.dataclass
class RowsHere(tree.Rows):
    """The rows of some clients, on the device; what is taken of anybody else means nothing.

    >>> rows = RowsHere({"w": np.array([[1.0], [2.0]])}, places(np.array([7, 3]), num_clients=9))
    >>> tree.take(rows, np.array([3, 7]))["w"].tolist()
    [[2.0], [1.0]]
    >>> tree.put(rows, np.array([3, 9]), {"w": np.array([[5.0], [6.0]])}).values["w"].tolist()
    [[1.0], [5.0]]
    """

    values: Params  # [C, ...]
    place: AnyArray  # [N] int32 of each client's row in them; C where it has none

    def take(self, index: AnyArray) -> Params:
        """Returns the rows `[C, ...]` of `index [C]`."""
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[jnp.asarray(self.place)[index]], self.values)

    def put(self, index: Array, rows: Params) -> "RowsHere":
        """Returns them with `rows` written at `index`; who is not here, or out of range, writes nothing."""
        place = jnp.asarray(self.place).at[index].get(mode="fill", fill_value=slots_of(self.values))
        return RowsHere(tree.put(jax.tree.map(jnp.asarray, self.values), place, rows), self.place)


def places(ids: np.ndarray, num_clients: int, mask: np.ndarray | None = None) -> np.ndarray:
    """Returns where each client's row is `[N]` among those of `ids [C]`; C where it is not.

    Args:
        ids: of clients.
        num_clients: N.
        mask: of them, the real ones, each of which is named once; None is all.
    """
    found, there = np.full(num_clients, len(ids), np.int32), np.arange(len(ids), dtype=np.int32)
    found[ids] = there
    if mask is not None:  # a client that is padding as well
        found[ids[mask]] = there[mask]
    return found


def shapes_here(whole: Params, count: int) -> RowsHere:
    """Returns the shapes of `count` rows, cut out of arrays (or shapes) `[N, ...]`."""
    values = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype), whole)
    return RowsHere(values, jax.ShapeDtypeStruct((slots_of(whole),), np.int32))


def sent(rows: RowsHere, place: Any) -> RowsHere:
    """Returns rows in host memory as they are on the device; the memory may be used again."""
    there = jax.device_put(rows, place)  # on a CPU this may be the host's memory itself
    return jax.block_until_ready(jax.tree.map(jnp.copy, there))


def with_field(state: Any, field: str, value: Any) -> Any:
    """Returns a state (a named tuple or a dataclass) with a field replaced."""
    return state._replace(**{field: value}) if hasattr(state, "_replace") else state.replace(**{field: value})
