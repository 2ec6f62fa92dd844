"""Silhouette and Davies-Bouldin index against scikit-learn, and where it has no value or another one."""

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics

from jaxfl.clustering import cohesion

pytestmark = pytest.mark.rotating("function", weeks=3)

SCORES = {
    cohesion.silhouette: metrics.silhouette_score,
    cohesion.davies_bouldin: metrics.davies_bouldin_score,
}


def score(function, points, labels, slots=8, mask=None):
    points = jnp.asarray(np.asarray(points, np.float32))
    return float(function(points, jnp.asarray(np.asarray(labels, np.int32)), slots, mask))


@pytest.mark.parametrize("function", SCORES, ids=lambda function: function.__name__)
@pytest.mark.parametrize("offset", [0, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_equal_to_scikit_learn_whatever_is_left_out(function, seed, offset):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 6, 40)
    labels[0] = 6  # a cluster of one
    absent, nowhere = np.split(1 + rng.permutation(39)[:14], 2)  # as many for every seed: shapes are compiled once
    labels[nowhere] = -1
    points = rng.normal(size=(40, 5)) + 2 * np.eye(8)[labels][:, :5] + offset
    points[absent[0]] = np.nan
    there = ~np.isin(np.arange(40), absent)
    who = there & (labels >= 0)
    wanted = SCORES[function](points[who], labels[who])
    got = score(function, points, labels, mask=jnp.asarray(there))
    assert got == pytest.approx(wanted, abs=2e-5 * (1 if offset == 0 else 20))
    assert score(function, points[who], labels[who], slots=64) == pytest.approx(got, abs=1e-5), "K > N"
    names, order = rng.permutation(8), rng.permutation(who.sum())
    again = score(function, 4 * points[who][order], names[labels[who]][order])  # which rounds no number
    assert again == pytest.approx(got, abs=1e-4 if offset else 1e-5)


@pytest.mark.parametrize("function", SCORES, ids=lambda function: function.__name__)
@pytest.mark.parametrize(
    "labels", [[0, 0, 0, 0], [3, 1, 0, 2], [-1, -1, -1, -1], [-1, 1, 0, -1], [9, 9, 8, 8]],
    ids=["one cluster", "singletons", "none", "two singletons", "no such slots"],
)  # fmt: skip
def test_without_two_clusters_or_two_points_in_one_there_is_no_score(function, labels):
    assert np.isnan(score(function, np.arange(12).reshape(4, 3), labels))
    assert np.isnan(score(function, np.zeros((4, 3)), labels, slots=2))


def test_edges_of_silhouettes():
    line = [[0.0], [2.0], [10.0]]
    assert score(cohesion.silhouette, line, [0, 0, 1]) == pytest.approx((0.8 + 0.75) / 3), "one point alone has 0"
    assert score(cohesion.silhouette, np.zeros((4, 2)), [0, 0, 1, 1]) == 0, "no distances"
    assert score(cohesion.silhouette, [[1.0], [1.0], [5.0], [5.0]], [0, 0, 1, 1]) == 1


def test_coinciding_centroids_are_infinitely_bad():
    cross = np.array([[0.3, 0.0], [-0.1, 0.0], [0.1, 0.7], [0.1, -0.7]]) + 0.1
    assert score(cohesion.davies_bouldin, cross, [0, 0, 1, 1]) == np.inf
    assert score(cohesion.davies_bouldin, np.ones((4, 2)), [0, 0, 1, 1]) == np.inf
    assert score(cohesion.davies_bouldin, [[1.0], [1.0], [5.0], [5.0]], [0, 0, 1, 1]) == 0


FREQUENCIES = np.array([(0.7, 0.2, 0.1), (0.15, 0.65, 0.2), (0.5, 0.3, 0.2), (0.25, 0.3, 0.45)])


@pytest.mark.parametrize(
    ("labels", "silhouette", "davies_bouldin"),
    [((0, 0, 1, 1), 0.708502, 0.288675), ((0, 1, 0, 1), -0.350145, 3.464102)],
)
def test_the_worked_example_of_sorted_class_frequencies(labels, silhouette, davies_bouldin):
    points = cohesion.ranked_frequencies(100 * FREQUENCIES)
    apart = np.sqrt(np.square(points[:, None] - points[None]).mean(-1))  # 2-Wasserstein distances
    upper = apart[np.triu_indices(4, 1)]
    np.testing.assert_allclose(upper, [0.040825, 0.141421, 0.177951, 0.108012, 0.141421, 0.040825], atol=1e-6)
    assert score(cohesion.silhouette, points, labels) == pytest.approx(silhouette, abs=2e-6)
    assert score(cohesion.davies_bouldin, points, labels) == pytest.approx(davies_bouldin, abs=1e-5)
    plain = [score(cohesion.silhouette, FREQUENCIES, one) for one in (labels, [0, 1, 0, 1], [0, 0, 1, 1])]
    assert plain[1] > plain[2], "unsorted, the other way round"


def test_sorted_class_frequencies_do_not_see_which_classes_they_are():
    counts = np.array([[5, 5, 0, 0], [0, 0, 3, 3], [0, 4, 0, 4], [8, 0, 0, 0]])
    first, second, third, fourth = cohesion.ranked_frequencies(counts)
    assert first.tolist() == second.tolist() == third.tolist() != fourth.tolist()
    assert np.isnan(cohesion.ranked_frequencies([[0, 0], [1, 1]])).tolist() == [[True, True], [False, False]]
