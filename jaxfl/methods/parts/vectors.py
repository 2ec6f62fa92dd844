"""Vectors that clients are compared by: chosen parameters of their models or updates, sketched if they are long."""

from collections.abc import Sequence
from typing import Literal

import jax

from jaxfl import tree
from jaxfl.clustering import sketch
from jaxfl.random import Stream, key_for
from jaxfl.tasks import Task
from jaxfl.tasks.contract import layer_leaves
from jaxfl.typing import Array, Key, Params

Compared = Literal["weights", "updates"]  # a client's model, or its difference to the model that it started from
LAST_KERNEL = "last kernel"  # no pattern: parameters' names have no spaces


def to_vector(key: Key, model: Params, layers: str | Sequence[str] = ".*", size: int = 1024) -> Array:
    """Returns the vector `[d]` of a model's chosen layers, sketched to `size` numbers if it is longer."""
    vector = tree.ravel(tree.partition(model, tree.matching(model, layers))[0])
    return vector if vector.size <= size else sketch.sketch(key_for(key, Stream.SKETCH), vector, size)


def compared_leaves(task: Task, layers: str | Sequence[str]) -> Params:
    """Returns a bool for every leaf of the task's model: whether clients are compared by it.

    Args:
        task: what is learned.
        layers: patterns (see `tree.matching`), or `LAST_KERNEL`.

    Raises:
        ValueError: the patterns match no parameter, or the last layer of the model has no kernel.
    """
    model = jax.eval_shape(task.init, jax.random.key(0))
    if layers != LAST_KERNEL:
        return tree.matching(model, layers)
    kernels = jax.tree.map(lambda last, leaf: last and len(leaf.shape) > 1, last_layer(task, "layers"), model)
    if not any(jax.tree.leaves(kernels)):
        raise ValueError(
            f'layers must be patterns for a model whose last layer has no kernel, got "{LAST_KERNEL}"; its parameters '
            f"are {', '.join(tree.names(model))}."
        )
    return kernels


def chosen_leaves(task: Task, patterns: str | Sequence[str] | None, option: str = "personal") -> Params:
    """Returns a bool for every leaf of the task's model: whether a pattern matches its name, see `tree.matching`.

    Args:
        task: what is learned.
        patterns: of parameters' names; None chooses the last layer.
        option: the option that gives the patterns, for the message.

    Raises:
        ValueError: a pattern matches no parameter, or `patterns` is None and the model is not made of dictionaries.
    """
    if patterns is None:
        return last_layer(task, option)
    return tree.matching(jax.eval_shape(task.init, jax.random.key(0)), patterns)


def last_layer(task: Task, option: str = "personal") -> Params:
    """Returns a bool for every leaf of the task's model: whether it is of the head, the layer that it creates last.

    A layer is a module that holds arrays: of nested modules, the innermost one. A task may name another head, see
    `jaxfl.tasks.with_head`.

    Args:
        task: what is learned.
        option: the option that names layers otherwise, for the message.

    Raises:
        ValueError: the model is not made of dictionaries.
    """
    if task.head is not None:
        return layer_leaves(jax.eval_shape(task.init, jax.random.key(0)), task.head)
    layer: list[str] = []

    def record_path(key: Key) -> Params:
        node = model = task.init(key)
        # inside `init` the keys are in the order of creation; transformations return them sorted
        while isinstance(node, dict) and node and isinstance(last := list(node)[-1], str):
            layer.append(last)
            node = node[last]
        return model

    model = jax.eval_shape(record_path, jax.random.key(0))
    if not layer:
        raise ValueError(
            f"{option} must be given for a model that is a {type(model).__name__} and not a dictionary of layers; "
            f"its parameters are {', '.join(tree.names(model))}."
        )
    prefix = "".join(f"{name}/" for name in layer[:-1])  # the last name is an array's
    if not prefix and any(isinstance(node, dict) for node in model.values()):
        prefix = layer[-1]  # an array beside the layers is a layer by itself
    flags = [name.startswith(prefix) for name in tree.names(model)]
    return jax.tree.unflatten(jax.tree.structure(model), flags)
