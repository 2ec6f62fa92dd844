"""Rotations of images: exact in quarter turns, SciPy's interpolation in between."""

import jax
import numpy as np
import pytest
from scipy import ndimage

from jaxfl import data
from jaxfl.data import images

tilt = jax.jit(images.rotate_by_degrees)
RNG = np.random.Generator(np.random.PCG64(3))


@pytest.mark.parametrize("shape", [(2, 8, 8), (2, 7, 7), (2, 8, 8, 3), (1, 1, 1)])
@pytest.mark.parametrize("degrees", [0.0, 36.0, -17.5, 90.0, 200.0])
def test_tilt_is_bilinear_about_the_centre_with_the_border_repeated(shape, degrees):
    x = RNG.standard_normal(shape)
    # reshape=False keeps the centre; in SciPy, as in np.rot90, positive is counter-clockwise in the plane (1, 2)
    # of rows and columns; "nearest" repeats the border.
    expected = ndimage.rotate(x, degrees, axes=(1, 2), reshape=False, order=1, mode="nearest")
    with jax.enable_x64(True):
        found = tilt(x, np.float64(degrees))
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_tilt_by_nothing_changes_nothing_and_pixels_become_floats():
    x = RNG.integers(0, 256, (3, 9, 9), np.uint8)
    found = tilt(x, np.float32(0))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, x)


def test_a_white_background_stays_white():
    x = np.full((1, 9, 9), 255, np.uint8)
    # the two weights of an interpolation add up to 1 to rounding
    np.testing.assert_allclose(tilt(x, np.float32(45)), 255, rtol=1e-6)


def test_clients_of_one_federation_have_their_own_angles():
    x = RNG.integers(0, 256, (40, 6, 6), np.uint8)
    source = data.Source("made", x, np.arange(40) % 4, 4, mean=8.0, std=16.0)
    angles = (0, 36, 90, 300)
    fed = jax.device_put(data.rotated(source, num_clients=4, rows_per_client=5, angles=angles))
    assert fed.rotation.tolist() == [0, 0, 1, 3] and fed.tilt.tolist() == [0.0, 36.0, 0.0, 30.0]
    assert fed.group_names == ("0°", "36°", "90°", "300°")
    batches = jax.jit(jax.vmap(lambda client: fed.batch(fed.train, client, np.arange(5))))(np.arange(4))
    for client, angle in enumerate(angles):
        rows = fed.train.rows[fed.train.start[client] :][:5]
        expected = ndimage.rotate(x[rows].astype(float), angle, axes=(1, 2), reshape=False, order=1, mode="nearest")
        # float32 coordinates: 1e-6 of a pixel of at most 255
        np.testing.assert_allclose(batches.x[client], (expected - 8) / 16, atol=1e-4)
    exact = np.rot90(x[fed.train.rows[10:15]], axes=(1, 2))
    np.testing.assert_array_equal(batches.x[2], (exact.astype(np.float32) - 8) / 16)  # powers of two: no rounding


def test_multiples_of_90_need_no_interpolation():
    x = RNG.integers(0, 256, (40, 6, 6), np.uint8)
    fed = data.rotated(data.Source("made", x, np.arange(40) % 4, 4), num_clients=4, angles=(-90, 180, 360, 450))
    assert fed.tilt is None and fed.rotation.tolist() == [3, 2, 0, 1]
