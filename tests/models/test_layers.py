import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxfl.models import layers

PADDINGS = st.sampled_from(["SAME", "VALID"])


def images(key, *shape):
    return jax.random.normal(key, shape)


@settings(max_examples=6)  # each compiles
@given(
    kernel_size=st.tuples(st.integers(1, 5), st.integers(1, 4)),
    size=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    padding=PADDINGS,
)
def test_conv_equals_flax_forward_and_gradient(kernel_size, size, channels, padding):
    inputs = images(jax.random.key(1), 2, *size, channels[0])
    ours, flaxs = layers.Conv(channels[1], kernel_size, padding), nn.Conv(channels[1], kernel_size, padding=padding)
    params = jax.jit(ours.init)(jax.random.key(0), inputs)

    @functools.partial(jax.jit, static_argnums=0)
    def evaluate(module):
        outputs, pull_back = jax.vjp(module.apply, params, inputs)
        weights = images(jax.random.key(2), *outputs.shape)  # a random linear functional of the outputs
        return outputs, pull_back(weights)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), evaluate(ours), evaluate(flaxs))


def test_conv_has_the_parameters_of_flax():
    shapes = [
        jax.tree.map(jnp.shape, jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, 8, 8, 3))))
        for module in (layers.Conv(4, (5, 3)), nn.Conv(4, (5, 3)))
    ]
    assert shapes[0] == shapes[1] == {"params": {"kernel": (5, 3, 3, 4), "bias": (4,)}}


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_conv_with_a_kernel_per_client(padding, key):
    inputs = images(key, 3, 2, 7, 6, 2)  # [N, B, H, W, ci]
    ours, flaxs = layers.Conv(5, (3, 3), padding), nn.Conv(5, (3, 3), padding=padding)
    params = jax.jit(jax.vmap(ours.init))(jax.random.split(key, 3), inputs)

    def gradients(module):
        def loss(p, x):
            return jnp.square(module.apply(p, x)).sum()

        return jax.grad(loss, (0, 1))

    together, one = jax.jit(jax.vmap(gradients(ours)))(params, inputs), jax.jit(gradients(flaxs))
    for client in range(3):
        alone = one(jax.tree.map(lambda leaf, i=client: leaf[i], params), inputs[client])
        mapped = jax.tree.map(lambda leaf, i=client: leaf[i], together)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), mapped, alone)


def test_conv_under_vmap_is_no_grouped_convolution(key):
    inputs = images(key, 3, 2, 6, 6, 2)
    module = layers.Conv(4, (3, 3))
    params = jax.eval_shape(jax.vmap(module.init), jax.random.split(key, 3), inputs)
    step = jax.vmap(jax.grad(lambda p, x: jnp.square(module.apply(p, x)).sum()))
    assert "conv_general_dilated" not in str(jax.make_jaxpr(step)(params, inputs))


def test_gradient_of_a_first_layer_does_not_compute_its_input_gradient(key):
    inputs = images(key, 4, 16, 16, 3)
    module = layers.Conv(8, (5, 5))
    params = jax.eval_shape(module.init, key, inputs)

    def products(argument):
        grad = jax.jit(jax.grad(lambda p, x: jnp.square(module.apply(p, x)).sum(), argument))
        cost = grad.lower(params, inputs).compile().cost_analysis()
        assert cost is not None
        return cost["flops"]

    assert products(0) < 0.75 * products((0, 1))


@settings(max_examples=6)  # each compiles
@given(
    size=st.tuples(st.integers(3, 9), st.integers(3, 9)),
    window=st.integers(1, 3),
    padding=PADDINGS,
)
def test_max_pool_equals_flax_forward_and_gradient(size, window, padding):
    inputs = images(jax.random.key(3), 2, *size, 3) - 5.0  # negative: a padding with zeros would show

    def flax_pool(x):
        return nn.max_pool(x, (window, window), (window, window), padding)

    @functools.partial(jax.jit, static_argnums=0)
    def evaluate(pool):
        outputs, pull_back = jax.vjp(pool, inputs)
        return outputs, pull_back(images(jax.random.key(4), *outputs.shape))

    wanted = evaluate(flax_pool)
    for by_place in (False, True):
        ours = evaluate(lambda x, by_place=by_place: layers.max_pool(x, window, padding, by_place=by_place))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, wanted)


def test_max_pool_by_place_gives_a_tie_to_the_first_and_passes_nan_on():
    pool = functools.partial(layers.max_pool, by_place=True)
    inputs = jnp.array([[2.0, 1.0], [2.0, 2.0]])[None, :, :, None]
    assert jax.grad(lambda x: pool(x).sum())(inputs).ravel().tolist() == [1.0, 0.0, 0.0, 0.0]
    for place in range(4):
        spoilt = inputs.ravel().at[place].set(jnp.nan).reshape(inputs.shape)
        assert bool(jnp.isnan(pool(spoilt)).all()) and bool(jnp.isnan(jax.vjp(pool, spoilt)[0]).all())


