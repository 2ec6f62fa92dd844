"""A network with running averages of batch normalisation."""

from collections.abc import Sequence

from flax import linen as nn

from jaxfl.models.layers import Dense, as_vectors, check_sizes
from jaxfl.typing import Array


class NormalisedMLP(nn.Module):
    """Dense layers with batch normalisation and relu on the flattened input: a small network for FedBN.

    Running averages of the batches' statistics, `mean` and `var` of a layer, are leaves of the model; they keep nine
    tenths of what they were in each step, as in PyTorch, and a test takes them.

    Attributes:
        hidden: widths of the hidden layers; a single number is one layer.
        num_classes: number of logits, or of the targets of a regression.
    """

    hidden: Sequence[int] | int = (200,)
    num_classes: int = 10

    def __post_init__(self):
        check_sizes("hidden", self.hidden)
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: Array, mask: Array | None = None, train: bool = False) -> Array:
        """Returns logits; rows where `mask [B]` does not hold are left out of the statistics."""
        outputs = as_vectors(inputs)
        for width in check_sizes("hidden", self.hidden):
            normalise = nn.BatchNorm(use_running_average=not train, momentum=0.9)
            outputs = nn.relu(normalise(Dense(width)(outputs), mask=None if mask is None else mask[:, None]))
        return Dense(self.num_classes)(outputs)
