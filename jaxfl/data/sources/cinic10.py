"""CINIC-10 from the folders of its archive: CIFAR-10's classes with images of CIFAR-10 and of ImageNet."""

from pathlib import Path

import numpy as np

from jaxfl.data.sources import checks, pictures
from jaxfl.data.sources.base import Folder, Source, SourceEntry, folders, locate, require

URL = "https://datashare.ed.ac.uk/handle/10283/3192"
HELP = f"get CINIC-10.tar.gz from {URL}, unpack it and give its folder as data_dir"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
LAYOUTS = {"archive": ("train/airplane", "valid/airplane", "test/airplane")}
DOMAINS = ("cifar10", "imagenet")
SIDE = 32
# Statistics of the training images per channel by the authors, in units of the pixels.
MEAN = np.array([0.47889522, 0.47227842, 0.43047404], np.float32) * np.float32(255)
STD = np.array([0.24205776, 0.23828046, 0.25874835], np.float32) * np.float32(255)


def load(data_dir: Folder = None, *, enlarged: bool = False) -> Source:
    """Returns CINIC-10: 90,000 + 90,000 colour images of 32 x 32, standardised per channel.

    The folders `train`, `valid` and `test` with a folder for each class are read from `data_dir`, `data_dir/cinic10`,
    or the folder `CINIC-10` in one of them. A third of the images are CIFAR-10's and have names with `cifar10-`; the
    others are ImageNet's. The two are domains: `hybrid-cinic10` has a group of clients for each.

    Args:
        data_dir: folder of the files.
        enlarged: whether the 90,000 images of `valid` are training images, too, the authors' second way of use; they
            are not read otherwise.

    Raises:
        FileNotFoundError: a folder is missing.
        ValueError: an image cannot be decoded, or has another size.

    Reference: Darlow et al., "CINIC-10 is not ImageNet or CIFAR-10", 2018.
    """
    _, place = require("cinic10", LAYOUTS, _cinic_folders(data_dir), HELP)

    def listed(*splits: str) -> tuple[list[Path], np.ndarray]:
        paths: list[Path] = []
        labels: list[int] = []
        for split in splits:
            for label, name in enumerate(CLASSES):
                images = sorted((place / split / name).glob("*.png"))
                if not images:
                    raise FileNotFoundError(f"cinic10 needs {place / split / name}/*.png: not found; {HELP}.")
                paths += images
                labels += [label] * len(images)
        return paths, np.array(labels, np.int32)

    (train, labels), (test, test_labels) = listed("train", *(["valid"] if enlarged else [])), listed("test")
    paths = [*train, *test]
    inputs = pictures.read_all(paths, colour=True, remedy=HELP)
    if inputs.shape[1:3] != (SIDE, SIDE):
        raise ValueError(
            f"{paths[0]} must have {SIDE} x {SIDE} pixels, got {inputs.shape[1]} x {inputs.shape[2]}; {HELP}."
        )
    checks.warn_unequal_classes(place, CLASSES, train=labels, test=test_labels)
    domains = np.array([0 if path.name.startswith("cifar10-") else 1 for path in paths], np.int32)
    return Source(
        "cinic10",
        inputs[: len(train)],
        labels,
        len(CLASSES),
        inputs[len(train) :],
        test_labels,
        domains=domains[: len(train)],
        test_domains=domains[len(train) :],
        domain_names=DOMAINS,
        class_names=CLASSES,
        mean=MEAN,
        std=STD,
    )


def _cinic_folders(data_dir: Folder) -> list[Path]:
    """Returns the folders to search, in order."""
    tops = folders("cinic10", data_dir)
    return [*tops, *(top / "CINIC-10" for top in tops)]


def _find_cinic10(data_dir: Folder) -> Path | None:
    """Returns the folder of the files, without checking the images; None if a folder is missing."""
    located = locate(LAYOUTS, _cinic_folders(data_dir))
    return None if located is None else located[1]


ENTRY = SourceEntry(
    load,
    find=_find_cinic10,
    summary="CINIC-10, 90,000 + 90,000 photographs of 32 x 32 pixels in CIFAR-10's classes, of CIFAR-10 and ImageNet",
    licence="none stated; cite Darlow et al. 2018; ImageNet's terms of access",
    num_bytes=688_315_227,
    num_classes=len(CLASSES),
    help=HELP,
    model=("stocfl-cifar-cnn", {}),
)
