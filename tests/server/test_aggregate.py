"""Sums and means by cluster against NumPy, empty clusters, and clients that have diverged."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import jaxfl
from jaxfl.data.synthetic import clustered_linear
from jaxfl.server import aggregate
from tests.messages import mentions

CLUSTERS = 4


def stacked(rng, count):
    """Contributions of `count` clients, some weightless, some out of range, some padding."""
    many = aggregate.Contribution(
        {
            "w": jnp.asarray(rng.normal(size=(count, 2, 3)), jnp.float32),
            "b": jnp.asarray(rng.normal(size=count), jnp.float32),
        },
        jnp.asarray(rng.integers(0, 5, count), jnp.float32),
        jnp.asarray(rng.integers(-1, CLUSTERS + 1, count), jnp.int32),
        CLUSTERS,
    )
    return many, jnp.asarray(rng.random(count) < 0.8)


def one_by_one(total, many, mask):
    def step(total, part):
        one, real = part
        return aggregate.add_one(total, one, real), None

    return jax.lax.scan(step, total, (many, mask))[0]


def nothing(many):
    return aggregate.empty_total(jax.tree.map(lambda leaf: leaf[0], many))


one_by_one, add_many = jax.jit(one_by_one), jax.jit(aggregate.add_many)


@given(seed=st.integers(0, 10**6), poisoned=st.sampled_from([None, np.nan, np.inf, -np.inf, 1e30]))
@example(seed=1, poisoned=1e30)
def test_both_ways_of_adding_are_numpy(seed, poisoned):
    rng = np.random.default_rng(seed)
    many, mask = stacked(rng, 7)
    if poisoned is not None:
        many.values["w"] = many.values["w"].at[2, 1, 1].set(poisoned)
    wanted = {"w": np.zeros((CLUSTERS, 2, 3)), "b": np.zeros(CLUSTERS)}
    weight, diverged = np.zeros(CLUSTERS), 0
    for i in range(7):
        k, w = int(many.cluster[i]), float(many.weight[i])
        if not (bool(mask[i]) and w > 0 and 0 <= k < CLUSTERS):
            continue  # a client that does not count cannot diverge either
        if poisoned is not None and i == 2:
            diverged += 1
            continue
        weight[k] += w
        for name, leaf in wanted.items():
            leaf[k] += w * np.asarray(many.values[name][i], np.float64)
    for add in (one_by_one, add_many):
        total = add(nothing(many), many, mask)
        np.testing.assert_array_equal(total.weight, weight)
        assert int(total.diverged) == diverged
        for name, leaf in wanted.items():
            # float32 sums of seven numbers of about 5: an absolute error of some 1e-6
            np.testing.assert_allclose(total.values[name], leaf, rtol=1e-5, atol=1e-5)


def test_a_client_may_weigh_in_every_sum():
    """Both ways of adding are NumPy's product; one client is not finite, one is padding, one has no weight."""
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=(6, 2, 3)), rng.random((6, CLUSTERS)) * (rng.random((6, CLUSTERS)) < 0.7)
    weights[1], values[2, 0, 0] = 0, np.nan
    mask = np.arange(6) != 4
    sent = jax.vmap(aggregate.contribute_to_all)({"w": jnp.asarray(values)}, jnp.asarray(weights))
    counted = np.isin(np.arange(6), (0, 3, 5))
    wanted = np.tensordot(weights[counted].T, values[counted], 1)
    for add in (one_by_one, add_many):
        total = add(nothing(sent), sent, jnp.asarray(mask))
        np.testing.assert_allclose(total.values["w"], wanted, rtol=1e-5)
        np.testing.assert_allclose(total.weight, weights[counted].sum(0), rtol=1e-6)
        assert int(total.diverged) == 1
    alone = aggregate.contribute_to_all({"w": jnp.ones(2)}, jnp.array([3.0]))
    assert alone.num_clusters == 1 and alone.weight.shape == (), "one sum is a contribution as any other"


