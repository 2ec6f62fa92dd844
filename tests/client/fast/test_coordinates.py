"""Training in coordinates is the same training; what cannot be trained so is told from its program."""

import functools
import types
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from jaxfl import classification, footprint, methods, models, run, tree
from jaxfl.client import training
from jaxfl.client.corrections import gradient_correction, proximal_pull
from jaxfl.client.fast import coordinates, optimizer_programs
from jaxfl.client.passes import BLOCK_ROWS
from jaxfl.client.steps import Steps
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort, Plan
from jaxfl.data import conditions, federate
from jaxfl.methods.ditto import best_step
from jaxfl.random import Stream, key_for
from jaxfl.tasks import DenseLayers, FastForms, Task, masked_mean, without_dropout
from tests.problems import batch_of

pytestmark = pytest.mark.rotating("function", weeks=4)

SIZES, INPUTS, HIDDEN, CLASSES = (5, 0, 3, 8, 1, 6, 4), 60, 7, 3
EMPTY = SIZES.index(0)
NONE = types.MappingProxyType({})
SGD = optax.sgd(0.2)
SCHEDULE = optax.exponential_decay(0.3, 1, 0.7)
LINEAR = {
    "sgd": SGD,
    "momentum": optax.sgd(0.2, momentum=0.9),
    "nesterov": optax.sgd(SCHEDULE, momentum=0.9, nesterov=True),
    "decay": optax.chain(optax.add_decayed_weights(0.1), SGD),
    "masked decay": optax.chain(optax.add_decayed_weights(0.1, lambda m: jax.tree.map(lambda p: p.ndim > 1, m)), SGD),
    "pull": optax.chain(proximal_pull(0.5), optax.sgd(0.2, momentum=0.9)),
    "pull to two": optax.chain(proximal_pull(0.5), gradient_correction(), SGD),
    "ditto's pull": best_step([optax.chain(proximal_pull(0.5), SGD)]),
    "hyperparameters": optax.inject_hyperparams(optax.sgd)(learning_rate=0.2),
    "every other": optax.chain(optax.apply_every(2), SGD),
}
OTHERS = {
    "adam": optax.adam(0.01),
    "rmsprop": optax.rmsprop(0.01),
    "adagrad": optax.adagrad(0.01),
    "sign": optax.sign_sgd(0.1),
    "clip": optax.chain(optax.clip(1.0), SGD),
    "clip by norm": optax.chain(optax.clip_by_global_norm(1e30), SGD),
    "clip by norm, tight": optax.chain(optax.clip_by_global_norm(1e-30), SGD),
    "clip by leaf": optax.chain(optax.clip_by_block_rms(1.0), SGD),
    "centred": optax.chain(optax.centralize(), SGD),
    "noise": optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(0)), SGD),
    "trust": optax.lars(0.1),
    "best of two": best_step([SGD, optax.sgd(0.4)]),
    "positive": optax.chain(SGD, optax.keep_params_nonnegative()),
}


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def promotion():
    """Optax takes a float to the power of a counter, in Adam."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@functools.cache
def federation():
    """Ragged clients with more inputs than rows, one of them without any."""
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(0.1, 0.4, (sum(SIZES), INPUTS)), rng.integers(0, CLASSES, sum(SIZES))
    rows = np.split(np.arange(len(inputs)), np.cumsum(SIZES)[:-1])
    shift = np.arange(len(SIZES)) % CLASSES
    return federate(inputs, labels, rows, rows, num_classes=CLASSES, label_shift=shift)


def network() -> Task:
    """A network with a hidden layer in float64; what its dropout leaves out depends on the key."""

    def init(key):
        keys = jax.random.split(key, 4)
        shapes = {"b": (HIDDEN,), "c": (HIDDEN, CLASSES), "d": (CLASSES,), "w": (INPUTS, HIDDEN)}
        return {
            name: 0.4 * jax.random.normal(key, shape) for key, (name, shape) in zip(keys, shapes.items(), strict=True)
        }

    def logits(model, x, key=None, products=NONE):
        first, inner = (products.get(name, lambda x, name=name: x @ model[name]) for name in "wc")
        hidden = jnp.tanh(first(x) + model["b"][None])
        kept = jnp.ones(hidden.shape, bool) if key is None else jax.random.bernoulli(key, 0.8, hidden.shape)
        return inner(jnp.where(kept, hidden, 0)) + model["d"][None]

    def loss(model, batch, key=None, products=NONE):
        found = jax.nn.log_softmax(logits(model, batch.x, key, products))
        return masked_mean(-jnp.take_along_axis(found, batch.y[:, None], 1)[:, 0], batch.mask)

    return Task(
        init, loss, lambda model, batch: logits(model, batch.x), fast=FastForms(DenseLayers(("w",), ("c",), loss))
    )


TASK = network()
PLAIN = TASK._replace(fast=TASK.fast._replace(dense=None))


initial = jax.jit(TASK.init)


def extras(optimizer_name, key):
    """The extra arguments that an optimiser takes."""
    anchor, correction = (initial(key_for(key, Stream.INIT, i)) for i in (1, 2))
    return {"anchor": anchor, "correction": correction} if optimizer_name == "pull to two" else {"anchor": anchor}


def trained(task, optimizer, data, key, epochs=4, batch_size=None, block=BLOCK_ROWS, **extra):
    """What all clients make of one model, and their losses; mapped, as in a chunk."""
    train = local_train(task, optimizer, local_epochs=epochs, batch_size=batch_size, block=block)
    start = initial(key)

    def run(client):
        return train(key_for(key, Stream.BATCHES, 0, client), start, jax.device_put(data), client, **extra)

    return jax.jit(jax.vmap(run))(jnp.arange(data.num_clients, dtype=jnp.int32))


@pytest.fixture
def used(monkeypatch):
    """Whether training was in coordinates, one entry for each time it was decided."""
    decisions, factor = [], coordinates.in_coordinates

    def watched(*args, **options):
        found = factor(*args, **options)
        decisions.append(not isinstance(found, str))
        return found

    monkeypatch.setattr(coordinates, "in_coordinates", watched)
    return decisions


def close(left, right, rtol=1e-10, atol=1e-12):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), left, right)


@pytest.mark.parametrize(
    ("name", "batch_size", "epochs"), [("nesterov", 3, 4), ("masked decay", None, 4), ("nesterov", 3, Steps(11))]
)
def test_it_is_the_same_training(name, batch_size, epochs, key, used, float64):
    same_training(LINEAR[name], federation(), key, used, **extras(name, key), batch_size=batch_size, epochs=epochs)


def same_training(optimizer, data, key, used, task=TASK, **options):
    """Checks that training in coordinates is the usual one, and trains."""
    fast, usual = (
        trained(one, optimizer, data, key, **options)
        for one in (task, task._replace(fast=task.fast._replace(dense=None)))
    )
    assert used == [True, False]
    close(fast, usual)
    start = initial(key)["w"]
    np.testing.assert_array_equal(fast[0]["w"][EMPTY], start)
    assert abs(fast[0]["w"][0] - start).max() > 1e-3


@pytest.mark.parametrize("batch_size", [None, 3])
def test_it_is_the_same_with_more_rows_than_a_block(batch_size, key, used, float64):
    """Where most places of the clients are filled. Each block of rows would draw a dropout of its own."""
    data, task = replace(federation(), filled=0.5), without_dropout(TASK)
    same_training(LINEAR["nesterov"], data, key, used, task, batch_size=batch_size, block=3)


@pytest.mark.parametrize(
    ("filled", "longest", "why"),
    [
        (0.0, 8, "a client may have more than 3 rows"),
        (0.25, 8, "no faster with 8 rows of 60 numbers and 4 steps"),
        (1.0, 7, "a client may have more than 3 rows"),
    ],
)
def test_few_do_not_make_the_others_pay(filled, longest, why, key, monkeypatch, float64):
    monkeypatch.setattr(training, "MOST_READY_ROWS", longest)
    with coordinates.decisions() as told:
        jax.eval_shape(lambda: trained(TASK, SGD, replace(federation(), filled=filled), key, block=3))
    assert told == [f"no: {why}"]


def of_conditions():
    """Late and hostile clients, in a round of another rate."""
    data = conditions.attack(conditions.straggle(federation(), 0.5), "sign-flip", 0.4, scale=2.0)
    return replace(data, rate=np.float64(0.25))


@pytest.mark.parametrize(("name", "batch_size"), [("nesterov", None), ("pull to two", 3), ("ditto's pull", 3)])
def test_inner_layers_are_the_same(name, batch_size, key, monkeypatch, float64):
    monkeypatch.setattr(coordinates, "_inner_pays", lambda *sizes, kernels: True)
    made, turn = [], coordinates.kernel_coordinates
    monkeypatch.setattr(
        coordinates, "kernel_coordinates", lambda kernel, one: made.append(kernel.name) or turn(kernel, one)
    )
    extra = extras(name, key) | {"batch_size": batch_size}
    fast, usual = (trained(task, LINEAR[name], of_conditions(), key, **extra) for task in (TASK, PLAIN))
    assert made[:2] == ["w", "c"]
    close(fast, usual)
    assert abs(fast[0]["c"][0] - initial(key)["c"]).max() > 1e-3


def test_conditions_and_a_pull_to_two_of_ones_own_are_the_same(key, used, float64):
    extra = extras("pull to two", key) | {"pull_scale": jnp.float64(0.3)}
    same_training(LINEAR["pull to two"], of_conditions(), key, used, epochs=6, **extra)


def test_a_traced_rate_and_other_optimisers_of_other_leaves_are_the_same(key, used, float64, promotion):
    labels, rates = {"b": "adam", "c": "adam", "d": "sgd", "w": "sgd"}, jnp.array([0.05, 0.3])

    def at(task, rate):
        rules = {"adam": optax.adam(0.01), "sgd": optax.sgd(rate, momentum=0.5)}
        return trained(task, optax.multi_transform(rules, labels), federation(), key)

    fast, usual = (jax.vmap(functools.partial(at, task))(rates) for task in (TASK, PLAIN))
    assert used == [True, False]
    close(fast, usual)
    assert abs(fast[0]["w"][0] - fast[0]["w"][1]).max() > 1e-3


def follows(optimizer, key):
    """Whether the kernel may be trained in coordinates."""
    model = TASK.init(key)
    others = {"pull_scale": jnp.float32(2), "judge": lambda model: sum(leaf.sum() for leaf in jax.tree.leaves(model))}
    alike = {"anchor": model, "correction": model}
    program = optimizer_programs.OptimizerProgram.of(optax.with_extra_args_support(optimizer), model, alike, others)
    return program.follows(tree.names(model).index("w"))


@pytest.mark.parametrize("name", LINEAR)
def test_what_adds_and_scales_is_told(name, key, promotion):
    assert follows(LINEAR[name], key)


@pytest.mark.rotating
@pytest.mark.parametrize("name", OTHERS)
def test_what_does_more_is_told(name, key, promotion):
    assert not follows(OTHERS[name], key)


def by_count(slopes, model):
    """Divided by how many numbers a leaf has: counted, and not read off its shape."""
    return jax.tree.map(lambda leaf: leaf / jnp.ones_like(leaf).sum(), slopes)


def by_size(model):
    """Weight decay for large leaves: as coordinates, the kernel is none."""
    return jax.tree.map(lambda leaf: leaf.size > 400, model)


@pytest.mark.parametrize(
    ("optimizer", "epochs", "why"),
    [
        pytest.param(SGD, 1, "no faster with 8 rows of 60 numbers and 1 steps", id="one epoch"),
        pytest.param(optax.adam(0.1), 4, "the optimiser does more than add and scale", id="adam"),
        pytest.param(optax.chain(optax.stateless(by_count), SGD), 4, "the optimiser looks at shapes", id="counts"),
        pytest.param(
            optax.chain(optax.add_decayed_weights(0.1, by_size), SGD),
            4,
            "the optimiser looks at shapes",
            id="looks at shapes",
        ),
    ],
)
def test_elsewhere_training_is_the_usual_one(optimizer, epochs, why, key, used, promotion):
    data = replace(federation(), inputs=federation().inputs.astype(np.float32))
    with coordinates.decisions() as told:
        shapes = jax.eval_shape(lambda: trained(TASK, optimizer, data, key, epochs))
    assert used == [False] and told == [f"no: {why}"]
    assert shapes[0]["w"].shape == (len(SIZES), INPUTS, HIDDEN)


def test_an_unused_anchor_costs_nothing(key):
    model = TASK.init(key)
    program = optimizer_programs.OptimizerProgram.of(optax.with_extra_args_support(SGD), model, {"anchor": model}, {})
    assert program.used(tree.names(model).index("w")) == []
    pulled = optimizer_programs.OptimizerProgram.of(LINEAR["pull"], model, {"anchor": model}, {})
    assert pulled.used(tree.names(model).index("w")) == ["anchor"]


def digits(rows=12):
    """Small uint8 images of rotated clients."""
    rng = np.random.default_rng(1)
    pixels, labels = rng.integers(0, 256, (6 * rows, 8, 8), np.uint8), rng.integers(0, CLASSES, 6 * rows)
    parts = np.split(np.arange(6 * rows), 6)
    return federate(pixels, labels, parts, parts, num_classes=CLASSES, rotation=np.arange(6) % 4)


class Dropped(models.MLP):
    """Not what its parent is: half of its inputs are left out."""

    def __call__(self, inputs):
        return super().__call__(inputs[:, ::2])


class Own(nn.Module):
    """Somebody's network: of one dense layer the rows are known, of the others not."""

    @nn.compact
    def __call__(self, inputs, mask, train=False):
        x = inputs.reshape(len(inputs), -1) / 255 - jnp.linspace(0, 1, 64, dtype=jnp.float32)[None]
        centred = x - x.mean(0, keepdims=True)  # depends on who else is in the batch
        dropped = nn.Dropout(0.5, deterministic=not train)(x)
        parts = [
            nn.Dense(9)(x),
            nn.Dense(9)(centred),
            nn.Dense(9)(dropped),
            nn.Dense(9)(x * mask[:, None].astype(x.dtype)),
        ]
        return nn.Dense(CLASSES)(nn.relu(sum(parts)))


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("module", "first", "inner"),
    [
        (models.MLP(hidden=(9, 5), num_classes=CLASSES), "0", "12"),
        (models.Logistic(num_classes=CLASSES), "0", ""),
        (models.StoCFLFemnistCNN(num_classes=CLASSES), "", "01"),
        (Dropped(num_classes=CLASSES), "0", "1"),
        (Own(), "0", "1234"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_dense_layers_of_a_network(module, first, inner, key):
    data = digits()
    task = classification(module, data)
    assert task.fast.dense is not None
    assert task.fast.dense.first == tuple(f"Dense_{i}/kernel" for i in first)
    assert task.fast.dense.inner == tuple(f"Dense_{i}/kernel" for i in inner)
    assert classification(module, data, fast_forms=False).fast.dense is None
    batch = batch_of(data, "train", np.int32(1), np.arange(14, dtype=np.int32))  # two of padding

    @jax.jit
    def losses(key):
        model = task.init(key)
        kernels = dict(zip(tree.names(model), jax.tree.leaves(model), strict=True))
        products = {
            name: lambda x, name=name: x @ kernels[name] for name in (*task.fast.dense.first, *task.fast.dense.inner)
        }
        unread = [jnp.zeros_like(leaf) if name in products else leaf for name, leaf in kernels.items()]
        unread = jax.tree.unflatten(jax.tree.structure(model), unread)
        return task.fast.dense.loss(unread, batch, key, products), task.loss(model, batch, key)

    close(*losses(key), 1e-6, 0)


class Query(nn.Module):
    """Rows are weighed by a learned query, so that a kernel is multiplied with other rows than those of the batch."""

    rows: int = 1

    @nn.compact
    def __call__(self, inputs):
        query = self.param("query", nn.initializers.normal(1.0), (self.rows, 64))
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (64, 64))
        weights = (jnp.tanh(query) @ kernel).mean(0, keepdims=True)
        return nn.Dense(CLASSES)(inputs.reshape(len(inputs), -1) / 255 * weights)


class Positions(nn.Module):
    """The positions of all rows are multiplied with a kernel at once."""

    @nn.compact
    def __call__(self, inputs):
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (8, 8))
        return nn.Dense(CLASSES)(jnp.tanh(inputs.reshape(-1, 8) / 255 @ kernel).reshape(len(inputs), -1))


