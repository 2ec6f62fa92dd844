"""Networks for images of today: ResNets, MobileNetV2 and a small vision transformer.

Their layers have the names of torchvision's (of the transformer: timm's), `layer1.0/conv1/kernel` for
`layer1.0.conv1.weight`, so that `load_weights` reads files of both libraries.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from flax import linen as nn

from jaxfl.models.layers import Conv, Dense, as_images, as_vectors, check_rates, check_sizes, max_pool
from jaxfl.schema import check_word
from jaxfl.typing import Array

Norm = Literal["batch", "group"]
Stem = Literal["cifar", "torchvision"]
HE_FAN_OUT = nn.initializers.variance_scaling(2.0, "fan_out", "normal")  # torchvision's start of convolutions
SMALL_NORMAL = nn.initializers.truncated_normal(0.02)  # timm's start of transformers
ZEROS = nn.initializers.zeros


class Normalise(NamedTuple):
    """A normalisation of images `[B, H, W, channels]`, of PyTorch's settings.

    Attributes:
        norm: of the batch, with running averages, or of groups of channels.
        groups: how many.
        train: whether a batch is normalised by its own statistics, which then go into the running averages.
        mask: rows that count `[B]`, or None.
    """

    norm: Norm
    groups: int
    train: bool
    mask: Array | None

    def __call__(self, images: Array, name: str) -> Array:
        """Returns normalised images, by a layer of this name in the module that calls."""
        if self.norm == "group":
            return nn.GroupNorm(self.groups, epsilon=1e-5, name=name)(images)
        layer = nn.BatchNorm(use_running_average=not self.train, momentum=0.9, epsilon=1e-5, name=name)
        return layer(images, mask=None if self.mask is None else self.mask[:, None, None, None])


def check_normalisation(norm: str, groups: int, width: int) -> None:
    """Raises ValueError unless a normalisation is known, and its groups divide the channels."""
    check_word("norm", norm, ("batch", "group"))
    check_sizes("width", width)
    check_sizes("groups", groups)
    if norm == "group" and width % groups:
        raise ValueError(f"groups must divide width={width}, got {groups}; take 2, or 32 with width=64.")


def _conv(images: Array, channels: int, side: int, stride: int, name: str, groups: int = 1) -> Array:
    """Returns a convolution without biases, whose outputs have a `stride`-th of the sides."""
    layer = nn.Conv(
        channels,
        (side, side),
        stride,
        padding=(side - 1) // 2,
        feature_group_count=groups,
        use_bias=False,
        kernel_init=HE_FAN_OUT,
        name=name,
    )
    return layer(images)


class ResidualBlock(nn.Module):
    """Two convolutions and what they are added to.

    Attributes:
        channels: of its outputs.
        stride: of its first convolution.
    """

    channels: int
    stride: int

    branches = True  # see `jaxfl.methods.parts.matching.chain`

    @nn.compact
    def __call__(self, images: Array, normalise: Normalise) -> Array:
        outputs = _conv(images, self.channels, 3, self.stride, "conv1")
        outputs = nn.relu(normalise(outputs, "bn1"))
        outputs = normalise(_conv(outputs, self.channels, 3, 1, "conv2"), "bn2")
        if images.shape != outputs.shape:
            images = normalise(_conv(images, self.channels, 1, self.stride, "downsample.0"), "downsample.1")
        return nn.relu(outputs + images)


class ResNet18(nn.Module):
    """ResNet-18: a stem, eight blocks of two convolutions in four stages, the mean over all places, a dense layer.

    11,173,962 parameters for ten classes with the stem for CIFAR's 32x32 images (conv3x3 of stride 1), 11,181,642 with
    torchvision's (conv7x7 of stride 2 and a pooling), 11,689,512 with 1,000 classes. Convolutions start He-normal by
    their outputs, as torchvision's.

    Attributes:
        num_classes: number of logits.
        norm: normalisation, "batch" with running averages or "group".
        groups: of channels, for norm="group"; every width is a multiple.
        stem: "cifar" or "torchvision".
        width: channels of the first stage; each other one has twice those of the one before.
        blocks: of each stage.

    References: He et al., "Deep residual learning for image recognition", 2016; group normalisation in federated
    learning: Hsieh et al., "The non-IID data quagmire of decentralized machine learning", 2020.
    """

    num_classes: int = 10
    norm: Norm = "batch"
    groups: int = 32
    stem: Stem = "cifar"
    width: int = 64
    blocks: Sequence[int] = (2, 2, 2, 2)

    def __post_init__(self):
        check_normalisation(self.norm, self.groups, self.width)
        check_word("stem", self.stem, ("cifar", "torchvision"))
        check_sizes("blocks", self.blocks)
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: Array, mask: Array | None = None, train: bool = False) -> Array:
        """Returns logits; rows where `mask [B]` does not hold are left out of the statistics."""
        normalise = Normalise(self.norm, self.groups, train, mask)
        side, stride = (7, 2) if self.stem == "torchvision" else (3, 1)
        outputs = _conv(as_images(inputs), self.width, side, stride, "conv1")
        outputs = nn.relu(normalise(outputs, "bn1"))
        if self.stem == "torchvision":
            edged = jnp.pad(outputs, ((0, 0), (1, 1), (1, 1), (0, 0)))  # no output is below 0
            outputs = nn.max_pool(edged, (3, 3), (2, 2))
        for stage, count in enumerate(self.blocks):
            for place in range(count):
                stride = 2 if stage and not place else 1
                block = ResidualBlock(self.width * 2**stage, stride, name=f"layer{stage + 1}.{place}")
                outputs = block(outputs, normalise)
        return Dense(self.num_classes, name="fc")(outputs.mean((1, 2)))


class ResNet18GroupNorm(ResNet18):
    """`resnet18` with group normalisation, which has no running averages: 11,173,962 parameters, too."""

    norm: Norm = "group"


class ResNet18Torchvision(ResNet18):
    """`resnet18` with torchvision's stem, for images of more than 64x64 pixels, or for its weights."""

    stem: Stem = "torchvision"


