"""CIFAR-10 from the official binary version, or from lossless WebP sheets of tiles with a file of labels."""

from pathlib import Path
from typing import Literal

import numpy as np

from jaxfl.data import bounded
from jaxfl.data.sources.base import Folder, Remote, Source, SourceEntry, folders, locate, require
from jaxfl.schema import checked

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
HELP = f"get the binary version from {URL}, unpack it and give its folder as data_dir"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TRAIN, TEST = tuple(f"data_batch_{number}" for number in range(1, 6)), ("test_batch",)
LABELS = "labels.npz"
LAYOUTS = {
    "binary": [f"{batch}.bin" for batch in TRAIN + TEST],
    "sheets": [*(f"{batch}.webp" for batch in TRAIN + TEST), LABELS],
}
SIDE = 32  # pixels
PIXELS = 3 * SIDE * SIDE
# The usual statistics of the training images per channel, in units of the pixels.
MEAN = np.array([0.4914, 0.4822, 0.4465], np.float32) * np.float32(255)
STD = np.array([0.2470, 0.2435, 0.2616], np.float32) * np.float32(255)


@checked
def load(data_dir: Folder = None, *, scaling: Literal["channels", "half"] = "channels") -> Source:
    """Returns CIFAR-10: 50,000 + 10,000 colour images of 32 x 32, channels last, standardised per channel.

    Two layouts are read, in `data_dir` or `data_dir/cifar10` or the folder `cifar-10-batches-bin` in one of them:

    - the official binary version, `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`: per image one byte
      of label and 3 x 1024 bytes of red, green and blue; `batches.meta.txt`, if it exists, has the class names;
    - `data_batch_1.webp` to `data_batch_5.webp` and `test_batch.webp`, lossless: the tiles of a batch row by row, with
      `train_y`, `test_y` and optional `names` in `labels.npz`.

    The official pickled version is not read, because unpickling runs code of the file.

    Args:
        data_dir: folder of the files, or the folder above it.
        scaling: "channels" standardises by mean and deviation of each channel; "half" subtracts half of the range and
            divides by it (-1 to 1), as some codes do.

    Raises:
        FileNotFoundError: a file is missing, or only the pickled version is there.
        ValueError: a file is damaged, or the counts of images and labels disagree.

    Reference: Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
    """
    layout, place = require("cifar10", LAYOUTS, _cifar10_folders(data_dir), _missing_files_help(data_dir))
    inputs, labels, test_inputs, test_labels, names = (_read_binary if layout == "binary" else _read_sheets)(place)
    mean, std = (MEAN, STD) if scaling == "channels" else (127.5, 127.5)
    return Source(
        "cifar10", inputs, labels, 10, test_inputs, test_labels, class_names=names or CLASSES, mean=mean, std=std
    )


CifarArrays = tuple[
    np.ndarray, np.ndarray, np.ndarray, np.ndarray, tuple[str, ...]
]  # train x, y, test x, y, class names


def _cifar10_folders(data_dir: Folder) -> list[Path]:
    """Returns the folders to search in order; the archive unpacks into its own folder."""
    tops = folders("cifar10", data_dir)
    return [*tops, *(top / "cifar-10-batches-bin" for top in tops)]


def _missing_files_help(data_dir: Folder) -> str:
    """Returns the instruction to get the files; if the pickled version exists, also why it is not read."""
    places = [place / inner for place in folders("cifar10", data_dir) for inner in ("", "cifar-10-batches-py")]
    pickled = next((place for place in places if (place / TRAIN[0]).is_file()), None)
    if pickled is None:
        return HELP
    return f"the pickled version in {pickled} is not read, because unpickling runs code of the file: {HELP}"


