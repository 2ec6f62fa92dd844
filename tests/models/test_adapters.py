"""Networks of other makes train as those of flax.linen do."""

import jax
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

import jaxfl
from jaxfl.data.clients import Batch
from jaxfl.methods.parts.vectors import last_layer
from jaxfl.testing.compare import assert_close


class Linen(nn.Module):
    rate: float = 0.0

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.relu(nn.Dense(8, name="stem")(x.reshape(x.shape[0], -1)))
        x = nn.Dropout(self.rate, deterministic=not train)(x)
        return nn.Dense(10, name="head")(x)


class NNX(nnx.Module):
    """The same; its layers are not made in the order of their names."""

    def __init__(self, *, rate=0.0, rngs):
        self.stem = nnx.Linear(64, 8, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.head = nnx.Linear(8, 10, rngs=rngs)

    def __call__(self, x):
        return self.head(self.dropout(nnx.relu(self.stem(x.reshape(x.shape[0], -1)))))


class Listed(nnx.Module):
    def __init__(self, rngs, outputs=10):
        self.layers = nnx.List([nnx.Linear(64, 8, rngs=rngs), nnx.Linear(8, outputs, rngs=rngs)])

    def __call__(self, x):
        x = x.reshape(x.shape[0], -1)
        for layer in self.layers:
            x = layer(nnx.relu(x))
        return x


class Normalised(nnx.Module):
    def __init__(self, rngs):
        self.norm, self.head = nnx.BatchNorm(64, rngs=rngs), nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        return self.head(self.norm(x.reshape(x.shape[0], -1)))


@pytest.fixture(scope="module")
def data():
    return jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)


@pytest.fixture
def batch(key):
    return Batch(jax.random.normal(key, (6, 8, 8)), np.arange(6, dtype=np.int32), np.ones(6, bool))


def test_nnx_is_linen(data, key, batch):
    """Loss, gradient and dense layers of the same parameters."""
    one, other = jaxfl.classification(Linen(), data), jaxfl.classification(NNX, data)
    model = jax.jit(one.init)(key)
    assert jax.tree.structure(jax.eval_shape(other.init, key)) == jax.tree.structure(model)
    assert other.dense[:2] == one.dense[:2]
    found, wanted = (jax.jit(jax.value_and_grad(task.loss))(model, batch, key) for task in (other, one))
    assert_close(found, wanted, "a module of flax.nnx")


def test_each_key_draws_another_model(data, key):
    task = jaxfl.classification(NNX, data)
    init = jax.jit(task.init)
    one, same, other = (init(k) for k in (key, key, jax.random.fold_in(key, 1)))
    assert np.array_equal(one["stem"]["kernel"], same["stem"]["kernel"])
    assert not np.array_equal(one["stem"]["kernel"], other["stem"]["kernel"])


def test_layers_are_in_the_order_in_which_they_were_made(data):
    """FeSEM's official rule asks for the last one: `head` is before `stem` in the alphabet."""
    last = last_layer(jaxfl.classification(NNX, data))
    assert last == {"stem": {"kernel": False, "bias": False}, "head": {"kernel": True, "bias": True}}
    last = last_layer(jaxfl.classification(Listed, data))
    assert last["layers"]["1"]["kernel"] and not last["layers"]["0"]["kernel"]


def test_dropout_is_on_while_clients_train(data, key, batch):
    task = jaxfl.classification(lambda rngs: NNX(rate=0.5, rngs=rngs), data)
    model, loss = jax.jit(task.init)(key), jax.jit(task.loss)
    losses = [float(loss(model, batch, k)) for k in (key, key, jax.random.fold_in(key, 1), None, None)]
    assert losses[0] == losses[1] != losses[2]
    assert losses[3] == losses[4] not in losses[:3]


def test_a_run_learns(data):
    task = jaxfl.classification(Listed, data)
    method = jaxfl.methods.ifca(task, optax.sgd(0.1), num_clusters=2)
    history = jaxfl.run(method, data, rounds=6, eval_every=3).history
    assert history[-1]["loss"] < history[0]["loss"] < 2.3


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: NNX(rngs=nnx.Rngs(0)), "Give the class, NNX, or a function: lambda rngs: NNX"),
        (lambda: Normalised, r"parameters only, got the variables \['BatchStat'\]"),
        (lambda: 3, "a module of flax.linen, the class of one of flax.nnx"),
        (lambda: lambda rngs: Listed(rngs, 3), "one logit for each of the 10 classes"),
    ],
)
def test_other_networks_are_refused(data, make, said):
    with pytest.raises(ValueError, match=said):
        jaxfl.classification(make(), data)
