"""Rotations of images by a traced angle, which may differ between clients."""

import functools

import jax
import jax.numpy as jnp

from jaxfl.typing import Array


def rotate(images: Array, quarter_turns: Array) -> Array:
    """Returns images rotated counter-clockwise by a traced number of quarter turns, exactly as `np.rot90` does.

    For one client it is one of four branches: a selection would read each pixel four times while it is gathered from
    the pool, and rows would take six times as long on a CPU. Mapped over clients with different angles, it is a
    selection.

    Args:
        images: `[B, H, H]` or `[B, H, H, channels]`, square.
        quarter_turns: `[]` int, 0 to 3.

    >>> import numpy as np
    >>> image = np.arange(4).reshape(1, 2, 2)
    >>> bool((rotate(jnp.asarray(image), jnp.int32(1))[0] == np.rot90(image[0])).all())
    True
    """
    return _rotate_quarter_turns(images, quarter_turns)


@jax.custom_batching.custom_vmap
def _rotate_quarter_turns(images: Array, quarter_turns: Array) -> Array:
    turns = [functools.partial(jnp.rot90, k=turn, axes=(1, 2)) for turn in range(4)]
    return jax.lax.switch(quarter_turns, turns, images)


@_rotate_quarter_turns.def_vmap
def _rotate_by_selection(size: int, batched: list[bool], images: Array, quarter_turns: Array) -> tuple[Array, bool]:
    if not batched[1]:
        return jax.vmap(lambda image: _rotate_quarter_turns(image, quarter_turns))(images), True

    def select(images: Array, quarter_turns: Array) -> Array:
        turned = jnp.where(quarter_turns % 2 == 1, jnp.swapaxes(images, 1, 2), images)
        turned = jnp.where((quarter_turns == 1) | (quarter_turns == 2), turned[:, ::-1], turned)
        return jnp.where(quarter_turns >= 2, turned[:, :, ::-1], turned)

    return jax.vmap(select, [0 if mapped else None for mapped in batched])(images, quarter_turns), True


def rotate_by_degrees(images: Array, degrees: Array) -> Array:
    """Returns images rotated counter-clockwise about their centre by a traced angle, with bilinear interpolation.

    Beyond the border the nearest pixel is repeated, so that the background is unchanged: black in MNIST, white in
    FEMNIST.

    Args:
        images: `[B, H, H]` or `[B, H, H, channels]`, square; uint8 becomes float32.
        degrees: `[]` float.

    >>> import numpy as np
    >>> image = np.arange(9, dtype=np.float32).reshape(1, 3, 3)
    >>> np.allclose(rotate_by_degrees(jnp.asarray(image), jnp.float32(90))[0], np.rot90(image[0]), atol=1e-5)
    True
    """
    dtype = jnp.float32 if images.dtype == jnp.uint8 else images.dtype
    images, side = images.astype(dtype), images.shape[1]
    centre = (side - 1) / 2
    row, column = jnp.meshgrid(
        jnp.arange(side, dtype=dtype) - centre, jnp.arange(side, dtype=dtype) - centre, indexing="ij"
    )
    sine, cosine = jnp.sin(jnp.deg2rad(degrees)).astype(dtype), jnp.cos(jnp.deg2rad(degrees)).astype(dtype)
    # source of each pixel: the inverse rotation, with rows counted downwards
    from_row = jnp.clip(row * cosine + column * sine + centre, 0, side - 1)  # [H, H]
    from_column = jnp.clip(column * cosine - row * sine + centre, 0, side - 1)
    top, left = jnp.floor(from_row).astype(jnp.int32), jnp.floor(from_column).astype(jnp.int32)
    bottom, right = jnp.minimum(top + 1, side - 1), jnp.minimum(left + 1, side - 1)
    channels = (1,) * (images.ndim - 3)
    down = (from_row - jnp.floor(from_row)).reshape(1, side, side, *channels)
    across = (from_column - jnp.floor(from_column)).reshape(1, side, side, *channels)
    upper = images[:, top, left] * (1 - across) + images[:, top, right] * across
    lower = images[:, bottom, left] * (1 - across) + images[:, bottom, right] * across
    return upper * (1 - down) + lower * down
