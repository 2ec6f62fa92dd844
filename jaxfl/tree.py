"""Arithmetic on pytrees of parameters, in addition to `jax.tree` and `optax.tree`."""

import abc
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl.typing import AnyArray, Array, Params


class Rows(abc.ABC):
    """A stacked tree `[N, ...]` whose rows are stored elsewhere; the functions `take` and `put` read and write them."""

    @abc.abstractmethod
    def take(self, index: AnyArray) -> Params:
        """Returns the rows `[C, ...]` of `index [C]`."""

    def put(self, index: Array, rows: Params) -> "Rows":
        """Returns the tree with `rows` written at `index`; rows in host memory can only be read."""
        raise TypeError(f"{type(self).__name__} cannot be written to inside a round.")

    def parts(self) -> tuple[Any, ...]:
        """Returns the children of the tree, each with its rows; None stays None."""
        raise TypeError(f"{type(self).__name__} cannot be divided.")

    def joined(self, children: Params) -> "Rows":
        """Returns the tree of children that are stored as this one is, see `joined_rows`."""
        raise TypeError(f"{type(self).__name__} cannot be joined.")


def joined_rows(children: Params) -> Params:
    """Returns a tree of stacked trees; where some are `Rows`, which are then all stored in one way, as `Rows`."""
    rows = [node for node in jax.tree.leaves(children, is_leaf=_is_rows) if _is_rows(node)]
    return rows[0].joined(children) if rows else children


def _is_rows(node: Any) -> bool:
    return isinstance(node, Rows)


def with_field(state: Any, field: str, value: Any) -> Any:
    """Returns a state (a named tuple or a dataclass) with a field replaced."""
    return state._replace(**{field: value}) if hasattr(state, "_replace") else state.replace(**{field: value})


def take(models: Params, index: AnyArray | int) -> Params:
    """Returns rows of a stacked tree: one model for a scalar index, models `[C, ...]` for `index [C]`.

    >>> take({"w": jnp.arange(6.0).reshape(3, 2)}, 1)["w"].tolist()
    [2.0, 3.0]
    """

    def rows(leaf: Any) -> Any:
        return leaf.take(jnp.asarray(index)) if isinstance(leaf, Rows) else leaf[index]

    return jax.tree.map(rows, models, is_leaf=_is_rows)


def put(models: Params, index: Array | int, rows: Params) -> Params:
    """Returns the stacked tree with `rows` written at `index`; an index out of range writes nothing.

    >>> put({"w": jnp.zeros((3, 1))}, 2, {"w": jnp.ones(1)})["w"].ravel().tolist()
    [0.0, 0.0, 1.0]
    """

    def write(leaf: Any, row: Params) -> Any:
        return leaf.put(jnp.asarray(index), row) if isinstance(leaf, Rows) else leaf.at[index].set(row, mode="drop")

    return jax.tree.map(write, models, rows, is_leaf=_is_rows)


def placed(arrays: Params, place: Any) -> Params:
    """Returns a tree of arrays on a device or a sharding; of several processes, each fills its own devices.

    Args:
        arrays: equal in every process. Arrays that are there already, and `Rows`, are not copied.
        place: a device, a sharding, or None, as in `jax.device_put`.
    """

    def put(leaf: Any) -> Any:
        if isinstance(leaf, Rows):
            return leaf
        there = isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
        if there or not isinstance(place, jax.sharding.Sharding) or place.is_fully_addressable:
            return jax.device_put(leaf, place)
        # `device_put` would compare the arrays of all processes, and send all data from each to each
        return jax.make_array_from_process_local_data(place, np.asarray(leaf), np.shape(leaf))

    return jax.tree.map(put, arrays)


def shapes_on(mesh: jax.sharding.Mesh | None, arrays: Params) -> Params:
    """Returns the shapes of arrays that every device of a mesh has; None is one device."""
    place = None if mesh is None else jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), arrays)


