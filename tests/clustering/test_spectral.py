"""Leading coordinates against singular vectors; spectral embeddings and clusters against scikit-learn's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import KMeans, SpectralClustering
from sklearn.manifold import SpectralEmbedding
from sklearn.metrics import davies_bouldin_score

from jaxfl.clustering import kmeans, scores
from jaxfl.clustering.cohesion import davies_bouldin
from jaxfl.clustering.spectral import cluster_qr, leading_coordinates, spectral_clustering, spectral_embedding
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=3)

POINTS = np.array([(2, 0.1, 0), (1.8, 0, 0.2), (-1, 0.3, 1), (-1.2, 0.1, 1.1)])  # a row for each client
KEY = jax.random.key(0)
AFFINITY = np.array([[1, 0.9, 0.2, 0.2], [0.9, 1, 0.2, 0.2], [0.2, 0.2, 1, 0.8], [0.2, 0.2, 0.8, 1]])


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
    found = spectral_clustering(jnp.asarray(affinity, jnp.float32), 2)
    theirs = SpectralClustering(2, affinity="precomputed", random_state=0).fit(affinity).labels_
    assert scores.adjusted_rand_index(truth, found) == scores.adjusted_rand_index(truth, theirs) == 1
    assert scores.adjusted_rand_index(truth, KMeans(2, n_init=5, random_state=0).fit(points).labels_) < 0.5


def test_absent_points_change_nothing_and_points_without_affinity_do_no_harm():
    points, truth = rings()
    points, there = np.concatenate([points, np.zeros((3, 2))]), np.arange(83) < 80  # in the middle of the inner ring
    affinity = affinities(points)
    affinity[~there] = affinity[:, ~there] = np.nan
    found = np.asarray(spectral_clustering(jnp.asarray(affinity, jnp.float32), 2, jnp.asarray(there)))
    assert (found[80:] == -1).all() and scores.adjusted_rand_index(truth, found[:80]) == 1
    alone = np.eye(5)
    alone[4, 4], alone[0, 1], alone[1, 0] = 0, 1, 1
    assert (np.asarray(spectral_clustering(jnp.asarray(alone, jnp.float32), 3)) >= 0).all()


def padded(affinity, places, count):
    """Returns the affinity among `count` points, of which the others are absent, and which are there."""
    rng = np.random.default_rng(1)
    full = rng.random((count, count)) * 5
    full = full + full.T
    full[np.ix_(places, places)] = affinity
    return jnp.asarray(full), jnp.asarray(np.isin(np.arange(count), places))


@pytest.mark.parametrize("count", [12, 15])
@pytest.mark.parametrize("clusters", [2, 3, 4])
def test_embeddings_and_their_clusters_are_those_of_scikit_learn(count, clusters):
    rng = np.random.default_rng(clusters)
    centres = np.repeat(np.arange(clusters) * 2.0, 12 // clusters)
    points = np.stack([centres + 0.3 * rng.normal(size=12), 0.3 * rng.normal(size=12)], 1)
    affinity = np.exp(-np.square(points[:, None] - points[None]).sum(-1))
    places = np.sort(rng.permutation(count)[:12])
    with jax.enable_x64(True):
        full, there = padded(affinity, places, count)
        vectors = np.asarray(spectral_embedding(full, clusters + 1, there))
        labels = np.asarray(spectral_clustering(full, clusters, there))
    theirs = SpectralClustering(clusters, affinity="precomputed", assign_labels="cluster_qr").fit_predict(affinity)
    assert scores.adjusted_rand_index(theirs, labels[places]) == 1 and len(set(labels[places].tolist())) == clusters
    wanted = SpectralEmbedding(clusters, affinity="precomputed").fit_transform(affinity)
    got = vectors[places][:, 1:]
    np.testing.assert_allclose(
        np.abs(got / np.linalg.norm(got, axis=0)), np.abs(wanted / np.linalg.norm(wanted, axis=0)), atol=1e-6
    )
    absent = np.setdiff1d(np.arange(count), places)
    assert not vectors[absent].any() and (labels[absent] == -1).all()


@pytest.mark.parametrize(
    ("clusters", "labels", "score"), [(2, [0, 0, 1, 1], 0.721110), (3, [0, 0, 1, 2], 0.561951)], ids=["two", "three"]
)
def test_the_worked_example_of_fedgwc(clusters, labels, score):
    with jax.enable_x64(True):
        vectors = spectral_embedding(jnp.asarray(AFFINITY), 4, jnp.ones(4, bool))
        found = cluster_qr(vectors[:, :clusters])
        assert scores.adjusted_rand_index(found, labels) == 1
        wide = vectors[:, 1 : clusters + 1]
        assert davies_bouldin_score(np.asarray(wide), labels) == pytest.approx(score, abs=1e-6)
        assert float(davies_bouldin(wide, found, clusters)) == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize(
    ("shape", "count", "words"), [((2, 3), 2, ("affinity", "[2, 3]")), ((3, 3), 4, ("num_clusters", 4, 3))]
)
def test_refusals(shape, count, words):
    with pytest.raises(ValueError, match=mentions(*words)):
        spectral_clustering(jnp.ones(shape), count)
