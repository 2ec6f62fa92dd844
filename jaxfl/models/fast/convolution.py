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

Squares of 4 x 4 outputs of a 3 x 3 kernel take 36 products in place of 144, F(4 x 4, 3 x 3), and of 2 x 2 16 in place
of 36.

Two outputs side by side see four inputs and take six multiplications; with sums of the inputs and of the kernel four
are enough, and for four outputs six in place of twelve. The same in both directions is one batched product over the
channels; its gradients are two more, of sums of the inputs, the kernel and the outputs' gradient. The sums follow from
the points at which products of polynomials are taken: for four outputs 0, 5/8, 3/2, their negatives and infinity. With
the usual 0, 1 and 2 errors in float32 were twice as large in the mean and four times at most; with these they are at
most five times those of slices in the mean of squares, 2e-6 of the outputs, and for squares of 2 x 2 twice.

Source: A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016, sections 4.1 and 4.2; the
points: B. Barabasz et al., "Error analysis and improving the accuracy of Winograd convolution for deep neural
networks", ACM Transactions on Mathematical Software 46 (4), 2020.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl.typing import Array

PaddingPairs = Sequence[tuple[int, int]]  # before and behind, for each spatial axis
AXIS_ORDER = ("NHWC", "HWIO", "NHWC")
SMALL_ARRAY, SMALLER_ARRAY = 1 << 22, 1 << 20  # numbers: 16 and 4 MB
FEW_OUTPUTS = 16  # outputs
SQUARE_CACHE = 1 << 21  # numbers of the sums of a block: 8 MB
KERNEL_PASSES = 80  # squares whose products take as long as the sums of the kernel do
POINTS = {2: (0, 1, -1), 4: (0, 5 / 8, -5 / 8, 3 / 2, -3 / 2)}  # by the side of a square; infinity is one more


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
    channels, outputs = kernel[2:]
    sides = _output_sides(inputs, kernel, padding)
    if min(channels, outputs) < 32 or channels + outputs < 80 or min(sides) < 1:
        return False
    side = square_side(inputs[0], sides)
    fits = gradient or (side + 2) ** 2 * _square_count(inputs[0], sides, side) * channels < SMALL_ARRAY
    return fits and _square_cost(inputs[0], sides, side) < 9 * inputs[0] * sides[0] * sides[1]


def square_side(rows: int, sides: Sequence[int]) -> int:
    """Returns the side of the squares that take the fewest multiplications for so many rows of outputs `[H', W']`."""
    return min(POINTS, key=lambda side: _square_cost(rows, sides, side))


def _square_cost(rows: int, sides: Sequence[int], side: int) -> int:
    """Returns the multiplications for a channel and an output; sums of the kernel count like those of some squares."""
    return (side + 2) ** 2 * (_square_count(rows, sides, side) + KERNEL_PASSES)


