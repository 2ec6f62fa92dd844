"""Images as their clients see them: turned and coloured, for all classes or for some, and inverted; traceable.

The pool has each image once, and the shifts of a batch are computed on the device. The order is that in which a picture
comes about: a class's own rotation, the client's rotation, the width of strokes, a class's colour, the client's colour,
and a corruption. Strokes and corruptions are computed on the host (`jaxfl.data.views.copies`): clients with one of them
have rows whose pixels have all shifts already, of which nothing is left to do here.
"""

from typing import Any

import jax.numpy as jnp

from jaxfl.data import images
from jaxfl.typing import Array

INVERTED = -1  # the code of the corruption that needs no copies


def as_seen(data: Any, x: Any, y: Any, client: Any) -> Array:
    """Returns images of the pool as a client sees them.

    Args:
        data: the federation.
        x, y: images `[B, ...]` and classes `[B]` of rows of the pool.
        client: the client, a number.
    """
    return coloured_images(data, turned_images(data, x, y, client), y, client)


def turned_images(data: Any, x: Any, y: Any, client: Any) -> Array:
    """Returns images with the first shifts: the rotation of their class, and that of the client."""
    if data.class_rotation is not None:
        x = images.rotate_each(x, _unless_copied(data, client, data.class_rotation[client][y]))
    if data.rotation is not None:
        x = images.rotate(x, _unless_copied(data, client, data.rotation[client]))
    if data.tilt is not None:
        rotated = images.rotate_to_nearest if data.nearest else images.rotate_by_degrees
        x = rotated(x, _unless_copied(data, client, data.tilt[client]))
    return x


def coloured_images(data: Any, x: Any, y: Any, client: Any) -> Array:
    """Returns images with the last shifts: the colour of their class, that of the client, and the inversion."""
    if data.class_colour is not None:
        x = images.colour(x, _unless_copied(data, client, data.class_colour[client][y]), data.white)
    if data.colour is not None:
        x = images.colour(x, _unless_copied(data, client, data.colour[client]), data.white)
    if data.corruption is not None:
        inverted = _unless_copied(data, client, data.corruption[client]) == INVERTED
        x = jnp.where(inverted, data.white - x, x)
    return x


def _unless_copied(data: Any, client: Any, value: Any) -> Any:
    """Returns a shift's number, or 0 if the pixels of the client's rows have it already."""
    copied = False
    for codes in (data.stroke, data.corruption):
        copied = copied if codes is None else copied | (codes[client] > 0)
    return value if copied is False else jnp.where(copied, jnp.zeros_like(value), value)


def is_coloured(data: Any) -> bool:
    """Returns whether images of the pool get colours, so that those in grey have three channels."""
    return data.colour is not None or data.class_colour is not None
