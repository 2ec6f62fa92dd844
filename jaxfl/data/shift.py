"""Shifts with known groups: the same examples, rotated or relabelled differently for each group of clients.

`rotated` and `shifted` divide a permutation of all training images among the clients of each group, and all clients
share one test set, as in IFCA (Ghosh et al., 2020: rotated MNIST, a quarter of the clients for each of four rotations)
and in StoCFL (Zeng et al., 2023: rotated and shifted). Without an official test set, test rows are set aside once for
all groups: no group trains on a test row of another group.

`rotate` and `relabel` shift the clients of an existing federation of any skew: rotations of clients with different
classes are the product of both (StoCFL, figure 8). The shift is applied to a batch on the device: four rotations of
MNIST need the memory of one.
"""

import dataclasses
import math
import numbers
from collections.abc import Sequence

import numpy as np

from jaxfl.data import partition
from jaxfl.data.building import check_no_drift, check_square
from jaxfl.data.clients import FederatedData, Split
from jaxfl.data.labels import check_classes
from jaxfl.data.packing import pack
from jaxfl.data.sources import Source
from jaxfl.random import host_rng


def rotated(
    source: Source,
    *,
    num_clients: int,
    rows_per_client: int | None = None,
    angles: Sequence[float] = (0, 90, 180, 270),
    test_share: float | None = None,
    seed: int = 0,
) -> FederatedData:
    """Returns a federation whose groups have rotated images.

    Args:
        source: square images.
        num_clients: N, a multiple of the number of rotations.
        rows_per_client: training rows of a client, after the test rows are set aside; None is the largest equal number
            for all clients. The remainder of a group, fewer rows than it has clients, is not used.
        angles: degrees, counter-clockwise, one per group. Multiples of 90 are exact, as in `np.rot90`; others are
            interpolated, see `jaxfl.data.images.rotate_by_degrees`.
        test_share: share of the training examples to test all clients on instead; None is the official test set, 0.2
            where there is none.
        seed: seed of the permutations.

    Raises:
        ValueError: N is no multiple of the groups, there are too few rows, or two groups have the same rotation.

    >>> from jaxfl.data.sources import digits
    >>> data = rotated(digits.load(), num_clients=8, rows_per_client=20)
    >>> data.rotation.tolist(), data.train.size.tolist()
    ([0, 0, 1, 1, 2, 2, 3, 3], [20, 20, 20, 20, 20, 20, 20, 20])
    """
    data = _federation_by_shift(source, "rotated", _angle_names(angles), num_clients, rows_per_client, test_share, seed)
    return _add_angles(data, np.asarray(angles, float)[data.group])


def shifted(
    source: Source,
    *,
    num_clients: int,
    rows_per_client: int | None = None,
    shifts: Sequence[int] | None = None,
    test_share: float | None = None,
    seed: int = 0,
) -> FederatedData:
    """Returns a federation whose groups have the label `(c + shift) % L` for class `c`.

    One model for all can be right for at most one of `len(shifts)` groups.

    Args:
        source: any examples.
        num_clients: N, a multiple of the number of shifts.
        rows_per_client: training rows of a client, after the test rows are set aside; None is the largest equal number
            for all clients. The remainder of a group, fewer rows than it has clients, is not used.
        shifts: added to the labels, one per group; None is 0, 3, 6, 9 as in StoCFL, or as many of them as fit the
            classes.
        test_share: share of the training examples to test all clients on instead; None is the official test set, 0.2
            where there is none.
        seed: seed of the permutations.

    Raises:
        ValueError: N is no multiple of the groups, there are too few rows, or two groups have the same shift.

    >>> from jaxfl.data.sources import digits
    >>> shifted(digits.load(), num_clients=4).label_shift.tolist()
    [0, 3, 6, 9]
    """
    check_classes("shifted", source.labels)
    shifts = default_shifts(source.num_classes) if shifts is None else shifts
    names = _shift_names(shifts, source.num_classes)
    data = _federation_by_shift(source, "shifted", names, num_clients, rows_per_client, test_share, seed)
    return _add_label_shifts(data, np.asarray(shifts)[data.group])


def rotate(data: FederatedData, *, angles: Sequence[float] = (0, 180), seed: int = 0) -> FederatedData:
    """Returns the federation with each client's images rotated by one of the angles.

    The clients of each true group get the angles at random, as evenly as possible. Rows, test rows and sizes are
    unchanged; the new groups are the products of true group and angle.

    Args:
        data: federation of square images; angles are added to its rotations.
        angles: degrees, counter-clockwise, as for `rotated` (StoCFL's figure 8: 0 and 180).
        seed: seed of the assignment of angles.

    Raises:
        ValueError: the images are not square, or an angle is given twice.

    >>> from jaxfl.data import skews
    >>> from jaxfl.data.sources import digits
    >>> data = rotate(skews.pathological(digits.load(), num_clients=8))
    >>> np.bincount(data.group).tolist(), data.group_names[1]
    ([1, 1, 1, 1, 1, 1, 1, 1], 'labels 0, 1, 2; 180°')
    """
    check_square(data.inputs)
    names = _angle_names(angles)
    data, choice = _cross_groups(data, "rotated", names, seed)
    return _add_angles(data, np.asarray(angles, float)[choice])


def relabel(data: FederatedData, *, shifts: Sequence[int] | None = None, seed: int = 0) -> FederatedData:
    """Returns the federation with each client's labels shifted by one of the shifts, assigned as in `rotate`.

    Args:
        data: any federation of classes; shifts are added to its label shifts.
        shifts: numbers added to the labels, as for `shifted`.
        seed: seed of the assignment of shifts.

    Raises:
        ValueError: a shift is given twice.
    """
    check_classes("shifted", data.labels)
    shifts = default_shifts(data.num_classes) if shifts is None else shifts
    data, choice = _cross_groups(data, "shifted", _shift_names(shifts, data.num_classes), seed)
    return _add_label_shifts(data, np.asarray(shifts)[choice])


