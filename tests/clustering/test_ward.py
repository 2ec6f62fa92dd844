"""Ward's clusters by their silhouette, against SciPy's tree and scikit-learn's score."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.cluster import hierarchy
from sklearn.metrics import adjusted_rand_score, silhouette_score

from jaxfl.clustering.cohesion import silhouette
from jaxfl.clustering.ward import ward_by_silhouette

pytestmark = pytest.mark.rotating("function", weeks=3)

LOSSES = np.array([(0.9, 1.4), (1.0, 1.5), (0.7, 0.8), (0.8, 0.9)])


def chosen(points, most, gain=1.1):
    """Returns the labels of the rule, with SciPy and scikit-learn."""
    tree, best, labels = hierarchy.linkage(points, "ward"), None, None
    for k in range(2, min(most, len(points) - 1) + 1):
        found = hierarchy.cut_tree(tree, k)[:, 0]
        score = silhouette_score(points, found)
        if best is None or score > gain * best:
            best, labels = score, found
    return labels


@pytest.mark.parametrize("groups", [2, 3, 5, 8])
def test_it_is_the_rule_of_scipy_and_scikit_learn(groups):
    """Of some points that are there, whatever the absent ones are; up to 6 clusters."""
    rng = np.random.default_rng(groups)
    group = rng.permutation(np.arange(24) % groups)
    points = 4 * rng.normal(size=(groups, 5))[group] + rng.normal(size=(24, 5))
    mask = np.arange(24) % 4 != 1
    absent = np.where(mask[:, None], points, np.nan)
    found = np.asarray(ward_by_silhouette(jnp.asarray(absent, jnp.float32), 6, mask=jnp.asarray(mask)))
    wanted = chosen(points[mask], 6)
    assert adjusted_rand_score(wanted, found[mask]) == 1
    assert (found[~mask] == -1).all() and {*found[mask]} == {*range(len({*wanted}))}


def test_the_worked_example_and_what_repeated_rows_do_to_it():
    """Two clusters; with each row five times as many clusters as rows, which is what the official code answers."""
    scores = [float(silhouette(jnp.asarray(LOSSES), jnp.array(labels), 3)) for labels in ([0, 0, 1, 1], [0, 2, 1, 1])]
    np.testing.assert_allclose(scores[0], 0.774755, atol=1e-6)
    np.testing.assert_allclose(scores[1], 0.374761, atol=1e-6)
    assert ward_by_silhouette(jnp.asarray(LOSSES), 15).tolist() == [0, 0, 1, 1]
    repeated = ward_by_silhouette(jnp.asarray(np.repeat(LOSSES, 5, axis=0)), 15)
    assert repeated.tolist() == np.repeat(np.arange(4), 5).tolist()


def test_two_points_are_one_cluster():
    mask = jnp.array([True, False, True, False])
    assert ward_by_silhouette(jnp.asarray(LOSSES), 3, mask=mask).tolist() == [0, -1, 0, -1]
