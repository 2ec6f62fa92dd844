"""Networks of other makes train as those of flax.linen do."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

import jaxfl
from jaxfl import tree
from jaxfl.client.corrections import proximal_pull
from jaxfl.client.part import part_task
from jaxfl.client.passes import mean_losses
from jaxfl.client.training import local_train
from jaxfl.cohort import Cohort
from jaxfl.data.clients import Batch
from jaxfl.data.synthetic import clustered_linear
from jaxfl.methods.apfl import joint_task
from jaxfl.methods.parts.vectors import last_layer
from jaxfl.methods.perfedavg import meta_task
from jaxfl.tasks import mixture, row_losses, with_row_weights
from jaxfl.testing.compare import assert_close
from tests.messages import mentions
from tests.problems import compiled

pytestmark = pytest.mark.rotating("function", weeks=4)


class Linen(nn.Module):
    rate: float = 0.0

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.relu(nn.Dense(8, name="stem")(x.reshape(x.shape[0], -1)))
        x = nn.Dropout(self.rate, deterministic=not train)(x)
        return nn.Dense(10, name="head")(x)


class NNX(nnx.Module):
    """The same; its layers are not made in the order of their names."""

    def __init__(self, *, rate=0.0, rngs):
        self.stem = nnx.Linear(64, 8, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.head = nnx.Linear(8, 10, rngs=rngs)

    def __call__(self, x):
        return self.head(self.dropout(nnx.relu(self.stem(x.reshape(x.shape[0], -1)))))


class Listed(nnx.Module):
    def __init__(self, rngs, outputs=10):
        self.layers = nnx.List([nnx.Linear(64, 8, rngs=rngs), nnx.Linear(8, outputs, rngs=rngs)])

    def __call__(self, x):
        x = x.reshape(x.shape[0], -1)
        for layer in self.layers:
            x = layer(nnx.relu(x))
        return x


class Normalised(nnx.Module):
    def __init__(self, rngs):
        self.norm, self.head = nnx.BatchNorm(64, momentum=0.9, rngs=rngs), nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x, mask):
        return self.head(self.norm(x.reshape(x.shape[0], -1), mask=mask[:, None]))


class NoMask(Normalised):
    def __call__(self, x):
        return super().__call__(x, None)


class LinenNormalised(nn.Module):
    fixed: bool | None = None

    @nn.compact
    def __call__(self, x, mask, train: bool = False):
        average = not train if self.fixed is None else self.fixed
        norm = nn.BatchNorm(use_running_average=average, momentum=0.9, name="norm")
        return nn.Dense(10, name="head")(norm(x.reshape(x.shape[0], -1), mask=mask[:, None]))


class Counting(nn.Module):
    @nn.compact
    def __call__(self, x):
        self.variable("counts", "calls", jnp.zeros, ())
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


@pytest.fixture(scope="module")
def data():
    return jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)


@pytest.fixture
def batch(key):
    return Batch(jax.random.normal(key, (6, 8, 8)), np.arange(6, dtype=np.int32), np.ones(6, bool))


def test_nnx_is_linen(data, key, batch):
    """Loss, gradient and dense layers of the same parameters."""
    one, other = jaxfl.classification(Linen(), data), jaxfl.classification(NNX, data)
    model = jax.jit(one.init)(key)
    assert jax.tree.structure(jax.eval_shape(other.init, key)) == jax.tree.structure(model)
    assert other.fast.dense[:2] == one.fast.dense[:2]
    found, wanted = (jax.jit(jax.value_and_grad(task.loss))(model, batch, key) for task in (other, one))
    assert_close(found, wanted, "a module of flax.nnx")


def test_each_key_draws_another_model(data, key):
    task = jaxfl.classification(NNX, data)
    init = jax.jit(task.init)
    one, same, other = (init(k) for k in (key, key, jax.random.fold_in(key, 1)))
    assert np.array_equal(one["stem"]["kernel"], same["stem"]["kernel"])
    assert not np.array_equal(one["stem"]["kernel"], other["stem"]["kernel"])


def test_layers_are_in_the_order_in_which_they_were_made(data):
    """FeSEM's official rule asks for the last one: `head` is before `stem` in the alphabet."""
    last = last_layer(jaxfl.classification(NNX, data))
    assert last == {"stem": {"kernel": False, "bias": False}, "head": {"kernel": True, "bias": True}}
    last = last_layer(jaxfl.classification(Listed, data))
    assert last["layers"]["1"]["kernel"] and not last["layers"]["0"]["kernel"]


