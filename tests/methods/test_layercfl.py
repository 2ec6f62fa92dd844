"""LayerCFL and AdaCFL: which layers they take, what is compared by them, and that nothing else differs from CFL."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

import jaxfl
from jaxfl import methods, models, tree
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort
from jaxfl.data import federate
from jaxfl.methods.cfl import preset_rule, splitting_clusters
from jaxfl.methods.cfl import rule as split_rule
from jaxfl.methods.cfl import state as split_state
from jaxfl.methods.cfl.layercfl import dense_layers, environment_layers, exact_patterns
from jaxfl.methods.cfl.rule import SplitRule
from jaxfl.models.layer_kinds import kernel_layers
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE, ROUNDS = 0.4, 8
TASK = problems.softmax_task()
EVERYBODY = Cohort.of(range(7))
LOCAL = {"local_epochs": 2, "batch_size": 3}
ABSOLUTE = {"relative": False, "eps1": 0.4, "eps2": 0.1, "gamma_max": 0.0}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def float32():
    """The networks of `jaxfl.models` are float32; they are not trained here."""
    with jax.enable_x64(False):
        yield


def advance(method, data, *, key, rounds=ROUNDS):
    """Returns the state after some rounds, the last info, and how many clusters there were after each."""
    state, info, sizes = method.init(key, data), None, []
    for _ in range(rounds):
        state, info = method.round(key, state, data, EVERYBODY)
        sizes.append(int(info.num_clusters))
    return state, info, sizes


class Stack(nn.Module):
    """A dense layer before, within and behind a part of its own; and more layers than there are digits."""

    @nn.compact
    def __call__(self, inputs):
        outputs = nn.Dense(3)(inputs.reshape(len(inputs), -1))
        outputs = Inner()(outputs)
        for _ in range(11):
            outputs = nn.relu(nn.Dense(2)(outputs))
        return outputs


class Inner(nn.Module):
    @nn.compact
    def __call__(self, inputs):
        return nn.Dense(3)(inputs)


@functools.cache
def task_of(name):
    """Returns the task of a network; nothing is trained."""
    images = np.zeros((2, 8, 8), np.float32)
    data = federate(images, np.array([0, 1]), [np.arange(2)], [np.arange(2)], num_classes=2)
    module = {
        "vgg": models.VGG16(num_classes=2, width=1, hidden=4),
        "cnn": models.LeafFemnistCNN(num_classes=2, hidden=4),
        "mlp": models.MLP(num_classes=2, hidden=(4, 3)),
        "stack": Stack(),
    }[name]
    return jaxfl.classification(module, data)


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize(
    ("model", "feature", "label"),
    [
        ("vgg", "Conv_3", "Dense_0"),
        ("cnn", "Conv_1", "Dense_0"),
        ("mlp", "Dense_0", "Dense_0"),
        ("stack", "Dense_0", "Dense_0"),
    ],
)
def test_the_environment_says_which_layer(model, feature, label):
    task = task_of(model)
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    names = tree.names(shapes)
    for environment, layer in {"feature": feature, "label": label, "unknown": None}.items():
        chosen = jax.tree.leaves(tree.matching(shapes, environment_layers(task, environment)))
        found = [name for name, yes in zip(names, chosen, strict=True) if yes]
        assert found == (names if layer is None else [f"{layer}/bias", f"{layer}/kernel"])


@pytest.mark.usefixtures("float32")
def test_layers_are_in_the_order_of_the_network():
    """Not in that of the alphabet, which a model's keys are in elsewhere."""
    assert [layer.name for layer in kernel_layers(task_of("vgg").init)] == [
        *(f"Conv_{index}" for index in range(13)),
        *(f"Dense_{index}" for index in range(3)),
    ]
    inner = [f"Dense_{index}" for index in range(12)]
    inner.insert(1, "Inner_0/Dense_0")
    assert dense_layers(task_of("stack")) == inner
    assert kernel_layers(TASK.init) == [("kernel", "dense")], "a model of one layer"


@functools.cache
def token_task(name):
    """Returns the task of a network of tokens; nothing is trained."""
    tokens = np.zeros((2, 5), np.int32)
    data = federate(tokens, np.array([0, 1]), [np.arange(2)], [np.arange(2)], num_classes=2)
    size = {"num_classes": 2, "last": True}
    return jaxfl.classification(
        {
            "lstm": models.CharRNN(hidden=(4, 3), embedding=4, **size),
            "gru": models.CharRNN(hidden=4, embedding=3, cell="gru", **size),
            "transformer": models.Transformer(width=4, heads=2, layers=1, **size),
            "nnx": Recurrent,
        }[name],
        data,
    )


