"""The elbow of a sorted curve, such as that of the distances to nearest neighbours."""

import jax.numpy as jnp

from jaxfl.typing import Array


def chord_elbow(curve: Array, count: Array | int) -> Array:
    """Returns the index `[]` int32 of a curve's elbow: where it is farthest below the chord of its two ends.

    Of equally far places it is the last one. The distance is that of Kneedle (Satopaa, Albrecht,
    Irwin and Raghavan, 2011) for an increasing convex curve, of which this takes the global maximum.

    Args:
        curve: `[N]`, ascending and finite in its first `count` places.
        count: number of places that count, at least 1.

    >>> int(chord_elbow(jnp.array([1.0, 1.0, 1.5, 2.0, 2.0, 38.0, jnp.inf]), 6))
    4
    """
    place = jnp.arange(curve.shape[0], dtype=jnp.int32)
    there = place < count
    low, high = curve[0], curve[jnp.maximum(jnp.asarray(count, jnp.int32) - 1, 0)]
    rise = jnp.where(there, curve, low) - low
    scaled = jnp.where(high > low, rise / jnp.where(high > low, high - low, 1), 0)
    run = place.astype(curve.dtype) / jnp.maximum(jnp.asarray(count) - 1, 1).astype(curve.dtype)
    below = jnp.where(there, run - scaled, -jnp.inf)
    return (curve.shape[0] - 1 - jnp.argmax(below[::-1])).astype(jnp.int32)
