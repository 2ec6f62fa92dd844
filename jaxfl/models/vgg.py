"""VGG16 for 32x32 images, the network of the LayerCFL paper; `jaxfl.models` has it by name."""

import jax
from flax import linen as nn

from jaxfl.models.layers import Conv, Dense, as_images, as_vectors, check_rates, check_sizes, max_pool
from jaxfl.typing import Array

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
