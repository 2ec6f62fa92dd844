"""Heads of networks of any kind, their features and class sums; networks without one are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import jaxfl
from jaxfl import tree
from jaxfl.client.fast import coordinates
from jaxfl.client.part import train_part
from jaxfl.client.training import local_train
from jaxfl.methods.parts import heads
from jaxfl.methods.parts.vectors import last_layer
from jaxfl.tasks import Task
from jaxfl.testing.small import linear_task
from tests import problems
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=6)


class Other(nn.Module):
    """Dropout and batch normalisation below a head with a name that sorts first, or with something behind it."""

    behind: str = ""

    @nn.compact
    def __call__(self, x, train: bool, mask):
        x = nn.relu(
            nn.BatchNorm(use_running_average=not train)(
                nn.Dense(6, name="z")(x.reshape(len(x), -1)), mask=mask[:, None]
            )
        )
        x = nn.Dropout(0.5, deterministic=not train)(x)
        x = nn.Dense(10, name="a", use_bias=self.behind != "twice")(x)
        return {"softmax": nn.log_softmax, "scale": lambda x: 2 * x, "twice": lambda x: x + x}.get(
            self.behind, lambda x: x
        )(x)


@pytest.fixture(scope="module")
def data():
    return jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=12)


def networks():
    return {
        "mlp": (jaxfl.models.MLP(hidden=(5,), num_classes=10), 5),
        "wide": (jaxfl.models.MLP(hidden=(256,), num_classes=10), 256),  # whose head is computed in a fast form
        "regression": (jaxfl.models.Logistic(num_classes=10), 64),
        "own": (Other(), 6),
    }


class HeadFirst(nn.Module):
    """Creates its head before the layer below it."""

    @nn.compact
    def __call__(self, x):
        head = nn.Dense(10, name="head")
        if self.is_initializing():
            head(jnp.zeros((1, 6)))
        return head(nn.relu(nn.Dense(6, name="stem")(x.reshape(len(x), -1))))


def test_a_task_says_which_layer_is_the_head(data):
    task = jaxfl.classification(HeadFirst(), data)
    with pytest.raises(ValueError, match=mentions("stem/kernel", "fedproto")):
        heads.find_head(task, "fedproto")
    assert heads.find_head(jaxfl.with_head(task, "head"), "fedproto")[:3] == ("head/kernel", "head/bias", 6)
    with pytest.raises(ValueError, match=mentions("stem/kernel", "fedproto")):
        heads.find_head(jaxfl.with_head(task, "stem"), "fedproto")
    chosen = last_layer(jaxfl.with_head(task, "head"))
    assert tree.names(tree.partition(jax.eval_shape(task.init, jax.random.key(0)), chosen)[0]) == [
        "head/bias",
        "head/kernel",
    ]


@pytest.mark.parametrize("name", networks())
def test_features_times_the_head_are_the_outputs(name, data, key):
    module, width = networks()[name]
    task = jaxfl.classification(module, data)
    head, model = heads.find_head(task, "fedproto"), task.init(key)
    batch = data.batch(data.train, 1, jnp.arange(40))
    task.outputs(model, batch), task.loss(model, batch, key)  # which JAX remembers
    seen = jax.jit(heads.with_features(task.outputs, head))(model, batch)
    assert (head.features, head.classes, seen.features.shape) == (width, 10, (40, width))
    np.testing.assert_allclose(seen.logits, task.outputs(model, batch), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(seen.value, seen.logits, rtol=1e-5, atol=1e-6)
    # a shift of x is a shift of the logits by its product with W
    shift = jnp.linspace(0, 1, width)
    moved = heads.with_features(task.outputs, head)(model, batch, change=lambda x: x + shift[None])
    np.testing.assert_allclose(moved.value, seen.logits + (shift @ head.weights(model)[0])[None], rtol=1e-4, atol=1e-5)
    # in training the loss is the task's, with the same dropout
    trained = heads.with_features(task.loss, head)(model, batch, key)
    np.testing.assert_allclose(trained.value, task.loss(model, batch, key), rtol=1e-5)


@pytest.mark.parametrize("name", networks())
@jax.numpy_dtype_promotion("standard")  # flax's normalisation needs it
def test_a_network_in_half_precision_has_its_head(name, data, key):
    """A cast is no use of a kernel: the last layer is the same, and its features are in the type of the head."""
    module, width = networks()[name]
    task, whole = (jaxfl.classification(module, data, compute=compute) for compute in ("bfloat16", "float32"))
    head, model = heads.find_head(task, "fedproto"), task.init(key)
    assert head == heads.find_head(whole, "fedproto")
    batch = data.batch(data.train, 1, jnp.arange(40))
    seen = jax.jit(heads.with_features(task.outputs, head))(model, batch)
    assert {seen.features.dtype, seen.logits.dtype, seen.value.dtype} == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(seen.value, task.outputs(model, batch), rtol=0.02, atol=0.02)
    np.testing.assert_allclose(seen.logits, seen.value, rtol=0.02, atol=0.02)
    near = heads.with_features(whole.outputs, heads.find_head(whole, "fedproto"))(model, batch)
    np.testing.assert_allclose(seen.features, near.features, rtol=0.05, atol=0.05)
    moved = heads.with_features(task.outputs, head)(model, batch, change=lambda x: x + jnp.ones((1, width)))
    assert not np.allclose(moved.value, seen.value, atol=0.02)
    joint = heads.with_feature_term(task, head, lambda seen, batch: jnp.square(seen.features).mean())
    gradient = jax.grad(joint.loss)(model, batch, key)
    assert all(np.isfinite(leaf).all() and leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(gradient))


def test_a_term_of_the_features_has_its_gradient_and_averages_move_as_ever(data, key):
    task = jaxfl.classification(Other(), data)
    head, model = heads.find_head(task, "fedproto"), task.init(key)
    batch = data.batch(data.train, 1, jnp.arange(12))
    joint = heads.with_feature_term(task, head, lambda seen, batch: 0.3 * jnp.square(seen.features).mean())

    def by_hand(model):
        return task.loss(model, batch, key) + 0.3 * jnp.square(look(model, batch, key).features).mean()

    look = heads.with_features(task.loss, head)
    one, two = jax.grad(by_hand)(model), jax.grad(joint.loss)(model, batch, key)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), one, two)
    for step in (jaxfl.classification(Other(), data), joint):
        train = local_train(step, optax.sgd(0.0), local_epochs=1, batch_size=None)
        trained = jax.jit(train)(key, model, data, jnp.int32(1))[0]
        leaves = dict(zip(tree.names(trained), jax.tree.leaves(trained), strict=True))
        (mean,) = (leaf for name, leaf in leaves.items() if "mean" in name)
        assert float(jnp.abs(mean).sum()) > 0


@pytest.mark.parametrize(("name", "moving"), [("mlp", ".*"), ("mlp", "Dense_0"), ("regression", ".*")])
def test_a_term_of_the_features_is_trained_in_coordinates_as_without_them(name, moving, data, key, monkeypatch):
    """Also where the head's own kernel is in coordinates, of an inner or the first layer, or constant."""
    monkeypatch.setattr(coordinates, "_inner_pays", lambda *sizes, kernels: True)
    task = jaxfl.classification(networks()[name][0], data)
    joint = heads.with_feature_term(
        task,
        heads.find_head(task, "fedproto"),
        lambda seen, batch: 0.3 * jnp.square(seen.features - 1).mean() + jnp.square(seen.logits).mean(),
    )
    model, trained = task.init(key), []
    for one in (joint, joint._replace(fast=joint.fast._replace(dense=None))):
        train = train_part(one, optax.sgd(0.1), tree.matching(model, moving), local_epochs=3, batch_size=5)
        with coordinates.decisions() as told:
            trained.append(jax.jit(train)(key, model, data, jnp.int32(1)))
        assert (coordinates.USED in told) == (one is joint)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *trained)


