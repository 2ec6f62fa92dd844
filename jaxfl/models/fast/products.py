"""Fast forms of products on a CPU, of rows with a kernel of few outputs or with a large one.

XLA's products on a CPU are slow where there are few outputs, such as a network's last: at 4 GFLOP/s instead of 36 on a
core without AVX-512, and the gradient of the kernel at 1. With the kernel filled up to a multiple of sixteen columns,
and its gradient made transposed, a step of 256 rows with 2048 inputs and ten outputs takes a fifth of the time.

A kernel that a core's cache does not hold is copied by XLA's library before every product. With the rows transposed the
product is XLA's own, which reads the kernel once: 20 rows with 3136 x 2048 take 0.6 of the time, 50 rows half.

`python -m experiments.speed.products` prints both. Mapped over clients they are the usual products.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxfl.typing import Array

ProductForm = Callable[[Array, Array], Array]
LANES = 16  # columns that a kernel is filled up to a multiple of; with up to four outputs that is slower
NARROW_OUTPUTS, NARROW_INPUTS = 32, 128  # a narrow kernel: at most so many outputs of at least so many inputs
FEWEST_MULTIPLICATIONS = 1 << 16  # multiplications, with fewer of which nothing is gained
LARGE_KERNEL = 1 << 19  # numbers of a large kernel: 2 MB, the second-level cache of a core
LARGE_SIDES = 512, 256  # inputs and outputs that it has at least


def is_narrow(inputs: int, outputs: int) -> bool:
    """Returns whether a kernel of such sides has few outputs."""
    return 0 < outputs <= NARROW_OUTPUTS and inputs >= NARROW_INPUTS


def is_large(inputs: int, outputs: int) -> bool:
    """Returns whether a kernel of such sides is one that no cache holds."""
    return inputs >= LARGE_SIDES[0] and outputs >= LARGE_SIDES[1] and inputs * outputs >= LARGE_KERNEL


def may_pay(inputs: int, outputs: int) -> bool:
    """Returns whether `times` may be faster than the usual product with a kernel of such sides, on this machine."""
    return (is_narrow(inputs, outputs) or is_large(inputs, outputs)) and jax.default_backend() == "cpu"


def times(inputs: Array, kernel: Array) -> Array:
    """Returns the product of rows with a kernel, in the fastest form.

    The choice of the form was read off 45 and 50 shapes, for one client at a time. With 62 outputs and few rows the
    gradient of a narrow kernel takes longer, since it is transposed in the end.

    Args:
        inputs: `[B, d]`.
        kernel: `[d, h]`.

    >>> times(jnp.ones((60, 128)), jnp.ones((128, 10)))[0, :3].tolist()
    [128.0, 128.0, 128.0]
    """
    (rows, depth), outputs = inputs.shape, kernel.shape[1]
    form = product_form(rows, depth, outputs) if may_pay(depth, outputs) else jnp.matmul
    return form(inputs, kernel)


def product_form(rows: int, inputs: int, outputs: int) -> ProductForm:
    """Returns the form for so many rows."""
    if is_narrow(inputs, outputs) and outputs <= 2 * rows and rows * inputs * outputs >= FEWEST_MULTIPLICATIONS:
        return narrow
    return large if is_large(inputs, outputs) and rows > 1 else jnp.matmul


def _unless_mapped(form: ProductForm, usual: ProductForm) -> ProductForm:
    """Returns `form` where it is not mapped, and `usual` where it is."""
    alone = jax.custom_batching.custom_vmap(form)

    @alone.def_vmap
    def mapped(size: int, batched: list[bool], *values: Array) -> tuple[Array, bool]:
        return jax.vmap(usual, in_axes=[0 if there else None for there in batched])(*values), True

    return alone


def _transposed_product(inputs: Array, gradient: Array) -> Array:
    # without the barrier XLA computes the product whose result need not be transposed
    return jax.lax.optimization_barrier(gradient.T @ inputs).T


@jax.custom_vjp
def _kernel_gradient(inputs: Array, gradient: Array) -> Array:
    """Returns the gradient of a narrow kernel `[d, h]` from that of the products `[B, h]`."""
    return _unless_mapped(_transposed_product, lambda inputs, gradient: inputs.T @ gradient)(inputs, gradient)


def _padded_product(inputs: Array, kernel: Array) -> Array:
    outputs = kernel.shape[1]
    spare = -outputs % LANES if outputs > 4 else 0
    return (inputs @ jnp.pad(kernel, ((0, 0), (0, spare))))[:, :outputs]


@jax.custom_vjp
def narrow(inputs: Array, kernel: Array) -> Array:
    """Returns the product with a kernel of few outputs in its own form, whatever the shapes."""
    return _unless_mapped(_padded_product, jnp.matmul)(inputs, kernel)


def _column_product(inputs: Array, kernel: Array) -> Array:
    # of rows that lie transposed, which the barrier keeps so, XLA's library makes no product
    columns = jax.lax.optimization_barrier(inputs.T)
    return jax.lax.dot_general(columns, kernel, (((0,), (0,)), ((), ())))


@jax.custom_vjp
def large(inputs: Array, kernel: Array) -> Array:
    """Returns the product with a large kernel in its own form, whatever the shapes."""
    return _unless_mapped(_column_product, jnp.matmul)(inputs, kernel)


# Gradients of gradients are the usual products: a function that says how it is mapped has none.
narrow.defvjp(
    lambda inputs, kernel: (narrow(inputs, kernel), (inputs, kernel)),
    lambda saved, gradient: (gradient @ saved[1].T, _kernel_gradient(saved[0], gradient)),
)
large.defvjp(
    lambda inputs, kernel: (large(inputs, kernel), (inputs, kernel)),
    lambda saved, gradient: (gradient @ saved[1].T, saved[0].T @ gradient),
)
_kernel_gradient.defvjp(
    lambda inputs, gradient: (_kernel_gradient(inputs, gradient), (inputs, gradient)),
    lambda saved, slope: (saved[1] @ slope.T, saved[0] @ slope),
)
