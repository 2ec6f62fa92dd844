"""Any network may start as PyTorch's layers do by default."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import jaxfl
from jaxfl import models, tree
from jaxfl.models import adapters, pytorch_start
from jaxfl.settings import options
from tests.messages import mentions


class Mixed(nn.Module):
    """Layers of every kind, with starts of their own."""

    @nn.compact
    def __call__(self, x, mask, train: bool):
        x = nn.Conv(60, (3, 3), bias_init=nn.initializers.ones)(x[..., None])
        x = nn.BatchNorm(use_running_average=not train)(x, mask=mask[:, None, None, None])
        x = x.reshape(len(x), -1, 60)
        x = jnp.asarray(nn.RNN(nn.OptimizedLSTMCell(50, recurrent_kernel_init=nn.initializers.ones))(x))[:, -1]
        x = x + nn.Embed(40, 50)(jnp.zeros(len(x), int)) + self.param("free", nn.initializers.ones, (50,))[None]
        return nn.Dense(10, kernel_init=nn.initializers.ones)(x)


@pytest.fixture(scope="module")
def data():
    return jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=10)


@pytest.mark.slow
def test_every_layer_starts_as_in_pytorch(data, monkeypatch):
    monkeypatch.setattr(adapters, "_reads_padding", lambda *_: False)  # compiles the network
    own, task = (jaxfl.classification(network, data) for network in (Mixed(), pytorch_start(Mixed())))
    starts = [(own, 0), (task, 0), (task, 1)]
    before, model, other = jax.jit(lambda: [one.init(jax.random.key(seed)) for one, seed in starts])()
    assert jax.tree.map(jnp.shape, model) == jax.tree.map(jnp.shape, before)
    bounds = {"Conv_0": 9**-0.5, "OptimizedLSTMCell_0": 50**-0.5, "Dense_0": 50**-0.5}
    for name, leaf, was, again in zip(tree.names(model), *map(jax.tree.leaves, (model, before, other)), strict=True):
        layer, leaf = name.split("/")[0], np.asarray(leaf)
        if layer in bounds:
            assert 0.8 * bounds[layer] < np.abs(leaf).max() <= bounds[layer], name
            assert abs(leaf.mean()) < 0.5 * bounds[layer] and (leaf != again).any(), name
        elif layer == "Embed_0":
            assert abs(leaf.std() - 1) < 0.1, name
        else:
            np.testing.assert_array_equal(leaf, was)
    assert list(tree.creation_order(lambda: task.init(jax.random.key(0))))[-1] == "Dense_0"  # the head stays the head


def test_it_is_an_option_of_any_network(data):
    settings = options.route("fedavg", "rotated-digits", ["model=vgg16", "init=pytorch"])
    assert options.model(settings, 10) == pytorch_start(models.VGG16(num_classes=10))
    assert options.model(options.route("fedavg", "rotated-digits", ["model=vgg16"]), 10) == models.VGG16(num_classes=10)
    both = options.route("fedavg", "rotated-digits", ["init=pytorch", "weights=a.safetensors"])
    with pytest.raises(ValueError, match=mentions("init", "pytorch", "weights=a.safetensors")):
        options.model(both, 10)
    with pytest.raises(ValueError, match=mentions("init", "torch", "pytorch")):
        options.route("fedavg", "rotated-digits", ["init=torch"])


def test_a_network_without_layers_is_refused(data):
    network = models.Functions(
        lambda key: {"w": jnp.zeros((64, 10))}, lambda model, batch, key: batch.x.reshape(-1, 64)
    )
    with pytest.raises(ValueError, match=mentions("module", "pytorch")):
        jaxfl.classification(pytorch_start(network), data)
