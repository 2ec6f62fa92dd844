"""The rows of a few clients, cut out of a federation whose pool stays on the host: in memory, or in mapped files.

A window is a federation of the same N clients under the same numbers, so that whatever is addressed by a client's id
(random numbers, clusters, a row of a state) stays where it is. Its pool holds the rows of the chosen clients alone, and
their ranges point there; the range of anybody else means nothing. All windows of one kind have the same shapes: nothing
is compiled for a second one.
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
SHARDED_FIELDS = ("inputs", "labels", "train.rows", "test.rows")  # what of a window lies in parts, where it is sharded
LOW = (1 << 32) - 1
RANGE_BLOCK = 1 << 24  # numbers of an array at once


class Windows:
    """Cuts windows of one kind.

    Args:
        data: the federation, in host memory or mapped files.
        clients: the most clients of a window.
        splits: whose rows a window holds: those of `"train"`, of `"test"`, or of both.
        mesh: the devices that windows are sent to; None is the first one.
        sharded: whether each device is sent the rows of its own clients alone, and each process cuts those of its
            devices: as many clients a device, in the order that they are named in. Places count through all parts, as
            if they were one pool, until `local_window` counts from the device's own.

    Attributes:
        blank: a window of nobody, on the device: the shapes of all, and what they have in common.

    >>> from jaxfl.data import synthetic
    >>> data = synthetic.clustered_linear(100, rows=40, features=4)
    >>> window = Windows(data, clients=2).of([70, 7])
    >>> window.num_clients, data.inputs.shape, window.inputs.shape
    (100, (8000, 4), (80, 4))
    >>> own, there = (one.batch(one.train, np.int32(70), np.arange(3)) for one in (data, window))
    >>> own.y.tolist() == there.y.tolist()
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
        # whoever tests on them makes them the test rows, see `on_validation`
        data = replace(data, validation=None, drift=data.drift and replace(data.drift, validation=None))
        self._data, self._splits = jax.tree.map(np.asarray, data), tuple(splits)
        devices = list(mesh.devices.flat) if mesh is not None and sharded else []
        here = [part for part, device in enumerate(devices) if device.process_index == jax.process_index()]
        self._parts, self._own = max(1, len(devices)), here or [0]
        self._everywhere = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        self._each = NamedSharding(mesh, PartitionSpec(mesh.axis_names[0])) if mesh is not None and sharded else None
        self._drifts_at = data.drifts_at
        self._ranges = [{name: _encoded_ranges(getattr(now, name)) for name in self._splits} for now in data.phases]
        most = clients // self._parts
        widths = {name: max(_max_rows(ranges[name], most) for ranges in self._ranges) for name in self._splits}
        self._width = max(1, sum(widths.values()))  # rows of a part
        nobody, begin, made = np.zeros(data.num_clients, np.int32), 0, {}
        for name in ("train", "test"):
            there = np.arange(begin, begin + widths.get(name, 0), dtype=np.int32)
            rows = np.concatenate([part * self._width + there for part in self._own]).astype(np.int32)
            made[name] = replace(getattr(data, name), rows=self._sent(rows), start=nobody)
            begin += len(there)
        pool = {name: self._sent(self._empty(getattr(data, name))) for name in ("inputs", "labels")}
        drift = data.drift
        for name in ("train", "test"):  # a window says where the rows of its round are
            if drift is not None and getattr(drift, name) is not None:
                drift = replace_field(drift, f"{name}.start", None)
        self.blank = self._known(replace(self._data, **pool, **made, sharded=self._each is not None, drift=drift))

    def of(self, ids: Sequence[int] | np.ndarray, real: np.ndarray | None = None, round: int = 0) -> FederatedData:
        """Returns the window of these clients, sent to the devices; a client may be named twice, but be real once.

        Args:
            ids: clients, at most as many as a window may hold; where rows are sharded, the same number
                for each device, in order.
            real: of which the rows are needed `[M]` bool; None is all of them.
            round: whose rows are theirs, of data that drift.
        """
        ids, ranges = np.asarray(ids), self._ranges[self._drifts_at is not None and round >= self._drifts_at]
        real = np.ones(len(ids), bool) if real is None else real
        inputs, labels = self._empty(self._data.inputs), self._empty(self._data.labels)
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
        made = {
            name: replace(getattr(self.blank, name), start=tree.placed(value, self._everywhere))
            for name, value in start.items()
        }
        return replace(self.blank, inputs=self._sent(inputs), labels=self._sent(labels), **made)

    def _empty(self, like: AnyArray) -> np.ndarray:
        """Returns zeros for the rows of this process's parts."""
        return np.zeros((len(self._own) * self._width, *like.shape[1:]), like.dtype)

    def _sent(self, rows: np.ndarray) -> Array:
        """Returns the rows of this process's parts on its devices; or, where nothing is sharded, on all of them."""
        if self._each is None:
            return tree.placed(rows, self._everywhere)
        length = len(rows) // len(self._own) * self._parts
        return jax.make_array_from_process_local_data(self._each, rows, (length, *rows.shape[1:]))

    def _known(self, window: FederatedData) -> FederatedData:
        """Returns a window with what is on the host sent to all devices."""
        return jax.tree.map(
            lambda leaf: leaf if isinstance(leaf, jax.Array) else tree.placed(leaf, self._everywhere), window
        )


