"""Layers that stay fast when every client has kernels of its own.

`vmap` of a convolution over per-client kernels becomes a grouped convolution, slow on CPU and GPU alike (jax #13800,
#26266), and inside any loop XLA's CPU convolution is slow even for one client. Here a convolution is a matrix product:
the kh * kw shifted slices of the input, side by side, times the kernel. Under `vmap` that is a batched matrix product,
and pooling is a reshape and a maximum, so nothing here needs a convolution or a `reduce_window`.

Measured inside a scan over clients (LEAF's 28x28x1 -> 5x5x32 and 14x14x32 -> 5x5x64, batches of 20, two CPU cores,
forward and gradient): 93 GFLOP/s for the form below, 86 without flattening the rows first, 76-80 with a hand-written
backward pass (`custom_vjp`, whose input gradient is again made of shifted slices), 69 with one product per kernel row.
So the gradient is left to JAX, which also lets XLA drop the input gradient of a first layer.

Parameters are named and shaped as in `flax.linen`, so that a model can be moved between the two.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxfl.schema import checked
from jaxfl.typing import Array, Key

Initializer = Callable[..., Array]  # (key, shape, dtype) -> array
Padding = Literal["SAME", "VALID"]


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
def shifted_slices(inputs: Array, kernel_size: tuple[int, int], padding: Padding = "SAME") -> Array:
    """Returns the patch under the kernel at every output position.

    Args:
        inputs: `[B, H, W, ci]`.
        kernel_size: `(kh, kw)`.
        padding: "SAME" (zeros around, as XLA pads) or "VALID".

    Returns:
        `[B, H', W', kh * kw * ci]`, in the order of a kernel `[kh, kw, ci, co]` reshaped to `[kh * kw * ci, co]`.

    >>> shifted_slices(jnp.arange(9.0).reshape(1, 3, 3, 1), (2, 2), "VALID")[0, 1, 1].tolist()
    [4.0, 5.0, 7.0, 8.0]
    """
    if padding == "SAME":
        inputs = jnp.pad(inputs, ((0, 0), *(((size - 1) // 2, size // 2) for size in kernel_size), (0, 0)))
    rows, columns = kernel_size
    height, width = inputs.shape[1] - rows + 1, inputs.shape[2] - columns + 1
    if height < 1 or width < 1:
        raise ValueError(
            f"kernel_size must be at most the input's height and width {inputs.shape[1:3]} with padding 'VALID', "
            f"got {kernel_size}; use larger images, a smaller kernel or padding='SAME'."
        )
    return jnp.concatenate(
        [inputs[:, i : i + height, j : j + width, :] for i in range(rows) for j in range(columns)], axis=-1
    )


@checked
def max_pool(inputs: Array, window: int = 2, padding: Padding = "VALID", *, by_place: bool = False) -> Array:
    """Maximum over non-overlapping windows (stride = window), by reshape.

    The gradient of a tie is shared by the tied entries (`flax.linen.max_pool` gives it to the first). Since the maximum
    and a relu commute, put the relu after the pooling: the same function and gradient at a quarter of the work.

    Args:
        inputs: `[B, H, W, channels]`.
        window: side of the square window.
        padding: what happens to a rest when the window does not divide the size: "VALID" crops it, "SAME" completes
            it with -inf.
        by_place: send the gradient to the place that the forward pass found (the first of a tie), not to what equals
            the maximum. A tenth slower, and needed behind a batch norm: XLA may compute the inputs a second time,
            round otherwise, and then find no equal at all, which is 0 / 0.

    Returns:
        `[B, H', W', channels]` with H' = floor(H / window) for "VALID" and ceil(H / window) for "SAME".

    >>> max_pool(jnp.arange(16.0).reshape(1, 4, 4, 1)).ravel().tolist()
    [5.0, 7.0, 13.0, 15.0]
    """
    batch, height, width, channels = inputs.shape
    if padding == "SAME":
        rest = [-size % window for size in (height, width)]
        if any(rest):
            edges = [(size // 2, size - size // 2) for size in rest]
            inputs = jnp.pad(inputs, ((0, 0), *edges, (0, 0)), constant_values=-jnp.inf)
    else:
        inputs = inputs[:, : height - height % window, : width - width % window]
    rows, columns = inputs.shape[1] // window, inputs.shape[2] // window
    if rows < 1 or columns < 1:
        raise ValueError(
            f"window must be at most the input's height and width {(height, width)} with padding 'VALID', "
            f"got {window}; use larger images, fewer pooling layers or padding='SAME'."
        )
    windows = inputs.reshape(batch, rows, window, columns, window, channels)
    return _max_by_place(windows) if by_place else windows.max(axis=(2, 4))


@jax.custom_vjp
def _max_by_place(windows: Array) -> Array:
    """Returns the maxima `[B, H', W', channels]` of `windows [B, H', h, W', w, channels]`."""
    return windows.max(axis=(2, 4))


def _places(windows: Array) -> Array:
    """Returns a number for every place of a window."""
    height, width = windows.shape[2], windows.shape[4]
    return jnp.arange(height * width, dtype=jnp.int32).reshape(1, 1, height, 1, width, 1)


def _find_max(windows: Array) -> tuple[Array, tuple[Array, Array]]:
    def larger(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
        first = (one[0] >= other[0]) | jnp.isnan(one[0])
        return jax.lax.select(first, one[0], other[0]), jax.lax.select(first, one[1], other[1])

    places = _places(windows)
    lowest = jnp.array(-jnp.inf, windows.dtype), jnp.int32(0)
    found, place = jax.lax.reduce((windows, jnp.broadcast_to(places, windows.shape)), lowest, larger, (2, 4))
    return found, (place, places)


def _send_to_max(found: tuple[Array, Array], gradient: Array) -> tuple[Array]:
    place, places = found
    here = place[:, :, None, :, None, :] == places
    return (jnp.where(here, gradient[:, :, None, :, None, :], 0),)


_max_by_place.defvjp(_find_max, _send_to_max)


class Conv(nn.Module):
    """A convolution of stride 1 as shifted slices times a matrix; equal to `flax.linen.Conv`.

    Attributes:
        features: output channels.
        kernel_size: `(kh, kw)`.
        padding: "SAME" or "VALID".
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
        patches = shifted_slices(inputs, self.kernel_size, self.padding)  # [B, H', W', kh * kw * ci]
        # One flat product: XLA's CPU backend is faster on two axes than on a product with three row axes.
        outputs = patches.reshape(-1, fan_in) @ kernel.reshape(fan_in, self.features) + bias[None, :]
        return outputs.reshape(*patches.shape[:-1], self.features)


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
    """Flattens `[B, ...]` to float32 `[B, d]`."""
    return inputs.reshape(inputs.shape[0], -1).astype(jnp.float32)


