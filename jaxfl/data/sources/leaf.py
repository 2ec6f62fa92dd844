"""Reader of the json files of LEAF, a benchmark of federated data with rows by user.

A file is one object: `users`, the names; `num_samples`, the number of rows of each; `user_data`, by name, `x` and `y`.
For images these are a list of pixels from 0 to 1 and a class (FEMNIST), for texts some characters and the next one
(Shakespeare, whose `hierarchies` are the plays of the users). Users that are only in `user_data` are not read: LEAF
leaves them empty when it drops users of one row.

Reference: Caldas et al., "LEAF: a benchmark for federated settings", 2018.
"""

import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxfl.data import bounded
from jaxfl.data.casts import to_texts
from jaxfl.data.sources.base import Folder, Layouts, folders, locate, require

LAYOUTS = {"leaf": ("all_data*.json",), "leaf-split": ("train/*.json", "test/*.json")}
SUBFOLDERS = ("data/all_data", "all_data", "data")  # folders of the files of LEAF's preprocess.sh
KEYS = ("users", "num_samples", "user_data")
# A pixel is n/255 in the files, so there are usually 256 texts; a file of other numbers must not fill the memory.
MAX_TEXTS = 65_536
ROUNDING = 0.01  # of a grey level: what float32 or a text of five digits may add to n/255


class LeafRows(NamedTuple):
    """Images and their users.

    Attributes:
        inputs: uint8 `[P, H, W]`.
        labels: int32 `[P]`.
        clients: name of the user of each image `[P]`.
    """

    inputs: np.ndarray
    labels: np.ndarray
    clients: np.ndarray


def places(name: str, data_dir: Folder) -> list[Path]:
    """Returns the folders to search for a source's files in order, with the existing ones of LEAF's folders."""
    return [
        place
        for folder in folders(name, data_dir)
        for place in (folder, *(folder / inner for inner in SUBFOLDERS if (folder / inner).is_dir()))
    ]


def require_files(name: str, layouts: Layouts, data_dir: Folder, remedy: str) -> tuple[str, Path]:
    """Returns the first complete layout of a source's files, and their folder; see `base.require`.

    Warns:
        UserWarning: LEAF's split lies beside all rows, which are read.
    """
    searched = places(name, data_dir)
    existing, place = require(name, layouts, searched, remedy)
    split = locate({key: patterns for key, patterns in layouts.items() if key == "leaf-split"}, searched)
    if existing == "leaf" and split is not None:
        warnings.warn(
            f"{name}: all rows in {place} are read and divided anew, and train and test in {split[1]} are not read; "
            "set layout=leaf-split to keep these, or layout=leaf.",
            stacklevel=3,
        )
    return existing, place


def sorted_files(place: Path, pattern: str) -> list[Path]:
    """Returns the files of a pattern, shorter names first: all_data_2.json precedes all_data_10.json."""
    return sorted(place.glob(pattern), key=lambda path: (len(path.name), path.name))


class Collector:
    """Collects the rows of clients in one growing buffer; a concatenation of arrays would need twice the memory.

    >>> collector = Collector((1, 2))
    >>> collector.add(Path("a.json"), "ann", bytes([0, 255, 255, 0]), [3, 4])
    >>> collector.rows().clients.tolist(), collector.rows().inputs.shape
    (['ann', 'ann'], (2, 1, 2))
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._pixels = bytearray()
        self._labels: list[np.ndarray] = []
        self.files: dict[str, Path] = {}

    def add(self, path: Path, client: str, pixels: bytes, labels: Any) -> None:
        """Adds all rows of one client from the file `path`."""
        check_new(path, client, self.files)
        self.files[client] = path
        self._pixels += pixels
        self._labels.append(np.asarray(labels, np.int32))

    def rows(self) -> LeafRows:
        """Returns the collected rows; no rows can be added afterwards."""
        inputs = np.frombuffer(self._pixels, np.uint8).reshape(-1, *self.shape)
        labels = np.concatenate([np.zeros(0, np.int32), *self._labels])
        return LeafRows(
            inputs, labels, np.repeat(to_texts("users", list(self.files)), [len(part) for part in self._labels])
        )


def read(paths: Iterable[Path], *, shape: tuple[int, ...] = (28, 28), num_classes: int = 62) -> LeafRows:
    """Returns the rows of LEAF's json files of images, which are read one at a time.

    Args:
        paths: paths of the files; each user is in one of them.
        shape: shape of an image; its pixels are one flat list in the file.
        num_classes: L.

    Returns:
        The rows of all users in the order of the files; a pixel x is the byte `round(255 x)`.

    Raises:
        ValueError: a file is truncated or not json, lacks a key, or its users, counts, pixels or labels are wrong.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "all_data_0.json"
    ...     content = {"users": ["ann"], "num_samples": [1], "user_data": {"ann": {"x": [[1.0, 0.2]], "y": [61]}}}
    ...     size = path.write_text(json.dumps(content))
    ...     [values.tolist() for values in read([path], shape=(1, 2))]
    [[[[255, 51]]], [61], ['ann']]
    """
    collector = Collector(shape)
    for path in paths:
        _add_file(collector, path, num_classes)
    return collector.rows()


class _Pixels(dict[str, bytes | float]):
    """Pixels by the text of the number: one shared byte, because a float needs 24 bytes and more time."""

    def __missing__(self, text: str) -> bytes | float:
        value = float(text)
        pixel = bytes([round(255 * value)]) if _is_grey_level(value) else value
        if len(self) < MAX_TEXTS:
            self[text] = pixel
        return pixel


def _is_grey_level(value: float) -> bool:
    """Returns whether a pixel is n / 255; other fractions would be rounded to it."""
    return 0 <= value <= 1 and abs(255 * value - round(255 * value)) < ROUNDING


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the object of pairs; raises ValueError if a key occurs twice, of which json keeps the last one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{next(key for key in keys if keys.count(key) > 1)!r} is in it twice")
    return found


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object of a file with each float n/255 as a pixel, after checking its three keys.

    Raises:
        ValueError: the file is not a json file of LEAF.
    """
    try:
        bounded.check_regular(path)
    except ValueError as error:
        raise ValueError(f"{path} must be LEAF's json: {error}; create it again.") from error
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be text ({error}); it is another file under this name.") from error
    try:
        content = json.loads(text, parse_float=_Pixels().__getitem__, object_pairs_hook=_distinct_keys)
    except json.JSONDecodeError as error:
        if text.rstrip().endswith("}"):
            raise ValueError(f"{path} must be valid json ({error}); create it again.") from error
        raise ValueError(f"{path} is truncated before its closing brace ({error}); create or copy it again.") from error
    except (ValueError, RecursionError) as error:  # a key twice, a number of thousands of digits, lists in lists
        raise ValueError(f"{path} must be LEAF's json ({error}); create it again.") from error
    keys = sorted(content) if isinstance(content, dict) else f"a {type(content).__name__}"
    if not isinstance(content, dict) or any(key not in content for key in KEYS):
        lacking = next(key for key in KEYS if not isinstance(content, dict) or key not in content)
        raise ValueError(f"{path} must be LEAF's json with the keys {', '.join(KEYS)}: {lacking} is not in {keys}.")
    for key, kind in zip(KEYS, (list, list, dict), strict=True):
        if not isinstance(content[key], kind):
            raise ValueError(f"{path}: {key} must be a json {kind.__name__}, got a {type(content[key]).__name__}.")
    return content