class CLoVECifarCNN(nn.Module):
    """CLoVE's network for CIFAR-10: 4 x [conv3x3, batch norm, relu, pool], dense 1024, 512, with dropout.

    The convolutions have 64, 128, 256 and 512 channels: 4,181,002 parameters for 32x32x3 images and ten classes. It
    starts as PyTorch's layers do.

    Attributes:
        num_classes: number of logits.
        norm: normalisation, "batch" with running averages or "group".
        groups: of channels, for norm="group"; every width is a multiple.
        width: channels of the first convolution; each other one has twice those of the one before.
        hidden: widths of the dense layers before the last one.
        dropout: rate after each of them in training.

    Reference: CLoVE's code.
    """

    num_classes: int = 10
    norm: Norm = "batch"
    groups: int = 32
    width: int = 64
    hidden: Sequence[int] | int = (1024, 512)
    dropout: float = 0.5

    def __post_init__(self):
        check_normalisation(self.norm, self.groups, self.width)
        check_sizes("hidden", self.hidden)
        check_rates("dropout", self.dropout)
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: Array, mask: Array | None = None, train: bool = False) -> Array:
        """Returns logits; rows where `mask [B]` does not hold are left out of the statistics."""
        normalise = Normalise(self.norm, self.groups, train, mask)
        outputs = as_images(inputs)
        for stage in range(4):
            outputs = Conv(self.width * 2**stage, (3, 3), name=f"conv{stage + 1}")(outputs)
            outputs = nn.relu(max_pool(normalise(outputs, f"bn{stage + 1}")))
        outputs = as_vectors(outputs)
        for place, width in enumerate(check_sizes("hidden", self.hidden)):
            outputs = nn.relu(Dense(width, name=f"fc{place + 1}")(outputs))
            outputs = nn.Dropout(self.dropout, deterministic=not train)(outputs)
        return Dense(self.num_classes, name="fc")(outputs)


