"""Kinds of a network's layers: by what their modules are, and where that is unknown by the shape of their kernels.

The shape alone misleads: the gates of a recurrent cell have kernels `[inputs, outputs]` as a dense layer has, and the
projections of an attention have three axes as a convolution of a sequence has.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
from flax import linen as nn

from jaxfl.models.adapters import nnx_classes, observed_modules
from jaxfl.models.vision import SelfAttention
from jaxfl.typing import Key, Params

LayerKind = Literal["dense", "convolution", "recurrent", "attention"]
# the kind of a module and of all modules in it, by classes of flax.linen and names of flax.nnx; the first that fits
KINDS: dict[LayerKind, tuple[tuple[type, ...], tuple[str, ...]]] = {
    "recurrent": ((nn.RNNCellBase,), ("RNNCellBase",)),
    "attention": ((nn.MultiHeadDotProductAttention, SelfAttention), ("MultiHeadAttention",)),
    "dense": ((nn.DenseGeneral, nn.Einsum), ("LinearGeneral", "Einsum")),  # with kernels of any number of axes
}


class KernelLayer(NamedTuple):
    """A layer with a kernel.

    Attributes:
        name: of the layer, as `jaxfl.tree.names` has it.
        kind: `"dense"` or `"convolution"`; of a part of a recurrent cell or of an attention, `"recurrent"` or
            `"attention"`.
    """

    name: str
    kind: LayerKind


def kernel_layers(init: Callable[[Key], Params]) -> list[KernelLayer]:
    """Returns the layers of a network that have a kernel, in the order in which the network makes them.

    A network that is given as two functions has no modules: of two axes a kernel is that of a dense layer, of more that
    of a convolution.

    Args:
        init: `key -> model`, nested dictionaries.

    >>> import jax.numpy as jnp
    >>> kernel_layers(lambda key: {"Conv_0": {"kernel": jnp.zeros((3, 3, 1, 8))}, "Dense_0": {"kernel": jnp.eye(8)}})
    [KernelLayer(name='Conv_0', kind='convolution'), KernelLayer(name='Dense_0', kind='dense')]
    """
    found: list[tuple[tuple[str, ...], int]] = []  # of each kernel the path of its layer, and its number of axes

    def walk(node: Params, path: tuple[str, ...]) -> None:
        for name, below in node.items() if isinstance(node, dict) else ():
            if name == "kernel":
                found.append((path, below.ndim))
            walk(below, (*path, name))

    def record_kernels(key: Key) -> Params:
        model = init(key)
        walk(model, ())  # inside `init` the keys are in the order of creation
        return model

    with observed_modules() as modules:
        jax.eval_shape(record_kernels, jax.random.key(0))

    def kind_of(path: tuple[str, ...], axes: int) -> LayerKind:
        around = [modules[path[:end]] for end in range(len(path) + 1) if path[:end] in modules]
        for kind, (classes, names) in KINDS.items():
            if any(issubclass(module, (*classes, *nnx_classes(*names))) for module in around):
                return kind
        return "dense" if axes == 2 else "convolution"

    # a model of one layer may be flat
    return [KernelLayer("/".join(path or ("kernel",)), kind_of(path, axes)) for path, axes in found]
