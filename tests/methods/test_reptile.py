"""FedDist and FedDWS against their NumPy loop, and FedAvg, which they are steps towards."""

import functools

import jax
import numpy as np
import optax
import pytest

from jaxfl import methods
from jaxfl.cohort import Cohort
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import average, close, combine, follow

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE = 0.4
TASK = problems.softmax_task()
DATA = problems.linear_federation()
EPOCHS = {"local_epochs": 2, "batch_size": 3}
WEIGHTING = {"feddist": "uniform", "feddws": "rows"}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


class Reptile:
    def __init__(self, setting, model, step_size):
        self.setting, self.model, self.step_size = setting, model, step_size

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        trained = [reference.train(self.setting, number, i, self.model)[0] for i in cohort]
        away = [combine([(1, one), (-1, self.model)]) for one in trained]
        step = average(away, reference.weights(self.setting, cohort))
        self.model = combine([(1, self.model), (self.step_size, step)])

    def served(self, client):
        return self.model


@functools.cache  # tests share what they compile
def made(name, **options):
    return compiled(getattr(methods, name)(TASK, optax.sgd(RATE), **{**EPOCHS, **options}))


@pytest.mark.rotating
@pytest.mark.parametrize(("name", "batch_size"), [("feddist", None), ("feddws", 3)])
def test_every_round_is_the_papers(name, batch_size, key):
    method = made(name, batch_size=batch_size)
    setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, batch_size, WEIGHTING[name])
    loop = Reptile(setting, jax.tree.map(np.asarray, method.init(key, DATA).model), 0.6)
    follow(method, loop, DATA, key)


def train(method, data=DATA, *, rounds=3):
    """Returns the global model after some rounds of everyone."""
    key = jax.random.key(0)
    state = method.init(key, data)
    for _ in range(rounds):
        state, _ = method.round(key, state, data, Cohort.of(range(7)))
    return jax.tree.map(np.asarray, state.model)


@pytest.mark.rotating
@pytest.mark.parametrize("name", WEIGHTING)
def test_a_whole_step_is_fedavg(name):
    close(train(made(name, step_size=1.0)), train(made("fedavg", weighting=WEIGHTING[name])))


@pytest.mark.rotating
@pytest.mark.parametrize(("name", "step_size"), [("feddist", 0.0), ("feddist", 1.7), ("feddws", 0.3)])
def test_a_round_is_linear_in_the_step(name, step_size):
    """Without a step nothing changes."""
    start, one = (train(made(name, step_size=1.0), rounds=rounds) for rounds in (0, 1))
    close(train(made(name, step_size=step_size), rounds=1), combine([(1 - step_size, start), (step_size, one)]))


def test_clients_of_one_size_make_them_one_method():
    sizes = np.where(DATA.train.size < 4, 0, 4).astype(np.int32)
    equals = DATA.replace(train=DATA.train.replace(size=sizes))
    both = [made(name, step_size=1.0) for name in WEIGHTING]
    close(*(train(method, equals) for method in both))
    assert not np.allclose(*(train(method)["kernel"] for method in both), rtol=1e-3)


@pytest.mark.parametrize("factory", [methods.feddist, methods.feddws])
def test_a_step_backwards_is_refused(factory):
    with pytest.raises(ValueError, match=mentions("step_size", -0.1)):
        factory(TASK, optax.sgd(RATE), step_size=-0.1)