class ResNet9(nn.Module):
    """ResNet-9 of FLUX's code for CIFAR-100: eight convolutions with batch normalisation, two of them pairs to skip.

    Four convolutions of 64, 128, 256 and 512 channels, a pooling behind each but the first, a residual pair of 128 and
    one of 512 channels, a pooling and a dense layer: 6,775,140 parameters for 32x32x3 images and 100 classes. It starts
    as PyTorch's layers do.

    Attributes:
        num_classes: number of logits.
        norm: normalisation, "batch" with running averages or "group".
        groups: of channels, for norm="group"; every width is a multiple.
        width: channels of the first convolution.

    Reference: FLUX's code.
    """

    num_classes: int = 100
    norm: Norm = "batch"
    groups: int = 32
    width: int = 64

    branches = True

    def __post_init__(self):
        check_normalisation(self.norm, self.groups, self.width)
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: Array, mask: Array | None = None, train: bool = False) -> Array:
        """Returns logits; rows where `mask [B]` does not hold are left out of the statistics."""
        normalise = Normalise(self.norm, self.groups, train, mask)

        def layer(images: Array, channels: int, name: str) -> Array:
            outputs = Conv(channels * self.width, (3, 3), name=f"{name}.0")(images)
            return normalise(outputs, f"{name}.1")

        def pair(images: Array, channels: int, name: str) -> Array:
            outputs = nn.relu(layer(images, channels, f"{name}.0"))
            return images + nn.relu(layer(outputs, channels, f"{name}.1"))

        outputs = nn.relu(layer(as_images(inputs), 1, "conv1"))
        outputs = nn.relu(max_pool(layer(outputs, 2, "conv2")))
        outputs = pair(outputs, 2, "res1")
        outputs = nn.relu(max_pool(layer(outputs, 4, "conv3")))
        outputs = nn.relu(max_pool(layer(outputs, 8, "conv4")))
        outputs = max_pool(pair(outputs, 8, "res2"))
        return Dense(self.num_classes)(as_vectors(outputs))


# expansion, channels, blocks, stride of the first block
INVERTED_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _in_eights(channels: float) -> int:
    """Returns a number of channels as the nearest multiple of 8, of which it loses no more than a tenth.

    >>> [_in_eights(number) for number in (3.0, 12.0, 17.0, 89.6)]
    [8, 16, 16, 88]
    """
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest


class InvertedBlock(nn.Module):
    """A convolution 1x1 to more channels, one 3x3 of each channel by itself, and one 1x1 to few channels.

    Attributes:
        channels: of its outputs.
        expansion: channels in between, in those of the inputs.
        stride: of the convolution 3x3.
    """

    channels: int
    expansion: int
    stride: int

    branches = True

    @nn.compact
    def __call__(self, images: Array, normalise: Normalise) -> Array:
        wide, outputs, place = images.shape[-1] * self.expansion, images, 0
        if self.expansion != 1:
            outputs = nn.relu6(normalise(_conv(images, wide, 1, 1, "conv.0.0"), "conv.0.1"))
            place = 1
        outputs = _conv(outputs, wide, 3, self.stride, f"conv.{place}.0", groups=wide)
        outputs = nn.relu6(normalise(outputs, f"conv.{place}.1"))
        outputs = normalise(_conv(outputs, self.channels, 1, 1, f"conv.{place + 1}"), f"conv.{place + 2}")
        return images + outputs if self.stride == 1 and images.shape == outputs.shape else outputs


class MobileNetV2(nn.Module):
    """MobileNetV2: 17 inverted residual blocks with normalisation, the mean over all places, a dense layer.

    2,236,682 parameters for ten classes, 3,504,872 for 1,000 as torchvision's. With the stem for CIFAR's 32x32 images
    the first convolution and the first stage of stride 2 have stride 1.

    Attributes:
        num_classes: number of logits.
        width: of all layers, in those of the paper: 0.5 is a network of a third of the parameters.
        stem: "cifar" or "torchvision".
        dropout: rate in front of the dense layer in training.
        norm: normalisation, "batch" with running averages or "group".
        groups: of channels, for norm="group"; 8 is a multiple, as every number of channels is of 8.

    Reference: Sandler et al., "MobileNetV2: inverted residuals and linear bottlenecks", 2018.
    """

    num_classes: int = 10
    width: float = 1.0
    stem: Stem = "cifar"
    dropout: float = 0.2
    norm: Norm = "batch"
    groups: int = 8

    def __post_init__(self):
        check_word("stem", self.stem, ("cifar", "torchvision"))
        check_rates("dropout", self.dropout)
        check_word("norm", self.norm, ("batch", "group"))
        check_sizes("groups", self.groups)
        if self.norm == "group" and 8 % self.groups:
            raise ValueError(
                f"groups must divide 8, of which all channels are multiples, got {self.groups}; 8 is usual."
            )
        if not self.width > 0:
            raise ValueError(f"width must be above 0, got {self.width}; 1.0 is the paper's.")
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: Array, mask: Array | None = None, train: bool = False) -> Array:
        """Returns logits; with `train` and a dropout rate needs `rngs={"dropout": key}`; see `ResNet18` for `mask`."""
        normalise = Normalise(self.norm, self.groups, train, mask)

        def layer(images: Array, channels: int, side: int, stride: int, name: str) -> Array:
            outputs = _conv(images, channels, side, stride, f"{name}.0")
            return nn.relu6(normalise(outputs, f"{name}.1"))

        small = self.stem == "cifar"
        outputs = layer(as_images(inputs), _in_eights(32 * self.width), 3, 1 if small else 2, "features.0")
        place = 1
        for stage, (expansion, channels, count, first) in enumerate(INVERTED_STAGES):
            for block in range(count):
                stride = 1 if block or (small and stage == 1) else first
                made = InvertedBlock(_in_eights(channels * self.width), expansion, stride, name=f"features.{place}")
                outputs, place = made(outputs, normalise), place + 1
        outputs = layer(outputs, _in_eights(1280 * max(1.0, self.width)), 1, 1, f"features.{place}").mean((1, 2))
        outputs = nn.Dropout(self.dropout, deterministic=not train)(outputs)
        return Dense(self.num_classes, nn.initializers.normal(0.01), ZEROS, name="classifier.1")(outputs)


