"""What a flax module is told, and what of it would be lost without a word."""

import contextlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from scipy import special
from sklearn import metrics as sk
from sklearn.utils import class_weight

import jaxfl
from jaxfl.client.passes import rows_at_once
from jaxfl.data import federate
from jaxfl.data.clients import Batch
from jaxfl.models import layers
from jaxfl.simulation.evaluation.evaluate import client_totals, evaluator
from jaxfl.simulation.evaluation.metrics import Totals, summarise
from jaxfl.tasks import ACCURACY, TASKS, Metrics, mixture, row_losses, without_dropout
from jaxfl.tasks.metrics import of_targets
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=4)

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
    model = jax.eval_shape(task.init, jax.random.key(0))
    jax.eval_shape(task.loss, model, BATCH, jax.random.key(1))
    assert SEEN == [True, True, True, False, False, (12,)]
    jax.eval_shape(task.outputs, model, BATCH)
    assert SEEN == [False, False, False, True, True, (12,)]


@pytest.mark.parametrize("attends", [False, True])
def test_dropout_under_deterministic_is_on_in_training_alone(attends):
    task = jaxfl.classification(Deterministic(attends=attends), FLOATS)
    model, loss = jax.jit(task.init)(jax.random.key(0)), jax.jit(task.loss)
    losses = [float(loss(model, BATCH, key)) for key in (None, None, jax.random.key(1), jax.random.key(2))]
    assert losses[0] == losses[1] and len({*losses}) == 3


@pytest.mark.parametrize("attends", [False, True])
@pytest.mark.parametrize(("fixed", "words"), [(True, ("off in training",)), (False, ("on in a test",))])
def test_dropout_that_nobody_can_switch_is_refused(fixed, words, attends):
    with pytest.raises(ValueError, match=mentions("module", "dropout", *words, "__call__", "train: bool")):
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
    table = jax.jit(task.init)(jax.random.key(0))
    np.testing.assert_allclose(
        jax.jit(task.outputs)(table, batch), table["Embed_0"]["embedding"][tokens[6:]].sum(1), rtol=1e-6
    )


@pytest.mark.parametrize("network", [jaxfl.models.CharRNN, jaxfl.models.Transformer])
def test_tokens_without_an_embedding_are_refused(network):
    data = federate(np.arange(48).reshape(12, 4), LABELS, PARTS, PARTS, num_classes=3, name="texts")
    with pytest.raises(ValueError, match=mentions("module", "48 tokens", 3, "vocabulary=48")):
        jaxfl.classification(network(num_classes=3, last=True), data)
    assert jaxfl.classification(network(num_classes=3, last=True, vocabulary=48), data).rows is not None


def test_negative_tokens_are_refused_where_they_would_be_counted_from_the_end():
    padded = np.arange(48).reshape(12, 4) - 1
    data = federate(padded, LABELS, PARTS, PARTS, num_classes=3, name="texts")
    with pytest.raises(ValueError, match=mentions("inputs", "texts", -1)):
        jaxfl.classification(jaxfl.models.CharRNN(num_classes=3, last=True, vocabulary=48), data)
    assert jaxfl.classification(jaxfl.models.Logistic(num_classes=3), data).rows is not None


@pytest.mark.parametrize("least", [0, -1, -2])
def test_rows_that_may_be_tokens_are_told_to_be_taken_for_numbers(least):
    rows = np.arange(48).reshape(12, 4) % 9 + least
    data = federate(rows, LABELS, PARTS, PARTS, num_classes=3, name="texts")
    said = mentions("texts", least, 8 + least, "model=auto", f"vocabulary={9 + least}", "astype(np.float32)")
    with pytest.warns(UserWarning, match=said) if least > -2 else contextlib.nullcontext():
        jaxfl.classification(jaxfl.models.AutoNetwork(num_classes=3), data)
    for suits in (
        federate(rows.astype(np.float32), LABELS, PARTS, PARTS, num_classes=3),
        federate(rows % 2, LABELS, PARTS, PARTS, num_classes=3),
        federate(rows, LABELS, PARTS, PARTS, num_classes=3, std=2.0),
    ):
        jaxfl.classification(jaxfl.models.AutoNetwork(num_classes=3), suits)  # a warning would fail


