"""Divisions of each client's training rows into two parts, and one test set for all clients.

`set_apart` returns a federation with validation rows, and `central_test` one whose clients share all test rows, before
a run. `divide_rows` divides rows within a run, for methods that hold rows back or compare two parts; the federation is
unchanged.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl.data.building import check_no_drift
from jaxfl.data.clients import FederatedData, Split
from jaxfl.data.views.copies import with_copies, without_copies
from jaxfl.random import Stream, host_rng, key_for
from jaxfl.typing import Key


def check_validation(share: float) -> None:
    """Raises ValueError unless the share of validation rows is above 0 and below 1."""
    if not 0 < share < 1:
        raise ValueError(
            f"validation must be a share of the training rows, above 0 and below 1, got {share}; 0.1 is usual."
        )


def set_apart(data: FederatedData, share: float, *, seed: int = 0) -> FederatedData:
    """Returns the federation with a share of each client's training rows as validation rows; test rows are unchanged.

    No client trains on a validation row of any client: a pool row that clients share (an image under two rotations) is
    removed from the training rows of all of them. All clients choose by one random order of the pool, so that few rows
    are removed.

    Args:
        data: federation without validation rows.
        share: share of each client's rows, above 0 and below 1, rounded to whole rows: at least one, and never all;
            none of a single row.
        seed: seed of the order.

    Raises:
        ValueError: the share is out of range, there are validation rows already, or no client has two rows.

    >>> from jaxfl.data import synthetic
    >>> data = set_apart(synthetic.clustered_linear(4, rows=10), 0.2)
    >>> data.train.size.tolist(), data.validation.size.tolist()
    ([8, 8, 8, 8], [2, 2, 2, 2])
    """
    check_validation(share)
    if data.validation is not None:
        raise ValueError(f"validation must be left out, because {data.name} has validation rows already.")
    check_no_drift("validation", data)
    rows, ranges = np.asarray(data.train.rows), np.stack([np.asarray(data.train.start), np.asarray(data.train.size)], 1)
    distinct, member = np.unique(ranges, axis=0, return_inverse=True)  # clients may share a range
    size = distinct[:, 1].astype(np.int64)
    begin = np.cumsum(size) - size
    owner = np.repeat(np.arange(len(size)), size)
    rows = rows[np.repeat(distinct[:, 0] - begin, size) + np.arange(size.sum())]
    image = rows if data.origin is None else np.asarray(data.origin)[rows]  # of which a row may be a copy
    rank = host_rng(seed, "validation").permutation(len(data.labels))[image]
    order = np.lexsort((rank, owner))
    wanted = np.clip(np.maximum(np.rint(size * share), 1), 0, np.maximum(size - 1, 0)).astype(np.int64)
    chosen = np.zeros(len(rows), bool)
    chosen[order[np.arange(len(rows)) - begin[owner] < wanted[owner]]] = True
    if not chosen.any():
        raise ValueError(f"validation must be left out, because no client of {data.name} has 2 training rows or more.")
    taken = np.zeros(len(data.labels), bool)
    taken[image[chosen]] = True

    def packed(mask: np.ndarray) -> Split:
        left = np.bincount(owner[mask], minlength=len(size))
        start = (np.cumsum(left) - left)[member.reshape(-1)]
        sizes = left[member.reshape(-1)]
        return Split(rows[mask], start.astype(np.int32), sizes.astype(np.int32), int(sizes.max(initial=0)))

    train = replace(packed(~taken[image]), flipped=data.train.flipped, triggered=data.train.triggered)
    return replace(data, train=train, validation=packed(chosen))


def central_test(data: FederatedData) -> FederatedData:
    """Returns the federation with one test set for all clients: the test rows of all of them, each once.

    A client sees them as its other rows: rotated, or with its own numbering of the classes.

    Args:
        data: federation without a drift, no client of which trains on a test row.

    Raises:
        ValueError: there are no test rows, one of them is a training row, or the data drift.

    >>> from jaxfl.data import synthetic
    >>> data = central_test(synthetic.clustered_linear(4, rows=10))
    >>> data.test.size.tolist(), data.test.start.tolist(), len(data.test.rows)
    ([40, 40, 40, 40], [0, 0, 0, 0], 40)
    """
    check_no_drift("test=central", data)
    data = without_copies(data)
    rows = check_central_test(data)
    test = Split.shared([rows], np.zeros(data.num_clients, np.int32))
    test = replace(test, flipped=data.test.flipped, triggered=data.test.triggered)
    return with_copies(replace(data, test=test))  # corrupted as each client's own rows are


def check_central_test(data: FederatedData, option: str = "test", value: str = "central") -> np.ndarray:
    """Returns the pool rows of a test set for all clients, each once, in ascending order.

    Args:
        data: federation without a drift.
        option: what the user calls it.
        value: that the option has.

    Raises:
        ValueError: there are no test rows, or one of them is a training row.
    """
    origin = np.arange(len(data.labels)) if data.origin is None else np.asarray(data.origin)
    ranges = np.unique(np.stack([np.asarray(data.test.start), np.asarray(data.test.size)], 1), axis=0)
    parts = [np.asarray(data.test.rows)[start : start + size] for start, size in ranges.tolist()]
    rows = np.unique(origin[np.concatenate(parts)])
    if not len(rows):
        raise ValueError(f"{option} must be left out, because {data.name} has no test rows, got {value}.")
    trained = np.zeros(len(data.labels), bool)
    for split in (data.train, *([] if data.validation is None else [data.validation])):
        trained[origin[np.asarray(split.rows)]] = True
    if trained[rows].any():
        raise ValueError(
            f"{option} must be left out, because row {rows[np.argmax(trained[rows])]} of {data.name} is a test row of "
            f"one client and a training row of another, got {value}; give each row to one of them."
        )
    return rows


def on_validation(data: FederatedData) -> FederatedData:
    """Returns the federation with its validation rows as test rows; the original test rows are dropped.

    >>> from jaxfl.data import synthetic
    >>> on_validation(set_apart(synthetic.clustered_linear(4, rows=10), 0.3)).test.size.tolist()
    [3, 3, 3, 3]
    """
    assert data.validation is not None
    return replace(data, test=data.validation, validation=None)


def on_triggered(data: FederatedData) -> FederatedData:
    """Returns the federation with the trigger in all test rows but those of its class, to be taken for that class.

    >>> from jaxfl.data import load
    >>> data = load("rotated-digits", num_clients=8, rows_per_client=20, attack="backdoor", attackers=0.2)
    >>> test = on_triggered(data).test
    >>> on_triggered(data).batch(test, 0, np.arange(3)).y.tolist(), int(data.test.size[0] - test.size[0])
    ([0, 0, 0], 33)
    """
    assert data.trigger is not None
    rows, target = np.asarray(data.test.rows), int(data.trigger.target)
    shift = np.zeros(data.num_clients, int) if data.label_shift is None else np.asarray(data.label_shift)
    start, size = np.asarray(data.test.start), np.asarray(data.test.size)
    # clients may share a range
    _, first, member = np.unique(np.stack([start, size, shift], 1), axis=0, return_index=True, return_inverse=True)

    def others(client: int) -> np.ndarray:
        own = rows[start[client] :][: size[client]]
        return own[np.asarray(data.relabelled(np.asarray(data.labels[own]), client)) != target]

    test = Split.shared([others(client) for client in first.tolist()], member.reshape(-1))
    return replace(data, test=replace(test, triggered=np.ones(data.num_clients, np.int32)), validation=None)


def divide_rows(key: Key, split: Split, share: float) -> tuple[Split, Split]:
    """Returns each client's rows divided at random into two splits, equally in every round of a run.

    Clients with equal numbers of rows have equal numbers in each part, and both numbers grow with the rows: a
    federation with `filled` = 1 keeps it with a part in place of its training rows.

    Args:
        key: random key of the run.
        split: rows of the clients, which may share ranges.
        share: share of the rows that are held back, rounded to whole rows: at least one, and never all; none of a
            single row.

    Returns:
        The remaining rows, and the rows that are held back.
    """
    size = jnp.asarray(split.size)
    held = _num_held_back(size, share)
    # shuffle within the borders of all clients' ranges, then hold back the last rows of every client
    place, start = jnp.arange(split.rows.shape[0], dtype=jnp.int32), jnp.asarray(split.start)
    piece = jnp.searchsorted(jnp.sort(jnp.concatenate([start, start + size])), place, side="right")
    order = jnp.lexsort((jax.random.bits(key_for(key, Stream.VALIDATION), place.shape, jnp.uint32), piece))
    rows = jnp.asarray(split.rows)[order]
    sizes = np.arange(split.max_size + 1, dtype=np.int32)
    helds = _num_held_back(sizes, share, np)
    left = replace(split, rows=rows, size=size - held, max_size=int((sizes - helds).max()))
    return left, replace(split, rows=rows, start=split.start + size - held, size=held, max_size=int(helds.max()))


def _num_held_back(size: Any, share: float, xp: Any = jnp) -> Any:
    """Returns how many of `size` rows are held back, computed by JAX or NumPy."""
    wanted = xp.round(size.astype(np.float32) * np.float32(share)).astype(np.int32)
    return xp.clip(xp.maximum(wanted, 1), 0, xp.maximum(size - 1, 0))