def test_dropout_is_on_while_clients_train(data, key, batch):
    task = jaxfl.classification(lambda rngs: NNX(rate=0.5, rngs=rngs), data)
    model, loss = jax.jit(task.init)(key), jax.jit(task.loss)
    losses = [float(loss(model, batch, k)) for k in (key, key, jax.random.fold_in(key, 1), None, None)]
    assert losses[0] == losses[1] != losses[2]
    assert losses[3] == losses[4] not in losses[:3]


class Fixed(nnx.Module):
    """Its dropout, or that of its attention, is on or off whatever the mode is."""

    def __init__(self, rngs, off=True, attends=False):
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        if attends:
            self.dropout = nnx.MultiHeadAttention(2, 64, dropout_rate=0.5, decode=False, rngs=rngs)
        self.head, self.off = nnx.Linear(64, 10, rngs=rngs), off

    def __call__(self, x):
        return self.head(self.dropout(x.reshape(len(x), 1, -1), deterministic=self.off)[:, 0])


class Switched(Fixed):
    def __call__(self, x, train):
        self.off = not train
        return super().__call__(x)


@pytest.mark.parametrize("attends", [False, True])
def test_dropout_that_nobody_can_switch_is_refused(data, attends):
    for off, words in ((True, ("off in training",)), (False, ("on in a test",))):
        with pytest.raises(
            ValueError,
            match=mentions("MultiHeadAttention" if attends else "Dropout", *words, "deterministic"),
        ):
            jaxfl.classification(lambda rngs, off=off: Fixed(rngs, off, attends), data)
    assert jaxfl.classification(lambda rngs: Switched(rngs, attends=attends), data).fast.dense is not None
    assert nnx.Dropout(0.5, rngs=nnx.Rngs(0)).__class__ is nnx.Dropout  # nobody else's layers are watched


class Embedded(nnx.Module):
    def __init__(self, rngs, tokens=48):
        self.embedding, self.head = nnx.Embed(tokens, 4, rngs=rngs), nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(self.embedding(x).mean(1))


def test_tokens_without_an_embedding_are_refused():
    parts = np.split(np.arange(12), 2)
    texts = jaxfl.data.federate(np.arange(48).reshape(12, 4), np.arange(12) % 3, parts, parts, num_classes=3)
    assert jaxfl.classification(Embedded, texts).rows is not None
    with pytest.raises(ValueError, match=mentions("48 tokens", 47, "Embed(48, ...)")):
        jaxfl.classification(lambda rngs: Embedded(rngs, 47), texts)


def test_a_run_learns(data):
    task = jaxfl.classification(Listed, data)
    method = jaxfl.methods.ifca(task, optax.sgd(0.1), num_clusters=2)
    history = jaxfl.run(method, data, rounds=6, eval_every=3).history
    assert history[-1]["loss"] < history[0]["loss"] < 2.3


class Unmasked(nn.Module):
    """Takes a mask, and forgets it."""

    @nn.compact
    def __call__(self, x, train, mask):
        return nn.Dense(10)(nn.BatchNorm(use_running_average=not train)(x.reshape(len(x), -1)))


class HalfMasked(nn.Module):
    """Takes a mask, and forgets it at the second layer."""

    @nn.compact
    def __call__(self, x, train, mask):
        x = nn.BatchNorm(use_running_average=not train)(x.reshape(len(x), -1), mask=mask[:, None])
        return nn.Dense(10)(nn.BatchNorm(use_running_average=not train)(nn.relu(nn.Dense(4)(x))))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: NNX(rngs=nnx.Rngs(0)), ("module", "NNX", "lambda rngs: NNX")),
        (lambda: NoMask, ("module", "running averages", "__call__", "mask")),
        (lambda: Unmasked(), ("module", "running averages", "mask=mask")),
        (lambda: HalfMasked(), ("module", "running averages", "mask=mask")),
        (lambda: LinenNormalised(True), ("module", "running averages")),
        (
            lambda: LinenNormalised(False),
            ("module", "running averages"),
        ),
        (lambda: Counting(), ("module", "['counts', 'params']")),
        (lambda: Counting, ("module", "class", "Counting(...)")),
        (lambda: 3, ("flax.linen", "flax.nnx")),
        (lambda: lambda rngs: Listed(rngs, 3), ("10 classes", "(1, 3)")),
    ],
)
def test_other_networks_are_refused(data, make, said):
    with pytest.raises(ValueError, match=mentions(*said)):
        jaxfl.classification(make(), data)


