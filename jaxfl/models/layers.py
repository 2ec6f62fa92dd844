"""Layers with PyTorch's initialisation, and a batch norm without running averages.

They are plain: a task brings any network, of these layers or of others, into the forms that are fast for many clients
(`jaxfl.models.fast.rewriting`).

Parameters are named and shaped as in `flax.linen`, so that a model can be moved between the two.
"""

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxfl.models.fast.convolution import AXIS_ORDER
from jaxfl.schema import checked
from jaxfl.typing import Array, Key

Initializer = Callable[..., Array]  # (key, shape, dtype) -> array
Padding = Literal["SAME", "VALID"] | int  # an integer: zeros on each side


def torch_uniform(fan_in: int | None = None) -> Initializer:
    """PyTorch's default initialisation of dense and convolution layers: uniform(-1/sqrt(fan_in), 1/sqrt(fan_in)).

    The codes of StoCFL, IFCA and CFL rely on it, and it matters: the cosine of two clients' first gradients, hence the
    threshold at which their clusters appear, depends on the initial weights and biases.

    Args:
        fan_in: inputs of one output. None: the product of all axes but the last, which is right for kernels; biases
            need the fan-in of their kernel.

    Returns:
        An initialiser `(key, shape, dtype) -> array`.

    Reference: `torch.nn.Linear` and `torch.nn.Conv2d` (Kaiming-uniform with a = sqrt(5); biases in the same range).

    >>> kernel = torch_uniform()(jax.random.key(0), (400, 10))
    >>> bool((jnp.abs(kernel) <= 1 / 20).all())
    True
    """

    def initialise(key: Key, shape: tuple[int, ...], dtype=jnp.float32) -> Array:
        bound = 1 / math.sqrt(max(1, math.prod(shape[:-1]) if fan_in is None else fan_in))
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return initialise


@checked
def max_pool(inputs: Array, window: int = 2, padding: Literal["SAME", "VALID"] = "VALID") -> Array:
    """Maximum over windows side by side (stride = window), equal to `flax.linen.max_pool`.

    Since the maximum and a relu commute, put the relu after the pooling: the same function and gradient at a quarter of
    the work.

    Args:
        inputs: `[B, H, W, channels]`.
        window: side of the square window.
        padding: what happens to a rest when the window does not divide the size: "VALID" crops it, "SAME" completes
            it with -inf.

    Returns:
        `[B, H', W', channels]` with H' = floor(H / window) for "VALID" and ceil(H / window) for "SAME".

    >>> max_pool(jnp.arange(16.0).reshape(1, 4, 4, 1)).ravel().tolist()
    [5.0, 7.0, 13.0, 15.0]
    """
    _check_window(inputs, window, padding)
    return nn.max_pool(inputs, (window, window), (window, window), padding)


@checked
def average_pool(inputs: Array, window: int = 2) -> Array:
    """Mean over windows side by side (stride = window), equal to `flax.linen.avg_pool`; a rest is cropped.

    Args:
        inputs: `[B, H, W, channels]`.
        window: side of the square window.

    Returns:
        `[B, H // window, W // window, channels]`.

    >>> average_pool(jnp.arange(16.0).reshape(1, 4, 4, 1)).ravel().tolist()
    [2.5, 4.5, 10.5, 12.5]
    """
    _check_window(inputs, window, "VALID")
    sides = (window, window)
    return nn.pooling.pool(inputs, 0.0, jax.lax.add, sides, sides, "VALID") / window**2


def _check_window(inputs: Array, window: int, padding: str) -> None:
    """Raises ValueError where a window without padding does not fit into the images."""
    if padding == "VALID" and min(inputs.shape[1:3]) < window:
        raise ValueError(
            f"window must be at most the input's height and width {inputs.shape[1:3]} with padding 'VALID', "
            f"got {window}; use larger images, fewer pooling layers, padding='SAME' or another network."
        )


class Conv(nn.Module):
    """A convolution of stride 1, equal to `flax.linen.Conv`.

    Attributes:
        features: output channels.
        kernel_size: `(kh, kw)`.
        padding: "SAME", "VALID", or a number of zeros on each side.
        kernel_init: initialiser of `kernel [kh, kw, ci, co]`.
        bias_init: initialiser of `bias [co]`; None is `torch_uniform` with the fan-in of the kernel.

    >>> layer = Conv(8, (3, 3))
    >>> params = layer.init(jax.random.key(0), jnp.zeros((1, 6, 6, 2)))
    >>> layer.apply(params, jnp.zeros((5, 6, 6, 2))).shape
    (5, 6, 6, 8)
    """

    features: int
    kernel_size: tuple[int, int]
    padding: Padding = "SAME"
    kernel_init: Initializer = torch_uniform()
    bias_init: Initializer | None = None

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        fan_in = math.prod(self.kernel_size) * inputs.shape[-1]
        kernel = self.param("kernel", self.kernel_init, (*self.kernel_size, inputs.shape[-1], self.features))
        bias = self.param("bias", self.bias_init or torch_uniform(fan_in), (self.features,))
        zeros = self.padding if isinstance(self.padding, int) else 0
        shape = inputs.shape[1:3]
        (height, width), size = (side + 2 * zeros for side in shape), self.kernel_size
        if self.padding != "SAME" and (size[0] > height or size[1] > width):
            raise ValueError(
                f"kernel_size must be at most the input's height and width {shape} with padding {self.padding!r}, got "
                f"{size}; use larger images, a smaller kernel, padding='SAME' or another network."
            )
        padding = "SAME" if self.padding == "SAME" else [(zeros, zeros)] * 2
        outputs = jax.lax.conv_general_dilated(inputs, kernel, (1, 1), padding, dimension_numbers=AXIS_ORDER)
        return outputs + bias.reshape(1, 1, 1, -1)