class Recurrent(nnx.Module):
    """An LSTM, an attention and two dense layers of flax.nnx."""

    def __init__(self, rngs):
        self.embed = nnx.Embed(2, 4, rngs=rngs)
        self.cells = nnx.RNN(nnx.LSTMCell(4, 4, rngs=rngs))
        self.attention = nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs)
        self.head = nnx.List([nnx.LinearGeneral((5, 4), 3, axis=(-2, -1), rngs=rngs), nnx.Linear(3, 2, rngs=rngs)])

    def __call__(self, tokens):
        outputs = self.attention(jnp.asarray(self.cells(self.embed(tokens))))
        return self.head[1](self.head[0](outputs))


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize(
    ("network", "dense"),
    [
        ("lstm", ["Dense_0"]),
        ("gru", ["Dense_0"]),
        ("transformer", ["Dense_0", "Dense_1", "Dense_2"]),
        ("nnx", ["head/0", "head/1"]),
    ],
)
def test_gates_are_no_dense_layers_and_projections_no_convolutions(network, dense):
    """By the axes of kernels, gates `[d, h]` would be dense layers and projections `[d, heads, h]` convolutions."""
    task = token_task(network)
    layers = kernel_layers(task.init)
    assert dense_layers(task) == dense
    assert {layer.kind for layer in layers if layer.name not in dense} <= {"recurrent", "attention"} and len(layers) > 4
    assert environment_layers(task, "label") == environment_layers(task, "feature") == exact_patterns(dense[:1])
    names = tree.names(jax.eval_shape(task.init, jax.random.key(0)))
    assert len(names) == len(set(names)) and {f"{layer.name}/kernel" for layer in layers} <= {*names}


@pytest.mark.usefixtures("float32")
def test_patterns_match_one_layer_each():
    shapes = jax.eval_shape(task_of("stack").init, jax.random.key(0))
    for name in dense_layers(task_of("stack")):
        assert sum(jax.tree.leaves(tree.matching(shapes, exact_patterns([name])))) == 2, name


@pytest.mark.rotating
@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize(
    ("factory", "model", "size"),
    [
        (functools.partial(methods.layercfl, environment="feature"), "vgg", 3 * 3 * 2 * 2 + 2),
        (functools.partial(methods.layercfl, environment="label"), "vgg", 8 * 4 + 4),
        (functools.partial(methods.layercfl, layers=["Conv_0", "Dense_2/bias"]), "vgg", 9 + 1 + 2),
        (methods.adacfl, "vgg", 8 * 4 + 4 + 4 * 4 + 4 + 4 * 2 + 2),
        (functools.partial(methods.adacfl, layers="bias"), "mlp", 4 + 3 + 2),
    ],
)
def test_clients_are_compared_by_that_many_numbers(factory, model, size, key):
    method = factory(task_of(model), optax.sgd(RATE))
    assert jax.eval_shape(method.init, key, problems.linear_federation()).vectors.shape == (7, size)


@functools.cache
def plain():
    return compiled(methods.cfl(TASK, optax.sgd(RATE), **ABSOLUTE, **LOCAL))


@pytest.mark.rotating
@pytest.mark.parametrize("options", [{"environment": "unknown"}, {"environment": "label", "layers": ".*"}])
def test_by_all_layers_it_is_cfl_bit_for_bit(options, key):
    data = problems.linear_federation()
    ours = compiled(methods.layercfl(TASK, optax.sgd(RATE), **options, **ABSOLUTE, **LOCAL))
    state, info, sizes = advance(ours, data, key=key)
    assert sizes[-1] > 2
    wanted = advance(plain(), data, key=key)
    reference.equal((state, info), wanted[:2])


def test_by_one_layer_other_clients_are_alike(key):
    data = problems.linear_federation()
    found = {}
    for layers in ("bias", "kernel"):
        method = methods.layercfl(TASK, optax.sgd(RATE), layers=layers, **{**ABSOLUTE, "eps1": np.inf}, **LOCAL)
        state, _, _ = advance(compiled(method), data, key=key, rounds=1)
        found[layers] = tuple(state.cluster.tolist())
        assert 1 in found[layers]
    assert found["bias"] != found["kernel"]