def test_mean_divides_by_the_clusters_weight_and_keeps_empty_clusters():
    total = aggregate.Total({"w": jnp.array([[6.0, 3.0], [0.0, 0.0]])}, jnp.array([3.0, 0.0]), jnp.int32(0))
    kept = {"w": jnp.array([[9.0, 9.0], [7.0, jnp.nan]])}
    mean = aggregate.mean(total, kept)["w"]
    assert mean[0].tolist() == [2.0, 1.0]
    np.testing.assert_array_equal(mean[1], kept["w"][1])


def test_cohort_mean_divides_by_everybodys_weight():
    total = aggregate.Total({"w": jnp.array([[6.0], [2.0]])}, jnp.array([3.0, 1.0]), jnp.int32(0))
    assert aggregate.cohort_mean(total)["w"].ravel().tolist() == [1.5, 0.5]
    none = aggregate.Total({"w": jnp.zeros((2, 1))}, jnp.zeros(2), jnp.int32(0))
    assert aggregate.cohort_mean(none)["w"].ravel().tolist() == [0, 0]


def test_gradient_through_nothing_is_no_nan():
    """Division is guarded on both sides of its `where`."""
    total = aggregate.Total({"w": jnp.zeros((1, 1))}, jnp.zeros(1), jnp.int32(0))

    def loss(values):
        return aggregate.mean(total.replace(values=values), {"w": jnp.ones((1, 1))})["w"].sum()

    assert jax.grad(loss)(total.values)["w"].item() == 0


def test_weights():
    data = clustered_linear(6, rows=9, ragged=True)
    rows, uniform = ([float(aggregate.client_weight(data, i, by)) for i in range(6)] for by in ("rows", "uniform"))
    assert rows == data.train.size.tolist() and rows[1] == 0
    assert uniform == [float(size > 0) for size in data.train.size]


def test_given_weights_take_the_place_of_rows():
    """FedAvg's model is the mean of its clients' models by these weights; only their ratios count."""
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(30, 3)).astype(np.float32), np.arange(30) % 2
    rows = [np.arange(0, 12), np.arange(12, 20), np.arange(20, 30), np.arange(0)]
    weights = np.array([0.001, 0.003, 0.0, 5.0])

    def model(given):
        data = jaxfl.data.federate(inputs, labels, rows, rows, num_classes=2, client_weights=given)
        task = jaxfl.classification(jaxfl.models.Logistic(num_classes=2), data)
        method = jaxfl.methods.fedavg(task, optax.sgd(0.5), local_epochs=2)
        return jax.tree.leaves(jaxfl.run(method, data, rounds=1, seed=3).state.model)

    alone = [model(np.eye(4)[client]) for client in range(2)]
    for found, first, second in zip(model(weights), *alone, strict=True):
        np.testing.assert_allclose(found, 0.25 * first + 0.75 * second, rtol=1e-5, atol=1e-7)
    for found, first in zip(model(None), model(np.array([12, 8, 10, 7])), strict=True):
        np.testing.assert_array_equal(found, first)
    data = jaxfl.data.federate(inputs, labels, rows, rows, num_classes=2, client_weights=weights)
    assert [float(aggregate.client_weight(data, i, "uniform")) for i in range(4)] == [1, 1, 1, 0]


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1.0, -1.0], ("client_weights", -1.0, "client 1")),
        ([np.nan, 1.0], ("client_weights", "nan", "client 0")),
        ([0.0, 0.0], ("client_weights", "only 0")),
        ([1e38, 3e38], ("client_weights", "1e+38", "client 0", "1e+12")),  # their sum is infinite
        ([1.0, 1e-40], ("client_weights", "1e-40", "client 1", "1e-12")),  # a product with it is 0
        ([1.0], ("client_weights", 2, 1)),
        (["a", "b"], ("client_weights", "numbers")),
    ],
)
def test_weights_that_weigh_nothing_are_refused(weights, words):
    rows = [np.arange(2), np.arange(2, 4)]
    with pytest.raises(ValueError, match=mentions(*words)):
        jaxfl.data.federate(
            np.eye(4, dtype=np.float32), np.arange(4) % 2, rows, rows, num_classes=2, client_weights=np.array(weights)
        )


def test_unknown_weighting_names_the_remedy():
    with pytest.raises(ValueError, match=mentions("weighting", "mean")):
        aggregate.client_weight(clustered_linear(6), 0, "mean")
