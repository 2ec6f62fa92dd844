"""Corruptions of images in five levels, and changes of stroke width, in NumPy on the host.

The eleven kinds are the noise, blur and digital families of CIFAR-10-C (Hendrycks and Dietterich, "Benchmarking neural
network robustness to common corruptions and perturbations", ICLR 2019) and MNIST-C (Mu and Gilmer, 2019), by formula:
glass, motion and zoom blur, snow, frost, fog, elastic and spatter need files or other libraries, and are left out. The
strengths of the levels are those of CIFAR-10-C (`scale="cifar"`, for 28 and 32 pixels) or of ImageNet-C and MNIST-C
(`scale="imagenet"`, for larger images, or where a weak blur would change little).

Images are pixels `[B, H, W]` or `[B, H, W, channels]`. They are computed in float64 from 0 to 1, clipped, and truncated
to uint8, as the files of the benchmarks are. `jpeg` is computed from the standard's formulas and differs from an
encoder's by one or two grey levels. `saturate` does not change grey images.

Noise is drawn once for each seed, kind, level and row, by a generator that these four address: two clients with one row
and one corruption see one image, in every epoch and on every machine.
"""

import hashlib
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from jaxfl.data.building import check_pixels
from jaxfl.schema import checked

CorruptionKind = Literal[
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "speckle_noise",
    "gaussian_blur",
    "defocus_blur",
    "contrast",
    "brightness",
    "saturate",
    "pixelate",
    "jpeg",
]
Scale = Literal["cifar", "imagenet"]
Stroke = Literal["erode", "dilate"]
KINDS: tuple[str, ...] = get_args(CorruptionKind)  # numbered in this order by `Corruption.code`
SCALES: tuple[str, ...] = get_args(Scale)
STROKES: tuple[str, ...] = get_args(Stroke)
INVERT = "invert"  # a corruption without levels, which needs no copy of a row: see `FederatedData.inverted`
# Strengths of the levels 1 to 5: CIFAR-10-C's, then those of ImageNet-C and MNIST-C.
STRENGTHS: dict[str, dict[str, tuple[Any, ...]]] = {
    "cifar": {
        "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),
        "shot_noise": (500, 250, 100, 75, 50),
        "impulse_noise": (0.01, 0.02, 0.03, 0.05, 0.07),
        "speckle_noise": (0.06, 0.1, 0.12, 0.16, 0.2),
        "gaussian_blur": (0.4, 0.6, 0.7, 0.8, 1),
        "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
        "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),
        "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
        "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),
        "jpeg": (80, 65, 58, 50, 40),
    },
    "imagenet": {
        "gaussian_noise": (0.08, 0.12, 0.18, 0.26, 0.38),
        "shot_noise": (60, 25, 12, 5, 3),
        "impulse_noise": (0.03, 0.06, 0.09, 0.17, 0.27),
        "speckle_noise": (0.15, 0.2, 0.35, 0.45, 0.6),
        "gaussian_blur": (1, 2, 3, 4, 6),
        "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
        "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),
        "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),
        "saturate": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
        "pixelate": (0.6, 0.5, 0.4, 0.3, 0.25),
        "jpeg": (25, 18, 15, 10, 7),
    },
}
BLOCK = 1 << 21  # numbers that are computed at once
ROUNDING = 1e-6  # of a grey level: an error of rounding does not take a whole one away


class Corruption(NamedTuple):
    """A corruption of a client's rows.

    Attributes:
        kind: one of `KINDS`, or `"invert"`.
        level: 1 to 5; 0 of `"invert"`.
        scale: one of `SCALES`.
    """

    kind: str
    level: int
    scale: str = "cifar"

    @property
    def code(self) -> int:
        """Returns the number that stands for the corruption in `FederatedData.corruption`.

        >>> Corruption("contrast", 3).code, Corruption("jpeg", 5, "imagenet").code
        (73, 1115)
        """
        kind = 0 if self.kind == INVERT else 1 + KINDS.index(self.kind)
        return 1000 * SCALES.index(self.scale) + 10 * kind + self.level if kind else -1

    @classmethod
    def of_code(cls, code: int) -> "Corruption | None":
        """Returns the corruption of a code; None of 0.

        >>> Corruption.of_code(1115), Corruption.of_code(0)
        (Corruption(kind='jpeg', level=5, scale='imagenet'), None)
        """
        if code <= 0:
            return cls(INVERT, 0) if code else None
        scale, code = divmod(code, 1000)
        kind, level = divmod(code, 10)
        return cls(KINDS[kind - 1], level, SCALES[scale])

    @property
    def name(self) -> str:
        """Returns the name of the corruption as a group: its kind and level."""
        return self.kind if self.kind == INVERT else f"{self.kind} {self.level}"


