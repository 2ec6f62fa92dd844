"""A run's state on disk: one npz file, replaced atomically; no pickle.

The file holds the arrays of the state by their place in the tree, and a JSON header with what they belong to. It is
written beside the old one, flushed, and renamed over it: whenever a run is killed, the file there is a whole one.
"""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxfl.typing import Params

NAME = "checkpoint.npz"
_HEADER = "header"


def save(path: Path, state: Params, header: dict[str, Any]) -> None:
    """Writes a checkpoint.

    Args:
        path: the file.
        state: a pytree of arrays.
        header: what the state belongs to; ready for JSON.
    """
    arrays = {name: np.asarray(leaf) for name, leaf in _named(state).items()}
    arrays[_HEADER] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself
    finally:
        os.close(folder)


def read_header(path: Path) -> dict[str, Any]:
    """Returns a checkpoint's header.

    Raises:
        ValueError: the file is not a checkpoint.
    """
    try:
        with path.open("rb") as opened:  # np.load leaves a file that it cannot read open
            if not zipfile.is_zipfile(opened):
                raise ValueError("no zip file, or one cut short")
            opened.seek(0)
            with np.load(opened, allow_pickle=False) as file:
                return json.loads(bytes(file[_HEADER]).decode())
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
        raise ValueError(
            f"{path} is not a checkpoint of jaxfl ({error}); remove it or choose another directory."
        ) from error


def restore(path: Path, like: Params) -> Params:
    """Returns a checkpoint's state.

    Args:
        path: the file.
        like: a state (or its shapes) of the same method; leading axes may differ, since slots grow during a run.

    Raises:
        ValueError: the checkpoint holds other arrays.
    """
    wanted = _named(like)
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files if name != _HEADER}
    differing = sorted(set(wanted) ^ set(arrays)) or [
        name
        for name, leaf in wanted.items()
        if (arrays[name].dtype, arrays[name].shape[1:]) != (np.dtype(leaf.dtype), tuple(leaf.shape[1:]))
    ]
    if differing:
        raise ValueError(
            f"{path} holds the state of another method or model: {', '.join(differing[:3])} differ; "
            "resume with the configuration that wrote it, or choose another directory."
        )
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in wanted])


def _named(state: Params) -> dict[str, Any]:
    """Returns the leaves of a tree by their path, in the tree's order."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
