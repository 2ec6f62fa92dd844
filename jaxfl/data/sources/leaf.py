"""The json of LEAF, a benchmark of federated data: who made which rows, read file by file.

A file is one object: `users`, the names; `num_samples`, the rows of each; `user_data`, by name, `x` and `y`: of images
one list of pixels from 0 to 1 and a class (FEMNIST), of texts some characters and the next one (Shakespeare, whose
`hierarchies` name the play of each user). Users that are in `user_data` alone (LEAF leaves them there, empty, when it
drops users of one row) are not read.

Reference: Caldas et al., "LEAF: a benchmark for federated settings", 2018.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxfl.data.sources.base import Folder, folders

SUBFOLDERS = ("data/all_data", "all_data", "data")  # where LEAF's preprocess.sh puts its files
KEYS = ("users", "num_samples", "user_data")
# A pixel is n/255 in the files, so 256 texts are the rule; a file of other numbers must not fill the memory.
MAX_TEXTS = 65_536


class LeafRows(NamedTuple):
    """Images and who made them.

    Attributes:
        inputs: uint8 `[P, H, W]`.
        labels: int32 `[P]`.
        clients: names `[P]`.
    """

    inputs: np.ndarray
    labels: np.ndarray
    clients: np.ndarray


def places(name: str, data_dir: Folder) -> list[Path]:
    """Returns the folders to look in for a source's files, the best first; of LEAF's, those that exist."""
    return [
        place
        for folder in folders(name, data_dir)
        for place in (folder, *(folder / inner for inner in SUBFOLDERS if (folder / inner).is_dir()))
    ]


def sorted_files(place: Path, pattern: str) -> list[Path]:
    """Returns the files of a pattern, shorter names first: all_data_2.json comes before all_data_10.json."""
    return sorted(place.glob(pattern), key=lambda path: (len(path.name), path.name))


class Collector:
    """Takes the rows of one client after the other, in one growing buffer: joining arrays would take the double.

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
        """Takes all rows of one client from the file `path`."""
        check_new(path, client, self.files)
        self.files[client] = path
        self._pixels += pixels
        self._labels.append(np.asarray(labels, np.int32))

    def rows(self) -> LeafRows:
        """Returns what has come. Nothing can be added after that."""
        inputs = np.frombuffer(self._pixels, np.uint8).reshape(-1, *self.shape)
        labels = np.concatenate([np.zeros(0, np.int32), *self._labels])
        return LeafRows(
            inputs, labels, np.repeat(np.array(list(self.files), str), [len(part) for part in self._labels])
        )


