"""Networks of workloads: a ResNet-18 with group normalisation, and two as somebody else would write them.

The ResNet has the layers and the 11,173,962 parameters of jaxfl's `resnet18-gn`, but not its outputs: all sides of the
committed records have flax's start and its epsilon of 1e-6, where `resnet18-gn` has torchvision's start and 1e-5.
"""

import functools

import jax
from flax import linen as nn
from flax import nnx

CLASSES, STAGES, BLOCKS = 10, 4, 2


class OwnNetwork(nn.Module):
    """W1's network as somebody else would write it, with flax alone."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns logits."""
        x = nn.relu(nn.Conv(32, (3, 3), padding="VALID")(x))
        x = nn.relu(nn.max_pool(nn.Conv(64, (3, 3), padding="VALID")(x), (2, 2), (2, 2)))
        x = nn.relu(nn.Dense(128)(x.reshape(len(x), -1)))
        return nn.Dense(10)(x)


def strides() -> list[int]:
    """Returns the stride of every block."""
    return [2 if stage and not block else 1 for stage in range(STAGES) for block in range(BLOCKS)]


class Block(nn.Module):
    """Two convolutions and what they are added to.

    Attributes:
        channels: of its outputs.
        stride: of its first convolution.
    """

    channels: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns images `[B, H / stride, W / stride, channels]`."""
        conv = functools.partial(nn.Conv, self.channels, padding=1, use_bias=False)
        y = conv(kernel_size=(3, 3), strides=self.stride, name="conv1")(x)
        y = nn.relu(nn.GroupNorm(name="norm1")(y))
        y = nn.GroupNorm(name="norm2")(conv(kernel_size=(3, 3), name="conv2")(y))
        if x.shape != y.shape:
            x = conv(kernel_size=(1, 1), strides=self.stride, padding=0, name="short_conv")(x)
            x = nn.GroupNorm(name="short_norm")(x)
        return nn.relu(x + y)


class ResNet(nn.Module):
    """A ResNet-18 for images of 32 x 32 pixels: a first convolution 3 x 3, four stages of two blocks, their mean.

    Attributes:
        width: channels of the first stage, a multiple of 32, the number of groups; every stage doubles them.
    """

    width: int = 64

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns logits."""
        x = nn.Conv(self.width, (3, 3), padding=1, use_bias=False, name="conv")(x)
        x = nn.relu(nn.GroupNorm(name="norm")(x))
        for place, stride in enumerate(strides()):
            x = Block(self.width * 2 ** (place // BLOCKS), stride, name=f"block_{place}")(x)
        return nn.Dense(CLASSES, name="dense")(x.mean((1, 2)))


class OwnBlock(nnx.Module):
    """`Block` as the documentation of flax writes it."""

    def __init__(self, inputs: int, channels: int, stride: int, *, rngs: nnx.Rngs):
        conv = functools.partial(nnx.Conv, use_bias=False, rngs=rngs)
        self.conv1 = conv(inputs, channels, (3, 3), stride, padding=1)
        self.norm1 = nnx.GroupNorm(channels, rngs=rngs)
        self.conv2 = conv(channels, channels, (3, 3), padding=1)
        self.norm2 = nnx.GroupNorm(channels, rngs=rngs)
        self.projects = inputs != channels
        if self.projects:
            self.short_conv = conv(inputs, channels, (1, 1), stride)
            self.short_norm = nnx.GroupNorm(channels, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns images."""
        y = nnx.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.projects:
            x = self.short_norm(self.short_conv(x))
        return nnx.relu(x + y)


class OwnResNet(nnx.Module):
    """`ResNet` as the documentation of flax writes it; its parameters have the same order."""

    def __init__(self, *, rngs: nnx.Rngs, width: int = 64):
        self.conv = nnx.Conv(3, width, (3, 3), padding=1, use_bias=False, rngs=rngs)
        self.norm = nnx.GroupNorm(width, rngs=rngs)
        channels = [width, *(width * 2 ** (place // BLOCKS) for place in range(STAGES * BLOCKS))]
        sizes = zip(channels, channels[1:], strides(), strict=False)
        self.blocks = nnx.List([OwnBlock(*size, rngs=rngs) for size in sizes])
        self.dense = nnx.Linear(channels[-1], CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns logits."""
        x = nnx.relu(self.norm(self.conv(x)))
        for block in self.blocks:
            x = block(x)
        return self.dense(x.mean((1, 2)))
