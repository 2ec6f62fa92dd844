"""Digests of a federation: two people whose digests are equal have the same federation.

A digest depends on the pool, on which of its rows each client has in which split, on how the client sees them (angle,
labels), on the causes of the groups, and on who is held out or absent, before and after a drift. It does not depend on
how these are stored, on the order of a client's rows, on names, on normalisation, on attackers, or on a run. The
`fingerprint` of a run is narrower: it also changes with all of these, and with the version of jaxfl that stores them.

The first 16 hexadecimal digits of SHA-256 follow `fed1:`. Hashed are, with all integers as little-endian int32 and a
list's length before it: the line `jaxfl-federation 1`; SHA-256 of the pool (its type and shape as a line of text, the
inputs, and the labels); N and L; for train, test and validation each client's sorted rows; each client's view; the
causes in the order of their names; the masks of clients that are held out and absent; the number of changes by a drift,
and for each its round, and rows, views, causes and masks afterwards.

`rows_digest` leaves the inputs out: equal rows, labels and views have equal digests, whatever the pixels are.
"""

import dataclasses
import hashlib
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np

from jaxfl.data.causes import UNNAMED
from jaxfl.data.clients import SPLITS, FederatedData, Split, view_fields
from jaxfl.data.views.copies import without_copies
from jaxfl.data.views.corruptions import SCALES, Corruption
from jaxfl.data.windows import release_pages
from jaxfl.typing import AnyArray

DIGITS = 16
LOOKED_AT_PIXELS = 64  # rows of the first client
BLOCK = 1 << 24  # bytes of an array that are hashed at once


def digest(data: FederatedData) -> str:
    """Returns the digest of a federation.

    >>> from jaxfl.data import load
    >>> shifted = load("shifted-digits", num_clients=4, shifts=(0, 5))
    >>> swapped = load("swapped-digits", num_clients=4, swaps="none,0:5/1:6/2:7/3:8/4:9")  # the same numbering
    >>> digest(shifted) == digest(swapped), digest(shifted) == digest(load("shifted-digits", num_clients=4))
    (True, False)
    """
    return f"fed1:{_hexadecimal(data, with_inputs=True)}"


def rows_digest(data: FederatedData) -> str:
    """Returns the digest of rows, labels and views alone: pools that differ in a few pixels have one.

    >>> from jaxfl.data import load
    >>> data = load("rotated-digits", num_clients=4)
    >>> darker = dataclasses.replace(data, inputs=data.inputs // 2)
    >>> rows_digest(data) == rows_digest(darker), digest(data) == digest(darker)
    (True, False)
    """
    return f"row1:{_hexadecimal(data, with_inputs=False)}"


def _hexadecimal(data: FederatedData, *, with_inputs: bool) -> str:
    """Returns the digits of a federation's digest."""
    data = without_copies(data)
    hashed = hashlib.sha256(b"jaxfl-federation 1\n")
    hashed.update(_pool_digest(data, with_inputs=with_inputs))
    hashed.update(_integers([data.num_clients, data.num_classes]))
    first, *later = data.phases
    for part in _clients_bytes(first):
        hashed.update(part)
    hashed.update(_integers([len(later)]))
    for round, changed in zip(data.drift_rounds, later, strict=True):
        hashed.update(_integers([round]))
        for part in _clients_bytes(changed):
            hashed.update(part)
    return hashed.hexdigest()[:DIGITS]


def pixel_digest(data: FederatedData) -> str | None:
    """Returns the digest of the first client's first 64 training rows as it sees them, by number; None of no pixels.

    >>> from jaxfl.data import load
    >>> plain, turned = load("iid-digits"), load("rotated+iid-digits", angles=(90,))
    >>> pixel_digest(plain) == pixel_digest(load("iid-digits")), pixel_digest(plain) == pixel_digest(turned)
    (True, False)
    """
    if data.inputs.dtype != np.uint8:
        return None
    (now, *_), sizes = data.phases, np.asarray(data.train.size)
    start = int(np.asarray(now.train.start)[0])
    positions = np.argsort(np.asarray(now.train.rows)[start : start + int(sizes[0])], kind="stable")
    unscaled = dataclasses.replace(now, mean=None, std=None)
    seen = np.asarray(unscaled.batch(now.train, jnp.int32(0), jnp.asarray(positions[:LOOKED_AT_PIXELS], jnp.int32)).x)
    pixels = np.clip(np.rint(seen), 0, 255).astype(np.uint8)
    return f"pix1:{hashlib.sha256(pixels.tobytes()).hexdigest()[:DIGITS]}"


def num_hashed_bytes(data: FederatedData) -> int:
    """Returns the approximate number of bytes that `digest` hashes."""
    rows = sum(int(np.asarray(split.size).sum(dtype=np.int64)) for now in data.phases for split in now.splits.values())
    return int(data.inputs.nbytes + data.labels.nbytes) + 4 * rows


