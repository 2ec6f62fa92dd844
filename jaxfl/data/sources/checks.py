"""Checks of the arrays of a file of examples in any format; each raises ValueError with the name of the file."""

import re
import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxfl.data.building import check_finite, check_input_type, check_normaliser
from jaxfl.data.casts import join
from jaxfl.data.labels import are_flags, check_num_classes, count_classes, prepare_labels

# Parts of the names of files, arrays and columns that belong to a test set, and names that say which rows do.
HELD_BACK = "test|testing|val|valid|validation|eval|evaluation|dev|holdout|heldout"
SPLITS = re.compile(
    "(data|traintest)?(split|fold|subset)(id|index|name|number)?s?|traintest|(train|training)(row|index|idx|id)s?|"
    f"(is|in|for)(train|training|{HELD_BACK})|(train|training|{HELD_BACK})(mask|set|split|flag|fold)s?"
)


def is_split(name: str) -> bool:
    """Returns whether an array or a column says, by its name, which rows are for training and which are held back.

    >>> is_split("Split"), is_split("is_train"), is_split("splitting")
    (True, True, False)
    """
    return SPLITS.fullmatch(re.sub("[^a-z]", "", name.lower())) is not None


def split_sentence(path: Path, name: str) -> str:
    """Returns a sentence for a column that says which rows are held back, of a file whose rows are divided anew."""
    return (
        f"{path}: the column {name} does not decide which rows are for tests, and clients are tested on a share of "
        "their own rows; write an npz file with test_x, test_y and test_client to keep yours."
    )


def warn_alike_texts(name: str, *columns: np.ndarray | None) -> None:
    """Warns of names that look alike: they differ in their case, in spaces or in the form of letters alone.

    Args:
        name: of the columns, for the message.
        *columns: the values, of training and of test rows; those that are no texts, and None, have none.
    """
    texts = [column for column in columns if column is not None and column.dtype.kind == "U"]
    known: dict[str, str] = {}
    for text in np.unique(np.concatenate(texts)).tolist() if texts else ():
        letters = (one for one in unicodedata.normalize("NFKC", text) if unicodedata.category(one) != "Cf")  # invisible
        if (other := known.setdefault(" ".join("".join(letters).split()).casefold(), text)) != text:
            warnings.warn(
                f"{name} has {other!r} and {text!r}, which are different names here; write one name in one way.",
                stacklevel=3,
            )
            return


def warn_unequal_classes(where: Path, names: Sequence[str], **parts: np.ndarray) -> None:
    """Warns of a published data set whose classes have equally many rows each, and do not here: some may be missing.

    Args:
        where: folder of the files.
        names: of all classes.
        **parts: labels of the parts of the set, by their names.
    """
    for part, labels in parts.items():
        counts = np.bincount(labels, minlength=len(names))
        least, most = int(counts.argmin()), int(counts.argmax())
        if counts[least] < counts[most]:
            warnings.warn(
                f"{where}: {part} has {counts[least]} rows of {names[least]} and {counts[most]} of {names[most]}, and "
                "the published set has equally many of each class; unpack the archive again if this is not meant.",
                stacklevel=3,
            )


def check_rows(
    path: Path, arrays: Mapping[str, np.ndarray], file_names: Mapping[str, str], *, prefix: str = ""
) -> None:
    """Raises ValueError unless examples, labels and columns fit each other.

    Args:
        path: path of the file, for the messages.
        arrays: `x`, `y` and any of `client`, `group`, `domain`, `client_weight`, each after the prefix.
        file_names: names of the arrays in the file, where they differ.
        prefix: `"test_"` for the official test set, which must have the type of the training examples.
    """
    images = arrays.get(f"{prefix}x")
    if images is not None and not images.shape:
        raise ValueError(
            f"{path}: {file_names.get(f'{prefix}x', f'{prefix}x')} must be [P, ...], a row for each example."
        )
    columns = ("y", "client", "group", "domain", "client_weight")
    for column in (f"{prefix}{key}" for key in columns if f"{prefix}{key}" in arrays):
        values, name = arrays[column], file_names.get(column, column)
        if images is None:
            raise ValueError(f"{path}: {name} must be left out, because there are no examples of a test set.")
        if column.endswith("y"):
            _check_label_column(path, name, values, len(images), file_names.get(f"{prefix}x", "x"))
        elif values.shape != (len(images),):
            raise ValueError(
                f"{path}: {name} must be [{len(images)}], an entry per row of {file_names.get(f'{prefix}x', 'x')}, got "
                f"shape {values.shape}."
            )
    if images is None:
        return
    name, first = file_names.get(f"{prefix}x", f"{prefix}x"), arrays["x"]
    check_input_type(f"{path}: {name}", images)
    check_finite(f"{path}: {name}", images)
    if (images.dtype, images.shape[1:]) != (first.dtype, first.shape[1:]):
        raise ValueError(f"{path}: {name} must have the type of {file_names.get('x', 'x')} and its shape of a row.")


