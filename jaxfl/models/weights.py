"""Files of models: safetensors, which any library can read and which hold no code.

A leaf is stored under its name as `jaxfl.tree.names` has it, `Dense_0/kernel`. Files with PyTorch's names, as those of
torchvision and timm, are read for networks whose layers are called so, see `torch_names`.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import numpy as np

from jaxfl import tree
from jaxfl.files import check_output, signature, user_path, write_bytes
from jaxfl.models import torch_names
from jaxfl.schema import did_you_mean
from jaxfl.typing import Params

COMMAND = "export"  # in what is written


def save_weights(path: str | os.PathLike, model: Params, about: Mapping[str, str] | None = None) -> None:
    """Writes a model, whole or not at all.

    Args:
        path: of the file.
        model: pytree of arrays.
        about: text that the file carries.

    Raises:
        ValueError: the file's folder is not there, or there is a file that was not written by this function.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_weights(f"{folder}/a.safetensors", {"Dense_0": {"bias": np.ones(2)}})
    ...     load_weights(f"{folder}/a.safetensors", {"Dense_0": {"bias": np.zeros(2)}})
    {'Dense_0': {'bias': array([1., 1.])}}
    """
    from safetensors.numpy import save

    path = user_path(path)
    check_output(path, "path", signature(COMMAND))
    # ascontiguousarray would give a scalar an axis
    arrays = [np.asarray(leaf, order="C") for leaf in jax.tree.leaves(model)]
    metadata = {"written": signature(COMMAND), **(about or {})}
    content = save(dict(zip(tree.names(model), arrays, strict=True)), metadata=metadata)
    write_bytes(path, content)


def load_weights(path: str | os.PathLike, like: Params) -> Params:
    """Returns the model of a file.

    Args:
        path: of the file.
        like: a model of the same network, or its shapes.

    Raises:
        ValueError: there is no such file, it is no safetensors, or names, shapes or types are others; the message names
            the first.
    """
    held, head = read_weights(path, like)
    for name, leaf in zip(tree.names(like), jax.tree.leaves(like), strict=True):
        if name in head:
            raise _shape_error(path, name, held[name], leaf)
    return jax.tree.unflatten(jax.tree.structure(like), [held[name] for name in tree.names(like)])


def read_weights(path: str | os.PathLike, like: Params) -> tuple[dict[str, np.ndarray], frozenset[str]]:
    """Returns the arrays of a file by name, and which of them are of a head for another number of classes.

    There may be such a head in a file of PyTorch's parameters alone; `path`, `like` and errors are those of
    `load_weights`.
    """
    from safetensors.numpy import load_file

    path = user_path(path)
    with _weights_errors(path):
        held = load_file(path)
    wanted = dict(zip(tree.names(like), jax.tree.leaves(like), strict=True))
    head: frozenset[str] = frozenset()
    if torch := torch_names.is_torch(held, wanted):
        held = torch_names.from_torch(held, wanted)
        head = torch_names.other_head(held, wanted)
    for name, leaf in wanted.items():
        if name not in held:
            theirs = torch_names.torch_name(name) if torch else name
            near = did_you_mean(theirs, held)
            raise ValueError(f"{path} must have the parameter {theirs} {_type_and_shape(leaf)}, and has none{near}")
        if name not in head and _type_and_shape(held[name]) != _type_and_shape(leaf):
            raise _shape_error(path, name, held[name], leaf)
    if more := sorted(set(held) - set(wanted)):
        raise ValueError(
            f"{path} has the parameter {more[0]}, and the network has none{did_you_mean(more[0], wanted)} Leave it out."
        )
    return held, head


def _shape_error(path: str | os.PathLike, name: str, array: np.ndarray, leaf: np.ndarray) -> ValueError:
    """Returns the error of a parameter of another shape or type."""
    wanted, got = _type_and_shape(leaf), _type_and_shape(array)
    return ValueError(f"{name} must be {wanted}, is {got} in {path}; take the network of that file.")


def check_weights(path: Path) -> None:
    """Raises ValueError unless there is a file of weights; no more of it is read than its names and shapes."""
    from safetensors import safe_open

    with _weights_errors(path), safe_open(path, "numpy"):
        pass


@contextlib.contextmanager
def _weights_errors(path: Path) -> Iterator[None]:
    """Raises ValueError in place of the errors of safetensors."""
    from safetensors import SafetensorError

    if not path.is_file():
        raise ValueError(
            f"path must be a file of weights, and there is no file {str(path)!r}; result.export writes one."
        )
    try:
        yield
    except (SafetensorError, KeyError, AttributeError, ValueError, TypeError) as error:  # of types and ranks of others
        raise ValueError(f"{path} must be safetensors of NumPy's types, got: {error}; save float32.") from error


def _type_and_shape(leaf: np.ndarray) -> str:
    """Returns type and shape of an array, as messages say them."""
    return f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"
