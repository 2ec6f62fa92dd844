"""The networks of the papers, as flax modules, and a registry of them by name.

Every module takes images `[B, H, W]` or `[B, H, W, channels]`, or vectors `[B, d]` where it has no convolution, and
returns logits `[B, classes]` in float32. Dropout is a call argument `train`, padding rows are a call argument `mask`,
and only the modules that need one have it.

Unless a docstring says otherwise, weights and biases start as PyTorch's do (`layers.torch_uniform`): most official
codes of clustered federated learning are PyTorch codes, and methods that compare clients by their first gradients
(StoCFL) have thresholds that hold for that initialisation and not for another.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from flax import linen as nn

from jaxfl.models.cropped import IFCACifarCNN
from jaxfl.models.layers import BatchNorm, Conv, Dense, as_images, as_vectors, check_rates, check_sizes, max_pool
from jaxfl.models.normalised import NormalisedMLP
from jaxfl.models.sequences import CharRNN, Transformer
from jaxfl.models.vgg import VGG16
from jaxfl.schema import Option, check_name, lines_of
from jaxfl.typing import Array


class Logistic(nn.Module):
    """Multinomial logistic regression: one dense layer on the flattened input.

    Attributes:
        num_classes: number of logits.

    >>> import jax
    >>> from jax import numpy as jnp
    >>> model = Logistic(num_classes=10)
    >>> params = model.init(jax.random.key(0), jnp.zeros((1, 8, 8)))
    >>> model.apply(params, jnp.zeros((3, 8, 8))).shape
    (3, 10)
    """

    num_classes: int = 10

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        return Dense(self.num_classes)(as_vectors(inputs))


class MLP(nn.Module):
    """Dense layers with relu on the flattened input: IFCA's 784-200-10, StoCFL's 784-2048-10.

    Attributes:
        hidden: widths of the hidden layers; a single number is one layer.
        num_classes: number of logits, or of the targets of a regression.

    References: Ghosh et al., "An efficient framework for clustered federated learning", 2020; Zeng et al., "Stochastic
    clustered federated learning", 2023.

    >>> import jax
    >>> from jax import numpy as jnp
    >>> model = MLP(hidden=(16,), num_classes=10)
    >>> params = model.init(jax.random.key(0), jnp.zeros((1, 8, 8)))
    >>> model.apply(params, jnp.zeros((3, 8, 8))).shape
    (3, 10)
    """

    hidden: Sequence[int] | int = (200,)
    num_classes: int = 10

    def __post_init__(self):
        check_sizes("hidden", self.hidden)
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        outputs = as_vectors(inputs)
        for width in check_sizes("hidden", self.hidden):
            outputs = nn.relu(Dense(width)(outputs))
        return Dense(self.num_classes)(outputs)


class LeafFemnistCNN(nn.Module):
    """LEAF's network for FEMNIST: conv5x5x32, pool, conv5x5x64, pool, dense, dense; 6,603,710 parameters.

    LEAF's and FeSEM's codes start from TensorFlow's Glorot-uniform weights and zero biases; here PyTorch's.

    Attributes:
        num_classes: number of logits.
        hidden: width of the dense layer: 2048 in LEAF, 248 in FeSEM's code, 200 in its FedProx variant.

    Reference: Caldas et al., "LEAF: a benchmark for federated settings", 2018.
    """

    num_classes: int = 62
    hidden: int = 2048

    def __post_init__(self):
        check_sizes("hidden", self.hidden)
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        outputs = as_images(inputs)
        for channels in (32, 64):
            outputs = nn.relu(max_pool(Conv(channels, (5, 5))(outputs), padding="SAME"))
        outputs = nn.relu(Dense(self.hidden)(as_vectors(outputs)))
        return Dense(self.num_classes)(outputs)


class LeafCelebaCNN(nn.Module):
    """LEAF's network for CelebA (84x84x3): 4 x [conv3x3x32, batch norm, pool, relu], dense; 31,202 parameters.

    The batch norm uses the statistics of the batch at hand always, at test time too, as LEAF's and FeSEM's codes do;
    there is no `batch_stats` collection.

    Attributes:
        num_classes: number of logits.

    Reference: Caldas et al., "LEAF: a benchmark for federated settings", 2018.
    """

    num_classes: int = 2

    @nn.compact
    def __call__(self, inputs: Array, mask: Array | None = None) -> Array:
        """Returns logits; rows where `mask [B]` does not hold are left out of the batch statistics."""
        outputs = as_images(inputs)
        for _ in range(4):
            outputs = BatchNorm()(Conv(32, (3, 3))(outputs), mask)
            outputs = nn.relu(max_pool(outputs, padding="SAME"))
        return Dense(self.num_classes)(as_vectors(outputs))


class StoCFLCifarCNN(nn.Module):
    """StoCFL's network for CIFAR-10: conv5x5x6, pool, conv5x5x16, pool, dense 120, 84; 62,006 parameters.

    Three dense layers, as in the official code; the paper says two.

    Attributes:
        num_classes: number of logits.

    Reference: Zeng et al., "Stochastic clustered federated learning", 2023.
    """

    num_classes: int = 10

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        outputs = as_images(inputs)
        for channels in (6, 16):
            outputs = nn.relu(max_pool(Conv(channels, (5, 5), "VALID")(outputs)))
        outputs = as_vectors(outputs)
        for width in (120, 84):
            outputs = nn.relu(Dense(width)(outputs))
        return Dense(self.num_classes)(outputs)


class StoCFLFemnistCNN(nn.Module):
    """StoCFL's network for FEMNIST: conv3x3x32, conv3x3x64, pool, dense 128, with dropout; 1,206,590 parameters.

    Weights start Xavier-uniform as in the official code, biases as PyTorch's.

    Attributes:
        num_classes: number of logits.
        dropout: rates after the pooling and after the dense layer.

    Reference: Zeng et al., "Stochastic clustered federated learning", 2023.
    """

    num_classes: int = 62
    dropout: tuple[float, float] = (0.25, 0.5)

    def __post_init__(self):
        check_rates("dropout", self.dropout, 2)
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: Array, train: bool = False) -> Array:
        """Returns logits; with `train` the two dropout layers are on and need `rngs={"dropout": key}`."""
        xavier = nn.initializers.xavier_uniform()
        outputs = as_images(inputs)
        outputs = nn.relu(Conv(32, (3, 3), "VALID", xavier)(outputs))
        outputs = nn.relu(max_pool(Conv(64, (3, 3), "VALID", xavier)(outputs)))
        outputs = nn.Dropout(self.dropout[0], deterministic=not train)(as_vectors(outputs))
        outputs = nn.relu(Dense(128, xavier)(outputs))
        outputs = nn.Dropout(self.dropout[1], deterministic=not train)(outputs)
        return Dense(self.num_classes, xavier)(outputs)


class LenetEMNIST(nn.Module):
    """The network of the official CFL code for EMNIST: conv5x5x6, pool, conv5x5x16, pool, dense; 18,506 parameters.

    Attributes:
        num_classes: number of logits.

    Reference: Sattler et al., "Clustered federated learning: model-agnostic distributed multitask optimization under
    privacy constraints", 2020.
    """

    num_classes: int = 62

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        outputs = as_images(inputs)
        for channels in (6, 16):
            outputs = nn.relu(max_pool(Conv(channels, (5, 5), "VALID")(outputs)))
        return Dense(self.num_classes)(as_vectors(outputs))


class CifarBenchmarkCNN(nn.Module):
    """The network of the published CIFAR-10 speed comparisons: conv3x3x32, conv3x3x64, pool, dense 128.

    Convolutions without padding, 1,626,442 parameters for 32x32x3 inputs.

    Attributes:
        num_classes: number of logits.

    Reference: Granqvist et al., "pfl-research: simulation framework for accelerating research in private federated
    learning", 2024.
    """

    num_classes: int = 10

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        outputs = nn.relu(Conv(32, (3, 3), "VALID")(as_images(inputs)))
        outputs = nn.relu(max_pool(Conv(64, (3, 3), "VALID")(outputs)))
        outputs = nn.relu(Dense(128)(as_vectors(outputs)))
        return Dense(self.num_classes)(outputs)


MODELS: dict[str, type[nn.Module]] = {
    "logistic": Logistic,
    "mlp": MLP,
    "mlp-batch-norm": NormalisedMLP,
    "leaf-femnist-cnn": LeafFemnistCNN,
    "leaf-celeba-cnn": LeafCelebaCNN,
    "stocfl-cifar-cnn": StoCFLCifarCNN,
    "ifca-cifar-cnn": IFCACifarCNN,
    "stocfl-femnist-cnn": StoCFLFemnistCNN,
    "lenet-emnist": LenetEMNIST,
    "cifar-benchmark-cnn": CifarBenchmarkCNN,
    "vgg16": VGG16,
    "char-rnn": CharRNN,
    "transformer": Transformer,
}
SEQUENCES = ("char-rnn", "transformer")  # take tokens, all others images or vectors


def options(name: str) -> dict[str, Option]:
    """Returns the options of a model: the attributes of its module but the number of classes.

    Args:
        name: a key of `MODELS`.

    >>> options("mlp")["hidden"].default
    (200,)
    """
    check_name("model", name, MODELS)
    lines = lines_of(MODELS[name])
    return {
        field.name: Option(field.name, field.default, field.type, lines.get(field.name, ""))
        for field in dataclasses.fields(MODELS[name])
        if field.name not in ("parent", "name", "num_classes")
    }


def create(name: str, num_classes: int, **chosen: Any) -> nn.Module:
    """Returns the model of a name, for the command line and configuration files.

    Args:
        name: a key of `MODELS`.
        num_classes: number of logits.
        **chosen: attributes of the module, e.g. `hidden=(2048,)`; a list counts as a tuple.

    Raises:
        ValueError: for an unknown name or option, or `num_classes` below 1.

    >>> create("mlp", 10, hidden=[64])
    MLP(
        # attributes
        hidden = (64,)
        num_classes = 10
    )
    >>> create("mpl", 10)
    Traceback (most recent call last):
    ValueError: unknown model "mpl"; did you mean "mlp"? Known: logistic, mlp, ...
    """
    known = options(name)
    if num_classes < 1:
        raise ValueError(f"num_classes must be at least 1, got {num_classes}; pass the number of classes of the data.")
    for option in chosen:
        check_name(f"option of model {name}", option, known)
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in chosen.items()}
    return MODELS[name](**{"num_classes": num_classes, **values})
