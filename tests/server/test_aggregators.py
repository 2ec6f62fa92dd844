"""Robust aggregators against values computed by hand in float64, and their laws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfl.server.aggregators import centred_clip, geometric_median, krum, median, multi_krum, norm_bound, trimmed_mean
from tests.messages import mentions

POINTS = [(1, 2), (2, 1), (3, 3), (2, 2), (50, -40), (1.5, 2.5), (10, 10), (11, 9), (12, 14), (99, 99)]
LABELS = [0, 0, 0, 0, 0, 0, 1, 1, 1, -1]
ALL = {
    "median": median(),
    "trimmed": trimmed_mean(0.2),
    "krum": krum(0.2),
    "multikrum": multi_krum(0.2),
    "geomedian": geometric_median(),
    "cclip": centred_clip(2.0),
}


def aggregated(aggregator, points, labels, count=2):
    return np.asarray(aggregator(jnp.asarray(points, jnp.float32), jnp.asarray(labels, jnp.int32), count))


@pytest.mark.parametrize(
    ("aggregator", "wanted"),
    [
        (median(), [(2, 2), (11, 10)]),
        (trimmed_mean(0.2), [(2.125, 1.875), (11, 11)]),
        (trimmed_mean(0.0), [(9.916667, -4.916667), (11, 11)]),
        (krum(0.2), [(2, 2), (10, 10)]),
        (multi_krum(0.2), [(1.9, 2.1), (11, 11)]),
        (geometric_median(), [(1.99933, 1.99934), (10.31602, 10.02773)]),
        (geometric_median(steps=100), [(2, 2), (10.24819, 10.02699)]),
    ],
)
def test_reference_values(aggregator, wanted):
    np.testing.assert_allclose(aggregated(aggregator, POINTS, LABELS), wanted, rtol=2e-6)


def test_centred_clipping_starts_from_nothing():
    found = aggregated(centred_clip(2.0), POINTS, LABELS)[0]
    np.testing.assert_allclose(found, (2.16854, 1.80239), rtol=5e-6)


@pytest.mark.rotating
@pytest.mark.parametrize("name", ALL)
def test_order_changes_nothing_and_one_member_is_itself(name, key):
    points = jax.random.normal(key, (12, 5))
    labels = np.array([0, 1, 1, 0, 1, -1, 2, 1, 0, 1, 0, 0])  # with three members Krum's best two are equally good
    found = aggregated(ALL[name], points, labels, 4)
    order = np.random.default_rng(0).permutation(12)
    np.testing.assert_allclose(aggregated(ALL[name], points[order], labels[order], 4), found, rtol=1e-5, atol=1e-6)
    if name != "cclip":  # it approaches what is farther than its radius
        np.testing.assert_allclose(found[2], points[6], rtol=1e-6)
        moved = aggregated(ALL[name], 3 * points + 7, labels, 4)[:3]
        np.testing.assert_allclose(moved, 3 * found[:3] + 7, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(found[3], np.zeros(5))


@pytest.mark.rotating
@pytest.mark.parametrize("name", ALL)
def test_a_minority_that_is_far_away_moves_little(name, key):
    """A fifth of one cluster at 1e6 and more."""
    honest = np.asarray(jax.random.normal(key, (8, 5)))
    far = np.float32([[1e6] * 5, [-1e9] * 5])
    found = aggregated(ALL[name], np.concatenate([honest, far]), [0] * 10, 1)[0]
    # the geometric median is within 2 / (1 - 2 / 5) radii of the honest; a centred clip within its steps
    assert np.abs(found).max() < 2 * np.abs(honest).max() + 2
    if name in ("median", "krum", "trimmed"):
        assert (found >= honest.min(0)).all() and (found <= honest.max(0)).all()


@pytest.mark.parametrize(
    ("aggregator", "members", "far", "radii"),
    [
        (median(), 9, 4, 1),
        (trimmed_mean(0.4), 10, 4, 1),
        (krum(0.34), 9, 3, 1),
        (multi_krum(0.34), 9, 3, 1),
        (geometric_median(steps=100), 9, 4, 10),  # 2 (n - f) / (n - 2 f)
        (centred_clip(0.5), 9, 4, 3),  # three steps of at most the radius
    ],
    ids=["median", "trimmed", "krum", "multikrum", "geomedian", "cclip"],
)
def test_as_many_attackers_as_an_aggregator_stands_move_it_little(aggregator, members, far, radii, key):
    """All at one point; one more moves a median and a trimmed mean to it."""
    honest = np.asarray(jax.random.uniform(key, (members, 5), minval=-0.2, maxval=0.2))
    points = np.where(np.arange(members)[:, None] < members - far, honest, 1e6)
    found = aggregated(aggregator, points, [0] * members, 1)[0]
    if radii == 1:  # in the range of the honest
        assert (found >= honest.min(0)).all() and (found <= honest.max(0) * (1 + 1e-6)).all()
    else:
        radius = 0.5 if radii == 3 else np.linalg.norm(honest, axis=1).max()
        assert np.linalg.norm(found) <= radii * radius * (1 + 1e-5)
    if aggregator.__class__ is type(median()):
        points[0] = 1e6
        assert (aggregated(aggregator, points, [0] * members, 1)[0] > 1e5).all()


@pytest.mark.parametrize("make", [krum, multi_krum, trimmed_mean, centred_clip, norm_bound])
@pytest.mark.parametrize("number", [-0.1, 0.6, float("nan")])
def test_numbers_out_of_range_are_refused(make, number):
    if make in (centred_clip, norm_bound) and number == 0.6:
        make, number = krum, 0.5  # half of the members cannot be told from the other half
    with pytest.raises(ValueError, match=mentions(number)):
        make(number)
