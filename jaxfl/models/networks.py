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

import jax
from flax import linen as nn

from jaxfl.models.cropped import IFCACifarCNN
from jaxfl.models.layers import BatchNorm, Conv, Dense, as_images, as_vectors, check_rates, check_sizes, max_pool
from jaxfl.models.sequences import CharRNN, Transformer
from jaxfl.models.small_cnns import (
    RDPCFLCNN,
    FedCCFA28CNN,
    FedCCFA32CNN,
    FedRepCNN,
    FemnistCNN,
    LeNet5,
    LenetEMNIST,
    PFLlibCNN,
    StoCFLCifarCNN,
)
from jaxfl.models.texts import FastText, TextCNN
from jaxfl.models.vision import (
    CLoVECifarCNN,
    MobileNetV2,
    ResNet9,
    ResNet18,
    ResNet18GroupNorm,
    ResNet18Torchvision,
    VisionTransformer,
)
from jaxfl.schema import Option, check_name, docstring_lines
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


SIDE = 32
STAGES = ((2, 1), (2, 2), (3, 4), (3, 8), (3, 8))  # convolutions before a pooling, their channels in widths


class VGG16(nn.Module):
    """VGG16: 13 convolutions 3x3 in five stages of 64, 128, 256, 512, 512 channels, each ended by a pooling, 3 dense.

    15,245,130 parameters for 32x32x3 inputs and 10 classes. Inputs have any number of channels; those that are not
    32x32 are resized to it (bilinear): the paper "transforms" EMNIST's 28x28 and says no more. After the five poolings
    512 features are left, so the two hidden dense layers have 512 units each, as codes for CIFAR-10 do; torchvision's
    4096, made for 224x224 images, is `hidden=4096`. No batch norm; dropout only if asked for.

    The layers are `Conv_0` to `Conv_12` and `Dense_0` to `Dense_2`. Weights start He-normal and biases at zero, as in
    torchvision's VGG: PyTorch's default has a sixth of the variance, and 15 layers of it leave nothing of the signal.
    The last layer keeps that default: small logits.

    Attributes:
        num_classes: number of logits.
        width: channels of the first stage, and with it of all: 64 is VGG16, 16 a network of a sixteenth of the work.
        hidden: width of the two hidden dense layers.
        dropout: rate after each of them in training; torchvision's is 0.5.

    References: Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition", 2014
    (configuration D); LayerCFL (2023), section Experiments.

    >>> from jax import numpy as jnp
    >>> model = VGG16(num_classes=10, width=4, hidden=8)
    >>> outputs, _ = jax.eval_shape(model.init_with_output, jax.random.key(0), jnp.zeros((3, 28, 28)))
    >>> outputs.shape
    (3, 10)
    """

    num_classes: int = 10
    width: int = 64
    hidden: int = 512
    dropout: float = 0.0

    def __post_init__(self):
        check_sizes("width", self.width)
        check_sizes("hidden", self.hidden)
        check_rates("dropout", self.dropout)
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: Array, train: bool = False) -> Array:
        """Returns logits; with `train` and a dropout rate needs `rngs={"dropout": key}`."""
        he, zeros = nn.initializers.he_normal(), nn.initializers.zeros
        outputs = as_images(inputs)
        if outputs.shape[1:3] != (SIDE, SIDE):
            batch, _, _, channels = outputs.shape
            outputs = jax.image.resize(outputs, (batch, SIDE, SIDE, channels), "bilinear")
        for count, widths in STAGES:
            for position in range(count):
                outputs = Conv(widths * self.width, (3, 3), "SAME", he, zeros)(outputs)
                if position == count - 1:
                    outputs = max_pool(outputs)
                outputs = nn.relu(outputs)
        outputs = as_vectors(outputs)  # [B, 8 * width]
        for _ in range(2):
            outputs = nn.relu(Dense(self.hidden, he, zeros)(outputs))
            outputs = nn.Dropout(self.dropout, deterministic=not train)(outputs)
        return Dense(self.num_classes, bias_init=zeros)(outputs)


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

    activation = staticmethod(nn.relu)

    def __post_init__(self):
        check_sizes("hidden", self.hidden)
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        outputs = as_vectors(inputs)
        for width in check_sizes("hidden", self.hidden):
            outputs = self.activation(Dense(width)(outputs))
        return Dense(self.num_classes)(outputs)


class LinearMLP(MLP):
    """Dense layers without an activation between them: the 784-200-10 of a comparison's code, a linear map.

    Reference: Ben Ali et al., "Comparative evaluation of clustered federated learning methods", 2024, and its code.
    """

    activation = staticmethod(lambda outputs: outputs)


