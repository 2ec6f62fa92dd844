"""FedALA: its NumPy loop, its worked example, and what it is without mixing or without lower layers."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import methods
from jaxfl.methods.fedala import LocalMixture, mix, mixing
from jaxfl.random import Stream, key_for
from jaxfl.tasks import Task, masked_mean
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import close, equal, follow

pytestmark = pytest.mark.rotating("function", weeks=6)

RATE, COHORT, ETA = 0.4, 4, 2.0
TASK = problems.softmax_task()
DATA = replace(problems.linear_federation(), held_out=np.arange(7) == 5)
EVERYBODY = np.arange(7)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@functools.cache  # tests share what they compile
def made(name="fedala", **options):
    return compiled(getattr(methods, name)(TASK, optax.sgd(RATE), **{"local_epochs": 2, "batch_size": 3, **options}))


@functools.partial(jax.jit, static_argnums=1)
def _bits(key, count):
    return jax.random.bits(key, (count,), np.uint32) >> 1


class FedALA:
    def __init__(self, setting, model, upper, threshold, served):
        self.setting, self.model, self.upper, self.threshold = setting, model, upper, threshold
        self.own, self.weights = {}, {}
        self.times, self.rounds, self.served_as = [0] * len(setting.clients), 0, served

    def mixed(self, i, weights):
        if not self.times[i]:
            return self.model
        u = self.own[i]
        return self.model | {name: u[name] + (self.model[name] - u[name]) * weights[name] for name in self.upper}

    def fitted(self, number, i):
        x, y = self.setting.clients[i]
        weights = self.weights.get(i)
        if not self.times[i]:
            return weights
        key = key_for(self.setting.root, Stream.START, number, i)
        order = np.argsort(np.asarray(_bits(key, 16))[: len(y)], kind="stable")
        rows = order[: max(int(0.8 * len(y) + 1e-4), 1)]
        width, losses = self.setting.batch_size or len(rows), []
        while True:
            for start in range(0, len(rows), width):
                few = rows[start : start + width]
                loss, slope = reference.gradient(self.mixed(i, weights), x[few], y[few])
                gaps = {name: self.model[name] - self.own[i][name] for name in self.upper}
                weights = {name: np.clip(weights[name] - ETA * slope[name] * gaps[name], 0, 1) for name in self.upper}
            losses.append(loss)
            start_over = len(losses) > 10 and np.std(losses[-10:]) < self.threshold
            if self.times[i] > 1 or start_over or len(losses) == 30:
                return weights

    def round(self, number, cohort):
        cohort, trained = reference.with_rows(self.setting, cohort), []
        for i in cohort:
            self.weights.setdefault(i, {name: np.ones_like(self.model[name]) for name in self.upper})
            self.weights[i] = self.fitted(number, i)
            trained.append(reference.train(self.setting, number, i, self.mixed(i, self.weights[i]))[0])
        for i, model in zip(cohort, trained, strict=True):
            self.own[i] = {name: model[name] for name in self.upper}
            self.times[i] += 1
        self.model = reference.average(trained, reference.weights(self.setting, cohort))
        self.rounds = number + 1

    def served(self, client):
        weights = self.fitted(self.rounds, client) if self.served_as == "fitted" else self.weights.get(client)
        return self.mixed(client, weights)


@pytest.mark.parametrize(
    ("personal", "weighting", "batch_size", "threshold", "served"),
    [("kernel", "rows", 3, 0.0005, "fitted"), (".*", "uniform", None, 0.1, "stored")],
)
def test_every_round_is_that_of_a_loop(personal, weighting, batch_size, threshold, served, key):
    """In five rounds some clients are in their second one, whose epochs the first case ends by its threshold."""
    options = {"weighting": weighting, "batch_size": batch_size, "start_threshold": threshold, "served": served}
    method = made(personal=personal, mixing_rate=ETA, start_epochs=30, **options)
    setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, batch_size, weighting)
    start = jax.tree.map(np.asarray, method.init(key, DATA).model)
    upper = ["bias", "kernel"] if personal == ".*" else [personal]
    loop = FedALA(setting, start, upper, threshold, served)
    state = follow(method, loop, DATA, key, rounds=5, cohort=COHORT)
    assert max(loop.times) > 2 and min(loop.times) == 0
    for leaf in jax.tree.leaves(state.own.weights):
        assert leaf.min() >= 0 and leaf.max() == 1 and (leaf < 1).any()


@pytest.mark.parametrize("options", [{"personal": ()}, {"mixing_rate": 0.0}])
def test_without_mixing_it_is_fedavg(options, key):
    method, fedavg = made(**options), made("fedavg")
    assert method.adapt is None
    one, two = method.init(key, DATA), fedavg.init(key, DATA)
    for _ in range(3):
        cohort = problems.sample(key, one.round, DATA, COHORT)
        (one, info), (two, _) = method.round(key, one, DATA, cohort), fedavg.round(key, two, DATA, cohort)
    equal(method.client_params(one, EVERYBODY), fedavg.client_params(two, EVERYBODY))
    assert info.bytes_up == info.bytes_down == 8 * 8 * COHORT


def test_a_client_with_weights_of_0_keeps_its_own_layers(key):
    method = made(personal=".*", served="stored")
    state = method.init(key, DATA)
    own = jax.tree.map(lambda leaf: leaf + 1, state.own.upper)
    mixture = LocalMixture(own, jax.tree.map(np.zeros_like, own), np.ones(7, np.int32))
    close(method.client_params(state._replace(own=mixture), EVERYBODY), own)


@pytest.mark.parametrize(("rate", "wanted"), [(0.2, [0.7, 0.55, 0.475]), (1.0, [0.0, 1.0, 0.0])])
def test_the_worked_example(rate, wanted, key):
    """One weight, x = (1, 2), y = (1, 0.5), u = 0 and w = 1: a rate of 1 jumps between 0 and 1 for ever."""
    data = jaxfl.data.federate(np.array([[1.0], [2.0], [3.0]]), np.array([1.0, 0.5, 0.0]), [[0, 1]], [[2]])

    def loss(model, batch, key=None):
        return masked_mean(jnp.square(model["w"] * batch.x[:, 0] - batch.y) / 2, batch.mask)

    task = Task(lambda key: {"w": jnp.ones(())}, loss, lambda model, batch: model["w"] * batch.x)
    chosen = {"w": True}
    fit = jax.jit(mixing(task, chosen, rate, 1.0, None))
    own, model = LocalMixture({"w": np.zeros(())}, {"w": np.ones(())}, np.int32(2)), {"w": np.ones(())}
    for number in wanted:
        own = own._replace(weights=fit(key, own, model, data, np.int32(0)))
        np.testing.assert_allclose(own.weights["w"], number, atol=1e-12)
        np.testing.assert_allclose(mix(own, own.weights, model, chosen)["w"], number, atol=1e-12)
    same = own._replace(upper=model)
    equal(fit(key, same, model, data, np.int32(0)), same.weights)  # nothing to mix


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mixing_rate": -1.0}, ("mixing_rate", -1.0)),
        ({"share": 0.0}, ("share", 0.0)),
        ({"start_epochs": 0}, ("start_epochs", 0)),
        ({"personal": "Dense_7"}, ("Dense_7", "bias, kernel")),
    ],
)
def test_refusals(options, words):
    with pytest.raises(ValueError, match=mentions(*words)):
        methods.fedala(TASK, optax.sgd(RATE), **options)