def by_hand(model, data, client, steps, rate):
    """Full-batch steps of logistic regression on normalised rows, in NumPy; momentum 0.9 of the running averages."""
    rows = np.asarray(data.train.rows)[data.train.start[client] :][: data.train.size[client]]
    x, y = np.asarray(data.inputs)[rows].reshape(len(rows), -1).astype(float), np.asarray(data.labels)[rows]
    x = (x - np.asarray(data.mean)) / np.asarray(data.std)
    model = jax.tree.map(lambda leaf: np.array(leaf, float), model)
    norm, head = model["norm"], model["head"]
    mean, var = x.mean(0), x.var(0)
    normal = (x - mean) / np.sqrt(var + 1e-5)
    for _ in range(steps):
        features = normal * norm["scale"] + norm["bias"]
        logits = features @ head["kernel"] + head["bias"]
        chances = np.exp(logits - logits.max(1, keepdims=True))
        away = (chances / chances.sum(1, keepdims=True) - np.eye(10)[y]) / len(x)
        back = away @ head["kernel"].T
        head["kernel"] -= rate * features.T @ away
        head["bias"] -= rate * away.sum(0)
        norm["scale"] -= rate * (back * normal).sum(0)
        norm["bias"] -= rate * back.sum(0)
        norm["mean"], norm["var"] = 0.9 * norm["mean"] + 0.1 * mean, 0.9 * norm["var"] + 0.1 * var
    return model


@pytest.mark.parametrize(
    ("make", "sizes"),
    [(Normalised, {}), (Normalised, {"block": 8}), (LinenNormalised(), {"block": 8})],
    ids=["nnx", "nnx, many rows", "many rows"],
)
def test_running_averages_are_those_of_a_loop(data, make, sizes, key):
    """Padding is left out: clients have 20 rows, or 15, of which some are padding; weight decay leaves them alone."""
    task = jaxfl.classification(make, data)
    assert task.averages.names == {"norm/mean", "norm/var"} and task.fast.dense is None
    model = jax.jit(task.init)(key)
    ragged = data.replace(train=data.train.replace(size=data.train.size - 5 * (np.arange(8) % 2).astype(np.int32)))
    train = jax.jit(local_train(task, optax.sgd(0.2), local_epochs=3, batch_size=None, **sizes))
    for client in (0, 1):
        found, _ = train(key, model, ragged.on_device(), jnp.int32(client))
        assert_close(
            found, by_hand(model, ragged, client, 3, 0.2), "by hand, of all rows at once: blocks are other batches"
        )
    optimizer = optax.chain(optax.add_decayed_weights(1.0), optax.sgd(0.2))
    decay = jax.jit(local_train(task, optimizer, local_epochs=3, batch_size=None, **sizes))
    decayed, _ = decay(key, model, ragged.on_device(), jnp.int32(1))
    assert_close(decayed["norm"]["mean"], found["norm"]["mean"], "no optimiser moves them")


def test_no_optimiser_sees_the_running_averages(data, key):
    """Neither their decay nor their pull is in the norm by which a step is cut: the batch has its own mean."""
    task = jaxfl.classification(LinenNormalised(), data)
    moves = (optax.add_decayed_weights(0.1), proximal_pull(0.1), optax.clip_by_global_norm(0.1), optax.sgd(1.0))
    cut = optax.chain(*moves)
    train = jax.jit(local_train(task, cut, local_epochs=3, batch_size=None))
    near = jax.jit(task.init)(key)
    far = {**near, "norm": near["norm"] | {"mean": near["norm"]["mean"] + 1e3, "var": near["norm"]["var"] + 1e3}}
    one, other, third = (
        train(key, model, data.on_device(), jnp.int32(0), anchor=anchor)[0]
        for model, anchor in ((near, near), (far, far), (near, far))
    )
    for found in (other, third):
        jax.tree.map(np.testing.assert_array_equal, found["head"], one["head"])
        np.testing.assert_array_equal(found["norm"]["scale"], one["norm"]["scale"])
    np.testing.assert_array_equal(third["norm"]["mean"], one["norm"]["mean"])


