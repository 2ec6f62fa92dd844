"""Host rows of a state: the rows of clients that have trained are in a file, and one row stands for all others.

A method may keep something for each of N clients, such as a model (see `Method.per_client`). Of these `[N, ...]` a
round needs its cohort's, and an evaluation those of some clients at a time: they are read from the file, and sent to
the device as `ResidentRows`, in which `tree.take` and `tree.put` find them by the clients' numbers.

The file, `rows.bin` in the run's directory, has places for rows, and an index has the place of each client's row. A
checkpoint holds the index, and the rows that it names are on the disk before it is written. A place that one of the two
checkpoints on disk names is not written again: a client that trains gets another one, which is free or at the file's
end. So a killed run goes on from its checkpoint, bit for bit, and no checkpoint writes more than the rows that were
trained since the last one. Without a directory the file is a temporary one. It is read and written, not mapped: memory
of rows is freed after their use, and a full disk is an error with a message.
"""

import contextlib
import errno
import math
import os
import shutil
import tempfile
import warnings
import weakref
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxfl import tree
from jaxfl.methods.base import slots_of
from jaxfl.typing import AnyArray, Array, Params


@struct.dataclass
class ResidentRows(tree.Rows):
    """The rows of some clients on the device; rows that are taken for other clients are meaningless.

    >>> rows = ResidentRows({"w": np.array([[1.0], [2.0]])}, row_places(np.array([7, 3]), num_clients=9))
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

    def put(self, index: Array, rows: Params) -> "ResidentRows":
        """Returns the rows with `rows` written at `index`; clients that are not among them write nothing."""
        place = jnp.asarray(self.place).at[index].get(mode="fill", fill_value=slots_of(self.values))
        return ResidentRows(tree.put(jax.tree.map(jnp.asarray, self.values), place, rows), self.place)

    def parts(self) -> tuple[Any, ...]:
        """Returns the rows of each child of a tuple."""
        return tuple(None if child is None else ResidentRows(child, self.place) for child in self.values)

    def joined(self, children: Params) -> "ResidentRows":
        """Returns the rows of a tree of rows of the same clients."""
        values = jax.tree.map(lambda child: child.values, children, is_leaf=lambda node: isinstance(node, tree.Rows))
        return ResidentRows(values, self.place)


def row_places(ids: np.ndarray, num_clients: int, mask: np.ndarray | None = None) -> np.ndarray:
    """Returns the place `[N]` of each client's row among those of `ids [C]`; C for other clients.

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


def resident_shapes(whole: Params, count: int) -> ResidentRows:
    """Returns the shapes of `count` rows, cut out of arrays (or shapes) `[N, ...]`."""
    values = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype), whole)
    return ResidentRows(values, jax.ShapeDtypeStruct((slots_of(whole),), np.int32))


def send_rows(rows: ResidentRows, place: Any) -> ResidentRows:
    """Sends rows from host memory to the device and returns them; the memory may then be used again."""
    there = jax.device_put(rows, place)  # on a CPU this may be the host's memory itself
    return jax.block_until_ready(jax.tree.map(jnp.copy, there))


NAME = "rows.bin"
READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
ALIGNMENT = 64  # bytes, of what XLA takes on a CPU without a copy


class Index(NamedTuple):
    """The places of the rows in the file, as a checkpoint saves them."""

    place: np.ndarray  # [N] int32 in the file; -1 for clients that have the first row
    check: np.ndarray  # [N] uint32, CRC-32 of what lies there
    first: Params  # [1, ...], what clients that have never trained have

    @classmethod
    def empty(cls, first: Params, num_clients: int) -> "Index":
        """Returns the index of clients that all have the first row `[1, ...]`."""
        return cls(np.full(num_clients, -1, np.int32), np.zeros(num_clients, np.uint32), first)


