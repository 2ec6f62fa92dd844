"""Sources: where examples come from, before any skew is cut into them.

A loader takes the place where its files lie and returns a `Source`. Nothing is downloaded; a missing file is named,
with the folders looked in and the place to get it. Heavy libraries are imported only by the loader that needs them.
"""

import dataclasses
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxfl.data import idx

Folder = str | Path | None


@dataclasses.dataclass(frozen=True)
class Source:
    """Examples and what is known about them.

    Attributes:
        name: of the source.
        inputs: training examples `[P, ...]`, uint8 or float.
        labels: their classes `[P]`.
        num_classes: L.
        test_inputs, test_labels: the official test set, or None where there is none.
        clients: who made each training example `[P]` (a writer, a person), or None.
        client_groups: the group of each training example's client `[P]`, or None.
        group_names: one name per group of `client_groups`.
        mean, std: normalisation in units of `inputs`; None leaves floats alone.
    """

    name: str
    inputs: np.ndarray
    labels: np.ndarray
    num_classes: int
    test_inputs: np.ndarray | None = None
    test_labels: np.ndarray | None = None
    clients: np.ndarray | None = None
    client_groups: np.ndarray | None = None
    group_names: tuple[str, ...] = ()
    mean: float | np.ndarray | None = None
    std: float | np.ndarray | None = None

    def pool(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Returns training and test examples in one pool: inputs, labels, and the rows of the official test set."""
        if self.test_inputs is None or self.test_labels is None:
            return self.inputs, self.labels, None
        inputs = np.concatenate([self.inputs, self.test_inputs])
        return inputs, np.concatenate([self.labels, self.test_labels]), np.arange(len(self.inputs), len(inputs))


def digits(data_dir: Folder = None) -> Source:
    """Returns scikit-learn's embedded digits: 1,797 images of 8 x 8 pixels, 0 to 16, standardised; needs no file.

    >>> source = digits()
    >>> source.inputs.shape, source.num_classes
    ((1797, 8, 8), 10)
    """
    from sklearn import datasets

    bunch: Any = datasets.load_digits()
    images = bunch.images.astype(np.uint8)
    # Standardised, because with pixels in 0..1 the clients' gradients are too alike to tell four rotations apart.
    return Source("digits", images, bunch.target, 10, mean=float(images.mean()), std=float(images.std()))


MNIST_HELP = "get the four files from https://ossci-datasets.s3.amazonaws.com/mnist/ and give their folder as data_dir"
FASHION_HELP = (
    "apt-get install dataset-fashion-mnist, or get the four files from "
    "https://github.com/zalandoresearch/fashion-mnist and give their folder as data_dir"
)
QMNIST_HELP = "get it from https://github.com/facebookresearch/qmnist and put it beside MNIST's files"
WRITERS = "qmnist-train-labels-idx2-int"
# The files of both have the same names: taking one for the other would go unnoticed.
FIRST_LABELS = {"mnist": (5, 0, 4, 1, 9, 2, 1, 3, 1, 4), "fashion-mnist": (9, 0, 0, 3, 0, 2, 7, 2, 5, 5)}
FASHION_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package puts it


def mnist(data_dir: Folder = None) -> Source:
    """Returns MNIST from its four idx files in `data_dir` or `data_dir/mnist`; 60,000 + 10,000 images of 28 x 28.

    Where QMNIST's labels lie beside them (`qmnist-train-labels-idx2-int.gz`), the 539 writers of the training images
    are known, with their group: employees of the census bureau (HSF series 0) or students (series 4).

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or the counts of images and labels disagree.
    """
    folders = _folders("mnist", data_dir)
    source = _idx_source("mnist", folders, MNIST_HELP)
    path = idx.find(WRITERS, folders)
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
    return _idx_source("fashion-mnist", _folders("fashion-mnist", data_dir), FASHION_HELP)


def _folders(name: str, data_dir: Folder) -> list[Path]:
    """Returns where to look, the best place first: MNIST and Fashion-MNIST use the same file names."""
    default = [FASHION_FOLDER] if name == "fashion-mnist" else []
    return default if data_dir is None else [Path(data_dir) / name, Path(data_dir)]


def _idx_source(name: str, folders: list[Path], help: str) -> Source:
    """Reads four idx files and checks them against each other."""

    def part(kind: str) -> tuple[np.ndarray, np.ndarray]:
        images_path, labels_path = (
            _require(f"{kind}-{what}", name, folders, help) for what in ("images-idx3-ubyte", "labels-idx1-ubyte")
        )
        images, labels = idx.read(images_path, num_axes=3), idx.read(labels_path, num_axes=1)
        if len(images) != len(labels):
            raise ValueError(
                f"{labels_path} must have one label for each of the {len(images)} images in {images_path.name}, got "
                f"{len(labels)}; the files belong to different data sets."
            )
        if labels.max(initial=0) > 9:
            raise ValueError(
                f"{labels_path} must hold classes 0..9, got {labels.max()}; it is another data set under this name."
            )
        return images, labels

    images, labels = part("train")
    _check_identity(name, _require("train-labels-idx1-ubyte", name, folders, help), labels)
    test_images, test_labels = part("t10k")
    if images.shape[1:] != test_images.shape[1:]:
        raise ValueError(
            f"{name}: training images are {images.shape[1:]}, test images {test_images.shape[1:]}; the files in "
            f"{folders[0]} belong to different data sets."
        )
    return Source(name, images, labels, 10, test_images, test_labels, mean=0.0, std=255.0)


def _check_identity(name: str, path: Path, labels: np.ndarray) -> None:
    """Raises if the labels are those of the other data set with the same file names."""
    for other, first in FIRST_LABELS.items():
        if other != name and tuple(labels[:10].tolist()) == first:
            raise ValueError(f"{path} must belong to {name}, and holds the labels of {other}; give another data_dir.")


def _require(stem: str, name: str, folders: list[Path], help: str) -> Path:
    """Returns the path of a file, or raises."""
    path = idx.find(stem, folders)
    if path is None:
        looked = f"not found in {' or '.join(map(str, folders))}" if folders else "no data_dir was given"
        raise FileNotFoundError(f"{name} needs {stem}[.gz]: {looked}; {help}.")
    return path


def npz(data_dir: Folder = None) -> Source:
    """Returns the examples of one `.npz` file, whose path is given as `data_dir`.

    Its arrays: `x [P, ...]` (uint8, float32 or float64) and `y [P]` (integers from 0); and, if there are, `client [P]`
    (who made the example), `group [P]` (the group of that client), `test_x`, `test_y`, `mean` and `std`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not an npz file, holds Python objects, lacks an array, or the arrays disagree.
    """
    if data_dir is None or not Path(data_dir).is_file():
        got = "none was given" if data_dir is None else f"there is no file {data_dir}"
        raise FileNotFoundError(f"npz needs data_dir, the path of an .npz file with arrays x and y: {got}.")
    path = Path(data_dir)
    try:
        if not zipfile.is_zipfile(path):
            raise zipfile.BadZipFile("no zip archive, or a truncated one")
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {key: file[key] for key in NPZ_KEYS if key in file}
            found = list(file)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        raise ValueError(
            f"{path} must be an .npz file of plain arrays, and is not ({error}); write it with np.savez."
        ) from error
    needed = {"x", "y"} | ({"test_x", "test_y"} if {"test_x", "test_y"} & set(arrays) else set())
    if missing := sorted(needed - set(arrays)):
        raise ValueError(f"{path} must hold the array {missing[0]}, found only {found}; add it with np.savez.")
    _check_arrays(path, arrays)
    mean, std = arrays.get("mean"), arrays.get("std")
    if arrays["x"].dtype == np.uint8:
        mean, std = (0.0 if mean is None else mean), (255.0 if std is None else std)
    clients, groups = arrays.get("client"), arrays.get("group")
    names: tuple[str, ...] = ()
    if groups is not None:
        values, groups = np.unique(groups, return_inverse=True)
        names = tuple(map(str, values))
    num_classes = 1 + max(int(arrays[key].max(initial=0)) for key in ("y", "test_y") if key in arrays)
    test = arrays.get("test_x"), arrays.get("test_y")
    return Source(path.stem, arrays["x"], arrays["y"], num_classes, *test, clients, groups, names, mean, std)


NPZ_KEYS = ("x", "y", "client", "group", "test_x", "test_y", "mean", "std")


def _check_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Raises if the arrays of an npz file do not fit each other."""
    for x, columns in (("x", ("y", "client", "group")), ("test_x", ("test_y",))):
        for column in (column for column in columns if column in arrays):
            if arrays[column].shape != (len(arrays[x]),):
                raise ValueError(
                    f"{path}: {column} must be [{len(arrays[x])}], one entry for each row of {x}, got shape "
                    f"{arrays[column].shape}."
                )
            if column.endswith("y") and not np.issubdtype(arrays[column].dtype, np.integer):
                raise ValueError(f"{path}: {column} must be integers, got {arrays[column].dtype}; use astype(int).")
    if "test_x" in arrays and (arrays["test_x"].dtype, arrays["test_x"].shape[1:]) != (
        arrays["x"].dtype,
        arrays["x"].shape[1:],
    ):
        raise ValueError(f"{path}: test_x must have the type and the shape of x, row by row.")


def tfds(name: str, data_dir: Folder = None) -> Source:
    """Returns an image classification data set that tensorflow-datasets has prepared; needs no TensorFlow.

    Args:
        name: as `tfds.builder` takes it, e.g. `"kmnist"`.
        data_dir: where `download_and_prepare(file_format="array_record")` put it; the library's default if None.

    Raises:
        ValueError: no such data set, not prepared in a random-access format, or not images of one shape with a label.
    """
    import tensorflow_datasets

    try:
        builder: Any = tensorflow_datasets.builder(name, data_dir=data_dir, file_format="array_record")
        splits = {split: builder.as_data_source(split) for split in builder.info.splits or ("train",)}
    except Exception as error:  # the library raises a dozen types, from a missing package to a missing file
        raise ValueError(
            f"tfds:{name} cannot be read ({str(error).splitlines()[0]}); prepare it where there is internet with "
            f"tfds.builder({name!r}, file_format='array_record').download_and_prepare() and give its data_dir."
        ) from error
    features = builder.info.features
    if not {"image", "label"} <= set(features or ()) or "train" not in splits:
        raise ValueError(
            f"tfds:{name} must have a split train with features image and label; it has {sorted(features or ())}."
        )

    def part(split: str) -> tuple[np.ndarray, np.ndarray]:
        examples = [(example["image"], example["label"]) for example in splits[split]]
        if len(shapes := {image.shape for image, _ in examples}) != 1:
            raise ValueError(f"tfds:{name} must have images of one shape, got {sorted(shapes)[:3]}; resize to npz.")
        return np.stack([image for image, _ in examples]), np.array([label for _, label in examples])

    test = part("test") if "test" in splits else (None, None)
    return Source(f"tfds:{name}", *part("train"), features["label"].num_classes, *test, mean=0.0, std=255.0)


SOURCES: dict[str, Callable[[Folder], Source]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "npz": npz,
}


def located(name: str, data_dir: Folder = None, *, makers: bool = False) -> str | None:
    """Returns where a source would be read from, `"embedded"` for the digits, or None if its files are missing.

    Args:
        name: of the source.
        data_dir: as for its loader.
        makers: whether the makers of the examples must be known, too.

    >>> located("digits"), located("mnist", "no-such-folder")
    ('embedded', None)
    """
    if name == "digits":
        return "embedded"
    if name == "npz":
        return str(data_dir) if data_dir is not None and Path(data_dir).is_file() else None
    stems = [WRITERS] if makers else []
    stems += [f"{kind}-{what}-ubyte" for kind in ("train", "t10k") for what in ("images-idx3", "labels-idx1")]
    paths = [path for stem in stems if (path := idx.find(stem, _folders(name, data_dir))) is not None]
    if len(paths) < len(stems):
        return None
    try:
        _check_identity(name, paths[-3], idx.read(paths[-3], num_axes=1))
    except ValueError:
        return None
    return str(paths[-3].parent)
