"""How many steps a client makes, and how far they go: what training itself does along a gradient of 1."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl.client.corrections import proximal_pull
from jaxfl.client.steps import displacement, step_count
from jaxfl.client.training import local_train
from jaxfl.data import conditions
from jaxfl.tasks import Averages, Task, masked_mean
from jaxfl.testing.small import linear_task
from tests import problems
from tests.messages import mentions
from tests.reference import close

DATA = problems.linear_federation()  # sizes 5, 0, 3, 8, 1, 6, 4
RATE, EPOCHS = 0.2, 3


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def init(key):
    return {"a": jnp.zeros(2), "b": jnp.zeros(1)}


def loss(model, batch, key=None):
    """Its gradient is 1 everywhere, whatever the rows."""
    return masked_mean(jnp.ones(batch.mask.shape), batch.mask) * (model["a"].sum() + model["b"].sum())


TASK = Task(init, loss, lambda model, batch: batch.x)
PLAIN, MOMENTUM = optax.sgd(RATE), optax.sgd(RATE, momentum=0.9)
NESTEROV = optax.sgd(optax.linear_schedule(RATE, 0.0, 20), momentum=0.5, nesterov=True)
CASES = [(PLAIN, 0.7, 3), (MOMENTUM, 0.0, 100), (NESTEROV, 0.3, None)]


@pytest.mark.parametrize(("optimizer", "pull", "batch_size"), CASES, ids=["sgd", "momentum", "nesterov"])
def test_training_goes_as_far(optimizer, pull, batch_size, key):
    """Of late clients too, and at the rate of the round."""
    data = replace(conditions.straggle(DATA, 0.5), rate=jnp.asarray(0.8)).on_device()
    local = optax.chain(proximal_pull(pull), optimizer)
    train = local_train(TASK, local, local_epochs=EPOCHS, batch_size=batch_size)
    far, start = displacement(TASK, optimizer, pull=pull), init(key)

    def on_client(client):
        own = jax.random.fold_in(key, client)
        steps = step_count(own, data, client, EPOCHS, batch_size)
        trained, _ = train(own, start, data, client, anchor=start)
        return steps, far(steps, data.rate), jax.tree.map(lambda leaf: -leaf[0], trained)

    steps, found, wanted = jax.jit(jax.vmap(on_client))(jnp.arange(DATA.num_clients, dtype=jnp.int32))
    close(found, wanted)
    steps, batches = np.asarray(steps), np.ceil(DATA.train.size / (batch_size or 100))
    assert (steps <= EPOCHS * batches).all() and (steps < EPOCHS * batches).any(), "somebody is late"
    assert steps[1] == 0 and (steps % np.maximum(batches, 1) == 0).all(), "whole epochs, and none without rows"


def test_it_is_the_formulas():
    steps, rho, mu = 4, 0.9, 0.5
    formulas = {
        "sgd": (displacement(TASK, PLAIN), RATE * steps),
        "momentum": (
            displacement(TASK, MOMENTUM),
            RATE * (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho),
        ),
        "pull": (displacement(TASK, PLAIN, pull=mu), (1 - (1 - RATE * mu) ** steps) / mu),
    }
    found = jax.jit(lambda: {name: far(jnp.int32(steps), None)["b"] for name, (far, _) in formulas.items()})()
    close(found, {name: value for name, (_, value) in formulas.items()})


def test_each_array_goes_its_own_way():
    """Weight decay is part of the gradient; a running average makes no step."""
    slow = optax.chain(optax.add_decayed_weights(0.5), optax.sgd(0.1))
    optimizer = optax.multi_transform({"fast": PLAIN, "slow": slow}, lambda model: {"a": "fast", "b": "slow"})
    close(displacement(TASK, optimizer)(jnp.int32(3), None), {"a": 3 * RATE, "b": 0.3})
    averaged = TASK._replace(averages=Averages(frozenset({"a"}), loss))
    close(displacement(averaged, MOMENTUM)(jnp.int32(1), None), {"a": 0.0, "b": RATE})


def test_kernels_and_biases_are_told_apart_by_their_axes():
    task = linear_task()
    by_axes = optax.multi_transform(
        {"kernel": optax.sgd(0.1), "bias": optax.sgd(0.01)},
        lambda model: jax.tree.map(lambda leaf: "kernel" if leaf.ndim > 1 else "bias", model),
    )
    close(displacement(task, by_axes)(jnp.int32(3), None), {"bias": 0.03, "kernel": 0.3})
    by_inputs = optax.stateless(lambda slopes, model: jax.tree.map(lambda leaf: leaf / leaf.shape[0] ** 0.5, slopes))
    with pytest.raises(ValueError, match=mentions("optimizer", "shapes")):
        displacement(task, optax.chain(by_inputs, optax.sgd(0.1)))


@pytest.mark.parametrize(
    "optimizer", [optax.adam(0.1), optax.chain(optax.clip_by_global_norm(10.0), PLAIN)], ids=["adam", "clipping"]
)
def test_what_does_more_than_add_and_scale_is_refused(optimizer):
    # Adam counts in int32 and multiplies by floats: not for the tests' promotion
    with (
        jax.numpy_dtype_promotion("standard"),
        pytest.raises(ValueError, match=mentions("optimizer", "Adam")),
    ):
        displacement(TASK, optimizer)
