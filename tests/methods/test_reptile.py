"""FedDist and FedDWS against their NumPy loop, and FedAvg, which they are steps towards."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods, sampling
from jaxfl.cohort import Cohort
from jaxfl.random import Stream, key_for
from tests import problems, reference
from tests.reference import average, close, combine

RATE, ROUNDS, COHORT = 0.4, 5, 4
TASK = problems.softmax_task()
EPOCHS = {"local_epochs": 2, "batch_size": 3}
WEIGHTING = {methods.feddist: "uniform", methods.feddws: "rows"}
BOTH = pytest.mark.parametrize("factory", WEIGHTING)


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


@BOTH
@pytest.mark.parametrize("batch_size", [None, 3])
def test_every_round_is_the_papers(factory, batch_size, key):
    data = problems.linear_federation()
    method = factory(TASK, optax.sgd(RATE), local_epochs=2, batch_size=batch_size)
    state = method.init(key, data)
    setting = reference.Setting(key, problems.rows_of(data), RATE, 2, batch_size, WEIGHTING[factory])
    wanted = Reptile(setting, jax.tree.map(np.asarray, state.model), 0.6)
    step = jax.jit(method.round)
    for number in range(ROUNDS):
        cohort = sampling.sample(key, state.round, data, COHORT)
        state, _ = step(key, state, data, cohort)
        wanted.round(number, cohort.ids.tolist())
        for leaf, value in wanted.model.items():
            # rounding of float64 (1e-16), amplified by ten steps
            np.testing.assert_allclose(state.model[leaf], value, rtol=1e-9, atol=1e-12, err_msg=f"round {number}")


def train(factory, data, *, rounds=3, **options):
    """Returns the global model after some rounds of everyone."""
    method, key = factory(TASK, optax.sgd(RATE), **EPOCHS, **options), jax.random.key(0)
    state, step = method.init(key, data), jax.jit(method.round)
    for _ in range(rounds):
        state, _ = step(key, state, data, Cohort.of(jnp.arange(data.num_clients)))
    return state.model


@BOTH
def test_a_whole_step_is_fedavg(factory):
    data = problems.linear_federation()
    close(train(factory, data, step_size=1.0), train(methods.fedavg, data, weighting=WEIGHTING[factory]))


@BOTH
def test_no_step_is_no_change(factory, key):
    jax.tree.map(
        np.testing.assert_array_equal,
        train(factory, problems.linear_federation(), step_size=0.0),
        TASK.init(key_for(key, Stream.INIT)),
    )


@BOTH
@pytest.mark.parametrize("step_size", [0.3, 1.7])
def test_a_round_is_linear_in_the_step(factory, step_size, key):
    data, start = problems.linear_federation(), TASK.init(key_for(key, Stream.INIT))
    one, some = (train(factory, data, rounds=1, step_size=size) for size in (1.0, step_size))
    close(some, jax.tree.map(lambda a, b: a + step_size * (b - a), start, one))


def test_clients_of_one_size_make_them_one_method():
    equal, ragged = problems.linear_federation(sizes=(6,) * 4, groups=(0, 1, 0, 1)), problems.linear_federation()
    close(train(methods.feddist, equal), train(methods.feddws, equal))
    kernels = [train(factory, ragged)["kernel"] for factory in WEIGHTING]
    assert not np.allclose(*kernels, rtol=1e-3)


@BOTH
def test_a_step_backwards_is_refused(factory):
    with pytest.raises(ValueError, match=r"step_size must be at least 0, got -0\.1"):
        factory(TASK, optax.sgd(RATE), step_size=-0.1)
