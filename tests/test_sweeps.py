"""A sweep of thresholds is StoCFL's first round at each of them; a mapped run is the runs one after the other."""

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxfl
from jaxfl import methods, program, sampling, sweeps
from jaxfl.clustering import components, distances, scores
from jaxfl.data import synthetic
from jaxfl.data.clients import Plan
from jaxfl.methods import representation, stocfl_clusters
from jaxfl.testing.small import linear_task

WEIGHTS = (0.05, 1.5)


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
@given(seed=st.integers(0, 10**6), count=st.sampled_from([2, 5, 9]), features=st.sampled_from([1, 3]))
def test_every_entry_of_the_matrix_as_threshold_is_cut_as_the_rule_says(seed, count, features):
    points = vectors(count, features, seed)
    points[seed % count] *= seed % 3  # sometimes zero, sometimes a longer one
    cosine = np.asarray(distances.cosine(jnp.asarray(points)))
    entries = np.unique(cosine)
    taus = [*entries, *np.nextafter(entries, np.float32(2)), *np.nextafter(entries, np.float32(-2)), 0.1, -3.0, 1.5]
    group = np.arange(count) % 2
    for tau, row in zip(taus, sweeps.threshold_sweep(points, taus, group=group), strict=True):
        labels = connected(points, float(tau))
        sizes = np.bincount(partition(labels))
        assert (row["threshold"], row["clusters"], row["largest"]) == (tau, len(sizes), sizes.max())
        assert row["ari"] == scores.adjusted_rand_index(group, labels)
        assert row["nmi"] == pytest.approx(scores.normalized_mutual_information(group, labels))
        assert sweeps.clusters_at(points, float(tau)).tolist() == labels.tolist()


def test_the_objective_is_that_of_the_means():
    points = vectors(30, 5, groups=6)
    points[4] = 0
    rows = sweeps.threshold_sweep(points, np.linspace(1.0, -1.0, 21))
    assert len({row["clusters"] for row in rows}) > 5
    objective = jax.jit(stocfl_clusters.objective)
    for row in rows:
        labels = np.array(partition(sweeps.clusters_at(points, row["threshold"])))
        sums = jnp.asarray(np.stack([points[labels == one].sum(0) for one in range(30)]))
        wanted = objective(sums, jnp.asarray(np.bincount(labels, minlength=30), jnp.int32))
        assert row["objective"] == pytest.approx(float(wanted), abs=2e-4)


def test_what_cancels_out_is_similar_to_nobody():
    points = np.array([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    apart, together = sweeps.threshold_sweep(points, [1.0, -1.0])
    assert (apart["clusters"], apart["objective"]) == (2, -1.0)
    assert (together["clusters"], together["objective"]) == (1, 0.0)


def test_an_even_grid_spans_all_cosines():
    points = vectors(12)
    rows = sweeps.threshold_sweep(jnp.asarray(points))
    cosine = np.asarray(distances.cosine(jnp.asarray(points)))[~np.eye(12, dtype=bool)]
    taus = np.array([row["threshold"] for row in rows])
    assert len(rows) == 101 and (taus[0], taus[-1]) == (cosine.min(), cosine.max())
    np.testing.assert_allclose(np.diff(taus), np.ptp(cosine) / 100, rtol=1e-5)
    numbers = [row["clusters"] for row in rows]
    assert numbers[0] == 1 and numbers == sorted(numbers) and numbers[-1] < 12
    assert set(rows[0]) == {"threshold", "clusters", "largest", "objective"}


def federation():
    return jaxfl.data.load("rotated-digits", num_clients=12, rows_per_client=40)


def learner(data):
    return jaxfl.classification(jaxfl.models.MLP(num_classes=10, hidden=(16,)), data)


def test_sweep_is_the_first_round_with_everybody():
    data = federation()
    task, key = learner(data), jax.random.key(3)
    anchor = task.init(jaxfl.random.key_for(key, jaxfl.random.Stream.INIT))
    points = representation.of_clients(representation.represent(task, optax.sgd(0.1)), key, anchor, data)
    taus = [0.35, 0.6]
    rows = sweeps.threshold_sweep(points, taus, group=data.group)
    assert len({row["clusters"] for row in rows}) == 2
    for tau, row in zip(taus, rows, strict=True):
        method = methods.stocfl(task, optax.sgd(0.1), threshold=tau, local_epochs=1, slots=12)
        result = jaxfl.run(method, data, rounds=1, seed=3)
        assert partition(result.state.cluster) == partition(sweeps.clusters_at(points, tau))
        assert row["clusters"] == result.summary["num_clusters"]
        assert row["ari"] == pytest.approx(result.summary["ari"])
        assert row["objective"] == pytest.approx(result.history[-1]["objective"], abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"points": np.ones(3)}, r"points must be vectors \[N, d\] of at least 2 clients, got shape \(3,\)"),
        ({"points": np.ones((1, 3))}, r"got shape \(1, 3\)"),
        ({"points": np.array([[1.0], [np.nan]])}, "points must be finite, got 1 clients"),
        ({"thresholds": []}, "thresholds must be one or more finite numbers"),
        ({"thresholds": [0.5, np.inf]}, "thresholds must be one or more finite numbers"),
        ({"group": [0, 1, 2]}, r"group must have one entry for each of the 2 rows of points, got shape \(3,\)"),
    ],
)
def test_sweep_refuses(arguments, words):
    with pytest.raises(ValueError, match=words):
        sweeps.threshold_sweep(**{"points": np.eye(2)} | arguments)


DATA = synthetic.clustered_linear(8, rows=12, features=4)


def made(name, **options):
    optimizer = optax.sgd(0.3)
    options = {"local_epochs": 2, "batch_size": 4} | options
    task = linear_task()
    return lambda weight: getattr(methods, name)(task, optimizer, proximal_weight=weight, **options)


