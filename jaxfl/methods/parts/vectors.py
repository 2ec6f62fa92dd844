"""What clients are compared by: some parameters of the model or update that they send, as one vector."""

from collections.abc import Sequence
from typing import Literal

import jax

from jaxfl import tree
from jaxfl.clustering import sketch
from jaxfl.random import Stream, key_for
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

Compared = Literal["weights", "updates"]  # a client's model, or its difference to the model that it started from
LAST_KERNEL = "last kernel"  # no pattern: parameters' names have no spaces


def to_vector(key: Key, model: Params, layers: str | Sequence[str] = ".*", size: int = 1024) -> Array:
    """Returns what a model is clustered by `[d]`: the layers' parameters, sketched to `size` if they are more."""
    vector = tree.ravel(tree.partition(model, tree.matching(model, layers))[0])
    return vector if vector.size <= size else sketch.sketch(key_for(key, Stream.SKETCH), vector, size)


def compared_leaves(task: Task, layers: str | Sequence[str]) -> Params:
    """Returns by which leaves of the task's model clients are compared: a bool for every leaf.

    Args:
        task: what is learned.
        layers: patterns (see `tree.matching`), or `LAST_KERNEL`.

    Raises:
        ValueError: the patterns match nothing, or the model has no last kernel.
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
    """Returns which leaves of the task's model the patterns name, see `tree.matching`; None names the last layer's.

    Args:
        task: what is learned.
        patterns: of parameters' names, or None.
        option: that gives them, for the message.

    Raises:
        ValueError: a pattern names nothing, or None a layer of a model that is not made of dictionaries.
    """
    if patterns is None:
        return last_layer(task, option)
    return tree.matching(jax.eval_shape(task.init, jax.random.key(0)), patterns)


def last_layer(task: Task, option: str = "personal") -> Params:
    """Returns which leaves of the task's model are those of the layer that was made last: a bool for every leaf.

    A layer is what holds arrays: of nested modules, the innermost one.

    Args:
        task: what is learned.
        option: that names layers otherwise, for the message.

    Raises:
        ValueError: the model is not made of dictionaries.
    """
    layer: list[str] = []

    def look(key: Key) -> Params:
        node = model = task.init(key)
        # in here the keys are in the order in which the model was made; transformations return them sorted
        while isinstance(node, dict) and node and isinstance(last := list(node)[-1], str):
            layer.append(last)
            node = node[last]
        return model

    model = jax.eval_shape(look, jax.random.key(0))
    if not layer:
        raise ValueError(
            f"{option} must be given for a model that is a {type(model).__name__} and not a dictionary of layers; "
            f"its parameters are {', '.join(tree.names(model))}."
        )
    prefix = "".join(f"{name}/" for name in layer[:-1])  # the last name is an array's
    if not prefix and any(isinstance(node, dict) for node in model.values()):
        prefix = layer[-1]  # beside layers, an array in none of them is one by itself
    flags = [name.startswith(prefix) for name in tree.names(model)]
    return jax.tree.unflatten(jax.tree.structure(model), flags)
