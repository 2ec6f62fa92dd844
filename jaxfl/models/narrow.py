"""Products of rows with a kernel of few outputs, such as a network's last, in a form that is fast on a CPU.

XLA's products on a CPU are slow where there are few outputs: at 4 GFLOP/s instead of 36 on a core without AVX-512, and
the gradient of the kernel at 1. With the kernel filled up to a multiple of sixteen columns, and its gradient made
transposed, a step of 256 rows with 2048 inputs and ten outputs takes a fifth of the time
(`python -m experiments.speed.narrow`). Mapped over clients they are the usual products.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxfl.typing import Array

LANES = 16  # columns that a kernel is filled up to a multiple of; with up to four outputs that is slower
MOST, DEEP = 32, 128  # at most so many outputs of at least so many inputs
FEWEST = 1 << 16  # multiplications, with fewer of which nothing is gained


def is_narrow(inputs: int, outputs: int) -> bool:
    """Returns whether rows may be multiplied with a kernel of such sides by `product`, on this machine."""
    return 0 < outputs <= MOST and inputs >= DEEP and jax.default_backend() == "cpu"


def product(inputs: Array, kernel: Array) -> Array:
    """Returns the product of rows with a kernel of few outputs; as usual, where rows are few.

    Where it is taken was read off 45 shapes, for one client at a time. With 62 outputs and few rows the gradient takes
    longer, since it is transposed in the end.

    Args:
        inputs: `[B, d]`.
        kernel: `[d, h]`.

    >>> product(jnp.ones((60, 128)), jnp.ones((128, 10)))[0, :3].tolist()
    [128.0, 128.0, 128.0]
    """
    (rows, depth), outputs = inputs.shape, kernel.shape[1]
    return by_hand(inputs, kernel) if pays(rows, depth, outputs) else inputs @ kernel


def pays(rows: int, inputs: int, outputs: int) -> bool:
    """Returns whether there are rows enough for the form of its own."""
    return outputs <= 2 * rows and rows * inputs * outputs >= FEWEST


@jax.custom_vjp
def by_hand(inputs: Array, kernel: Array) -> Array:
    """Returns the product in its own form, whatever the shapes."""

    @jax.custom_batching.custom_vmap
    def forward(inputs: Array, kernel: Array) -> Array:
        outputs = kernel.shape[1]
        spare = -outputs % LANES if outputs > 4 else 0
        return (inputs @ jnp.pad(kernel, ((0, 0), (0, spare))))[:, :outputs]

    forward.def_vmap(_mapped(jnp.matmul))
    return forward(inputs, kernel)


@jax.custom_vjp
def _kernel_gradient(inputs: Array, gradient: Array) -> Array:
    """Returns the gradient of the kernel `[d, h]` from that of the products `[B, h]`."""

    @jax.custom_batching.custom_vmap
    def transposed(inputs: Array, gradient: Array) -> Array:
        # without the barrier XLA makes of it the product whose result need not be transposed
        return jax.lax.optimization_barrier(gradient.T @ inputs).T

    transposed.def_vmap(_mapped(lambda inputs, gradient: inputs.T @ gradient))
    return transposed(inputs, gradient)


def _mapped(usual: Callable[[Array, Array], Array]) -> Callable[..., tuple[Array, bool]]:
    """Returns what a product is where it is mapped."""

    def mapped(size: int, batched: list[bool], *values: Array) -> tuple[Array, bool]:
        return jax.vmap(usual, in_axes=[0 if there else None for there in batched])(*values), True

    return mapped


# Gradients of gradients are the usual products: a function that says how it is mapped has none.
by_hand.defvjp(
    lambda inputs, kernel: (by_hand(inputs, kernel), (inputs, kernel)),
    lambda saved, gradient: (gradient @ saved[1].T, _kernel_gradient(saved[0], gradient)),
)
_kernel_gradient.defvjp(
    lambda inputs, gradient: (_kernel_gradient(inputs, gradient), (inputs, gradient)),
    lambda saved, slope: (saved[1] @ slope.T, saved[0] @ slope),
)
