"""PyTorch's default initialisation for any network."""

import math
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from jaxfl.models.adapters import Functions, Network, NetworkInputs, functions_of
from jaxfl.models.layer_kinds import kernel_layers
from jaxfl.typing import Array, Key, Params


class PyTorchStart(NamedTuple):
    """A network whose models start as PyTorch's layers do; made by `pytorch_start`, taken wherever a network is.

    Attributes:
        network: the network.
    """

    network: Network

    def functions(self, example: NetworkInputs) -> Functions:
        """Returns the two functions of the network, of which the first draws other numbers.

        Args:
            example: one row `[1, ...]`.

        Raises:
            ValueError: the network has no layer with a kernel or an embedding.
        """
        found = functions_of(self.network, example)
        kinds = {layer.name: layer.kind for layer in kernel_layers(found.init)}

        def redrawn(key: Key, node: Any, path: tuple[str, ...]) -> Any:
            if not isinstance(node, Mapping):
                return node
            # a model of one layer may be flat
            kind = kinds.get("/".join(path or ("kernel",)), "") if "kernel" in node else ""
            if kind == "attention":
                return node
            made = {name: redrawn(key, below, (*path, str(name))) for name, below in node.items()}
            names: dict[str, Any] = {}
            if kind:
                shape = node["kernel"].shape
                bound = 1 / math.sqrt(max(1, shape[-1] if kind == "recurrent" else math.prod(shape[:-1])))
                names = {name: bound for name in ("kernel", "bias") if name in node}
            elif "embedding" in node and node["embedding"].ndim == 2:
                names = {"embedding": None}
            for name, bound in names.items():
                own = jax.random.fold_in(key, zlib.crc32("/".join((*path, name)).encode()))
                made[name] = _draw(own, node[name], bound)
            return made

        model = jax.eval_shape(found.init, jax.random.key(0))
        if not kinds and not any("embedding" in str(path[-1]) for path, _ in jax.tree.leaves_with_path(model) if path):
            raise ValueError(
                "module must have layers with a kernel or an embedding for init='pytorch', got none; leave init out."
            )

        def init(key: Key) -> Params:
            return redrawn(key, found.init(key), ())

        return found._replace(init=init)


def pytorch_start(network: Network) -> PyTorchStart:
    """Returns a network whose models start as PyTorch's layers do by default, whatever its own code draws.

    Kernels and biases of dense layers and convolutions are uniform in +-1 / sqrt(inputs of an output), those of
    recurrent cells in +-1 / sqrt(width); embeddings are normal. All else starts as before: normalisations, which start
    in PyTorch as they do here, attention, and arrays outside layers.

    Args:
        network: see `jaxfl.classification`.

    >>> import jaxfl
    >>> from flax import linen as nn
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(pytorch_start(nn.Sequential([lambda x: x.reshape(-1, 64), nn.Dense(10)])), data)
    >>> bool(abs(jax.tree.leaves(task.init(jax.random.key(0)))[0]).max() <= 1 / 8)  # biases, zero in flax
    True
    """
    return PyTorchStart(network)


def _draw(key: Key, leaf: Array, bound: float | None) -> Array:
    """Returns numbers like a leaf: uniform up to a bound, or normal where there is none."""
    if bound is None:
        return jax.random.normal(key, leaf.shape, leaf.dtype)
    return jax.random.uniform(key, leaf.shape, leaf.dtype, -bound, bound)
