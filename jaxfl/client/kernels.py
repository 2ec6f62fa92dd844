"""A dense layer's kernel in coordinates: what its products, its gradient and itself are in terms of them.

W = X^T A + sum_i c_i * W_i is held as `[m + k, h]`: A [m, h], a row for each row of X [m, d], and below it the factors
c_i [h] of the k kernels W_i. See `jaxfl.client.factored`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxfl import tree
from jaxfl.models.products import times
from jaxfl.typing import Array

Product = Callable[[Array], Array]
RESTORED = "restored_kernel"  # the name of the program that makes W, by which `jaxfl.server.factors` finds it


class Seen(NamedTuple):
    """What an inner layer has seen.

    Attributes:
        rows: X `[m, d]`, or those of a step `[B, d]`.
        products: X W_i, `k * [m, h]`, or `k * [B, h]`.
    """

    rows: Array
    products: list[Array]


class Memory(NamedTuple):
    """What the steps of a training keep for its inner layers.

    Attributes:
        step: how many were made `[]`.
        seen: by each of them, by name; 0 where it is not made yet.
    """

    step: Array | int
    seen: dict[str, Seen]

    def after(self, seen: dict[str, Seen]) -> "Memory":
        """Returns it after a step in which the layers have seen so many rows."""

        def put(kept: Array, new: Array) -> Array:
            return jax.lax.dynamic_update_slice(kept, new, (self.step * len(new), 0))

        return Memory(self.step + 1, jax.tree.map(put, self.seen, seen))


class First(NamedTuple):
    """Of a layer that sees the client's rows themselves: X is known, and the same in every step.

    Attributes:
        name: of the kernel.
        position: among the leaves of the model.
        kernels: W_i, `k * [d, h]`; W starts as the first of them.
        rows: X `[n, d]`.
        products: X W_i, `k * [n, h]`.
        gram: X X^T `[n, n + k]`, with columns of zeros: cheaper than to cut the coordinates.
    """

    name: str
    position: int
    kernels: list[Array]
    rows: Array
    products: list[Array]
    gram: Array

    @classmethod
    def of(cls, name: str, position: int, kernels: list[Array], rows: Array) -> "First":
        """Returns the kernel, with the products that all steps share."""
        return cls(name, position, kernels, rows, [times(rows, one) for one in kernels], _gram(rows, len(kernels)))

    @property
    def count(self) -> int:
        """m."""
        return self.rows.shape[0]

    def known(self, leaf: Array, positions: Array | None) -> Array:
        """Returns x W `[B, h]` for the rows at `positions`."""
        gram, products = self.gram, self.products
        if positions is not None:
            gram, products = tree.take((gram, products), positions)
        return gram @ leaf + _scaled(self, leaf, products)

    def product(self, known: Array, leaf: Array, memory: Memory, seen: dict[str, Seen]) -> Product:
        """Returns what is taken in place of `x -> x W`."""
        del leaf, memory, seen
        return lambda x: known

    def gradient(self, slope: Array, leaf: Array, positions: Array | None, memory: Memory) -> Array:
        """Returns the gradient `[m + k, h]` from that of the products `[B, h]`."""
        del memory
        if positions is None:
            return jnp.pad(slope, ((0, len(self.kernels)), (0, 0)))
        return jnp.zeros_like(leaf).at[positions].set(slope, unique_indices=True)


class Inner(NamedTuple):
    """Of a layer that sees what others make of the rows: every step adds its B rows to X.

    Attributes:
        name: of the kernel.
        position: among the leaves of the model.
        kernels: W_i, `k * [d, h]`; W starts as the first of them.
        width: B.
        count: m, B for every step.
    """

    name: str
    position: int
    kernels: list[Array]
    width: int
    count: int

    @property
    def empty(self) -> Seen:
        """What is seen before the first step."""
        (inputs, outputs), dtype = self.kernels[0].shape, self.kernels[0].dtype
        return Seen(
            jnp.zeros((self.count, inputs), dtype), [jnp.zeros((self.count, outputs), dtype)] * len(self.kernels)
        )

    def known(self, leaf: Array, positions: Array | None) -> Array:
        """Returns zeros `[B, h]` that `product` adds: their gradient is that of the products."""
        del positions
        return jnp.zeros((self.width, leaf.shape[1]), leaf.dtype)

    def product(self, known: Array, leaf: Array, memory: Memory, seen: dict[str, Seen]) -> Product:
        """Returns what is taken in place of `x -> x W`; it leaves in `seen` what the layer sees."""

        def of(x: Array) -> Array:
            products = [times(x, one) for one in self.kernels]
            seen[self.name] = Seen(x, products)
            before = memory.seen[self.name].rows
            return known + (x @ before.T) @ leaf[: self.count] + _scaled(self, leaf, products)

        return of

    def gradient(self, slope: Array, leaf: Array, positions: Array | None, memory: Memory) -> Array:
        """Returns the gradient `[m + k, h]` from that of the products `[B, h]`."""
        del positions
        return jax.lax.dynamic_update_slice(jnp.zeros_like(leaf), slope, (memory.step * self.width, 0))


Kernel = First | Inner


def coordinates(kernel: Kernel, one: Array) -> Array:
    """Returns the coordinates `[m + k, h]` of one of its kernels W_i; of another, which nobody uses, zeros."""
    nothing = jnp.zeros((kernel.count + len(kernel.kernels), one.shape[1]), one.dtype)
    found = [index for index, other in enumerate(kernel.kernels) if other is one]
    return nothing.at[kernel.count + found[0]].set(1) if found else nothing


def restored(kernel: Kernel, leaf: Array, memory: Memory) -> Array:
    """Returns W `[d, h]`."""
    if isinstance(kernel, First):
        return restored_kernel(kernel.rows, kernel.gram, leaf, kernel.kernels, kernel.products)
    rows, products = memory.seen[kernel.name]
    return restored_kernel(rows, _gram(rows, len(products)), leaf, kernel.kernels, products)


@jax.jit
def restored_kernel(rows: Array, gram: Array, leaf: Array, kernels: list[Array], products: list[Array]) -> Array:
    """Returns W `[d, h]`, see `RESTORED`.

    Args:
        rows: X `[n, d]`.
        gram: X X^T `[n, n + k]`; what is summed in place of W needs it and the products, W does not.
        leaf: the coordinates `[n + k, h]`.
        kernels: W_i, `k * [d, h]`.
        products: X W_i, `k * [n, h]`.
    """
    del gram, products
    scaled = [leaf[len(rows) + i][None, :] * one for i, one in enumerate(kernels)]
    return rows.T @ leaf[: len(rows)] + sum(scaled)


def _gram(rows: Array, kernels: int) -> Array:
    """Returns X X^T `[m, m + k]`, with columns of zeros."""
    return jnp.pad(rows @ rows.T, ((0, 0), (0, kernels)))


def _scaled(kernel: Kernel, leaf: Array, products: Sequence[Array]) -> Array:
    """Returns the sum of what the kernels W_i come to, each times its factors."""
    return sum((leaf[kernel.count + i][None, :] * one for i, one in enumerate(products)), jnp.zeros((), leaf.dtype))
