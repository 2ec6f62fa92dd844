"""Comparisons of trees whose failures name the broken law, the leaf, and the size of the difference."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxfl import tree
from jaxfl.typing import Params

# Bounds of the rounding error of summing at most eight float32 clients in another order (6e-8 each), after two rounds
# of a few steps.
RELATIVE, ABSOLUTE = 1e-4, 1e-5


def leaves(values: Any) -> dict[str, np.ndarray]:
    """Returns the leaves of a tree by name, see `jaxfl.tree.names`."""
    return dict(zip(tree.names(values), map(np.asarray, jax.tree.leaves(values)), strict=True))


def leaves_without_cluster(state: Any) -> dict[str, np.ndarray]:
    """Returns the leaves of a state other than `cluster`."""
    return {path: leaf for path, leaf in leaves(state).items() if path != "cluster"}


def _assert_leaves(left: Any, right: Any, law: str, same: Callable[[np.ndarray, np.ndarray], bool]) -> None:
    for (path, a), b in zip(leaves(left).items(), leaves(right).values(), strict=True):
        assert a.shape == b.shape, f"{law}: {path or 'it'} has the shapes {a.shape} and {b.shape}"
        assert same(a, b), f"{law}: {path or 'it'} differs, by up to {_largest_difference(a, b)}"


def _largest_difference(a: np.ndarray, b: np.ndarray) -> str:
    return f"{np.abs(a.astype(float) - b.astype(float)).max(initial=0):.3g}"


def assert_equal(left: Any, right: Any, law: str) -> None:
    """Asserts that every leaf is equal bit for bit."""
    _assert_leaves(left, right, law, lambda a, b: a.tobytes() == b.tobytes())


def assert_close(left: Any, right: Any, law: str) -> None:
    """Asserts that integers and booleans are equal, and that floats agree to rounding."""
    _assert_leaves(
        left,
        right,
        law,
        lambda a, b: np.allclose(a, b, rtol=RELATIVE, atol=ABSOLUTE) if a.dtype.kind == "f" else (a == b).all(),
    )


def assert_same_partition(found: Any, wanted: Any, law: str) -> None:
    """Asserts that two labellings `[N]` are the same partition, up to a renaming of the labels."""
    found, wanted = (np.unique(np.asarray(labels), return_inverse=True)[1] for labels in (found, wanted))
    pairs = len(set(zip(found.tolist(), wanted.tolist(), strict=True)))
    same = pairs == len(set(found.tolist())) == len(set(wanted.tolist()))
    assert same, f"{law}: clusters {found.tolist()} are not {wanted.tolist()} up to their names"


def assert_finite(models: Params, law: str) -> None:
    """Asserts that every number of the models is finite."""
    for path, leaf in leaves(models).items():
        assert np.isfinite(leaf).all(), f"{law}: {path or 'it'} is not"
