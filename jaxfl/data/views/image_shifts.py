"""Shifts of images: colours, corruptions, strokes, and rotations or colours of some classes alone.

`coloured`, `corrupted`, `thickened` and `classwise` divide the rows as `jaxfl.data.shift.rotated` does: each group a
permutation of all training images, and all clients have one test set. `colour_images`, `corrupt_images`,
`redraw_images` and `transform_classes` shift the clients of an existing federation of any skew, as `rotate` does.

Colours, inversions and forms by class are applied to a batch on the device (`jaxfl.data.views.seen_images`); other
strokes and corruptions are copies of rows that are computed once (`jaxfl.data.views.copies`). Images are pixels of
uint8.
"""

import dataclasses
import re
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from jaxfl.data.building import check_no_drift, check_pixels, check_square, white_level
from jaxfl.data.clients import FederatedData
from jaxfl.data.images import COLOURS
from jaxfl.data.labels import check_classes
from jaxfl.data.shift import cross_groups, divide_by_group
from jaxfl.data.sources import Source
from jaxfl.data.views.copies import with_copies
from jaxfl.data.views.corruptions import INVERT, KINDS, STROKES, Corruption, Scale
from jaxfl.random import host_rng
from jaxfl.schema import check_word, checked, quoted

Words = str | Sequence[str]
NONE = "none"
USUAL_CORRUPTIONS = (NONE, "gaussian_noise", "gaussian_blur", "contrast")
LEVEL_RANGE = re.compile(r"([1-5])-([1-5])")
STREAM = "rotated"  # the rows of a group are those of the same group of `rotated`
MAX_PATTERNS = 4  # quarter turns, and colours


@checked
def coloured(
    source: Source,
    *,
    num_clients: int,
    rows_per_client: int | None = None,
    colours: Words = COLOURS,
    tint: Literal["channel", "ink"] = "channel",
    test_share: float | None = None,
    seed: int = 0,
) -> FederatedData:
    """Returns a federation whose groups have images of their own colour, with three channels (ANDA, FLUX).

    Args:
        source: images in grey or colour.
        num_clients: N, a multiple of the number of colours.
        rows_per_client: training rows of a client, after the test rows are set aside; None is the largest equal number
            for all clients. The remainder of a group, fewer rows than it has clients, is not used.
        colours: colour of each group, none, red, green or blue, with commas between them.
        tint: what has the colour: channel makes this channel white all over, ink leaves only this channel.
        test_share: share of the training examples to test all clients on instead; None is the official test set, 0.2
            where there is none.
        seed: seed of the permutations.

    Raises:
        ValueError: N is no multiple of the groups, there are too few rows, a colour is unknown or given twice, or the
            rows are no images.

    >>> from jaxfl.data.sources import digits
    >>> data = coloured(digits.load(), num_clients=8, rows_per_client=20)
    >>> data.colour.tolist(), data.input_shape
    ([0, 0, 1, 1, 2, 2, 3, 3], (8, 8, 3))
    """
    codes, names = _colours(colours, tint)
    check_pixels("coloured", source.inputs)
    data = divide_by_group(
        source, "coloured", names, num_clients, rows_per_client, test_share, seed, cause="colour", stream=STREAM
    )
    return _add_colours(data, codes[data.group])


@checked
def colour_images(
    data: FederatedData, *, colours: Words = COLOURS, tint: Literal["channel", "ink"] = "channel", seed: int = 0
) -> FederatedData:
    """Returns the federation with each client's images in one of the colours, assigned as in `shift.rotate`.

    Args:
        data: federation of images without colours.
        colours: none, red, green or blue, with commas between them, as for `coloured`.
        tint: what has the colour, channel or ink, as for `coloured`.
        seed: seed of the assignment of colours.

    Raises:
        ValueError: a colour is unknown or given twice, or the rows are no images.
    """
    codes, names = _colours(colours, tint)
    check_pixels("coloured", data.inputs)
    _check_unused("coloured", data, "colour")
    data, choice = cross_groups(data, "coloured", names, seed, cause="colour")
    return _add_colours(data, codes[choice])


