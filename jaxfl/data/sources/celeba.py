"""CelebA as in LEAF: faces by person, classified by one attribute, smiling."""

import concurrent.futures
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jaxfl.data.partition.parts import check_count
from jaxfl.data.sources.base import Folder, Source, SourceEntry, folders
from jaxfl.schema import did_you_mean, quoted

ATTRIBUTES, IDENTITIES, IMAGES = "list_attr_celeba.txt", "identity_CelebA.txt", "img_align_celeba"
HELP = (
    f"get {IMAGES}.zip, {ATTRIBUTES} and {IDENTITIES} from https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html, unpack "
    "the images, put the three into one folder and give it as data_dir"
)
# Folders of the three: one folder for all, or the folders of the authors.
INNER = {
    ATTRIBUTES: ("", "Anno", "Img"),
    IDENTITIES: ("", "Anno", "Img"),
    IMAGES: ("", "Img", IMAGES, f"Img/{IMAGES}"),  # some copies have two nested folders of images
}
BLOCK = 128  # images that a thread decodes as one task


def load(data_dir: Folder = None, *, target: str = "Smiling", min_images: int = 5, size: int = 84) -> Source:
    """Returns LEAF's FedCelebA from CelebA's own files: by default 9,343 persons with 200,288 images of 84 x 84.

    `list_attr_celeba.txt`, `identity_CelebA.txt` and the folder `img_align_celeba` are in `data_dir` or
    `data_dir/celeba`, or in the authors' folders `Anno` and `Img` there. Each image is decoded completely and scaled
    without cropping from 178 x 218 to a square, as in LEAF. LEAF uses Pillow's default filter; here it is the present
    default, bicubic (before Pillow 7 it was the nearest pixel).

    The decoded images need 4.2 GB of memory (200,288 x 84 x 84 x 3 bytes), at 42 x 42 a quarter of that, and reading
    them takes minutes. There is no official test set by person; split each client's rows.

    As in LEAF, the network gets pixels from 0 to 255 (mean 0, std 1). Its batch norm removes most of the scale but not
    all: compared with the variances of pixels in 0 to 1 its epsilon, 0.001, is not small. For a network without a batch
    norm, use `dataclasses.replace(source, std=255.0)`.

    Args:
        data_dir: folder of the files.
        target: attribute that is the label, one of the 40 in the second line of `list_attr_celeba.txt`; classes 0 and
            1.
        min_images: persons with fewer images are left out.
        size: pixels of a side of the scaled images.

    Returns:
        The source, with rows in the order of `list_attr_celeba.txt` and the persons' numbers as clients.

    Raises:
        FileNotFoundError: a file or an image is missing.
        ValueError: an option is invalid, a file is damaged, the two text files disagree, an image cannot be decoded, or
            no person has enough images.

    References: Liu et al., "Deep learning face attributes in the wild", 2015; Caldas et al., "LEAF: a benchmark for
    federated settings", 2018.
    """
    for option, value in {"min_images": min_images, "size": size}.items():
        check_count(option, value)
    paths = _require_celeba(data_dir)
    labels = _read_attribute(paths[ATTRIBUTES], target)
    persons = _read_identities(paths[IDENTITIES])
    _check_same_images(paths, labels, persons)

    numbers = np.fromiter((persons[name] for name in labels), np.int32, len(labels))
    _, person, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    if counts.max() < min_images:
        raise ValueError(
            f"min_images must be at most {counts.max()}, the largest number of images of a person in "
            f"{paths[IDENTITIES]}, got {min_images}; lower it."
        )
    keep = counts[person] >= min_images
    names = [name for name, enough in zip(labels, keep, strict=True) if enough]
    _check_images(paths[IMAGES], names)
    words = target.replace("_", " ").lower()
    return Source(
        "celeba",
        _decode_images(paths[IMAGES], names, size),
        np.fromiter(labels.values(), np.uint8, len(labels))[keep],
        2,
        clients=numbers[keep],
        class_names=(f"not {words}", words),
        mean=0.0,
        std=1.0,
    )


def _files_by_folder(data_dir: Folder) -> list[dict[str, Path]]:
    """Returns the paths of the found files, by name, for each searched folder."""
    results = []
    for top in folders("celeba", data_dir):
        ways = {what: [top / inner / what for inner in inners] for what, inners in INNER.items()}
        # The inner one of two nested folders has the images, so it is searched first.
        ways[IMAGES].reverse()
        places = {
            what: next((path for path in paths if (path.is_dir() if what == IMAGES else path.is_file())), None)
            for what, paths in ways.items()
        }
        results.append({what: path for what, path in places.items() if path is not None})
    return results


def _require_celeba(data_dir: Folder) -> dict[str, Path]:
    """Returns the paths of the text files and the folder of images; raises FileNotFoundError if one is missing."""
    best = max(_files_by_folder(data_dir), key=len)
    if len(best) == len(INNER):
        return best
    looked = " or ".join(map(str, folders("celeba", data_dir)))
    if not best:
        raise FileNotFoundError(f"celeba needs {', '.join(INNER)}: not found in {looked}; {HELP}.")
    missing = next(what for what in INNER if what not in best)
    beside = ", ".join(map(str, best.values()))
    raise FileNotFoundError(f"celeba needs {missing}: not found in {looked}, beside {beside}; {HELP}.")


