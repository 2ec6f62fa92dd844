"""Augmentation of training images: flipped and cropped at random, drawn anew for every row of every step."""

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl.data.clients import Batch, FederatedData
from jaxfl.random import Stream, key_for
from jaxfl.tasks.contract import Products, Task, averages_of, dense_layers_of, row_losses
from jaxfl.typing import Array, Key, Params

KINDS = "flip (left and right exchanged for half of the rows), crop4 (shifted by up to 4 pixels)"


class Augmentation(NamedTuple):
    """Changes of a training image.

    Attributes:
        flip: whether left and right are exchanged with probability 1/2.
        crop: pixels by which it is shifted at most, in all directions with equal probability; what is beyond the border
            is black.
    """

    flip: bool = False
    crop: int = 0


def parse_augmentation(augment: str | tuple[str, ...] | list[str]) -> Augmentation:
    """Returns the augmentation of a text.

    Args:
        augment: `"flip"`, `"crop4"` or both, separated by a comma or a plus, or in a list.

    Raises:
        ValueError: a part is neither, or is there twice.

    >>> parse_augmentation("flip,crop4")
    Augmentation(flip=True, crop=4)
    """
    parts = re.split(r"[,+]", augment) if isinstance(augment, str) else list(augment)
    found: dict[str, int] = {}
    for part in parts:
        match = re.fullmatch(r"(flip)|(crop)([1-9]\d{0,3})", str(part).strip())
        if match is None:
            raise ValueError(f"augment must be of {KINDS}, got {part!r}; flip,crop4 is usual for photographs.")
        name = match[1] or match[2]
        if name in found:
            raise ValueError(f"augment must have {name} once, got {augment!r}; leave one out.")
        found[name] = int(match[3] or 1)
    return Augmentation("flip" in found, found.get("crop", 0))


def augmented(task: Task, data: FederatedData, augment: str | tuple[str, ...] | list[str]) -> Task:
    """Returns the task that trains on images which are changed at random, and is tested on images as they are.

    Every row of every step is drawn anew, from the key of the client's step: the same run draws the same, also if it is
    resumed or has another chunk. An image is changed as the client sees it, after its rotation.

    Dense layers that see the images are not trained in coordinates then, which needs the same rows in every step.

    Args:
        task: of a network; its loss has a key in training alone.
        data: the federation, of images `[P, H, W]` or `[P, H, W, channels]`.
        augment: `"flip"`, `"crop4"` (a shift of up to 4 pixels, as after padding by 4 and a random crop), or both,
            `"flip,crop4"`.

    Raises:
        ValueError: the inputs are no images, a part is unknown, or images are shifted by more than their side; or, when
            a run begins, the method adds the outputs of two models.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = augmented(jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data), data, "crop2")
    >>> model, batch = task.init(jax.random.key(0)), data.batch(data.train, 0, jnp.arange(9))
    >>> losses = [float(task.loss(model, batch, jax.random.key(seed))) for seed in range(9)]
    >>> len(set(losses)), float(task.loss(model, batch, None)) in losses
    (9, False)
    """
    chosen, shape = parse_augmentation(augment), data.input_shape
    if len(shape) not in (2, 3) or jnp.issubdtype(data.inputs.dtype, jnp.integer) != (data.inputs.dtype == np.uint8):
        raise ValueError(
            f"augment needs images [P, H, W] or [P, H, W, channels], got {augment!r} for inputs of {data.name}, "
            f"{tuple(data.inputs.shape)}; leave it out."
        )
    if chosen.crop >= min(shape[:2]):
        raise ValueError(
            f"augment must shift images by less than their side of {min(shape[:2])} pixels, got {augment!r}; crop4 is "
            "usual for 32."
        )
    black = black_level(data)

    def changed(batch: Batch, key: Key | None) -> Batch:
        return batch if key is None else batch._replace(x=augment_images(key, batch.x, chosen, black))

    def loss(model: Params, batch: Batch, key: Key | None = None) -> Array:
        return task.loss(model, changed(batch, key), key)

    averages, dense, losses = averages_of(task), dense_layers_of(task), row_losses(task)
    if averages is not None:
        in_training = averages.loss
        averages = averages._replace(loss=lambda model, batch, key=None: in_training(model, changed(batch, key), key))
    if dense is not None and dense.inner:
        with_products = dense.loss

        def dense_loss(model: Params, batch: Batch, key: Key | None, products: Products) -> Array:
            return with_products(model, changed(batch, key), key, products)

        dense = dense._replace(first=(), loss=dense_loss)
    else:
        dense = None
    one_pass = task.fast.one_pass
    if one_pass is not None:  # of a test, which has no key
        same = (one_pass.outputs, one_pass.loss) == (task.outputs, task.loss)
        one_pass = one_pass._replace(loss=loss) if same else None
    return task._replace(
        loss=loss,
        averages=averages,
        losses=lambda model, batch, key: losses(model, changed(batch, key), key),
        offset_losses=_refuse_offset,
        made_for=loss,
        fast=task.fast._replace(dense=dense, one_pass=one_pass),
    )


def _refuse_offset(model: Params, batch: Batch, key: Key | None, offset: Array) -> Array:
    """Raises ValueError: an offset, of other outputs for the same rows, is that of the images as they are."""
    raise ValueError(
        "augment must be left out for a method that adds the outputs of two models, such as ifca_cam: they would see "
        "different images."
    )


def black_level(data: FederatedData) -> np.ndarray:
    """Returns the value of a black pixel as a network sees it, a number or one per channel.

    >>> from jaxfl.data import load
    >>> round(float(black_level(load("rotated-digits", num_clients=8, rows_per_client=20))), 2)
    -0.81
    """
    if data.mean is None or data.std is None:
        return np.zeros((), jax.dtypes.canonicalize_dtype(data.inputs.dtype))
    return np.asarray(-np.asarray(data.mean) / np.asarray(data.std))


def augment_images(key: Key, images: Array, chosen: Augmentation, black: np.ndarray) -> Array:
    """Returns images `[B, H, W]` or `[B, H, W, channels]`, each with changes of its own.

    Args:
        key: of the step.
        images: as a network sees them.
        chosen: what may happen to them.
        black: beyond the border; a number or one per channel, that broadcasts with the images.
    """
    count, (height, width) = images.shape[0], images.shape[1:3]
    down, across, coins = (
        jax.random.bits(key_for(key, Stream.AUGMENT, number), (count,), jnp.uint32) for number in range(3)
    )
    if chosen.flip:
        coin = (coins & 1).astype(bool).reshape(count, *(1,) * (images.ndim - 1))
        images = jnp.where(coin, jnp.flip(images, 2), images)
    if not chosen.crop:
        return images
    # 2 c + 1 divides 2^32 almost evenly: the largest bias is 2^-32 times that number
    shifts = [(bits % jnp.uint32(2 * chosen.crop + 1)).astype(jnp.int32) for bits in (down, across)]
    border = ((0, 0), (chosen.crop, chosen.crop), (chosen.crop, chosen.crop), *((0, 0),) * (images.ndim - 3))
    inside = jnp.pad(jnp.ones((1, height, width, *(1,) * (images.ndim - 3)), bool), border)
    beyond = jnp.asarray(black, images.dtype).reshape(*(1,) * (images.ndim - 1), -1)
    padded = jnp.where(inside, jnp.pad(images, border), beyond)

    def cut(image: Array, row: Array, column: Array) -> Array:
        start = (row, column, *(0,) * (image.ndim - 2))
        return jax.lax.dynamic_slice(image, start, (height, width, *image.shape[2:]))

    return jax.vmap(cut)(padded, *shifts)
