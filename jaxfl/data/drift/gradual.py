"""Rows of a stage of a drift: mixtures of two patterns, tests on other patterns, and shares of the training rows.

A client has one view (rotation, colours, label map), but in a gradual drift some of its rows have changed already, and
test rows may be those of another stage. A changed row is a further row of the pool, turned and labelled so that through
the client's view it is what it is through the other one. Rows that need no change, such as those of classes that are
not swapped, are not doubled; clients share changed rows. Each stage is then a list of rows as any other.

Rows, labels and quarter turns can be changed in this way, and colours and corruptions cannot.
"""

import dataclasses
from collections.abc import Sequence
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
    all but as large a share, in one random order of the pool's rows. Where these are the same rows, each has one place.

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
            old, new = (own_rows(one, client) for one in (split, later))
            old_order, new_order = (np.argsort(rank[one], kind="stable") for one in (old, new))
            alike = np.array_equal(old, new)
            new = changed.of(new, int(turns[client]), maps[client])
            for stage in range(1, steps):
                taken, left = new_order[: stage * len(new) // steps], old_order[stage * len(old) // steps :]
                own = np.concatenate([new[taken], old[left]])
                own = own[np.argsort(np.concatenate([taken, left]))] if alike else own
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


def own_rows(split: Split, client: int) -> np.ndarray:
    """Returns the rows of a client."""
    start, size = int(split.start[client]), int(split.size[client])
    return np.asarray(split.rows)[start : start + size]


def in_random_order(data: FederatedData, seed: int) -> FederatedData:
    """Returns the federation with each client's training rows in one random order of the pool's rows."""
    ranges = np.stack([np.asarray(data.train.start), np.asarray(data.train.size)], 1)
    _, first, member = np.unique(ranges, axis=0, return_index=True, return_inverse=True)
    rank = host_rng(seed, "drift", "rows").permutation(len(data.labels))
    parts = [own_rows(data.train, client) for client in first.tolist()]
    train = Split.shared([part[np.argsort(rank[part], kind="stable")] for part in parts], member.reshape(-1))
    train = dataclasses.replace(train, flipped=data.train.flipped, triggered=data.train.triggered)
    return dataclasses.replace(data, train=train)


def cut_ranges(start: np.ndarray, size: np.ndarray, rows: str) -> Ranges:
    """Returns the part of each range `[N, S + 1]` that a client has in its stage.

    Args:
        start, size: ranges in each stage, `[N, S + 1]`.
        rows: fresh, for one of S + 1 chunks, or grow, for this one and those of before.

    Raises:
        ValueError: a client has fewer rows than there are stages.

    >>> cut = cut_ranges(np.zeros((1, 3), int), np.full((1, 3), 10), "fresh")
    >>> cut.start.tolist(), cut.size.tolist(), cut_ranges(cut.start, np.full((1, 3), 10), "grow").size.tolist()
    ([[0, 3, 6]], [[3, 3, 4]], [[3, 6, 10]])
    """
    stages = size.shape[1]
    if (few := size[(size > 0) & (size < stages)]).size:
        raise ValueError(
            f"drift_rows={rows} must be of clients with a training row or more for each of {stages} stages, got a "
            f"client with {few[0]}; give them more rows, or take fewer stages."
        )
    ends = size * np.arange(1, stages + 1) // stages
    begins = size * np.arange(stages) // stages if rows == "fresh" else np.zeros_like(ends)
    return Ranges((start + begins).astype(np.int32), (ends - begins).astype(np.int32))


def with_tests_of(data: FederatedData, targets: Sequence[FederatedData], name: str) -> FederatedData:
    """Returns the federation that is tested in each of its stages on the test rows of another state of its clients.

    Args:
        data: the federation, with its drift.
        targets: before the drift and of each stage, the clients as they are tested.
        name: of the option that needs it, for the message.
    """
    changed, rows, begin = ChangedRows(data), [], 0
    known: dict[bytes, tuple[int, int]] = {}  # start and size of rows in a view
    columns = []
    for now, target in zip(data.phases, targets, strict=True):
        check_exact(now, target, name)
        turns, maps = relative_views(now, target)
        keys, first, party = _parties(target.test, target.test, turns, maps, np.ones(data.num_clients, bool))
        places = []
        for key, client in zip(keys, first.tolist(), strict=True):
            if key.tobytes() not in known:
                rows.append(changed.of(own_rows(target.test, client), int(turns[client]), maps[client]))
                known[key.tobytes()] = begin, len(rows[-1])
                begin += len(rows[-1])
            places.append(known[key.tobytes()])
        columns.append(np.array(places)[party])
    places = to_integers("rows of the split", np.array(columns), remedy="use fewer clients")  # [S + 1, N, 2]
    start, size = places[..., 0], places[..., 1]
    test = dataclasses.replace(
        data.test,
        rows=to_integers("rows of the split", np.concatenate(rows), remedy="use fewer clients"),
        start=start[0],
        size=size[0],
        max_size=int(size.max(initial=0)),
    )
    assert data.drift is not None
    later = dataclasses.replace(data.drift, test=Ranges(start[1:].T, size[1:].T))
    return dataclasses.replace(data, **changed.pool(), test=test, drift=later)
