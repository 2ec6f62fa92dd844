"""The rows of a few clients, cut out of a federation whose pool stays on the host: in memory, or in mapped files.

A window is a federation of the same N clients under the same numbers, so that whatever is addressed by a client's id
(random numbers, clusters, a row of a state) stays where it is. Its pool holds the rows of the chosen clients alone, and
their ranges point there; the range of anybody else means nothing. All windows of one kind have the same shapes: nothing
is compiled for a second one.
"""

import mmap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import jax
import numpy as np

from jaxfl.data.clients import FederatedData, Split
from jaxfl.typing import AnyArray

Splits = Sequence[Literal["train", "test"]]
LOW = (1 << 32) - 1


class Windows:
    """Cuts windows of one kind.

    Args:
        data: the federation, in host memory or mapped files.
        clients: the most clients of a window.
        splits: whose rows a window holds: those of `"train"`, of `"test"`, or of both.
        mesh: the devices that windows are sent to; None is the first one.

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
    ):
        self._data, self._splits, self._mesh = jax.tree.map(np.asarray, data), tuple(splits), mesh
        self._ranges = {name: _ranges(getattr(data, name)) for name in self._splits}
        widths = {name: _widest(self._ranges[name], clients) for name in self._splits}
        self._width = max(1, sum(widths.values()))
        nobody, begin, made = np.zeros(data.num_clients, np.int32), 0, {}
        for name in ("train", "test"):
            rows = np.arange(begin, begin + widths.get(name, 0), dtype=np.int32)
            made[name] = replace(getattr(data, name), rows=rows, start=nobody)
            begin += len(rows)
        pool = {name: _empty(getattr(data, name), self._width) for name in ("inputs", "labels")}
        self.blank = replace(data, **pool, **made).on_device(mesh)

    def of(self, ids: Sequence[int] | np.ndarray) -> FederatedData:
        """Returns the window of these clients, sent to the device; a client may be named twice.

        Args:
            ids: clients, at most as many as a window may hold.
        """
        ids, begin = np.asarray(ids), 0
        inputs, labels = _empty(self._data.inputs, self._width), _empty(self._data.labels, self._width)
        made = {}
        for name in self._splits:
            blank = getattr(self.blank, name)
            rows, start = _packed(getattr(self._data, name), self._ranges[name], ids)
            place = slice(begin, begin + len(rows))
            take_rows(self._data.inputs, rows, out=inputs[place])
            take_rows(self._data.labels, rows, out=labels[place])
            made[name] = replace(blank, start=start)
            begin += len(blank.rows)
        return replace(self.blank, inputs=inputs, labels=labels, **made).on_device(self._mesh)


def take_rows(array: AnyArray, rows: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Returns `array[rows]`; of a mapped file, nothing of it counts as this process's memory afterwards.

    Args:
        array: on the host, or a mapped file.
        rows: `[M]`, each of them in the array.
        out: where to write them, `[M, ...]`, or None.
    """
    array = np.asarray(array)
    _ask_for(array, rows)
    found = np.take(array, rows, axis=0, out=out, mode="clip")  # "raise" would fill a copy of `out`
    let_go(array)
    return found


def let_go(array: AnyArray) -> None:
    """Lets the pages of a mapped file no longer count as this process's memory; other arrays stay as they are."""
    file = _file_of(array)
    if file is not None:
        file.madvise(mmap.MADV_DONTNEED)


def _ask_for(array: np.ndarray, rows: np.ndarray) -> None:
    """Tells the system which rows of a mapped file will be read, and begins with all of them at once.

    Left to itself it reads on behind every page that is touched: 8 MB for a client of 39 kB, on some machines.
    """
    file = _file_of(array)
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


def _file_of(array: Any) -> mmap.mmap | None:
    """Returns the file that an array is mapped from, to be read alone; None for any other: it may be the only copy."""
    read_only = False
    while array is not None and not isinstance(array, mmap.mmap):
        read_only = read_only or (isinstance(array, np.memmap) and array.mode == "r")
        array = getattr(array, "base", None)
    return array if read_only and hasattr(mmap, "MADV_DONTNEED") else None


def _empty(like: AnyArray, width: int) -> np.ndarray:
    """Returns zeros for so many rows."""
    return np.zeros((width, *like.shape[1:]), like.dtype)


def _ranges(split: Split) -> np.ndarray:
    """Returns every client's range as one number `[N]` int64, its start before its size."""
    return (np.asarray(split.start, np.int64) << 32) | np.asarray(split.size, np.int64)


def _widest(ranges: np.ndarray, clients: int) -> int:
    """Returns the most rows that so many clients can have; a range that clients share counts once."""
    sizes = np.sort(np.unique(ranges) & LOW)
    return int(sizes[max(len(sizes) - clients, 0) :].sum())


def _packed(split: Split, ranges: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pool rows of some clients, one range behind the other, and where each client's begins `[N]`."""
    distinct, member = np.unique(ranges[ids], return_inverse=True)
    size = distinct & LOW
    begin = np.cumsum(size) - size
    start = np.zeros(len(ranges), np.int32)
    start[ids] = begin[member.reshape(-1)]
    return take_rows(split.rows, np.repeat((distinct >> 32) - begin, size) + np.arange(size.sum())), start
