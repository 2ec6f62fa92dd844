"""IFCA's network for CIFAR-10, which trains on random crops, and its preprocessing of images.

It is that of TensorFlow's CIFAR-10 tutorial. Crops are drawn anew for every row whenever a batch trains; tests see the
middle of each image.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxfl.models.layers import Conv, Dense, as_images, as_vectors, check_sizes
from jaxfl.typing import Array, Key

CONTRAST = (0.2, 1.8)  # of the tutorial


class IFCACifarCNN(nn.Module):
    """IFCA's network for CIFAR-10: crop, 2 x [conv5x5x64, pool, normalisation], dense 384, 192; 1,068,298 parameters.

    Between convolution and dense layers the responses are normalised over neighbouring channels (`local_response`). In
    training each image is cropped at random, flipped left to right or not, and its contrast is changed; then, and in a
    test, it is standardised by its own mean and deviation. The tutorial also draws a brightness, which that takes out
    again: it is not drawn here.

    The two dense layers decay: their kernels' gradients get `decay` times the kernel, the gradient of
    `decay / 2 * |kernel|^2`. The loss that is reported is without it.

    Attributes:
        num_classes: number of logits.
        crop: side of the crops, at most that of the images.
        decay: of the dense layers but the last.

    References: Ghosh et al., "An efficient framework for clustered federated learning", 2020, and its code; Krizhevsky
    et al., "ImageNet classification with deep convolutional neural networks", 2012, section 3.3.

    >>> model = IFCACifarCNN()
    >>> params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))
    >>> sum(leaf.size for leaf in jax.tree.leaves(params))
    1068298
    """

    num_classes: int = 10
    crop: int = 24
    decay: float = 0.004

    def __post_init__(self):
        check_sizes("crop", self.crop)
        if self.decay < 0:
            raise ValueError(f"decay must be 0 or more, got {self.decay}; 0.004 is IFCA's.")
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: Array, train: bool = False) -> Array:
        """Returns logits; with `train` images are distorted, which needs `rngs={"dropout": key}`."""
        images = as_images(inputs)
        if min(images.shape[1:3]) < self.crop:
            raise ValueError(
                f"crop must be at most the images' height and width {images.shape[1:3]}, got {self.crop}; set "
                f"crop={min(images.shape[1:3])}."
            )
        images = distorted(self.make_rng("dropout"), images, self.crop) if train else middle(images, self.crop)
        outputs = standardised(images)
        normal, small = nn.initializers.truncated_normal, nn.initializers.constant(0.1)
        outputs = Conv(64, (5, 5), kernel_init=normal(0.05), bias_init=nn.initializers.zeros)(outputs)
        outputs = local_response(nn.relu(nn.max_pool(outputs, (3, 3), (2, 2), "SAME")))
        outputs = local_response(nn.relu(Conv(64, (5, 5), kernel_init=normal(0.05), bias_init=small)(outputs)))
        outputs = as_vectors(nn.max_pool(outputs, (3, 3), (2, 2), "SAME"))
        for width in (384, 192):
            outputs = nn.relu(DecayedDense(width, self.decay)(outputs))
        return Dense(self.num_classes, normal(1 / 192), nn.initializers.zeros)(outputs)


class DecayedDense(nn.Module):
    """A dense layer of the tutorial, whose kernel decays.

    Attributes:
        features: outputs.
        decay: see `decayed`.
    """

    features: int
    decay: float

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        start = nn.initializers.truncated_normal(0.04)
        kernel = self.param("kernel", start, (inputs.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.constant(0.1), (self.features,))
        return inputs @ decayed(kernel, self.decay) + bias.reshape(1, -1)


def decayed(weights: Array, rate: float) -> Array:
    """Returns the weights; their gradient gets `rate` times the weights, which L2 regularisation adds to a loss.

    >>> jax.grad(lambda w: 3 * decayed(w, 0.5).sum())(jnp.array([2.0, -4.0])).tolist()
    [4.0, 1.0]
    """

    @jax.custom_vjp
    def same(weights: Array) -> Array:
        return weights

    same.defvjp(lambda weights: (weights, weights), lambda saved, gradient: (gradient + rate * saved,))
    return same(weights)


def distorted(key: Key, images: Array, side: int) -> Array:
    """Returns crops at random places, half of them flipped, with random contrast, as TensorFlow's tutorial makes them.

    Args:
        key: of all that is drawn, for each image by itself.
        images: `[B, H, W, channels]`.
        side: of the crops.

    Returns:
        `[B, side, side, channels]`.
    """

    def one(image: Array, top: Array, left: Array, flip: Array, contrast: Array) -> Array:
        crop = jax.lax.dynamic_slice(image, (top, left, 0), (side, side, image.shape[-1]))
        crop = jnp.where(flip, crop[:, ::-1], crop)
        mean = crop.mean((0, 1), keepdims=True)  # of each channel
        return (crop - mean) * contrast + mean

    batch, height, width, _ = images.shape
    top, left = [
        jax.random.randint(part, (batch,), 0, space - side + 1)
        for part, space in zip(jax.random.split(key), (height, width), strict=True)
    ]
    turn, strength = jax.random.split(jax.random.fold_in(key, 1))
    flip = jax.random.bernoulli(turn, 0.5, (batch,))
    contrast = jax.random.uniform(strength, (batch,), images.dtype, *CONTRAST)
    return jax.vmap(one)(images, top, left, flip, contrast)


def middle(images: Array, side: int) -> Array:
    """Returns the middle `[B, side, side, channels]` of images `[B, H, W, channels]`.

    >>> middle(jnp.arange(16.0).reshape(1, 4, 4, 1), 2).ravel().tolist()
    [5.0, 6.0, 9.0, 10.0]
    """
    top, left = ((space - side) // 2 for space in images.shape[1:3])
    return images[:, top : top + side, left : left + side]


def standardised(images: Array) -> Array:
    """Returns images `[B, H, W, channels]` of mean 0 and deviation 1 each; a deviation counts as 1 / sqrt(HWC) or more.

    >>> standardised(jnp.array([2.0, 4.0]).reshape(1, 1, 2, 1)).ravel().tolist()
    [-1.0, 1.0]
    """
    axes = (1, 2, 3)
    centred = images - images.mean(axes, keepdims=True)
    size = centred[0].size
    variance = jnp.square(centred).mean(axes, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.maximum(variance, 1 / size))


def local_response(
    inputs: Array, radius: int = 4, bias: float = 1.0, alpha: float = 0.001 / 9, beta: float = 0.75
) -> Array:
    """Returns responses divided by those of neighbouring channels: `x_c / (bias + alpha * sum_j x_j^2) ** beta`.

    Args:
        inputs: `[..., channels]`.
        radius: channels from c - radius to c + radius are summed.
        bias, alpha, beta: those of TensorFlow's tutorial.

    >>> local_response(jnp.array([[3.0, 4.0]]), radius=0, bias=0.0, alpha=1.0, beta=0.5).tolist()
    [[1.0, 1.0]]
    """
    channel = jnp.arange(inputs.shape[-1])
    near = (jnp.abs(channel[:, None] - channel[None]) <= radius).astype(inputs.dtype)
    # a product with a band, for which one matrix serves all clients: sums over shifted channels would be nine passes
    total = jnp.square(inputs) @ near
    return inputs * (bias + alpha * total) ** -beta