LARGEST_FLAT = 28 * 28  # pixels of a colour image that dense layers take: MNIST's
LARGEST_SIDE = 8  # of what the convolutions leave
WIDEST_FLAT = 8192  # numbers of a row, with more of which 2048 units would have 17 million weights and more


class AutoNetwork(nn.Module):
    """A network by the shape of the inputs, the default for data of one's own.

    Colour images `[B, H, W, channels]` of more than 28x28 pixels go through conv3x3 and pool, until no side is longer
    than 8: the first convolution has 32 channels, the others have 64. Everything else is flattened, as by `mlp`. Dense
    layers follow. Of 32x32x3 images and 10 classes there are 545,098 parameters, of 84x84x3 images 389,578; with dense
    layers alone there would be 6 and 43 million.

    The convolutions start He-normal, with biases at zero: of an 84x84 image there are four.

    Attributes:
        num_classes: number of logits, or of the targets of a regression.
        hidden: widths of the hidden dense layers; None is 128 behind convolutions and for rows of more than 8,192
            numbers, and 2048 otherwise.

    >>> from jax import numpy as jnp
    >>> def layers(*shape):
    ...     return sorted(jax.eval_shape(AutoNetwork().init, jax.random.key(0), jnp.zeros((1, *shape)))["params"])
    >>> layers(28, 28), layers(32, 32, 3)
    (['Dense_0', 'Dense_1'], ['Conv_0', 'Conv_1', 'Dense_0', 'Dense_1'])
    """

    num_classes: int = 10
    hidden: Sequence[int] | int | None = None

    def __post_init__(self):
        if self.hidden is not None:
            check_sizes("hidden", self.hidden)
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        outputs, usual = inputs, 2048
        if inputs.ndim == 4 and inputs.shape[1] * inputs.shape[2] > LARGEST_FLAT:
            outputs, usual = as_images(inputs), 128
            he, zeros, channels = nn.initializers.he_normal(), nn.initializers.zeros, 32
            while max(outputs.shape[1:3]) > LARGEST_SIDE:
                outputs = nn.relu(max_pool(Conv(channels, (3, 3), "SAME", he, zeros)(outputs), padding="SAME"))
                channels = 64
        outputs = as_vectors(outputs)
        usual = 128 if outputs.shape[1] > WIDEST_FLAT else usual
        for width in check_sizes("hidden", usual if self.hidden is None else self.hidden):
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

    The batch norm always uses the statistics of the current batch, at test time too, as LEAF's and FeSEM's codes do;
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
    "auto": AutoNetwork,
    "leaf-femnist-cnn": LeafFemnistCNN,
    "leaf-celeba-cnn": LeafCelebaCNN,
    "stocfl-cifar-cnn": StoCFLCifarCNN,
    "ifca-cifar-cnn": IFCACifarCNN,
    "stocfl-femnist-cnn": StoCFLFemnistCNN,
    "lenet-emnist": LenetEMNIST,
    "cifar-benchmark-cnn": CifarBenchmarkCNN,
    "vgg16": VGG16,
    "mlp200": MLP,
    "linear200": LinearMLP,
    "genconv": LenetEMNIST,
    "clove-cifar": CLoVECifarCNN,
    "lenet-pfg": StoCFLCifarCNN,
    "lenet5-flux": LeNet5,
    "pfllib-cnn": PFLlibCNN,
    "femnist-cnn": FemnistCNN,
    "cnn-fedrep": FedRepCNN,
    "cnn-rdp": RDPCFLCNN,
    "fedccfa-28": FedCCFA28CNN,
    "fedccfa-32": FedCCFA32CNN,
    "resnet9": ResNet9,
    "resnet18": ResNet18,
    "resnet18-gn": ResNet18GroupNorm,
    "resnet18-tv": ResNet18Torchvision,
    "mobilenetv2": MobileNetV2,
    "vit": VisionTransformer,
    "char-rnn": CharRNN,
    "transformer": Transformer,
    "textcnn": TextCNN,
    "fasttext": FastText,
}
SEQUENCES = ("char-rnn", "transformer", "textcnn", "fasttext")  # take tokens, all others images or vectors


def options(name: str) -> dict[str, Option]:
    """Returns the options of a model: the attributes of its module but the number of classes.

    Args:
        name: a key of `MODELS`.

    >>> options("mlp")["hidden"].default
    (200,)
    """
    check_name("model", name, MODELS)
    lines: dict[str, str] = {}
    for base in reversed(MODELS[name].__mro__):  # a network says of its options only what its base does not
        lines |= docstring_lines(base)
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
