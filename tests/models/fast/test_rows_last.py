from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxfl.models.fast import convolution, rows_last
from jaxfl.models.fast.rewriting import in_fast_forms
from jaxfl.models.networks import MODELS
from tests.models.fast.test_rewriting import check_alike, gradients, images, sum_pool


class Network(nn.Module):
    """Two convolutions of few outputs, with something between them."""

    between: Callable[[jax.Array], jax.Array]

    @nn.compact
    def __call__(self, x):
        x = self.between(nn.Conv(5, (3, 3), (1, 2))(x))
        return nn.Conv(4, (2, 3), padding=((1, 0), (0, -1)), kernel_dilation=(2, 1))(x).reshape(len(x), -1)


def ready(network, *shape):
    inputs = images(0, *shape)
    return jax.jit(network.init)(jax.random.key(1), inputs), inputs


def turns(fn, *args):
    """Returns how often a program exchanges rows and channels of images."""
    return str(jax.make_jaxpr(fn)(*args)).count("permutation=(3, 1, 2, 0)")


BETWEEN = {
    "relu": nn.relu,
    "gelu": nn.gelu,
    "silu": nn.silu,
    "tanh": lambda x: 2 - jnp.tanh(x) / 3,
    "where": lambda x: jnp.where(x > 0.1, x, 0.2 * x**3),
    "both": lambda x: x * jax.nn.sigmoid(x) + nn.relu(x),
    "pooling": lambda x: sum_pool(nn.relu(nn.max_pool(x, (3, 2), (1, 2), "SAME")), (2, 1), (1, 1), "VALID"),
    "rows": lambda x: x * jnp.linspace(-1.0, 1.0, x.size).reshape(x.shape),
    "norm": lambda x: nn.GroupNorm(num_groups=1)(x),
    "softmax": jax.nn.softmax,
    "sums": lambda x: x + x.sum((1, 2), keepdims=True),
    "loop": lambda x: jax.lax.scan(lambda x, _: (nn.relu(x - 0.1), None), x, None, length=2)[0],
    "own": jax.custom_jvp(lambda x: x**2),
}
relu = jax.custom_jvp(jax.jit(lambda x: jnp.maximum(x, 0)))  # as JAX writes its own, with another gradient
relu.defjvp(lambda primals, tangents: (relu(*primals), 7 * tangents[0]))
BETWEEN["own relu"] = relu
BETWEEN["own"].defjvp(lambda primals, tangents: (primals[0] ** 2, 7 * tangents[0]))
STAY = ("relu", "gelu", "silu", "tanh", "where", "both", "pooling")


@pytest.mark.rotating
@pytest.mark.parametrize("name", BETWEEN)
def test_whatever_is_between_two_convolutions_the_network_is_the_same(name):
    network = Network(BETWEEN[name])
    given = ready(network, 3, 8, 13, 2)
    check_alike(gradients(in_fast_forms(network.apply))(*given), gradients(network.apply)(*given))


@pytest.mark.rotating
@pytest.mark.parametrize("name", STAY)
def test_images_are_turned_once_and_turned_back_once(name):
    network = Network(BETWEEN[name])
    spread = 2  # biases, which take no time, are turned after they are spread over the images
    assert turns(in_fast_forms(network.apply), *ready(network, 3, 8, 13, 2)) == 2 + spread


@pytest.mark.parametrize("name", ["lenet-emnist", "stocfl-cifar-cnn", "lenet5-flux"])
def test_small_networks_of_the_papers_stay_turned_up_to_their_dense_layers(name):
    network = MODELS[name](num_classes=10)
    given = ready(network, 4, 32, 32, 3)
    assert turns(in_fast_forms(network.apply), *given) == 2 + 2
    program = str(jax.make_jaxpr(in_fast_forms(network.apply))(*given))
    assert "conv_general_dilated" not in program and "reduce_window" not in program


def test_wide_convolutions_are_not_turned():
    class Wide(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Conv(24, (3, 3))(nn.relu(nn.Conv(16, (3, 3))(x)))

    assert turns(in_fast_forms(Wide().apply), *ready(Wide(), 4, 16, 16, 3)) == 0


@pytest.mark.rotating
@pytest.mark.parametrize("mapped", ["inputs", "kernels", "both"])
def test_the_network_is_the_same_however_it_is_mapped(mapped):
    network = Network(nn.relu)
    params, inputs = ready(network, 3, 8, 13, 2)
    axes = (0 if mapped in ("kernels", "both") else None, 0 if mapped in ("inputs", "both") else None)
    given = [
        value if axis is None else jax.tree.map(lambda leaf: jnp.stack([leaf, 2 - leaf]), value)
        for value, axis in zip((params, inputs), axes, strict=True)
    ]
    ours, theirs = (jax.vmap(gradients(fn), axes) for fn in (in_fast_forms(network.apply), network.apply))
    check_alike(ours(*given), theirs(*given))


def test_no_gradient_passes_a_relu_at_zero():
    layer = nn.Conv(1, (1, 1), use_bias=False)

    def network(x):
        return nn.relu(jnp.asarray(layer.apply({"params": {"kernel": jnp.ones((1, 1, 1, 1))}}, x))).sum()

    inputs = jnp.array([-1.0, 0.0, 2.0]).reshape(3, 1, 1, 1)
    assert turns(in_fast_forms(network), inputs)
    assert jax.grad(in_fast_forms(network))(inputs).ravel().tolist() == [0, 0, 1]


def test_a_number_keeps_its_place_where_it_is_not_an_image():
    """Scalars are not turned, nor is what was never an image."""

    def network(x, kernel, level):
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=convolution.AXIS_ORDER)
        return jnp.maximum(x, level) * 2, kernel + level

    given = images(0, 3, 5, 6, 2), images(1, 2, 2, 2, 7), 0.25
    check_alike(jax.jit(in_fast_forms(network))(*given), jax.jit(network)(*given))


def test_turning_twice_is_nothing():
    inputs = jnp.asarray(images(0, 2, 3, 4, 5))
    assert (rows_last.rows_first(rows_last.RowsLast(inputs.transpose(rows_last.ROWS_LAST_AXES))) == inputs).all()
    np.testing.assert_array_equal(rows_last.rows_first(inputs), inputs)