@pytest.mark.rotating
@pytest.mark.parametrize("module", [Query(), Query(rows=3), Positions()], ids=["one", "three", "positions"])
@pytest.mark.parametrize("batch_size", [None, 3])
def test_a_kernel_that_is_multiplied_with_other_rows_trains_as_usual(module, batch_size, key, monkeypatch):
    monkeypatch.setattr(coordinates, "_inner_pays", lambda *sizes, kernels: True)
    data, optimizer = digits(), optax.sgd(0.1, momentum=0.9)
    fast, usual = (classification(module, data, fast_forms=fast) for fast in (True, False))
    assert "kernel" not in fast.fast.dense.first + fast.fast.dense.inner
    found = []
    for task in (fast, usual):
        train = local_train(task, optimizer, local_epochs=3, batch_size=batch_size)
        found.append(jax.jit(train)(key, usual.init(key), data, np.int32(1)))
    close(*found, 1e-5, 1e-6)


def test_rounds_are_the_same(key, used):
    """Of one client at a time, and of four side by side, the last of them padding."""
    data, ids, ends = digits(), [4, 0, 3, 1, 5], []
    task = classification(models.MLP(hidden=(16,), num_classes=CLASSES), data)
    for learned, chunk in ((task, 1), (task, 4), (task._replace(fast=task.fast._replace(dense=None)), 1)):
        made = methods.fedprox(learned, optax.sgd(0.1), local_epochs=5, proximal_weight=0.5)

        @jax.jit
        def run(key, data, made=made, chunk=chunk):
            cohort, state = Cohort.of(ids, Plan(chunk=chunk)), made.init(key, data)
            state, info = jax.lax.scan(lambda state, _: made.round(key, state, data, cohort), state, length=2)
            return state.model, info.loss[-1]

        ends.append(run(key, jax.device_put(data)))
        assert set(used) == {learned is task}
        used.clear()
    for fast in ends[:2]:
        close(fast, ends[2], rtol=1e-4, atol=1e-6)