def _square_count(rows: int, sides: Sequence[int], side: int) -> int:
    return rows * (-(-sides[0] // side)) * (-(-sides[1] // side))  # the last ones reach into zeros


def _square_block(inputs: tuple[int, ...], kernel: tuple[int, ...], sides: Sequence[int], side: int) -> int:
    """Returns the rows that are taken at once, a share of all: as many as have their sums in a cache."""

    def fits(rows: int) -> bool:
        return (side + 2) ** 2 * _square_count(rows, sides, side) * max(kernel[2:]) <= SQUARE_CACHE

    rows = max([1, *(size for size in range(1, inputs[0] + 1) if inputs[0] % size == 0 and fits(size))])
    return rows if _square_count(rows, sides, side) > KERNEL_PASSES or rows == inputs[0] else inputs[0]


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
    if not min(counts):
        return jnp.zeros((inputs.shape[0], *counts, size[0] * size[1] * inputs.shape[3]), inputs.dtype)
    # each step's inputs are brought together, so that slices have no strides, and their gradients no holes
    ends = [count + (size[i] - 1) * dilation[i] // strides[i] for i, count in enumerate(counts)]
    edges = [(0, end * step - length) for end, step, length in zip(ends, strides, inputs.shape[1:3], strict=True)]
    steps = padded(inputs, (1, 2), edges, 0).reshape(-1, ends[0], strides[0], ends[1], strides[1], inputs.shape[3])

    def at(row: int, column: int) -> Array:
        (top, down), (left, across) = divmod(row, strides[0]), divmod(column, strides[1])
        return steps[:, top : top + counts[0], down, left : left + counts[1], across]

    rows, columns = (range(0, size[i] * dilation[i], dilation[i]) for i in (0, 1))
    return jnp.concatenate([at(row, column) for row in rows for column in columns], axis=-1)


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


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def as_squares(inputs: Array, kernel: Array, padding: PaddingPairs) -> Array:
    """Returns the convolution with a 3 x 3 kernel by squares of outputs, and so its gradients.

    >>> as_squares(jnp.ones((1, 4, 5, 1)), jnp.ones((3, 3, 1, 2)), ((0, 0), (0, 0)))[0, :, :, 0].round(5).tolist()
    [[9.0, 9.0, 9.0], [9.0, 9.0, 9.0]]
    """
    return _squares_product(inputs, kernel, tuple(map(tuple, padding)), transposed=False)


def _squares_gradients(padding: PaddingPairs, saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    """Returns the gradients of inputs and kernel from that of the outputs."""
    inputs, kernel = saved
    rest = tuple((2 - before, 2 - behind) for before, behind in padding)
    by_input = _squares_product(gradient, kernel[::-1, ::-1], rest, transposed=True)
    return by_input, _squares_kernel_gradient(inputs, gradient, tuple(map(tuple, padding)))


as_squares.defvjp(
    lambda inputs, kernel, padding: (as_squares(inputs, kernel, padding), (inputs, kernel)), _squares_gradients
)


# Equal convolutions are traced and lowered once.
@functools.partial(jax.jit, static_argnames=("padding", "transposed"))
def _squares_product(inputs: Array, kernel: Array, padding: PaddingPairs, *, transposed: bool) -> Array:
    """Returns the convolution by squares; `transposed` takes the kernel's outputs `[3, 3, ci, co]` as its inputs."""
    sides = _output_sides(inputs.shape, kernel.shape, padding)
    side = square_side(len(inputs), sides)
    _, of_kernel, of_outputs = _square_matrices(side)
    rows = _sums(of_kernel, list(_widened(kernel)), 0)
    kernels = _sums(of_kernel, [rows[:, place] for place in range(3)], 1)

    def block(inputs: Array) -> Array:
        sums = _square_sums(inputs, padding, sides, side)
        products = _square_dots(sums, kernels, 2, 2 if transposed else 1)  # [n, n, B, down, across, co]
        across = _sums(of_outputs.T, [products[:, place] for place in range(side + 2)], 4)
        outputs = _sums(of_outputs.T, list(across), 2)  # [B, down, side, across, side, co]
        outputs = outputs.reshape(len(inputs), outputs.shape[1] * side, -1, outputs.shape[-1])
        return outputs[:, : sides[0], : sides[1]].astype(inputs.dtype)

    size = _square_block(inputs.shape, kernel.shape, sides, side)
    if size == len(inputs):
        return block(inputs)
    outputs = jax.lax.map(block, inputs.reshape(-1, size, *inputs.shape[1:]))
    return outputs.reshape(len(inputs), *outputs.shape[2:])


@functools.partial(jax.jit, static_argnames="padding")
def _squares_kernel_gradient(inputs: Array, gradient: Array, padding: PaddingPairs) -> Array:
    """Returns the gradient of the kernel from that of the outputs, `[B, H', W', co]`."""
    sides = gradient.shape[1:3]
    side = square_side(len(inputs), sides)
    _, of_kernel, of_outputs = _square_matrices(side)
    down, across = (-(-length // side) for length in sides)
    pads = [(0, down * side - sides[0]), (0, across * side - sides[1])]

    def block(inputs: Array, gradient: Array) -> Array:
        slopes = padded(_widened(gradient), (1, 2), pads, 0).reshape(len(inputs), down, side, across, side, -1)
        rows = _sums(of_outputs, [slopes[:, :, place] for place in range(side)], 0)
        slopes = _sums(of_outputs, [rows[:, :, :, :, place] for place in range(side)], 1)
        return _square_dots(_square_sums(inputs, padding, sides, side), slopes, 1, 1)  # [n, n, ci, co]

    size = _square_block(inputs.shape, (3, 3, inputs.shape[3], gradient.shape[3]), sides, side)
    if size == len(inputs):
        products = block(inputs, gradient)
    else:
        blocks = [array.reshape(-1, size, *array.shape[1:]) for array in (inputs, gradient)]
        nothing = jax.tree.map(
            lambda one: jnp.zeros(one.shape, one.dtype), jax.eval_shape(block, *(b[0] for b in blocks))
        )
        products = jax.lax.scan(lambda total, part: (total + block(*part), None), nothing, tuple(blocks))[0]
    # the three places beside each other: written one behind another they would read all products three times
    rows = _sums(of_kernel.T, [products[:, place] for place in range(side + 2)], 2)  # [n, ci, 3, co]
    return _sums(of_kernel.T, list(rows), 1).transpose(1, 2, 0, 3).astype(inputs.dtype)


def _square_sums(inputs: Array, padding: PaddingPairs, sides: Sequence[int], side: int) -> Array:
    """Returns the sums of the inputs that every square sees, `[n, n, B, down, across, ci]`."""
    of_inputs, _, _ = _square_matrices(side)
    counts = [-(-length // side) + 1 for length in sides]  # one more, of which the last square sees two
    pads = [
        (before, side * count - length - before)
        for (before, _), count, length in zip(padding, counts, inputs.shape[1:3], strict=True)
    ]
    inputs = padded(_widened(inputs), (1, 2), pads, 0)
    rows = _sums(of_inputs, _neighbours(inputs, 1, side), 0)
    return _sums(of_inputs, _neighbours(rows, 3, side), 1)


def _neighbours(inputs: Array, axis: int, side: int) -> list[Array]:
    """Returns the `side + 2` neighbours along an axis that each square sees."""
    count = inputs.shape[axis] // side - 1
    inputs = inputs.reshape(*inputs.shape[:axis], count + 1, side, *inputs.shape[axis + 1 :])
    places = [(place % side, place // side) for place in range(side + 2)]
    return [
        jax.lax.slice_in_dim(
            jax.lax.index_in_dim(inputs, place, axis + 1, keepdims=False), begin, begin + count, 1, axis
        )
        for place, begin in places
    ]


def _sums(matrix: np.ndarray, parts: Sequence[Array], axis: int) -> Array:
    """Returns the sums of some arrays that the rows of a matrix say, along a new axis."""
    terms = [
        [
            part if factor == 1 else part * jnp.asarray(factor, part.dtype)
            for factor, part in zip(row, parts, strict=True)
            if factor
        ]
        for row in matrix
    ]
    return jnp.stack([functools.reduce(jnp.add, row) for row in terms], axis)


def _square_dots(left: Array, right: Array, left_axis: int, right_axis: int) -> Array:
    """Returns the products of `[n, n, ..., ci]` with `[n, n, ..., co]`, added up over an axis of their matrices."""
    one, other = (array.reshape(left.shape[0] ** 2, -1, array.shape[-1]) for array in (left, right))
    found = jax.lax.dot_general(one, other, (((left_axis,), (right_axis,)), ((0,), (0,))))
    kept = left.shape[2:-1] if left_axis == 2 else left.shape[-1:]
    return found.reshape(*left.shape[:2], *kept, -1)


@functools.cache
def _square_matrices(side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns what sums are made of inputs `[n, n]`, kernel `[n, 3]` and gradient `[n, side]`; n = side + 2.

    Polynomials with the numbers as coefficients are evaluated at the points, and their product is interpolated.
    """
    points = POINTS[side]
    of_inputs = np.zeros((side + 2, side + 2))
    of_kernel, of_outputs = (np.vander([*points, 0], width, increasing=True) for width in (3, side))
    of_kernel, of_outputs = of_kernel.astype(np.float64), of_outputs.astype(np.float64)
    of_kernel[-1], of_outputs[-1] = np.eye(3)[-1], np.eye(side)[-1]  # infinity
    for row, point in enumerate(points):
        others = np.polynomial.Polynomial.fromroots([other for other in points if other != point])
        of_inputs[row, :-1] = others.coef
        of_kernel[row] /= others(point)
    of_inputs[-1] = np.polynomial.Polynomial.fromroots(points).coef
    return np.where(np.abs(of_inputs) < 1e-12, 0, of_inputs), of_kernel, of_outputs


def _widened(array: Array) -> Array:
    return array if array.dtype.itemsize >= 4 else array.astype(jnp.float32)  # sums of narrow numbers would be rounded


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
