"""A sweep of thresholds is StoCFL's first round at each of them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxfl
from jaxfl import methods
from jaxfl.analysis import thresholds
from jaxfl.clustering import components, distances, scores
from jaxfl.methods.stocfl import merging, representation
from tests.messages import mentions


def vectors(count, features=3, seed=0, groups=3):
    random = np.random.default_rng(seed)
    centres = random.normal(size=(groups, features))
    points = centres[np.arange(count) % groups] + 0.4 * random.normal(size=(count, features))
    return points.astype(np.float32)


def partition(labels):
    """Returns labels named in the order of their first clients."""
    first = {}
    return [first.setdefault(int(label), len(first)) for label in labels]


def connected(points, threshold):
    return components.threshold_components(distances.cosine(jnp.asarray(points)), threshold)


@settings(max_examples=12)
@given(seed=st.integers(0, 10**6), shape=st.sampled_from([(2, 3), (5, 1), (9, 3)]))
def test_every_entry_of_the_matrix_as_threshold_is_cut_as_the_rule_says(seed, shape):
    count, features = shape
    points = vectors(count, features, seed)
    points[seed % count] *= seed % 3  # sometimes zero, sometimes a longer one
    cosine = np.asarray(distances.cosine(jnp.asarray(points)))
    entries = np.unique(cosine)
    taus = [*entries, *np.nextafter(entries, np.float32(2)), *np.nextafter(entries, np.float32(-2)), 0.1, -3.0, 1.5]
    group = np.arange(count) % 2
    for tau, row in zip(taus, thresholds.threshold_sweep(points, taus, group=group), strict=True):
        labels = connected(points, float(tau))
        sizes = np.bincount(partition(labels))
        assert (row["threshold"], row["clusters"], row["largest"]) == (tau, len(sizes), sizes.max())
        assert row["ari"] == scores.adjusted_rand_index(group, labels)
        assert row["nmi"] == pytest.approx(scores.normalized_mutual_information(group, labels))
        assert thresholds.clusters_at(points, float(tau)).tolist() == labels.tolist()


def test_the_objective_is_that_of_the_means():
    points = vectors(30, 5, groups=6)
    points[4] = 0
    rows = thresholds.threshold_sweep(points, np.linspace(1.0, -1.0, 21))
    assert len({row["clusters"] for row in rows}) > 5
    objective = jax.jit(merging.objective)
    for row in rows:
        labels = np.array(partition(thresholds.clusters_at(points, row["threshold"])))
        sums = jnp.asarray(np.stack([points[labels == one].sum(0) for one in range(30)]))
        wanted = objective(sums, jnp.asarray(np.bincount(labels, minlength=30), jnp.int32))
        assert row["objective"] == pytest.approx(float(wanted), abs=2e-4)


def test_what_cancels_out_is_similar_to_nobody():
    points = np.array([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    apart, together = thresholds.threshold_sweep(points, [1.0, -1.0])
    assert (apart["clusters"], apart["objective"]) == (2, -1.0)
    assert (together["clusters"], together["objective"]) == (1, 0.0)


def test_an_even_grid_spans_all_cosines():
    points = vectors(12)
    rows = thresholds.threshold_sweep(jnp.asarray(points))
    cosine = np.asarray(distances.cosine(jnp.asarray(points)))[~np.eye(12, dtype=bool)]
    taus = np.array([row["threshold"] for row in rows])
    assert len(rows) == 101 and (taus[0], taus[-1]) == (cosine.min(), cosine.max())
    np.testing.assert_allclose(np.diff(taus), np.ptp(cosine) / 100, rtol=1e-5)
    numbers = [row["clusters"] for row in rows]
    assert numbers[0] == 1 and numbers == sorted(numbers) and numbers[-1] < 12
    assert set(rows[0]) == {"threshold", "clusters", "largest", "objective"}


@pytest.mark.slow
def test_sweep_is_the_first_round_with_everybody():
    data = jaxfl.data.load("rotated-digits", num_clients=12, rows_per_client=40)
    task = jaxfl.classification(jaxfl.models.MLP(num_classes=10, hidden=(16,)), data)
    key = jax.random.key(3)
    anchor = jax.jit(task.init)(jaxfl.random.key_for(key, jaxfl.random.Stream.INIT))
    points = representation.represent_clients(representation.represent(task, optax.sgd(0.1)), key, anchor, data)
    taus = [0.35, 0.6]
    rows = thresholds.threshold_sweep(points, taus, group=data.group)
    assert len({row["clusters"] for row in rows}) == 2
    for tau, row in list(zip(taus, rows, strict=True))[1:]:
        method = methods.stocfl(task, optax.sgd(0.1), threshold=tau, local_epochs=1, slots=12)
        result = jaxfl.run(method, data, rounds=1, seed=3)
        assert partition(result.state.cluster) == partition(thresholds.clusters_at(points, tau))
        assert row["clusters"] == result.summary["num_clusters"]
        assert row["ari"] == pytest.approx(result.summary["ari"])
        assert row["objective"] == pytest.approx(result.history[-1]["objective"], abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"points": np.ones(3)}, ("points", "(3,)", "[N, d]")),
        ({"points": np.ones((1, 3))}, ("points", "(1, 3)")),
        ({"points": np.array([[1.0], [np.nan]])}, ("points", "finite", "1 clients")),
        ({"thresholds": []}, ("thresholds", "[]")),
        ({"thresholds": [0.5, np.inf]}, ("thresholds", "[0.5, inf]")),
        ({"group": [0, 1, 2]}, ("group", "(3,)")),
    ],
)
def test_sweep_refuses(arguments, words):
    with pytest.raises(ValueError, match=mentions(*words)):
        thresholds.threshold_sweep(**{"points": np.eye(2)} | arguments)