def as_images(inputs: Array) -> Array:
    """Returns `[B, H, W]` or `[B, H, W, channels]` as float32 `[B, H, W, channels]`."""
    if inputs.ndim not in (3, 4):
        raise ValueError(
            f"inputs must be images [B, H, W] or [B, H, W, channels] for a convolutional model, got shape "
            f"{inputs.shape}; reshape the rows to images or use 'mlp' or 'logistic'."
        )
    return (inputs[..., None] if inputs.ndim == 3 else inputs).astype(jnp.float32)


def check_sizes(name: str, sizes: int | Sequence[int]) -> None:
    """Raises ValueError unless every width of a layer is at least 1.

    >>> check_sizes("hidden", (64, 0))
    Traceback (most recent call last):
    ValueError: hidden must be at least 1 in every layer, got (64, 0); 64 is small.
    """
    if any(size < 1 for size in ((sizes,) if isinstance(sizes, int) else sizes)):
        raise ValueError(f"{name} must be at least 1 in every layer, got {sizes}; 64 is small.")


def check_rates(name: str, rates: float | Sequence[float]) -> None:
    """Raises ValueError unless every rate of dropout is at least 0 and below 1."""
    if not all(0 <= rate < 1 for rate in ((rates,) if isinstance(rates, (int, float)) else rates)):
        raise ValueError(f"{name} must be at least 0 and below 1, got {rates}; 0 switches it off.")