def test_class_sums_are_those_of_a_loop(key):
    with jax.enable_x64(True):
        data, task = problems.linear_federation(), problems.softmax_task()
        head = heads.find_head(task, "fedproto")
        sums, model = jax.jit(heads.class_sums(task, head)), task.init(key)
        for client, (x, y) in enumerate(problems.rows_of(data)):
            found = sums(model, data, client)
            wanted = np.array([x[y == label].sum(0) for label in range(2)])
            np.testing.assert_allclose(found.features, wanted, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(found.counts, np.bincount(y, minlength=2))
            np.testing.assert_allclose(found.squares, np.square(x).sum(), rtol=1e-12)
            np.testing.assert_allclose(heads.class_counts(data, client, 2), np.bincount(y, minlength=2))


def test_the_battery_s_task_has_a_head():
    assert heads.find_head(linear_task(), "fedproto") == heads.Head("kernel", "bias", 4, 3)


@pytest.mark.parametrize("behind", ["softmax", "scale", "twice"])
def test_an_operation_behind_the_head_is_refused(behind, data):
    with pytest.raises(ValueError, match=mentions("task", "a/kernel", "fedproto")):
        heads.find_head(jaxfl.classification(Other(behind), data), "fedproto")


def test_other_tasks_and_layers_are_refused():
    numbers = np.arange(24).reshape(4, 6) % 5
    tokens = jaxfl.data.federate(numbers, numbers, [[0, 1]], [[2]], num_classes=5)
    task = jaxfl.next_token(jaxfl.models.CharRNN(num_classes=5, vocabulary=5, hidden=(4,)), tokens)
    with pytest.raises(ValueError, match=mentions("task", "5 tokens", "fedproto")):
        heads.find_head(task, "fedproto")
    task = Task(lambda key: {"layer": {"scale": jnp.ones(3)}}, linear_task().loss, linear_task().outputs)
    with pytest.raises(ValueError, match=mentions("task", "layer/scale", "fedproto")):
        heads.find_head(task, "fedproto")
