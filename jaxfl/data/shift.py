"""Shifts with known groups: the same examples, rotated or relabelled differently for each group of clients.

`rotated`, `shifted`, `swapped`, `permuted` and `mirrored` divide a permutation of all training images among the clients
of each group, and all clients share one test set, as in IFCA (Ghosh et al., 2020: rotated MNIST, a quarter of the
clients for each of four rotations) and in StoCFL (Zeng et al., 2023: rotated and shifted). Without an official test
set, test rows are set aside once for all groups: no group trains on a test row of another group.

`rotate`, `relabel`, `swap_labels`, `permute_labels` and `mirror_labels` shift the clients of an existing federation of
any skew: rotations of clients with different classes are the product of both (StoCFL, figure 8). The shift is applied
to a batch on the device: four rotations of MNIST need the memory of one.
"""

import dataclasses
import math
import numbers
import warnings
from collections.abc import Sequence
from typing import Literal

import numpy as np

from jaxfl.data import assignment, causes, partition
from jaxfl.data.building import check_no_drift, check_square
from jaxfl.data.clients import FederatedData, Split
from jaxfl.data.labels import check_classes
from jaxfl.data.packing import pack
from jaxfl.data.sources import Source
from jaxfl.data.views import label_maps
from jaxfl.data.views.copies import with_copies
from jaxfl.random import host_rng
from jaxfl.schema import checked

Resample = Literal["bilinear", "nearest"]