def read(paths: Iterable[Path], *, shape: tuple[int, ...] = (28, 28), num_classes: int = 62) -> LeafRows:
    """Reads LEAF's json files of images, one at a time.

    Args:
        paths: the files; a user is in one of them.
        shape: shape of an image, whose pixels are one flat list in the file.
        num_classes: L.

    Returns:
        The rows of all users in the order of the files; a pixel x is the byte `round(255 x)`.

    Raises:
        ValueError: a file is truncated or no json, lacks a key, or its users, counts, pixels or labels are wrong.

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
    """The pixel of each number's text: one shared byte, where a float would take 24 bytes of its own and more time."""

    def __missing__(self, text: str) -> bytes | float:
        value = float(text)
        pixel = bytes([round(255 * value)]) if 0 <= value <= 1 else value
        if len(self) < MAX_TEXTS:
            self[text] = pixel
        return pixel


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object that a file holds, each fraction from 0 to 1 as a pixel, after checking its three keys.

    Raises:
        ValueError: it is no such file.
    """
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text ({error}); it is another file under this name.") from error
    try:
        content = json.loads(text, parse_float=_Pixels().__getitem__)
    except json.JSONDecodeError as error:
        if text.rstrip().endswith("}"):
            raise ValueError(f"{path} is no valid json ({error}); make it again.") from error
        raise ValueError(
            f"{path} is truncated: it ends before its closing brace ({error}); make or copy it again."
        ) from error
    found = sorted(content) if isinstance(content, dict) else f"a {type(content).__name__}"
    if not isinstance(content, dict) or any(key not in content for key in KEYS):
        lacking = next(key for key in KEYS if not isinstance(content, dict) or key not in content)
        raise ValueError(f"{path} must be LEAF's json with the keys {', '.join(KEYS)}: {lacking} is not in {found}.")
    for key, kind in zip(KEYS, (list, list, dict), strict=True):
        if not isinstance(content[key], kind):
            raise ValueError(f"{path}: {key} must be a json {kind.__name__}, got a {type(content[key]).__name__}.")
    return content


def _add_file(collector: Collector, path: Path, num_classes: int) -> None:
    """Reads one file."""
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
    """Raises if a user has come already.

    Args:
        path: path of the file that has the user now.
        user: the name.
        files: file of each user read so far.
    """
    if user in files:
        raise ValueError(
            f"{path} holds the same user twice, or one that {files[user].name} holds too: {user!r}; the files come "
            "from more than one run of LEAF, empty the folder and make them again."
        )


def pop_users(
    path: Path, content: dict[str, Any], files: Mapping[str, Path], inputs: str, labels: str
) -> Iterator[tuple[str, list, list]]:
    """Yields each user's name, `x` and `y`, as many as the file says; they are taken out of `content`.

    Args:
        path: path of the file, for the messages.
        content: from `read_json`.
        files: file of each user read so far.
        inputs, labels: what `x` and `y` are.

    Raises:
        ValueError: the lists do not fit each other, or a user has no rows or has come already.
    """
    users, counts, user_data = (content[key] for key in KEYS)
    if len(users) != len(counts):
        raise ValueError(
            f"{path}: num_samples must have one number for each of the {len(users)} users, got {len(counts)}."
        )
    for user, count in zip(map(str, users), counts, strict=True):
        check_new(path, user, files)
        rows = user_data.pop(user, None)  # so that the memory of one user goes before the next one's bytes come
        if not isinstance(rows, dict) or not all(isinstance(rows.get(key), list) for key in ("x", "y")):
            raise ValueError(f"{path} lists user {user!r}, and user_data has no lists x and y of that user.")
        if not len(rows["x"]) == len(rows["y"]) == count:
            raise ValueError(
                f"{path}: user {user!r} must have {_as_in_file(count)} rows, as num_samples says, got {len(rows['x'])} "
                f"{inputs} and {len(rows['y'])} {labels}."
            )
        if not rows["y"]:
            raise ValueError(f"{path} lists user {user!r} without rows; remove such users with LEAF's option -k 1.")
        yield user, rows["x"], rows["y"]


def _image(where: str, image: Any, size: int) -> bytes:
    """Returns the pixels of one image, after checking their number and range."""
    if not isinstance(image, list) or len(image) != size:
        got = f"{len(image)}" if isinstance(image, list) else f"a {type(image).__name__}"
        raise ValueError(f"{where} must be a list of {size} pixels, got {got}; it is another data set under this name.")
    try:
        return b"".join(image)
    except TypeError:  # written as 0 and 1, not as 0.0 and 1.0; or wrong
        return b"".join(_pixel(where, value) for value in image)


def _pixel(where: str, value: Any) -> bytes:
    """Returns the byte of a pixel that may have been written as an integer."""
    if isinstance(value, bytes):
        return value
    if type(value) is not int or value not in (0, 1):
        raise ValueError(f"{where} must have pixels from 0 to 1, got {value!r}; divide grey values by 255.")
    return bytes([255 * value])


def _as_in_file(value: Any) -> Any:
    """Returns a value as the file has it: `read_json` has taken fractions for pixels."""
    return value[0] / 255 if isinstance(value, bytes) else value
