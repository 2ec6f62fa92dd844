"""Tiny-ImageNet from the folder of its archive: 200 classes of ImageNet, scaled to 64 x 64 pixels."""

from pathlib import Path

import numpy as np

from jaxfl.data.sources import checks, pictures
from jaxfl.data.sources.base import Folder, Source, SourceEntry, folders, locate, require

URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
HELP = f"get {URL}, unpack it and give its folder as data_dir"
FOLDER = "tiny-imagenet-200"  # folder of the archive
LAYOUTS = {"archive": ("wnids.txt", "words.txt", "train", "val/val_annotations.txt")}
SIDE = 64
# The usual statistics of the training images per channel, in units of the pixels.
MEAN = np.array([0.4802, 0.4481, 0.3975], np.float32) * np.float32(255)
STD = np.array([0.2770, 0.2691, 0.2821], np.float32) * np.float32(255)


def load(data_dir: Folder = None) -> Source:
    """Returns Tiny-ImageNet: 100,000 + 10,000 colour images of 64 x 64, standardised per channel.

    The folder `tiny-imagenet-200` of the archive is read from `data_dir` or `data_dir/tiny-imagenet`, or is one of
    these. Training images are `train/<id>/images/*.JPEG`. The official validation images are the test set, as
    `val/val_annotations.txt` labels them: labels of the images in `test` were never published, and these are not read.

    Classes are numbered in the order of their ids, as a folder of images is by most codes; the decoded images need 1.35
    GB of memory.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or the files disagree.

    Reference: Le and Yang, "Tiny ImageNet visual recognition challenge", 2015.
    """
    _, place = require("tiny-imagenet", LAYOUTS, _tiny_folders(data_dir), HELP)
    ids = sorted({line.strip() for line in _read_lines(place / "wnids.txt")})
    if not ids:
        raise ValueError(f"{place / 'wnids.txt'} must have the ids of the classes, one per line, got none; {HELP}.")
    words = dict(line.split("\t", 1) for line in _read_lines(place / "words.txt") if "\t" in line)
    number = {name: label for label, name in enumerate(ids)}
    train: list[Path] = []
    labels: list[int] = []
    for name in ids:
        images = sorted((place / "train" / name / "images").glob("*.JPEG"), key=_image_number)
        if not images:
            raise FileNotFoundError(f"tiny-imagenet needs {place / 'train' / name / 'images'}/*.JPEG; {HELP}.")
        train += images
        labels += [number[name]] * len(images)
    test: list[Path] = []
    test_labels: list[int] = []
    for line, text in enumerate(_read_lines(place / "val" / "val_annotations.txt"), 1):
        file, _, rest = text.partition("\t")
        name = rest.split("\t")[0]
        if name not in number or Path(file).name != file:
            raise ValueError(
                f"{place / 'val' / 'val_annotations.txt'}: line {line} must be an image and the id of its class, got "
                f"{text[:40]!r}; it is damaged, {HELP}."
            )
        test.append(place / "val" / "images" / file)
        test_labels.append(number[name])
    for path in (*train, *test):
        if not path.is_file():
            raise FileNotFoundError(f"tiny-imagenet needs {path}: not found; {HELP}.")
    inputs = pictures.read_all([*train, *test], size=None, colour=True, remedy=HELP)
    if inputs.shape[1:3] != (SIDE, SIDE):
        raise ValueError(
            f"{train[0]} must have {SIDE} x {SIDE} pixels, got {inputs.shape[1]} x {inputs.shape[2]}; {HELP}."
        )
    checks.warn_unequal_classes(place, ids, train=np.array(labels), val=np.array(test_labels, int))
    return Source(
        "tiny-imagenet",
        inputs[: len(train)],
        np.array(labels, np.int32),
        len(ids),
        inputs[len(train) :],
        np.array(test_labels, np.int32),
        class_names=tuple(words.get(name, name).split(",")[0] for name in ids),
        mean=MEAN,
        std=STD,
    )


def _image_number(path: Path) -> tuple[int, str]:
    """Returns the key by which the images of a class are sorted: the number at the end of the name.

    >>> _image_number(Path("n01443537_12.JPEG"))[0]
    12
    """
    last = path.stem.rpartition("_")[2]
    return (int(last) if last.isascii() and last.isdigit() else -1), path.name


def _read_lines(path: Path) -> list[str]:
    """Returns the lines of a text file that are not empty."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line for line in lines if line.strip()]


def _tiny_folders(data_dir: Folder) -> list[Path]:
    """Returns the folders to search, in order."""
    tops = folders("tiny-imagenet", data_dir)
    return [*tops, *(top / FOLDER for top in tops)]


def _find_tiny_imagenet(data_dir: Folder) -> Path | None:
    """Returns the folder of the files, without checking the images; None if a file is missing."""
    located = locate(LAYOUTS, _tiny_folders(data_dir))
    return None if located is None else located[1]


ENTRY = SourceEntry(
    load,
    find=_find_tiny_imagenet,
    summary="Tiny-ImageNet, 100,000 + 10,000 photographs of 64 x 64 pixels in 200 classes (1.35 GB of memory)",
    licence="non-commercial research only; ImageNet's terms of access",
    num_bytes=248_100_043,
    num_classes=200,
    help=HELP,
    model=("pfllib-cnn", {}),
)
