"""Files of PyTorch's parameters as parameters of networks here: other names, and other orders of axes.

A layer has the same name in both, `layer1.0.conv1`, with dots for slashes. In it `weight` is a kernel, whose outputs
are the last axis here and the first one there, a normalisation's scale, or an embedding; `running_mean` and
`running_var` are running averages.
"""

from collections.abc import Mapping

import numpy as np

from jaxfl.typing import Array

LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight", "mean": "running_mean", "var": "running_var"}
AXES = {
    2: (1, 0),
    3: (2, 1, 0),
    4: (2, 3, 1, 0),
}  # of kernels: to places, inputs, outputs
COUNTER = "num_batches_tracked"  # by which PyTorch weights its averages if no momentum is given


def is_torch(held: Mapping[str, np.ndarray], wanted: Mapping[str, Array]) -> bool:
    """Returns whether the names of a file are PyTorch's, and not those of a network."""
    return any(name.endswith(".weight") and name not in wanted for name in held)


def torch_name(name: str) -> str:
    """Returns PyTorch's name of a parameter.

    >>> torch_name("layer1.0/conv1/kernel"), torch_name("bn1/mean"), torch_name("cls_token")
    ('layer1.0.conv1.weight', 'bn1.running_mean', 'cls_token')
    """
    *layer, leaf = name.split("/")
    return ".".join([*layer, LEAVES.get(leaf, leaf)])


def from_torch(held: Mapping[str, np.ndarray], wanted: Mapping[str, Array]) -> dict[str, np.ndarray]:
    """Returns the arrays of a file by the names that a network has for them; those it does not have keep theirs.

    Args:
        held: of the file.
        wanted: the network's leaves, or their shapes. Floats get their types.

    Raises:
        ValueError: a dense layer takes a flattened image, whose numbers have another order here.
    """
    kernels = {name: leaf.shape for name, leaf in wanted.items() if name.endswith("kernel")}
    widths, images = {shape[-1] for shape in kernels.values()}, any(len(shape) == 4 for shape in kernels.values())
    for name, shape in kernels.items():
        if images and len(shape) == 2 and shape[0] not in widths:
            raise ValueError(
                f"weights must be under jaxfl's names for a network that flattens images, got PyTorch's for {name} "
                f"{list(shape)}: PyTorch flattens channel by channel, and jaxfl place by place; take a network with a "
                "mean over all places, such as resnet18, or order the rows and save them under jaxfl's names."
            )
    found, rest = {}, {name: array for name, array in held.items() if not name.endswith(COUNTER)}
    for name, leaf in wanted.items():
        if (theirs := torch_name(name)) in rest:
            array = rest.pop(theirs)
            turned = name.endswith("kernel") and array.ndim in AXES
            array = array.transpose(AXES[array.ndim]) if turned else array
            found[name] = array.astype(leaf.dtype) if np.issubdtype(array.dtype, np.floating) else array
    return found | rest


def other_head(found: Mapping[str, np.ndarray], wanted: Mapping[str, Array]) -> frozenset[str]:
    """Returns the names of a last layer that was trained for another number of classes, none if there is no such layer.

    It is the one dense layer of which the number of outputs alone differs: that of another layer would change the
    inputs of the next one.
    """
    differ = {name for name, leaf in wanted.items() if name in found and found[name].shape != leaf.shape}
    layers = {name.rpartition("/")[0] for name in differ}
    alike = all(found[name].shape[:-1] == wanted[name].shape[:-1] for name in differ)
    dense = any(name.endswith("kernel") and wanted[name].ndim == 2 for name in differ)
    return frozenset(differ) if len(layers) == 1 and alike and dense else frozenset()