@checked
def corrupted(
    source: Source,
    *,
    num_clients: int,
    rows_per_client: int | None = None,
    corruptions: Words = USUAL_CORRUPTIONS,
    level: int | Sequence[int] | str = 3,
    scale: Scale = "cifar",
    test_share: float | None = None,
    seed: int = 0,
) -> FederatedData:
    """Returns a federation whose groups have corrupted images, see `jaxfl.data.views.corruptions`.

    Args:
        source: images in grey or colour.
        num_clients: N, a multiple of the number of corruptions.
        rows_per_client: training rows of a client, after the test rows are set aside; None is the largest equal number
            for all clients. The remainder of a group, fewer rows than it has clients, is not used.
        corruptions: corruption of each group, such as none, gaussian_noise or invert, with commas between them.
        level: 1 to 5; a level for each corruption, with commas between them; or 1-5, from which each client draws.
        scale: strengths of the levels, those of CIFAR-10-C, or the larger ones of ImageNet-C and MNIST-C.
        test_share: share of the training examples to test all clients on instead; None is the official test set, 0.2
            where there is none.
        seed: seed of the permutations, of drawn levels, and of noise.

    Raises:
        ValueError: N is no multiple of the groups, there are too few rows, a corruption is unknown or given twice, a
            level is out of range, or the rows are no images.

    >>> from jaxfl.data.sources import digits
    >>> data = corrupted(digits.load(), num_clients=4, rows_per_client=20)
    >>> data.group_names
    ('clean', 'gaussian_noise 3', 'gaussian_blur 3', 'contrast 3')
    """
    patterns, names = _corruptions(corruptions, level, scale)
    check_pixels("corrupted", source.inputs)
    data = divide_by_group(
        source, "corrupted", names, num_clients, rows_per_client, test_share, seed, cause="corruption", stream=STREAM
    )
    return _add_corruptions(data, patterns, np.asarray(data.group), seed)


@checked
def corrupt_images(
    data: FederatedData,
    *,
    corruptions: Words = USUAL_CORRUPTIONS,
    level: int | Sequence[int] | str = 3,
    scale: Scale = "cifar",
    seed: int = 0,
) -> FederatedData:
    """Returns the federation with each client's images corrupted in one way, assigned as in `shift.rotate`.

    Args:
        data: federation of images without corruptions.
        corruptions: such as none, gaussian_noise or invert, with commas between them, as for `corrupted`.
        level: 1 to 5; a level for each corruption, with commas between them; or 1-5, from which each client draws.
        scale: strengths of the levels, those of CIFAR-10-C, or the larger ones of ImageNet-C and MNIST-C.
        seed: seed of the assignment of corruptions, of drawn levels, and of noise.

    Raises:
        ValueError: a corruption is unknown or given twice, a level is out of range, or the rows are no images.
    """
    patterns, names = _corruptions(corruptions, level, scale)
    check_pixels("corrupted", data.inputs)
    _check_unused("corrupted", data, "corruption")
    data, choice = cross_groups(data, "corrupted", names, seed, cause="corruption")
    return _add_corruptions(data, patterns, choice, seed)


@checked
def thickened(
    source: Source,
    *,
    num_clients: int,
    rows_per_client: int | None = None,
    strokes: Words = (NONE, *STROKES),
    test_share: float | None = None,
    seed: int = 0,
) -> FederatedData:
    """Returns a federation whose groups have thinner or thicker strokes (Comparative Evaluation of CFL).

    Args:
        source: images of bright strokes.
        num_clients: N, a multiple of the number of strokes.
        rows_per_client: training rows of a client, after the test rows are set aside; None is the largest equal number
            for all clients. The remainder of a group, fewer rows than it has clients, is not used.
        strokes: of each group, none, erode or dilate (minimum or maximum of 3 x 3 pixels), with commas between them.
        test_share: share of the training examples to test all clients on instead; None is the official test set, 0.2
            where there is none.
        seed: seed of the permutations.

    Raises:
        ValueError: N is no multiple of the groups, there are too few rows, a word is unknown or given twice, or the
            rows are no images.

    >>> from jaxfl.data.sources import digits
    >>> data = thickened(digits.load(), num_clients=3, rows_per_client=20)
    >>> data.stroke.tolist(), data.group_names
    ([0, 1, 2], ('strokes unchanged', 'eroded', 'dilated'))
    """
    codes, names = _strokes(strokes)
    check_pixels("thickened", source.inputs)
    data = divide_by_group(
        source, "thickened", names, num_clients, rows_per_client, test_share, seed, cause="stroke", stream=STREAM
    )
    return _add_strokes(data, codes[data.group])


