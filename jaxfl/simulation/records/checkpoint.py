"""A run's state on disk: an npz file and the one before it, replaced atomically and verified when read; no pickle.

A file holds the arrays of the state by their place in the tree, a JSON header with what they belong to, and the SHA-256
of both. Of rows at the end of an array that are equal, bit for bit, it holds one: slots that were never used have one
model, and take no room. It is written beside the others, flushed, and renamed: whenever a run is killed, a whole one is
there. Where the newest is damaged, the one before is used, and a warning says so.
"""

import contextlib
import hashlib
import json
import os
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl.data import bounded
from jaxfl.files import replacing
from jaxfl.typing import Params

NAME, BEFORE, DAMAGED = "checkpoint.npz", "checkpoint-before.npz", "checkpoint-damaged.npz"
SCHEMA, REPEATING = 1, 2  # of the files, without repeated rows and with them; one of another number is refused
_HEADER, _DIGEST, _KINDS, _ROWS = "header", "sha256", "kinds", "rows"
BLOCK = 1 << 20  # bytes that are compared at once
MOST_REPEATED = 64  # rows in all for each row that is held: a reader refuses a file that unpacks to far more


class Saved(NamedTuple):
    """Content of a checkpoint, as it was saved.

    Attributes:
        path: of the file.
        header: what the state belongs to.
        arrays: of the state, by their place in the tree.
    """

    path: Path
    header: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def state(self, like: Params, grow: Callable[[Any], Any] | None = None) -> Params:
        """Returns the state in host memory.

        Args:
            like: a state (or its shapes) of the same method.
            grow: of the method, which doubles the slots of a state: there may be more now than in `like`; or None.

        Raises:
            ValueError: the checkpoint holds other arrays.
        """
        wanted, arrays = _named(like), self.arrays
        if grow is not None and wanted.keys() == arrays.keys():
            wanted = self._grown(like, grow)

        def kind(leaf: Any) -> tuple[Any, ...]:
            return np.dtype(leaf.dtype), *leaf.shape

        differing = sorted(set(wanted) ^ set(arrays)) or [
            name for name, leaf in wanted.items() if kind(arrays[name]) != kind(leaf)
        ]
        if differing:
            raise ValueError(
                f"{self.path} holds the state of another method or model: {', '.join(differing[:3])} differ; "
                "resume with the configuration that wrote it, or choose another directory."
            )
        return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in wanted])

    def _grown(self, like: Params, grow: Callable[[Any], Any]) -> dict[str, Any]:
        """Returns the shapes of a state whose slots are doubled until none is longer than here, by their place."""
        shapes = jax.eval_shape(lambda: like)
        while True:
            larger = jax.eval_shape(grow, shapes)
            lengths = [(leaf.shape[:1], self.arrays[name].shape[:1]) for name, leaf in _named(larger).items()]
            if any(one > held for one, held in lengths) or jax.tree.leaves(larger) == jax.tree.leaves(shapes):
                return _named(shapes)
            shapes = larger


def save(folder: Path, state: Params, header: dict[str, Any]) -> None:
    """Writes a checkpoint; the newest so far becomes the one before.

    Args:
        folder: gets the files.
        state: a pytree of arrays.
        header: what the state belongs to; ready for JSON.

    Raises:
        OSError: it cannot be written; those that are there are as they were.
    """
    arrays = {name: np.asarray(leaf) for name, leaf in _named(state).items()}
    # NumPy's files do not know bfloat16 and the like: their bits are kept, and what they are of
    kinds = {name: array.dtype.name for name, array in arrays.items() if array.dtype.kind == "V"}
    arrays |= {name: arrays[name].view(f"u{arrays[name].dtype.itemsize}") for name in kinds}
    held = {name: count for name, array in arrays.items() if (count := _rows_to_hold(array)) is not None}
    rows = {name: len(arrays[name]) for name in held}
    arrays |= {name: arrays[name][:count] for name, count in held.items()}
    about = ({_KINDS: kinds} if kinds else {}) | ({_ROWS: rows} if rows else {})
    arrays[_HEADER] = _bytes(json.dumps({"schema": REPEATING if rows else SCHEMA} | header | about))
    path = folder / NAME
    with replacing(path) as file:
        np.savez(file, allow_pickle=False, **arrays, **{_DIGEST: _bytes(_digest(arrays))})
        file.flush()
        os.fsync(file.fileno())  # before the newest so far is moved
        if path.exists():
            os.replace(path, folder / BEFORE)


