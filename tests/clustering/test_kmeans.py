"""k-means against scikit-learn from the same seeds, against brute force, and what its options promise."""

import itertools
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from jaxfl.clustering import kmeans, scores
from jaxfl.clustering.kmeans import farthest_first, lloyd, plus_plus
from jaxfl.clustering.kmeans import kmeans as cluster
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=6)

KEY = jax.random.key(0)
SEEDS = st.integers(0, 999)


def blobs(seed, *, groups=3, members=8, length=4, spread=0.1):
    """Groups about corners ten apart, in mixed order."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.repeat(np.arange(groups), members))
    corners = 10 * np.eye(max(groups, length))[:groups, :length] + rng.normal(size=(groups, length))
    return (corners[truth] + spread * rng.normal(size=(len(truth), length))).astype(np.float32), truth


def inertia(points, labels):
    parts = [points[labels == k] for k in np.unique(labels)]
    return sum(((part - part.mean(0)) ** 2).sum() for part in parts)


@given(seed=SEEDS, shape=st.sampled_from([(5, 1), (5, 5), (30, 4)]))
def test_lloyd_is_scikit_learns(seed, shape):
    """With n_init=1 and tol=0 both run to the same fixed point; float64, so that no label hangs on a rounding."""
    rng, (count, clusters) = np.random.default_rng(seed), shape
    with jax.enable_x64(True):
        points = rng.normal(size=(count, 3))
        start = points[rng.choice(count, clusters, replace=False)]  # members: no cluster is ever empty at first
        theirs = KMeans(clusters, **{"init": start, "n_init": 1}, tol=0, max_iter=300, algorithm="lloyd").fit(points)
        ours = lloyd(jnp.asarray(points), jnp.asarray(start), max_iterations=300)
        np.testing.assert_allclose(float(ours.inertia), vars(theirs)["inertia_"], rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(ours.labels, theirs.labels_)
        np.testing.assert_allclose(ours.centres, theirs.cluster_centers_, rtol=1e-9)


@given(seed=SEEDS, count=st.sampled_from([5, 30]), clusters=st.integers(1, 5))
def test_weighted_lloyd_is_scikit_learns(seed, count, clusters):
    rng = np.random.default_rng(seed)
    with jax.enable_x64(True):
        points, weights = rng.normal(size=(count, 3)), rng.integers(1, 9, count).astype(float)
        start = points[rng.choice(count, clusters, replace=False)]
        theirs = KMeans(clusters, **{"init": start, "n_init": 1}, tol=0, max_iter=300, algorithm="lloyd")
        theirs.fit(points, sample_weight=weights)
        ours = lloyd(jnp.asarray(points), jnp.asarray(start), weights=jnp.asarray(weights), max_iterations=300)
        np.testing.assert_allclose(float(ours.inertia), vars(theirs)["inertia_"], rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(ours.labels, theirs.labels_)
        np.testing.assert_allclose(ours.centres, theirs.cluster_centers_, rtol=1e-9)


@given(seed=SEEDS)
def test_a_point_of_weight_two_is_two_points_and_one_of_weight_zero_none(seed):
    points = np.random.default_rng(seed).normal(size=(12, 3)).astype(np.float32)
    weights = np.array([2, 1, 0, 1, 2, 1, 1, 1, 0, 1, 2, 1], np.float32)
    twice = np.repeat(points, weights.astype(int), 0)
    one, two = (
        lloyd(jnp.asarray(of), jnp.asarray(points[[1, 3, 6]]), weights=given)
        for of, given in ((points, jnp.asarray(weights)), (twice, None))
    )
    np.testing.assert_allclose(one.centres, two.centres, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(one.inertia, two.inertia, rtol=1e-5)
    assert np.repeat(one.labels, weights.astype(int)).tolist() == two.labels.tolist()
    assert np.array(one.labels)[weights == 0].tolist() == [-1, -1]


def test_seeds_are_drawn_by_weight_times_squared_distance():
    """Of three points at 0, 1 and 2 with the weights 1, 4 and 1: the first seed by weight, the second by 4 and 4."""
    points, weights = jnp.array([[0.0], [1.0], [2.0]]), jnp.array([1.0, 4.0, 1.0])
    keys = jax.random.split(KEY, 2000)
    seeds = np.asarray(jax.vmap(lambda key: plus_plus(key, points, 2, weights=weights))(keys))[..., 0]
    first = np.bincount(seeds[:, 0].astype(int), minlength=3) / len(seeds)
    np.testing.assert_allclose(first, [1 / 6, 4 / 6, 1 / 6], atol=0.05)  # four standard deviations
    second = seeds[seeds[:, 0] == 0, 1]  # away by 1 * 4 and 4 * 1
    np.testing.assert_allclose((second == 1).mean(), 0.5, atol=0.12)


@pytest.mark.slow
@given(seed=SEEDS, clusters=st.integers(1, 3))
def test_no_partition_of_separated_points_is_better(seed, clusters):
    points = blobs(seed, groups=clusters, members=6 // clusters, spread=1.0)[0]
    partitions = map(np.array, itertools.product(range(clusters), repeat=len(points)))
    best = min(inertia(points.astype(float), labels) for labels in partitions)
    found = cluster(KEY, jnp.asarray(points), clusters)
    np.testing.assert_allclose(float(found.inertia), best, rtol=1e-5)


@given(seed=SEEDS)
def test_separated_blobs_are_found(seed):
    points, truth = blobs(seed)
    found = cluster(KEY, jnp.asarray(points), 3)
    assert scores.adjusted_rand_index(truth, found.labels) == 1
    np.testing.assert_allclose(found.inertia, inertia(points.astype(float), truth), rtol=1e-4)
    assert bool(found.kept.all())


@pytest.mark.parametrize("centre", ["mean", "geometric_median"])
@given(seed=SEEDS)
def test_more_restarts_are_never_worse(seed, centre):
    points = jnp.asarray(np.random.default_rng(seed).normal(size=(20, 2)), jnp.float32)
    key = jax.random.key(seed)
    single, many = (float(cluster(key, points, 4, restarts=r, centre=centre).inertia) for r in (1, 8))
    assert many <= single * (1 + 1e-6)  # the same start, compiled for another number of restarts


@given(seed=SEEDS)
def test_every_step_lowers_the_inertia(seed):
    rng = np.random.default_rng(seed)
    points, start = (jnp.asarray(rng.normal(size=(n, 2)), jnp.float32) for n in (25, 4))
    path = [float(lloyd(points, start, max_iterations=steps).inertia) for steps in range(6)]
    assert all(later <= earlier * (1 + 1e-6) for earlier, later in itertools.pairwise(path))


def test_it_stops_when_nothing_changes():
    points, _ = blobs(0)
    found = cluster(KEY, jnp.asarray(points), 3)
    assert int(found.iterations) < 100
    again = lloyd(jnp.asarray(points), found.centres)
    assert int(again.iterations) == 1 and again.labels.tolist() == found.labels.tolist()


@given(seed=SEEDS, options=st.sampled_from([("mean", 0.0), ("median", 0.2), ("geometric_median", 0.0)]))
def test_absent_points_are_as_if_not_there(seed, options):
    rng = np.random.default_rng(seed)
    points, _ = blobs(seed)
    start = points[:3]
    gaps = np.sort(rng.choice(len(points), 5))
    wide = np.insert(points, gaps, np.nan, axis=0)
    mask = np.isfinite(wide).all(1)
    wide[~mask] = rng.choice([np.nan, np.inf, 1e30, 3.0])  # the mask alone must do
    options = dict(zip(("centre", "trimmed"), options, strict=True))
    wanted = lloyd(jnp.asarray(points), jnp.asarray(start), **options)
    found = lloyd(jnp.asarray(wide), jnp.asarray(start), mask=jnp.asarray(mask), **options)
    np.testing.assert_allclose(found.centres, wanted.centres, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found.labels[mask], wanted.labels)
    np.testing.assert_array_equal(found.kept[mask], wanted.kept)
    assert (found.labels[~mask] == -1).all() and not found.kept[~mask].any()


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])  # 1e30: its square is not finite
def test_points_without_a_finite_length_are_absent(poison):
    points, truth = blobs(1)
    points[3] = poison
    found = cluster(KEY, jnp.asarray(points), 3)
    assert found.labels[3] == -1 and np.isfinite(found.centres).all()
    others = np.arange(len(truth)) != 3
    assert scores.adjusted_rand_index(truth[others], found.labels[others]) == 1


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, bool])
def test_whole_numbers_are_points_as_floats_are(dtype):
    whole = np.array([[0, 1], [1, 1], [1, 0], [7, 8], [9, 8]]).astype(dtype)
    floats = whole.astype(np.float32)
    for fn in (lambda points: cluster(KEY, points, 2), lambda points: lloyd(points, points[:2])):
        found, wanted = fn(whole), fn(floats)
        assert found.centres.dtype == np.float32
        jax.tree.map(np.testing.assert_array_equal, found, wanted)
    np.testing.assert_array_equal(plus_plus(KEY, whole, 2), plus_plus(KEY, floats, 2))
    np.testing.assert_array_equal(farthest_first(whole, jnp.array([0]), 2), farthest_first(floats, jnp.array([0]), 2))


@pytest.mark.parametrize(
    ("points", "got"),
    [
        ([[0.0], [1.0]], "list"),
        (np.zeros(3), "(3,)"),
        (np.zeros((0, 2)), "(0, 2)"),
        (np.zeros((2, 0)), "(2, 0)"),
        (np.zeros((2, 1), complex), "complex"),
        (None, "NoneType"),
    ],
)
def test_what_are_no_points_is_refused_by_name(points, got):
    with pytest.raises(ValueError, match=mentions("points", got)):
        cluster(KEY, points, 2)
    with pytest.raises(ValueError, match=mentions("centres", got)):
        lloyd(jnp.zeros((3, 1)), points)


@pytest.mark.parametrize("weight", [np.nan, np.inf])
def test_points_without_a_finite_weight_are_absent(weight):
    points, weights = np.array([[0.0], [1.0], [8.0], [9.0]], np.float32), np.array([1, weight, 1, 1], np.float32)
    found = cluster(KEY, points, 2, weights=weights)
    assert found.labels[1] == -1 and sorted(found.centres.ravel().tolist()) == [0.0, 8.5]
    assert float(found.inertia) == 0.5


def test_one_giant_costs_the_others_no_digits():
    """|x|^2 - 2 x.c + |c|^2 would: its rounding is a billion times the distances that decide."""
    points, truth = blobs(2)
    giant = np.concatenate([points, np.full((1, points.shape[1]), 1e6, np.float32)])
    found = cluster(KEY, jnp.asarray(giant), 4)
    assert scores.adjusted_rand_index([*truth, 3], found.labels) == 1


@pytest.mark.parametrize("trim", get_args(kmeans.Trim))
def test_one_far_outlier_does_not_move_trimmed_centres(trim):
    points, _ = blobs(3, groups=1, members=20)
    outlier = np.concatenate([points, np.full((1, points.shape[1]), 1e3, np.float32)])
    alone = jnp.asarray(points.mean(0))
    plain, kept = (cluster(KEY, jnp.asarray(outlier), 1, trimmed=share, trim=trim) for share in (0.0, 1 / 21 + 1e-6))
    assert float(jnp.linalg.norm(plain.centres[0] - alone)) > 10
    assert float(jnp.linalg.norm(kept.centres[0] - alone)) < 0.1
    assert np.flatnonzero(~kept.kept).tolist() == [20] and kept.labels[20] == 0, "left out, but labelled"


@given(seed=SEEDS)
def test_a_group_of_outliers_wins_no_centre(seed):
    """Six outliers together, 24 others in three groups: k-means gives them one of three centres; trimmed, none."""
    points, truth = blobs(seed)
    far = np.full((6, points.shape[1]), -20, np.float32)
    far += np.random.default_rng(seed).normal(size=far.shape).astype(np.float32)
    mixed = jnp.asarray(np.concatenate([points, far]))
    plain, kept = (cluster(KEY, mixed, 3, trimmed=share) for share in (0.0, 0.2))
    assert scores.adjusted_rand_index(truth, plain.labels[:24]) < 1
    assert scores.adjusted_rand_index(truth, kept.labels[:24]) == 1
    assert kept.kept.tolist() == [True] * 24 + [False] * 6


@given(seed=SEEDS, share=st.sampled_from([0.1, 0.34]))
def test_every_cluster_loses_its_share(seed, share):
    points = jnp.asarray(np.random.default_rng(seed).normal(size=(30, 2)), jnp.float32)
    found = lloyd(points, points[:3], trimmed=share, trim="cluster")
    for k in range(3):
        member = np.asarray(found.labels) == k
        assert (member & ~np.asarray(found.kept)).sum() == int(share * member.sum())
    whole = lloyd(points, points[:3], trimmed=share, trim="all")
    assert (~whole.kept).sum() == int(share * 30)


@pytest.mark.parametrize("trim", get_args(kmeans.Trim))
def test_trimming_nothing_is_plain(trim):
    points, _ = blobs(5, spread=3.0)
    plain, none = cluster(KEY, jnp.asarray(points), 3), cluster(KEY, jnp.asarray(points), 3, trimmed=0.01, trim=trim)
    np.testing.assert_array_equal(plain.labels, none.labels)  # 1 % of 24 points is none
    np.testing.assert_array_equal(plain.centres, none.centres)


@pytest.mark.parametrize("centre", ["median", "geometric_median"])
def test_medians_shrug_off_a_minority(centre):
    points, truth = blobs(6, groups=2, members=10)
    points[np.flatnonzero(truth == 0)[:3]] += np.array([0, 0, 0, 8], np.float32)
    start = jnp.asarray(np.stack([points[truth == k].mean(0) for k in (0, 1)]))
    found = lloyd(jnp.asarray(points), start, centre=centre)
    honest = points[np.flatnonzero(truth == 0)[3:]].mean(0)
    moved = lloyd(jnp.asarray(points), start).centres[0] - honest
    assert np.linalg.norm(found.centres[0] - honest) < 0.3 < 2 < np.linalg.norm(moved)  # three of their deviations


def test_empty_clusters_keep_their_centre():
    start = jnp.array([[1.0], [500.0], [900.0]])
    found = lloyd(jnp.array([[0.0], [1.0], [2.0], [30.0]]), start)
    assert found.centres[1:].tolist() == start[1:].tolist() and found.labels.tolist() == [0, 0, 0, 0]


def test_more_clusters_than_points_leaves_some_empty():
    points = jnp.array([[0.0], [0.0], [4.0]])
    found = cluster(KEY, points, 5)
    assert float(found.inertia) == 0 and np.isfinite(found.centres).all()
    assert len(set(found.labels.tolist())) == 2
    nobody = cluster(KEY, points, 2, mask=jnp.zeros(3, bool))
    assert nobody.labels.tolist() == [-1] * 3 and np.isfinite(nobody.centres).all()


def test_ties_go_to_the_lowest_cluster():
    found = lloyd(jnp.array([[0.0], [2.0]]), jnp.array([[1.0], [1.0]]), max_iterations=0)
    assert found.labels.tolist() == [0, 0]


def test_the_names_of_the_clusters_follow_the_seeds():
    points, _ = blobs(7)
    start, order = jnp.asarray(points[:3]), jnp.array([2, 0, 1])
    one, other = lloyd(jnp.asarray(points), start), lloyd(jnp.asarray(points), start[order])
    np.testing.assert_array_equal(one.centres[order], other.centres)
    np.testing.assert_array_equal(np.argsort(order)[one.labels], other.labels)


def test_seeds_are_points_and_distinct():
    points, truth = blobs(8)
    mask = jnp.asarray(truth != 1)
    for seed in range(5):
        seeds = np.asarray(plus_plus(jax.random.key(seed), jnp.asarray(points), 2, mask=mask))
        taken = [int(np.flatnonzero((points == row).all(1))[0]) for row in seeds]
        assert len(set(taken)) == 2 and 1 not in truth[taken]


def test_seeds_are_drawn_by_squared_distance():
    """From 0, the points 1 and 3 follow as 1 to 9; four standard deviations of 2,000 draws."""
    points = jnp.array([[0.0], [1.0], [3.0]])
    keys = jax.random.split(KEY, 6000)
    seeds = jax.vmap(lambda key: plus_plus(key, points, 2))(keys)[..., 0]
    second = np.asarray(seeds[seeds[:, 0] == 0, 1])
    assert len(second) > 1800
    assert abs((second == 3).mean() - 0.9) < 4 * np.sqrt(0.9 * 0.1 / len(second))


def test_no_seed_is_drawn_from_those_left_out_where_all_others_are_seeds():
    """Eight points are one; of ten, a quarter is left out: the two that are far from the first seed."""
    points = jnp.concatenate([jnp.zeros((8, 1)), jnp.full((2, 1), 9.0)])
    seeds = jax.vmap(lambda key: plus_plus(key, points, 2, trimmed=0.25))(jax.random.split(KEY, 40))[..., 0]
    begun = np.asarray(seeds[seeds[:, 0] == 0])
    assert len(begun) > 20 and (begun[:, 1] == 0).all()
    assert (seeds[:, 0] == 9).any(), "the first may be any"


@given(seed=SEEDS)
def test_farthest_first_is_greedy(seed):
    points = np.random.default_rng(seed).integers(0, 5, (9, 2)).astype(np.float32)
    seeds = farthest_first(jnp.asarray(points), jnp.array([4]), 4)
    wanted = [points[4]]
    while len(wanted) < 4:
        nearest = [min(((point - other) ** 2).sum() for other in wanted) for point in points]
        wanted.append(points[int(np.argmax(nearest))])
    np.testing.assert_array_equal(seeds, wanted)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"trimmed": 1.0}, ("trimmed", 1.0)),
        ({"trim": "some"}, ("trim", "some")),
        ({"centre": "mode"}, ("centre", "mode")),
        ({"max_iterations": -1}, ("max_iterations", -1)),
        ({"weights": jnp.ones(3), "centre": "median"}, ("weights", "trimmed=0.0", "centre='median'")),
        ({"restarts": 0}, ("restarts", 0)),
        ({"mask": np.ones(2, bool)}, ("mask", 3, "(2,)")),
        ({"weights": np.ones((3, 1))}, ("weights", 3, "(3, 1)")),
        ({"trimmed": np.nan}, ("trimmed", "nan")),
    ],
)
def test_refusals(options, complaint):
    with pytest.raises(ValueError, match=mentions(*complaint)):
        cluster(KEY, jnp.zeros((3, 1)), 2, **options)


@pytest.mark.parametrize("start", [cluster, plus_plus])
def test_there_is_a_cluster(start):
    with pytest.raises(ValueError, match=mentions("num_clusters", 0)):
        start(KEY, jnp.zeros((3, 1)), 0)


def test_centres_and_first_seeds_fit_the_points():
    points = jnp.zeros((3, 2))
    with pytest.raises(ValueError, match=mentions("centres", 2, "(2, 1)")):
        lloyd(points, jnp.zeros((2, 1)))
    for first, count in (([0, 1, 2], 2), ([], 2), ([[0]], 2), ([0], 0)):
        with pytest.raises(ValueError, match=mentions("num_clusters" if not count else "first")):
            farthest_first(points, jnp.array(first, int), count)


def test_farthest_points_are_those_of_somebody():
    """Of more seeds than there are points; absent ones lie nowhere."""
    points, mask = jnp.array([[5.0], [7.0], [9.0]]), jnp.array([False, True, True])
    assert farthest_first(points, jnp.array([1]), 3, mask=mask).ravel().tolist() == [7.0, 9.0, 7.0]
