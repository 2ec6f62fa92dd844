"""Convolutions with 3 x 3 kernels by 16 products in place of 36: F(2 x 2, 3 x 3).

Two outputs side by side see four inputs and take six multiplications; with sums of the inputs and of the kernel four
are enough. In both directions that is 16 multiplications for a square of 2 x 2 outputs in place of 36, and each of the
16 is one matrix product of all squares, over the channels. The sums only add and halve, so that float32 results are as
near to exact ones as those of other forms. Larger squares need factors that lose a digit, and were no faster on a CPU.

Source: A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016, section 4.1.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxfl.typing import Array


def convolution(inputs: Array, kernel: Array) -> Array:
    """Returns a convolution without padding, equal to `jax.lax.conv_general_dilated` to rounding.

    Args:
        inputs: `[B, H, W, ci]`.
        kernel: `[3, 3, ci, co]`.

    Returns:
        `[B, H - 2, W - 2, co]`.

    >>> convolution(jnp.ones((1, 4, 5, 1)), jnp.ones((3, 3, 1, 2)))[0, :, :, 0].tolist()
    [[9.0, 9.0, 9.0], [9.0, 9.0, 9.0]]
    """
    sides = [side - 2 for side in inputs.shape[1:3]]
    down, across = (-(-side // 2) for side in sides)  # squares of outputs; the last ones reach into zeros
    inputs = jnp.pad(inputs, [(0, 0), *((0, side % 2) for side in sides), (0, 0)])
    pairs = inputs.reshape(-1, down + 1, 2, across + 1, 2, inputs.shape[3])
    squares = [_of_pairs(rows, 2) for rows in _of_pairs(pairs, 1)]  # 4 x 4 of [B, down, across, ci]
    kernels = [_of_kernel(rows) for rows in _of_kernel(kernel)]  # 4 x 4 of [ci, co]
    products = [list(map(_product, *both)) for both in zip(squares, kernels, strict=True)]
    columns = [_outputs(column) for column in zip(*products, strict=True)]  # 4 x 2 of [B, down, across, co]
    outputs = jnp.stack([jnp.stack(_outputs(row), 3) for row in zip(*columns, strict=True)], 2)
    return outputs.reshape(-1, 2 * down, 2 * across, kernel.shape[3])[:, : sides[0], : sides[1]]


def _of_pairs(pairs: Array, axis: int) -> tuple[Array, Array, Array, Array]:
    """Returns the four sums of a pair of neighbours and the next pair, along an axis of pairs `[..., n, 2, ...]`."""
    first, second = (jax.lax.index_in_dim(pairs, place, axis + 1, keepdims=False) for place in (0, 1))
    count = pairs.shape[axis] - 1
    a, c = (jax.lax.slice_in_dim(first, place, place + count, axis=axis) for place in (0, 1))
    b, d = (jax.lax.slice_in_dim(second, place, place + count, axis=axis) for place in (0, 1))
    return a - c, b + c, c - b, b - d


def _of_kernel(kernel: Array) -> tuple[Array, Array, Array, Array]:
    """Returns the four sums of the three places of a kernel, `[3, ...]`."""
    ends, middle = kernel[0] + kernel[2], kernel[1]
    return kernel[0], (ends + middle) / 2, (ends - middle) / 2, kernel[2]


def _outputs(products: Sequence[Array]) -> tuple[Array, Array]:
    """Returns two outputs of four products."""
    a, b, c, d = products
    return a + b + c, b - c - d


def _product(inputs: Array, kernel: Array) -> Array:
    flat = inputs.reshape(-1, inputs.shape[-1]) @ kernel  # on two axes a product is faster on a CPU
    return flat.reshape(*inputs.shape[:-1], -1)
