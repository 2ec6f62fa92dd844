"""Leading coordinates against singular vectors, and spectral clustering against scikit-learn's and two rings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import KMeans, SpectralClustering

from jaxfl.clustering import kmeans, scores
from jaxfl.clustering.spectral import leading_coordinates, spectral_clustering
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=3)

POINTS = np.array([(2, 0.1, 0), (1.8, 0, 0.2), (-1, 0.3, 1), (-1.2, 0.1, 1.1)])  # a row for each client
KEY = jax.random.key(0)


def test_the_worked_example():
    with jax.enable_x64(True):
        found, vectors = leading_coordinates(jnp.asarray(POINTS @ POINTS.T), 2)
    wanted = np.array([(1.936714, -0.505167), (1.697540, -0.627144), (-1.220701, -0.765945), (-1.432624, -0.773389)])
    np.testing.assert_allclose(np.abs(found), np.abs(wanted), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found[0] - found[1]), 0.268482, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(np.asarray(found), axis=0), [3.189832, 1.353996], atol=1e-6)
    vectors = np.asarray(vectors)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(2), atol=1e-12)
    labels = kmeans.kmeans(KEY, jnp.asarray(found, jnp.float32), 2).labels.tolist()
    assert labels in ([0, 0, 1, 1], [1, 1, 0, 0])


@pytest.mark.parametrize("shape", [(6, 4), (4, 9)])
def test_coordinates_are_those_along_the_left_singular_vectors(shape):
    points = np.random.default_rng(0).normal(size=shape)
    with jax.enable_x64(True):
        found, _ = (np.asarray(part) for part in leading_coordinates(jnp.asarray(points @ points.T), shape[0]))
    left = np.linalg.svd(points.T, full_matrices=False)[0]
    np.testing.assert_allclose(np.abs(found[:, : left.shape[1]]), np.abs(points @ left), atol=1e-6)
    np.testing.assert_allclose(found @ found.T, points @ points.T, atol=1e-9)  # all of them: a rotation of the points
    few = leading_coordinates(jnp.eye(2), 5)
    assert [part.shape for part in few] == [(2, 5), (2, 5)] and not np.asarray(few[0])[:, 2:].any()


def rings(count=40, seed=0):
    """Two rings, one around the other, which no centres tell apart, in mixed order."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.repeat([0, 1], count))
    angle, radius = rng.permutation(2 * count) * 2 * np.pi / (2 * count), np.where(truth, 4.0, 1.0)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1), truth


def affinities(points):
    return np.exp(-2 * ((points[:, None] - points[None]) ** 2).sum(-1))


def test_rings_are_found_as_scikit_learn_finds_them_and_not_by_k_means():
    points, truth = rings()
    affinity = affinities(points)
    found = spectral_clustering(KEY, jnp.asarray(affinity, jnp.float32), 2).labels
    theirs = SpectralClustering(2, affinity="precomputed", random_state=0).fit(affinity).labels_
    assert scores.adjusted_rand_index(truth, found) == scores.adjusted_rand_index(truth, theirs) == 1
    assert scores.adjusted_rand_index(truth, KMeans(2, n_init=5, random_state=0).fit(points).labels_) < 0.5


def test_absent_points_change_nothing_and_points_without_affinity_do_no_harm():
    points, truth = rings()
    points, there = np.concatenate([points, np.zeros((3, 2))]), np.arange(83) < 80  # in the middle of the inner ring
    affinity = affinities(points)
    affinity[~there] = affinity[:, ~there] = np.nan
    found = np.asarray(spectral_clustering(KEY, jnp.asarray(affinity, jnp.float32), 2, jnp.asarray(there)).labels)
    assert (found[80:] == -1).all() and scores.adjusted_rand_index(truth, found[:80]) == 1
    alone = np.eye(5)
    alone[4, 4], alone[0, 1], alone[1, 0] = 0, 1, 1
    assert (np.asarray(spectral_clustering(KEY, jnp.asarray(alone, jnp.float32), 3).labels) >= 0).all()


@pytest.mark.parametrize(
    ("shape", "count", "words"), [((2, 3), 2, ("affinity", "[2, 3]")), ((3, 3), 4, ("num_clusters", 4, 3))]
)
def test_refusals(shape, count, words):
    with pytest.raises(ValueError, match=mentions(*words)):
        spectral_clustering(KEY, jnp.ones(shape), count)
