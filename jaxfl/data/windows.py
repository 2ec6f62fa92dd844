"""Windows: the rows of a few clients of a federation whose pool stays in host memory or in mapped files.

A window is a federation of the same N clients with the same ids, so that everything that is addressed by a client's id
(random numbers, clusters, a row of a state) is unchanged. Its pool has only the rows of the chosen clients, and their
ranges refer to it; the ranges of all other clients are meaningless. All windows of one kind have the same shapes, so
that a second one needs no compilation.
"""

import functools
import mmap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxfl import tree
from jaxfl.data.clients import FederatedData, Split, replace_field
from jaxfl.typing import AnyArray, Array

Splits = Sequence[Literal["train", "test"]]
SHARDED_FIELDS = ("inputs", "labels", "train.rows", "test.rows")  # of a window, divided among devices
LOW = (1 << 32) - 1
RANGE_BLOCK = 1 << 24  # numbers of an array that are read at once


class Windows:
    """A factory of windows of one kind.

    Args:
        data: the federation, in host memory or mapped files.
        clients: largest number of clients of a window.
        splits: splits with rows in a window: `"train"`, `"test"`, or both.
        mesh: devices that windows are sent to; None is the first device.
        sharded: whether each device gets only the rows of its own clients, and each process reads only the rows of its
            devices: equal numbers of clients per device, in the given order. Row indices count through all parts as
            one pool, until `local_window` converts them to the device's part.

    Attributes:
        blank: a window without clients, on the device, with the shapes and common fields of all windows.

    >>> from jaxfl.data import synthetic
    >>> data = synthetic.clustered_linear(100, rows=40, features=4)
    >>> window = Windows(data, clients=2).of([70, 7])
    >>> window.num_clients, data.inputs.shape, window.inputs.shape
    (100, (8000, 4), (80, 4))
    >>> full, small = (each.batch(each.train, np.int32(70), np.arange(3)) for each in (data, window))
    >>> full.y.tolist() == small.y.tolist()
    True
    """

    def __init__(
        self,
        data: FederatedData,
        clients: int,
        splits: Splits = ("train",),
        mesh: jax.sharding.Mesh | None = None,
        *,
        sharded: bool = False,
    ):
        # validation rows are tested as test rows, see `on_validation`
        data = replace(data, validation=None, drift=data.drift and replace(data.drift, validation=None))
        self._data, self._splits = jax.tree.map(np.asarray, data), tuple(splits)
        devices = list(mesh.devices.flat) if mesh is not None and sharded else []
        here = [part for part, device in enumerate(devices) if device.process_index == jax.process_index()]
        self._parts, self._own = max(1, len(devices)), here or [0]
        self._everywhere = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        self._each = NamedSharding(mesh, PartitionSpec(mesh.axis_names[0])) if mesh is not None and sharded else None
        self._drift_rounds = data.drift_rounds
        self._ranges = {name: _ranges_by_stage(data, name) for name in self._splits}
        most = clients // self._parts
        widths = {name: max(_max_rows(ranges, most) for ranges in self._ranges[name]) for name in self._splits}
        self._width = max(1, sum(widths.values()))  # rows of a device's part
        zeros, begin, window_splits = np.zeros(data.num_clients, np.int32), 0, {}
        for name in ("train", "test"):
            there = np.arange(begin, begin + widths.get(name, 0), dtype=np.int32)
            rows = np.concatenate([part * self._width + there for part in self._own]).astype(np.int32)
            window_splits[name] = replace(getattr(data, name), rows=self._send(rows), start=zeros)
            begin += len(there)
        pool = {name: self._send(self._zeros(getattr(data, name))) for name in ("inputs", "labels")}
        drift = data.drift
        for name in ("train", "test"):  # a window has the ranges of its round
            if drift is not None and getattr(drift, name) is not None:
                drift = replace_field(drift, f"{name}.start", None)
        self.blank = self._replicate(
            replace(self._data, **pool, **window_splits, sharded=self._each is not None, drift=drift)
        )

    def of(self, ids: Sequence[int] | np.ndarray, real: np.ndarray | None = None, round: int = 0) -> FederatedData:
        """Returns the window of some clients on the devices; a client may occur several times, but only once as real.

        Args:
            ids: clients, at most as many as a window may hold; with sharding, equally many for each device, in
                order.
            real: bool `[M]`, whether the rows of an entry are needed; None is all True.
            round: round of the window, for data that drift.
        """
        ids, stage = np.asarray(ids), int(np.searchsorted(self._drift_rounds, round, side="right"))
        ranges = {name: stages[min(stage, len(stages) - 1)] for name, stages in self._ranges.items()}
        real = np.ones(len(ids), bool) if real is None else real
        inputs, labels = self._zeros(self._data.inputs), self._zeros(self._data.labels)
        start = {name: np.zeros(self._data.num_clients, np.int32) for name in self._splits}
        for part, (members, wanted) in enumerate(
            zip(np.split(ids, self._parts), np.split(real, self._parts), strict=True)
        ):
            members = members[wanted]
            begin = self._own.index(part) * self._width if part in self._own else None
            for name in self._splits:
                width = len(getattr(self.blank, name).rows) // self._parts
                places, first = _row_places(ranges[name], members)
                start[name][members] = part * width + first
                if begin is not None:
                    rows, place = take_rows(getattr(self._data, name).rows, places), slice(begin, begin + len(places))
                    take_rows(self._data.inputs, rows, out=inputs[place])
                    take_rows(self._data.labels, rows, out=labels[place])
                    begin += width
        window_splits = {
            name: replace(getattr(self.blank, name), start=tree.placed(value, self._everywhere))
            for name, value in start.items()
        }
        return replace(self.blank, inputs=self._send(inputs), labels=self._send(labels), **window_splits)

    def _zeros(self, like: AnyArray) -> np.ndarray:
        """Returns zeros with the shape of the rows of this process's parts."""
        return np.zeros((len(self._own) * self._width, *like.shape[1:]), like.dtype)

    def _send(self, rows: np.ndarray) -> Array:
        """Returns the rows of this process's parts on its devices; without sharding, on all devices."""
        if self._each is None:
            return tree.placed(rows, self._everywhere)
        length = len(rows) // len(self._own) * self._parts
        return jax.make_array_from_process_local_data(self._each, rows, (length, *rows.shape[1:]))

    def _replicate(self, window: FederatedData) -> FederatedData:
        """Returns a window with all host arrays sent to all devices."""
        return jax.tree.map(
            lambda leaf: leaf if isinstance(leaf, jax.Array) else tree.placed(leaf, self._everywhere), window
        )