def assert_same_runs(make, data, *, compared=WEIGHTS, **options):
    """Asserts that a mapped run is the runs at its values, those compared; returns it."""
    mapped = jaxfl.run_mapped(make, WEIGHTS, data, **options)
    assert tuple(one.value for one in mapped) == WEIGHTS
    for one in (one for one in mapped if one.value in compared):
        alone = jaxfl.run(make(one.value), data, **options)
        assert jax.tree.structure(one.state) == jax.tree.structure(alone.state)
        for leaf, wanted in zip(jax.tree.leaves(one.state), jax.tree.leaves(alone.state), strict=True):
            np.testing.assert_allclose(leaf, wanted, rtol=2e-4, atol=2e-5)
        np.testing.assert_array_equal(one.evaluation.cluster, alone.evaluation.cluster)
        np.testing.assert_allclose(one.evaluation.loss, alone.evaluation.loss, rtol=1e-3, atol=1e-5)
        assert one.evaluation.metrics["loss"] == pytest.approx(alone.summary["loss"], rel=1e-4)
    return mapped


@pytest.mark.parametrize("name", ["stocfl", "fedprox"])
def test_mapped_digits_are_the_runs_one_after_the_other(name):
    data = federation()
    task = learner(data)
    options = {"threshold": 0.3} if name == "stocfl" else {}

    def make(weight):
        return getattr(methods, name)(task, optax.sgd(0.1), proximal_weight=weight, local_epochs=2, **options)

    one, other = assert_same_runs(make, data, rounds=3, cohort=0.5, seed=4)
    assert abs(one.evaluation.loss - other.evaluation.loss).max() > 1e-3, "the weight is nothing"


@pytest.mark.parametrize(
    ("name", "options", "plan"),
    [
        ("ditto", {}, "auto"),
        ("stocfl", {"threshold": 0.9, "preset": "official"}, Plan(chunk=3)),
    ],
)
def test_mapped_with_other_methods_plans_and_samplers(name, options, plan):
    assert_same_runs(made(name, **options), DATA, rounds=3, cohort=5, seed=1, plan=plan, sampler=sampling.dropouts(0.3))


def carries(jaxpr):
    """Yields the shapes of the carries of all scans, the outermost first."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            first, number = equation.params["num_consts"], equation.params["num_carry"]
            yield [variable.aval.shape for variable in equation.invars[first : first + number]]
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from carries(inner)


def test_only_what_the_value_reaches_is_mapped():
    make, values = made("stocfl", slots=7), 31
    key, traced = jax.random.key(0), jnp.linspace(0.0, 1.0, values)
    state = jax.eval_shape(make(0.0).init, key, DATA)
    rounds = sweeps.mapped_rounds(make, 8, 2, sampling.uniform, Plan(chunk=1))
    outer, *inner = carries(jax.make_jaxpr(rounds)(traced, key, DATA).jaxpr)
    mapped = [shape for shape in outer if shape[:1] == (values,)]
    assert mapped == [(values, *leaf.shape) for leaf in jax.tree.leaves(state.models)]
    omega = [leaf.shape for leaf in jax.tree.leaves(state.initial)]
    assert all(shape in outer for shape in [*omega, state.representation.shape, state.cluster.shape])
    theta = [(values, *shape) for shape in omega]
    for models, others in ((omega, theta), (theta, omega)):  # each has its own loops over clients and steps
        assert any(set(models) <= set(shapes) and not set(others) & set(shapes) for shapes in inner)


def test_too_few_slots_are_refused():
    with pytest.raises(RuntimeError, match=r"round 1 at value 0.5 needs more clusters .*slots=64"):
        jaxfl.run_mapped(made("stocfl", threshold=1.1, slots=3), [0.5, 1.0], DATA, rounds=2)


def test_values_that_do_not_fit_are_refused(monkeypatch):
    state = jax.eval_shape(made("ditto")(0.0).init, jax.random.key(0), DATA)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    monkeypatch.setattr(program, "available_bytes", lambda: 20 * size)
    with pytest.raises(MemoryError, match=r"values must be at most (\d|1\d) to fit, got 40"):
        jaxfl.run_mapped(made("ditto"), [0.1] * 40, DATA, rounds=1)


def never(*args):
    raise AssertionError("compiled")


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        (made("stocfl"), {"values": [0.1, -0.5]}, "proximal_weight must be at least 0, got -0.5"),
        (made("stocfl"), {"values": []}, "values must be one or more finite numbers"),
        (made("stocfl"), {"values": [np.nan]}, "values must be one or more finite numbers"),
        (made("stocfl"), {"rounds": 0}, "rounds must be at least 1, got 0"),
        (made("stocfl"), {"cohort": 9}, "cohort must be from 1"),
        (lambda weight: weight, {}, "make must return a method"),
    ],
)
def test_mapped_refuses_before_it_compiles(make, arguments, words, monkeypatch):
    monkeypatch.setattr(sweeps, "mapped_rounds", never)
    with pytest.raises(ValueError, match=words):
        jaxfl.run_mapped(make, **{"values": [0.1], "data": DATA, "rounds": 1} | arguments)


@pytest.mark.parametrize(
    "make",
    [
        made("fesem", num_clusters=2),  # asks whether the weight is 0
        lambda epochs: methods.fedavg(linear_task(), optax.sgd(0.1), local_epochs=int(epochs)),
    ],
)
def test_a_method_that_must_know_the_value_says_so(make):
    with pytest.raises(ValueError, match="make must return a method that can be traced: .*one after the other"):
        jaxfl.run_mapped(make, [1, 2], DATA, rounds=1)
