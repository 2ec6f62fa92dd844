"""MNIST, Fashion-MNIST and KMNIST from four idx files of equal names each, and the writers of MNIST from QMNIST."""

import dataclasses
import functools
from pathlib import Path

import numpy as np

from jaxfl.data.sources import idx
from jaxfl.data.sources.base import Folder, Remote, Source, SourceEntry, folders

MNIST_HELP = "get the four files from https://ossci-datasets.s3.amazonaws.com/mnist/ and pass their folder as data_dir"
FASHION_HELP = (
    "apt-get install dataset-fashion-mnist, or get the four files from "
    "https://github.com/zalandoresearch/fashion-mnist and pass their folder as data_dir"
)
KMNIST_HELP = "get the four files from http://codh.rois.ac.jp/kmnist/ and pass their folder as data_dir"
QMNIST_HELP = "get it from https://github.com/facebookresearch/qmnist and put it beside MNIST's files"
WRITERS = "qmnist-train-labels-idx2-int"
# The files of all have the same names, so a confusion would not be noticed.
FIRST_LABELS = {"mnist": (5, 0, 4, 1, 9, 2, 1, 3, 1, 4), "fashion-mnist": (9, 0, 0, 3, 0, 2, 7, 2, 5, 5)}
CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
KANA = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
FASHION_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # folder of Debian's package


def mnist(data_dir: Folder = None) -> Source:
    """Returns MNIST from its four idx files in `data_dir` or `data_dir/mnist`; 60,000 + 10,000 images of 28 x 28.

    If QMNIST's labels are in the same folder (`qmnist-train-labels-idx2-int.gz`), the 539 writers of the training
    images and their groups are known: employees of the census bureau (HSF series 0) or students (series 4).

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or the counts of images and labels disagree.
    """
    places = _mnist_folders("mnist", data_dir)
    source = _idx_source("mnist", places, MNIST_HELP)
    path = idx.find(WRITERS, places)
    if path is None:
        return source
    table = idx.read(path, num_axes=2, type_code=0x0C)  # class, HSF series, writer, digit, NIST class, index, 0, 0
    if table.shape != (len(source.labels), 8):
        raise ValueError(
            f"{path} must have {len(source.labels)} rows of 8 numbers, one for each training image, got {table.shape}; "
            f"{QMNIST_HELP}."
        )
    if (table[:, 0] != source.labels).any():
        row = int(np.argmax(table[:, 0] != source.labels))
        raise ValueError(
            f"{path} must repeat the classes of the training images, got {table[row, 0]} for {source.labels[row]} in "
            f"row {row}; the files belong to different data sets."
        )
    groups = (table[:, 1] == 4).astype(np.int32)
    return dataclasses.replace(source, clients=table[:, 2], client_groups=groups, group_names=("employees", "students"))


def fashion_mnist(data_dir: Folder = None) -> Source:
    """Returns Fashion-MNIST from its four idx files in `data_dir`, `data_dir/fashion-mnist` or Debian's folder.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or the counts of images and labels disagree.
    """
    source = _idx_source("fashion-mnist", _mnist_folders("fashion-mnist", data_dir), FASHION_HELP)
    return dataclasses.replace(source, class_names=CLOTHES)


def kmnist(data_dir: Folder = None) -> Source:
    """Returns Kuzushiji-MNIST, cursive hiragana, from its four idx files in `data_dir` or `data_dir/kmnist`.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or the counts of images and labels disagree.

    Reference: Clanuwat et al., "Deep learning for classical Japanese literature", 2018.
    """
    source = _idx_source("kmnist", _mnist_folders("kmnist", data_dir), KMNIST_HELP)
    return dataclasses.replace(source, class_names=KANA)


def _mnist_folders(name: str, data_dir: Folder) -> list[Path]:
    """Returns the folders to search, in order."""
    places = folders(name, data_dir)
    return [*places, FASHION_FOLDER] if name == "fashion-mnist" else places


def _idx_source(name: str, places: list[Path], help: str) -> Source:
    """Returns the source of four idx files, after checking them against each other."""

    def part(kind: str) -> tuple[np.ndarray, np.ndarray]:
        images_path, labels_path = (
            _require_mnist_file(f"{kind}-{what}", name, places, help)
            for what in ("images-idx3-ubyte", "labels-idx1-ubyte")
        )
        return idx.read_pair(images_path, labels_path, 10)

    images, labels = part("train")
    _check_identity(name, _require_mnist_file("train-labels-idx1-ubyte", name, places, help), labels)
    test_images, test_labels = part("t10k")
    if images.shape[1:] != test_images.shape[1:]:
        raise ValueError(
            f"{name}: training images are {images.shape[1:]}, test images {test_images.shape[1:]}; the files in "
            f"{places[0]} belong to different data sets."
        )
    return Source(name, images, labels, 10, test_images, test_labels, mean=0.0, std=255.0)