def window_specs(shared: Any, axis: str) -> Any:
    """Returns the partition specs of a tree of arrays: sharded rows are divided, all other arrays are replicated.

    Args:
        shared: pytree of federations and other arrays.
        axis: name of the mesh axis.
    """

    def specs(part: Any) -> Any:
        everywhere = jax.tree.map(lambda _: PartitionSpec(), part)
        if not _is_sharded(part):
            return everywhere
        return functools.reduce(
            lambda specs, name: replace_field(specs, name, PartitionSpec(axis)), SHARDED_FIELDS, everywhere
        )

    return jax.tree.map(specs, shared, is_leaf=_is_sharded)


def local_window(shared: Any, axis: str) -> Any:
    """Returns a tree of arrays as one device holds it: rows of sharded federations are counted from its own first row.

    Args:
        shared: pytree of the device's blocks by the specs of `window_specs`.
        axis: name of the mesh axis.
    """

    def localize(node: Any) -> Any:
        if not _is_sharded(node):
            return node
        part, width = jax.lax.axis_index(axis), len(node.inputs)
        splits = {
            name: replace(split, rows=split.rows - part * width, start=split.start - part * len(split.rows))
            for name, split in (("train", node.train), ("test", node.test))
        }
        return replace(node, **splits, sharded=False)

    return jax.tree.map(localize, shared, is_leaf=_is_sharded)