@checked
def redraw_images(data: FederatedData, *, strokes: Words = (NONE, *STROKES), seed: int = 0) -> FederatedData:
    """Returns the federation with each client's strokes unchanged, thinner or thicker, assigned as in `shift.rotate`.

    Args:
        data: federation of images of bright strokes.
        strokes: none, erode or dilate, with commas between them, as for `thickened`.
        seed: seed of the assignment of strokes.

    Raises:
        ValueError: a word is unknown or given twice, or the rows are no images.
    """
    codes, names = _strokes(strokes)
    check_pixels("thickened", data.inputs)
    _check_unused("thickened", data, "stroke")
    data, choice = cross_groups(data, "thickened", names, seed, cause="stroke")
    return _add_strokes(data, codes[choice])


@checked
def classwise(
    source: Source,
    *,
    num_clients: int,
    rows_per_client: int | None = None,
    of: Literal["rotated", "coloured"] = "rotated",
    classes: int | Sequence[int] = 3,
    num_groups: int | None = None,
    each_client: bool = False,
    test_share: float | None = None,
    seed: int = 0,
) -> FederatedData:
    """Returns a federation whose groups, or clients, have some classes rotated or coloured: p(x|y) (ANDA, FLUX).

    Args:
        source: images; square ones for rotations.
        num_clients: N, a multiple of the number of groups.
        rows_per_client: training rows of a client, after the test rows are set aside; None is the largest equal number
            for all clients. The remainder of a group, fewer rows than it has clients, is not used.
        of: what happens to the classes: group g has them rotated by g quarter turns, or in the g-th colour of none,
            red, green and blue.
        classes: number of classes, drawn once for all clients; or a list of them, by number.
        num_groups: number of groups, 2 to 4; None is 4.
        each_client: whether each client draws rotation or colour of each of the classes (FLUX); then there are no true
            groups.
        test_share: share of the training examples to test all clients on instead; None is the official test set, 0.2
            where there is none.
        seed: seed of the permutations of the rows, of the classes, and of what each client draws.

    Raises:
        ValueError: N is no multiple of the groups, there are too few rows or classes, a class is unknown, or the rows
            are no images.

    >>> from jaxfl.data.sources import digits
    >>> data = classwise(digits.load(), num_clients=4, classes=(0, 7))
    >>> data.class_rotation[:, [0, 1, 7]].tolist(), data.group_names[1]
    ([[0, 0, 0], [1, 0, 1], [2, 0, 2], [3, 0, 3]], '90° for 0, 7')
    """
    _check_class_images(of, source.inputs, source.labels)
    chosen, patterns = _chosen_classes(classes, source.num_classes, seed), _num_patterns(num_groups)
    names = ("all",) if each_client else _class_pattern_names(of, patterns, chosen, source.class_names)
    cause = None if each_client else "classwise"
    data = divide_by_group(
        source, "classwise", names, num_clients, rows_per_client, test_share, seed, cause=cause, stream=STREAM
    )
    number = _drawn_patterns(num_clients, patterns, chosen, seed) if each_client else np.asarray(data.group)[:, None]
    return _add_class_shifts(data, of, chosen, number)


@checked
def transform_classes(
    data: FederatedData,
    *,
    of: Literal["rotated", "coloured"] = "rotated",
    classes: int | Sequence[int] = 3,
    num_groups: int | None = None,
    each_client: bool = False,
    seed: int = 0,
) -> FederatedData:
    """Returns the federation with some of each client's classes rotated or coloured, assigned as in `shift.rotate`.

    Args:
        data: federation of images; classes are those of the pool, whatever clients call them.
        of: what happens to the classes, as for `classwise`.
        classes: number of classes, drawn once for all clients; or a list of them, by number.
        num_groups: number of groups, 2 to 4; None is 4.
        each_client: whether each client draws rotation or colour of each of the classes (FLUX); the true groups are
            then those of before.
        seed: seed of the classes, of the assignment, and of what each client draws.

    Raises:
        ValueError: there are too few classes, a class is unknown, or the rows are no images.
    """
    _check_class_images(of, data.inputs, data.labels)
    _check_unused("classwise", data, "class_rotation", "class_colour")
    chosen, patterns = _chosen_classes(classes, data.num_classes, seed), _num_patterns(num_groups)
    if each_client:
        check_no_drift("classwise", data)
        number = _drawn_patterns(data.num_clients, patterns, chosen, seed)
        data = dataclasses.replace(data, name=f"classwise+{data.name}")
    else:
        names = _class_pattern_names(of, patterns, chosen, data.class_names)
        data, choice = cross_groups(data, "classwise", names, seed, cause="classwise")
        number = choice[:, None]
    return _add_class_shifts(data, of, chosen, number)