def _check_identity(name: str, path: Path, labels: np.ndarray) -> None:
    """Raises ValueError if the labels are those of the other data set with the same file names."""
    for other, first in FIRST_LABELS.items():
        if other != name and tuple(labels[:10].tolist()) == first:
            raise ValueError(f"{path} must have the labels of {name}, got those of {other}; pass another data_dir.")


def _require_mnist_file(stem: str, name: str, places: list[Path], help: str) -> Path:
    """Returns the path of a file; raises FileNotFoundError if it is missing."""
    path = idx.find(stem, places)
    if path is None:
        raise FileNotFoundError(f"{name} needs {stem}[.gz]: not found in {' or '.join(map(str, places))}; {help}.")
    return path


def _find_mnist(name: str, data_dir: Folder) -> Path | None:
    """Returns the folder of the four files of this data set, or None."""
    stems = [f"{kind}-{what}-ubyte" for kind in ("train", "t10k") for what in ("images-idx3", "labels-idx1")]
    paths = [idx.find(stem, _mnist_folders(name, data_dir)) for stem in stems]
    labels = paths[1]
    if labels is None or None in paths:
        return None
    try:
        _check_identity(name, labels, idx.read(labels, num_axes=1))
    except ValueError:
        return None
    return labels.parent


MNIST_FILES = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FASHION_FILES = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
KMNIST_FILES = "http://codh.rois.ac.jp/kmnist/dataset/kmnist/"
QMNIST_FILES = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"

MNIST = SourceEntry(
    mnist,
    find=functools.partial(_find_mnist, "mnist"),
    summary="MNIST, 60,000 + 10,000 digits of 28 x 28 pixels; with QMNIST's labels beside it, by writer",
    licence="CC BY-SA 3.0 (as commonly stated); QMNIST's labels BSD-3-Clause",
    num_bytes=12_000_000,
    num_classes=10,
    makers="writer",
    makers_file=f"{WRITERS}*",
    help=QMNIST_HELP,
    remotes=(
        Remote(
            f"{MNIST_FILES}train-images-idx3-ubyte.gz",
            9_912_422,
            "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        Remote(
            f"{MNIST_FILES}train-labels-idx1-ubyte.gz",
            28_881,
            "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        Remote(
            f"{MNIST_FILES}t10k-images-idx3-ubyte.gz",
            1_648_877,
            "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        Remote(
            f"{MNIST_FILES}t10k-labels-idx1-ubyte.gz",
            4_542,
            "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
        Remote(
            f"{QMNIST_FILES}qmnist-train-labels-idx2-int.gz",
            463_024,
            "md5:0058f8dd561b90ffdd0f734c6a30e5e4",
        ),
    ),
)
FASHION_MNIST = SourceEntry(
    fashion_mnist,
    find=functools.partial(_find_mnist, "fashion-mnist"),
    summary="Fashion-MNIST, 60,000 + 10,000 pieces of clothing of 28 x 28 pixels",
    licence="MIT",
    num_bytes=31_000_000,
    num_classes=10,
    remotes=(
        Remote(
            f"{FASHION_FILES}train-images-idx3-ubyte.gz",
            26_421_880,
            "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        ),
        Remote(
            f"{FASHION_FILES}train-labels-idx1-ubyte.gz",
            29_515,
            "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        ),
        Remote(
            f"{FASHION_FILES}t10k-images-idx3-ubyte.gz",
            4_422_102,
            "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        ),
        Remote(
            f"{FASHION_FILES}t10k-labels-idx1-ubyte.gz",
            5_148,
            "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
)
KMNIST = SourceEntry(
    kmnist,
    find=functools.partial(_find_mnist, "kmnist"),
    summary="Kuzushiji-MNIST, 60,000 + 10,000 cursive hiragana of 28 x 28 pixels in 10 classes",
    licence="CC BY-SA 4.0; created by ROIS-DS CODH from NIJL's Kuzushiji dataset",
    num_bytes=21_000_000,
    num_classes=10,
    remotes=(
        Remote(
            f"{KMNIST_FILES}train-images-idx3-ubyte.gz",
            18_165_135,
            "sha256:51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
        ),
        Remote(
            f"{KMNIST_FILES}train-labels-idx1-ubyte.gz",
            29_497,
            "sha256:e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
        ),
        Remote(
            f"{KMNIST_FILES}t10k-images-idx3-ubyte.gz",
            3_041_136,
            "sha256:edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
        ),
        Remote(
            f"{KMNIST_FILES}t10k-labels-idx1-ubyte.gz",
            5_120,
            "sha256:20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
        ),
    ),
)