CODES = frozenset(
    [Corruption(INVERT, 0).code]
    + [Corruption(kind, level, scale).code for kind in KINDS for level in range(1, 6) for scale in SCALES]
)


@checked
def corrupt(
    images: np.ndarray,
    kind: CorruptionKind,
    level: int,
    *,
    scale: Scale = "cifar",
    seed: int = 0,
    rows: np.ndarray | None = None,
    white: int = 255,
) -> np.ndarray:
    """Returns corrupted images as uint8, of the same shape.

    Args:
        images: pixels `[B, H, W]`, or `[B, H, W, C]` with 1 or 3 channels; uint8, or floats in the same units.
        kind: kind of the corruption.
        level: 1 to 5; 0 changes nothing.
        scale: whose levels.
        seed: seed of noise.
        rows: numbers of the images `[B]`, the address of their noise; None counts from 0.
        white: pixel of full brightness.

    Raises:
        ValueError: an unknown kind, level or scale, or arrays that are no images.

    >>> corrupt(np.full((1, 2, 2), 200, np.uint8), "brightness", 2)[0].tolist()
    [[225, 225], [225, 225]]
    """
    if level not in range(6):
        raise ValueError(f"level must be 0 to 5, got {level}.")
    check_pixels("corrupt", images, floats=True)
    rows = np.arange(len(images)) if rows is None else rows
    if not level:
        return truncated(np.asarray(images, np.float64), white)
    strength, change = STRENGTHS[scale][kind][level - 1], CHANGES.get(kind)
    result = np.empty(images.shape, np.uint8)
    step = max(1, BLOCK // max(images[:1].size, 1))
    for begin in range(0, len(images), step):
        part = slice(begin, begin + step)
        x = images[part].astype(np.float64).reshape(*images[part].shape[:3], -1) / white
        if change is None:
            for image, row in zip(x, rows[part].tolist(), strict=True):
                image[...] = NOISES[kind](image, strength, noise_generator(seed, kind, level, row))
        else:
            x = change(x, strength)
        result[part] = truncated(x * white, white).reshape(result[part].shape)
    return result


def truncated(images: np.ndarray, white: int) -> np.ndarray:
    """Returns pixels as uint8, clipped to 0 and white and truncated."""
    return np.floor(np.clip(images, 0, white) + ROUNDING).astype(np.uint8)


def noise_generator(seed: int, kind: str, level: int, row: int) -> np.random.Generator:
    """Returns the generator of the noise of one row of the pool.

    Its key is the first half of the SHA-256 of the four, separated by blanks.

    >>> noise_generator(0, "gaussian_noise", 3, 7).integers(0, 1000, 3).tolist()
    [36, 799, 857]
    """
    key = hashlib.sha256(f"{seed} {kind} {level} {row}".encode()).digest()[:16]
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key, "<u8")))


def redraw_strokes(images: np.ndarray, stroke: Stroke) -> np.ndarray:
    """Returns images whose bright strokes are thinner (`"erode"`) or thicker (`"dilate"`), of the same type.

    Each pixel becomes the minimum or maximum of the 3 x 3 pixels around it; beyond the border the edge is repeated.

    Args:
        images: pixels `[B, H, W]` or `[B, H, W, channels]`.
        stroke: kind of the change.

    >>> redraw_strokes(np.array([[[9, 0, 0], [0, 0, 0], [0, 0, 0]]]), "dilate")[0].tolist()
    [[9, 9, 0], [9, 9, 0], [0, 0, 0]]
    """
    from scipy import ndimage

    change = {"erode": ndimage.minimum_filter, "dilate": ndimage.maximum_filter}[stroke]
    return change(images, size=(1, 3, 3, 1)[: images.ndim], mode="nearest")


