"""Summary of a federation in numbers: rows per client and class, and true groups.

It is computed on the host in NumPy without a loop over the clients, so that ten thousand clients take a moment.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxfl.data.clients import FederatedData, Split
from jaxfl.data.labels import check_classes
from jaxfl.data.leaks import count_repeated_rows
from jaxfl.schema import checked

WIDE = 20  # least ratio of largest to smallest client for a histogram with growing bins


class Description(NamedTuple):
    """A federation in plain numbers; `_asdict()` is ready for JSON.

    Attributes:
        name: name of the data set.
        num_clients: N.
        num_rows: P, rows of the pool.
        train, test, validation: for each split `rows` (of all clients), `distinct` (rows of the pool), and `min`,
            `median`, `mean`, `max` (rows of a client); validation is None without validation rows.
        empty_clients: clients without training rows.
        held_out_clients: clients that are held out of training, without those that arrive later.
        kind: kind of the labels, see `jaxfl.data.labels`.
        num_classes: L.
        classes_present: classes of at least one client in any split; for other kinds than classification those in the
            pool (all L for regression).
        class_names: one per class, or empty.
        groups: for each true group `name`, `clients` and `train_rows`; empty if the groups are unknown.
        causes: number of patterns of each cause of the groups, by name; empty if they are unknown.
        input_shape: shape of one example.
        input_dtype: stored type of the inputs.
        pool_bytes: bytes of inputs and labels.
        histogram: histogram of training rows per client, `edges [bins + 1]` and `counts [bins]`; a bin holds its lower
            edge and not its upper one.
        drift: the first `round` after the drift, and the numbers of clients that `change`, `arrive` and `leave`; None
            without a drift. All other attributes describe the rounds before it.
        drifts: the same of every change, of several from the rounds right before it on.
        repeated_test_rows: test rows of the pool that are identical with training rows, see `jaxfl.data.leaks`; None
            for a mapped file, which would be read for it.
    """

    name: str
    num_clients: int
    num_rows: int
    train: dict[str, float]
    test: dict[str, float]
    empty_clients: int
    held_out_clients: int
    kind: str
    num_classes: int
    classes_present: int
    class_names: list[str]
    groups: list[dict[str, Any]]
    input_shape: list[int]
    input_dtype: str
    pool_bytes: int
    histogram: dict[str, list[int]]
    validation: dict[str, float] | None = None
    drift: dict[str, int] | None = None
    drifts: Sequence[dict[str, int]] = ()
    repeated_test_rows: int | None = None
    causes: dict[str, int] = {}


def describe(data: FederatedData) -> Description:
    """Returns the description of a federation in plain numbers.

    >>> from jaxfl.data import load
    >>> description = describe(load("rotated-digits", num_clients=8, rows_per_client=20))
    >>> description.num_clients, description.train["rows"], description.groups[1]
    (8, 160, {'name': '90°', 'clients': 2, 'train_rows': 40})
    """
    sizes = np.asarray(data.train.size)
    groups: list[dict[str, Any]] = []
    if data.group is not None:
        group = np.asarray(data.group)
        clients, rows = np.bincount(group), np.bincount(group, weights=sizes)
        groups = [
            {
                "name": data.group_names[number] if number < len(data.group_names) else f"group {number}",
                "clients": int(clients[number]),
                "train_rows": int(rows[number]),
            }
            for number in np.flatnonzero(clients).tolist()
        ]
    absent = 0 if data.absent is None else int(np.asarray(data.absent).sum())
    changes = zip(data.drift_rounds, itertools.pairwise(data.phases), strict=True)
    drifts = [{"round": round, **_count_changes(*pair)} for round, pair in changes]
    return Description(
        name=data.name,
        num_clients=data.num_clients,
        num_rows=len(data.labels),
        train=_split_sizes(data.train, len(data.labels)),
        test=_split_sizes(data.test, len(data.labels)),
        empty_clients=int((sizes == 0).sum()),
        held_out_clients=0 if data.held_out is None else int(np.asarray(data.held_out).sum()) - absent,
        kind=data.kind,
        num_classes=data.num_classes,
        classes_present=_num_classes_present(data),
        class_names=list(data.class_names),
        groups=groups,
        input_shape=[int(size) for size in data.input_shape],
        input_dtype=str(data.inputs.dtype),
        pool_bytes=int(data.inputs.nbytes + data.labels.nbytes),
        histogram=histogram(sizes),
        validation=None if data.validation is None else _split_sizes(data.validation, len(data.labels)),
        drift=next(iter(drifts), None),
        drifts=drifts,
        repeated_test_rows=None if isinstance(data.inputs, np.memmap) else count_repeated_rows(data),
        causes={cause: len(np.unique(pattern)) for cause, pattern in sorted(data.causes.items())},
    )


def _count_changes(before: FederatedData, after: FederatedData) -> dict[str, int]:
    """Returns the numbers of clients that change, arrive and leave from one stage of a drift to the next."""
    now, later = before.per_client(), after.per_client()
    known = ("held_out", "absent")
    pairs = [(np.asarray(now[name]), np.asarray(later[name])) for name in now if name not in known]
    changed = np.any([(one != other).reshape(before.num_clients, -1).any(1) for one, other in pairs], axis=0)
    away = [np.zeros(before.num_clients, bool) if phase.absent is None else phase.absent for phase in (before, after)]
    counts = {"change": changed, "arrive": away[0] & ~away[1], "leave": away[1] & ~away[0]}
    return {name: int(clients.sum()) for name, clients in counts.items()}


@checked
def label_counts(data: FederatedData, split: Literal["train", "test", "validation"] = "train") -> np.ndarray:
    """Returns the number of rows of each class for every client `[N, L]`; label shifts and maps are applied.

    Args:
        data: N clients, L classes.
        split: `"train"`, `"test"` or `"validation"`.

    Returns:
        Counts `[N, L]`, int64.

    Raises:
        ValueError: the labels are not classes, or there is no such split.

    >>> from jaxfl.data import load
    >>> label_counts(load("pathological-digits", num_clients=4))[1].nonzero()[0].tolist()
    [3, 4]
    """
    check_classes("label_counts", data.labels, "use data.train.size for numbers of rows")
    if split not in data.splits:
        raise ValueError(f"split must be one of {', '.join(data.splits)}, got {split!r}.")
    return _label_counts(data, data.splits[split])


def _label_counts(data: FederatedData, part: Split) -> np.ndarray:
    """Returns the label counts of a split `[N, L]`."""
    # Clients that share a range (one test set for a group) are counted once.
    ranges, member = np.unique(
        np.stack([np.asarray(part.start), np.asarray(part.size)], axis=1), axis=0, return_inverse=True
    )
    labels = np.asarray(data.labels)[np.asarray(part.rows)]
    sizes = ranges[:, 1].astype(np.int64)
    owner = np.repeat(np.arange(len(ranges)), sizes)
    first = np.repeat(ranges[:, 0] - (np.cumsum(sizes) - sizes), sizes)
    classes = labels[first + np.arange(len(owner))].astype(np.int64)
    counts = np.bincount(owner * data.num_classes + classes, minlength=len(ranges) * data.num_classes)
    counts = counts.reshape(len(ranges), data.num_classes)[member.reshape(-1)]
    if data.label_shift is not None:
        counts = np.take_along_axis(counts, np.argsort(data.label_maps(), axis=1), axis=1)
    counts = counts if part.flipped is None else np.where(np.asarray(part.flipped)[:, None], counts[:, ::-1], counts)
    if data.trigger is None or part.triggered is None:
        return counts
    for client in np.flatnonzero(part.triggered):
        start, size, every = (int(numbers[client]) for numbers in (part.start, part.size, part.triggered))
        own = np.asarray(data.labels)[np.asarray(part.rows)[start : start + size : every]]
        own = np.asarray(data.relabelled(own, client))
        counts[client] -= np.bincount(own, minlength=data.num_classes)
        counts[client, int(data.trigger.target)] += len(own)
    return counts


def _num_classes_present(data: FederatedData) -> int:
    """Returns the number of the L classes that occur."""
    labels = np.asarray(data.labels)
    match data.kind:
        case "classification":
            return int(np.count_nonzero(sum(_label_counts(data, split).sum(0) for split in data.splits.values())))
        case "multilabel":
            return int(labels.any(0).sum())
        case "next_token":
            return len(np.unique(labels[labels >= 0]))
        case "regression":
            return data.num_classes


def histogram(sizes: np.ndarray) -> dict[str, list[int]]:
    """Returns a histogram of clients' rows with about ten bins whose edges are round numbers.

    The bins grow if the largest client has at least 20 times the rows of the smallest. Clients without rows have a
    separate bin.

    Args:
        sizes: rows of each client `[N]`.

    Returns:
        `edges [bins + 1]` and `counts [bins]`; a bin holds its lower edge and not its upper one.

    >>> histogram(np.array([3, 3, 4, 70]))
    {'edges': [3, 5, 7, 10, 15, 20, 30, 50, 70, 100], 'counts': [3, 0, 0, 0, 0, 0, 0, 0, 1]}
    """
    sizes = np.asarray(sizes)
    some = sizes[sizes > 0]
    edges = [0, 1] if len(some) < len(sizes) else []
    if len(some):
        low, high = int(some.min()), int(some.max())
        inner = _growing_edges(low, high) if high >= WIDE * low else _even_edges(low, high)
        edges = sorted({*edges, *inner})
    counts = np.histogram(sizes, bins=[*edges[:-1], edges[-1] - 0.5])[0] if edges else []
    return {"edges": edges, "counts": [int(count) for count in counts]}


def _even_edges(low: int, high: int) -> list[int]:
    """Returns edges with an equal and round distance for integers from `low` to `high`."""
    span = high - low + 1
    step = next(step for step in _round_numbers((1, 2, 5)) if step * 10 >= span)
    first = max(1, low // step * step)
    return [first, *range(low // step * step + step, high + step + 1, step)]


def _growing_edges(low: int, high: int) -> list[int]:
    """Returns edges that grow by about the same factor for integers from `low` to `high`."""
    edges = [low]
    for mantissas in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        numbers = list(itertools.takewhile(lambda number: number <= 10 * high, _round_numbers(mantissas)))
        beyond = next(number for number in numbers if number > high)
        edges = [low, *(number for number in numbers if low < number <= beyond)]
        if len(edges) > 7:
            break
    return edges


def _round_numbers(mantissas: Sequence[float]) -> Iterator[int]:
    """Yields integers that are a mantissa times a power of ten, in increasing order."""
    numbers = (mantissa * 10**power for power in itertools.count() for mantissa in mantissas)
    return (int(number) for number in numbers if number == int(number))


def _split_sizes(split: Split, num_rows: int) -> dict[str, float]:
    """Returns statistics of the numbers of rows in a split."""
    start, size, rows = (np.asarray(part) for part in (split.start, split.size, split.rows))
    # Ranges may overlap: a position is owned where more ranges have begun than ended.
    bounds = np.bincount(start, minlength=len(rows) + 1) - np.bincount(start + size, minlength=len(rows) + 1)
    owned = np.zeros(num_rows, bool)
    owned[rows[np.cumsum(bounds[:-1]) > 0]] = True
    return {
        "rows": int(size.sum(dtype=np.int64)),
        "distinct": int(owned.sum()),
        "min": int(size.min(initial=2**31 - 1)) if len(size) else 0,
        "median": float(np.median(size)) if len(size) else 0.0,
        "mean": float(size.mean()) if len(size) else 0.0,
        "max": int(size.max(initial=0)),
    }