@checked
def rotated(
    source: Source,
    *,
    num_clients: int,
    rows_per_client: int | None = None,
    angles: Sequence[float] = (0, 90, 180, 270),
    resample: Resample = "bilinear",
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
        resample: bilinear interpolation with the border repeated, or the nearest pixel and 0 beyond the border, as in
            Pillow and torchvision (CFL-GP, ANDA).
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
    data = divide_by_group(
        source, "rotated", _angle_names(angles), num_clients, rows_per_client, test_share, seed, cause="rotation"
    )
    return _add_angles(data, np.asarray(angles, float)[data.group], resample)


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
    data = divide_by_group(source, "shifted", names, num_clients, rows_per_client, test_share, seed, cause="labels")
    return _add_label_shifts(data, np.asarray(shifts)[data.group])


def swapped(
    source: Source,
    *,
    num_clients: int,
    rows_per_client: int | None = None,
    swaps: str | Sequence[str] | None = None,
    test_share: float | None = None,
    seed: int = 0,
) -> FederatedData:
    """Returns a federation whose groups have swapped labels of pairs of classes (CLoVE; Comparative Evaluation of CFL).

    Args:
        source: any examples.
        num_clients: N, a multiple of the number of groups.
        rows_per_client: training rows of a client, after the test rows are set aside; None is the largest equal number
            for all clients. The remainder of a group, fewer rows than it has clients, is not used.
        swaps: pairs of classes of each group, 0:3/8:9, or none, with commas between groups. None is CLoVE's four groups
            for ten classes or more, see `jaxfl.data.views.label_maps.swaps_of`.
        test_share: share of the training examples to test all clients on instead; None is the official test set, 0.2
            where there is none.
        seed: seed of the permutations of the rows, which are those of `shifted`.

    Raises:
        ValueError: N is no multiple of the groups, there are too few rows, a class is not there or swapped twice, or
            two groups have equal swaps.

    >>> from jaxfl.data.sources import digits
    >>> data = swapped(digits.load(), num_clients=4, swaps="none,0:3/8:9")
    >>> data.relabelled(np.array([0, 1, 9]), 3).tolist(), data.group_names
    ([3, 1, 8], ('no swap', 'swap 0:3 8:9'))
    """
    check_classes("swapped", source.labels)
    maps = label_maps.swaps_of(swaps, source.num_classes)
    return _relabelled_groups(source, "swapped", maps, num_clients, rows_per_client, test_share, seed)


def permuted(
    source: Source,
    *,
    num_clients: int,
    rows_per_client: int | None = None,
    labels: int | None = None,
    num_groups: int | None = None,
    each_client: bool = False,
    test_share: float | None = None,
    seed: int = 0,
) -> FederatedData:
    """Returns a federation whose groups, or clients, have random permutations of the labels of some classes.

    Args:
        source: any examples.
        num_clients: N, a multiple of the number of groups.
        rows_per_client: training rows of a client, after the test rows are set aside; None is the largest equal number
            for all clients. The remainder of a group, fewer rows than it has clients, is not used.
        labels: number of classes that are permuted, the same for all clients; None is 5, or all if there are fewer.
        num_groups: number of groups, each with another permutation; None is 4, or as many as there are permutations.
        each_client: whether each client draws its own permutation, which others may have too (FLUX); then there are no
            true groups.
        test_share: share of the training examples to test all clients on instead; None is the official test set, 0.2
            where there is none.
        seed: seed of the classes, of their permutations, and of those of the rows, which are those of `shifted`.

    Raises:
        ValueError: N is no multiple of the groups, or there are too few rows, classes or permutations.

    >>> from jaxfl.data.sources import digits
    >>> data = permuted(digits.load(), num_clients=4, labels=3, num_groups=2)
    >>> data.group_names, int((data.label_maps()[0] != data.label_maps()[3]).sum())
    (('permutation 0', 'permutation 1'), 3)
    """
    check_classes("permuted", source.labels)
    if not each_client:
        maps = label_maps.permutations_of(labels, num_groups, source.num_classes, seed)
        return _relabelled_groups(source, "permuted", maps, num_clients, rows_per_client, test_share, seed)
    own = label_maps.client_permutations(labels, num_clients, source.num_classes, seed)
    data = divide_by_group(
        source, "permuted", ("all",), num_clients, rows_per_client, test_share, seed, cause=None, stream="shifted"
    )
    return label_maps.with_maps(data, own, np.arange(num_clients))


def mirrored(
    source: Source,
    *,
    num_clients: int,
    rows_per_client: int | None = None,
    maps: str | Sequence[str] | None = None,
    test_share: float | None = None,
    seed: int = 0,
) -> FederatedData:
    """Returns a federation whose groups have reversed labels, or those of the next class (FedRC).

    Args:
        source: any examples.
        num_clients: N, a multiple of the number of groups.
        rows_per_client: training rows of a client, after the test rows are set aside; None is the largest equal number
            for all clients. The remainder of a group, fewer rows than it has clients, is not used.
        maps: a word for each group, with commas between them: none, reverse (L - 1 - c for class c) or next (c + 1,
            and 0 for the last class). None is all three, or none and reverse for two classes.
        test_share: share of the training examples to test all clients on instead; None is the official test set, 0.2
            where there is none.
        seed: seed of the permutations of the rows, which are those of `shifted`.

    Raises:
        ValueError: N is no multiple of the groups, there are too few rows, or two groups have equal maps.

    >>> from jaxfl.data.sources import digits
    >>> mirrored(digits.load(), num_clients=3).label_maps()[:, :3].tolist()
    [[0, 1, 2], [9, 8, 7], [1, 2, 3]]
    """
    check_classes("mirrored", source.labels)
    named = label_maps.mirrors_of(maps, source.num_classes)
    return _relabelled_groups(source, "mirrored", named, num_clients, rows_per_client, test_share, seed)


@checked
def rotate(
    data: FederatedData, *, angles: Sequence[float] = (0, 180), resample: Resample = "bilinear", seed: int = 0
) -> FederatedData:
    """Returns the federation with each client's images rotated by one of the angles.

    The clients of each true group get the angles at random, as evenly as possible. Rows, test rows and sizes are
    unchanged; the new groups are the products of true group and angle.

    Args:
        data: federation of square images; angles are added to its rotations.
        angles: degrees, counter-clockwise, as for `rotated` (StoCFL's figure 8: 0 and 180).
        resample: bilinear or nearest, as for `rotated`.
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
    data, choice = cross_groups(data, "rotated", names, seed, cause="rotation")
    return _add_angles(data, np.asarray(angles, float)[choice], resample)


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
    data, choice = cross_groups(data, "shifted", _shift_names(shifts, data.num_classes), seed, cause="labels")
    return _add_label_shifts(data, np.asarray(shifts)[choice])


def swap_labels(data: FederatedData, *, swaps: str | Sequence[str] | None = None, seed: int = 0) -> FederatedData:
    """Returns the federation with some pairs of each client's labels swapped, assigned as in `rotate`.

    Args:
        data: any federation of classes; classes are what its clients call them before.
        swaps: pairs of classes of each group, 0:3/8:9, or none, with commas between groups, as for `swapped`.
        seed: seed of the assignment of swaps.

    Raises:
        ValueError: a class is not there or swapped twice, or two groups have equal swaps.
    """
    check_classes("swapped", data.labels)
    return _cross_maps(data, "swapped", label_maps.swaps_of(swaps, data.num_classes), seed)


def permute_labels(
    data: FederatedData,
    *,
    labels: int | None = None,
    num_groups: int | None = None,
    each_client: bool = False,
    seed: int = 0,
) -> FederatedData:
    """Returns the federation with a random permutation of some of each client's labels, assigned as in `rotate`.

    Args:
        data: any federation of classes.
        labels: number of classes that are permuted, the same for all clients; None is 5, or all if there are fewer.
        num_groups: number of groups, each with another permutation; None is 4, or as many as there are permutations.
        each_client: whether each client draws its own permutation (FLUX); the true groups are then those of before.
        seed: seed of the permutations and of their assignment.

    Raises:
        ValueError: there are too few classes or permutations.
    """
    check_classes("permuted", data.labels)
    if not each_client:
        return _cross_maps(
            data, "permuted", label_maps.permutations_of(labels, num_groups, data.num_classes, seed), seed
        )
    check_no_drift("permuted", data)
    own = label_maps.client_permutations(labels, data.num_clients, data.num_classes, seed)
    data = label_maps.with_maps(data, own, np.arange(data.num_clients))
    return dataclasses.replace(data, name=f"permuted+{data.name}")


def mirror_labels(data: FederatedData, *, maps: str | Sequence[str] | None = None, seed: int = 0) -> FederatedData:
    """Returns the federation with some clients' labels reversed, or those of the next class, assigned as in `rotate`.

    Args:
        data: any federation of classes.
        maps: a word for each group, none, reverse or next, with commas between them, as for `mirrored`.
        seed: seed of the assignment of maps.

    Raises:
        ValueError: a word is unknown, or two groups have equal maps.
    """
    check_classes("mirrored", data.labels)
    return _cross_maps(data, "mirrored", label_maps.mirrors_of(maps, data.num_classes), seed)


def default_shifts(num_classes: int) -> tuple[int, ...]:
    """Returns StoCFL's shifts 0, 3, 6 and 9; fewer or closer shifts for fewer than ten classes.

    >>> default_shifts(10), default_shifts(62), default_shifts(2)
    ((0, 3, 6, 9), (0, 3, 6, 9), (0, 1))
    """
    return (0, 3, 6, 9) if num_classes >= 10 else tuple(range(min(4, num_classes)))


def _add_angles(data: FederatedData, degrees: np.ndarray, resample: str) -> FederatedData:
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
    nearest = resample == "nearest" and tilt is not None
    return with_copies(dataclasses.replace(data, rotation=turns.astype(np.int32) % 4, tilt=tilt, nearest=nearest))


def _add_label_shifts(data: FederatedData, shifts: np.ndarray) -> FederatedData:
    """Returns the federation with a shift `[N]` added to each client's label shift."""
    if data.label_map is not None:
        distinct, choice = np.unique(shifts, return_inverse=True)
        maps = (np.arange(data.num_classes) + distinct[:, None]) % data.num_classes
        return label_maps.with_maps(data, maps, choice.reshape(-1))
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


def cross_groups(
    data: FederatedData, skew: str, names: Sequence[str], seed: int, *, cause: str
) -> tuple[FederatedData, np.ndarray]:
    """Returns the federation with product groups, and each client's shift `[N]`, see `jaxfl.data.assignment`.

    Args:
        data: the federation.
        skew: name of the shift, which the federation's name then begins with.
        names: names of the shifts.
        seed: seed of the choice.
        cause: the cause that the shifts plant, see `jaxfl.data.causes`.
    """
    check_no_drift(skew, data)
    group = np.zeros(data.num_clients, int) if data.group is None else np.asarray(data.group)
    choice = assignment.client_patterns(group, names, skew, seed)
    if unused := [name for number, name in enumerate(names) if number not in choice]:
        warnings.warn(
            f"no client of {skew}+{data.name} has {', '.join(unused)}: its {len(np.unique(group))} groups have "
            f"at most {np.bincount(group).max()} clients each; use more clients.",
            stacklevel=3,
        )
    data = causes.declared(data, cause, choice, names)
    crossed, group_names = causes.product(group, causes.group_labels(data), choice, names)
    return dataclasses.replace(data, group=crossed, group_names=group_names, name=f"{skew}+{data.name}"), choice


def _cross_maps(data: FederatedData, skew: str, named: label_maps.NamedMaps, seed: int) -> FederatedData:
    """Returns the federation with product groups, whose clients have further label maps."""
    data, choice = cross_groups(data, skew, named.names, seed, cause="labels")
    return label_maps.with_maps(data, named.maps, choice)


def _relabelled_groups(
    source: Source,
    skew: str,
    named: label_maps.NamedMaps,
    num_clients: int,
    rows_per_client: int | None,
    test_share: float | None,
    seed: int,
) -> FederatedData:
    """Returns a federation of groups with label maps, which have the rows of `shifted`."""
    data = divide_by_group(
        source, skew, named.names, num_clients, rows_per_client, test_share, seed, cause="labels", stream="shifted"
    )
    return label_maps.with_maps(data, named.maps, np.asarray(data.group))


def divide_by_group(
    source: Source,
    skew: str,
    names: tuple[str, ...],
    num_clients: int,
    rows_per_client: int | None,
    test_share: float | None,
    seed: int,
    *,
    cause: str | None,
    stream: str | None = None,
) -> FederatedData:
    """Returns a federation in which each group divides all training rows, and all clients share test rows.

    Args:
        source, num_clients, rows_per_client, test_share, seed: as in the builders.
        skew: name of the skew, a part of the federation's name.
        names: names of the groups.
        cause: the cause of the groups, see `jaxfl.data.causes`; None if these are no true groups.
        stream: name of the random stream that orders the rows; None is that of the skew.
    """
    sizes = assignment.group_sizes(num_clients, names)
    members = np.full(len(names), partition.group_members(num_clients, len(names))) if sizes is None else sizes
    if not members.all():
        raise ValueError(
            f"group_shares must give each pattern a client, got none of {num_clients} for "
            f"{names[int(members.argmin())]}; raise its share, or use more clients."
        )
    inputs, labels, test = source.pool if test_share is None else (source.inputs, source.labels, None)
    if skew == "rotated":
        check_square(inputs)
    rows, which = np.arange(len(source.inputs)), "of a group"
    if test is None:
        # Once, before rows are divided: a training row of one group must not be a test row of another group.
        (rows,), (test,) = partition.train_test_split([rows], 0.2 if test_share is None else test_share, seed=seed)
        which = f"of a group ({len(test)} more are set aside to test on)"
    size = partition.rows_that_fit(int(members.max()), rows_per_client, len(rows), which)
    train: list[np.ndarray] = []
    for index, count in enumerate(members.tolist()):
        order = rows[host_rng(seed, stream or skew, index).permutation(len(rows))]
        train += list(order[: count * size].reshape(count, size))
    shared = Split.shared([test], np.zeros(num_clients, np.int32))  # stored once
    group = np.repeat(np.arange(len(names), dtype=np.int32), members)
    if cause is None:
        return pack(source, skew, inputs, labels, train, shared, None, ())
    return pack(source, skew, inputs, labels, train, shared, group, names, cause=cause)