def answer(method, data):
    """What is said of coordinates while a round is traced."""
    with coordinates.decisions() as told:
        state = jax.eval_shape(method.init, jax.random.key(0), data)
        jax.eval_shape(method.round, jax.random.key(0), state, data, Cohort.of([0, 1]))
    return coordinates.phrase(told)


@pytest.mark.parametrize(
    ("options", "module", "said"),
    [
        ({"local_epochs": 8}, models.Logistic, "yes"),
        ({"local_epochs": 8, "batch_size": 4}, models.Logistic, "yes"),
        (
            {"local_epochs": 1, "batch_size": 12},
            models.Logistic,
            "no: no faster with 12 rows of 64 numbers and 1 steps",
        ),
        ({"local_epochs": 8}, models.LeafFemnistCNN, "no: no faster with 12 rows of 256 numbers and 8 steps"),
    ],
)
def test_it_is_told_whether_it_is_used(options, module, said):
    data = digits()
    assert answer(methods.fedavg(classification(module(num_classes=CLASSES), data), SGD, **options), data) == said


def test_a_footprint_and_a_summary_say_so():
    data = digits()
    method = methods.fedavg(classification(models.Logistic(num_classes=CLASSES), data), SGD, local_epochs=8)
    taken = footprint(method, data, cohort=2)
    assert taken.factored == "yes" and "factored   yes" in str(taken).splitlines()
    assert run(method, data, rounds=1, cohort=2).summary["factored"] == "yes", "also of what was traced before"


