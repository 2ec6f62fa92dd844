"""Matching: what is put in another order computes the same, and is found again; assignments are the best there are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from scipy.optimize import linear_sum_assignment

from jaxfl import models
from jaxfl.data import federate
from jaxfl.methods.parts import matching
from jaxfl.models import networks
from jaxfl.models.layers import BatchNorm, Conv, Dense, max_pool
from jaxfl.tasks import classification
from tests import problems
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=4)
close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)  # float32 sums in another order


class Normalised(nn.Module):
    """Convolution, its normalisation, pooling, a dense layer behind them, and two more: every kind of follower."""

    num_classes: int

    @nn.compact
    def __call__(self, inputs):
        outputs = Conv(4, (3, 3))(inputs[..., None])
        outputs = nn.relu(max_pool(BatchNorm()(outputs)))
        outputs = nn.relu(Conv(5, (3, 3), "VALID")(outputs))
        outputs = nn.relu(Dense(6)(outputs.reshape(outputs.shape[0], -1)))
        return Dense(self.num_classes)(nn.relu(Dense(7)(outputs)))


def images(side, count=12, classes=3, channels=()):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(count, side, side, *channels)).astype(np.float32)
    rows = np.split(np.arange(count), 2)
    return federate(inputs, rng.integers(0, classes, count), rows, rows, num_classes=classes)


NETWORKS = {
    "dense": (lambda: models.MLP(hidden=(9, 8), num_classes=3), 5, ()),
    "conv, norm, conv, dense": (lambda: Normalised(3), 8, ()),
    "lenet": (lambda: models.LenetEMNIST(num_classes=3), 16, ()),
    "celeba": (lambda: models.LeafCelebaCNN(num_classes=3), 16, (3,)),
}


match, permute = (jax.jit(one, static_argnames="layers") for one in (matching.match, matching.permute))
assign = jax.jit(matching.assign_neurons)
neurons = jax.jit(matching._neuron_weights, static_argnames="layer")
reorder = jax.jit(matching._reorder, static_argnames=("layer", "following"))


@pytest.fixture(params=NETWORKS, scope="module")
def network(request):
    """Returns a task, its layers, a trained-looking model (biases and scales differ) and a batch."""
    module, side, channels = NETWORKS[request.param]
    data = images(side, channels=channels)
    task = classification(module(), data)
    layers = matching.chain(task)
    task = task._replace(init=jax.jit(task.init), outputs=jax.jit(task.outputs))  # whose leaves are sorted by name
    rng = np.random.default_rng(2)
    model = jax.tree.map(
        lambda leaf: np.asarray(leaf) + 0.3 * rng.normal(size=leaf.shape).astype(np.float32),
        task.init(jax.random.key(1)),
    )
    return task, layers, model, data.batch(data.train, jnp.int32(0), jnp.arange(6, dtype=jnp.int32))


def shuffled(model, layers, seed):
    leaves, rng = jax.tree.leaves(model), np.random.default_rng(seed)
    orders = [rng.permutation(leaves[layer.kernel].shape[-1]) for layer in layers[:-1]]
    return jax.tree.map(np.asarray, permute(model, layers, orders))


def flat(model):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(model)])


@pytest.mark.slow
@pytest.mark.rotating
def test_another_order_computes_the_same_and_is_found_again(network):
    task, layers, model, batch = network
    turned = shuffled(model, layers, 3)
    assert not np.array_equal(flat(turned), flat(model))
    close(task.outputs(turned, batch), task.outputs(model, batch))
    found = match(turned, model, layers)
    np.testing.assert_array_equal(flat(found), flat(model))


@pytest.mark.slow
@pytest.mark.rotating
def test_the_matched_mean_of_permuted_copies_is_the_network_and_their_mean_by_index_is_not(network):
    task, layers, model, batch = network
    copies = [shuffled(model, layers, seed) for seed in range(3)]

    def mean(models):
        return jax.tree.map(lambda *leaves: sum(map(np.asarray, leaves)) / np.float32(len(leaves)), *models)

    wanted = task.outputs(model, batch)
    close(task.outputs(mean([match(copy, copies[0], layers) for copy in copies]), batch), wanted)
    assert np.abs(task.outputs(mean(copies), batch) - wanted).max() > 0.01


@pytest.mark.rotating
def test_what_is_in_order_stays(network):
    _, layers, model, _ = network
    near = jax.tree.map(lambda leaf: leaf * np.float32(1.001), model)
    np.testing.assert_array_equal(flat(match(near, model, layers)), flat(near))


@pytest.mark.rotating
def test_no_layer_is_farther_from_the_reference_than_it_was(network):
    """Each layer with the inputs that the layers before it have left it with."""
    task, layers, model, _ = network
    leaves = jax.tree.leaves(task.init(jax.random.key(5)))
    theirs = jax.tree.leaves(model)
    for layer, following in zip(layers, layers[1:], strict=False):
        rows, reference = (np.asarray(neurons(own, layer)) for own in (leaves, theirs))
        order = np.asarray(assign(rows, reference))
        assert sorted(order.tolist()) == list(range(len(rows)))
        assert np.sum((rows[order] - reference) ** 2) <= np.sum((rows - reference) ** 2) * (1 + 1e-6)
        leaves = reorder(leaves, layer, following, order)


def test_assignments_are_scipys():
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 30):
        rows, reference = rng.normal(size=(2, size, 4)).astype(np.float32)
        cost = np.square(rows[None] - reference[:, None]).sum(-1)
        order = np.asarray(assign(jnp.array(rows), jnp.array(reference)))
        np.testing.assert_array_equal(order, linear_sum_assignment(cost)[1])


def test_clients_side_by_side_are_each_matched_as_alone():
    """One settled, one to be solved, one that has diverged and stays as it is."""
    rng = np.random.default_rng(0)
    reference = rng.normal(size=(6, 3))
    clients = np.stack([reference + 1e-3, reference[::-1], np.full_like(reference, np.nan)])
    found = jax.jit(jax.vmap(matching.assign_neurons, (0, None)))(
        clients.astype(np.float32), reference.astype(np.float32)
    )
    assert found.tolist() == [list(range(6)), list(range(6))[::-1], list(range(6))]


def test_the_posterior_asks_for_the_same_order():
    """FedMA's gain of pairs (its code's cost without new neurons), neurons all seen equally often."""
    rng = np.random.default_rng(0)
    rows, seen, variance, prior = rng.normal(size=(8, 5)), 3, 0.7, 1.3
    precision = 1 / prior + seen / variance
    weighted = precision * rng.normal(size=(8, 5))  # v_i: precision-weighted sums
    after = np.square(weighted[:, None] + rows[None] / variance).sum(-1) / (precision + 1 / variance)
    gain = after - np.square(weighted).sum(-1)[:, None] / precision
    order = assign(jnp.array(rows), jnp.array(weighted / precision))
    np.testing.assert_array_equal(order, linear_sum_assignment(gain, maximize=True)[1])


def test_the_posterior_mean_counts_the_prior_as_so_many_models():
    task = problems.softmax_task()  # one layer, the last: a plain mean
    model = task.init(jax.random.key(0))
    kept = matching.posterior_mean(model, jnp.float32(3), matching.chain(task), 1.0)
    np.testing.assert_array_equal(flat(kept), flat(model))

    task = classification(models.MLP(hidden=(4,), num_classes=3), images(2))
    mean = task.init(jax.random.key(0))
    found = matching.posterior_mean(mean, jnp.float32(3), matching.chain(task), 2.0)
    close(found["Dense_0"]["kernel"], 3 * mean["Dense_0"]["kernel"] / 5)
    close(found["Dense_0"]["bias"], (3 * mean["Dense_0"]["bias"] + 2 * 0.1) / 5)
    np.testing.assert_array_equal(flat(found["Dense_1"]), flat(mean["Dense_1"]))


BRANCHED = [name for name in models.MODELS if name.startswith(("resnet", "mobilenet", "vit", "textcnn"))]


@pytest.mark.parametrize("name", [name for name in models.MODELS if name not in {*networks.SEQUENCES, *BRANCHED}])
def test_every_model_of_the_library_is_a_chain(name):
    side, channels = (84, (3,)) if "celeba" in name else (32, (3,)) if "cifar" in name else (28, ())
    data = images(side, 4, channels=channels)
    task = classification(models.create(name, 3), data)
    layers = matching.chain(task)
    shapes = [leaf.shape for leaf in jax.tree.leaves(jax.eval_shape(task.init, jax.random.key(0)))]
    assert sorted(place for layer in layers for place in (layer.kernel, *layer.vectors)) == list(range(len(shapes)))
    assert shapes[layers[-1].kernel][-1] == 3, "the last layer's neurons are the classes"


class Skips(nn.Module):
    """Its last kernel takes two layers side by side."""

    @nn.compact
    def __call__(self, inputs):
        one = Dense(4)(inputs.reshape(inputs.shape[0], -1))
        return Dense(3)(jnp.concatenate([one, Dense(3)(one)], 1))


class Odd(nn.Module):
    """Has a vector that is no bias."""

    @nn.compact
    def __call__(self, inputs):
        outputs = Dense(3)(inputs.reshape(inputs.shape[0], -1))
        return outputs + self.param("extra", nn.initializers.zeros, (2,)).sum()


@pytest.mark.parametrize(
    ("module", "complaint"),
    [
        (Skips(), ("Dense_1/kernel", "[7, 3]", "3 outputs")),
        (Odd(), ("extra", "[2]")),
    ],
)
def test_what_is_no_chain_is_refused(module, complaint):
    with pytest.raises(ValueError, match=mentions(*complaint)):
        matching.chain(classification(module, images(2)))


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (models.CharRNN(num_classes=2, hidden=4, embedding=4, cell="gru", last=True), "recurrent"),
        (models.Transformer(num_classes=2, width=4, heads=1, layers=1, last=True), "attention"),
    ],
)
def test_cells_and_attentions_are_no_chain_though_their_shapes_may_fit(module, kind):
    data = federate(np.zeros((2, 5), np.int32), np.arange(2), [np.arange(2)], [np.arange(2)], num_classes=2)
    with pytest.raises(ValueError, match=mentions(kind)):
        matching.chain(classification(module, data))


@pytest.mark.parametrize(
    "module",
    [
        models.ResNet9(num_classes=3, norm="group", groups=2, width=4),  # all its shapes fit
        models.TextCNN(num_classes=3, embedding=4, channels=4, lengths=(2, 3)),
    ],
)
def test_branches_are_no_chain(module):
    tokens = federate(np.zeros((2, 5), np.int32), np.arange(2), [np.arange(2)], [np.arange(2)], num_classes=3)
    data = tokens if isinstance(module, models.TextCNN) else images(32, 4, channels=(3,))
    with pytest.raises(ValueError, match=mentions(type(module).__name__, "fesem")):
        matching.chain(classification(module, data))


def test_a_model_of_one_layer_is_left_alone():
    task = problems.softmax_task()
    model, other = task.init(jax.random.key(0)), task.init(jax.random.key(1))
    found = matching.match(model, other, matching.chain(task))
    np.testing.assert_array_equal(flat(found), flat(model))
