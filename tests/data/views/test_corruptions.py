"""Corruptions: each formula restated in plain NumPy, levels in order, noise of one row for ever the same."""

import colorsys
import hashlib
import io
import math
import zlib
from fractions import Fraction

import numpy as np
import pytest
from PIL import Image

from jaxfl.data.views import corruptions
from jaxfl.data.views.corruptions import KINDS, SCALES, STRENGTHS, Corruption, corrupt, redraw_strokes
from tests.messages import mentions

RNG = np.random.Generator(np.random.PCG64(8))
SMALL = {"grey": (2, 9, 12), "colour": (2, 9, 12, 3)}


def pictures(*shape):
    """Smooth images with black and white parts: waves with an edge, so that every corruption has something to do."""
    places = np.stack(np.meshgrid(*(np.arange(size) for size in shape[1:3]), indexing="ij"))
    waves = [np.sin(0.5 * places[0] + 0.3 * turn) + np.cos(0.4 * places[1] - 0.7 * turn) for turn in range(6)]
    number = shape[0] * (shape[3] if len(shape) == 4 else 1)
    planes = np.stack([waves[index % 6] * (1 + index // 6) for index in range(number)])
    images = np.clip(127 + 90 * planes, 0, 255).astype(np.uint8)
    return images if len(shape) == 3 else np.moveaxis(images.reshape(shape[0], shape[3], *shape[1:3]), 1, 3)


def draws(seed, kind, level, row):
    key = hashlib.sha256(f"{seed} {kind} {level} {row}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))


def correlated(plane, kernel, index):
    """Sums of a plane's pixels weighted by a kernel, with `index(place, size)` for places beyond the border."""
    result, reach = np.zeros(plane.shape), len(kernel) // 2
    for di, dj in np.ndindex(*kernel.shape):
        rows = [index(i + di - reach, plane.shape[0]) for i in range(plane.shape[0])]
        columns = [index(j + dj - reach, plane.shape[1]) for j in range(plane.shape[1])]
        result += kernel[di, dj] * plane[rows][:, columns]
    return result


def repeated(at, size):
    return min(max(at, 0), size - 1)


def mirrored(at, size):
    at %= 2 * (size - 1)
    return at if at < size else 2 * (size - 1) - at


def gaussian(deviation, reach):
    weights = [math.exp(-(step**2) / (2 * deviation**2)) for step in range(-reach, reach + 1)]
    return np.array(weights) / sum(weights)


def blurred(plane, s):
    weights = gaussian(s, int(4 * s + 0.5))
    return correlated(plane, np.outer(weights, weights), repeated)


def defocused(plane, strength):
    radius, deviation = strength
    reach, taps = (8, 1) if radius <= 8 else (radius, 2)
    places = np.arange(-reach, reach + 1)
    disk = np.array([[float(x * x + y * y <= radius * radius) for x in places] for y in places])
    weights = gaussian(deviation, taps)
    kernel = correlated(disk / disk.sum(), np.outer(weights, weights), mirrored)
    return correlated(plane, kernel, mirrored)


def coarse(plane, share):
    result = np.zeros(plane.shape)
    few = [int(size * share) for size in plane.shape]
    groups = []
    for size, count in zip(plane.shape, few, strict=True):
        side = Fraction(size, count)
        members = [[at for at in range(size) if k * side < at + Fraction(1, 2) <= (k + 1) * side] for k in range(count)]
        groups.append([members[math.floor((at + Fraction(1, 2)) / side)] for at in range(size)])
    for i, j in np.ndindex(*plane.shape):
        result[i, j] = np.mean([plane[row, column] for row in groups[0][i] for column in groups[1][j]])
    return result


def brighter(pixel, more):
    if len(pixel) == 1:
        return [min(pixel[0] + more, 1)]
    hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
    return colorsys.hsv_to_rgb(hue, saturation, min(value + more, 1))


def saturated(pixel, strength):
    if len(pixel) == 1:
        return pixel
    hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
    return colorsys.hsv_to_rgb(hue, min(max(strength[0] * saturation + strength[1], 0), 1), value)


PLANES = {
    "gaussian_blur": blurred,
    "defocus_blur": defocused,
    "contrast": lambda plane, s: (plane - plane.mean()) * s + plane.mean(),
    "pixelate": coarse,
}
PIXELS = {"brightness": brighter, "saturate": saturated}
NOISE = {
    "gaussian_noise": lambda x, s, rng: x + s * rng.standard_normal(x.shape),
    "shot_noise": lambda x, s, rng: rng.poisson(x * s) / s,
    "speckle_noise": lambda x, s, rng: x + x * s * rng.standard_normal(x.shape),
}


@pytest.mark.parametrize("shape", SMALL)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("impulse_noise", "jpeg")])
def test_a_corruption_is_its_formula_truncated(kind, scale, shape):
    images = pictures(*SMALL[shape])
    for level in (1, 4, 5):
        found = corrupt(images, kind, level, scale=scale, seed=5, rows=np.array([40, 7]))
        strength = STRENGTHS[scale][kind][level - 1]
        for image, row, result in zip(images, (40, 7), found, strict=True):
            x = image.reshape(*image.shape[:2], -1) / 255
            if kind in PLANES:
                x = np.stack([PLANES[kind](plane, strength) for plane in np.moveaxis(x, 2, 0)], 2)
            elif kind in PIXELS:
                x = np.array([[PIXELS[kind](pixel, strength) for pixel in line] for line in x])
            else:
                x = NOISE[kind](x, strength, draws(5, kind, level, row))
            exact, result = 255 * np.clip(x, 0, 1), result.reshape(x.shape).astype(float)
            # truncated, but for an error of rounding just below a whole grey level
            assert ((result <= exact + 1e-5) & (exact < result + 1 + 1e-9)).all()


@pytest.mark.parametrize("scale", SCALES)
def test_impulse_noise_is_black_and_white_half_and_half(scale):
    grey = np.full((8, 50, 50), 77, np.uint8)
    for level in range(1, 6):
        found = corrupt(grey, "impulse_noise", level, scale=scale)
        assert set(np.unique(found)) == {0, 77, 255}
        share = STRENGTHS[scale]["impulse_noise"][level - 1]
        for value in (0, 255):
            count, expected = (found == value).sum(), share / 2 * found.size
            assert abs(count - expected) < 4 * math.sqrt(expected)


@pytest.mark.parametrize("shape", SMALL)
def test_jpeg_is_what_an_encoder_makes_but_for_a_grey_level_or_two(shape):
    images = pictures(*SMALL[shape][:1], 32, 48, *SMALL[shape][3:])
    for scale, level in (("cifar", 1), ("cifar", 5), ("imagenet", 3)):
        found = corrupt(images, "jpeg", level, scale=scale).astype(int)
        for image, result in zip(images, found, strict=True):
            file = io.BytesIO()
            Image.fromarray(image).save(file, "jpeg", quality=STRENGTHS[scale]["jpeg"][level - 1], subsampling=2)
            decoded = np.asarray(Image.open(file)).astype(int)
            away = np.abs(result - decoded)
            assert np.abs(image.astype(int) - decoded).mean() > 0
            if shape == "grey":
                assert away.mean() < 1
            else:  # Pillow smooths the colours of neighbouring pixels
                luma = np.abs((result - decoded) @ [0.299, 0.587, 0.114])
                assert away.mean() < 6 and luma.mean() < 1.5


def test_jpeg_of_a_block_is_a_rounded_cosine_transform():
    (image,) = pictures(1, 8, 8) // 2 + 60  # so that nothing is clipped
    waves = np.array(
        [
            [math.cos((2 * x + 1) * u * math.pi / 16) * (0.5 if u else math.sqrt(1 / 8)) for x in range(8)]
            for u in range(8)
        ]
    )
    first = [16, 11, 10, 16, 24, 40, 51, 61]  # of the standard's table
    quanta = np.array([max(1, math.floor((one * 100 + 50) / 100)) for one in first])  # of quality 50
    transform = waves @ (image - 128.0) @ waves.T
    (found,) = corrupt(image[None], "jpeg", 4)
    back = waves @ (found - 127.5) @ waves.T  # truncated, so that half a level is missing
    np.testing.assert_allclose(back[0], np.rint(transform[0] / quanta) * quanta, atol=4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(3, 28, 28), (3, 32, 32, 3)])
def test_level_0_is_the_identity_and_more_of_it_is_further_away(kind, shape):
    images = pictures(*shape)
    for scale in SCALES:
        found = [corrupt(images, kind, level, scale=scale).astype(float) for level in range(6)]
        away = [((one - images) ** 2).mean() for one in found]
        assert away[0] == 0
        if kind == "pixelate":  # fewer pixels, which may fall on the edges of a picture by chance
            assert (np.diff([len(np.unique(one[0], axis=0)) for one in found]) < 0).all()
        elif kind != "saturate":  # its first two levels take colour away, the others add some
            assert (np.diff(away) > 0).all(), away
        elif len(shape) == 4:
            assert away[1] < away[2] and away[3] < away[4] < away[5]
        else:
            assert not any(away)


def test_noise_is_that_of_its_row_in_any_order_and_of_nothing_else():
    images = np.full((40, 8, 8), 128, np.uint8)
    for kind in ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"):
        one = corrupt(images, kind, 5, seed=3)
        order = RNG.permutation(40)
        np.testing.assert_array_equal(corrupt(images[order], kind, 5, seed=3, rows=order), one[order])
        assert len({image.tobytes() for image in one}) > 30  # few of an image's 64 numbers may be changed
        assert (corrupt(images, kind, 5, seed=4) != one).any()


def test_pixels_of_four_bits_have_their_own_white():
    images = (pictures(4, 8, 8) // 16).astype(np.uint8)
    found = corrupt(images, "brightness", 5, scale="imagenet", white=15)
    np.testing.assert_array_equal(found, np.minimum(images + 7.5, 15).astype(np.uint8))


@pytest.mark.parametrize("shape", [(2, 5, 6), (2, 5, 6, 3)])
def test_strokes_are_minima_and_maxima_of_nine_pixels(shape):
    images = RNG.integers(0, 256, shape, np.uint8)
    wide = np.pad(images, [(0, 0), (1, 1), (1, 1), (0, 0)][: len(shape)], mode="edge")
    around = np.stack([wide[:, i : i + 5, j : j + 6] for i in range(3) for j in range(3)])
    np.testing.assert_array_equal(redraw_strokes(images, "erode"), around.min(0))
    np.testing.assert_array_equal(redraw_strokes(images, "dilate"), around.max(0))


def test_every_corruption_has_a_code_of_its_own():
    every = [Corruption(kind, level, scale) for kind in KINDS for level in range(1, 6) for scale in SCALES]
    every.append(Corruption("invert", 0))
    assert len({one.code for one in every} | {0}) == len(every) + 1
    assert [Corruption.of_code(one.code) for one in every] == every


# Of kinds that are computed with whole numbers, or compare uniform draws: equal bits on every machine.
CHECKSUMS = {
    ("impulse_noise", 8): 2259392490,
    ("impulse_noise", 28): 496772510,
    ("contrast", 8): 2003111094,
    ("contrast", 28): 1455066090,
    ("brightness", 8): 3300624339,
    ("brightness", 28): 3303501650,
    ("pixelate", 8): 1817430944,
    ("pixelate", 28): 4097131417,
    ("erode", 28): 1662492924,
    ("dilate", 28): 125589245,
}


@pytest.mark.parametrize(("kind", "side"), CHECKSUMS)
def test_files_made_elsewhere_agree_to_the_bit(kind, side):
    image = (np.arange(side * side) * 97 % 251).astype(np.uint8).reshape(1, side, side)
    found = redraw_strokes(image, kind) if kind in corruptions.STROKES else corrupt(image, kind, 3, seed=1)
    assert zlib.crc32(found.tobytes()) == CHECKSUMS[kind, side]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: corrupt(pictures(1, 8, 8), "fog", 1), ("kind", "fog")),
        (lambda: corrupt(pictures(1, 8, 8), "contrast", 6), ("level", 6)),
        (lambda: corrupt(pictures(1, 8, 8), "contrast", 1, scale="mnist"), ("scale", "mnist")),
        (lambda: corrupt(np.zeros((3, 64), np.uint8), "contrast", 1), ("corrupt", "(3, 64)")),
        (lambda: corrupt(np.zeros((3, 8, 8, 2), np.uint8), "contrast", 1), ("corrupt", "(3, 8, 8, 2)")),
        (lambda: corrupt(np.zeros((3, 8, 8), np.int32), "contrast", 1), ("corrupt", "int32")),
    ],
)
def test_refusals_name_argument_value_and_remedy(call, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        call()