def test_where_there_are_no_full_batches_it_is_said_why():
    data = digits()
    task = classification(models.Logistic(num_classes=CLASSES), data)
    assert answer(methods.fedsgd(task, SGD), data) == "no: nobody trains in local epochs"
    long = replace(data, train=replace(data.train, max_size=300))
    never = answer(methods.fedavg(task, SGD, local_epochs=8), long)
    assert never == "no: a client may have more than 256 rows"


class Rounded(nn.Module):
    """Not the same in a test: it sees whole numbers then."""

    @nn.compact
    def __call__(self, inputs, train=False):
        seen = inputs if train else jnp.round(inputs)
        return nn.Dense(CLASSES)(jnp.tanh(nn.Dense(HIDDEN)(seen)))


def test_the_rows_of_a_first_layer_are_those_of_training(key, used):
    data = replace(federation(), inputs=federation().inputs.astype(np.float32))
    fast, usual = (
        trained_as(classification(Rounded(), data, fast_forms=flag), data, key, local_epochs=20)
        for flag in (True, False)
    )
    assert used == [True, False]
    close(fast, usual, rtol=1e-4, atol=1e-5)


def trained_as(task, data, key, **options):
    train = local_train(task, SGD, batch_size=None, **options)
    return jax.jit(train)(key, jax.jit(task.init)(key), jax.device_put(data), jnp.int32(0))