class SelfAttention(nn.Module):
    """Attention of every position to all positions, with one kernel for queries, keys and values, as timm has it.

    Attributes:
        heads: the width is a multiple.
    """

    heads: int

    @nn.compact
    def __call__(self, rows: Array) -> Array:
        batch, positions, width = rows.shape
        parts = Dense(3 * width, SMALL_NORMAL, ZEROS, name="qkv")(rows)
        query, key, value = (
            part.reshape(batch, positions, self.heads, width // self.heads) for part in jnp.split(parts, 3, -1)
        )
        outputs: Any = nn.dot_product_attention(query, key, value)
        return Dense(width, SMALL_NORMAL, ZEROS, name="proj")(outputs.reshape(rows.shape))


class EncoderBlock(nn.Module):
    """Attention and two dense layers, each normalised before and added to its inputs.

    Attributes:
        heads: of the attention.
    """

    heads: int

    branches = True

    @nn.compact
    def __call__(self, rows: Array) -> Array:
        rows = rows + SelfAttention(self.heads, name="attn")(nn.LayerNorm(name="norm1")(rows))
        wide = Dense(4 * rows.shape[-1], SMALL_NORMAL, ZEROS, name="mlp.fc1")(nn.LayerNorm(name="norm2")(rows))
        wide = nn.gelu(wide, approximate=False)
        return rows + Dense(rows.shape[-1], SMALL_NORMAL, ZEROS, name="mlp.fc2")(wide)


class VisionTransformer(nn.Module):
    """A small vision transformer: patches, a class token, learned positions, layers of attention, a dense layer.

    1,205,898 parameters for 32x32x3 images and ten classes; `width=192`, `heads=3`, `layers=12`, `patch=16` are ViT-Ti,
    5,717,416 for 224x224x3 and 1,000 classes.

    Attributes:
        num_classes: number of logits.
        patch: side of a patch; the images' height and width are multiples.
        width: of every position.
        heads: of the attention; `width` is a multiple.
        layers: how many.

    Reference: Dosovitskiy et al., "An image is worth 16x16 words: transformers for image recognition at scale", 2021.
    """

    num_classes: int = 10
    patch: int = 4
    width: int = 128
    heads: int = 4
    layers: int = 6

    branches = True

    def __post_init__(self):
        for name in ("patch", "width", "heads", "layers"):
            check_sizes(name, getattr(self, name))
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads={self.heads}, got {self.width}; 128 and 4 are usual.")
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        images, side = as_images(inputs), (self.patch, self.patch)
        if images.shape[1] % self.patch or images.shape[2] % self.patch:
            raise ValueError(
                f"patch must divide the images' height and width {images.shape[1:3]}, got {self.patch}; 4 is usual for "
                "28x28 and 32x32 pixels."
            )
        token = self.param("cls_token", nn.initializers.normal(1e-6), (1, 1, self.width))
        count = images.shape[1] // self.patch * (images.shape[2] // self.patch)
        places = self.param("pos_embed", SMALL_NORMAL, (1, 1 + count, self.width))
        patches = nn.Conv(self.width, side, side, "VALID", kernel_init=SMALL_NORMAL, name="patch_embed.proj")(images)
        rows = patches.reshape(len(patches), count, self.width)
        first = jnp.broadcast_to(token, (len(rows), 1, self.width)).astype(rows.dtype)
        rows = jnp.concatenate([first, rows], 1) + places
        for layer in range(self.layers):
            rows = EncoderBlock(self.heads, name=f"blocks.{layer}")(rows)
        rows = nn.LayerNorm(name="norm")(rows)
        return Dense(self.num_classes, SMALL_NORMAL, ZEROS, name="head")(rows[:, 0])