def _gaussian_noise(x: np.ndarray, deviation: float, random: np.random.Generator) -> np.ndarray:
    return x + deviation * random.standard_normal(x.shape)


def _shot_noise(x: np.ndarray, photons: float, random: np.random.Generator) -> np.ndarray:
    return random.poisson(x * photons) / photons


def _impulse_noise(x: np.ndarray, share: float, random: np.random.Generator) -> np.ndarray:
    drawn = random.random(x.shape) < share
    return np.where(drawn, random.random(x.shape) < 0.5, x)


def _speckle_noise(x: np.ndarray, deviation: float, random: np.random.Generator) -> np.ndarray:
    return x + x * deviation * random.standard_normal(x.shape)


def _gaussian_blur(x: np.ndarray, deviation: float) -> np.ndarray:
    from scipy import ndimage

    return ndimage.gaussian_filter(x, (0, deviation, deviation, 0), mode="nearest", truncate=4.0)


def _defocus_blur(x: np.ndarray, strength: tuple[float, float]) -> np.ndarray:
    from scipy import ndimage

    return ndimage.correlate(x, _smooth_disk(*strength)[None, :, :, None], mode="mirror")


def _smooth_disk(radius: float, deviation: float) -> np.ndarray:
    """Returns the kernel of a lens out of focus: a disk, whose border is smoothed by a small Gaussian; without zeros
    around it.
    """
    from scipy import ndimage

    reach, taps = (8, 1) if radius <= 8 else (int(radius), 2)
    place, near = np.arange(-reach, reach + 1), np.arange(-taps, taps + 1)
    disk = (place[:, None] ** 2 + place**2 <= radius**2).astype(np.float64)
    weights = np.exp(-(near**2) / (2 * deviation**2))
    kernel = disk / disk.sum()
    for axis in (0, 1):
        kernel = ndimage.correlate1d(kernel, weights / weights.sum(), axis, mode="mirror")
    margin = int(np.argmax(kernel.any(0)))
    return kernel[margin : len(kernel) - margin, margin : len(kernel) - margin]


def _contrast(x: np.ndarray, share: float) -> np.ndarray:
    mean = x.mean((1, 2), keepdims=True)  # of a channel
    return (x - mean) * share + mean


def _brightness(x: np.ndarray, more: float) -> np.ndarray:
    value = x.max(-1, keepdims=True)
    brighter = np.minimum(value + more, 1)
    return np.where(value > 0, x * brighter / np.where(value > 0, value, 1), brighter)


def _saturate(x: np.ndarray, strength: tuple[float, float]) -> np.ndarray:
    if x.shape[-1] == 1:
        return x
    factor, more = strength
    value, low = x.max(-1, keepdims=True), x.min(-1, keepdims=True)
    before = 1 - low / np.where(value > 0, value, 1)
    before = np.where(value > 0, before, 0)
    after = np.clip(factor * before + more, 0, 1)
    hue = (value - x) / np.where(before > 0, before, 1)
    hue = np.where(before > 0, hue, value * np.array([0, 1, 1]))  # the hue of grey is red
    return value - hue * after


def _pixelate(x: np.ndarray, share: float) -> np.ndarray:
    down, across = (_coarse(size, share) for size in x.shape[1:3])
    return np.einsum("ij,bjkc,lk->bilc", down, x, across, optimize=True)


