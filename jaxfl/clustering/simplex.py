"""Convex weights: the nearest point of the simplex, and the point of it with the least value of a quadratic form."""

import jax
import jax.numpy as jnp

from jaxfl.typing import Array


def project(point: Array, mask: Array) -> Array:
    """Returns the nearest weights to a point `[C]`: none is negative, their sum is 1; 0 where the mask is off.

    Args:
        point: `[C]`, finite where the mask is on; what stands elsewhere is not read.
        mask: `[C]` bool. If it is off everywhere, all weights are 0.

    >>> project(jnp.array([0.5, 2.0, 9.0]), jnp.array([True, True, False])).tolist()
    [0.0, 1.0, 0.0]
    """
    low = jnp.where(mask, point, -jnp.inf)
    descending = -jnp.sort(-low)  # [C]
    counts = jnp.arange(1, point.size + 1, dtype=point.dtype)
    excess = (jnp.cumsum(jnp.where(jnp.isfinite(descending), descending, 0)) - 1) / counts
    size = jnp.sum(jnp.isfinite(descending) & (descending > excess))
    return jnp.where(mask, jnp.maximum(low - excess[jnp.maximum(size - 1, 0)], 0), 0)


def least(form: Array, mask: Array) -> Array:
    """Returns the weights `a` `[C]`, not negative and of sum 1, with the least `a' form a`; 0 where the mask is off.

    Exact: the solution is proportional to the `x >= 0` with the least `x' form x / 2 - sum(x)`, which the active set of
    Lawson and Hanson finds (Solving Least Squares Problems, 1974, chapter 23).

    Args:
        form: `[C, C]`, symmetric and positive definite where the mask is on; what stands elsewhere is not read.
        mask: `[C]` bool. If it is off everywhere, all weights are 0.

    >>> least(jnp.diag(jnp.array([1.0, 3.0, 0.0])), jnp.array([True, True, False])).tolist()
    [0.75, 0.25, 0.0]
    """
    size = mask.size
    both = mask[:, None] & mask[None, :]
    form = jnp.where(both, form, 0)
    trace = jnp.trace(form)
    form = form * (
        jnp.sum(mask.astype(form.dtype)) / jnp.where(trace > 0, trace, 1)
    )  # the weights do not depend on the unit
    tolerance = 10 * size * jnp.finfo(form.dtype).eps

    def solve(on: Array) -> Array:
        inside = on[:, None] & on[None, :]
        matrix = jnp.where(inside, form, jnp.eye(size, dtype=form.dtype))
        return jnp.where(on, jnp.linalg.solve(matrix, on.astype(form.dtype)), 0)

    def drop(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        """Goes from x towards the solution as far as no weight is negative; what reaches 0 leaves the set."""
        x, on, solution, passes = carry
        leaving = on & (solution <= 0)
        ratios = jnp.where(leaving, x / jnp.where(leaving, x - solution, 1), jnp.inf)
        step = jnp.min(ratios)
        on = on & ~(leaving & (ratios <= step))
        x = jnp.where(on, x + step * (solution - x), 0)
        return x, on, solve(on), passes + 1

    def add(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        x, on, passes = carry
        on = on.at[jnp.argmax(gain(x, on))].set(True)
        going = x, on, solve(on), jnp.zeros((), jnp.int32)
        x, on, solution, _ = jax.lax.while_loop(lambda c: jnp.any(c[1] & (c[2] <= 0)) & (c[3] < size), drop, going)
        return solution, on, passes + 1

    def gain(x: Array, on: Array) -> Array:
        return jnp.where(mask & ~on, 1 - form @ x, -jnp.inf)

    start = jnp.zeros(size, form.dtype), jnp.zeros(size, bool), jnp.zeros((), jnp.int32)
    x, _, _ = jax.lax.while_loop(lambda c: (jnp.max(gain(c[0], c[1])) > tolerance) & (c[2] < 3 * size), add, start)
    total = jnp.sum(x)
    return x / jnp.where(total > 0, total, 1)