def test_running_averages_go_on_beside_a_loss_that_is_replaced(data, key, batch):
    """The loss that is trained is the new one, whatever a method makes of it; the averages are those of the rows."""
    task = jaxfl.classification(LinenNormalised(), data)
    none = task._replace(loss=lambda model, batch, key=None: 0 * task.loss(model, batch, key))
    model = jax.jit(task.init)(key)
    pair = {"v": model, "w": model, "alpha": jnp.array(0.5)}
    head, norm = tree.partition(model, tree.matching(model, "head/.*"))

    @jax.jit
    def slopes(model):
        parts = (
            meta_task(none, 0.1, "first", 1),
            joint_task(none, True),
            with_row_weights(none),
            part_task(none, head),
        )
        weighted = batch._replace(weights=jnp.zeros(len(batch.mask)))
        return jax.grad(task.averages.loss)(model, batch, key), [
            jax.grad(part.averages.loss)(one, weighted, key)
            for part, one in zip(parts, (model, pair, model, norm), strict=True)
        ]

    wanted, found = slopes(model)
    for slope in (found[0], found[1]["v"], found[1]["w"], found[2], found[3]):
        np.testing.assert_allclose(slope["norm"]["mean"], wanted["norm"]["mean"], rtol=1e-6)
        assert not np.any(slope["norm"]["scale"]) and not any(np.any(leaf) for leaf in jax.tree.leaves(slope["head"]))
    inner = jaxfl.methods.pfedme(none, optax.sgd(0.1), local_epochs=1, batch_size=None)
    for method in (jaxfl.methods.fedavg(none, optax.sgd(0.1), local_epochs=1, batch_size=None), inner):
        method = compiled(method)
        state, info = method.round(key, method.init(key, data), data.on_device(), Cohort.of(range(8)))
        assert not np.any(info.loss), "nothing is lost"
        before = method.init(key, data).model
        assert_close(state.model["head"], before["head"], "the mean of eight equal ones")
        assert not np.allclose(state.model["norm"]["mean"], before["norm"]["mean"])


def test_running_averages_of_a_mixture_are_those_of_each_learner(data, key, batch):
    """Whatever weighs the rows in the loss; what else is trained has the gradient of the loss."""
    task = jaxfl.classification(LinenNormalised(), data)
    models = jax.jit(jax.vmap(task.init))(jax.random.split(key))
    rows, of_each = batch._replace(weights=jnp.arange(6.0)), row_losses(task)

    def weighted(model):
        return (of_each(model, batch, key) * rows.weights).mean()

    @jax.jit
    def slopes(models):
        alone = jax.vmap(lambda model: jax.grad(task.averages.loss)(model, batch, key))(models)
        joint = jax.vmap(lambda model: jax.grad(with_row_weights(task).averages.loss)(model, rows, key))(models)
        served = {"learners": models, "log_weights": jnp.zeros(2)}
        mixed = jax.grad(mixture(task, 2).averages.loss)(served, batch, key)
        return alone, joint, jax.vmap(jax.grad(weighted))(models), mixed["learners"]

    alone, joint, plain, mixed = slopes(models)
    for name in ("mean", "var"):
        np.testing.assert_array_equal(joint["norm"][name], alone["norm"][name])
        np.testing.assert_array_equal(mixed["norm"][name], alone["norm"][name])
    np.testing.assert_allclose(joint["head"]["kernel"], plain["head"]["kernel"], rtol=1e-5, atol=1e-6)
    assert mixture(task, 2).averages.names == {"learners/norm/mean", "learners/norm/var", "log_weights"}


def test_a_client_is_tested_with_its_running_averages(data, key, batch):
    task = jaxfl.classification(Normalised, data)

    @jax.jit
    def tested(key, batch):
        model, first = task.init(key), jax.tree.map(lambda leaf: leaf[:1], batch)
        return task.outputs(model, first), task.outputs(model, batch)[:1], jax.grad(task.loss)(model, batch)

    alone, beside, gradient = tested(key, batch)
    np.testing.assert_allclose(alone, beside, rtol=1e-5, atol=1e-6)
    assert not np.any(gradient["norm"]["mean"]) and not np.any(gradient["norm"]["var"])


