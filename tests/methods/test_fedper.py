"""FedPer: its NumPy loop, what it is without a base or without heads, and how its layers are chosen."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import jaxfl
from jaxfl import methods, sampling, tree
from jaxfl.cohort import Cohort
from jaxfl.methods.parts.vectors import last_layer
from jaxfl.models import networks
from jaxfl.tasks import Task
from tests import problems, reference
from tests.problems import compiled
from tests.reference import close, equal

RATE, ROUNDS, COHORT = 0.4, 5, 4
TASK = problems.softmax_task()
EPOCHS = {"local_epochs": 2, "batch_size": 3}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


class FedPer:
    """A shared model, and a dictionary of its own for each client; a key of both is the client's."""

    def __init__(self, setting, model, personal):
        self.setting = setting
        self.base = {name: leaf for name, leaf in model.items() if name not in personal}
        self.heads = [{name: model[name] for name in personal} for _ in setting.clients]

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        trained = [reference.train(self.setting, number, i, self.served(i))[0] for i in cohort]
        for i, model in zip(cohort, trained, strict=True):
            self.heads[i] = {name: model[name] for name in self.heads[i]}
        bases = [{name: model[name] for name in self.base} for model in trained]
        self.base = reference.average(bases, reference.weights(self.setting, cohort))

    def served(self, client):
        return self.base | self.heads[client]


def sgd():
    return optax.sgd(RATE)


def train(method, data, *, rounds=3, cohort=COHORT):
    """Returns the models that all clients are served, and the state."""
    key = jax.random.key(0)
    state, step = method.init(key, data), jax.jit(method.round)
    for _ in range(rounds):
        state, _ = step(key, state, data, sampling.sample(key, state.round, data, cohort))
    return method.client_params(state, jnp.arange(data.num_clients)), state


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize(("personal", "weighting"), [("bias", "rows"), ("kernel", "uniform")])
def test_every_round_is_the_papers(personal, weighting, batch_size, key):
    data = problems.linear_federation()
    options = {"personal": personal, "weighting": weighting, "local_epochs": 2, "batch_size": batch_size}
    method = methods.fedper(TASK, sgd(), **options)
    state, step = method.init(key, data), jax.jit(method.round)
    setting = reference.Setting(key, problems.rows_of(data), RATE, 2, batch_size, weighting)
    start = jax.tree.map(np.asarray, tree.take(method.client_params(state, jnp.arange(1)), 0))
    loop = FedPer(setting, start, {personal})
    for number in range(ROUNDS):
        cohort = sampling.sample(key, state.round, data, COHORT)
        state, _ = step(key, state, data, cohort)
        loop.round(number, cohort.ids.tolist())
        served = method.client_params(state, jnp.arange(data.num_clients))
        for client in range(data.num_clients):
            for leaf, value in loop.served(client).items():
                # rounding of float64 (1e-16), amplified by ten steps
                np.testing.assert_allclose(
                    served[leaf][client], value, rtol=1e-9, atol=1e-12, err_msg=f"round {number}, client {client}"
                )


@pytest.mark.parametrize("weighting", ["rows", "uniform"])
def test_without_personal_layers_it_is_fedavg(weighting):
    data = problems.linear_federation()
    method = methods.fedper(TASK, sgd(), personal=(), weighting=weighting, **EPOCHS)
    served, state = train(method, data)
    wanted, _ = train(methods.fedavg(TASK, sgd(), weighting=weighting, **EPOCHS), data)
    equal(served, wanted)
    assert tree.names(state.heads) == []


def test_with_all_layers_personal_it_is_local_training():
    data = problems.linear_federation()
    served, state = train(methods.fedper(TASK, sgd(), personal=".*", **EPOCHS), data)
    equal(served, train(methods.local(TASK, sgd(), **EPOCHS), data)[0])
    assert tree.names(state.base) == []


def test_nothing_is_sent_of_the_heads(key):
    data = problems.linear_federation()
    for personal, numbers in (((), 8), ("bias", 6), (".*", 0)):
        method = compiled(methods.fedper(TASK, sgd(), personal=personal, **EPOCHS))
        _, info = method.round(key, method.init(key, data), data, Cohort.of([0, 2, 3]))
        assert info.bytes_up == info.bytes_down == 3 * numbers * 8  # clients, float64


def test_everybody_has_the_same_base_and_a_head_of_its_own():
    data = problems.linear_federation()
    served, state = train(methods.fedper(TASK, sgd(), personal="kernel", **EPOCHS), data, cohort=7)
    equal(served["bias"], tree.repeat(served["bias"][0], 7))
    equal(served["bias"][0], state.base["bias"])
    assert len(np.unique(np.round(served["kernel"], 9), axis=0)) == 7


