"""What a flax module is told, and what of it would be lost without a word."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import jaxfl
from jaxfl.data import federate
from jaxfl.data.clients import Batch

PARTS = [np.arange(0, 6), np.arange(6, 12)]
LABELS = np.arange(12) % 3
INPUTS = np.ones((12, 8), np.float32)
FLOATS = federate(INPUTS, LABELS, PARTS, PARTS, num_classes=3)
BATCH = Batch(jnp.asarray(INPUTS), jnp.asarray(LABELS, jnp.int32), jnp.ones(12, bool))


SEEN = []


class Told(nn.Module):
    """Says what it is told."""

    @nn.compact
    def __call__(self, x, train, training, is_training, deterministic, use_running_average, mask):
        SEEN[:] = [train, training, is_training, deterministic, use_running_average, mask.shape]
        return nn.Dense(3)(x)


class Dropping(nn.Module):
    """Drops half, by what its call or its attribute says."""

    fixed: bool | None = None
    attends: bool = False

    @nn.compact
    def __call__(self, x):
        return self.drop(x, self.fixed)

    def drop(self, x, off):
        if self.attends:
            x = nn.MultiHeadDotProductAttention(2, dropout_rate=0.5)(x[:, None], deterministic=off)[:, 0]
        else:
            x = nn.Dropout(0.5)(x, deterministic=off)
        return nn.Dense(3)(x)


class Deterministic(Dropping):
    @nn.compact
    def __call__(self, x, deterministic=True):
        return self.drop(x, deterministic)


def test_a_module_is_told_whether_it_trains_whatever_it_calls_it():
    task = jaxfl.classification(Told(), FLOATS)
    model = task.init(jax.random.key(0))
    task.loss(model, BATCH, jax.random.key(1))
    assert SEEN == [True, True, True, False, False, (12,)]
    task.outputs(model, BATCH)
    assert SEEN == [False, False, False, True, True, (12,)]


@pytest.mark.parametrize("attends", [False, True])
def test_dropout_under_deterministic_is_on_in_training_alone(attends):
    task = jaxfl.classification(Deterministic(attends=attends), FLOATS)
    model = task.init(jax.random.key(0))
    losses = [float(task.loss(model, BATCH, key)) for key in (None, None, jax.random.key(1), jax.random.key(2))]
    assert losses[0] == losses[1] and len({*losses}) == 3


@pytest.mark.parametrize("attends", [False, True])
@pytest.mark.parametrize(("fixed", "words"), [(True, "off in training"), (False, "on in a test")])
def test_dropout_that_nobody_can_switch_is_refused(fixed, words, attends):
    with pytest.raises(ValueError, match=f"module must have its dropout on .*{words}; give __call__ .*train: bool"):
        jaxfl.classification(Dropping(fixed, attends), FLOATS)


@pytest.mark.parametrize("dtype", [np.int64, np.int16, np.uint32])
def test_tokens_reach_the_model_as_they_are(dtype):
    class Bag(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            return nn.Embed(1000, 3, embedding_init=nn.initializers.normal())(tokens).sum(1)

    tokens = np.arange(36).reshape(12, 3).astype(dtype) * 7
    data = federate(tokens, LABELS, PARTS, PARTS, num_classes=3)
    assert data.inputs.dtype == np.int32
    batch = jax.device_put(data).batch(data.train, jnp.int32(1), jnp.arange(6))
    np.testing.assert_array_equal(batch.x, tokens[6:])
    task = jaxfl.classification(Bag(), data)
    table = task.init(jax.random.key(0))
    np.testing.assert_allclose(task.outputs(table, batch), table["Embed_0"]["embedding"][tokens[6:]].sum(1), rtol=1e-6)


def test_integers_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="inputs must be integers of 32 bits, got 0 to 4294967296; renumber"):
        federate(np.array([[0], [2**32]]), np.array([0, 1]), [np.arange(2)], [np.arange(2)], num_classes=2)