def test_metrics_that_count_for_no_rows_are_refused():
    def losses(outputs, batch):
        return outputs[:, 0]

    def counts(outputs, batch):
        return {"each": outputs[:, 0], "all": outputs.sum()}

    with pytest.raises(ValueError, match=mentions("metrics", "counts", "()", "[B, ...]")):
        jaxfl.supervised(nn.Dense(3), FLOATS, losses, Metrics(counts, lambda sums, rows: sums))
    with pytest.raises(TypeError, match=mentions("metrics", "dict", "jaxfl.Metrics")):
        jaxfl.supervised(nn.Dense(3), FLOATS, losses, {"a": 1})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (lambda sums, rows: sums["seen"] / rows, ("AttributeError", "'items'")),
        (lambda sums, rows: {"q": sums["see"] / rows}, ("KeyError", "'see'")),
        (lambda sums, rows: {"q": {"of": sums["seen"]}}, ("TypeError", "float()")),
    ],
    ids=["array", "misspelt", "nested"],
)
def test_metrics_are_tried_before_anything_is_trained(values, said):
    metrics = Metrics(lambda outputs, batch: {"seen": outputs[:, 0] > 0}, values)
    with pytest.raises(ValueError, match=mentions("metrics.values", "{'seen': '[N]'}", *said)):
        jaxfl.supervised(nn.Dense(3), FLOATS, lambda outputs, batch: outputs[:, 0], metrics)


def test_outputs_with_other_axes_are_told_apart_from_a_wrong_number_of_them():
    with pytest.raises(ValueError, match=mentions("module", "(1, 2)", "num_classes=3")):
        jaxfl.classification(nn.Dense(2), FLOATS)
    images = federate(np.zeros((12, 2, 4), np.float32), LABELS, PARTS, PARTS, num_classes=3)
    with pytest.raises(ValueError, match=mentions("module", "outputs", "(1, 2, 3)")):
        jaxfl.classification(nn.Dense(3), images)


def test_a_column_of_classes_is_told_how_to_be_classes():
    for given in ({}, {"num_classes": 3}):
        with pytest.raises(ValueError, match=mentions("classes", "labels[:, 0]")):
            federate(np.zeros((12, 4), np.float32), LABELS[:, None], PARTS, PARTS, **given)
    with pytest.raises(ValueError, match=mentions("test", "None")):
        federate(np.zeros((12, 4), np.float32), LABELS, PARTS, None, num_classes=3)


def test_integers_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=mentions("inputs", "32 bits", 4294967296)):
        federate(np.array([[0], [2**32]]), np.array([0, 1]), [np.arange(2)], [np.arange(2)], num_classes=2)


class Given(NamedTuple):
    """What a network returns of each row, and what is right."""

    outputs: np.ndarray
    labels: np.ndarray


RNG = np.random.default_rng(0)
TOKENS = np.where(RNG.random((12, 3)) < 0.3, -1, RNG.integers(0, 4, (12, 3)))
TOKENS[0] = -1  # a row of which nothing is learned
GIVEN = {
    "regression": Given(RNG.normal(size=(12, 2)), 1000 + RNG.normal(size=(12, 2))),
    "multilabel": Given(RNG.normal(size=(12, 5)), RNG.random((12, 5)) < 0.4),
    "next_token": Given(RNG.normal(size=(12, 3, 4)), TOKENS),
    "classification": Given(RNG.normal(size=(12, 3)), LABELS),
}


def made(kind):
    """Returns the task of a network that returns row i of what is given for the i-th row, under its scale."""
    given, outputs = GIVEN[kind], jnp.asarray(GIVEN[kind].outputs, jnp.float32)
    shift = 1000.0 if kind == "regression" else 0.0
    inputs = np.repeat(np.arange(12)[:, None], 3, 1)  # tokens for all: the number of the row
    parts = [np.arange(0, 5), np.arange(5, 12), np.array([], int)]
    classes = {"num_classes": outputs.shape[-1]} if kind in ("classification", "next_token") else {}
    data = federate(inputs, given.labels, parts, parts, name="made", **classes)

    def apply(model, batch, key):
        return model["scale"] * outputs[batch.x[:, 0]] + shift

    network = jaxfl.models.Functions(lambda key: {"scale": jnp.ones(())}, apply)
    return TASKS[kind](network, data), data, parts, shift


def measured(kind):
    """Evaluates the task of what is given; three clients."""
    given = GIVEN[kind]
    task, data, parts, shift = made(kind)
    method = jaxfl.methods.fedavg(task, optax.sgd(0.1))
    state = method.init(jax.random.key(0), data)
    return evaluator(method, data.on_device())(jax.random.key(0), state), parts, given.outputs + shift, given.labels