def _check_label_column(path: Path, name: str, values: np.ndarray, count: int, inputs: str) -> None:
    """Raises ValueError unless labels are of a kind, see `jaxfl.data.labels`, and equal in number to the inputs."""
    if values.ndim not in (1, 2) or len(values) != count:
        raise ValueError(
            f"{path}: {name} must be [{count}], one entry for each row of {inputs}, or [{count}, L], got "
            f"shape {values.shape}."
        )
    if values.dtype.kind not in "iufb":
        names = "convert names to classes by np.unique(labels, return_inverse=True)[1]"
        times = "convert times to numbers by (labels - labels.min()) / np.timedelta64(1, 's')"
        remedies = dict.fromkeys("US", names) | dict.fromkeys("mM", times)
        raise ValueError(
            f"{path}: {name} must be integers (classes), floats (regression) or bools [{count}, L], got "
            f"{values.dtype}; {remedies.get(values.dtype.kind, 'use astype')}."
        )
    if values.dtype.kind in "iu" and values.ndim == 1 and values.min(initial=0) < 0:
        row = int(values.argmin())
        raise ValueError(f"{path}: {name} must be classes from 0, got {values[row]} in row {row}; number them from 0.")


def num_classes(path: Path, arrays: Mapping[str, np.ndarray], file_names: Mapping[str, str], named: int) -> int:
    """Returns L of the labels of a file, as the file states it or as the labels need it.

    Args:
        path: path of the file.
        arrays: `x`, `y`, maybe `test_x`, `test_y` and `num_classes`; checked by `check_rows`.
        file_names: names of the arrays in the file, where they differ.
        named: number of class names in the file.

    Raises:
        ValueError: labels are outside of the classes, or of two kinds.
    """
    name = file_names.get("y", "y")
    labels = {key: arrays[key] for key in ("y", "test_y") if key in arrays}
    if len({(part.dtype.kind in "iu", part.dtype.kind == "b", part.shape[1:]) for part in labels.values()}) > 1:
        raise ValueError(
            f"{path}: {file_names.get('test_y', 'test_y')} must have the type of {name} and its shape of a row."
        )
    known = stated_num_classes(path, arrays["num_classes"]) if "num_classes" in arrays else named
    if named and named != known:
        raise ValueError(f"{path}: class_names must have num_classes ({known}) names, got {named}.")
    whole = labels["y"].dtype.kind in "iu"
    highest = max(int(part.max(initial=0)) for part in labels.values()) if whole else 0
    if whole and labels["y"].ndim == 1:
        if not {"num_classes", "class_names"} & set(arrays):
            return count_classes(f"{path}: {name}", list(labels.values()), "add num_classes or class_names")
        check_num_classes(f"{path}: num_classes", known)
        if known and highest >= known:
            raise ValueError(f"{path}: {name} must be below the {known} classes, got {highest}.")
        return known or highest + 1
    every = join(f"{path}: {name}", list(labels.values()))
    inputs = np.broadcast_to(arrays["x"][:1], (len(every), *arrays["x"].shape[1:]))  # only type and shape are used
    try:
        return prepare_labels(
            inputs, every, known or (highest + 1 if whole and not are_flags(inputs, every) else None)
        )[1]
    except ValueError as error:
        raise ValueError(f"{path}: {name} must be labels of a task: {error}") from error


def check_numbers(path: Path, name: str, values: np.ndarray, names: str, count: int) -> None:
    """Raises ValueError unless the values of a column are integers from 0 to `count` - 1, the entries of `names`."""
    wrong = np.setdiff1d(values, np.arange(count)) if values.dtype.kind in "iu" else values
    if len(wrong):
        raise ValueError(
            f"{path}: {name} must hold numbers 0..{count - 1}, one for each entry of {names}, got "
            f"{wrong.tolist()[0]!r}; correct one of the two arrays."
        )


def stated_num_classes(path: Path, value: np.ndarray) -> int:
    """Returns the number of classes that a file states."""
    if value.shape or value.dtype.kind not in "iu" or value < 1:
        raise ValueError(f"{path}: num_classes must be one whole number above 0, got {value.tolist()!r}.")
    return int(value)


def normaliser(path: Path, key: str, values: np.ndarray) -> float | np.ndarray:
    """Returns a mean or a standard deviation, a number or one per channel."""
    check_normaliser(key, values, f"{path}: ")
    return float(values) if values.ndim == 0 else values
