"""A folder of images whose paths say class and client: CLASS/*.png, or CLIENT/CLASS/*.png."""

import os
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxfl.data.partition.parts import check_count
from jaxfl.data.sources import checks, pictures
from jaxfl.data.sources.base import PICTURES, Folder, Source, SourceEntry
from jaxfl.schema import checked

DEPTH = 3  # folders above an image: client, split and class
DEEPEST = 100  # folders in each other that are searched for images in the wrong place
SPLITS = ("train", "test", "val", "valid", "validation", "dev")
LAYOUTS = "CLASS/*.png or CLIENT/CLASS/*.png"
HELP = f"pass a folder with images in {LAYOUTS} as data_dir"
DAMAGED = "leave it out, or write it again"
# Endings of files that are often beside images.
BESIDE = ("", ".txt", ".csv", ".tsv", ".json", ".xml", ".md", ".html", ".pdf", ".db", ".ini", ".yaml", ".yml", ".mat")


class ImagePath(NamedTuple):
    """An image file, and what the names of its folders say.

    Attributes:
        path: of the file.
        split: `"train"`, `"test"` or another name of `SPLITS`; "" if the folders name no split.
        client: the maker of the image; "" if unknown.
        label: name of its class.
    """

    path: Path
    split: str
    client: str
    label: str


@checked
def load(data_dir: Folder = None, *, size: int | None = None) -> Source:
    """Returns the images of a folder, whose path is given as `data_dir`.

    An image is in a folder of its class, `CLASS/*.png`, and this one may be in a folder of its client,
    `CLIENT/CLASS/*.png`. Folders `train` and `test` above, between or below them are the training images and the
    official test set. Classes and clients are numbered in the order of their names, of numbers in the order of numbers.

    Files are png, jpeg, bmp, webp, tiff, gif, pgm or ppm; names that begin with a dot are left out. Links are
    followed. If all images are grey, they have one channel, and three otherwise.

    Args:
        data_dir: path of the folder.
        size: pixels of a side to which all images are scaled (bicubic, without cropping); None requires images of one
            size.

    Raises:
        FileNotFoundError: there is no such folder, or it has no images.
        ValueError: images are in folders of different depth, differ in size, or cannot be decoded; a link leads nowhere
            or back.

    Warns:
        UserWarning: folders without images, files that are no images, or a split other than `train` and `test` are left
            out; images are turned by EXIF, have several frames or are transparent, which pixels lack; or names differ
            in spaces, case or the form of accents alone.
    """
    if data_dir is None or not Path(data_dir).is_dir():
        got = "none was given" if data_dir is None else f"there is no folder {data_dir}"
        raise FileNotFoundError(f"folder needs data_dir, a folder of images in {LAYOUTS}: {got}.")
    if size is not None:
        check_count("size", size)
    top = Path(data_dir)
    empty: list[Path] = []
    others: list[Path] = []
    files = list(_image_files(top, empty, others))
    if not files:
        raise FileNotFoundError(f"folder needs images: none was found in {top}; {HELP}.")
    _warn_left_out(top, empty, others)
    images = _read_layout(top, files)
    train, test = _divide_splits(top, images)
    names = _numbered_names({one.label for one in (*train, *test)})
    number = {name: place for place, name in enumerate(names)}
    known = bool(train[0].client)
    for what, texts in (("classes", names), ("clients", {one.client for one in images})):
        checks.warn_alike_texts(f"{top}: {what}", np.array(sorted(texts)))
    # of both parts at once, so that they have one shape
    pixels = pictures.read_all([one.path for one in (*train, *test)], size=size, remedy=DAMAGED)
    return Source(
        Path(os.path.abspath(top)).name or "folder",
        pixels[: len(train)],
        np.array([number[one.label] for one in train], np.int32),
        len(names),
        pixels[len(train) :] if test else None,
        np.array([number[one.label] for one in test], np.int32) if test else None,
        clients=np.array([one.client for one in train]) if known else None,
        test_clients=np.array([one.client for one in test]) if known and test else None,
        class_names=names,
        mean=0.0,
        std=255.0,
    )