def test_eps1_is_about_the_model_and_eps2_about_the_layer(key):
    data, options = problems.linear_federation(), {"layers": "bias", **ABSOLUTE, **LOCAL}
    between = 0.107  # the mean of the layer is small, that of the model is not
    quiet = compiled(methods.layercfl(TASK, optax.sgd(RATE), **{**options, "eps1": between, "eps2": 0.0}))
    start, (state, info, sizes) = quiet.init(key, data), advance(quiet, data, key=key, rounds=1)
    mean = jax.tree.map(lambda a, b: np.asarray(a[0] - b[0]), state.models, start.models)
    of_bias, of_model = np.linalg.norm(mean["bias"]), np.sqrt(sum((leaf**2).sum() for leaf in mean.values()))
    reference.close(float(info.extra["mean_update"]), float(of_model), rtol=1e-9)
    moved, moved_bias = float(state.update_norm.max()), float(state.layers_norm.max())
    reference.close(float(info.extra["client_update"]), float(moved))
    reference.close(moved_bias, np.linalg.norm(np.asarray(state.vectors), axis=1).max())
    assert of_bias < 0.9 * of_model and moved_bias < 0.9 * moved, "there is room between them"
    assert of_bias < between < of_model and sizes == [1]
    for name, eps1, eps2, number in (
        ("both hold", 1.01 * of_model, 0.99 * moved_bias, 2),
        ("the model moves, the layer does not", np.inf, 1.01 * moved_bias, 1),
    ):
        method = methods.layercfl(TASK, optax.sgd(RATE), **{**options, "eps1": float(eps1), "eps2": float(eps2)})
        assert advance(compiled(method), data, key=key, rounds=1)[2] == [number], name


@pytest.mark.rotating
@pytest.mark.parametrize("relative", [False, True])
def test_adacfl_tells_updates_as_it_tells_weights(relative, key):
    """From one start, |theta_i - theta_j| = |D_i - D_j|."""
    data = problems.linear_federation()
    bounds = {**ABSOLUTE, "relative": relative, "eps1": 1.0, "gamma_max": 0.8}
    ours = compiled(methods.adacfl(TASK, optax.sgd(RATE), **bounds, **LOCAL))
    state, info, sizes = advance(ours, data, key=key)
    assert sizes[-1] > 2
    by_updates = splitting_clusters(
        TASK,
        local_train(TASK, optax.sgd(RATE), **LOCAL),
        preset_rule("paper", metric="l2", compare="updates", layers="kernel", **bounds),
        sketch_size=4096,
        slots=8,
    )
    other, seen, _ = advance(compiled(by_updates), data, key=key)
    assert np.abs(state.vectors - other.vectors).max() > 0.1
    reference.equal((state._replace(vectors=0), info), (other._replace(vectors=0), seen))


REFUSED = [
    ({"layers": "Dense_0"}, ("Dense_0", "bias, kernel")),
    ({"eps1": -1.0}, ("eps1", -1.0)),
    ({"weighting": "size"}, ("weighting", "size")),
    ({"slots": 0}, ("slots", 0)),
]


@pytest.mark.parametrize("factory", [methods.layercfl, methods.adacfl])
@pytest.mark.parametrize(("options", "complaint"), REFUSED)
def test_refusals(factory, options, complaint):
    with pytest.raises(ValueError, match=mentions(*complaint)):
        factory(TASK, optax.sgd(RATE), **options)


def test_an_unknown_environment_is_refused():
    with pytest.raises(ValueError, match=mentions("environment", "both")):
        methods.layercfl(TASK, optax.sgd(RATE), environment="both")


@pytest.mark.parametrize(
    "factory",
    [methods.adacfl, *(functools.partial(methods.layercfl, environment=name) for name in ("feature", "label"))],
)
def test_a_model_without_a_kernel_needs_layers(factory, key):
    task = problems.quadratic_task()
    with pytest.raises(ValueError, match=mentions("layers", "kernel", "w")):
        factory(task, optax.sgd(0.1))
    method = factory(task, optax.sgd(0.1), layers="w")
    assert jax.eval_shape(method.init, key, problems.linear_federation()).vectors.shape == (7, 3)


def test_who_has_sent_nothing_costs_the_others_no_digits(float32):
    """AdaCFL compares weights, which are far from the zeros of a client that is held out, or has diverged."""
    rule = SplitRule(True, 1.0, 0.0, 0.0, "single", "uniform", ".*", 0, 1, 2, "l2", "weights")
    steps, group = np.random.default_rng(0).normal(size=(2, 64)) / 1e4, np.arange(8) % 2
    weights = np.zeros((20, 64), np.float32)
    weights[:8] = 5 + steps[group] * (1 + np.arange(8)[:, None] / 100)
    norms = jnp.asarray((np.arange(20) < 8).astype(np.float32))
    data = problems.linear_federation(np.ones(20, int).tolist(), np.zeros(20, int).tolist())
    state = split_state.initial_state(jnp.zeros(64), jax.ShapeDtypeStruct((64,), jnp.float32), data, 2)
    state = state._replace(vectors=jnp.asarray(weights), update_norm=norms, layers_norm=norms)
    after = jax.jit(split_rule.split_if_ready(rule))(state, jnp.array([True, False]))
    assert len({*zip(after.cluster[:8].tolist(), group.tolist(), strict=True)}) == 2