def _is_sharded(part: Any) -> bool:
    """Returns whether this is a federation with rows on the devices of their clients."""
    return isinstance(part, FederatedData) and part.sharded


def take_rows(array: AnyArray, rows: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Returns `array[rows]`; the pages of a mapped file do not count as memory of this process afterwards.

    Args:
        array: array in host memory or a mapped file.
        rows: indices `[M]` within the array.
        out: array `[M, ...]` for the result, or None.
    """
    array = np.asarray(array)
    _prefetch_rows(array, rows)
    result = np.take(array, rows, axis=0, out=out, mode="clip")  # "raise" would fill a copy of `out`
    release_pages(array)
    return result


def release_pages(array: AnyArray) -> None:
    """Releases the pages of a mapped file from the memory of this process; other arrays are unchanged."""
    file = _mapped_file(array)
    if file is not None:
        file.madvise(mmap.MADV_DONTNEED)


def value_range(array: Any) -> tuple[int, int]:
    """Returns the smaller of 0 and the minimum of `[M]`, and the larger of 0 and the maximum; reads block by block."""
    low, high = 0, 0
    for begin in range(0, len(array), RANGE_BLOCK):
        part = array[begin : begin + RANGE_BLOCK]
        low, high = min(low, int(part.min())), max(high, int(part.max()))
        release_pages(array)
    return low, high


def _prefetch_rows(array: np.ndarray, rows: np.ndarray) -> None:
    """Advises the system to read all given rows of a mapped file at once.

    By default it reads ahead from every page that is accessed: 8 MB for a client of 39 kB on some machines.
    """
    file = _mapped_file(array)
    if file is None or not len(rows):
        return
    begin = array.ctypes.data - np.frombuffer(file, np.uint8).ctypes.data
    rows = rows.astype(np.int64)  # for offsets in bytes
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    first, last = rows[np.concatenate([[0], breaks])], rows[np.concatenate([breaks - 1, [len(rows) - 1]])]
    pages = (begin + first * array.strides[0]) // mmap.PAGESIZE * mmap.PAGESIZE
    ends = begin + (last + 1) * array.strides[0]
    for page, end in zip(pages.tolist(), ends.tolist(), strict=True):
        file.madvise(mmap.MADV_WILLNEED, page, end - page)


def _mapped_file(array: Any) -> mmap.mmap | None:
    """Returns the file of a read-only mapped array, or None: the memory of other arrays may be the only copy."""
    read_only = False
    while array is not None and not isinstance(array, mmap.mmap):
        read_only = read_only or (isinstance(array, np.memmap) and array.mode == "r")
        array = getattr(array, "base", None)
    return array if read_only and hasattr(mmap, "MADV_DONTNEED") else None


def _encoded_ranges(split: Split) -> np.ndarray:
    """Returns every client's range as one number `[N]` int64: the start in the upper bits, the size in the lower."""
    return (np.asarray(split.start, np.int64) << 32) | np.asarray(split.size, np.int64)


def _ranges_by_stage(data: FederatedData, split: str) -> list[np.ndarray]:
    """Returns the encoded ranges of a split before a drift and in each of its stages; once if they do not change."""
    unchanged = data.drift is None or getattr(data.drift, split) is None
    return [_encoded_ranges(getattr(now, split)) for now in ([data] if unchanged else data.phases)]


def _max_rows(ranges: np.ndarray, clients: int) -> int:
    """Returns the largest number of rows that `clients` clients have; a shared range counts once."""
    sizes = np.sort(np.unique(ranges) & LOW)
    return int(sizes[max(len(sizes) - clients, 0) :].sum())


def _row_places(ranges: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices of some clients' rows, range by range, and the first place of each client `[M]`."""
    distinct, member = np.unique(ranges[ids], return_inverse=True)
    size = distinct & LOW
    begin = np.cumsum(size) - size
    return np.repeat((distinct >> 32) - begin, size) + np.arange(size.sum()), begin[member.reshape(-1)]