def test_metrics_of_regression_are_those_of_scikit_learn():
    found, parts, outputs, labels = measured("regression")
    for client, rows in enumerate(parts[:2]):
        np.testing.assert_allclose(found.mse[client], sk.mean_squared_error(labels[rows], outputs[rows]), rtol=1e-5)
        np.testing.assert_allclose(found.mae[client], sk.mean_absolute_error(labels[rows], outputs[rows]), rtol=1e-5)
        wanted = sk.r2_score(labels[rows], outputs[rows], multioutput="variance_weighted")
        np.testing.assert_allclose(found.r2[client], wanted, rtol=1e-4)  # about 1000, with a spread of 1, in float32
    assert np.isnan([found.mse[2], found.r2[2], found.loss[2]]).all() and found.rows.tolist() == [5, 7, 0]
    got = found.metrics
    np.testing.assert_allclose(got["micro_mse"], sk.mean_squared_error(labels, outputs), rtol=1e-5)
    np.testing.assert_allclose(got["macro_mse"], found.mse[:2].mean())
    np.testing.assert_allclose(
        got["micro_r2"], sk.r2_score(labels, outputs, multioutput="variance_weighted"), rtol=1e-4
    )
    assert got["worst_decile_mse"] == found.mse[:2].max(), "the worst error is the highest"
    np.testing.assert_allclose(got["loss"], got["micro_mse"], rtol=1e-6)
    assert found.main == "mse" and got["clusters"][0]["micro_mse"] == got["micro_mse"]


def test_metrics_of_several_labels_are_those_of_scikit_learn():
    found, parts, outputs, labels = measured("multilabel")
    for client, rows in enumerate(parts[:2]):
        truth, guess = labels[rows], outputs[rows] > 0
        there = np.flatnonzero(truth.any(0))
        np.testing.assert_allclose(found.accuracy[client], (truth == guess).mean())
        np.testing.assert_allclose(found.f1[client], sk.f1_score(truth, guess, average="micro"))
        wanted = sk.f1_score(truth[:, there], guess[:, there], average="macro", zero_division=0)
        np.testing.assert_allclose(found.label_f1[client], wanted)
    np.testing.assert_allclose(found.metrics["micro_f1"], sk.f1_score(labels, outputs > 0, average="micro"))
    chances = 1 / (1 + np.exp(-outputs))
    losses = [sk.log_loss(labels[:, one], chances[:, one]) for one in range(5)]
    np.testing.assert_allclose(found.metrics["loss"], np.mean(losses), rtol=1e-5)


def test_metrics_of_tokens_are_by_token_and_the_loss_by_row():
    found, parts, outputs, labels = measured("next_token")
    chances = np.exp(outputs) / np.exp(outputs).sum(2, keepdims=True)
    known = labels >= 0
    losses = -np.log(np.take_along_axis(chances, np.maximum(labels, 0)[:, :, None], 2)[:, :, 0])
    by_row = np.where(known, losses, 0).sum(1) / np.maximum(known.sum(1), 1)
    hits = outputs.argmax(2) == labels
    for client, rows in enumerate(parts[:2]):
        there = known[rows]
        np.testing.assert_allclose(found.accuracy[client], hits[rows][there].mean())
        np.testing.assert_allclose(found.perplexity[client], np.exp(losses[rows][there].mean()), rtol=1e-5)
        np.testing.assert_allclose(found.loss[client], by_row[rows].mean(), rtol=1e-5)
    np.testing.assert_allclose(found.metrics["micro_perplexity"], np.exp(losses[known].mean()), rtol=1e-5)
    np.testing.assert_allclose(found.metrics["micro_accuracy"], hits[known].mean())


