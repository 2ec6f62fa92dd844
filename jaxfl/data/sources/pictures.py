"""Image files decoded into one array, by several threads."""

import concurrent.futures
import contextlib
import io
import struct
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxfl.data import bounded

# Pillow's modes of 8 bits, and the modes that they are converted to: [H, W] or [H, W, 3].
MODES = {"1": "L", "L": "L", "LA": "L", "P": "RGB", "RGB": "RGB", "RGBA": "RGB", "CMYK": "RGB", "YCbCr": "RGB"}
# The content of a file decides its format, not its name; other formats may run programs (EPS).
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "PPM", "GIF")
BLOCK = 128  # images that a thread decodes as one task
ORIENTATION = 0x0112  # the tag of EXIF
# What an array of pixels lacks, and the remedy.
LACKS = {
    "an orientation in EXIF, by which they are not turned": "PIL.ImageOps.exif_transpose turns them",
    "several frames, of which the first is read": "write a file for each frame",
    "transparent pixels, whose hidden colours are read": "write them on a background",
}


class Traits(NamedTuple):
    """Properties of an image file, read from its first bytes.

    Attributes:
        height, width: in pixels.
        colour: whether it has three channels after decoding.
    """

    height: int
    width: int
    colour: bool


def decode(
    where: str,
    content: bytes | Path,
    *,
    remedy: str = "leave it out or download the file again",
    lacking: dict[str, list[str]] | None = None,
) -> np.ndarray:
    """Returns the pixels of an image file, `[H, W]` or `[H, W, 3]`, uint8.

    Args:
        where: beginning of the message, such as file and row.
        content: the file, or its path.
        remedy: end of the message.
        lacking: dictionary that gets `where` for each of `LACKS` that the image has, for `warn_lacking`.

    Raises:
        ValueError: the image cannot be decoded, or does not have 8 bits per channel.
    """

    def converted(picture: Any, target: str) -> np.ndarray:
        pixels = np.asarray(_converted(picture, target))
        if lacking is not None:
            for what in _lost_content(picture):
                lacking.setdefault(what, []).append(where)
        return pixels

    return _opened(where, content, remedy, converted)


def read_traits(path: Path, *, remedy: str) -> Traits:
    """Returns the properties of an image file without decoding it; raises ValueError as `decode` does."""
    return _opened(
        str(path), path, remedy, lambda picture, target: Traits(picture.height, picture.width, target == "RGB")
    )


def read_all(paths: Sequence[Path], *, size: int | None = None, colour: bool = False, remedy: str) -> np.ndarray:
    """Returns the images of files, `[P, H, W]` if all are grey, else `[P, H, W, 3]`, uint8.

    Args:
        paths: of the files, at least one.
        size: pixels of a side of the scaled images (bicubic, without cropping); None requires images of one size.
        colour: whether grey images get three equal channels in any case.
        remedy: what helps if a file is damaged, the end of the message.

    Raises:
        ValueError: an image cannot be decoded, sizes differ, or all images together are too large.

    Warns:
        UserWarning: images have what an array of pixels lacks, see `LACKS`.
    """
    for path in paths:
        if not path.is_file():
            lost = "a link that leads to no file" if path.is_symlink() else "a pipe, a device or no file"
            raise ValueError(f"{path} must be an image file, got {lost}; {remedy}.")
    found = [Traits(0, 0, False)] * len(paths)
    _for_each(paths, lambda row, path: found.__setitem__(row, read_traits(path, remedy=remedy)))
    for path, one in zip(paths, found, strict=True):
        if size is None and one[:2] != found[0][:2]:
            raise ValueError(
                f"{path} must have {found[0].height} x {found[0].width} pixels as {paths[0]}, got {one.height} x "
                f"{one.width}; set size=64 to scale all images to 64 x 64."
            )
    channels = (3,) if colour or any(one.colour for one in found) else ()
    shape = (*(found[0][:2] if size is None else (size, size)), *channels)
    total = len(paths) * int(np.prod(shape))
    bounded.check_unpacked_size(total, sum(path.stat().st_size for path in paths), f"{paths[0].parent}: ")
    images = np.empty((len(paths), *shape), np.uint8)
    lacks: list[tuple[str, ...]] = [()] * len(paths)

    def read(row: int, path: Path) -> np.ndarray:
        def scaled(picture: Any, target: str) -> np.ndarray:
            from PIL import Image

            converted = _converted(picture, "RGB" if channels else target)
            lacks[row] = _lost_content(picture)
            return np.asarray(converted.resize((size, size), Image.Resampling.BICUBIC) if size else converted)

        return _opened(str(path), path, remedy, scaled)

    _for_each(paths, lambda row, path: images.__setitem__(row, read(row, path)))
    lacking = {
        what: [str(path) for path, found in zip(paths, lacks, strict=True) if what in found]
        for what in LACKS
        if any(what in found for found in lacks)
    }
    warn_lacking(lacking, len(paths))
    return images


def warn_lacking(lacking: dict[str, list[str]], count: int) -> None:
    """Warns of images whose files have what an array of pixels lacks.

    Args:
        lacking: where these images are, by what they have, from `decode`.
        count: number of all images.
    """
    for what, places in lacking.items():
        warnings.warn(f"{len(places)} of {count} images have {what}, such as {places[0]}; {LACKS[what]}.", stacklevel=3)


def _for_each(paths: Sequence[Path], use: Callable[[int, Path], None]) -> None:
    """Calls `use(row, path)` for each path in several threads; the first error is that of the first path."""

    def use_block(start: int) -> None:
        for row, path in enumerate(paths[start : start + BLOCK], start):
            use(row, path)

    # Threads suffice, because Pillow releases the interpreter lock while it decodes and scales.
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for _ in pool.map(use_block, range(0, len(paths), BLOCK)):
            pass


def _converted(picture: Any, target: str) -> Any:
    """Returns a picture in another mode; transparent colours of a palette must be resolved first."""
    return (picture.convert("RGBA") if picture.mode == "P" else picture).convert(target)


def _lost_content(picture: Any) -> tuple[str, ...]:
    """Returns which of `LACKS` a decoded picture has."""
    turned, frames, transparent = LACKS
    orientation = 1
    with contextlib.suppress(Exception):  # damaged EXIF, which may fail in any way, has none
        orientation = picture.getexif().get(ORIENTATION, 1)
    opaque = not picture.has_transparency_data or picture.convert("RGBA").getchannel("A").getextrema()[0] == 255
    several = getattr(picture, "n_frames", 1) > 1 and picture.format != "MPO"  # of a camera, the others are previews
    found: Iterable[bool] = (orientation in range(2, 9), several, not opaque)
    return tuple(what for what, there in zip((turned, frames, transparent), found, strict=True) if there)


def _opened(where: str, content: bytes | Path, remedy: str, use: Callable[[Any, str], Any]) -> Any:
    """Returns what `use` returns for an opened image and the mode that it is converted to."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content) if isinstance(content, bytes) else content, formats=FORMATS) as picture:
            mode, target = picture.mode, MODES.get(picture.mode)
            if target is not None:
                return use(picture, target)
    except (OSError, ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError) as error:
        raise ValueError(f"{where} must be an image that can be decoded ({error}); {remedy}.") from error
    raise ValueError(f"{where} must be an image of 8 bits, got mode {mode}; convert it to one of {sorted(MODES)}.")
