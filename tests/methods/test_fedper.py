"""FedPer: its NumPy loop, what it is without a base or without heads, and how its layers are chosen."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import jaxfl
from jaxfl import methods, tree
from jaxfl.cohort import Cohort
from jaxfl.methods.parts.heads import find_head
from jaxfl.methods.parts.vectors import last_layer
from jaxfl.models import adapters, networks
from jaxfl.tasks import Task
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import close, equal, follow

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE, COHORT = 0.4, 4
TASK = problems.softmax_task()
EPOCHS = {"local_epochs": 2, "batch_size": 3}
DATA = problems.linear_federation()


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


@functools.cache  # tests share what they compile
def made(name="fedper", **options):
    return compiled(getattr(methods, name)(TASK, sgd(), **{**EPOCHS, **options}))


def of(*ids):
    """Returns the cohort of these clients, as wide as all others here."""
    cohort = Cohort.of([*ids, *[1] * (COHORT - len(ids))])
    return replace(cohort, mask=jnp.asarray(np.arange(COHORT) < len(ids)))


def train(method, *, rounds=3):
    """Returns the models that all clients are served, the state, and the info of the last round; in NumPy."""
    key, info = jax.random.key(0), None
    state = method.init(key, DATA)
    for _ in range(rounds):
        state, info = method.round(key, state, DATA, problems.sample(key, state.round, DATA, COHORT))
    return jax.tree.map(np.asarray, (method.client_params(state, np.arange(DATA.num_clients)), state, info))


@pytest.mark.rotating
@pytest.mark.parametrize(("personal", "weighting", "batch_size"), [("bias", "rows", None), ("kernel", "uniform", 3)])
def test_every_round_is_the_papers(personal, weighting, batch_size, key):
    method = made(personal=personal, weighting=weighting, batch_size=batch_size)
    setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, batch_size, weighting)
    start = tree.take(train(method, rounds=0)[0], 0)
    follow(method, FedPer(setting, start, {personal}), DATA, key)


def sent(info):
    """Returns how many float64 numbers each client sends, and is sent."""
    assert info.bytes_up == info.bytes_down
    return info.bytes_up / (8 * COHORT)


def test_without_personal_layers_it_is_fedavg():
    served, state, info = train(made(personal=()))
    equal(served, train(made("fedavg"))[0])
    assert tree.names(state.heads) == [] and sent(info) == 8


def test_with_all_layers_personal_it_is_local_training():
    served, state, info = train(made(personal=".*"))
    equal(served, train(made("local"))[0])
    assert tree.names(state.base) == [] and sent(info) == 0


def test_everybody_has_the_same_base_and_a_head_of_its_own(key):
    served, state, info = train(made(personal="kernel"))
    equal(served["bias"], np.stack([state.base["bias"]] * 7))
    assert sent(info) == 2
    trained = {*np.concatenate([problems.sample(key, number, DATA, COHORT).ids for number in range(3)]).tolist()} - {1}
    # who never trained has the head that all start from
    assert len(np.unique(np.round(served["kernel"], 9), axis=0)) == len(trained) + 1 > 4


def test_a_clients_head_is_its_own_affair(key):
    """Whatever head client 3 has, client 0 trains the same; and who is not sampled keeps its head."""
    method = made(personal="kernel")
    start = train(method)[1]
    heads = start.heads["kernel"].copy()
    heads[3] = 1
    other = start._replace(heads={"bias": None, "kernel": heads})
    one, two = (jax.tree.map(np.asarray, method.round(key, state, DATA, of(0, 3))[0]) for state in (start, other))
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
    method = compiled(methods.fedper(task, sgd(), personal="head", local_epochs=1))
    start = method.init(key, DATA)
    heads = np.zeros((7, 1))
    heads[3] = np.inf
    sick = start._replace(heads={**start.heads, "head": heads})
    state, info = method.round(key, sick, DATA, of(0, 2, 3))
    wanted, _ = method.round(key, start, DATA, of(0, 2))
    assert int(info.diverged) == 1
    equal(state.base, wanted.base)


def test_the_server_may_have_an_optimiser():
    plain = made(personal="kernel")
    (start, one), half = (
        (train(plain, rounds=rounds)[1] for rounds in (0, 1)),
        made(personal="kernel", server_optimizer=optax.sgd(0.5)),
    )
    half = train(half, rounds=1)[1]
    equal(one.heads, half.heads)
    close(half.base["bias"], start.base["bias"] / 2 + one.base["bias"] / 2)


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


@pytest.mark.rotating
@pytest.mark.parametrize("name", sorted({*jaxfl.models.MODELS} - {*networks.SEQUENCES}))
def test_the_head_of_every_network_gives_the_logits(name, monkeypatch):
    monkeypatch.setattr(adapters, "_reads_padding", lambda *_: False)  # compiles the network
    with jax.enable_x64(False):
        data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=5)
        data = data.replace(inputs=np.zeros((len(data.labels), 28, 28, 1), np.uint8))
        options = problems.SMALL_NETWORKS.get(name, {})
        task = jaxfl.classification(jaxfl.models.create(name, 10, **options), data)
        found = find_head(task, "fedper")
        model = jax.eval_shape(task.init, jax.random.key(0))
        head, rest = tree.partition(model, last_layer(task))
    assert [leaf.shape[-1] for leaf in jax.tree.leaves(head)] == [10, 10]
    assert found.classes == 10 and tree.names(head) == [found.bias, found.kernel]
    assert name == "logistic" or not any(leaf.shape[-1] == 10 for leaf in jax.tree.leaves(rest))


def test_a_model_of_one_layer_is_all_head():
    assert personal_names(TASK, None) == ["bias", "kernel"]


def test_an_array_in_no_layer_is_one_by_itself():
    task = Task(lambda key: {"layer": TASK.init(key), "positions": jnp.zeros(3)}, TASK.loss, TASK.outputs)
    assert personal_names(task, None) == ["positions"]


def test_a_model_without_names_needs_a_choice():
    task = Task(lambda key: list(TASK.init(key).values()), TASK.loss, TASK.outputs)
    with pytest.raises(ValueError, match=mentions("personal", "0, 1")):
        methods.fedper(task, sgd())
    assert personal_names(task, "1") == ["1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"personal": "Dense_7"}, ("Dense_7", "bias, kernel")),
        ({"personal": ("bias", "bia")}, ("bia", "bias, kernel")),
        ({"weighting": "size"}, ("weighting", "size")),
        ({"local_epochs": 0}, ("local_epochs", 0)),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        methods.fedper(TASK, sgd(), **options)