def test_max_pool_by_place_under_vmap_and_scan(key):
    """As clients train: mapped, in steps."""
    inputs = images(key, 3, 2, 4, 4, 2)

    def two_steps(x):
        def step(x, _):
            return x - jax.grad(lambda x: jnp.square(layers.max_pool(x, by_place=True)).sum())(x), None

        return jax.lax.scan(step, x, None, length=2)[0]

    alone = jnp.stack([jax.jit(two_steps)(x) for x in inputs])
    np.testing.assert_array_equal(jax.jit(jax.vmap(two_steps))(inputs), alone)


def test_relu_after_pooling_is_relu_before_pooling(key):
    inputs = images(key, 2, 6, 6, 3)
    weights = images(jax.random.fold_in(key, 1), 2, 3, 3, 3)
    before = jax.jit(jax.value_and_grad(lambda x: (layers.max_pool(nn.relu(x)) * weights).sum()))(inputs)
    after = jax.jit(jax.value_and_grad(lambda x: (nn.relu(layers.max_pool(x)) * weights).sum()))(inputs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), before, after)


@pytest.mark.parametrize("inputs", [(7,), (2, 3)])
def test_dense_equals_flax(inputs, key):
    x = images(key, 4, *inputs)
    ours = layers.Dense(5)
    params = ours.init(key, x)
    np.testing.assert_allclose(ours.apply(params, x), nn.Dense(5).apply(params, x), rtol=1e-5, atol=1e-6)


def test_initial_range_is_pytorchs(key):
    conv = jax.jit(layers.Conv(400, (3, 3)).init)(key, jnp.zeros((1, 4, 4, 4)))["params"]  # fan-in 36
    dense = jax.jit(layers.Dense(3000).init)(key, jnp.zeros((1, 25)))["params"]
    for leaf, bound in [
        (conv["kernel"], 1 / 6),
        (conv["bias"], 1 / 6),
        (dense["kernel"], 1 / 5),
        (dense["bias"], 1 / 5),
    ]:
        assert float(jnp.abs(leaf).max()) <= bound
        assert float(leaf.max()) > 0.95 * bound and float(leaf.min()) < -0.95 * bound
        # uniform: standard deviation bound / sqrt(3); five standard errors, which are about 0.45 * bound / sqrt(size)
        assert abs(float(leaf.std()) * 3**0.5 / bound - 1) < 5 * 0.45 * 3**0.5 / leaf.size**0.5


def test_batch_norm_equals_flax_on_a_full_batch(key):
    inputs = images(key, 4, 5, 5, 3) * 3 + 1
    ours, flaxs = layers.BatchNorm(), nn.BatchNorm(use_running_average=False, epsilon=1e-3)
    params = {"params": {"scale": jnp.array([1.0, 2.0, 3.0]), "bias": jnp.array([0.0, -1.0, 1.0])}}
    expected, _ = flaxs.apply(
        {**params, "batch_stats": {"mean": jnp.zeros(3), "var": jnp.ones(3)}}, inputs, mutable=["batch_stats"]
    )
    np.testing.assert_allclose(ours.apply(params, inputs), expected, rtol=1e-4, atol=1e-4)
    assert set(ours.init(key, inputs)) == {"params"}


@pytest.mark.parametrize("padding_value", [100.0, float("nan"), float("inf")])
def test_batch_norm_leaves_padding_rows_out_of_values_and_gradients(padding_value, key):
    rows = images(key, 3, 4, 4, 2)
    padded = jnp.concatenate([rows, jnp.full((2, 4, 4, 2), padding_value)])
    mask = jnp.array([True] * 3 + [False] * 2)
    layer = layers.BatchNorm()
    params = layer.init(key, rows)

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
    inputs = images(key, 2, 4, 4, 1)
    params = layer.init(key, inputs)
    outputs = layer.apply(params, inputs, jnp.zeros(2, bool))
    assert bool(jnp.isfinite(outputs).all())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: layers.shifted_slices(x, (3, 3), "same"),
            'padding must be .* got "same"; did you mean "SAME"',
        ),
        (lambda x: layers.max_pool(x, 2, "CROP"), 'padding must be "SAME" or "VALID", got "CROP"'),
        (lambda x: layers.shifted_slices(x, (5, 1), "VALID"), r"kernel_size must be at most .*\(4, 4\).*got \(5, 1\)"),
        (lambda x: layers.max_pool(x, 5), "window must be at most .*got 5"),
    ],
)
def test_errors_name_argument_value_and_remedy(call, message):
    with pytest.raises(ValueError, match=message):
        call(jnp.zeros((1, 4, 4, 1)))
