"""Rows that are seen otherwise than their client sees: further rows of the pool, for stages that mix two patterns.

A client has one view (rotation, colours, label map), but in a gradual drift some of its rows have changed already. A
changed row is a further row of the pool, turned and labelled so that through the client's view of before it is what it
will be afterwards. Rows that need no change, such as those of classes that are not swapped, are not doubled; clients
share changed rows. Each stage is then a list of rows as any other.

Rows, labels and quarter turns can be changed in this way, and colours and corruptions cannot.
"""

import dataclasses
from typing import Any

import numpy as np

from jaxfl.data.casts import to_integers
from jaxfl.data.clients import FederatedData, Ranges, Split, view_fields
from jaxfl.random import host_rng

EXACT = ("rotation", "label_shift")  # views that a changed row can have beside those of its client


class ChangedRows:
    """The pool of a federation with rows that are added while stages are built.

    Args:
        data: the federation, without copies.
    """

    def __init__(self, data: FederatedData):
        self._data, self._size = data, len(data.labels)
        self._known: dict[tuple[int, bytes], dict[int, int]] = {}  # of turns and label map: a row and the changed one
        self._inputs, self._labels = [np.asarray(data.inputs)], [np.asarray(data.labels)]

    def of(self, rows: np.ndarray, turns: int, labels: np.ndarray) -> np.ndarray:
        """Returns the rows `[M]` turned by quarter turns and with classes `labels [L]` in place of 0, 1, ...; adds them
        to the pool where they are not there yet.
        """
        own = np.asarray(self._data.labels)[rows]
        classes = own.dtype.kind == "i" and own.ndim == 1
        change = np.full(len(rows), turns % 4 != 0) if not classes else (turns % 4 != 0) | (labels[own] != own)
        known = self._known.setdefault((turns % 4, labels.tobytes()), {})
        new = np.array([row for row in np.unique(rows[change]).tolist() if row not in known], int)
        if len(new):
            inputs, classes_of = np.asarray(self._data.inputs)[new], np.asarray(self._data.labels)[new]
            self._inputs.append(np.rot90(inputs, turns, axes=(1, 2)) if turns % 4 else inputs)
            self._labels.append(labels[classes_of].astype(classes_of.dtype) if classes else classes_of)
            known |= dict(zip(new.tolist(), range(self._size, self._size + len(new)), strict=True))
            self._size += len(new)
        return np.array([known[row] if one else row for row, one in zip(rows.tolist(), change.tolist(), strict=True)])

    def pool(self) -> dict[str, Any]:
        """Returns inputs and labels with the rows that were added."""
        return {"inputs": np.concatenate(self._inputs), "labels": np.concatenate(self._labels)}


def check_exact(before: FederatedData, after: FederatedData, name: str) -> None:
    """Raises ValueError unless rows, labels and quarter turns alone differ between two states of the clients.

    Args:
        before, after: of the same clients.
        name: of the option that needs it, for the message.
    """
    fixed = [one for one in view_fields(before) if one not in EXACT and getattr(before, one) is not None]
    wrong = [one for one in fixed if not np.array_equal(getattr(before, one), getattr(after, one))]
    by_class = [one for one in ("class_rotation", "class_colour") if getattr(before, one) is not None]
    copies = ["copies"] if before.origin is not None else []
    if what := wrong + by_class + copies:
        raise ValueError(
            f"{name} must be of data whose rows, labels or quarter turns change alone, got {before.name!r} with "
            f"{what[0].replace('_', ' of ')}; use another drift, such as staggered."
        )


def mixed_ranges(
    before: FederatedData, after: FederatedData, steps: int, member: np.ndarray, seed: int
) -> tuple[FederatedData, dict[str, Ranges]]:
    """Returns the federation with the rows of a gradual change, and the ranges of the clients before its last stage.

    In the stage k of S a client has the first k/S of the rows that it will have, rounded down, and of those that it had
    all but as large a share, in one random order of the pool's rows.

    Args:
        before, after: the clients with their data of before and of afterwards.
        steps: S, number of stages; in the last one, whose ranges are not returned, all rows have changed.
        member: the clients that change `[N]`.
        seed: of the order.
    """
    check_exact(before, after, "drift=gradual")
    changed, splits, ranges = ChangedRows(before), {}, {}
    rank = host_rng(seed, "gradual").permutation(len(before.labels))
    turns, maps = relative_views(before, after)
    for name, split in before.splits.items():
        later = after.splits[name]
        keys, first, party = _parties(split, later, turns, maps, member)
        lists, number = [np.asarray(split.rows)], np.zeros((len(keys), steps - 1), int)
        starts, begin = np.zeros_like(number), len(split.rows)
        for place, client in enumerate(first.tolist()):
            if not member[client]:
                starts[place], number[place] = split.start[client], split.size[client]
                continue
            old, new = (_ordered_rows(one, client, rank) for one in (split, later))
            new = changed.of(new, int(turns[client]), maps[client])
            for stage in range(1, steps):
                own = np.concatenate([new[: stage * len(new) // steps], old[stage * len(old) // steps :]])
                starts[place, stage - 1], number[place, stage - 1] = begin, len(own)
                begin += len(own)
                lists.append(own)
        rows = to_integers("rows of the split", np.concatenate(lists), remedy="use fewer clients or rows")
        to_integers("rows of the split", np.asarray(begin), remedy="use fewer clients or rows")
        splits[name] = dataclasses.replace(split, rows=rows)
        ranges[name] = Ranges(starts[party].astype(np.int32), number[party].astype(np.int32))
    return dataclasses.replace(before, **changed.pool(), **splits), ranges


def relative_views(before: FederatedData, after: FederatedData) -> tuple[np.ndarray, np.ndarray]:
    """Returns quarter turns `[N]` and label map `[N, L]` of a row that looks through the first view as through the
    second.
    """
    turns = [np.zeros(before.num_clients, int) if one.rotation is None else one.rotation for one in (before, after)]
    classes = np.tile(np.arange(before.num_classes), (before.num_clients, 1))
    maps = [classes if one.label_shift is None else one.label_maps() for one in (before, after)]
    return (np.asarray(turns[1]) - np.asarray(turns[0])) % 4, np.take_along_axis(np.argsort(maps[0], 1), maps[1], 1)


def _parties(
    split: Split, later: Split, turns: np.ndarray, maps: np.ndarray, member: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the different ways in which clients change, the first client of each, and the way of each client `[N]`.

    Clients that share rows and a change share the lists of their stages.
    """
    ranges = [np.asarray(one) for one in (split.start, split.size, later.start, later.size)]
    keys = np.column_stack([*ranges, turns, maps, member])
    distinct, first, party = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    return distinct, first, party.reshape(-1)


def _ordered_rows(split: Split, client: int, rank: np.ndarray) -> np.ndarray:
    """Returns the rows of a client in the order of their ranks."""
    start, size = int(split.start[client]), int(split.size[client])
    rows = np.asarray(split.rows)[start : start + size]
    return rows[np.argsort(rank[rows], kind="stable")]
