"""Copies of rows of the pool, for clients whose images have other strokes or are corrupted.

These shifts are computed once, on the host, with all other shifts of the client (`jaxfl.data.views.seen_images`) in the
pixels: the copies are further rows of the pool, at most as many as the clients have. Clients with equal shifts share
them. `origin` says of which row each row is a copy: a row and its copies are one image, which nobody trains on if
anybody is tested on it.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np

from jaxfl.data import images
from jaxfl.data.casts import to_integers
from jaxfl.data.clients import FederatedData, Split, view_fields
from jaxfl.data.views import seen_images
from jaxfl.data.views.corruptions import STROKES, Corruption, corrupt, redraw_strokes, truncated

BLOCK = 1 << 10  # rows that are computed at once
_postponed: ContextVar[bool] = ContextVar("postponed", default=False)


@contextlib.contextmanager
def postponed_copies() -> Iterator[None]:
    """Leaves copies to a later call of `with_copies`, where several shifts follow each other."""
    token = _postponed.set(True)
    try:
        yield
    finally:
        _postponed.reset(token)


def with_copies(data: FederatedData) -> FederatedData:
    """Returns the federation with copies of the rows of all clients with other strokes or a corruption.

    Earlier copies are replaced, so that a shift may be added to clients that have copies.

    Args:
        data: federation without a drift, whose clients have the codes `stroke` and `corruption`.
    """
    data = without_copies(data)
    copied = _have_copies(data)
    if _postponed.get() or not copied.any():
        return data
    if data.input_shape != data.inputs.shape[1:]:
        wide = np.asarray(images.colour(data.inputs, 0, data.white))
        data = dataclasses.replace(data, inputs=wide, widened=data.inputs.ndim)
    columns = [_codes(data, name) for name in view_fields(data) if name != "label_shift"]  # images alone
    _, first, shift = np.unique(np.concatenate(columns, 1), axis=0, return_index=True, return_inverse=True)
    shift = np.where(copied, shift.reshape(-1), -1)
    splits = {name: _Ranges.of(split, shift) for name, split in data.splits.items()}
    begin, origin, numbers = len(data.inputs), [np.arange(len(data.inputs))], {}
    for number in np.unique(shift[copied]).tolist():
        rows = np.unique(np.concatenate([ranges.rows_of(number) for ranges in splits.values()]))
        numbers[number] = begin, rows
        origin.append(rows)
        begin += len(rows)
    inputs = np.empty((begin, *data.inputs.shape[1:]), np.uint8)
    inputs[: len(data.inputs)] = data.inputs
    for number, (start, rows) in numbers.items():
        for at in range(0, len(rows), BLOCK):
            part = rows[at : at + BLOCK]
            inputs[start + at : start + at + len(part)] = _as_seen(data, part, int(first[number]))
    origins = to_integers("rows of the pool", np.concatenate(origin), remedy="use fewer clients or rows")
    fields: dict[str, Any] = {name: ranges.copied(numbers) for name, ranges in splits.items()}
    return dataclasses.replace(data, inputs=inputs, labels=np.asarray(data.labels)[origins], origin=origins, **fields)


def without_copies(data: FederatedData) -> FederatedData:
    """Returns the federation with the rows that its clients' copies were made of."""
    if data.origin is None:
        return data
    origin = np.asarray(data.origin)
    count = int((origin == np.arange(len(origin))).sum())  # copies come behind the rows of before
    fields: dict[str, Any] = {
        name: dataclasses.replace(split, rows=origin[np.asarray(split.rows)]) for name, split in data.splits.items()
    }
    inputs = np.asarray(data.inputs)[:count]
    inputs = inputs[..., :1] if data.widened else inputs
    inputs = inputs[..., 0] if data.widened == 3 else inputs
    labels = np.asarray(data.labels)[:count]
    return dataclasses.replace(data, inputs=inputs, labels=labels, origin=None, widened=0, **fields)


def _have_copies(data: FederatedData) -> np.ndarray:
    """Returns which clients have other strokes or a corruption that needs a copy `[N]`."""
    codes = [np.asarray(one) for one in (data.stroke, data.corruption) if one is not None]
    return np.any([one > 0 for one in codes], axis=0) if codes else np.zeros(data.num_clients, bool)


def _codes(data: FederatedData, name: str) -> np.ndarray:
    """Returns a field of the clients' shifts as columns `[N, M]`; no columns if there is none."""
    value = getattr(data, name)
    return np.zeros((data.num_clients, 0)) if value is None else np.asarray(value).reshape(data.num_clients, -1)


def _as_seen(data: FederatedData, rows: np.ndarray, client: int) -> np.ndarray:
    """Returns the images of some rows `[M, ...]` as a client sees them, as uint8."""
    plain = dataclasses.replace(data, stroke=None, corruption=None)
    y = np.asarray(data.labels[rows])
    x = seen_images.turned_images(plain, np.asarray(data.inputs[rows]), y, client)
    if data.stroke is not None and data.stroke[client]:
        stroke: Any = STROKES[int(data.stroke[client]) - 1]
        x = redraw_strokes(np.asarray(x), stroke)
    x = np.asarray(seen_images.coloured_images(plain, x, y, client))
    corruption = None if data.corruption is None else Corruption.of_code(int(data.corruption[client]))
    if corruption is None or corruption.code == seen_images.INVERTED:
        return truncated(x if corruption is None else data.white - x, data.white)
    kind: Any = corruption.kind
    scale: Any = corruption.scale
    return corrupt(x, kind, corruption.level, scale=scale, seed=data.noise_seed, rows=rows, white=data.white)


@dataclasses.dataclass(frozen=True)
class _Ranges:
    """The different ranges of the clients in a split, and the shifts in which they are seen.

    Attributes:
        split: the split.
        distinct: start, size and shift of each range `[M, 3]`.
        member: the range of each client `[N]`.
    """

    split: Split
    distinct: np.ndarray
    member: np.ndarray

    @classmethod
    def of(cls, split: Split, shift: np.ndarray) -> "_Ranges":
        """Returns the ranges of a split; `shift [N]` is -1 for clients without copies."""
        ranges = np.stack([np.asarray(split.start), np.asarray(split.size), shift], 1)
        distinct, member = np.unique(ranges, axis=0, return_inverse=True)
        return cls(split, distinct, member.reshape(-1))

    def rows_of(self, shift: int) -> np.ndarray:
        """Returns the rows that clients with this shift have."""
        rows, own = np.asarray(self.split.rows), self.distinct[self.distinct[:, 2] == shift]
        return np.concatenate([np.zeros(0, np.int32), *(rows[start : start + size] for start, size, _ in own.tolist())])

    def copied(self, numbers: dict[int, tuple[int, np.ndarray]]) -> Split:
        """Returns the split of the copies: of each shift their first row, and the sorted rows they are copies of."""
        rows, parts = np.asarray(self.split.rows), []
        for start, size, shift in self.distinct.tolist():
            part = rows[start : start + size]
            if shift >= 0:
                begin, known = numbers[shift]
                part = begin + np.searchsorted(known, part)
            parts.append(part)
        split = self.split
        return dataclasses.replace(Split.shared(parts, self.member), flipped=split.flipped, triggered=split.triggered)