def newest(folder: Path) -> Saved | None:
    """Returns the newest checkpoint of a folder that is whole; None where there is none at all.

    Warns:
        UserWarning: the newest one cannot be used, and the one before is.

    Raises:
        ValueError: there are files, and none can be used.
    """
    refused: ValueError | None = None
    for path in (path for path in (folder / NAME, folder / BEFORE) if path.exists()):
        try:
            saved = load(path)
        except ValueError as error:
            refused = refused or error
            continue
        if refused is not None:
            what = f"{path}, the checkpoint before it (round {saved.header.get('round')}), is used"
            warnings.warn(f"{str(refused).partition(';')[0]}; {what}.", stacklevel=2)
        return saved
    if refused is not None:
        raise refused
    return None


def is_checkpoint(path: Path) -> bool:
    """Returns whether a file has the entries of a checkpoint, be they damaged or not."""
    try:
        with zipfile.ZipFile(path) as file:
            return {f"{name}.npy" for name in (_HEADER, _DIGEST)} <= set(file.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def set_aside(saved: Saved) -> None:
    """Renames a newest checkpoint that cannot be used: the next save would put it in place of the one before.

    Args:
        saved: what `newest` has found, of a run that goes on.
    """
    if saved.path.name == BEFORE:
        with contextlib.suppress(FileNotFoundError):  # it was lost, or another process was first
            os.replace(saved.path.with_name(NAME), saved.path.with_name(DAMAGED))


def load(path: Path) -> Saved:
    """Returns what one file holds.

    Raises:
        ValueError: it is no checkpoint, of another version of the format, or damaged.
        OSError: it cannot be opened.
    """
    try:
        arrays, _ = bounded.read_arrays(path)
        digest = bytes(arrays.pop(_DIGEST)).decode()
        if digest != _digest(arrays):
            raise ValueError("its SHA-256 is another than when it was written")
        header = bounded.parse_json(bytes(arrays.pop(_HEADER)))
        if header["schema"] not in (SCHEMA, REPEATING):
            raise ValueError(
                f"it has format {header['schema']}, and this version of jaxfl reads {SCHEMA} and {REPEATING}"
            )
        for name in (_ROWS, _KINDS):
            if not isinstance(header.get(name, {}), dict):
                raise ValueError(f"{name} of its header must be an object, got {header[name]!r}")
        arrays |= _with_repeated_rows(arrays, header.get(_ROWS, {}), path.stat().st_size)
        arrays |= {name: arrays[name].view(jnp.dtype(kind)) for name, kind in header.get(_KINDS, {}).items()}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is not a checkpoint of jaxfl, or a damaged one ({error}); remove it or choose another directory."
        ) from error
    return Saved(path, header, arrays)


def _rows_to_hold(array: np.ndarray) -> int | None:
    """Returns the number of the first rows of an array that are to be held, if the others equal the last of these.

    >>> _rows_to_hold(np.array([[1.0], [2.0], [0.0], [0.0], [0.0]])), _rows_to_hold(np.eye(2))
    (3, None)
    """
    if array.ndim < 2 or len(array) < 3 or not array[0].size:
        return None
    rows = np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)  # bits: NaN is equal, and -0 is not 0
    step, last = max(1, BLOCK // rows.shape[1]), len(rows) - 1
    begin = last
    while begin > 0:
        block = rows[max(0, begin - step) : begin]
        differs = np.flatnonzero((block != rows[last]).any(1))
        if len(differs):
            begin += int(differs[-1]) + 1 - len(block)
            break
        begin -= len(block)
    count = max(begin + 1, -(-len(rows) // MOST_REPEATED))
    return count if count < last else None


def _with_repeated_rows(arrays: dict[str, np.ndarray], rows: dict[str, int], size: int) -> dict[str, np.ndarray]:
    """Returns the arrays of which fewer rows are held, with the last of these repeated.

    Args:
        arrays: that are held.
        rows: the number of rows of each of these arrays.
        size: bytes of the file.

    Raises:
        ValueError: a number is none of rows, or they need too many bytes.
    """
    for name, count in rows.items():
        if not isinstance(count, int) or not arrays[name].ndim or not 0 < len(arrays[name]) <= count:
            raise ValueError(f"{name} must have at least the rows that are held, got {count!r}")
    needed = sum(array[:1].nbytes * rows[name] for name, array in arrays.items() if name in rows)
    bounded.check_unpacked_size(needed, size)
    return {
        name: np.concatenate([arrays[name], np.repeat(arrays[name][-1:], count - len(arrays[name]), 0)])
        for name, count in rows.items()
    }


def _digest(arrays: dict[str, np.ndarray]) -> str:
    """Returns the SHA-256 of arrays: names, types, shapes and values."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(f"{name} {array.dtype.str} {arrays[name].shape}\n".encode())
        found.update(array.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


def _named(state: Params) -> dict[str, Any]:
    """Returns the leaves of a tree by their path, in the tree's order."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
