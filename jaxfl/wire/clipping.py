"""The clip of a client's message, for which no kernel has to be made that the client has in coordinates.

    v_i  <-  v_i min(1, S / |v_i|)        v_i is the client's update, all leaves of all contributions of a pass

A kernel W = X^T A + a * W_0 that training in coordinates ends with (see `jaxfl.client.fast.coordinates`) has an update
with the coordinates (A, a - 1), whose norm follows from X X^T and X W_0. What is sent has coordinates too: W_0 + s v of
a channel (s A, 1 + s (a - 1)), the update s v of a private run (s A, s (a - 1)). So the server's sum of clipped kernels
is made in coordinates as that of kernels is, see `jaxfl.server.coordinate_sums`. All of it is exact: it differs from
the clip of kernels by rounding alone, a relative 1e-6 in float32.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import tree
from jaxfl.client.fast.coordinates import KernelInCoordinates, in_coordinates_of
from jaxfl.server.aggregate import Contribution
from jaxfl.typing import Array, Params

LEAST_CLIP = float(np.finfo(np.float32).tiny)  # smaller numbers are rounded to 0, and no update would be left


def is_finite(values: Params) -> Array:
    """Returns `tree.is_finite` of values, of which some kernels may be known in coordinates."""
    return tree.is_finite([_sized(_in_coordinates_or_not(leaf)) for leaf in jax.tree.leaves(values)])


def clip_factor(length: Array, norm: Any) -> Array:
    """Returns the factor `[]` that shortens a message to a norm; NaN of one that is not finite, to drop all of it.

    >>> [float(clip_factor(jnp.float32(length), 2.0)) for length in (0, 1, 4, jnp.nan)]
    [1.0, 1.0, 0.5, nan]
    """
    bound = jnp.asarray(norm, length.dtype)
    return jnp.where(length <= bound, 1, bound / jnp.where(length == 0, 1, length))


def clipped(
    many: Sequence[Contribution], starts: Sequence[Params], norm: Any, *, relative: bool = False
) -> list[Contribution]:
    """Returns a client's contributions with updates that are jointly clipped.

    A contribution that is not finite is left as it is: so it is dropped and counted as ever.

    Args:
        many: the contributions of one pass, which are one message.
        starts: what the client has received in the place of their values.
        norm: S.
        relative: whether updates are sent in place of values.
    """
    pairs = [
        list(zip(jax.tree.leaves(one.values), jax.tree.leaves(start), strict=True))
        for one, start in zip(many, starts, strict=True)
    ]
    updates = [[_difference(value, start) for value, start in each] for each in pairs]
    factor = clip_factor(tree.norm([_sized(update) for each in updates for update in each]), norm)

    def message(one: Contribution, pairs: Sequence[tuple[Array, Array]], updates: Sequence[Any]) -> Contribution:
        finite, leaves = is_finite(one.values), []
        for (value, start), update in zip(pairs, updates, strict=True):
            if isinstance(update, KernelInCoordinates):
                made = in_coordinates_of(value)
                assert made is not None, "it has a difference in coordinates"
                short = update.times(factor)
                leaves.append((short if relative else short.plus(1, start)).where(finite, made).array())
            else:
                short = update * factor.astype(update.dtype)
                leaves.append(jnp.where(finite, short if relative else start + short, value))
        return dataclasses.replace(one, values=jax.tree.unflatten(jax.tree.structure(one.values), leaves))

    return [message(*each) for each in zip(many, pairs, updates, strict=True)]


def _in_coordinates_or_not(leaf: Array) -> Array | KernelInCoordinates:
    """Returns a leaf's coordinates where they are known, else itself."""
    made = in_coordinates_of(leaf)
    return leaf if made is None else made


def _difference(value: Array, start: Array) -> Array | KernelInCoordinates:
    """Returns the difference between a leaf and what the client has received in its place."""
    made = in_coordinates_of(value)
    return value - start if made is None or not made.has(start) else made.plus(-1, start)


def _sized(leaf: Array | KernelInCoordinates) -> Array:
    """Returns the leaf, or an array of the same norm."""
    return leaf.norm() if isinstance(leaf, KernelInCoordinates) else leaf