def test_the_server_averages_running_averages_or_a_client_keeps_them(data, key):
    """FedBN: the layers of normalisation stay with the client. A server's optimiser leaves the averages alone."""
    task, states = jaxfl.classification(Normalised, data), {}
    options = {"local_epochs": 1, "weighting": "uniform"}
    adam = jaxfl.server.optimizers.fedadam(0.1)
    methods = {
        "fedavg": jaxfl.methods.fedavg(task, optax.sgd(0.1), **options),
        "fedadam": jaxfl.methods.fedavg(task, optax.sgd(0.1), server_optimizer=adam, **options),
        "fedbn": jaxfl.methods.fedbn(task, optax.sgd(0.1), **options),
    }
    for name, method in methods.items():
        method = compiled(method)
        states[name], info = method.round(key, method.init(key, data), data.on_device(), Cohort.of(range(8)))
        assert int(info.diverged) == 0
    own = states["fedbn"].heads["norm"]
    assert not np.allclose(own["mean"][0], own["mean"][1]) and states["fedbn"].base["norm"]["mean"] is None
    average = states["fedavg"].model
    assert_close(average["norm"]["mean"], own["mean"].mean(0), "the mean of the clients'")
    assert_close(states["fedadam"].model["norm"]["mean"], average["norm"]["mean"], "not Adam's")
    assert not np.allclose(states["fedadam"].model["head"]["kernel"], average["head"]["kernel"])
    for refused in (jaxfl.methods.fedsgd, jaxfl.methods.feddane):
        with pytest.raises(ValueError, match=mentions(refused.__name__, "running averages")):
            refused(task, optax.sgd(0.1))


def slope(init, loss, key, batch):
    return jax.value_and_grad(loss)(init(key), batch, key)


@pytest.mark.parametrize("make", [Linen(), LinenNormalised()], ids=["dense", "normalised"])
def test_bfloat16_is_near_float32_and_steps_are_in_float32(data, key, batch, make):
    """A number of bfloat16 has 8 bits: half a percent a product, and a loss is a mean of many."""
    found = {}
    for compute in ("float32", "bfloat16"):
        with jax.numpy_dtype_promotion("standard"):  # flax's batch normalisation leaves it to JAX
            task = jaxfl.classification(make, data, compute=compute)
            loss = task.loss if task.averages is None else task.averages.loss
            model = jax.eval_shape(task.init, key)
            found[compute] = jax.jit(slope, static_argnums=(0, 1))(task.init, loss, key, batch)
            assert jax.eval_shape(task.outputs, model, batch).dtype == jnp.float32
    (loss, gradient), (rough, rounded) = found["float32"], found["bfloat16"]
    assert {leaf.dtype for leaf in jax.tree.leaves(rounded)} == {jnp.dtype("float32")}
    assert 0 < abs(float(rough - loss)) < 0.01 * float(loss)
    one, other = tree.ravel(gradient), tree.ravel(rounded)
    assert one @ other > 0.99 * jnp.linalg.norm(one) * jnp.linalg.norm(other)
    assert not np.array_equal(one, other)