def test_a_clients_head_is_its_own_affair(key):
    """Whatever head client 3 has, client 0 trains the same; and who is not sampled keeps its head."""
    data = problems.linear_federation()
    method = compiled(methods.fedper(TASK, sgd(), personal="kernel", **EPOCHS))
    start = train(method, data)[1]
    other = start._replace(heads=tree.put(start.heads, 3, {"bias": None, "kernel": jnp.ones((3, 2))}))
    (one, _), (two, _) = (method.round(key, state, data, Cohort.of([0, 3])) for state in (start, other))
    rest = np.array([0, 1, 2, 4, 5, 6])
    equal(tree.take(one.heads, rest), tree.take(two.heads, rest))
    equal(tree.take(one.heads, rest[1:]), tree.take(start.heads, rest[1:]))
    assert not np.allclose(one.heads["kernel"][0], start.heads["kernel"][0])
    assert not np.allclose(one.heads["kernel"][3], two.heads["kernel"][3])
    assert not np.allclose(one.base["bias"], two.base["bias"]), "the base learns of the head through the client"


def test_a_client_whose_head_alone_diverges_does_not_touch_the_base(key):
    """A client with an infinite head in a leaf that its gradient passes by: the base it sends would look sound."""

    def loss(model, batch, key=None):
        return TASK.loss(model["shared"], batch, key) + 0 * model["head"].sum()

    task = Task(lambda key: {"shared": TASK.init(key), "head": jnp.zeros(1)}, loss, TASK.outputs)
    data = problems.linear_federation()
    method = compiled(methods.fedper(task, sgd(), personal="head", local_epochs=1))
    start = method.init(key, data)
    sick = start._replace(
        heads=tree.put(start.heads, 3, {"head": jnp.full(1, jnp.inf), "shared": start.heads["shared"]})
    )
    state, info = method.round(key, sick, data, Cohort.of([0, 2, 3]))
    wanted, _ = method.round(key, start, data, Cohort.of([0, 2]))
    assert int(info.diverged) == 1
    equal(state.base, wanted.base)


def test_the_server_may_have_an_optimiser():
    data = problems.linear_federation()
    options = {"personal": "bias", **EPOCHS}
    plain, step, half = (
        train(methods.fedper(TASK, sgd(), server_optimizer=server, **options), data, rounds=1)[1]
        for server in (None, optax.sgd(1.0), optax.sgd(0.5))
    )
    close(plain.base, step.base)
    equal(plain.heads, half.heads)
    start = TASK.init(reference.key_for(jax.random.key(0), reference.Stream.INIT))["kernel"]
    close(half.base["kernel"], start / 2 + plain.base["kernel"] / 2)


class Head(nn.Module):
    """Two layers, the last of which sorts first."""

    @nn.compact
    def __call__(self, inputs):
        return nn.Dense(2, name="b")(nn.Dense(4, name="zz")(inputs))


class Nested(nn.Module):
    """Names that sort in another order than the layers are made in."""

    @nn.compact
    def __call__(self, inputs):
        hidden = nn.Dense(3, name="trunk")(inputs)
        hidden = nn.Dense(3, name="a")(nn.BatchNorm(use_running_average=False, name="norm")(hidden))
        return Head(name="head")(hidden)


def personal_names(task, personal):
    data = problems.linear_federation()
    method = methods.fedper(task, sgd(), personal=personal)
    return tree.names(jax.eval_shape(method.init, jax.random.key(0), data).heads)


def test_the_last_layer_is_the_head():
    with jax.enable_x64(False):  # Flax's normalisation layers start from float32 scales
        module = Nested()
        task = Task(lambda key: module.init(key, jnp.zeros((2, 3)))["params"], TASK.loss, TASK.outputs)
        assert personal_names(task, None) == ["head/b/bias", "head/b/kernel"]
        assert personal_names(task, "head") == ["head/b/bias", "head/b/kernel", "head/zz/bias", "head/zz/kernel"]
        assert personal_names(task, ("norm", "a/bias")) == ["a/bias", "norm/bias", "norm/scale"]


@pytest.mark.parametrize("name", sorted({*jaxfl.models.MODELS} - {*networks.SEQUENCES}))
def test_the_head_of_every_network_gives_the_logits(name):
    with jax.enable_x64(False):
        data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=5)
        data = data.replace(inputs=np.zeros((len(data.labels), 28, 28, 1), np.uint8))
        task = jaxfl.classification(jaxfl.models.create(name, 10), data)
        model = jax.eval_shape(task.init, jax.random.key(0))
        head, rest = tree.partition(model, last_layer(task))
    assert [leaf.shape[-1] for leaf in jax.tree.leaves(head)] == [10, 10]
    assert name == "logistic" or not any(leaf.shape[-1] == 10 for leaf in jax.tree.leaves(rest))


def test_a_model_of_one_layer_is_all_head():
    assert personal_names(TASK, None) == ["bias", "kernel"]


def test_a_model_without_names_needs_a_choice():
    task = Task(lambda key: list(TASK.init(key).values()), TASK.loss, TASK.outputs)
    with pytest.raises(ValueError, match="personal must be given for a model that is a list .* 0, 1"):
        methods.fedper(task, sgd())
    assert personal_names(task, "1") == ["1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"personal": "Dense_7"}, "'Dense_7' matches none of bias, kernel"),
        ({"personal": ("bias", "bia")}, "'bia' matches none of bias, kernel"),
        ({"weighting": "size"}, "weighting must be"),
        ({"local_epochs": 0}, "local_epochs must be at least 1, got 0"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        methods.fedper(TASK, sgd(), **options)