def default_shifts(num_classes: int) -> tuple[int, ...]:
    """Returns StoCFL's shifts 0, 3, 6 and 9; fewer or closer shifts for fewer than ten classes.

    >>> default_shifts(10), default_shifts(62), default_shifts(2)
    ((0, 3, 6, 9), (0, 3, 6, 9), (0, 1))
    """
    return (0, 3, 6, 9) if num_classes >= 10 else tuple(range(min(4, num_classes)))


def _add_angles(data: FederatedData, degrees: np.ndarray) -> FederatedData:
    """Returns the federation with an angle `[N]` added to each rotation, as exact quarter turns and a remainder."""
    if data.rotation is not None:
        degrees = degrees + 90.0 * np.asarray(data.rotation)
    if data.tilt is not None:
        degrees = degrees + np.asarray(data.tilt)
    degrees = degrees % 360
    turns = np.floor(degrees / 90 + 0.5)  # halves always up, so that equal rotations have equal numbers
    left = degrees - 90 * turns
    dtype = np.float32 if data.inputs.dtype == np.uint8 else data.inputs.dtype
    tilt = left.astype(dtype) if left.any() else None
    return dataclasses.replace(data, rotation=turns.astype(np.int32) % 4, tilt=tilt)


def _add_label_shifts(data: FederatedData, shifts: np.ndarray) -> FederatedData:
    """Returns the federation with a shift `[N]` added to each client's label shift."""
    before = 0 if data.label_shift is None else np.asarray(data.label_shift)
    return dataclasses.replace(data, label_shift=((before + shifts) % data.num_classes).astype(np.int32))


def _angle_names(angles: Sequence[float]) -> tuple[str, ...]:
    """Returns the names of the groups; raises ValueError unless the angles differ."""
    _check_distinct("angles", angles, 360)
    return tuple(f"{float(angle) % 360:g}°" for angle in angles)


def _shift_names(shifts: Sequence[int], num_classes: int) -> tuple[str, ...]:
    """Returns the names of the groups; raises ValueError unless the shifts are integers that differ."""
    _check_distinct("shifts", shifts, num_classes)
    if not all(float(shift).is_integer() for shift in shifts):
        raise ValueError(f"shifts must be whole numbers, got {tuple(shifts)}.")
    return tuple(f"shift {int(shift) % num_classes}" for shift in shifts)


def _check_distinct(argument: str, values: Sequence[float], modulus: int) -> None:
    """Raises ValueError unless the shifts of the groups are finite numbers that differ from each other."""
    if isinstance(values, numbers.Real):
        raise ValueError(
            f"{argument} must have a number for each group, got {values}; pass a list, such as [{values}]."
        )
    if not all(isinstance(value, numbers.Real) and math.isfinite(value) for value in values):
        raise ValueError(f"{argument} must be finite numbers, got {tuple(values)}.")
    if not len(values) or len({value % modulus for value in values}) < len(values):
        raise ValueError(
            f"{argument} must be different for every group (modulo {modulus}), got {tuple(values)}; remove one."
        )


def _cross_groups(data: FederatedData, skew: str, names: Sequence[str], seed: int) -> tuple[FederatedData, np.ndarray]:
    """Returns the federation with product groups, and each client's shift `[N]`; every group gets all shifts evenly."""
    check_no_drift(skew, data)
    group = np.zeros(data.num_clients, int) if data.group is None else np.asarray(data.group)
    choice = np.zeros(data.num_clients, int)
    for index in np.unique(group):
        clients = np.flatnonzero(group == index)
        # In turns, so that the numbers of clients differ by at most one, and the first shifts have the larger numbers.
        choice[host_rng(seed, "crossed", skew, int(index)).permutation(clients)] = np.arange(len(clients)) % len(names)
    both, crossed = np.unique(
        group * len(names) + choice, return_inverse=True
    )  # combinations without a client are dropped
    called = data.group_names or (
        [] if data.group is None else [f"group {number}" for number in range(group.max() + 1)]
    )
    known = [f"{name}; " for name in called] or [""]
    return dataclasses.replace(
        data,
        group=crossed.astype(np.int32),
        group_names=tuple(known[index // len(names)] + names[index % len(names)] for index in both),
        name=f"{skew}+{data.name}",
    ), choice


def _federation_by_shift(
    source: Source,
    skew: str,
    names: tuple[str, ...],
    num_clients: int,
    rows_per_client: int | None,
    test_share: float | None,
    seed: int,
) -> FederatedData:
    """Returns a federation in which each group divides all training rows, and all clients share test rows."""
    members = partition.group_members(num_clients, len(names))
    inputs, labels, test = source.pool if test_share is None else (source.inputs, source.labels, None)
    if skew == "rotated":
        check_square(inputs)
    rows, which = np.arange(len(source.inputs)), "of a group"
    if test is None:
        # Once, before rows are divided: a training row of one group must not be a test row of another group.
        (rows,), (test,) = partition.train_test_split([rows], 0.2 if test_share is None else test_share, seed=seed)
        which = f"of a group ({len(test)} more are set aside to test on)"
    size = partition.rows_that_fit(members, rows_per_client, len(rows), which)
    train: list[np.ndarray] = []
    for index in range(len(names)):
        order = rows[host_rng(seed, skew, index).permutation(len(rows))]
        train += list(order[: members * size].reshape(members, size))
    shared = Split.shared([test], np.zeros(num_clients, np.int32))  # stored once
    group = np.repeat(np.arange(len(names), dtype=np.int32), members)
    return pack(source, skew, inputs, labels, train, shared, group, names)