@pytest.mark.parametrize("kind", TASKS)
def test_losses_of_rows_and_mixtures(kind):
    task, data, _, shift = made(kind)
    batch = data.on_device().batch(data.train, 0, jnp.arange(8))  # of five rows
    batch = batch._replace(x=jnp.where(batch.mask[:, None], batch.x, 11))
    scales, weights = np.array([1.3, 0.4], np.float32), np.array([0.8, 0.2])
    models = {"scale": jnp.asarray(scales)}

    @jax.jit
    def seen(model):
        alone = task._replace(losses=None)  # batches of one row each
        return row_losses(task)(model, batch), row_losses(alone)(model, batch), task.loss(model, batch, None)

    losses = []
    for one in scales:
        found, alone, loss = seen({"scale": one})
        np.testing.assert_allclose(found, alone, rtol=1e-5)
        np.testing.assert_allclose(found[:5].mean(), loss, rtol=1e-5)
        assert found[5:].tolist() == [0, 0, 0]
        losses.append(found[:5])

    each = np.stack([one * GIVEN[kind].outputs[:5] + shift for one in scales])
    if kind == "multilabel":
        wanted = special.logit(np.tensordot(weights, special.expit(each), 1))
    elif kind == "regression":
        wanted = np.tensordot(weights, each, 1)
    else:
        wanted = np.log(np.tensordot(weights, special.softmax(each, -1), 1))
    both = mixture(task, 2)
    model = {"learners": models, "log_weights": jnp.log(jnp.asarray(7 * weights, jnp.float32))}  # of any scale
    outputs, (loss, gradient) = jax.jit(lambda m: (both.outputs(m, batch), jax.value_and_grad(both.loss)(m, batch)))(
        model
    )
    np.testing.assert_allclose(outputs[:5], wanted, rtol=1e-4, atol=1e-5)  # of about 1, in float32
    np.testing.assert_allclose(loss, -np.log(weights @ np.exp(-np.stack(losses))).mean(), rtol=1e-4)
    assert gradient["log_weights"].tolist() == [0, 0] and (gradient["learners"]["scale"] != 0).all()
    if kind == "classification":
        np.testing.assert_allclose(loss, -wanted[range(5), LABELS[:5]].mean(), rtol=1e-5)


def test_rows_without_dropout_and_with_keys_of_their_own():
    task = jaxfl.classification(Deterministic(), FLOATS)
    model, key = jax.jit(task.init)(jax.random.key(0)), jax.random.key(1)
    tasks = (task, without_dropout(task), task._replace(losses=None))

    @jax.jit
    def seen(model):
        return (
            task.loss(model, BATCH, key),
            task.loss(model, BATCH, None),
            *(row_losses(t)(model, BATCH, key) for t in tasks),
        )

    dropped, whole, told, still, alone = seen(model)
    np.testing.assert_allclose(told.mean(), dropped, rtol=1e-6)
    np.testing.assert_allclose(still.mean(), whole, rtol=1e-6)
    assert len({*np.asarray(alone[::3]).tolist()}) > 1, "equal rows of one class drop different inputs"


def test_targets_that_are_all_the_same_have_no_r2_and_are_left_out_of_it():
    center = np.zeros(1)
    metrics = of_targets(center)
    sums = {"around": [[6.0], [3.0]], "squares": [[12.0], [5.0]], "squared": [[3.0], [1.0]], "absolute": [[3.0], [1.0]]}
    values = metrics.values({name: np.array(one) for name, one in sums.items()}, np.array([3, 3]))
    assert np.isnan(values["r2"][0]) and values["r2"][1] == 1 - 1 / 2 and values["mse"].tolist() == [1.0, 1 / 3]
    totals = Totals({name: np.array(one) for name, one in sums.items()}, np.array([3.0, 1.0]), np.array([3, 3]))
    data = federate(INPUTS, np.ones(12), PARTS, PARTS)
    found = summarise(metrics, totals, np.zeros(2, int), data).metrics
    assert found["macro_r2"] == values["r2"][1]
    lost = totals._replace(loss=np.array([np.nan, 1.0]))
    assert np.isnan(summarise(metrics, lost, np.zeros(2, int), data).metrics["macro_r2"]), "a lost client is not hidden"


def test_rows_of_many_clients_define_what_those_of_one_do_not():
    """A client with one row has no R2; all of them together have."""
    one = {"around": [[1.0], [-1.0]], "squares": [[1.0], [1.0]], "squared": [[0.5], [0.5]], "absolute": [[0.7], [0.7]]}
    sums = {name: np.array(values) for name, values in one.items()}
    data = federate(INPUTS, np.ones(12), PARTS, PARTS)
    totals = Totals(sums, np.array([1.0, 1.0]), np.array([1, 1]))
    found = summarise(of_targets(np.zeros(1)), totals, np.zeros(2, int), data).metrics
    assert found["micro_r2"] == 1 - 1.0 / 2.0 and found["macro_r2"] is None


