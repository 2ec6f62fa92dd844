"""Fast forms of convolution and pooling, where many clients have kernels of their own.

Two things are slow. `vmap` of a convolution over per-client kernels becomes a grouped convolution, on CPU and GPU alike
(jax #13800, #26266). And inside a loop XLA's CPU backend leaves the convolution of a kernel's gradient in a form that
takes a slow path: 2 to 6 GFLOP/s on one core instead of 100 to 190. The fast forms are

- a matrix product: the kh * kw shifted slices of the input, side by side, times the kernel. Under `vmap` that is a
  batched matrix product;
- for one client at a time on a CPU, a convolution whose kernel gradient is written by hand in the layout that XLA has a
  fast path for (batch and channel axes exchanged), if XLA's library is kept from it, see `jaxfl.engine.jit`. Twice as
  fast as slices where these do not fit the cache;
- there too, 3 x 3 kernels of many channels with fewer multiplications, see below.

Which one is chosen by shape, see `slices_win` and `squares_win`; without a gradient it is more often the convolution.
With few outputs slices are taken from images with their rows last, see `jaxfl.models.fast.rows_last`.

Pooling is a tournament of slices, one axis after the other: selects, whose gradients are selects, where the gradient of
`reduce_window` scatters. A tie goes to the first, as there.

Convolutions with 3 x 3 kernels by 16 products in place of 36: F(2 x 2, 3 x 3).

Two outputs side by side see four inputs and take six multiplications; with sums of the inputs and of the kernel four
are enough. In both directions that is 16 multiplications for a square of 2 x 2 outputs in place of 36, and each of the
16 is one matrix product of all squares, over the channels. The sums only add and halve, so that float32 results are as
near to exact ones as those of other forms. Larger squares need factors that lose a digit, and were no faster on a CPU.

Source: A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016, section 4.1.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxfl.typing import Array


def winograd(inputs: Array, kernel: Array) -> Array:
    """Returns a convolution without padding, equal to `jax.lax.conv_general_dilated` to rounding.

    Args:
        inputs: `[B, H, W, ci]`.
        kernel: `[3, 3, ci, co]`.

    Returns:
        `[B, H - 2, W - 2, co]`.

    >>> winograd(jnp.ones((1, 4, 5, 1)), jnp.ones((3, 3, 1, 2)))[0, :, :, 0].tolist()
    [[9.0, 9.0, 9.0], [9.0, 9.0, 9.0]]
    """
    sides = [side - 2 for side in inputs.shape[1:3]]
    down, across = (-(-side // 2) for side in sides)  # squares of outputs; the last ones reach into zeros
    inputs = jnp.pad(inputs, [(0, 0), *((0, side % 2) for side in sides), (0, 0)])
    pairs = inputs.reshape(-1, down + 1, 2, across + 1, 2, inputs.shape[3])
    squares = [_pair_sums(rows, 2) for rows in _pair_sums(pairs, 1)]  # 4 x 4 of [B, down, across, ci]
    kernels = [_kernel_sums(rows) for rows in _kernel_sums(kernel)]  # 4 x 4 of [ci, co]
    products = [list(map(_square_product, *both)) for both in zip(squares, kernels, strict=True)]
    columns = [_pair_of_outputs(column) for column in zip(*products, strict=True)]  # 4 x 2 of [B, down, across, co]
    outputs = jnp.stack([jnp.stack(_pair_of_outputs(row), 3) for row in zip(*columns, strict=True)], 2)
    return outputs.reshape(-1, 2 * down, 2 * across, kernel.shape[3])[:, : sides[0], : sides[1]]


def _pair_sums(pairs: Array, axis: int) -> tuple[Array, Array, Array, Array]:
    """Returns the four sums of a pair of neighbours and the next pair, along an axis of pairs `[..., n, 2, ...]`."""
    first, second = (jax.lax.index_in_dim(pairs, place, axis + 1, keepdims=False) for place in (0, 1))
    count = pairs.shape[axis] - 1
    a, c = (jax.lax.slice_in_dim(first, place, place + count, axis=axis) for place in (0, 1))
    b, d = (jax.lax.slice_in_dim(second, place, place + count, axis=axis) for place in (0, 1))
    return a - c, b + c, c - b, b - d


def _kernel_sums(kernel: Array) -> tuple[Array, Array, Array, Array]:
    """Returns the four sums of the three places of a kernel, `[3, ...]`."""
    ends, middle = kernel[0] + kernel[2], kernel[1]
    return kernel[0], (ends + middle) / 2, (ends - middle) / 2, kernel[2]


def _pair_of_outputs(products: Sequence[Array]) -> tuple[Array, Array]:
    """Returns two outputs of four products."""
    a, b, c, d = products
    return a + b + c, b - c - d


def _square_product(inputs: Array, kernel: Array) -> Array:
    flat = inputs.reshape(-1, inputs.shape[-1]) @ kernel  # on two axes a product is faster on a CPU
    return flat.reshape(*inputs.shape[:-1], -1)


PaddingPairs = Sequence[tuple[int, int]]  # before and behind, for each spatial axis
AXIS_ORDER = ("NHWC", "HWIO", "NHWC")
SMALL_ARRAY, SMALLER_ARRAY = 1 << 22, 1 << 20  # numbers: 16 and 4 MB
FEW_OUTPUTS = 16  # outputs


def convolution(
    inputs: Array,
    kernel: Array,
    padding: PaddingPairs,
    strides: Sequence[int] = (1, 1),
    dilation: Sequence[int] = (1, 1),
) -> Array:
    """Returns a convolution, equal to `jax.lax.conv_general_dilated` to rounding.

    Args:
        inputs: `[B, H, W, ci]`.
        kernel: `[kh, kw, ci, co]`.
        padding: zeros before and behind, for the height and the width; negative numbers crop.
        strides: of the outputs.
        dilation: steps between the places of the kernel.

    Returns:
        `[B, H', W', co]`.

    >>> convolution(jnp.ones((1, 4, 4, 1)), jnp.ones((3, 3, 1, 2)), [(0, 0), (0, 0)]).shape
    (1, 2, 2, 2)
    """
    pads = tuple((before, behind) for before, behind in padding)
    steps, holes = tuple(strides), tuple(dilation)
    if steps == holes == (1, 1):
        if not slices_win(inputs.shape, kernel.shape, pads):
            return one_client_convolution(inputs, kernel, pads)
        if not slices_win(inputs.shape, kernel.shape, pads, gradient=False):
            return trained_as_product(inputs, kernel, pads)
    return as_product(inputs, kernel, pads, steps, holes)


def slices_win(
    inputs: tuple[int, ...], kernel: tuple[int, ...], padding: PaddingPairs, *, gradient: bool = True
) -> bool:
    """Returns whether slices are the faster form for one client at a time on a CPU.

    Read off fifty shapes, in a loop, forward and gradient (`experiments.speed.convolutions` has 29): slices win where
    they are a small array (of few channels, not so small), where the outputs are few, and where the image is so small
    that the gradient's convolution takes a slow path. Without a gradient their size makes no difference. Where squares
    win, slices do not.
    """
    if squares_win(inputs, kernel, padding, gradient=gradient):
        return False
    height, width, channels, outputs = kernel
    sides = _output_sides(inputs, kernel, padding)
    numbers = inputs[0] * sides[0] * sides[1] * height * width * channels
    small = gradient and numbers < (SMALL_ARRAY if channels < 8 else SMALLER_ARRAY)
    return small or outputs < FEW_OUTPUTS or min(sides) < 6 or height * width == 1


def squares_win(
    inputs: tuple[int, ...], kernel: tuple[int, ...], padding: PaddingPairs, *, gradient: bool = True
) -> bool:
    """Returns whether squares of outputs are the fastest form for one client at a time on a CPU.

    Read off the same shapes as `slices_win`: squares win where there are channels enough that fewer products outweigh
    the sums, and squares enough that they outweigh those of the kernel. Without a gradient the sums must fit the cache.
    """
    if kernel[:2] != (3, 3) or jax.default_backend() != "cpu":
        return False
    down, across = (-(-side // 2) for side in _output_sides(inputs, kernel, padding))
    squares = inputs[0] * down * across
    many = min(kernel[2:]) >= 32 and sum(kernel[2:]) >= 80 and squares >= 64
    return many and (gradient or 16 * squares * kernel[2] < SMALL_ARRAY)


def _output_sides(inputs: tuple[int, ...], kernel: tuple[int, ...], padding: PaddingPairs) -> tuple[int, int]:
    """Returns the sides H' and W' of the outputs."""
    height, width = (inputs[1 + i] + sum(padding[i]) - kernel[i] + 1 for i in (0, 1))
    return height, width


def shifted_slices(
    inputs: Array,
    size: Sequence[int],
    padding: PaddingPairs,
    strides: Sequence[int] = (1, 1),
    dilation: Sequence[int] = (1, 1),
) -> Array:
    """Returns the patch under the kernel at every output position.

    Args:
        inputs: `[B, H, W, ci]`.
        size: `(kh, kw)` of the kernel.
        padding: as for `convolution`.
        strides: as for `convolution`.
        dilation: as for `convolution`.

    Returns:
        `[B, H', W', kh * kw * ci]`, in the order of a kernel `[kh, kw, ci, co]` reshaped to `[kh * kw * ci, co]`.

    >>> shifted_slices(jnp.arange(9.0).reshape(1, 3, 3, 1), (2, 2), [(0, 0), (0, 0)])[0, 1, 1].tolist()
    [4.0, 5.0, 7.0, 8.0]
    """
    inputs = padded(inputs, (1, 2), padding, 0)
    counts = [
        max(0, (inputs.shape[1 + i] - (size[i] - 1) * dilation[i] - 1) // strides[i] + 1) for i in (0, 1)
    ]  # H', W'
    places = [
        [slice(j * dilation[i], j * dilation[i] + (counts[i] - 1) * strides[i] + 1, strides[i]) for j in range(size[i])]
        for i in (0, 1)
    ]
    if not min(counts):
        return jnp.zeros((inputs.shape[0], *counts, size[0] * size[1] * inputs.shape[3]), inputs.dtype)
    return jnp.concatenate([inputs[:, rows, columns, :] for rows in places[0] for columns in places[1]], axis=-1)


def as_product(
    inputs: Array,
    kernel: Array,
    padding: PaddingPairs,
    strides: Sequence[int] = (1, 1),
    dilation: Sequence[int] = (1, 1),
) -> Array:
    """Returns the convolution as shifted slices times a matrix."""
    patches = shifted_slices(inputs, kernel.shape[:2], padding, strides, dilation)
    # One flat product: XLA's CPU backend is faster on two axes than on a product with three row axes.
    outputs = patches.reshape(-1, patches.shape[-1]) @ kernel.reshape(patches.shape[-1], -1)
    return outputs.reshape(*patches.shape[:-1], kernel.shape[-1])


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def one_client_convolution(inputs: Array, kernel: Array, padding: tuple[tuple[int, int], ...]) -> Array:
    """Returns the convolution for one client at a time; mapped over kernels by slices, over inputs as one call."""

    @jax.custom_batching.custom_vmap
    def forward(inputs: Array, kernel: Array) -> Array:
        if squares_win(inputs.shape, kernel.shape, padding, gradient=False):
            return as_squares(inputs, kernel, padding)
        return _lax_convolution(inputs, kernel, padding)

    @forward.def_vmap
    def mapped(size: int, batched: list[bool], inputs: Array, kernel: Array) -> tuple[Array, bool]:
        if not batched[1]:  # one kernel for all: one convolution of all rows
            outputs = forward(inputs.reshape(-1, *inputs.shape[2:]), kernel)
            return outputs.reshape(size, -1, *outputs.shape[1:]), True
        form = functools.partial(as_product, padding=padding)
        return jax.vmap(form, in_axes=(0 if batched[0] else None, 0))(inputs, kernel), True

    return forward(inputs, kernel)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _gradients(
    inputs: Array, kernel: Array, gradient: Array, padding: tuple[tuple[int, int], ...]
) -> tuple[Array, Array]:
    """Returns the gradients of inputs and kernel; those of these are as XLA makes them."""

    @jax.custom_batching.custom_vmap
    def backward(inputs: Array, kernel: Array, gradient: Array) -> tuple[Array, Array]:
        if jax.default_backend() != "cpu":
            return _lax_gradients(inputs, kernel, gradient, padding)
        if squares_win(inputs.shape, kernel.shape, padding):
            return jax.vjp(functools.partial(as_squares, padding=padding), inputs, kernel)[1](gradient)
        rest = [
            (size - 1 - before, size - 1 - behind)
            for size, (before, behind) in zip(kernel.shape[:2], padding, strict=True)
        ]
        by_input = _lax_convolution(gradient, kernel[::-1, ::-1].swapaxes(2, 3), rest)
        by_kernel = _lax_convolution(inputs.transpose(3, 1, 2, 0), gradient.transpose(1, 2, 0, 3), padding)
        return by_input, by_kernel.transpose(1, 2, 0, 3)

    @backward.def_vmap
    def mapped(size: int, batched: list[bool], *values: Array) -> tuple[tuple[Array, Array], tuple[bool, bool]]:
        def one(inputs: Array, kernel: Array, gradient: Array) -> tuple[Array, Array]:
            return jax.vjp(functools.partial(as_product, padding=padding), inputs, kernel)[1](gradient)

        return jax.vmap(one, in_axes=[0 if there else None for there in batched])(*values), (True, True)

    return backward(inputs, kernel, gradient)


def as_squares(inputs: Array, kernel: Array, padding: PaddingPairs) -> Array:
    """Returns the convolution with a 3 x 3 kernel by squares of 2 x 2 outputs."""
    wide = inputs.dtype if inputs.dtype.itemsize >= 4 else jnp.float32  # sums of narrower numbers would be rounded
    outputs = winograd(padded(inputs, (1, 2), padding, 0).astype(wide), kernel.astype(wide))
    return outputs.astype(inputs.dtype)


def _lax_convolution(inputs: Array, kernel: Array, padding: PaddingPairs) -> Array:
    return jax.lax.conv_general_dilated(inputs, kernel, (1, 1), padding, dimension_numbers=AXIS_ORDER)


def _lax_gradients(inputs: Array, kernel: Array, gradient: Array, padding: PaddingPairs) -> tuple[Array, Array]:
    return jax.vjp(lambda x, k: _lax_convolution(x, k, padding), inputs, kernel)[1](gradient)


one_client_convolution.defvjp(
    lambda inputs, kernel, padding: (one_client_convolution(inputs, kernel, padding), (inputs, kernel)),
    lambda padding, saved, gradient: _gradients(*saved, gradient, padding),
)
_gradients.defvjp(
    lambda *values: (_gradients(*values), values[:3]),
    lambda padding, saved, slopes: jax.vjp(functools.partial(_lax_gradients, padding=padding), *saved)[1](slopes),
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def trained_as_product(inputs: Array, kernel: Array, padding: tuple[tuple[int, int], ...]) -> Array:
    """Returns the convolution as shifted slices if its gradient is taken, and as `one_client_convolution` if not."""
    return one_client_convolution(inputs, kernel, padding)


trained_as_product.defvjp(
    lambda inputs, kernel, padding: jax.vjp(functools.partial(as_product, padding=padding), inputs, kernel),
    lambda padding, pull_back, gradient: pull_back(gradient),
)


def max_pool(inputs: Array, window: Sequence[int], strides: Sequence[int], padding: PaddingPairs) -> Array:
    """Returns the maximum over windows; windows may overlap, over any axes.

    Args:
        inputs: any array.
        window: its sides, for each axis; 1 where nothing is pooled.
        strides: for each axis.
        padding: how much of -inf before and behind, for each axis.

    Returns:
        Equal to `jax.lax.reduce_window` with `jax.lax.max`, NaN included. The gradient of a tie goes to the first.

    >>> max_pool(jnp.arange(16.0).reshape(1, 4, 4, 1), (1, 2, 2, 1), (1, 2, 2, 1), [(0, 0)] * 4).ravel().tolist()
    [5.0, 7.0, 13.0, 15.0]
    """

    def larger(one: Array, other: Array) -> Array:
        # A select and not `maximum`: both of its gradients come from one comparison, so that exactly one place gets
        # the gradient even if XLA computes the inputs a second time and rounds them otherwise.
        return jnp.where((one >= other) | (one != one), one, other)

    return _pooled(larger, inputs, window, strides, padding, -jnp.inf)


def sum_pool(inputs: Array, window: Sequence[int], strides: Sequence[int], padding: PaddingPairs) -> Array:
    """Returns the sum over windows, as `max_pool` does the maximum, with zeros around."""
    return _pooled(jnp.add, inputs, window, strides, padding, 0)


def _pooled(join, inputs: Array, window: Sequence[int], strides: Sequence[int], padding: PaddingPairs, around) -> Array:
    """Joins the places of every window, one axis after the other from the last: of a tie the first place wins."""
    for axis in reversed(range(inputs.ndim)):
        size, step = window[axis], strides[axis]
        if size == step == 1 and not any(padding[axis]):
            continue
        inputs = padded(inputs, (axis,), [padding[axis]], around)
        count = max(0, (inputs.shape[axis] - size) // step + 1)
        if size == step:  # windows side by side: a reshape, whose slices need no stride
            inputs = jax.lax.slice_in_dim(inputs, 0, count * step, axis=axis)
            inputs = inputs.reshape(*inputs.shape[:axis], count, step, *inputs.shape[axis + 1 :])
            places = [jax.lax.index_in_dim(inputs, place, axis + 1, keepdims=False) for place in range(size)]
        else:
            ends = [place + (count - 1) * step + 1 if count else place for place in range(size)]
            places = [jax.lax.slice_in_dim(inputs, place, end, step, axis) for place, end in enumerate(ends)]
        inputs = functools.reduce(join, places)
    return inputs


def padded(inputs: Array, axes: Sequence[int], padding: PaddingPairs, value) -> Array:
    """Pads some axes; negative numbers crop."""
    edges = [(0, 0, 0)] * inputs.ndim
    for axis, (before, behind) in zip(axes, padding, strict=True):
        edges[axis] = (before, behind, 0)
    if not any(before or behind for before, behind, _ in edges):
        return inputs
    return jax.lax.pad(inputs, jnp.asarray(value, inputs.dtype), edges)