def _read_binary(place: Path) -> CifarArrays:
    """Returns the arrays of the official binary version."""

    def part(batches: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
        paths = [place / f"{batch}.bin" for batch in batches]
        counts = [_num_records(path, 1, HELP) for path in paths]
        images, labels = np.empty((sum(counts), SIDE, SIDE, 3), np.uint8), np.empty(sum(counts), np.uint8)
        start = 0
        for path, count in zip(paths, counts, strict=True):
            rows = slice(start, start + count)
            columns, images[rows] = read_records(path, 1, HELP)
            labels[rows] = columns[:, 0]
            _check_cifar10_labels(str(path), labels[rows])
            start += count
        return images, labels

    names: tuple[str, ...] = ()
    meta = place / "batches.meta.txt"
    if meta.is_file():
        names = tuple(meta.read_text(encoding="utf-8", errors="replace").split())
        _check_class_names(str(meta), names)
    return *part(TRAIN), *part(TEST), names


def read_records(path: Path, num_labels: int, help: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns labels and images of a file of CIFAR's binary versions.

    Args:
        path: path of the file.
        num_labels: bytes of labels before the pixels of an image.
        help: instruction to get the file, for the messages.

    Returns:
        Labels `[P, num_labels]` and images `[P, 32, 32, 3]`, uint8.

    Raises:
        ValueError: the file is empty or truncated.
    """
    count = _num_records(path, num_labels, help)
    rows = np.fromfile(path, np.uint8, count * (num_labels + PIXELS)).reshape(count, num_labels + PIXELS)
    images = rows[:, num_labels:].reshape(count, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return rows[:, :num_labels].copy(), np.ascontiguousarray(images)


def _num_records(path: Path, num_labels: int, help: str) -> int:
    """Returns the number of images in a binary file, computed from its size."""
    size, record = path.stat().st_size, num_labels + PIXELS
    if size == 0:
        raise ValueError(f"{path} is empty; {help}.")
    if size % record:
        raise ValueError(
            f"{path} must have a multiple of {record} bytes, those of one image with its label, got {size}; it is "
            f"truncated or not a binary batch, {help}."
        )
    return size // record


def _read_sheets(place: Path) -> CifarArrays:
    """Returns the arrays of WebP sheets and their labels."""
    path = place / LABELS
    arrays = _read_label_file(path)
    names: tuple[str, ...] = ()
    if "names" in arrays:
        names = tuple(map(str, arrays["names"].ravel()))
        _check_class_names(f"{path}: names", names)

    def part(batches: tuple[str, ...], key: str) -> tuple[np.ndarray, np.ndarray]:
        paths, labels = [place / f"{batch}.webp" for batch in batches], arrays[key]
        grids = [_sheet_size(sheet) for sheet in paths]
        count = sum(high * wide for high, wide in grids)
        if labels.shape != (count,):
            raise ValueError(
                f"{path}: {key} must be [{count}], one label per tile of {', '.join(sheet.name for sheet in paths)}, "
                f"got shape {labels.shape}; the files belong to different data sets."
            )
        if not np.issubdtype(labels.dtype, np.integer):
            raise ValueError(f"{path}: {key} must be integers, got {labels.dtype}; use astype(int).")
        _check_cifar10_labels(f"{path}: {key}", labels)
        images, start = np.empty((count, SIDE, SIDE, 3), np.uint8), 0
        for sheet, (high, wide) in zip(paths, grids, strict=True):
            tiles = _read_sheet(sheet).reshape(high, SIDE, wide, SIDE, 3).transpose(0, 2, 1, 3, 4)
            rows = images[start : start + high * wide]
            rows.reshape(high, wide, SIDE, SIDE, 3)[:] = tiles  # a view: rows are contiguous
            start += high * wide
        return images, labels

    return *part(TRAIN, "train_y"), *part(TEST, "test_y"), names


def _read_label_file(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of the file of labels."""
    try:
        arrays, existing = bounded.read_arrays(path, ("train_y", "test_y", "names"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} must be an .npz file of plain arrays ({error}); copy it again.") from error
    for key in ("train_y", "test_y"):
        if key not in arrays:
            raise ValueError(f"{path} must have the array {key}, got only {sorted(existing)}; add it with np.savez.")
    return arrays


def _sheet_size(path: Path) -> tuple[int, int]:
    """Returns the numbers of tiles of a sheet, vertically and horizontally, without decoding it."""
    from PIL import Image

    with path.open("rb") as file:
        kind = file.read(16)[12:]
    if kind == b"VP8 ":
        raise ValueError(f"{path} must be a lossless WebP image, got a lossy one; write it with lossless=True.")
    try:
        with Image.open(path, formats=["WEBP"]) as sheet:
            mode, (width, height) = sheet.mode, sheet.size
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} is a damaged WebP image ({error}); copy it again.") from error
    if mode != "RGB":
        raise ValueError(f"{path} must be an RGB image, got mode {mode}; write it with convert('RGB').")
    if width % SIDE or height % SIDE:
        raise ValueError(
            f"{path} must consist of whole tiles of {SIDE} x {SIDE} pixels, got {width} x {height} pixels; each side "
            f"must be a multiple of {SIDE}."
        )
    return height // SIDE, width // SIDE


def _read_sheet(path: Path) -> np.ndarray:
    """Returns the pixels of a sheet `[height, width, 3]`."""
    from PIL import Image

    try:
        with Image.open(path, formats=["WEBP"]) as sheet:
            return np.asarray(sheet)
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{path} is a damaged WebP image ({error}); copy it again.") from error


def _check_cifar10_labels(what: str, labels: np.ndarray) -> None:
    """Raises ValueError if a label is not a class."""
    wrong = (labels < 0) | (labels >= len(CLASSES))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"{what} must have classes 0..9, got {labels[row]} in row {row}; it is damaged or another data set."
        )


def _check_class_names(what: str, names: tuple[str, ...]) -> None:
    """Raises ValueError unless there are ten different class names."""
    if len(set(names)) != len(CLASSES) or len(names) != len(CLASSES):
        raise ValueError(f"{what} must name {len(CLASSES)} classes, got {len(names)}: {', '.join(names[:12])}; {HELP}.")


def _find_cifar10(data_dir: Folder) -> Path | None:
    """Returns the folder of the files of one layout, or None."""
    located = locate(LAYOUTS, _cifar10_folders(data_dir))
    return None if located is None else located[1]


ENTRY = SourceEntry(
    load,
    find=_find_cifar10,
    summary="CIFAR-10, 50,000 + 10,000 colour photographs of 32 x 32 pixels",
    licence="none stated; cite Krizhevsky 2009",
    num_bytes=170_052_171,
    num_classes=10,
    remotes=(
        Remote(
            URL,
            170_052_171,
            "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            members=("*.bin", "batches.meta.txt"),
        ),
    ),
    model=("stocfl-cifar-cnn", {}),
)
