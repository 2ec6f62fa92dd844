import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import strategies as st

from jaxfl.models import layers
from tests.messages import mentions

PADDINGS = st.sampled_from(["SAME", "VALID"])


def images(number, *shape):
    return np.random.default_rng(number).normal(size=shape).astype(np.float32)


def test_conv_has_the_parameters_of_flax():
    shapes = [
        jax.tree.map(jnp.shape, jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, 8, 8, 3))))
        for module in (layers.Conv(4, (5, 3)), nn.Conv(4, (5, 3)))
    ]
    assert shapes[0] == shapes[1] == {"params": {"kernel": (5, 3, 3, 4), "bias": (4,)}}


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_conv_equals_flax(padding, key):
    inputs = images(0, 2, 7, 6, 2)
    ours, flaxs = layers.Conv(5, (3, 2), padding), nn.Conv(5, (3, 2), padding=padding)
    params = jax.jit(ours.init)(key, inputs)
    found, wanted = (jax.jit(layer.apply)(params, inputs) for layer in (ours, flaxs))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("window", "padding"), [(2, "SAME"), (3, "VALID")])
def test_max_pool_equals_flax(window, padding, key):
    inputs = images(0, 2, 7, 5, 3) - 5.0  # negative: a padding with zeros would show
    wanted = jax.jit(lambda x: nn.max_pool(x, (window, window), (window, window), padding))(inputs)
    np.testing.assert_array_equal(jax.jit(lambda x: layers.max_pool(x, window, padding))(inputs), wanted)


def test_relu_after_pooling_is_relu_before_pooling(key):
    inputs = images(0, 2, 6, 6, 3)
    weights = images(1, 2, 3, 3, 3)
    before = jax.jit(jax.value_and_grad(lambda x: (layers.max_pool(nn.relu(x)) * weights).sum()))(inputs)
    after = jax.jit(jax.value_and_grad(lambda x: (nn.relu(layers.max_pool(x)) * weights).sum()))(inputs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), before, after)


@pytest.mark.parametrize("inputs", [(7,), (2, 3)])
def test_dense_equals_flax(inputs, key):
    x = images(0, 4, *inputs)
    params = jax.jit(layers.Dense(5).init)(key, x)
    found, wanted = (jax.jit(layer.apply)(params, x) for layer in (layers.Dense(5), nn.Dense(5)))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_initial_range_is_pytorchs(key):
    conv = jax.jit(layers.Conv(400, (3, 3)).init)(key, jnp.zeros((1, 4, 4, 4)))["params"]  # fan-in 36
    dense = jax.jit(layers.Dense(3000).init)(key, jnp.zeros((1, 25)))["params"]
    for leaf, bound in [
        (conv["kernel"], 1 / 6),
        (conv["bias"], 1 / 6),
        (dense["kernel"], 1 / 5),
        (dense["bias"], 1 / 5),
    ]:
        leaf = np.asarray(leaf)
        assert float(np.abs(leaf).max()) <= bound
        assert float(leaf.max()) > 0.95 * bound and float(leaf.min()) < -0.95 * bound
        # uniform: standard deviation bound / sqrt(3); five standard errors, which are about 0.45 * bound / sqrt(size)
        assert abs(float(leaf.std()) * 3**0.5 / bound - 1) < 5 * 0.45 * 3**0.5 / leaf.size**0.5


def test_batch_norm_equals_flax_on_a_full_batch(key):
    inputs = images(0, 4, 5, 5, 3) * 3 + 1
    ours, flaxs = layers.BatchNorm(), nn.BatchNorm(use_running_average=False, epsilon=1e-3)
    params = {"params": {"scale": np.array([1, 2, 3], np.float32), "bias": np.array([0, -1, 1], np.float32)}}
    running = {"mean": np.zeros(3, np.float32), "var": np.ones(3, np.float32)}
    flaxs = functools.partial(flaxs.apply, mutable=["batch_stats"])
    expected, _ = jax.jit(flaxs)({**params, "batch_stats": running}, inputs)
    np.testing.assert_allclose(jax.jit(ours.apply)(params, inputs), expected, rtol=1e-4, atol=1e-4)
    assert set(jax.jit(ours.init)(key, inputs)) == {"params"}


@pytest.mark.parametrize("padding_value", [100.0, float("nan"), float("inf")])
def test_batch_norm_leaves_padding_rows_out_of_values_and_gradients(padding_value, key):
    rows = images(0, 3, 4, 4, 2)
    padded = np.concatenate([rows, np.full((2, 4, 4, 2), padding_value, np.float32)])
    mask = np.array([True] * 3 + [False] * 2)
    layer = layers.BatchNorm()
    params = jax.jit(layer.init)(key, rows)

    def loss(p, x, m):
        return jnp.sin(layer.apply(p, x, m)[:3]).sum()

    evaluate = jax.jit(jax.value_and_grad(loss, (0, 1)))
    expected = evaluate(params, rows, None)
    value, (gradient, by_input) = evaluate(params, padded, mask)
    found = value, (gradient, by_input[:3])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected)
    np.testing.assert_array_equal(by_input[3:], 0)


def test_batch_norm_of_padding_alone_is_finite(key):
    layer = layers.BatchNorm()
    inputs = images(0, 2, 4, 4, 1)
    params = jax.jit(layer.init)(key, inputs)
    outputs = jax.jit(layer.apply)(params, inputs, np.zeros(2, bool))
    assert np.isfinite(outputs).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: layers.max_pool(x, 2, "same"), ("padding", "SAME", "same")),
        (lambda x: layers.max_pool(x, 2, "CROP"), ("padding", "CROP")),
        (
            lambda x: layers.Conv(1, (5, 1), "VALID").init(jax.random.key(0), x),
            ("kernel_size", "(4, 4)", "(5, 1)"),
        ),
        (lambda x: layers.max_pool(x, 5), ("window", 5)),
    ],
)
def test_errors_name_argument_value_and_remedy(call, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        call(jnp.zeros((1, 4, 4, 1)))
