"""Rotations and colours of images by traced numbers, which may differ between clients or rows."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxfl.typing import Array

COLOURS = ("none", "red", "green", "blue")


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


def rotate_each(images: Array, quarter_turns: Array) -> Array:
    """Returns images rotated counter-clockwise, each by its own traced number of quarter turns.

    Args:
        images: `[B, H, H]` or `[B, H, H, channels]`, square.
        quarter_turns: `[B]` int, 0 to 3.

    >>> import numpy as np
    >>> images = np.arange(8).reshape(2, 2, 2)
    >>> rotate_each(jnp.asarray(images), jnp.array([0, 2]))[1].tolist()
    [[7, 6], [5, 4]]
    """
    return jax.vmap(lambda image, turns: rotate(image[None], turns)[0])(jnp.asarray(images), jnp.asarray(quarter_turns))


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
    from_row, from_column = (jnp.clip(place, 0, side - 1) for place in _source_places(side, degrees, dtype))  # [H, H]
    top, left = jnp.floor(from_row).astype(jnp.int32), jnp.floor(from_column).astype(jnp.int32)
    bottom, right = jnp.minimum(top + 1, side - 1), jnp.minimum(left + 1, side - 1)
    channels = (1,) * (images.ndim - 3)
    down = (from_row - jnp.floor(from_row)).reshape(1, side, side, *channels)
    across = (from_column - jnp.floor(from_column)).reshape(1, side, side, *channels)
    upper = images[:, top, left] * (1 - across) + images[:, top, right] * across
    lower = images[:, bottom, left] * (1 - across) + images[:, bottom, right] * across
    return upper * (1 - down) + lower * down


def rotate_to_nearest(images: Array, degrees: Array) -> Array:
    """Returns images rotated counter-clockwise about their centre by a traced angle; each pixel is the nearest one.

    Pixels from beyond the border are 0, as in Pillow and torchvision.

    Args:
        images: `[B, H, H]` or `[B, H, H, channels]`, square.
        degrees: `[]` float.

    >>> rotate_to_nearest(jnp.arange(9).reshape(1, 3, 3), jnp.float32(90))[0].tolist()
    [[2, 5, 8], [1, 4, 7], [0, 3, 6]]
    """
    images, side = jnp.asarray(images), images.shape[1]
    row, column = (jnp.floor(place + 0.5).astype(jnp.int32) for place in _source_places(side, degrees, jnp.float32))
    inside = (row >= 0) & (row < side) & (column >= 0) & (column < side)
    found = images[:, jnp.clip(row, 0, side - 1), jnp.clip(column, 0, side - 1)]
    return jnp.where(inside.reshape(1, side, side, *(1,) * (images.ndim - 3)), found, jnp.zeros_like(found))


def _source_places(side: int, degrees: Array, dtype: Any) -> tuple[Array, Array]:
    """Returns the row and the column `[H, H]` that each pixel of a rotated image is from, as fractions."""
    centre = (side - 1) / 2
    row, column = jnp.meshgrid(
        jnp.arange(side, dtype=dtype) - centre, jnp.arange(side, dtype=dtype) - centre, indexing="ij"
    )
    sine, cosine = jnp.sin(jnp.deg2rad(degrees)).astype(dtype), jnp.cos(jnp.deg2rad(degrees)).astype(dtype)
    # the inverse rotation, with rows counted downwards
    return row * cosine + column * sine + centre, column * cosine - row * sine + centre


def colour(images: Any, code: Any, white: int) -> Array:
    """Returns images in colour `[B, H, W, 3]`; grey is repeated in all channels.

    Args:
        images: `[B, H, W]`, or `[B, H, W, channels]` with 1 or 3 channels.
        code: int `[]` or `[B]`: 0 changes nothing; with 1, 2 and 3 the red, green and blue channel is white all over;
            with 4, 5 and 6 the others are black.
        white: pixel of full brightness.

    >>> images = jnp.full((1, 1, 1), 7)
    >>> [colour(images, code, 255)[0, 0, 0].tolist() for code in (0, 1, 6)]
    [[7, 7, 7], [255, 7, 7], [0, 0, 7]]
    """
    images = jnp.asarray(images)
    images = images[..., None] if images.ndim == 3 else images
    images = jnp.broadcast_to(images, (*images.shape[:3], 3))
    code, channel = jnp.asarray(code).reshape(-1, 1, 1, 1), jnp.arange(1, 4, dtype=jnp.int32).reshape(1, 1, 1, 3)
    images = jnp.where(code == channel, white, images)
    return jnp.where((code > 3) & (code - 3 != channel), 0, images)
