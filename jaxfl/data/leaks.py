"""Test rows that are identical with training rows, which make metrics too good."""

import warnings

import numpy as np

from jaxfl.data.clients import FederatedData

BLOCK = 1 << 24  # bytes of rows that are hashed at once
VALUES = 8  # of a row: rows of fewer numbers may be equal by chance
DIFFERENT = 32  # training rows, from which on equal rows of few numbers are no chance, if hardly two of these are equal
SHARE = 0.01  # of the test rows, from which on there is a warning


def count_repeated_rows(data: FederatedData) -> int:
    """Returns the number of test rows in the pool whose input and label another row has that is trained on.

    Rows of one repeated number are not counted. Rows of fewer than 8 numbers are counted only where at most a hundredth
    of the training rows, which must be 32 or more, are equal: otherwise rows are equal by chance, as those of a few
    categories are.

    >>> from jaxfl.data import load
    >>> count_repeated_rows(load("iid-digits", num_clients=4))
    0
    """
    return len(_repeated_rows(data)[0])


def warn_repeated_rows(data: FederatedData) -> None:
    """Warns if a hundredth of the test rows, or more, are identical with training rows."""
    test, train = _repeated_rows(data)
    total = len(np.unique(np.asarray(data.test.rows))) if len(test) else 0
    if len(test) and len(test) >= SHARE * total:
        warnings.warn(
            f"{len(test)} of {total} test rows of {data.name} are identical with training rows, such as row {test[0]} "
            f"with row {train[0]}; remove them from train or test.",
            stacklevel=3,
        )


def _repeated_rows(data: FederatedData) -> tuple[np.ndarray, np.ndarray]:
    """Returns the test rows in the pool that are identical with training rows `[M]`, and one of these for each."""
    none, narrow = np.zeros(0, np.int64), np.prod(data.input_shape, dtype=np.int64) < VALUES
    train, test = (np.unique(np.asarray(split.rows)) for split in (data.train, data.test))
    test = np.setdiff1d(test, train, assume_unique=True)  # `federate` warns of those by client
    if not len(test) or not len(train):
        return none, none
    inputs, labels = np.asarray(data.inputs), np.asarray(data.labels)
    hashes = _hash_rows(inputs, train), _hash_rows(inputs, test)
    order = np.argsort(hashes[0], kind="stable")
    if narrow and not _are_different(hashes[0][order]):
        return none, none
    place = np.minimum(np.searchsorted(hashes[0][order], hashes[1]), len(train) - 1)
    matched = hashes[0][order][place] == hashes[1]
    test, train = test[matched], train[order][place][matched]
    same = np.zeros(len(test), bool)
    step = max(1, BLOCK // max(inputs[:1].nbytes, 1))
    for begin in range(0, len(test), step):
        part = slice(begin, begin + step)
        one, other = (inputs[rows[part]].reshape(len(rows[part]), -1) for rows in (test, train))
        alike = (labels[test[part]] == labels[train[part]]).reshape(len(one), -1).all(1)
        example = narrow or (one != one[:, :1]).any(1)  # a row of one number, such as a black image, is none
        same[part] = (one == other).all(1) & alike & example
    return test[same], train[same]


def _are_different(ordered: np.ndarray) -> bool:
    """Returns whether these are the sorted hashes of many rows, hardly two of which are equal."""
    return len(ordered) >= DIFFERENT and (ordered[1:] == ordered[:-1]).sum() <= SHARE * len(ordered)


def _hash_rows(inputs: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns a hash of each of the given rows `[M]` uint64; equal rows have equal ones."""
    size = inputs[:1].nbytes
    words = -(-size // 8)
    factors = np.random.Generator(np.random.PCG64(0)).integers(0, 1 << 63, words, np.uint64) * np.uint64(2) + np.uint64(
        1
    )
    hashes, step = np.empty(len(rows), np.uint64), max(1, BLOCK // max(size, 1))
    for begin in range(0, len(rows), step):
        chosen = rows[begin : begin + step]
        block, values = np.zeros((len(chosen), 8 * words), np.uint8), inputs[chosen]
        values = values + 0 if values.dtype.kind == "f" else values  # -0.0 is equal to 0.0, and has other bytes
        block[:, :size] = np.ascontiguousarray(values).reshape(len(chosen), -1).view(np.uint8)
        mixed = block.view(np.uint64) * factors
        mixed ^= mixed >> np.uint64(29)  # or a difference in a word's upper bits would stay there
        hashes[begin : begin + len(chosen)] = (mixed * factors[::-1]).sum(1, dtype=np.uint64)
    return hashes