def window_specs(shared: Any, axis: str) -> Any:
    """Returns the specs of a tree of arrays: rows that are sharded are each on one device, all else is on all.

    Args:
        shared: federations, and anything else.
        axis: name of the mesh axis.
    """

    def specs(part: Any) -> Any:
        everywhere = jax.tree.map(lambda _: PartitionSpec(), part)
        if not _is_sharded(part):
            return everywhere
        return functools.reduce(
            lambda one, name: replace_field(one, name, PartitionSpec(axis)), SHARDED_FIELDS, everywhere
        )

    return jax.tree.map(specs, shared, is_leaf=_is_sharded)


def local_window(shared: Any, axis: str) -> Any:
    """Returns a tree of arrays as one device holds it: rows of sharded federations are counted from its own first row.

    Args:
        shared: the device's own blocks of what `window_specs` describes.
        axis: name of the mesh axis.
    """

    def own(one: Any) -> Any:
        if not _is_sharded(one):
            return one
        part, width = jax.lax.axis_index(axis), len(one.inputs)
        splits = {
            name: replace(split, rows=split.rows - part * width, start=split.start - part * len(split.rows))
            for name, split in (("train", one.train), ("test", one.test))
        }
        return replace(one, **splits, sharded=False)

    return jax.tree.map(own, shared, is_leaf=_is_sharded)


def _is_sharded(part: Any) -> bool:
    """Returns whether this is a federation whose rows lie on the devices of their clients."""
    return isinstance(part, FederatedData) and part.sharded


def take_rows(array: AnyArray, rows: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Returns `array[rows]`; of a mapped file, nothing of it counts as this process's memory afterwards.

    Args:
        array: on the host, or a mapped file.
        rows: `[M]`, each of them in the array.
        out: where to write them, `[M, ...]`, or None.
    """
    array = np.asarray(array)
    _prefetch_rows(array, rows)
    found = np.take(array, rows, axis=0, out=out, mode="clip")  # "raise" would fill a copy of `out`
    release_pages(array)
    return found


def release_pages(array: AnyArray) -> None:
    """Lets the pages of a mapped file no longer count as this process's memory; other arrays stay as they are."""
    file = _mapped_file(array)
    if file is not None:
        file.madvise(mmap.MADV_DONTNEED)


def value_range(array: Any) -> tuple[int, int]:
    """Returns the lowest and highest number of `[M]`, 0 at most and at least; a mapped file is read part by part."""
    low, high = 0, 0
    for begin in range(0, len(array), RANGE_BLOCK):
        part = array[begin : begin + RANGE_BLOCK]
        low, high = min(low, int(part.min())), max(high, int(part.max()))
        release_pages(array)
    return low, high


def _prefetch_rows(array: np.ndarray, rows: np.ndarray) -> None:
    """Tells the system which rows of a mapped file will be read, and begins with all of them at once.

    Left to itself it reads on behind every page that is touched: 8 MB for a client of 39 kB, on some machines.
    """
    file = _mapped_file(array)
    if file is None or not len(rows):
        return
    begin = array.ctypes.data - np.frombuffer(file, np.uint8).ctypes.data
    rows = rows.astype(np.int64)  # bytes are counted below
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    first, last = rows[np.concatenate([[0], breaks])], rows[np.concatenate([breaks - 1, [len(rows) - 1]])]
    pages = (begin + first * array.strides[0]) // mmap.PAGESIZE * mmap.PAGESIZE
    ends = begin + (last + 1) * array.strides[0]
    for page, end in zip(pages.tolist(), ends.tolist(), strict=True):
        file.madvise(mmap.MADV_WILLNEED, page, end - page)


def _mapped_file(array: Any) -> mmap.mmap | None:
    """Returns the file that an array is mapped from, to be read alone; None for any other: it may be the only copy."""
    read_only = False
    while array is not None and not isinstance(array, mmap.mmap):
        read_only = read_only or (isinstance(array, np.memmap) and array.mode == "r")
        array = getattr(array, "base", None)
    return array if read_only and hasattr(mmap, "MADV_DONTNEED") else None


def _encoded_ranges(split: Split) -> np.ndarray:
    """Returns every client's range as one number `[N]` int64, its start before its size."""
    return (np.asarray(split.start, np.int64) << 32) | np.asarray(split.size, np.int64)


def _max_rows(ranges: np.ndarray, clients: int) -> int:
    """Returns the most rows that so many clients can have; a range that clients share counts once."""
    sizes = np.sort(np.unique(ranges) & LOW)
    return int(sizes[max(len(sizes) - clients, 0) :].sum())


def _row_places(ranges: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the places of some clients' rows, one range behind the other, and where each client's begins `[M]`."""
    distinct, member = np.unique(ranges[ids], return_inverse=True)
    size = distinct & LOW
    begin = np.cumsum(size) - size
    return np.repeat((distinct >> 32) - begin, size) + np.arange(size.sum()), begin[member.reshape(-1)]
