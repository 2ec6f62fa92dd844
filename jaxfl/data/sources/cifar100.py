"""CIFAR-100 from the official binary version, whose files have a superclass and a class for each image."""

from pathlib import Path

import numpy as np

from jaxfl.data.sources.base import Folder, Remote, Source, SourceEntry, folders, locate, require
from jaxfl.data.sources.cifar10 import read_records

URL = "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"
HELP = f"get the binary version from {URL}, unpack it and give its folder as data_dir"
FOLDER = "cifar-100-binary"  # folder of the archive
LAYOUTS = {"binary": ("train.bin", "test.bin", "coarse_label_names.txt", "fine_label_names.txt")}
FINE, COARSE = 100, 20
# The usual statistics of the training images per channel, in units of the pixels.
MEAN = np.array([0.5071, 0.4865, 0.4409], np.float32) * np.float32(255)
STD = np.array([0.2673, 0.2564, 0.2762], np.float32) * np.float32(255)


def load(data_dir: Folder = None) -> Source:
    """Returns CIFAR-100: 50,000 + 10,000 colour images of 32 x 32, channels last, standardised per channel.

    The files `train.bin`, `test.bin`, `coarse_label_names.txt` and `fine_label_names.txt` are read from `data_dir`,
    `data_dir/cifar100`, or the folder `cifar-100-binary` in one of them. They have per image a byte of superclass, one
    of class, and 3 x 1024 bytes of red, green and blue. The official pickled version is not read, because unpickling
    runs code of the file.

    The 20 superclasses of five classes each are the groups of classes of `pathological-cifar100`.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or a class is in two superclasses.

    Reference: Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
    """
    tops = folders("cifar100", data_dir)
    _, place = require("cifar100", LAYOUTS, [*tops, *(top / FOLDER for top in tops)], HELP)
    coarse_names, names = (
        _read_names(place / file, most) for file, most in zip(LAYOUTS["binary"][2:], (COARSE, FINE), strict=True)
    )
    parts = [_read_split_file(place / f"{split}.bin") for split in ("train", "test")]
    coarse, fine = (np.concatenate([part[0][:, column] for part in parts]) for column in (0, 1))
    group = np.zeros(FINE, np.int32)
    group[fine] = coarse
    if (group[fine] != coarse).any():
        wrong = int(fine[np.argmax(group[fine] != coarse)])
        raise ValueError(
            f"{place} must have each class in one superclass, got class {wrong} ({names[wrong]}) in two; it is "
            f"damaged, {HELP}."
        )
    (labels, inputs), (test_labels, test_inputs) = parts
    return Source(
        "cifar100",
        inputs,
        labels[:, 1],
        FINE,
        test_inputs,
        test_labels[:, 1],
        class_names=names,
        class_groups=group,
        class_group_names=coarse_names,
        mean=MEAN,
        std=STD,
    )


def _read_split_file(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the coarse and fine labels `[P, 2]` of a file, and its images."""
    labels, images = read_records(path, 2, HELP)
    for column, (name, most) in enumerate((("superclasses", COARSE), ("classes", FINE))):
        if labels[:, column].max() >= most:
            row = int(np.argmax(labels[:, column] >= most))
            raise ValueError(
                f"{path} must have {name} 0..{most - 1}, got {labels[row, column]} in row {row}; it is damaged or "
                "another data set."
            )
    return labels, images


def _read_names(path: Path, most: int) -> tuple[str, ...]:
    """Returns the names of classes or superclasses, one per line."""
    names = tuple(path.read_text(encoding="utf-8", errors="replace").split())
    if len(set(names)) != most or len(names) != most:
        raise ValueError(f"{path} must have {most} names, one per line, got {len(names)}; {HELP}.")
    return names


def _find_cifar100(data_dir: Folder) -> Path | None:
    """Returns the folder of the files, or None."""
    tops = folders("cifar100", data_dir)
    located = locate(LAYOUTS, [*tops, *(top / FOLDER for top in tops)])
    return None if located is None else located[1]


ENTRY = SourceEntry(
    load,
    find=_find_cifar100,
    summary="CIFAR-100, 50,000 + 10,000 colour photographs of 32 x 32 pixels in 100 classes of 20 superclasses",
    licence="none stated; cite Krizhevsky 2009",
    num_bytes=168_513_733,
    num_classes=FINE,
    remotes=(
        Remote(
            URL,
            168_513_733,
            "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            members=("*.bin", "*_label_names.txt"),
        ),
    ),
    model=("stocfl-cifar-cnn", {}),
)