def test_a_network_that_casts_to_float32_is_refused_in_bfloat16(data):
    class Casts(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(10, dtype=jnp.float32)(x.reshape(x.shape[0], -1))

    with pytest.raises(ValueError, match=mentions("module", "compute='bfloat16'", "float32")):
        jaxfl.classification(Casts(), data, compute="bfloat16")
    with (
        jax.numpy_dtype_promotion("standard"),
        pytest.raises(ValueError, match=mentions("flax.nnx", "dtype=jnp.bfloat16")),
    ):
        jaxfl.classification(Normalised, data, compute="bfloat16")


def test_losses_of_a_network_of_half_precision_are_in_float32(key):
    """In its own type the sum of a client's losses stopped growing (bfloat16), or was infinite (float16)."""

    class Half(nn.Module):
        dtype: Any = jnp.float32

        @nn.compact
        def __call__(self, x):
            return nn.Dense(3, dtype=self.dtype)(x)

    many = clustered_linear(2, 2, 800, 4, 3)
    found = {}
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        task = jaxfl.classification(Half(dtype), many)
        method = jaxfl.methods.fedavg(task, optax.sgd(1e-4), local_epochs=100, batch_size=8)
        model = jax.jit(task.init)(key)
        models = jax.tree.map(lambda leaf: jnp.stack([leaf * (1 - 0.02 * number) for number in range(4)]), model)
        losses = jax.jit(mean_losses(task, block=100))(models, jax.tree.map(jnp.asarray, many), jnp.int32(1))
        found[dtype] = jaxfl.run(method, many, rounds=1, seed=0).history[-1]["train_loss"], losses
    loss, losses = found.pop(jnp.float32)
    for rough, rounded in found.values():
        assert losses.dtype == rounded.dtype == jnp.float32
        np.testing.assert_allclose(rough, loss, rtol=2e-3)
        np.testing.assert_allclose(rounded, losses, rtol=2e-3)
        assert len(set(rounded.tolist())) == 4  # IFCA tells them apart


def test_adapters_start_at_the_base_and_are_all_that_is_trained_and_sent(data, key, batch):
    module = Linen()
    base = jax.jit(module.init)(key, jnp.zeros((1, 8, 8)))["params"]
    network = jaxfl.models.lora(module, base, rank=2, alpha=4.0, layers="stem")
    task, whole = jaxfl.classification(network, data), jaxfl.classification(module, data)
    rough = jaxfl.classification(network, data, compute="bfloat16")

    @jax.jit
    def begun(key, base, batch):
        model = task.init(key)
        outputs = task.outputs(model, batch), whole.outputs(base, batch)
        return model, outputs, (rough.loss(model, batch), task.loss(model, batch))

    model, outputs, losses = begun(key, base, batch)
    assert tree.names(model) == ["stem/kernel/down", "stem/kernel/up"]
    np.testing.assert_allclose(*outputs, rtol=1e-6)
    np.testing.assert_allclose(*losses, rtol=0.01)  # bfloat16
    method = jaxfl.methods.fedavg(task, optax.sgd(0.5), local_epochs=2)
    result = jaxfl.run(method, data, rounds=4, seed=0, eval_every=2)
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    assert result.history[-1]["bytes_up"] == 4 * 8 * 4 * (64 * 2 + 2 * 8)  # rounds, clients, bytes of a float, adapters
    trained = network.merged(result.state.model)
    assert_close(trained["head"], base["head"], "has no adapter")
    change = np.asarray(trained["stem"]["kernel"] - base["stem"]["kernel"])
    assert np.linalg.matrix_rank(change, tol=1e-5 * np.abs(change).max()) == 2
    factors = result.state.model["stem/kernel"]
    np.testing.assert_allclose(change, 2 * factors["down"] @ factors["up"], rtol=1e-4, atol=1e-6)  # alpha / rank


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rank": 0}, ("rank", 0)),
        ({"rank": 9}, ("rank", 8, 9)),
        ({"alpha": 0.0}, ("alpha", 0.0)),
        ({"alpha": np.nan}, ("alpha", "nan")),
        ({"alpha": np.inf}, ("alpha", "inf")),
        (
            {"base": {"params": {"stem": {"kernel": jnp.zeros((64, 8))}}}},
            ("base", "['params']"),
        ),
        ({"base": None}, ("base", "parameters", "none")),
        ({"base": {"stem": {"kernel": np.zeros((64, 8), int)}}}, ("base", "int64")),
        ({"layers": "bias"}, ("layers", "bias")),
        ({"base": {"stem": {"kernel": jnp.zeros((2, 2))}}}, ("base", "head/bias", "(10,)")),
        ({"module": LinenNormalised()}, ("module", "running averages")),
    ],
)
def test_adapters_refuse(data, key, change, said):
    arguments = {"module": Linen(), "base": Linen().init(key, jnp.zeros((1, 8, 8)))["params"], **change}
    with pytest.raises(ValueError, match=mentions(*said)):
        jaxfl.classification(jaxfl.models.lora(**arguments), data)


