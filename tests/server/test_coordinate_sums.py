"""Sums by factors are the sums of the kernels, and made where nothing else is made of these."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from jaxfl import classification, engine
from jaxfl.client.corrections import proximal_pull
from jaxfl.client.fast import coordinates
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort, Plan
from jaxfl.data import conditions, federate
from jaxfl.random import Stream, key_for
from jaxfl.server import aggregate, coordinate_sums

pytestmark = pytest.mark.rotating("function", weeks=4)

SIZES, CLASSES = (5, 4, 6, 0, 3, 6, 5, 6), 3
IDS = (6, 0, 2, 3, 5, 4)
PULLED = optax.chain(optax.add_decayed_weights(0.1), proximal_pull(0.5), optax.sgd(0.2, momentum=0.9))


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


class Net(nn.Module):
    """A hidden layer."""

    @nn.compact
    def __call__(self, x):
        hidden = jnp.tanh(nn.Dense(7, param_dtype=jnp.float64)(x))
        return nn.Dense(CLASSES, param_dtype=jnp.float64)(hidden)


def federation(**changes):
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(0.1, 0.4, (sum(SIZES), 60)), rng.integers(0, CLASSES, sum(SIZES))
    rows = np.split(np.arange(len(inputs)), np.cumsum(SIZES)[:-1])
    return jax.device_put(replace(federate(inputs, labels, rows, rows, num_classes=CLASSES), **changes))


def work(data, optimizer, key, *, clusters=1, own=False, look=False, batch_size=None, fast_forms=True):
    """What a client does, and what it is given: trains the model of all, or of its cluster, or one of its own."""
    task = classification(Net(), data, fast_forms=fast_forms)
    train = local_train(task, optimizer, local_epochs=4, batch_size=batch_size)
    init = jax.jit(lambda key, number: task.init(key_for(key, Stream.INIT, number)))
    model, anchor = (init(key, number) for number in (0, 1))

    def client(shared, client):
        key, model, anchor, data = shared
        start = jax.tree.map(lambda leaf: leaf + client.astype(leaf.dtype), model) if own else model
        trained, loss = train(key_for(key, Stream.BATCHES, 0, client), start, data, client, anchor=anchor)
        weight = aggregate.client_weight(data, client, "rows")
        kept = (loss, [trained[name]["kernel"].sum() for name in trained]) if look else loss
        return aggregate.contribute(trained, weight, client % clusters, clusters), kept

    return client, (key, model, anchor, data)


def summed(client, shared, chunk):
    mask = jnp.array([True] * (len(IDS) - 1) + [False])
    cohort = Cohort(jnp.array(IDS, jnp.int32), mask, Plan(chunk))
    return jax.jit(lambda shared: engine.over_clients(client, shared, cohort))(shared)


@pytest.mark.parametrize(
    ("optimizer", "options", "places"),
    [
        pytest.param(optax.sgd(0.2), {}, [(0, 1)], id="sgd"),  # after the bias
        pytest.param(PULLED, {}, [(0, 1)], id="pulled"),
        pytest.param(PULLED, {"batch_size": 2}, [(0, 1), (0, 3)], id="inner"),
    ],
)
def test_the_sums_are_those_of_the_kernels(optimizer, options, places, key, monkeypatch):
    if "batch_size" in options:  # as large kernels have it
        monkeypatch.setattr(coordinates, "_inner_pays", lambda *sizes, kernels: True)
    inputs = np.array(federation().inputs)
    inputs[sum(SIZES[:2])] = np.nan  # of client 2: diverges
    client, shared = work(federation(inputs=inputs), optimizer, key, **options)
    assert coordinate_sums.client_work(client, shared, jnp.int32(0)).places == places
    looking = work(federation(inputs=inputs), optimizer, key, look=True, **options)
    usual, (expected, _) = summed(*looking, 1)  # makes the kernels
    finite = np.array([i not in (2, 4) for i in IDS])  # client 4 is masked
    for chunk in (1, 2, None):
        fast, losses = summed(client, shared, chunk)
        assert int(fast.diverged) == int(usual.diverged) == 1
        for one, other in zip(
            jax.tree.leaves((fast, losses[finite])), jax.tree.leaves((usual, expected[finite])), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
        assert fast.weight.tolist() == [5 + 5 + 6]


@pytest.mark.parametrize("changes", [{"clusters": 2}, {"own": True}, {"look": True}], ids=str)
def test_where_more_is_made_of_a_kernel_it_is_there(changes, key):
    client, shared = work(federation(), optax.sgd(0.2), key, **changes)
    assert coordinate_sums.client_work(client, shared, jnp.int32(0)).places == []


def test_a_rate_that_is_an_argument_is_no_argument_of_the_client(key):
    def total(rate):
        client, shared = work(federation(), optax.sgd(rate), key)
        assert coordinate_sums.client_work(client, shared, jnp.int32(0)).places == [(0, 1)]
        return summed(client, shared, 1)[0]

    for one, other in zip(jax.tree.leaves(jax.jit(total)(0.2)), jax.tree.leaves(total(0.2)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_what_an_attacker_sends_is_no_sum_of_factors(key):
    client, shared = work(conditions.attack(federation(), "sign-flip", 0.4), optax.sgd(0.2), key)
    assert coordinate_sums.client_work(client, shared, jnp.int32(0)).places == []


@pytest.mark.parametrize("clients", [1, 7, 16, 34])
def test_any_number_of_clients_is_divided(clients, key):
    client, shared = work(federation(), optax.sgd(0.2), key)
    cohort = Cohort.of(np.arange(clients) % len(SIZES))
    sums, losses = jax.eval_shape(lambda shared: engine.over_clients(client, shared, cohort), shared)
    assert sums.values["Dense_0"]["kernel"].shape == (1, 60, 7) and losses.shape == (clients,)


@pytest.mark.parametrize(
    ("changes", "replayed"),
    [
        pytest.param({"fast_forms": False}, False, id="no fast forms"),
        pytest.param({"clusters": 2}, False, id="sums by cluster"),
        pytest.param({"own": True}, False, id="nothing found in the program"),
        pytest.param({}, True, id="in coordinates"),
    ],
)
def test_the_client_function_is_traced_once_and_changed_for_sums_in_coordinates_alone(changes, replayed, key):
    client, shared = work(federation(), optax.sgd(0.2), key, **changes)
    called = []

    def counted(shared, client_id):
        called.append(client_id)
        return client(shared, client_id)

    taken = coordinate_sums.client_work(counted, shared, jnp.int32(0))
    assert bool(taken.places) == replayed
    called.clear()
    summed(counted, shared, 1)
    assert len(called) == 1, "for the shapes and the loop over clients"


def test_the_norm_decides_who_has_diverged():
    rng = np.random.default_rng(0)
    rows, kernels, leaf = rng.normal(size=(4, 9)), list(rng.normal(size=(2, 9, 3))), rng.normal(size=(6, 3))
    squares = np.stack([np.stack([(one * other).sum(0) for other in kernels]) for one in kernels])
    gram, products = np.pad(rows @ rows.T, ((0, 0), (0, 2))), [rows @ one for one in kernels]
    norm = jax.jit(lambda gram, leaf, *more: coordinates.kernel_norm(gram @ leaf, leaf, *more))
    kernel = rows.T @ leaf[:4] + sum(leaf[4 + j][None] * one for j, one in enumerate(kernels))
    np.testing.assert_allclose(norm(gram, leaf, products, squares), np.linalg.norm(kernel), rtol=1e-12)
    for bad in (np.nan, np.inf):
        spoilt = leaf.copy()
        spoilt[0, 0] = bad
        assert not np.isfinite(norm(gram, spoilt, products, squares))