def test_a_task_refuses_labels_of_another_kind_and_outputs_of_another_shape():
    floats = federate(INPUTS, np.ones(12), PARTS, PARTS)
    with pytest.raises(ValueError, match=mentions("classification", "jaxfl.regression")):
        jaxfl.classification(jaxfl.models.Logistic(num_classes=1), floats)
    with pytest.raises(ValueError, match=mentions("module", "1 targets", "(1, 10)")):
        jaxfl.regression(jaxfl.models.Logistic(num_classes=10), floats)
    with pytest.raises(ValueError, match=mentions("losses", "(1, 1)", "[B]")):
        jaxfl.supervised(jaxfl.models.Logistic(num_classes=1), floats, lambda outputs, batch: outputs, ACCURACY)
    with pytest.raises(ValueError, match=mentions("metrics", "()", "(1,)", "'m'")):
        totals = Totals({}, np.ones(1), np.ones(1, int))
        summarise(Metrics(lambda outputs, batch: {}, lambda sums, rows: {"m": 1.0}), totals, np.zeros(1, int), floats)
    for name, lower, said in (
        ("m", ("n",), ("lower", "n")),
        ("m", "m", ("lower", "got 'm'")),
        ("group", (), ("metrics", "group")),
        ("caf\udce9", (), ("metrics", r"'caf\udce9'")),
    ):
        metrics = Metrics(lambda outputs, batch: {}, lambda sums, rows, name=name: {name: np.ones(1)}, lower)
        with pytest.raises(ValueError, match=mentions(*said)):
            summarise(metrics, totals, np.zeros(1, int), floats)


@pytest.mark.parametrize("kind", ["regression", "multilabel"])
def test_dense_layers_of_other_tasks_are_found_and_compute_the_same(kind):
    data = federate(INPUTS, GIVEN[kind].labels, PARTS, PARTS)
    task = TASKS[kind](jaxfl.models.MLP(hidden=(4,), num_classes=data.num_classes), data)
    assert task.fast.dense.first == ("Dense_0/kernel",) and task.fast.dense.inner == ("Dense_1/kernel",)

    @jax.jit
    def losses(key, data):
        model, batch = task.init(key), data.batch(data.train, 0, jnp.arange(8))
        names = ("Dense_0/kernel", "Dense_1/kernel")
        products = {name: lambda x, name=name: x @ model[name[:7]]["kernel"] for name in names}
        return task.fast.dense.loss(model, batch, None, products), task.loss(model, batch)

    np.testing.assert_allclose(*losses(jax.random.key(0), data), rtol=1e-6)


def test_a_network_that_looks_at_several_rows_is_given_all_of_them():
    data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=20)

    class Normalised(nn.Module):
        @nn.compact
        def __call__(self, inputs, mask=None):
            outputs = nn.Conv(8, (3, 3))(inputs.reshape(-1, 8, 8, 1) / 16)
            return nn.Dense(10)(layers.BatchNorm()(outputs, mask).mean((1, 2)))

    class Plain(nn.Module):
        @nn.compact
        def __call__(self, inputs, mask=None):
            return nn.Dense(10)(nn.Conv(8, (3, 3))(inputs.reshape(-1, 8, 8, 1) / 16).mean((1, 2)))

    tasks = [jaxfl.classification(module, data) for module in (Normalised(), Plain())]
    model = tasks[0].init(jax.random.key(0))
    assert tasks[0].fast.replaced and tasks[0].fast.widest == 0 < tasks[1].fast.widest
    assert rows_at_once(tasks[0], model, 1000) == 1000, "blocks would be batches with statistics of their own"


def test_a_test_goes_through_the_network_once_and_has_what_was_replaced():
    task = jaxfl.classification(jaxfl.models.Logistic(num_classes=3), FLOATS)
    model = jax.tree.map(
        lambda leaf: jnp.arange(leaf.size, dtype=leaf.dtype).reshape(leaf.shape), task.init(jax.random.key(0))
    )

    def totals(task, model):
        return client_totals(jaxfl.methods.fedavg(task, optax.sgd(0.1)), model, FLOATS.on_device(None), jnp.int32(0))

    assert str(jax.make_jaxpr(lambda model: totals(task, model))(model)).count("dot_general") == 1
    straight = totals(task, model)
    np.testing.assert_allclose(straight.loss, 6 * task.loss(model, jax.tree.map(lambda leaf: leaf[:6], BATCH), None))
    twice = totals(task._replace(loss=lambda *args: 2 * task.loss(*args)), model)
    np.testing.assert_allclose(twice.loss, 2 * straight.loss, rtol=1e-6)
    turned = totals(task._replace(outputs=lambda *args: -task.outputs(*args)), model)
    assert float(turned.loss) == float(straight.loss)
    assert str(turned.sums) != str(straight.sums)


