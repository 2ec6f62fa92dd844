"""Label maps: permutations of the classes by which clients call them, p(y|x).

A map is an array `[L]`: rows of class `c` have the label `map[c]`. Swaps exchange pairs of classes (Vahidian et al.;
CLoVE), permutations are drawn at random (FLUX), and mirrors are those of FedRC: reversed, or the next class.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from jaxfl.data.clients import FederatedData
from jaxfl.random import host_rng
from jaxfl.schema import check_name

CLOVE_SWAPS = ("0:3/8:9", "1:4/6:9", "1:2/3:6", "3:5/4:7")  # of four groups, for ten classes
NONE = "none"
MIRRORS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    NONE: lambda classes: classes,
    "reverse": lambda classes: classes[::-1],
    "next": lambda classes: (classes + 1) % len(classes),
}


class NamedMaps(NamedTuple):
    """Label maps of the groups.

    Attributes:
        maps: `[G, L]`.
        names: one for each group.
    """

    maps: np.ndarray
    names: tuple[str, ...]


def with_maps(data: FederatedData, maps: np.ndarray, choice: np.ndarray) -> FederatedData:
    """Returns the federation with further label maps, applied to what its clients call the classes already.

    The table of all maps has equal shapes for all seeds, so that their runs can share a program.

    Args:
        data: federation of classes.
        maps: `[G, L]`.
        choice: number of each client's map `[N]`.

    >>> from jaxfl.data import load
    >>> data = with_maps(load("shifted-digits", num_clients=4), np.arange(10)[None, ::-1], np.zeros(4, int))
    >>> data.relabelled(np.array([0, 9]), 1).tolist()
    [6, 7]
    """
    if len(maps) != data.num_clients:
        data = with_products(data, maps)
        return dataclasses.replace(data, label_shift=(np.asarray(data.label_shift) + choice).astype(np.int32))
    before, number = _numbered_maps(data)  # one each
    table = np.take_along_axis(maps[choice], before[number], axis=1)
    return dataclasses.replace(
        data, label_map=np.ascontiguousarray(table, np.int32), label_shift=np.arange(len(maps), dtype=np.int32)
    )


def with_products(data: FederatedData, maps: np.ndarray) -> FederatedData:
    """Returns the federation with a table of all its label maps, each followed by every further map.

    A client whose number grows by `g` has the further map `g` after its own; all have the first one.

    Args:
        data: federation of classes.
        maps: `[G, L]`.
    """
    before, number = _numbered_maps(data)
    table = np.swapaxes(maps[:, before], 0, 1).reshape(-1, data.num_classes)  # [M, G, L]
    return dataclasses.replace(
        data, label_map=np.ascontiguousarray(table, np.int32), label_shift=(number * len(maps)).astype(np.int32)
    )


def _numbered_maps(data: FederatedData) -> tuple[np.ndarray, np.ndarray]:
    """Returns a table of the clients' label maps `[M, L]`, and the number of each client's map `[N]`."""
    if data.label_shift is None:
        return np.arange(data.num_classes)[None, :], np.zeros(data.num_clients, int)
    if data.label_map is not None:
        return np.asarray(data.label_map), np.asarray(data.label_shift)
    shifts, number = np.unique(np.asarray(data.label_shift) % data.num_classes, return_inverse=True)
    return (np.arange(data.num_classes) + shifts[:, None]) % data.num_classes, number.reshape(-1)


def swaps_of(swaps: str | Sequence[str] | None, num_classes: int) -> NamedMaps:
    """Returns the maps of groups that swap pairs of classes.

    Args:
        swaps: for each group its pairs, `"0:3/8:9"`, or `"none"`; one text has commas between groups. None is CLoVE's
            four groups for ten classes or more; for fewer, no swap and one pair of neighbours in each further group.
        num_classes: L.

    Raises:
        ValueError: a pair is not two classes that differ, a class is swapped twice, or two groups have equal swaps.

    >>> swaps_of("none,0:2/3:1", 4).maps.tolist(), swaps_of(None, 3).names
    ([[0, 1, 2, 3], [2, 3, 0, 1]], ('no swap', 'swap 0:1'))
    """
    if swaps is None:
        swaps = CLOVE_SWAPS if num_classes >= 10 else (NONE, "0:1", "2:3", "4:5")[: 4 if num_classes >= 6 else 2]
    words = _words(swaps)
    maps = np.stack([_swap_map(word, num_classes) for word in words])
    _check_different("swaps", maps, words)
    return NamedMaps(maps, tuple("no swap" if word == NONE else f"swap {word.replace('/', ' ')}" for word in words))


def _swap_map(word: str, num_classes: int) -> np.ndarray:
    """Returns the map of the swaps of a group, `0:3/8:9` or `none`."""
    swapped = np.arange(num_classes)
    moved: set[int] = set()
    for pair in [] if word == NONE else word.split("/"):
        numbers = [part.strip() for part in pair.split(":")]
        if len(numbers) != 2 or not all(part.isdecimal() and len(part) < 10 for part in numbers):
            raise ValueError(f"swaps must be pairs of classes such as 0:3/8:9, or none, got {pair!r} in {word!r}.")
        first, second = map(int, numbers)
        if max(first, second) >= num_classes or first == second:
            raise ValueError(f"swaps must be of two classes from 0 to {num_classes - 1}, got {pair!r} in {word!r}.")
        if twice := moved & {first, second}:
            raise ValueError(f"swaps of a group must have each class once, got {twice.pop()} twice in {word!r}.")
        moved |= {first, second}
        swapped[[first, second]] = second, first
    return swapped


def mirrors_of(maps: str | Sequence[str] | None, num_classes: int) -> NamedMaps:
    """Returns the maps of groups with reversed classes and the like, see `MIRRORS`.

    Args:
        maps: a word for each group; one text has commas between groups. None is all that differ for L classes.
        num_classes: L.

    Raises:
        ValueError: a word is unknown, or two groups have equal maps.

    >>> mirrors_of(None, 4).maps.tolist()
    [[0, 1, 2, 3], [3, 2, 1, 0], [1, 2, 3, 0]]
    """
    words = tuple(MIRRORS)[: 3 if num_classes > 2 else 2] if maps is None else _words(maps)
    for word in words:
        check_name("map of maps", word, MIRRORS)
    table = np.stack([MIRRORS[word](np.arange(num_classes)) for word in words])
    _check_different("maps", table, words)
    called = {NONE: "no mirror", "reverse": "reversed", "next": "next class"}
    return NamedMaps(table, tuple(called[word] for word in words))


def permutations_of(labels: int | None, num_groups: int | None, num_classes: int, seed: int) -> NamedMaps:
    """Returns different maps of groups that permute some of the classes at random, the same classes in each group.

    Args:
        labels: how many classes are permuted; None is 5, or all of them if there are fewer.
        num_groups: G, at most the number of permutations; None is 4, or all permutations if there are fewer.
        num_classes: L.
        seed: seed of the choice of classes and of the permutations.

    Raises:
        ValueError: there are not so many classes or permutations.
    """
    chosen = _permuted_classes(labels, num_classes, seed)
    most = math.factorial(min(len(chosen), 20))
    num_groups = min(4, most) if num_groups is None else num_groups
    if not 1 <= num_groups <= most:
        raise ValueError(
            f"num_groups must be from 1 to the {most} permutations of labels={len(chosen)} "
            f"classes, got {num_groups}; permute more classes."
        )
    rng, maps = host_rng(seed, "permuted"), []
    while len(maps) < num_groups:
        drawn = np.arange(num_classes)
        drawn[chosen] = rng.permutation(chosen)
        if not any(np.array_equal(drawn, one) for one in maps):
            maps.append(drawn)
    return NamedMaps(np.stack(maps), tuple(f"permutation {number}" for number in range(num_groups)))  # of all seeds


def client_permutations(labels: int | None, num_clients: int, num_classes: int, seed: int) -> np.ndarray:
    """Returns a random map of each client `[N, L]`, a permutation of the same classes; some may be equal (FLUX)."""
    chosen = _permuted_classes(labels, num_classes, seed)
    maps = np.tile(np.arange(num_classes), (num_clients, 1))
    drawn = np.tile(chosen, (num_clients, 1))
    maps[:, chosen] = host_rng(seed, "permuted", "clients").permuted(drawn, axis=1)
    return maps


def _permuted_classes(labels: int | None, num_classes: int, seed: int) -> np.ndarray:
    """Returns the classes that are permuted, in increasing order."""
    labels = min(5, num_classes) if labels is None else labels
    if not 1 <= labels <= num_classes:
        raise ValueError(f"labels must be from 1 to the {num_classes} classes, got {labels}.")
    return np.sort(host_rng(seed, "permuted", "classes").permutation(num_classes)[:labels])


def _words(text: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the words of a list, or of a text with commas between them; None stands for `none`."""
    listed = text.split(",") if isinstance(text, str) else text
    return tuple(NONE if one is None else str(one).strip() for one in listed)


def _check_different(argument: str, maps: np.ndarray, words: Sequence[str]) -> None:
    """Raises ValueError if two groups have equal maps."""
    for place, one in enumerate(maps):
        for before in range(place):
            if np.array_equal(one, maps[before]):
                raise ValueError(
                    f"{argument} must be different for every group, got {words[before]!r} and {words[place]!r}; "
                    "remove one."
                )
