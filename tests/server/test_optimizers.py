"""The server's optimisers against Algorithm 2 of Reddi et al. in NumPy, inside FedAvg and FedProx."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods, server
from jaxfl.cohort import Cohort
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import average, combine

RATE, ROUNDS, COHORT = 0.4, 5, 4
TASK = problems.softmax_task()
OPTIONS = {"learning_rate": 0.05, "b1": 0.8, "b2": 0.7, "tau": 0.02}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def accumulate(name, v, square, b2):
    return b2 * v + (1 - b2) * square if name == "fedadam" else v - (1 - b2) * square * np.sign(v - square)


class Server:
    """FedAvg (FedProx with a pull) whose server takes its step by `name`'s rule, coordinate by coordinate."""

    def __init__(self, setting, model, name, pull):
        self.setting, self.model, self.name, self.pull = setting, model, name, pull
        self.m = {leaf: np.zeros_like(value) for leaf, value in model.items()}
        self.v = {leaf: np.full_like(value, OPTIONS["tau"] ** 2) for leaf, value in model.items()}

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        options = {"pull": self.pull, "anchor": self.model}
        trained = [reference.train(self.setting, number, i, self.model, **options)[0] for i in cohort]
        delta = average([combine([(1, one), (-1, self.model)]) for one in trained], self.shares(cohort))
        for leaf, change in delta.items():
            if self.name == "fedavgm":
                self.m[leaf] = OPTIONS["b1"] * self.m[leaf] + change
                step = self.m[leaf]
            else:
                self.m[leaf] = OPTIONS["b1"] * self.m[leaf] + (1 - OPTIONS["b1"]) * change
                self.v[leaf] = accumulate(self.name, self.v[leaf], change**2, OPTIONS["b2"])
                step = self.m[leaf] / (np.sqrt(self.v[leaf]) + OPTIONS["tau"])
            self.model = {**self.model, leaf: self.model[leaf] + OPTIONS["learning_rate"] * step}

    def shares(self, cohort):
        return reference.weights(self.setting, cohort)


OPTIMIZERS = {
    "fedavgm": optax.sgd(OPTIONS["learning_rate"], momentum=OPTIONS["b1"]),
    "fedadam": server.fedadam(**OPTIONS),
    "fedyogi": server.fedyogi(**OPTIONS),
}


@pytest.mark.parametrize(
    ("name", "factory", "pull"),
    [
        ("fedavgm", methods.fedavg, {}),
        ("fedadam", methods.fedavg, {}),
        ("fedyogi", methods.fedprox, {"proximal_weight": 0.7}),
    ],
)
def test_every_round_is_the_papers(name, factory, pull, key):
    data = problems.linear_federation()
    options = {"local_epochs": 2, "batch_size": 3, "server_optimizer": OPTIMIZERS[name], **pull}
    method = compiled(factory(TASK, optax.sgd(RATE), **options))
    state = method.init(key, data)
    setting = reference.Setting(key, problems.rows_of(data), RATE, 2, 3)
    wanted = Server(setting, jax.tree.map(np.asarray, state.model), name, pull.get("proximal_weight", 0))
    for number in range(ROUNDS):
        cohort = problems.sample(key, state.round, data, COHORT)
        state, _ = method.round(key, state, data, cohort)
        wanted.round(number, cohort.ids.tolist())
        for leaf, value in wanted.model.items():
            # rounding of float64 (1e-16), amplified by ten steps and by a division by tau
            np.testing.assert_allclose(state.model[leaf], value, rtol=1e-9, atol=1e-11, err_msg=f"round {number}")


@functools.cache  # tests share what they compile
def fedavg(optimizer):
    return compiled(methods.fedavg(TASK, optax.sgd(RATE), local_epochs=2, server_optimizer=optimizer))


def train(optimizer, data, *, cohorts, start=None):
    """Returns FedAvg's state after rounds of these cohorts, of three clients each."""
    method, key = fedavg(optimizer), jax.random.key(0)
    state = method.init(key, data) if start is None else start
    for cohort in cohorts:
        state, _ = method.round(key, state, data, Cohort.of(cohort))
    return state