def _add_file(collector: Collector, path: Path, num_classes: int) -> None:
    """Adds the rows of one file to the collector."""
    for user, images, labels in pop_users(path, read_json(path), collector.files, "images", "labels"):
        for row, label in enumerate(labels):
            if type(label) is not int or not 0 <= label < num_classes:
                raise ValueError(
                    f"{path}: labels must be integers 0..{num_classes - 1}, got {_as_in_file(label)} in row {row} of "
                    f"user {user!r}; it is another data set under this name."
                )
        size = math.prod(collector.shape)
        pixels = b"".join(
            _image(f"{path}: row {row} of user {user!r}", image, size) for row, image in enumerate(images)
        )
        collector.add(path, user, pixels, labels)


def check_new(path: Path, user: str, files: Mapping[str, Path]) -> None:
    """Raises ValueError if a user has been read already.

    Args:
        path: path of the file with the user.
        user: name of the user.
        files: file of each user that has been read.
    """
    if user in files:
        raise ValueError(
            f"{path} must have each user once, but {user!r} is in it twice, or also in {files[user].name}; the files "
            "are from more than one run of LEAF, empty the folder and create them again."
        )


def pop_users(
    path: Path, content: dict[str, Any], files: Mapping[str, Path], inputs: str, labels: str
) -> Iterator[tuple[str, list, list]]:
    """Yields each user's name, `x` and `y`, and removes them from `content`.

    Args:
        path: path of the file, for the messages.
        content: object from `read_json`.
        files: file of each user read so far.
        inputs, labels: nouns for `x` and `y`, for the messages.

    Raises:
        ValueError: the lists do not fit each other, or a user has no rows or has been read already.
    """
    users, counts, user_data = (content[key] for key in KEYS)
    if len(users) != len(counts):
        raise ValueError(
            f"{path}: num_samples must have one number for each of the {len(users)} users, got {len(counts)}."
        )
    for user, count in zip(map(str, users), counts, strict=True):
        check_new(path, user, files)
        rows = user_data.pop(user, None)  # frees the memory of one user before the bytes of the next
        if not isinstance(rows, dict) or not all(isinstance(rows.get(key), list) for key in ("x", "y")):
            raise ValueError(f"{path}: user_data must have lists x and y of user {user!r}, as users states.")
        if not len(rows["x"]) == len(rows["y"]) == count:
            raise ValueError(
                f"{path}: user {user!r} must have {_as_in_file(count)} rows, as num_samples states, got "
                f"{len(rows['x'])} {inputs} and {len(rows['y'])} {labels}."
            )
        if not rows["y"]:
            raise ValueError(
                f"{path}: user {user!r} must have rows, got none; remove such users with LEAF's option -k 1."
            )
        yield user, rows["x"], rows["y"]


def _image(where: str, image: Any, size: int) -> bytes:
    """Returns the pixels of one image as bytes, after checking their number and range."""
    if not isinstance(image, list) or len(image) != size:
        got = f"{len(image)}" if isinstance(image, list) else f"a {type(image).__name__}"
        raise ValueError(f"{where} must be a list of {size} pixels, got {got}; it is another data set under this name.")
    try:
        return b"".join(image)
    except TypeError:  # integers 0 and 1 in place of 0.0 and 1.0, or wrong values
        return b"".join(_pixel(where, value) for value in image)


def _pixel(where: str, value: Any) -> bytes:
    """Returns the byte of a pixel that may be written as an integer."""
    if isinstance(value, bytes):
        return value
    if type(value) is not int or value not in (0, 1):
        raise ValueError(
            f"{where} must have pixels n/255 from 0 to 1, got {value!r}; divide whole grey values by 255, or write "
            "other numbers to an npz file."
        )
    return bytes([255 * value])


def _as_in_file(value: Any) -> Any:
    """Returns a value as it is in the file: `read_json` converts floats from 0 to 1 to bytes."""
    return value[0] / 255 if isinstance(value, bytes) else value