@pytest.mark.parametrize(("option", "value"), [("rank", 2.5), ("rank", True), ("alpha", "high"), ("layers", 3)])
def test_options_of_adapters_are_refused_by_type(option, value):
    with pytest.raises(TypeError, match=mentions("patterns" if option == "layers" else option)):
        jaxfl.models.lora(Linen(), {"stem": {"kernel": jnp.zeros((64, 8))}}, **{option: value})


def test_adapters_have_no_higher_rank_than_their_kernel():
    """Two classes, or one number to predict, make a head of one or two columns."""
    base = {"stem": {"kernel": jnp.ones((64, 8))}, "head": {"kernel": jnp.ones((8, 2))}}
    network = jaxfl.models.lora(Linen(), base, rank=4)
    model = jax.jit(network._init)(jax.random.key(0))
    shapes = {name: (one["down"].shape, one["up"].shape) for name, one in model.items()}
    assert shapes == {"stem/kernel": ((64, 4), (4, 8)), "head/kernel": ((8, 2), (2, 2))}
    assert_close(network.merged(model), base, "they start at the base")


def linear(key):
    return {"kernel": 0.1 * jax.random.normal(key, (64, 10))}


def product(model, batch, key):
    return batch.x.reshape(len(batch.x), -1) @ model["kernel"]


@pytest.mark.parametrize(
    ("init", "apply", "said"),
    [
        (
            product,
            linear,
            ("init", "<function product", "Functions(init, apply)"),
        ),
        (None, product, ("init", "None")),
        (linear, lambda model, x: x, ("apply", "(model, batch, key)")),
        (lambda key: linear(key) | {"steps": jnp.int32(0)}, product, ("module", "int32", "steps")),
        (lambda key: linear(key) | {"steps": 3}, product, ("module", "int32")),
        (lambda key: None, product, ("module", "parameters", "none")),
        (linear, lambda *all: (product(*all), 0), ("module", "tuple", "[B, ...]")),
    ],
)
def test_functions_that_are_no_network_are_refused(data, init, apply, said):
    with pytest.raises(ValueError, match=mentions(*said)):
        jaxfl.classification(jaxfl.models.Functions(init, apply), data)


class StemAndHead(nn.Module):
    """A network whose last layer is not the last by name."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(6, name="stem")(x.reshape(len(x), -1)))
        return nn.Dense(10, name="head")(x)


def test_adapters_of_a_list_of_layers(data):
    """flax.nnx counts them; here names are text."""
    base = nnx.to_pure_dict(nnx.state(Listed(rngs=nnx.Rngs(0)), nnx.Param))
    assert list(base["layers"]) == [0, 1]
    task, whole = (jaxfl.classification(one, data) for one in (jaxfl.models.lora(Listed, base, rank=2), Listed))
    model, batch = task.init(jax.random.key(1)), data.batch(data.train, 0, np.arange(4))
    assert list(model) == ["layers/0/kernel", "layers/1/kernel"]
    wanted = whole.outputs({"layers": {str(place): layer for place, layer in base["layers"].items()}}, batch)
    np.testing.assert_allclose(task.outputs(model, batch), wanted, rtol=1e-6)


def test_a_part_of_a_class_is_a_function_of_rngs(data):
    assert jaxfl.classification(functools.partial(Listed, outputs=10), data).rows.inputs == (8, 8)
    with pytest.raises(ValueError, match=mentions("10 classes", "(1, 3)")):
        jaxfl.classification(functools.partial(Listed, outputs=3), data)


@pytest.mark.parametrize("how", ["as it is", "start_from", "lora"])
def test_the_last_layer_is_the_one_that_was_made_last(how, tmp_path):
    """Also of a model from a file, and of adapters: unflattened dictionaries are sorted by name."""
    data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=20)
    task = jaxfl.classification(StemAndHead(), data)
    model = task.init(jax.random.key(0))
    if how == "start_from":
        jaxfl.models.save_weights(tmp_path / "a.safetensors", model)
        task = jaxfl.start_from(task, tmp_path / "a.safetensors")
    if how == "lora":
        task = jaxfl.classification(jaxfl.models.lora(StemAndHead(), model), data)
    chosen = last_layer(task)
    named = [name for name, yes in zip(tree.names(chosen), jax.tree.leaves(chosen), strict=True) if yes]
    assert named and all(name.startswith("head/") for name in named)