def _words_of(argument: str, words: Words, known: Sequence[str]) -> list[str]:
    """Returns the words of a list, or of a text with commas; raises ValueError for unknown words, and for none."""
    listed = [word for text in ([words] if isinstance(words, str) else words) for word in str(text).split(",")]
    listed = [NONE if word == "None" else word.strip() for word in listed]
    for word in listed:
        check_word(f"each of {argument}", word, known)
    if not listed:
        raise ValueError(f"{argument} must have a word for each group, got none; known are {', '.join(known)}.")
    return listed


def _check_different_patterns(argument: str, patterns: Sequence[Any], words: Sequence[str]) -> None:
    """Raises ValueError if two groups have one pattern."""
    for place, pattern in enumerate(patterns):
        if pattern in patterns[:place]:
            raise ValueError(f"{argument} must be different for every group, got {words[place]!r} twice; remove one.")


def _check_unused(shift: str, data: FederatedData, *fields: str) -> None:
    """Raises ValueError if the clients have such a shift already."""
    if any(getattr(data, field) is not None for field in fields):
        raise ValueError(f"{shift} must be applied once, and the clients of {data.name!r} have such a shift already.")


def _colours(colours: Words, tint: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns code and name of each group's colour."""
    words = _words_of("colours", colours, COLOURS)
    _check_different_patterns("colours", words, words)
    numbers = [COLOURS.index(word) for word in words]
    codes = [number + 3 if number and tint == "ink" else number for number in numbers]
    return np.array(codes, np.int32), tuple("no colour" if word == NONE else word for word in words)


def _strokes(strokes: Words) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns code and name of each group's strokes."""
    words = _words_of("strokes", strokes, (NONE, *STROKES))
    _check_different_patterns("strokes", words, words)
    codes = np.array([(NONE, *STROKES).index(word) for word in words], np.int32)
    return codes, tuple("strokes unchanged" if word == NONE else f"{word}d" for word in words)


def _corruptions(
    corruptions: Words, level: int | Sequence[int] | str, scale: str
) -> tuple[list[tuple[Corruption, ...]], tuple[str, ...]]:
    """Returns the corruptions that the clients of each group have, or draw from, and the names of the groups."""
    words = _words_of("corruptions", corruptions, (NONE, *KINDS, INVERT))
    listed = np.atleast_1d(np.asarray(level)).tolist()
    levels = [_levels(one) for one in listed]
    if len(levels) not in (1, len(words)):
        raise ValueError(
            f"level must be one number, or one for each of the {len(words)} corruptions, got {tuple(listed)}."
        )
    patterns, names = [], []
    for word, (low, high) in zip(words, levels * (len(words) // len(levels)), strict=True):
        own = [] if word == NONE else [Corruption(word, one, scale) for one in range(low, high + 1)]
        own = [Corruption(word, 0)] if word == INVERT else own
        patterns.append(tuple(own))
        names.append("clean" if not own else own[0].name if len(own) == 1 else f"{word} {low}-{high}")
    _check_different_patterns("corruptions", patterns, names)
    return patterns, tuple(names)


def _levels(level: int | str) -> tuple[int, int]:
    """Returns the lowest and the highest level of a number or a range."""
    if isinstance(level, str) and (found := LEVEL_RANGE.fullmatch(level.strip())) and found[1] <= found[2]:
        return int(found[1]), int(found[2])
    if isinstance(level, bool) or not isinstance(level, int | np.integer) or not 1 <= level <= 5:
        raise ValueError(f"level must be 1 to 5, a list of these, or a range such as 1-5, got {quoted(level)}.")
    return int(level), int(level)


def _add_colours(data: FederatedData, codes: np.ndarray) -> FederatedData:
    """Returns the federation with the colour of each client `[N]`."""
    return with_copies(dataclasses.replace(_for_channels(data), colour=codes, white=_white(data)))


def _add_strokes(data: FederatedData, codes: np.ndarray) -> FederatedData:
    """Returns the federation with the strokes of each client `[N]`."""
    return with_copies(dataclasses.replace(data, stroke=codes, white=_white(data)))


def _add_corruptions(
    data: FederatedData, patterns: Sequence[tuple[Corruption, ...]], choice: np.ndarray, seed: int
) -> FederatedData:
    """Returns the federation with a corruption of each client's pattern `[N]`, drawn where the pattern has several."""
    draws = host_rng(seed, "corrupted", "level").integers(0, 1 << 30, data.num_clients)
    codes = [
        own[draw % len(own)].code if (own := patterns[number]) else 0
        for number, draw in zip(choice.tolist(), draws.tolist(), strict=True)
    ]
    coded = np.array(codes, np.int32)
    if data.input_shape[2:] != (3,) and any(own and own[0].kind == "saturate" for own in patterns):
        warnings.warn(f"saturate leaves grey images such as those of {data.name} as they are.", stacklevel=4)
    return with_copies(dataclasses.replace(data, corruption=coded, noise_seed=seed, white=_white(data)))


def _add_class_shifts(data: FederatedData, of: str, chosen: np.ndarray, number: np.ndarray) -> FederatedData:
    """Returns the federation with a rotation or colour of some classes, by the number of it `[N, 1 or classes]`."""
    table = np.zeros((data.num_clients, data.num_classes), np.int32)
    table[:, chosen] = number
    if of == "rotated":
        return with_copies(dataclasses.replace(data, class_rotation=table))
    return with_copies(dataclasses.replace(_for_channels(data), class_colour=table, white=_white(data)))


def _white(data: FederatedData) -> int:
    """Returns the pixel of full brightness of a federation, which copies of its rows do not change."""
    return white_level(np.asarray(data.inputs))


def _for_channels(data: FederatedData) -> FederatedData:
    """Returns the federation with a mean and a standard deviation that fit images of three channels."""
    scales = {name: value for name in ("mean", "std") if (value := getattr(data, name)) is not None}
    for name, value in scales.items():
        if np.size(value) != 1 and data.inputs.shape[3:] != (3,):
            raise ValueError(f"{name} must be one number for grey images in colour, got {np.size(value)}.")
    single = {name: np.reshape(value, ()) for name, value in scales.items() if np.size(value) == 1}
    return dataclasses.replace(data, **single)


def _check_class_images(of: str, inputs: Any, labels: Any) -> None:
    """Raises ValueError unless the rows are images, square ones for rotations, and have classes."""
    check_classes("classwise", labels)
    if of == "rotated":
        check_square(inputs)
    else:
        check_pixels("classwise", inputs)


def _chosen_classes(classes: int | Sequence[int], num_classes: int, seed: int) -> np.ndarray:
    """Returns the classes that are transformed, in increasing order."""
    if isinstance(classes, int | np.integer):
        if not 1 <= classes <= num_classes:
            raise ValueError(f"classes must be from 1 to the {num_classes} classes, got {classes}.")
        return np.sort(host_rng(seed, "classwise", "classes").permutation(num_classes)[:classes])
    chosen = np.unique(np.asarray(classes))
    whole = chosen.dtype.kind in "iu" and len(chosen) == np.size(classes) > 0
    if not whole or chosen[0] < 0 or chosen[-1] >= num_classes:
        raise ValueError(
            f"classes must be different numbers from 0 to {num_classes - 1}, got {quoted(classes)}; one number alone "
            "is how many are drawn."
        )
    return chosen


def _num_patterns(num_groups: int | None) -> int:
    """Returns the number of rotations or colours; raises ValueError unless it is 2 to 4."""
    patterns = MAX_PATTERNS if num_groups is None else num_groups
    if not 2 <= patterns <= MAX_PATTERNS:
        raise ValueError(f"num_groups must be from 2 to {MAX_PATTERNS} for classwise, got {num_groups}.")
    return patterns


def _drawn_patterns(num_clients: int, patterns: int, chosen: np.ndarray, seed: int) -> np.ndarray:
    """Returns the number of the rotation or colour of each of the classes that each client draws `[N, classes]`."""
    return host_rng(seed, "classwise", "clients").integers(0, patterns, (num_clients, len(chosen)))


def _class_pattern_names(of: str, patterns: int, chosen: np.ndarray, class_names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the groups."""
    named = ", ".join(str(class_names[number] if class_names else number) for number in chosen.tolist())
    kinds = [f"{90 * turn}°" for turn in range(4)] if of == "rotated" else ["no colour", *COLOURS[1:]]
    return tuple(f"{kind} for {named}" for kind in kinds[:patterns])
