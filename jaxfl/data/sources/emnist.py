"""EMNIST: NIST's handwritten digits and letters in MNIST's format, in six official splits."""

import functools
import string
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxfl.data.sources import idx
from jaxfl.data.sources.base import Folder, Remote, Source, SourceEntry, folders

ARCHIVE = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"
ARCHIVE_BYTES = 561_753_746
HELP = f"unpack {ARCHIVE} and pass its folder as data_dir"
DIGITS = tuple(string.digits)
BYCLASS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
# Lower-case letters that look like their capitals are in one class with them, all but these eleven.
MERGED = tuple(string.digits + string.ascii_uppercase + "abdefghnqrt")


class EmnistSplit(NamedTuple):
    """One of the official splits.

    Attributes:
        class_names: one name per class, in the order of its mapping file.
        counts: phrase for its content, for the table.
        first_label: number of the first class in its files.
    """

    class_names: tuple[str, ...]
    counts: str
    first_label: int = 0


SPLITS = {
    "letters": EmnistSplit(
        tuple(string.ascii_lowercase), "124,800 + 20,800 letters, small and capital in one class", 1
    ),
    "byclass": EmnistSplit(BYCLASS, "697,932 + 116,323 digits and letters"),
    "bymerge": EmnistSplit(MERGED, "697,932 + 116,323 digits and letters, letters that look alike in one class"),
    "balanced": EmnistSplit(MERGED, "112,800 + 18,800 digits and letters, 47 classes of one size"),
    "digits": EmnistSplit(DIGITS, "240,000 + 40,000 digits"),
    "mnist": EmnistSplit(DIGITS, "60,000 + 10,000 digits, sizes as in MNIST"),
}


def load(split: str, data_dir: Folder = None) -> Source:
    """Returns one split of EMNIST, `emnist-<split>`, with its official test set.

    The four files `emnist-<split>-{train,test}-{images-idx3,labels-idx1}-ubyte[.gz]` are searched in
    `data_dir/emnist-<split>`, `data_dir/emnist`, `data_dir`, and in the folder `gzip` of each, the folder of NIST's
    archive. Their images are transposed; the returned images are upright.

    Args:
        split: a key of `SPLITS`.
        data_dir: folder of the files.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or the files do not fit each other.

    Reference: Cohen et al., "EMNIST: an extension of MNIST to handwritten letters", 2017.
    """
    name, kind = f"emnist-{split}", SPLITS[split]

    def part(which: str) -> tuple[np.ndarray, np.ndarray]:
        images_path, labels_path = (_require_emnist_file(stem, split, data_dir) for stem in _file_stems(split, which))
        images, labels = idx.read_pair(images_path, labels_path, len(kind.class_names), kind.first_label)
        return np.ascontiguousarray(images.transpose(0, 2, 1)), labels

    (images, labels), (test_images, test_labels) = part("train"), part("test")
    if images.shape[1:] != test_images.shape[1:]:
        raise ValueError(
            f"{name}: training images are {images.shape[1:]}, test images {test_images.shape[1:]}; the files belong to "
            "different data sets."
        )
    return Source(
        name,
        images,
        labels,
        len(kind.class_names),
        test_images,
        test_labels,
        class_names=kind.class_names,
        mean=0.0,
        std=255.0,
    )


def _file_stems(split: str, which: str) -> tuple[str, str]:
    """Returns the names of the files of images and of labels.

    >>> _file_stems("letters", "test")
    ('emnist-letters-test-images-idx3-ubyte', 'emnist-letters-test-labels-idx1-ubyte')
    """
    return f"emnist-{split}-{which}-images-idx3-ubyte", f"emnist-{split}-{which}-labels-idx1-ubyte"


def _emnist_folders(split: str, data_dir: Folder) -> list[Path]:
    """Returns the folders to search, in order."""
    split_folder, top = folders(f"emnist-{split}", data_dir)
    return [place / sub for place in (split_folder, top / "emnist", top) for sub in ("", "gzip")]


def _require_emnist_file(stem: str, split: str, data_dir: Folder) -> Path:
    """Returns the path of a file; raises FileNotFoundError if it is missing."""
    places = _emnist_folders(split, data_dir)
    path = idx.find(stem, places)
    if path is None:
        raise FileNotFoundError(
            f"emnist-{split} needs {stem}[.gz]: not found in {' or '.join(map(str, places))}; {HELP}."
        )
    return path


def _find_emnist(split: str, data_dir: Folder) -> Path | None:
    """Returns the folder of the four files, or None."""
    paths = [
        idx.find(stem, _emnist_folders(split, data_dir))
        for which in ("train", "test")
        for stem in _file_stems(split, which)
    ]
    return None if paths[0] is None or None in paths else paths[0].parent


def _split_entry(split: str) -> SourceEntry:
    """Returns the registry row of one split."""
    digest = "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e"
    return SourceEntry(
        functools.partial(load, split),
        find=functools.partial(_find_emnist, split),
        summary=f"EMNIST {split}, {SPLITS[split].counts}, 28 x 28 pixels",
        licence="none stated by its authors; from NIST's Special Database 19, a work of the US government",
        num_bytes=ARCHIVE_BYTES,
        num_classes=len(SPLITS[split].class_names),
        help=HELP,
        remotes=(Remote(ARCHIVE, ARCHIVE_BYTES, f"sha256:{digest}", (f"*emnist-{split}-*-ubyte.gz",)),),
        model=("lenet-emnist", {}),
    )


ENTRIES = {f"emnist-{split}": _split_entry(split) for split in SPLITS}
