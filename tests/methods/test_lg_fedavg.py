"""LG-FedAvg: its NumPy loop, and the methods that it is at its ends: FedPer, local training, FedAvg."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import methods, tree
from jaxfl.cohort import Cohort
from jaxfl.tasks import Task
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import close, equal

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE, COHORT = 0.4, 4
TASK = problems.softmax_task()
EPOCHS = {"local_epochs": 2, "batch_size": 3}
DATA = problems.linear_federation()


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


class LGFedAvg:
    """A global model, and layers of those clients' own that have trained since the warm-up."""

    def __init__(self, setting, model, local, warmup_rounds):
        self.setting, self.model, self.local, self.warmup_rounds = setting, model, local, warmup_rounds
        self.own = {}

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        trained = [reference.train(self.setting, number, i, self.served(i))[0] for i in cohort]
        average = reference.average(trained, reference.weights(self.setting, cohort))
        if number < self.warmup_rounds:
            self.model = average
            return
        self.model = {name: self.model[name] if name in self.local else average[name] for name in average}
        for i, model in zip(cohort, trained, strict=True):
            self.own[i] = {name: model[name] for name in self.local}

    def served(self, client):
        return self.model | self.own.get(client, {})


def lg(**options):
    return methods.lg_fedavg(TASK, optax.sgd(RATE), **EPOCHS, **options)


def train(method, rounds=3):
    """Returns the models that all clients are served."""
    key = jax.random.key(0)
    state, step = method.init(key, DATA), jax.jit(method.round)
    for _ in range(rounds):
        state, _ = step(key, state, DATA, problems.sample(key, state.round, DATA, COHORT))
    return method.client_params(state, jnp.arange(DATA.num_clients))


@pytest.mark.rotating
def test_every_round_is_the_papers(key):
    """Two rounds of FedAvg; some clients are first seen much later, and begin with its last model's layers."""
    method = lg(shared="bias", warmup_rounds=2)
    state, step = method.init(key, DATA), jax.jit(method.round)
    setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, 3, "uniform")
    loop = LGFedAvg(setting, jax.tree.map(np.asarray, state.model), {"kernel"}, 2)
    for number in range(6):
        cohort = problems.sample(key, state.round, DATA, 2)
        state, _ = step(key, state, DATA, cohort)
        loop.round(number, cohort.ids.tolist())
        served = method.client_params(state, jnp.arange(DATA.num_clients))
        for client in range(DATA.num_clients):
            close(tree.take(served, client), loop.served(client))
    assert 0 < len(loop.own) < len(reference.with_rows(setting, range(7))) and loop.own.keys() == set(
        np.flatnonzero(state.trained)
    )


def test_it_is_fedper_with_the_roles_exchanged():
    fedper = methods.fedper(TASK, optax.sgd(RATE), personal="kernel", weighting="uniform", **EPOCHS)
    equal(train(lg(shared="bias", warmup_rounds=0)), train(fedper))


def test_with_nothing_shared_it_is_local_training_and_with_all_fedavg():
    equal(train(lg(shared=(), warmup_rounds=0)), train(methods.local(TASK, optax.sgd(RATE), **EPOCHS)))
    fedavg = train(methods.fedavg(TASK, optax.sgd(RATE), weighting="uniform", **EPOCHS))
    equal(train(lg(shared=".*", warmup_rounds=0)), fedavg)
    equal(train(lg(shared="bias", warmup_rounds=3)), fedavg)


def test_the_last_layer_is_shared(key):
    """In a model of a single layer that is all."""
    for task, own in ((TASK, []), (deep(), ["Dense_0/bias", "Dense_0/kernel"])):
        state = jax.eval_shape(methods.lg_fedavg(task, optax.sgd(RATE)).init, key, DATA)
        assert tree.names(state.local) == own


def deep():
    """Returns the task of a network of two layers."""
    with jax.enable_x64(False):
        data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=5)
        return jaxfl.classification(jaxfl.models.MLP(hidden=(4,), num_classes=10), data)


def test_the_warm_up_sends_all_and_then_what_is_shared(key):
    """In its first round after it, a client still begins with all of the server's average."""
    method = compiled(lg(shared="bias", warmup_rounds=1))
    state = method.init(key, DATA)
    for up, down in ((8, 8), (2, 8), (2, 2)):
        state, info = method.round(key, state, DATA, Cohort.of([0, 2, 3]))
        assert (info.bytes_up, info.bytes_down) == (3 * up * 8, 3 * down * 8)  # clients, float64


def test_refusals():
    with pytest.raises(ValueError, match=mentions("warmup_rounds", -1)):
        lg(warmup_rounds=-1)
    with pytest.raises(ValueError, match=mentions("Dense_7", "bias, kernel")):
        lg(shared="Dense_7")
    task = Task(lambda key: list(TASK.init(key).values()), TASK.loss, TASK.outputs)
    with pytest.raises(ValueError, match=mentions("shared", "list")):
        methods.lg_fedavg(task, optax.sgd(RATE))
