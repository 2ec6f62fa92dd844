"""Where a task's models start: at those of a file instead of at random."""

import os

import jax
import jax.numpy as jnp

from jaxfl import tree
from jaxfl.models.weights import load_weights
from jaxfl.tasks.contract import Task
from jaxfl.typing import Key, Params


def start_from(task: Task, path: str | os.PathLike) -> Task:
    """Returns the task whose models all start as the one in a file, whatever the seed.

    A method that draws several models gets the same one several times: what finds its clusters by their different
    starts (IFCA) cannot tell them apart then.

    Args:
        task: what is learned.
        path: of a safetensors file with the leaves of a model by name, see `jaxfl.models.load_weights`.

    Raises:
        ValueError: as `jaxfl.models.load_weights`.
    """
    model = load_weights(path, jax.eval_shape(task.init, jax.random.key(0)))
    order = tree.made_order(lambda: task.init(jax.random.key(0)))

    def init(key: Key) -> Params:
        del key
        # XLA would fold it, for minutes
        return tree.in_order(jax.lax.optimization_barrier(jax.tree.map(jnp.asarray, model)), order)

    return task._replace(init=init)