def _image_files(
    folder: Path, empty: list[Path], others: list[Path], above: Sequence[tuple[int, int]] = ()
) -> Iterator[Path]:
    """Yields the image files below a folder, in the order of their names.

    Args:
        folder: to search.
        empty: list that gets the folders below it without an image.
        others: list that gets the files that are no images by their names.
        above: device and number of the folders above.
    """
    status = folder.stat()
    place = (status.st_dev, status.st_ino)
    if place in above:
        raise ValueError(f"{folder} must be a folder of images, got a link that leads to a folder above it; remove it.")
    found = False
    for name in sorted(os.listdir(folder)):
        path = folder / name
        if name.startswith(".") or name == "__MACOSX":
            continue
        if path.is_dir():
            if len(above) > DEEPEST:
                raise ValueError(f"{folder} must have at most {DEPTH} folders above its images, {LAYOUTS}; move them.")
            for image in _image_files(path, empty, others, (*above, place)):
                found = True
                yield image
        elif path.suffix.lower() in PICTURES:
            found = True
            yield path
        elif path.is_symlink() and not path.exists():  # of a folder, too, such as of a disk that is not there
            raise ValueError(f"{path} must be a folder or an image, got a link that leads to no file; remove it.")
        else:
            others.append(path)
    if above and not found:
        empty.append(folder)


def _warn_left_out(top: Path, empty: Sequence[Path], others: Sequence[Path]) -> None:
    """Warns of folders without images, and of files that are no images by their names."""
    others = [path for path in others if path.suffix.lower() not in BESIDE]
    for paths, fault in ((empty, "folders have no images"), (others, "files are no images by their names")):
        if paths:
            warnings.warn(
                f"{top}: {len(paths)} {fault} and are left out, such as {paths[0].relative_to(top)}; images end with "
                f"{', '.join(PICTURES)}.",
                stacklevel=3,
            )


def _read_layout(top: Path, files: Sequence[Path]) -> list[ImagePath]:
    """Returns the images with what their folders say; raises ValueError unless all are in folders of one depth."""
    parts = [path.relative_to(top).parts[:-1] for path in files]
    for path, folders in zip(files, parts, strict=True):
        if not 1 <= len(folders) <= DEPTH:
            raise ValueError(
                f"{path} must be in a folder of its class, {LAYOUTS}, got {len(folders)} folders above it in {top}; "
                "move it there."
            )
        if len(folders) != len(parts[0]):
            raise ValueError(
                f"{path} must have as many folders above it as {files[0]}, {LAYOUTS}, got {len(folders)} and "
                f"{len(parts[0])}; move one of them."
            )
    depth = len(parts[0])
    at = next((level for level in range(depth) if depth > 1 and _are_splits({row[level] for row in parts})), None)
    rest = [[name for level, name in enumerate(row) if level != at] for row in parts]
    if len(rest[0]) > 2:
        raise ValueError(
            f"{files[0]} must have a folder for its class and one for its client, {LAYOUTS}, got {depth} folders; one "
            "of three must be train or test."
        )
    return [
        ImagePath(path, "" if at is None else row[at], "" if len(names) < 2 else names[0], names[-1])
        for path, row, names in zip(files, parts, rest, strict=True)
    ]


def _are_splits(names: Collection[str]) -> bool:
    """Returns whether the names of folders are those of splits, and `train` is among them.

    >>> _are_splits({"train", "test"}), _are_splits({"train", "boat"}), _are_splits({"test"})
    (True, False, False)
    """
    return "train" in names and set(names) <= set(SPLITS)


def _divide_splits(top: Path, images: Sequence[ImagePath]) -> tuple[list[ImagePath], list[ImagePath]]:
    """Returns training and test images; warns of images of other splits, which are left out."""
    if unread := [one for one in images if one.split not in ("", "train", "test")]:
        warnings.warn(
            f"{top}: {len(unread)} images of {unread[0].split} are not read; training images are those of train, test "
            "images those of test: call the folder so.",
            stacklevel=3,
        )
    return [one for one in images if one.split in ("", "train")], [one for one in images if one.split == "test"]


def _numbered_names(names: Collection[str]) -> tuple[str, ...]:
    """Returns names in their order, numbers in the order of numbers.

    >>> _numbered_names({"10", "9"}), _numbered_names({"b", "a"})
    (('9', '10'), ('a', 'b'))
    """
    digits = all(name.isascii() and name.isdigit() for name in names)
    return tuple(sorted(names, key=lambda name: (int(name), name) if digits else (0, name)))


def _find_folder(data_dir: Folder) -> Path | None:
    """Returns the folder if it has an image, or None."""
    if data_dir is None or not (top := Path(data_dir)).is_dir():
        return None
    for folder, names, files in os.walk(top, followlinks=True):
        if any(Path(name).suffix.lower() in PICTURES and not name.startswith(".") for name in files):
            return top
        if len(Path(folder).relative_to(top).parts) >= DEPTH:
            names.clear()
    return None


ENTRY = SourceEntry(
    load,
    find=_find_folder,
    summary=f"your own images in the folder data_dir: {LAYOUTS}, also below train and test",
    licence="yours",
    user_files=lambda place: filter(Path.is_file, _image_files(place, [], [])),
    labels_in_paths=True,
    num_bytes=0,
    num_classes=None,
    makers="client",
    model=("auto", {}),
)