def test_a_loss_that_is_replaced_is_the_one_that_is_trained():
    """The network's dense layers belong to the loss that it was made with."""
    data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=20)
    task = jaxfl.classification(jaxfl.models.MLP((8,), 10), data)

    def penalised(model, batch, key=None):
        return task.loss(model, batch, key) + 5.0 * sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(model))

    def size(one):
        method = jaxfl.methods.fedavg(one, optax.sgd(0.05), local_epochs=5)
        result = jaxfl.run(method, data, rounds=2, plan=jaxfl.Plan())
        return sum(np.square(leaf).sum() for leaf in jax.tree.leaves(result.state.model)), result.summary["factored"]

    (plain, before), (small, after) = size(task), size(task._replace(loss=penalised))
    assert before == "yes" and after == "no: the loss has been replaced" and small < plain / 100


@pytest.mark.parametrize("kind", ["bool", "uint8", "int8", "float16", "float32"])
def test_counts_of_any_type_are_added_up(kind):
    data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=440, test_share=0.7)
    task = jaxfl.classification(jaxfl.models.Logistic(10), data)
    metrics = jaxfl.Metrics(
        lambda outputs, batch: {"seen": jnp.ones(len(batch.y), kind)}, lambda sums, rows: {"share": sums["seen"] / rows}
    )
    method = jaxfl.methods.fedavg(task._replace(metrics=metrics), optax.sgd(0.1), local_epochs=1)
    result = jaxfl.run(method, data, rounds=1, plan=jaxfl.Plan())
    assert result.evaluation.rows.min() > 256 and result.evaluation.metrics["micro_share"] == 1


class Centred(nn.Module):
    """Subtracts the mean of a batch, in training, or always."""

    always: bool

    @nn.compact
    def __call__(self, x, mask, train):
        if train or self.always:
            own = mask[:, None].astype(x.dtype)
            x = x - (x * own).sum(0, keepdims=True) / own.sum()
        return nn.Dense(3)(x)


@pytest.mark.parametrize("always", [False, True])
def test_a_batch_that_is_looked_at_in_training_alone_is_a_whole_one_too(always):
    """Full batches of more rows than a block are not put together from blocks, each with a mean of its own."""
    assert jaxfl.classification(Centred(always), FLOATS).whole
    assert not jaxfl.classification(nn.Dense(3), FLOATS).whole


@pytest.mark.parametrize("weights", ["balanced", (0.5, 2.0, 0.0)])
def test_losses_of_classes_weigh_as_scikit_learn_has_it(weights):
    """The gradient is that of the sum of weighted losses over the number of rows, up to float32."""
    labels = np.array([0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 2])
    parts = [np.arange(0, 5), np.arange(5, 9), np.arange(9, 12)]  # the last one is held out
    inputs, out = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32), np.array([False, False, True])
    data = federate(inputs, labels, parts, parts, num_classes=3, held_out=out)
    task = jaxfl.classification(nn.Dense(3), data, class_weights=weights)
    batch = Batch(jnp.asarray(inputs), jnp.asarray(labels, jnp.int32), jnp.arange(12) < 10)  # two of padding
    kernel = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    model = {"kernel": jnp.asarray(kernel), "bias": jnp.zeros(3)}
    loss, slope = jax.value_and_grad(task.loss)(model, batch, jax.random.key(0))
    if weights == "balanced":
        weights = class_weight.compute_class_weight("balanced", classes=np.arange(3), y=labels[:9])
    factors = np.asarray(weights)[labels[:10]]
    shares = special.softmax((inputs[:10] @ kernel).astype(float), 1)
    np.testing.assert_allclose(loss, (factors * -np.log(shares[np.arange(10), labels[:10]])).sum() / 10, rtol=1e-5)
    away = (shares - np.eye(3)[labels[:10]]) * factors[:, None] / 10
    np.testing.assert_allclose(slope["kernel"], inputs[:10].T @ away, rtol=1e-5, atol=1e-6)