def test_steps_of_rate_one_are_the_average():
    data, cohorts = problems.linear_federation(), [(0, 2, 3), (3, 4, 6), (1, 5, 6)]
    plain, one = (train(optimizer, data, cohorts=cohorts) for optimizer in (None, optax.sgd(1.0)))
    # w - (w - average): two roundings a round
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), one.model, plain.model)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_servers_state_survives_the_round(name):
    """Forgetting it between two rounds gives another model."""
    data, optimizer = problems.linear_federation(), OPTIMIZERS[name]
    first = train(optimizer, data, cohorts=[(0, 2, 3)])
    fresh = first._replace(server=server.init(optimizer, first.model))
    kept, forgotten = (train(optimizer, data, cohorts=[(3, 4, 6)], start=start) for start in (first, fresh))
    assert not np.allclose(kept.model["kernel"], forgotten.model["kernel"], rtol=1e-3)


LINE_SEARCH = optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(3))


@pytest.mark.parametrize("optimizer", [optax.polyak_sgd(), LINE_SEARCH], ids=["value", "value_fn"])
def test_an_optimiser_that_needs_the_loss_is_refused(optimizer):
    with pytest.raises(TypeError, match=mentions("server_optimizer", "'value'")):
        server.init(optimizer, {"w": jnp.zeros(3)})


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_round_in_which_nobody_counts_changes_nothing(name):
    """Client 1 has no rows; momentum alone would have gone on."""
    data = problems.linear_federation()
    before = train(OPTIMIZERS[name], data, cohorts=[(0, 2, 3)])
    after = train(OPTIMIZERS[name], data, cohorts=[(1, 1, 1)], start=before)
    assert int(after.round) == 2
    jax.tree.map(np.testing.assert_array_equal, after._replace(round=before.round), before)


def test_steps_count_unless_told_otherwise():
    model, average, optimizer = {"w": jnp.array([1.0])}, {"w": jnp.array([0.5])}, optax.sgd(0.5, momentum=0.9)
    state = server.init(optimizer, model)
    moved, moments = server.step(optimizer, state, model, average)
    assert moved["w"].tolist() == [0.75]
    again, _ = server.step(optimizer, moments, moved, moved)
    assert again["w"].tolist() == [0.525]  # 0.9 * 0.5 of momentum, half of it
    still, _ = server.step(optimizer, moments, moved, moved, counted=jnp.array(False))
    assert still["w"].tolist() == [0.75]


def test_optax_adam_is_the_papers_but_for_what_the_docstring_says():
    """Long after the start, when bias and v's start are forgotten, the two rules are one."""
    ours, theirs = server.fedadam(0.1, b1=0.5, b2=0.6, tau=0.01), optax.adam(0.1, b1=0.5, b2=0.6, eps=0.01)
    gradients = np.random.default_rng(0).normal(size=(120, 4))
    steps = []
    for optimizer in (ours, theirs):
        state, taken = optimizer.init(jnp.zeros(4)), []
        for gradient in gradients:
            with jax.numpy_dtype_promotion("standard"):  # optax takes a float to the power of a counter
                update, state = optimizer.update(jnp.asarray(gradient), state)
            taken.append(np.asarray(update))
        steps.append(taken)
    assert not np.allclose(steps[0][0], steps[1][0], rtol=0.1)
    np.testing.assert_allclose(steps[0][-1], steps[1][-1], rtol=1e-12)


@pytest.mark.parametrize("make", [server.fedadam, server.fedyogi])
def test_a_schedule_is_injected(make):
    """As into optax's: the numbers are arrays then, whose values nobody knows while the step is compiled."""
    scheduled = optax.inject_hyperparams(make)(learning_rate=lambda step: jnp.where(step < 1, 0.1, 0.05))
    gradient = jnp.array([1.0, -2.0])
    state, steps = jax.jit(scheduled.init)(gradient), []
    for _ in range(2):
        step, state = jax.jit(scheduled.update)(gradient, state)
        steps.append(step)
    for count, rate in enumerate((0.1, 0.05)):
        fixed = make(rate)
        own = fixed.init(gradient)
        for _ in range(count + 1):
            step, own = fixed.update(gradient, own)
        np.testing.assert_allclose(steps[count], step, rtol=1e-6)


@pytest.mark.parametrize("make", [server.fedadam, server.fedyogi])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"b1": 1.0}, ("b1", 1.0)),
        ({"b2": -0.1}, ("b2", -0.1)),
        ({"tau": 0.0}, ("tau", 0.0)),
        ({"learning_rate": -1.0}, ("learning_rate", -1.0)),
        ({"learning_rate": np.nan}, ("learning_rate", "nan")),
        ({"learning_rate": optax.constant_schedule(0.1)}, ("learning_rate", "optax.inject_hyperparams")),
    ],
)
def test_refusals(make, options, words):
    with pytest.raises(ValueError, match=mentions(*words)):
        make(**options)