class HostRows(tree.Rows):
    """A row for each of N clients, on the host. One thread reads and writes the file, in order.

    Args:
        index: the places of the rows.
        folder: of the file; None makes a temporary one.
        new: whether to begin the file anew; otherwise what is there stays until two checkpoints no longer name it.

    Raises:
        ValueError: the file is missing, or shorter than the index says.
    """

    def __init__(self, index: Index, folder: Path | None = None, *, new: bool = False):
        self.index = Index(index.place.copy(), index.check.copy(), jax.tree.map(np.asarray, index.first))
        leaves, self._structure = jax.tree.flatten(self.index.first)
        self._kinds = [(leaf.shape[1:], leaf.dtype) for leaf in leaves]
        self._first = row_views(leaves, 0)
        self.row_bytes = sum(len(part) for part in self._first)
        self._path = None if folder is None else folder / NAME
        self._file = self._opened(new)
        weakref.finalize(self, self._file.close)
        self._end = 0 if new else -(-os.fstat(self._file.fileno()).st_size // max(self.row_bytes, 1))  # in places
        # those that a checkpoint names [M] bool; what is beyond was written since
        self._held, self._before = np.ones(self._end, bool), np.arange(self._end)
        self._free: list[int] = []
        self._thread = ThreadPoolExecutor(1, "rows")
        self._writing: Future | None = None
        self._memory, self._length = None, 0  # that `resident` reads into, and of how many rows

    def __repr__(self) -> str:
        """Returns a line: the rows may be larger than memory."""
        trained = int((self.index.place >= 0).sum())
        return f"HostRows({len(self.index.place)} clients, {trained} of them with a row of {self.row_bytes:,} bytes)"

    def check_room(self, clients: int) -> None:
        """Warns where the disk has no room for the rows of so many clients.

        Warns:
            UserWarning: the run may come to a full disk; it says so before the first round.
        """
        folder, wanted = self._path.parent if self._path else Path(tempfile.gettempdir()), clients * self.row_bytes
        if wanted > (free := shutil.disk_usage(folder).free):
            warnings.warn(
                f"rows of {clients:,} clients, as many as may train, take {wanted / 1e9:.1f} GB, and {free / 1e9:.1f} "
                f"GB are free in {str(folder)!r}; "
                f"{'take another directory' if self._path else 'TMPDIR names another place'}.",
                stacklevel=2,
            )

    @property
    def shapes(self) -> Params:
        """Returns the shapes `[N, ...]` of the rows of all clients."""
        count = len(self.index.place)
        leaves = [jax.ShapeDtypeStruct((count, *shape), kind) for shape, kind in self._kinds]
        return jax.tree.unflatten(self._structure, leaves)

    def take(self, index: AnyArray) -> Params:
        """Returns the rows of `index`, in host memory."""
        ids = np.asarray(index)
        found = self.read(ids.reshape(-1)).result()
        return jax.tree.map(lambda leaf: leaf.reshape(*ids.shape, *leaf.shape[1:]), found)

    def read(self, ids: np.ndarray, memory: Params = None) -> "Future[Params]":
        """Begins to read the rows `[C, ...]` of some clients, as they are after all that was written before.

        Args:
            ids: of the clients.
            memory: rows of as many clients that are not needed any more, to read into; None takes new memory.
        """
        return self._thread.submit(self._read, ids, jax.tree.leaves(memory))

    def resident(self, ids: np.ndarray, place: Any) -> ResidentRows:
        """Returns the rows of some clients at a place, as `Plan.place` gives it."""
        same = self._memory if len(ids) == self._length else None
        self._memory, self._length = self.read(ids, same).result(), len(ids)
        return send_rows(ResidentRows(self._memory, row_places(ids, len(self.index.place))), place)

    def write(self, ids: np.ndarray, rows: Params, mask: np.ndarray) -> None:
        """Begins to write rows `[C, ...]`, which must not change any more.

        Args:
            ids: of the clients.
            rows: theirs, in host memory.
            mask: which are to be written, each of them named once.

        Raises:
            OSError: the rows before could not be written.
        """
        self.settle()
        self._writing = self._thread.submit(self._write, ids, jax.tree.leaves(rows), mask)

    def settle(self) -> None:
        """Waits until all is written.

        Raises:
            OSError: it could not be.
        """
        if self._writing is not None:
            self._writing.result()

    def flush(self) -> None:
        """Waits until all is on the disk."""
        self.settle()
        with self._name_disk_errors():
            os.fsync(self._file.fileno())

    def hold(self) -> None:
        """Marks the rows as named by a checkpoint; the checkpoint before the last one is no longer needed."""
        now = self.index.place[self.index.place >= 0]
        self._held = np.zeros(self._end, bool)
        self._held[now] = self._held[self._before] = True
        self._before, self._free = now, np.flatnonzero(~self._held).tolist()

    def _opened(self, new: bool) -> Any:
        """Returns the file, unbuffered."""
        if self._path is None:
            return tempfile.TemporaryFile(buffering=0, prefix="jaxfl-rows-")
        wanted = (int(self.index.place.max(initial=-1)) + 1) * self.row_bytes
        found = self._path.stat().st_size if self._path.exists() else None
        if wanted and (found is None or found < wanted):
            raise ValueError(
                f"{self._path} must hold the clients' rows that the checkpoint names ({wanted:,} bytes), found "
                f"{'no file' if found is None else f'{found:,} bytes'}; put the file back as it was, or choose another "
                "directory."
            )
        with self._name_disk_errors():
            if new or found is None:
                return self._path.open("w+b", buffering=0)
            try:
                return self._path.open("r+b", buffering=0)
            except OSError as error:
                if error.errno not in READ_ONLY:
                    raise
            return self._path.open("rb", buffering=0)  # enough to load a run without training

    def _read(self, ids: np.ndarray, memory: list[np.ndarray]) -> Params:
        place, check = self.index.place[ids], self.index.check[ids]
        found = memory or [_aligned_memory((len(ids), *shape), kind) for shape, kind in self._kinds]
        for row in np.argsort(place, kind="stable").tolist():  # in the order of the file
            parts = row_views(found, row)
            if place[row] < 0:
                for part, first in zip(parts, self._first, strict=True):
                    part[:] = first
                continue
            self._file.seek(int(place[row]) * self.row_bytes)
            if not all(_transfer_all(self._file.readinto, part) for part in parts) or row_checksum(parts) != check[row]:
                raise ValueError(
                    f"{self._path or 'the temporary file of rows'} is damaged, or was gone on with by another run: "
                    f"what it holds for client {ids[row]} is not what was written; put the file back as it was, or "
                    "choose another directory."
                )
        return jax.tree.unflatten(self._structure, found)

    def _write(self, ids: np.ndarray, leaves: list[np.ndarray], mask: np.ndarray) -> None:
        with self._name_disk_errors():
            for row in np.flatnonzero(mask).tolist():
                client = ids[row]
                parts, place = row_views(leaves, row), int(self.index.place[client])
                if place < 0 or (place < len(self._held) and self._held[place]):
                    place = self._free.pop() if self._free else self._end
                self._file.seek(place * self.row_bytes)
                if not all(_transfer_all(self._file.write, part) for part in parts):
                    raise OSError("it takes nothing more")
                self._end = max(self._end, place + 1)
                self.index.place[client], self.index.check[client] = place, row_checksum(parts)

    @contextlib.contextmanager
    def _name_disk_errors(self) -> Iterator[None]:
        """Adds the file and the remedy to the error of a disk that is full or gone."""
        try:
            yield
        except OSError as error:
            where = self._path or f"a temporary file in {tempfile.gettempdir()!r} (TMPDIR says where)"
            raise OSError(
                f"{where} cannot be written to ({error.strerror or error}), which holds {self.row_bytes:,} bytes for "
                "each client that has trained; the last checkpoint is kept, if there is one; make room and resume, or "
                "choose another directory."
            ) from error


def with_resident_rows(state: Any, ids: np.ndarray, place: Any) -> Any:
    """Returns a state with the host rows of `ids` on the device; a state without host rows is returned as it is.

    Args:
        state: of a method.
        ids: of the clients with rows that are needed.
        place: where to send them, as `Plan.place` says.
    """
    return jax.tree.map(lambda leaf: leaf.resident(ids, place) if isinstance(leaf, HostRows) else leaf, state)


def has_host_rows(state: Any) -> bool:
    """Returns whether a state has host rows."""
    return any(isinstance(leaf, HostRows) for leaf in jax.tree.leaves(state))


def full_shapes(state: Any) -> Any:
    """Returns a state with the full shapes `[N, ...]` in place of host rows; a state without host rows is returned as
    it is.
    """
    return jax.tree.map(lambda leaf: leaf.shapes if isinstance(leaf, HostRows) else leaf, state)


@contextlib.contextmanager
def saved_on_disk(state: Any) -> Iterator[Any]:
    """Yields a state as a checkpoint saves it, after its host rows are on the disk; write the checkpoint inside."""
    kept = [leaf for leaf in jax.tree.leaves(state) if isinstance(leaf, HostRows)]
    for rows in kept:
        rows.flush()
    yield jax.tree.map(lambda leaf: leaf.index if isinstance(leaf, HostRows) else leaf, state)
    for rows in kept:
        rows.hold()


def row_views(leaves: list[np.ndarray], row: int) -> list[np.ndarray]:
    """Returns views of the bytes of a row, one for each leaf."""
    return [np.ascontiguousarray(leaf[row : row + 1]).reshape(-1).view(np.uint8) for leaf in leaves]


def row_checksum(parts: list[np.ndarray]) -> int:
    """Returns the CRC-32 of a row."""
    found = 0
    for part in parts:
        found = zlib.crc32(part.data, found)
    return found


def _aligned_memory(shape: tuple[int, ...], kind: np.dtype) -> np.ndarray:
    """Returns memory that JAX's CPU device can use without a copy."""
    size = math.prod(shape) * kind.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    return memory[begin : begin + size].view(kind).reshape(shape)


def _transfer_all(act: Callable[[np.ndarray], int | None], part: np.ndarray) -> bool:
    """Reads or writes a whole part, for which the system may need several calls; returns whether it succeeded."""
    done = 0
    while done < len(part):
        step = act(part[done:])
        if not step:
            return False
        done += step
    return True