def _coarse(size: int, share: float) -> np.ndarray:
    """Returns the matrix `[size, size]` of the means of fewer, larger pixels, each repeated where it is nearest."""
    few = max(1, int(size * share))
    # in units of 1 / (2 few) of a pixel, so that no centre is on the other side of a border by rounding
    centre, border = (2 * np.arange(size) + 1) * few, 2 * size * np.arange(few + 1)
    inside = (centre > border[:-1, None]) & (centre <= border[1:, None])  # [few, size]
    means = inside / inside.sum(1, keepdims=True)
    return means[centre // (2 * size)]


TO_LUMA = np.array([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])
FROM_LUMA = np.array([[1, 0, 1.402], [1, -0.344136, -0.714136], [1, 1.772, 0]])
# The standard's tables for luminance and chrominance.
QUANTA = np.array(
    [
        [
            [16, 11, 10, 16, 24, 40, 51, 61],
            [12, 12, 14, 19, 26, 58, 60, 55],
            [14, 13, 16, 24, 40, 57, 69, 56],
            [14, 17, 22, 29, 51, 87, 80, 62],
            [18, 22, 37, 56, 68, 109, 103, 77],
            [24, 35, 55, 64, 81, 104, 113, 92],
            [49, 64, 78, 87, 103, 121, 120, 101],
            [72, 92, 95, 98, 112, 100, 103, 99],
        ],
        [
            [17, 18, 24, 47, 99, 99, 99, 99],
            [18, 21, 26, 66, 99, 99, 99, 99],
            [24, 26, 56, 99, 99, 99, 99, 99],
            [47, 66, 99, 99, 99, 99, 99, 99],
            [99, 99, 99, 99, 99, 99, 99, 99],
            [99, 99, 99, 99, 99, 99, 99, 99],
            [99, 99, 99, 99, 99, 99, 99, 99],
            [99, 99, 99, 99, 99, 99, 99, 99],
        ],
    ]
)


def _jpeg(x: np.ndarray, quality: int) -> np.ndarray:
    height, width, channels = x.shape[1:]
    side = 8 if channels == 1 else 16
    edges = [(0, 0), (0, -height % side), (0, -width % side), (0, 0)]
    planes = np.pad(255 * x, edges, mode="edge")
    if channels == 1:
        found = _quantised(planes[..., 0] - 128, QUANTA[0], quality)[..., None] + 128
    else:
        luma = planes @ TO_LUMA.T
        found = np.empty_like(luma)
        found[..., 0] = _quantised(luma[..., 0] - 128, QUANTA[0], quality) + 128
        for channel in (1, 2):  # with half the resolution
            halves = luma[..., channel].reshape(len(x), luma.shape[1] // 2, 2, luma.shape[2] // 2, 2).mean((2, 4))
            coarse = _quantised(halves, QUANTA[1], quality)
            found[..., channel] = coarse.repeat(2, 1).repeat(2, 2)
        found = found @ FROM_LUMA.T
    return found[:, :height, :width] / 255


def _quantised(plane: np.ndarray, quanta: np.ndarray, quality: int) -> np.ndarray:
    """Returns planes `[B, H, W]` whose cosine transforms in blocks of 8 x 8 are multiples of the quanta."""
    from scipy import fft

    factor = 200 - 2 * quality if quality >= 50 else 5000 / quality
    quanta = np.clip(np.floor((quanta * factor + 50) / 100), 1, 255)
    count, height, width = plane.shape
    blocks = plane.reshape(count, height // 8, 8, width // 8, 8).swapaxes(2, 3)
    waves = np.rint(np.asarray(fft.dctn(blocks, axes=(3, 4), norm="ortho")) / quanta) * quanta
    return np.asarray(fft.idctn(waves, axes=(3, 4), norm="ortho")).swapaxes(2, 3).reshape(plane.shape)


# Of images [H, W, C] from 0 to 1, the strength and a generator; and of images [B, H, W, C] and the strength.
NOISES: dict[str, Callable[..., np.ndarray]] = {
    "gaussian_noise": _gaussian_noise,
    "shot_noise": _shot_noise,
    "impulse_noise": _impulse_noise,
    "speckle_noise": _speckle_noise,
}
CHANGES: dict[str, Callable[..., np.ndarray]] = {
    "gaussian_blur": _gaussian_blur,
    "defocus_blur": _defocus_blur,
    "contrast": _contrast,
    "brightness": _brightness,
    "saturate": _saturate,
    "pixelate": _pixelate,
    "jpeg": _jpeg,
}