class Dense(nn.Module):
    """A dense layer with PyTorch's initialisation; otherwise `flax.linen.Dense`.

    Attributes:
        features: outputs.
        kernel_init: initialiser of `kernel [d, features]`.
        bias_init: initialiser of `bias [features]`; None is `torch_uniform` with the fan-in of the kernel.

    >>> layer = Dense(3)
    >>> layer.apply(layer.init(jax.random.key(0), jnp.zeros((1, 4))), jnp.ones((2, 4))).shape
    (2, 3)
    """

    features: int
    kernel_init: Initializer = torch_uniform()
    bias_init: Initializer | None = None

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        fan_in = inputs.shape[-1]
        kernel = self.param("kernel", self.kernel_init, (fan_in, self.features))
        bias = self.param("bias", self.bias_init or torch_uniform(fan_in), (self.features,))
        return inputs @ kernel + bias.reshape((1,) * (inputs.ndim - 1) + (self.features,))


class BatchNorm(nn.Module):
    """Batch normalisation that always uses the statistics of the batch, with padding rows left out.

    There are no running averages, hence no state that a server would have to average: the LEAF and FeSEM codes run
    their batch norm in training mode at test time too. The output of a row then depends on the rows beside it.

    Attributes:
        epsilon: added to the variance.

    >>> rows = jnp.array([1.0, 3.0, 100.0]).reshape(3, 1, 1, 1)
    >>> layer = BatchNorm(epsilon=0.0)
    >>> params = layer.init(jax.random.key(0), rows)
    >>> layer.apply(params, rows, mask=jnp.array([True, True, False])).ravel()[:2].tolist()
    [-1.0, 1.0]
    """

    epsilon: float = 1e-3

    @nn.compact
    def __call__(self, inputs: Array, mask: Array | None = None) -> Array:
        """Normalises each channel of `inputs [B, H, W, channels]` over the rows where `mask [B]` holds."""
        batch, height, width, channels = inputs.shape
        scale = self.param("scale", nn.initializers.ones, (channels,))
        bias = self.param("bias", nn.initializers.zeros, (channels,))
        keep = jnp.ones(batch, bool) if mask is None else mask.astype(bool)
        # A select, not a product: a non-finite padding row must reach neither the statistics nor their gradient.
        inputs = jnp.where(keep[:, None, None, None], inputs, jnp.zeros_like(inputs))
        weights = keep[:, None, None, None].astype(inputs.dtype)
        count = jnp.maximum(keep.sum(), 1).astype(inputs.dtype) * (height * width)  # 1: a batch of padding alone
        mean = inputs.sum(axis=(0, 1, 2), keepdims=True) / count  # [1, 1, 1, channels]
        centred = inputs - mean
        variance = (weights * centred**2).sum(axis=(0, 1, 2), keepdims=True) / count
        slope = scale[None, None, None, :] * jax.lax.rsqrt(variance + self.epsilon)
        return centred * slope + bias[None, None, None, :]


def as_vectors(inputs: Array) -> Array:
    """Flattens `[B, ...]` to float32 `[B, d]`; bfloat16 stays."""
    return _floats(inputs.reshape(inputs.shape[0], -1))


def as_images(inputs: Array) -> Array:
    """Returns `[B, H, W]` or `[B, H, W, channels]` as float32 `[B, H, W, channels]`; bfloat16 stays."""
    if inputs.ndim not in (3, 4):
        raise ValueError(
            f"inputs must be images [B, H, W] or [B, H, W, channels] for a convolutional model, got shape "
            f"{inputs.shape}; reshape the rows to images or use 'mlp' or 'logistic'."
        )
    return _floats(inputs[..., None] if inputs.ndim == 3 else inputs)


def _floats(inputs: Array) -> Array:
    """Returns inputs as the numbers that a network computes with."""
    return inputs if inputs.dtype == jnp.bfloat16 else inputs.astype(jnp.float32)


def check_sizes(name: str, sizes: int | Sequence[int]) -> Sequence[int]:
    """Returns the widths of layers, of which a single number is one.

    Raises ValueError unless every width is at least 1, TypeError unless they are whole numbers.

    >>> check_sizes("hidden", (64, 0))
    Traceback (most recent call last):
    ValueError: hidden must be at least 1 in every layer, got (64, 0); 64 is small.
    """
    widths = sizes if isinstance(sizes, Sequence) else (sizes,)
    if not all(isinstance(width, numbers.Integral) for width in widths):
        raise TypeError(f"{name} must be a whole number or a list of them, got {sizes!r}; 64 is small.")
    if any(width < 1 for width in widths):
        raise ValueError(f"{name} must be at least 1 in every layer, got {sizes}; 64 is small.")
    return widths


def check_rates(name: str, rates: float | Sequence[float], count: int = 1) -> None:
    """Raises ValueError unless there are so many rates of dropout, each at least 0 and below 1; a number is one."""
    given = rates if isinstance(rates, Sequence) else (rates,)
    if len(given) != count:
        raise ValueError(f"{name} must be {count} rates, one for each place, got {rates}; 0 switches it off.")
    if not all(0 <= rate < 1 for rate in given):
        raise ValueError(f"{name} must be at least 0 and below 1, got {rates}; 0 switches it off.")