def _pool_digest(data: FederatedData, *, with_inputs: bool) -> bytes:
    """Returns SHA-256 of the pool: a line with type and shape, the inputs if wanted, and the labels."""
    shape = " x ".join(map(str, data.inputs.shape))
    hashed = hashlib.sha256(f"{data.inputs.dtype.name} {shape}\n".encode())
    for array in (data.inputs, data.labels) if with_inputs else (data.labels,):
        for block in _blocks(array):
            hashed.update(block)
    return hashed.digest()


def _blocks(array: AnyArray) -> Iterator[bytes]:
    """Yields the bytes of an array in C order, little-endian, block by block."""
    length = max(1, BLOCK // max(1, array.nbytes // max(1, len(array))))
    for begin in range(0, len(array), length):
        part = np.asarray(array[begin : begin + length])
        yield part.astype(part.dtype.newbyteorder("<"), copy=False).tobytes()
        release_pages(array)


def _clients_bytes(data: FederatedData) -> Iterator[bytes]:
    """Yields the bytes of the clients: their rows, views and causes, and the masks."""
    for name in SPLITS:
        yield from _rows_bytes(getattr(data, name), data.num_clients)
    yield from _views_bytes(data)
    causes = dict(data.causes) or ({} if data.group is None else {UNNAMED: data.group})
    yield _integers([len(causes)])
    for name, pattern in sorted(causes.items()):
        yield _text(name) + _listed(pattern)
    for mask in (data.held_out, data.absent):
        yield _listed(np.zeros(data.num_clients, np.int32) if mask is None else mask)


def _rows_bytes(split: Split | None, num_clients: int) -> Iterator[bytes]:
    """Yields the sorted rows of each client, also of those that share them."""
    if split is None:
        yield _listed([]) * num_clients
        return
    rows, ranges = np.asarray(split.rows), np.stack([np.asarray(split.start), np.asarray(split.size)], 1)
    distinct, member = np.unique(ranges, axis=0, return_inverse=True)
    shared = np.bincount(member.reshape(-1)) > 1
    known: dict[int, bytes] = {}
    for number in member.reshape(-1).tolist():
        if number not in known:
            start, size = distinct[number].tolist()
            known[number] = _listed(np.sort(rows[start : start + size]))
        yield known[number] if shared[number] else known.pop(number)


def _views_bytes(data: FederatedData) -> Iterator[bytes]:
    """Yields the view of each client: angle, colour, corruption and its level, stroke, tables by class, label map.

    A client without one of these has 0, an empty text or an empty list in its place.
    """
    columns = [np.asarray(field) for name in view_fields(data) if (field := getattr(data, name)) is not None]
    columns = [column.reshape(data.num_clients, -1) for column in [np.zeros(data.num_clients), *columns]]
    views = np.concatenate(columns, axis=1)
    _, first, member = np.unique(views, axis=0, return_index=True, return_inverse=True)
    known = [_view_bytes(data, client) for client in first.tolist()]
    for number in member.reshape(-1).tolist():
        yield known[number]


def _view_bytes(data: FederatedData, client: int) -> bytes:
    """Returns the bytes of one client's view."""
    turns = 0 if data.rotation is None else int(data.rotation[client])
    tilt = 0.0 if data.tilt is None else float(data.tilt[client])
    angle = round(1000 * (90 * turns + tilt)) % 360_000  # in thousandths of a degree
    colour, stroke = (0 if field is None else int(field[client]) for field in (data.colour, data.stroke))
    corruption = None if data.corruption is None else Corruption.of_code(int(data.corruption[client]))
    kind, level, scale = corruption or ("", 0, SCALES[0])
    kind += "" if scale == SCALES[0] else f" {scale}"
    maps = []
    if data.kind == "classification":
        maps = np.asarray(data.relabelled(np.arange(data.num_classes), client))
    angles = [] if data.class_rotation is None else 90_000 * np.asarray(data.class_rotation[client])
    tables = _listed(angles) + _listed([] if data.class_colour is None else data.class_colour[client])
    parts = [_integers([angle, colour]), _text(kind), _integers([level, stroke]), tables, _listed(maps)]
    return b"".join(parts)


def _integers(values: object) -> bytes:
    """Returns integers as little-endian int32."""
    return np.ascontiguousarray(np.asarray(values), "<i4").tobytes()


def _listed(values: object) -> bytes:
    """Returns the length of a list, and its integers."""
    numbers = np.asarray(values).reshape(-1)
    return _integers([len(numbers)]) + _integers(numbers)


def _text(words: str) -> bytes:
    """Returns the length of a text in bytes, and the text."""
    encoded = words.encode()
    return _integers([len(encoded)]) + encoded