def repeat(model: Params, count: int) -> Params:
    """Returns `count` copies of a model, stacked `[count, ...]`."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (count, *leaf.shape)), model)


def where(mask: Array, left: Params, right: Params) -> Params:
    """Returns rows of `left` where `mask` is True, and rows of `right` elsewhere.

    Args:
        mask: bool, with the leading axes of every leaf: `[]` selects whole trees, `[K]` rows of stacked ones.
        left: tree of arrays `[*mask.shape, ...]`.
        right: tree of the same shapes.

    >>> where(jnp.array([True, False]), {"w": jnp.ones((2, 1))}, {"w": jnp.zeros((2, 1))})["w"].ravel().tolist()
    [1.0, 0.0]
    """
    return jax.tree.map(lambda a, b: jnp.where(along(mask, a), a, b), left, right)


def where_needed(needed: Array, compute: Callable[[], Params]) -> Params:
    """Returns the arrays that `compute()` returns, or zeros where they are not needed `[]` and not computed.

    Under `jax.vmap` both are computed. The function is traced once, for the shapes too.

    >>> where_needed(jnp.array(False), lambda: {"w": jnp.ones(2)})["w"].tolist()
    [0.0, 0.0]
    """
    once = jax.jit(compute, inline=True)
    shapes = jax.eval_shape(once)
    return jax.lax.cond(needed, once, lambda: jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), shapes))


def along(vector: Array, leaf: Array) -> Array:
    """Returns `vector [K]` reshaped to `[K, 1, ..., 1]` so that it broadcasts along the leading axes of `leaf`."""
    return vector.reshape(vector.shape + (1,) * (leaf.ndim - vector.ndim))


def ravel(model: Params) -> Array:
    """Returns all parameters as one vector `[d]`, leaves in the order of `jax.tree.leaves`."""
    leaves = [leaf.ravel() for leaf in jax.tree.leaves(model)]
    if jax.default_backend() != "cpu" or len(leaves) == 1:
        return jnp.concatenate(leaves)
    # For a gradient of the 784-2048-10 network, XLA's concatenation takes 40 ms on two cores, the gradient itself 5 ms.
    # Without the barrier XLA makes the first update a `pad`, which is as slow.
    zeros = jnp.zeros(sum(leaf.size for leaf in leaves), jnp.result_type(*leaves))
    vector, place = jax.lax.optimization_barrier(zeros), 0
    for leaf in leaves:
        vector = jax.lax.dynamic_update_slice(vector, jnp.asarray(leaf, vector.dtype), (place,))
        place += leaf.size
    return vector


def norm(model: Params) -> Array:
    """Returns the Euclidean norm `[]` of all parameters; squares of tiny or huge numbers do not underflow or overflow.

    >>> bool(norm({"w": jnp.array([3e30]), "b": jnp.array([4e30])}) < 6e30)
    True
    """
    leaves = jax.tree.leaves(model)
    largest = jnp.stack([jnp.abs(leaf).max() for leaf in leaves]).max()
    scale = jnp.where(largest > 0, largest, 1)
    return scale * jnp.sqrt(jnp.stack([jnp.square(leaf / scale).sum() for leaf in leaves]).sum())


def is_finite(model: Params) -> Array:
    """Returns whether the squared norm of a model is a finite float32 number, bool `[]`.

    It is not if a parameter is NaN or infinite, or above 1.8e19: distances and norms overflow then, and one such model
    would determine a mean alone.

    >>> [bool(is_finite({"w": jnp.array([number, 1.0])})) for number in (1e18, 1e30, jnp.nan)]
    [True, False, False]
    """
    squares = [jnp.square(leaf.astype(jnp.float32)).sum() for leaf in jax.tree.leaves(model)]
    return jnp.isfinite(sum(squares, jnp.zeros((), jnp.float32)))


def check_floats(what: str, model: Params) -> None:
    """Raises ValueError unless a model has parameters, and all are floats of 32 bits or more.

    Args:
        what: name of the owner of the parameters, for the message.
        model: pytree of arrays or shapes.

    >>> check_floats("module", {"kernel": np.ones(2), "steps": np.int32(0)})
    Traceback (most recent call last):
    ValueError: module must have parameters that are floats, got int32 for steps; keep constants out of the model.
    """
    if not jax.tree.leaves(model):
        raise ValueError(f"{what} must have parameters, got none: nothing could be trained.")
    for name, leaf in zip(names(model), jax.tree.leaves(model), strict=True):
        dtype = getattr(leaf, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            got = type(leaf).__name__ if dtype is None else dtype
            raise ValueError(
                f"{what} must have parameters that are floats, got {got} for {name or 'all of them'}; keep constants "
                "out of the model."
            )
        if jnp.dtype(dtype).itemsize < 4:
            raise ValueError(
                f"{what} must have parameters of float32 or float64, got {dtype} for {name or 'all of them'}: a server "
                "sums many models, with too large rounding errors in this type; leave param_dtype out or cast them and "
                'let clients compute in bfloat16 (compute="bfloat16").'
            )


def has_keys(tree: Params) -> bool:
    """Returns whether a leaf of the tree is a typed random key of JAX."""
    kinds = [getattr(leaf, "dtype", np.dtype(bool)) for leaf in jax.tree.leaves(tree)]
    return any(jnp.issubdtype(kind, jax.dtypes.prng_key) for kind in kinds)


def num_bytes(tree: Params) -> int:
    """Returns the bytes that the arrays (or shapes) of a tree take.

    >>> num_bytes({"w": jax.ShapeDtypeStruct((10, 2), jnp.float32)})
    80
    """
    return sum(leaf.size * jnp.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))


def shapes(tree: Params) -> list[tuple[tuple[int, ...], str]]:
    """Returns the shape and dtype of every leaf, to compare two trees by."""
    return [(tuple(leaf.shape), str(leaf.dtype)) for leaf in jax.tree.leaves(tree)]


def names(model: Params) -> list[str]:
    """Returns the name of every leaf, its keys joined by slashes, in the order of `jax.tree.leaves`.

    >>> names({"Dense_0": {"kernel": 0.0, "bias": 0.0}})
    ['Dense_0/bias', 'Dense_0/kernel']
    """
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(model)]
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path in paths]


def creation_order(make: Callable[[], Params]) -> Any:
    """Returns the keys of the nested dictionaries that `make` returns, in the order of their creation.

    A transformation such as `jax.jit`, and unflattening, sort the keys, which would change the last layer of a model.

    >>> creation_order(lambda: {"stem": {"kernel": jnp.zeros(2)}, "head": jnp.zeros(3)})
    {'stem': {'kernel': None}, 'head': None}
    """
    orders: list[Any] = []

    def keys(node: Any) -> Any:
        return {name: keys(child) for name, child in node.items()} if isinstance(node, dict) else None

    def record() -> Params:
        model = make()
        orders.append(keys(model))
        return model

    jax.eval_shape(record)
    return orders[0]


def with_key_order(model: Params, order: Any) -> Params:
    """Returns the model with its keys in an order from `creation_order`."""
    return (
        {name: with_key_order(model[name], child) for name, child in order.items()}
        if isinstance(order, dict)
        else model
    )


def matching(model: Params, patterns: str | Sequence[str]) -> Params:
    """Returns a tree like the model with a bool for every leaf: whether a pattern matches its name.

    Args:
        model: pytree of arrays or shapes.
        patterns: regular expressions; each must match one or several whole keys of a leaf's name, joined by slashes:
            `"Dense_1"` matches a layer (and not `Dense_10`), `"Dense_.*"` all dense layers, `"bias"` a leaf of every
            layer, `"Dense_1/bias"` one leaf, `".*"` everything; an empty list matches nothing.

    Raises:
        ValueError: a pattern is not a regular expression or matches no leaf.
        TypeError: a pattern is not text.

    >>> matching({"Dense_0": {"kernel": 0.0, "bias": 0.0}, "Dense_1": {"kernel": 0.0, "bias": 0.0}}, "Dense_1")
    {'Dense_0': {'bias': False, 'kernel': False}, 'Dense_1': {'bias': True, 'kernel': True}}
    """
    known = names(model)
    chosen: set[str] = set()
    listed = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(listed, Sequence) or not all(isinstance(pattern, str) for pattern in listed):
        raise TypeError(f'patterns must be text or a list of texts, got {patterns!r}; "Dense_0" matches a layer.')
    for pattern in listed:
        try:
            whole_keys = re.compile(f"(^|/)(?:{pattern})(/|$)")
        except re.error as problem:
            raise ValueError(f"a pattern must be a regular expression, got {pattern!r}: {problem}.") from problem
        matches = {name for name in known if whole_keys.search(name)}
        if not matches:
            raise ValueError(
                f"a pattern must match some parameters, {pattern!r} matches none of {', '.join(known)}; name a layer "
                'or a parameter, or take ".*" for all.'
            )
        chosen |= matches
    return jax.tree.unflatten(jax.tree.structure(model), [name in chosen for name in known])


def partition(model: Params, chosen: Params) -> tuple[Params, Params]:
    """Returns two trees: the leaves where `chosen` is True, and the others; None replaces a missing leaf.

    Args:
        model: pytree of one model or of stacked models.
        chosen: bool for every leaf, see `matching`.

    >>> partition({"a": 1, "b": 2}, {"a": True, "b": False})
    ({'a': 1, 'b': None}, {'a': None, 'b': 2})
    """
    inside = jax.tree.map(lambda yes, leaf: leaf if yes else None, chosen, model)
    outside = jax.tree.map(lambda yes, leaf: None if yes else leaf, chosen, model)
    return inside, outside


def combine(inside: Params, outside: Params) -> Params:
    """Returns the tree that `partition` has split into two.

    >>> combine({"a": 1, "b": None}, {"a": None, "b": 2})
    {'a': 1, 'b': 2}
    """
    return jax.tree.map(lambda a, b: b if a is None else a, inside, outside, is_leaf=lambda leaf: leaf is None)
