"""Shifts with known groups: the same examples, seen differently by each group of clients.

`rotated` and `shifted` give each group its own permutation of all training images, dealt out to its clients, and all
clients share one test set, as in IFCA (Ghosh et al., 2020: rotated MNIST, a quarter of the clients for each of four
rotations) and in StoCFL (Zeng et al., 2023: rotated and shifted). Where there is no official test set, rows are set
aside once, for all groups: what one group is tested on, no other group trains on.

`rotate` and `relabel` shift the clients of a federation that there is, whatever its skew: rotations of clients with
classes of their own are the product of both (StoCFL, figure 8). The shift itself is applied to a batch on the device:
four rotations of MNIST cost one MNIST.
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
    """Returns a federation whose groups see the images rotated.

    Args:
        source: square images.
        num_clients: N, a multiple of the number of rotations.
        rows_per_client: training rows of a client, after the test rows are set aside; None is the most that all clients
            can have alike: what is left over of a group, fewer rows than it has clients, is dealt to nobody.
        angles: degrees, counter-clockwise, one per group. Multiples of 90 are exact, as `np.rot90`; others are
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
    """Returns a federation whose groups call class `c` by the label `(c + shift) % L`.

    One model for all cannot be right for more than one group in `len(shifts)`.

    Args:
        source: any examples.
        num_clients: N, a multiple of the number of shifts.
        rows_per_client: training rows of a client, after the test rows are set aside; None is the most that all clients
            can have alike: what is left over of a group, fewer rows than it has clients, is dealt to nobody.
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

    The clients of each true group are dealt out to the angles at random, as evenly as can be: rows, test rows and sizes
    stay, the groups become the products of both.

    Args:
        data: of square images; rotations that it has are added to.
        angles: degrees, counter-clockwise, as for `rotated` (StoCFL's figure 8: 0 and 180).
        seed: seed of who gets which.

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
    """Returns the federation with each client's labels shifted by one of the shifts, dealt out as in `rotate`.

    Args:
        data: any federation; shifts that it has are added to.
        shifts: added to the labels, as for `shifted`.
        seed: seed of who gets which.

    Raises:
        ValueError: a shift is given twice.
    """
    check_classes("shifted", data.labels)
    shifts = default_shifts(data.num_classes) if shifts is None else shifts
    data, choice = _cross_groups(data, "shifted", _shift_names(shifts, data.num_classes), seed)
    return _add_label_shifts(data, np.asarray(shifts)[choice])


def default_shifts(num_classes: int) -> tuple[int, ...]:
    """Returns StoCFL's shifts 0, 3, 6 and 9; fewer or closer ones where there are fewer than ten classes.

    >>> default_shifts(10), default_shifts(62), default_shifts(2)
    ((0, 3, 6, 9), (0, 3, 6, 9), (0, 1))
    """
    return (0, 3, 6, 9) if num_classes >= 10 else tuple(range(min(4, num_classes)))


def _add_angles(data: FederatedData, degrees: np.ndarray) -> FederatedData:
    """Adds an angle `[N]` to every client's rotation: whole quarter turns, which are exact, and what is left."""
    if data.rotation is not None:
        degrees = degrees + 90.0 * np.asarray(data.rotation)
    if data.tilt is not None:
        degrees = degrees + np.asarray(data.tilt)
    degrees = degrees % 360
    turns = np.floor(degrees / 90 + 0.5)  # halves always up: clients who see the same have the same two numbers
    left = degrees - 90 * turns
    dtype = np.float32 if data.inputs.dtype == np.uint8 else data.inputs.dtype
    tilt = left.astype(dtype) if left.any() else None
    return dataclasses.replace(data, rotation=turns.astype(np.int32) % 4, tilt=tilt)


def _add_label_shifts(data: FederatedData, shifts: np.ndarray) -> FederatedData:
    """Adds a shift `[N]` to every client's labels."""
    before = 0 if data.label_shift is None else np.asarray(data.label_shift)
    return dataclasses.replace(data, label_shift=((before + shifts) % data.num_classes).astype(np.int32))


def _angle_names(angles: Sequence[float]) -> tuple[str, ...]:
    """Returns the groups' names; raises unless the angles differ."""
    _check_distinct("angles", angles, 360)
    return tuple(f"{float(angle) % 360:g}°" for angle in angles)


def _shift_names(shifts: Sequence[int], num_classes: int) -> tuple[str, ...]:
    """Returns the groups' names; raises unless the shifts differ."""
    _check_distinct("shifts", shifts, num_classes)
    if not all(float(shift).is_integer() for shift in shifts):
        raise ValueError(f"shifts must be whole numbers, got {tuple(shifts)}.")
    return tuple(f"shift {int(shift) % num_classes}" for shift in shifts)


def _check_distinct(argument: str, values: Sequence[float], modulus: int) -> None:
    """Raises unless the groups' shifts are numbers that differ from each other."""
    if isinstance(values, numbers.Real):
        raise ValueError(
            f"{argument} must have a number for each group, got {values}; pass a list, such as [{values}]."
        )
    if not all(isinstance(value, numbers.Real) and math.isfinite(value) for value in values):
        raise ValueError(f"{argument} must be finite numbers, got {tuple(values)}.")
    if not len(values) or len({value % modulus for value in values}) < len(values):
        raise ValueError(
            f"{argument} must be different for every group (modulo {modulus}), got {tuple(values)}; drop the repeated."
        )


def _cross_groups(data: FederatedData, skew: str, names: Sequence[str], seed: int) -> tuple[FederatedData, np.ndarray]:
    """Deals the clients of every group out to the shifts; returns the new groups, and who got which shift `[N]`."""
    check_no_drift(skew, data)
    group = np.zeros(data.num_clients, int) if data.group is None else np.asarray(data.group)
    choice = np.zeros(data.num_clients, int)
    for index in np.unique(group):
        clients = np.flatnonzero(group == index)
        # Who is first gets the first shift: whoever is left over after the last round goes to the first ones.
        choice[host_rng(seed, "crossed", skew, int(index)).permutation(clients)] = np.arange(len(clients)) % len(names)
    both, crossed = np.unique(group * len(names) + choice, return_inverse=True)  # combinations without a client vanish
    called = data.group_names or ([] if data.group is None else [f"group {one}" for one in range(group.max() + 1)])
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
    """Deals the training rows out to the clients of each group; the test rows are the same for all."""
    members = partition.group_members(num_clients, len(names))
    inputs, labels, test = source.pool if test_share is None else (source.inputs, source.labels, None)
    if skew == "rotated":
        check_square(inputs)
    own, which = np.arange(len(source.inputs)), "of a group"
    if test is None:
        # Once, and before rows are dealt out: what one group trains on must not be another group's test row.
        (own,), (test,) = partition.train_test_split([own], 0.2 if test_share is None else test_share, seed=seed)
        which = f"of a group ({len(test)} more are set aside to test on)"
    rows = partition.rows_that_fit(members, rows_per_client, len(own), which)
    train: list[np.ndarray] = []
    for index in range(len(names)):
        order = own[host_rng(seed, skew, index).permutation(len(own))]
        train += list(order[: members * rows].reshape(members, rows))
    shared = Split.shared([test], np.zeros(num_clients, np.int32))  # stored once
    group = np.repeat(np.arange(len(names), dtype=np.int32), members)
    return pack(source, skew, inputs, labels, train, shared, group, names)
