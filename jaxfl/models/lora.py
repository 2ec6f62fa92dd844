"""Adapters of low rank: small factors that clients train, send and are compared by, on top of a frozen network.

Hu et al., "LoRA: low-rank adaptation of large language models", 2022. A kernel W [d, h] of the base becomes

    W + (alpha / rank) down @ up,    down [d, rank] drawn at random, up [rank, h] from zeros

A kernel whose smaller side is below the rank has adapters of that side's rank: no matrix has a higher one.
A kernel of more axes, such as one of attention or of a convolution, is taken as the matrix that is nearest to a square.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jaxfl import tree
from jaxfl.models.adapters import Functions, Network, NetworkInputs, functions_of
from jaxfl.schema import checked
from jaxfl.typing import Array, Key, Params


class Lora(NamedTuple):
    """A network of which adapters alone are trained; made by `lora`, taken wherever a network is.

    Attributes:
        module: the network.
        base: its parameters, which stay as they are.
        rank: of the adapters.
        alpha: their weight times the rank.
        layers: patterns of the kernels that have adapters.
    """

    module: Network
    base: Params
    rank: int
    alpha: float
    layers: str | tuple[str, ...]

    def functions(self, example: NetworkInputs) -> Functions:
        """Returns the two functions of the network, whose model are the adapters.

        Args:
            example: one row `[1, ...]`.

        Raises:
            ValueError: the base is of another network, or of one with running averages, or no chosen kernel can have
                the rank.
        """
        network = functions_of(self.module, example)
        if network.running is not None:
            raise ValueError(
                "module must have no running averages, which adapters do not bring up to date; use group or layer "
                "normalisation."
            )
        shapes = jax.eval_shape(network.init, jax.random.key(0))
        wanted, got = (
            {*zip(tree.names(one), map(np.shape, jax.tree.leaves(one)), strict=True)} for one in (shapes, self.base)
        )
        if wanted != got:
            name, shape = min(wanted ^ got)
            raise ValueError(
                f"base must be parameters of the module, but only one of them has {name} of shape {shape}."
            )
        init = functools.partial(self._init, order=tree.creation_order(lambda: network.init(jax.random.key(0))))
        adapters = jax.eval_shape(init, jax.random.key(0))
        name, most = max(((name, one["up"].shape[0]) for name, one in adapters.items()), key=lambda one: one[1])
        if self.rank > most:
            raise ValueError(
                f"rank must be at most {most}, the highest that a chosen kernel can have ({name}), got {self.rank}; "
                "lower it."
            )
        return Functions(init, lambda model, batch, key: network.apply(self.merged(model), batch, key))

    def merged(self, adapters: Params) -> Params:
        """Returns the parameters of the whole network under these adapters.

        Args:
            adapters: of one client or cluster, as `client_params` of a method returns them.
        """
        scale, dtype = self.alpha / self.rank, jax.tree.leaves(adapters)[0].dtype

        def add(name: str, leaf: Any) -> Any:
            own, leaf = adapters.get(name), jnp.asarray(leaf, dtype)  # bfloat16 where the network computes in that
            return leaf if own is None else leaf + (scale * (own["down"] @ own["up"])).reshape(leaf.shape)

        leaves = [add(*one) for one in zip(tree.names(self.base), jax.tree.leaves(self.base), strict=True)]
        return jax.tree.unflatten(jax.tree.structure(self.base), leaves)

    def _init(self, key: Key, order: Any = None) -> Params:
        """Returns new adapters, by the names of their kernels, in the order in which the network makes these."""
        found: dict[str, dict[str, Array]] = {}
        chosen = jax.tree.leaves(tree.matching(self.base, self.layers))
        for name, leaf, yes in zip(tree.names(self.base), jax.tree.leaves(self.base), chosen, strict=True):
            if yes and np.ndim(leaf) > 1:
                rows, columns = _matrix_sides(np.shape(leaf))
                key, own = jax.random.split(key)
                rank = min(self.rank, rows, columns)
                down = jax.random.normal(own, (rows, rank), leaf.dtype) / math.sqrt(rows)
                found[name] = {"down": down, "up": jnp.zeros((rank, columns), leaf.dtype)}
        places = jax.tree.unflatten(jax.tree.structure(self.base), tree.names(self.base))
        return {name: found[name] for name in _leaves(tree.with_key_order(places, order)) if name in found}


def _leaves(node: Any) -> list[Any]:
    """Returns the leaves of nested dictionaries, in their order."""
    return (
        [leaf for one in node.values() for leaf in _leaves(one)] if isinstance(node, Mapping) else jax.tree.leaves(node)
    )


@checked
def lora(
    module: Network,
    base: Params,
    *,
    rank: int = 4,
    alpha: float | None = None,
    layers: str | tuple[str, ...] = ".*",
) -> Lora:
    """Returns a network of which adapters alone are trained.

    A method's models are the adapters: they are what clients send (the base is sent once, and counted nowhere), what
    clusters are made of, and what is kept. Leaves are called by their kernel: `Dense_0/kernel/up`.

    Args:
        module: the network, see `jaxfl.classification`.
        base: its parameters, such as `module.init(key, inputs)["params"]`, or read from a file.
        rank: of the adapters; at most the smaller side of some kernel that gets adapters.
        alpha: the adapters count `alpha / rank` times; None is `rank`, once.
        layers: regular expressions of the names of layers or kernels that get adapters, see `jaxfl.tree.matching`;
            vectors, such as biases, never do.

    Raises:
        ValueError: the rank is below 1, `alpha` is not above 0 or infinite, the base is no tree of floats, or the
            patterns name no kernel; when the task is made, the rank is beyond all kernels.
        TypeError: an option is of another type.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> module = jaxfl.models.MLP(hidden=(16,), num_classes=10)
    >>> base = module.init(jax.random.key(0), jnp.zeros((1, 8, 8)))["params"]
    >>> task = jaxfl.classification(lora(module, base, rank=2), data)
    >>> [(name, leaf.shape) for name, leaf in task.init(jax.random.key(1))["Dense_0/kernel"].items()]
    [('down', (64, 2)), ('up', (2, 16))]
    """
    if rank < 1:
        raise ValueError(f"rank must be at least 1, got {rank}; 4 is usual.")
    if alpha is not None and not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(f"alpha must be above 0 and finite, got {alpha}; None counts the adapters once.")
    if isinstance(base, Mapping) and isinstance(base.get("params"), Mapping) and isinstance(module, nn.Module):
        raise ValueError(f'base must be the parameters alone, got the variables {sorted(base)}; give base["params"].')
    tree.check_floats("base", base)
    base = _with_text_names(base)
    made = Lora(module, base, rank, float(rank if alpha is None else alpha), layers)
    if not jax.eval_shape(made._init, jax.random.key(0)):
        raise ValueError(
            f"layers must name a kernel, an array of two or more axes, got {layers!r}, which names vectors alone."
        )
    return made


def _with_text_names(node: Any) -> Any:
    """Returns nested dictionaries with text as names: flax.nnx counts the layers of a list."""
    return {str(name): _with_text_names(below) for name, below in node.items()} if isinstance(node, Mapping) else node


def _matrix_sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns rows and columns of the matrix that is nearest to a square.

    >>> _matrix_sides((64, 4, 16)), _matrix_sides((3, 3, 8, 16))
    ((64, 64), (72, 16))
    """
    cuts = [(math.prod(shape[:cut]), math.prod(shape[cut:])) for cut in range(1, len(shape))]
    return min(cuts, key=sum)