def _numbered_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the number and the words of each non-empty line."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if words := line.split():
                yield number, words


def _read_attribute(path: Path, target: str) -> dict[str, int]:
    """Returns 1 or 0 for an image with or without the attribute, by the name of the image."""
    lines = _numbered_lines(path)
    _, first = next(lines, (0, []))
    if len(first) != 1 or not first[0].isdecimal():
        raise ValueError(f"{path} must start with the number of images, got {' '.join(first)[:40]!r}; {HELP}.")
    _, known = next(lines, (0, []))
    if not known:
        raise ValueError(f"{path} must have the names of the attributes in line 2, but is truncated; {HELP}.")
    if target not in known:
        near = did_you_mean(target, known)
        raise ValueError(f"unknown target {quoted(target)}{near} Known, in line 2 of {path}: {', '.join(known)}.")
    column, labels = 1 + known.index(target), {}
    for number, words in lines:
        if len(words) != 1 + len(known):
            raise ValueError(
                f"{path}: line {number} must have a name and {len(known)} values, got {len(words)} words; it is "
                f"truncated or damaged, {HELP}."
            )
        if words[column] not in ("1", "-1"):
            raise ValueError(
                f"{path}: line {number} must have 1 or -1 for {target}, got {words[column]!r}; it is damaged, {HELP}."
            )
        if words[0] in labels:
            raise ValueError(f"{path}: line {number} names {words[0]} a second time; it is damaged, {HELP}.")
        labels[words[0]] = int(words[column] == "1")
    if len(labels) != int(first[0]) or not labels:
        raise ValueError(f"{path} must list {first[0]} images, as line 1 states, got {len(labels)}; {HELP}.")
    return labels


def _read_identities(path: Path) -> dict[str, int]:
    """Returns the number of the person by the name of the image."""
    persons = {}
    for number, words in _numbered_lines(path):
        if len(words) != 2 or not words[1].isdecimal() or len(words[1]) > 9:
            raise ValueError(
                f"{path}: line {number} must be an image and the number of a person, got {' '.join(words)[:40]!r}; it "
                f"is truncated or damaged, {HELP}."
            )
        if words[0] in persons:
            raise ValueError(f"{path}: line {number} names {words[0]} a second time; it is damaged, {HELP}.")
        persons[words[0]] = int(words[1])
    return persons


def _check_same_images(paths: dict[str, Path], labels: dict[str, int], persons: dict[str, int]) -> None:
    """Raises ValueError unless the two text files list the same images."""
    both = ((ATTRIBUTES, labels, IDENTITIES, persons), (IDENTITIES, persons, ATTRIBUTES, labels))
    for here, first, there, second in both:
        if lacking := [name for name in first if name not in second]:
            raise ValueError(
                f"{paths[there]} must name every image of {paths[here].name}: {len(lacking)} of {len(first)} are not "
                f"in it, the first is {lacking[0]}; it is truncated, or the files belong to different data sets."
            )


def _check_images(folder: Path, names: list[str]) -> None:
    """Raises FileNotFoundError unless all images exist."""
    with os.scandir(folder) as entries:  # one listing instead of 200,000 queries
        present = {entry.name for entry in entries}
    if missing := [name for name in names if name not in present]:
        raise FileNotFoundError(
            f"celeba lacks {len(missing)} of {len(names)} images, the first is {missing[0]}: not found in {folder}; "
            f"{HELP}."
        )


def _decode_images(folder: Path, names: list[str], size: int) -> np.ndarray:
    """Returns the images `[P, size, size, 3]`, decoded by several threads into one array."""
    from PIL import Image

    images = np.empty((len(names), size, size, 3), np.uint8)

    def decode(start: int) -> None:
        for row, name in enumerate(names[start : start + BLOCK], start):
            path = folder / name
            try:
                with Image.open(path, formats=["JPEG"]) as image:
                    scaled = image.resize((size, size), Image.Resampling.BICUBIC)
                images[row] = np.asarray(scaled.convert("RGB"))
            except (OSError, SyntaxError, ValueError) as error:
                raise ValueError(f"{path} is a damaged JPEG image ({error}); unpack {IMAGES}.zip again.") from error

    # Threads suffice, because Pillow releases the interpreter lock while it decodes and scales.
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for _ in pool.map(
            decode, range(0, len(names), BLOCK)
        ):  # the first error cancels the blocks that have not begun
            pass
    return images


def _find_celeba(data_dir: Folder) -> Path | None:
    """Returns the folder of the files, without checking the images; None if a file is missing."""
    for top, paths in zip(folders("celeba", data_dir), _files_by_folder(data_dir), strict=True):
        if len(paths) == len(INNER):
            return top
    return None


ENTRY = SourceEntry(
    load,
    find=_find_celeba,
    summary="CelebA as in LEAF, 200,288 faces of 9,343 persons, scaled to 84 x 84 pixels (4.2 GB of memory)",
    licence="non-commercial research only",
    num_bytes=1_473_600_000,  # the images' archive and the two text files
    num_classes=2,
    makers="person",
    model=("leaf-celeba-cnn", {}),
)
