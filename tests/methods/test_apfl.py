"""APFL: its NumPy loop, what it is at the ends of alpha, and how alpha moves."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import methods, tree
from jaxfl.cohort import Cohort
from jaxfl.data import conditions
from jaxfl.data.clients import Batch
from jaxfl.methods.apfl import joint_task
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import close, equal, follow

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE, COHORT = 0.4, 4
TASK = problems.softmax_task()
EPOCHS = {"local_epochs": 2, "batch_size": 3}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


class APFL:
    def __init__(self, setting, model, mixture, mixture_rate):
        self.setting, self.model, self.mixture_rate = setting, model, mixture_rate
        self.own, self.mixture = [model] * len(setting.clients), [mixture] * len(setting.clients)
        self.trained = set()

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        sent = [self.train(number, i) for i in cohort]
        self.model = reference.average(sent, reference.weights(self.setting, cohort))

    def train(self, number, i):
        w, v, alpha, (x, y) = self.model, self.own[i], self.mixture[i], self.setting.clients[i]
        key = reference.key_for(self.setting.root, reference.Stream.BATCHES, number, i)
        for rows in reference.batches(key, len(y), self.setting.epochs, self.setting.batch_size):
            mixed = reference.combine([(alpha, v), (1 - alpha, w)])
            of_w, slope = (reference.gradient(model, x[rows], y[rows])[1] for model in (w, mixed))
            inner = sum(((v[leaf] - w[leaf]) * slope[leaf]).sum() for leaf in slope)
            v = reference.combine([(1, v), (-self.setting.rate * alpha, slope)])
            w = reference.combine([(1, w), (-self.setting.rate, of_w)])
            alpha = np.clip(alpha - self.mixture_rate * inner, 0, 1)
        self.own[i], self.mixture[i] = v, alpha
        self.trained.add(i)
        return w

    def served(self, i):
        alpha = self.mixture[i] if i in self.trained else 0.0
        return reference.combine([(alpha, self.own[i]), (1 - alpha, self.model)])


def apfl(**options):
    return compiled(methods.apfl(TASK, optax.sgd(RATE), **{**EPOCHS, **options}))


def train(method, data, *, rounds=3):
    key = jax.random.key(0)
    state = method.init(key, data)
    for _ in range(rounds):
        state, _ = method.round(key, state, data, problems.sample(key, state.round, data, COHORT))
    return state


@pytest.fixture(scope="module")
def fedavg():
    """The model of FedAvg after three rounds."""
    with jax.enable_x64(True):
        method = methods.fedavg(TASK, optax.sgd(RATE), weighting="uniform", **EPOCHS)
        return train(compiled(method), problems.linear_federation()).model


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("batch_size", "weighting", "mixture", "rate"), [(None, "rows", 0.3, 0.0), (3, "uniform", 0.6, 0.1)]
)
def test_every_round_is_the_papers(batch_size, weighting, mixture, rate, key, fedavg):
    data = problems.linear_federation()
    method = apfl(mixture=mixture, mixture_rate=rate, weighting=weighting, batch_size=batch_size)
    setting = reference.Setting(key, problems.rows_of(data), RATE, 2, batch_size, weighting)
    start = jax.tree.map(np.asarray, method.init(key, data).model)
    loop = APFL(setting, start, mixture, rate)
    state = follow(method, loop, data, key)
    close(np.asarray(state.own.mixture), np.array(loop.mixture))
    if rate:
        assert len(set(loop.mixture)) > 3 and 0 < min(loop.mixture), "alpha must move, and not be clipped only"
        equal(train(method, data).model, fedavg)


def test_with_all_of_the_own_model_it_is_local_training_beside_fedavg(fedavg):
    data = problems.linear_federation()
    state = train(apfl(mixture=1.0), data)
    equal(state.model, fedavg)
    equal(state.own.model, train(compiled(methods.local(TASK, optax.sgd(RATE), **EPOCHS)), data).models)


def test_with_none_of_it_everybody_is_served_the_global_model(key, fedavg):
    data = problems.linear_federation()
    method = apfl(mixture=0.0)
    state = train(method, data)
    equal(state.own.model, method.init(key, data).own.model)
    equal(method.client_params(state, jnp.arange(7)), tree.repeat(fedavg, 7))


def test_the_gradient_of_alpha_vanishes_at_the_best_one(key):
    """Of a quadratic, <w - a, H (w - v)> / <w - v, H (w - v)>, a being its minimum and H its curvature."""
    task, rng = problems.quadratic_task(), np.random.default_rng(0)
    x, y, v, w = rng.normal(size=(5, 3)), np.array([0, 1, 1, 0, 1]), *rng.normal(size=(2, 3))
    slopes = [problems.quadratic_gradient(model, x, y) for model in (w, v)]
    best = slopes[0] @ (w - v) / ((slopes[0] - slopes[1]) @ (w - v))
    batch = Batch(jnp.asarray(x), jnp.asarray(y), jnp.ones(5, bool))
    model = {"w": {"w": jnp.asarray(w)}, "v": {"w": jnp.asarray(v)}, "alpha": jnp.asarray(best)}
    slope = jax.jit(
        lambda model: [jax.grad(joint_task(task, adapts).loss)(model, batch, None) for adapts in (True, False)]
    )
    gradient, still = slope(model)
    assert abs(float(gradient["alpha"])) < 1e-12
    close(gradient["w"]["w"], slopes[0])  # which the mixture has no part in
    assert float(still["alpha"]) == 0


@pytest.fixture(scope="module")
def eager():
    """A method whose alpha takes long steps."""
    with jax.enable_x64(True):
        return apfl(mixture_rate=40.0)


def test_alpha_stays_a_share_whoever_sends_it(eager):
    attacked = conditions.attack(problems.linear_federation(), "gaussian", share=0.99, scale=5.0)
    honest = replace(attacked, attack=replace(attacked.attack, attacker=np.zeros(7, bool)))
    mixture, noisy = (np.asarray(train(eager, data).own.mixture) for data in (honest, attacked))
    assert {0.0, 1.0} & {*mixture.tolist()} and (mixture >= 0).all() and (mixture <= 1).all()
    assert (noisy >= 0).all() and (noisy <= 1).all()


def test_a_schedule_multiplies_the_steps_of_alpha_too(eager, key):
    data, cohort = problems.linear_federation(), Cohort.of([0, 2, 3])
    start = eager.init(key, data)
    half = compiled(methods.apfl(TASK, optax.sgd(RATE / 2), mixture_rate=20.0, **EPOCHS))
    whole = methods.apfl(TASK, optax.sgd(RATE), mixture_rate=40.0, **EPOCHS)
    found, _ = compiled(jaxfl.scheduled(whole, lambda number: 0.5)).round(key, start, data, cohort)
    close(found.own, half.round(key, start, data, cohort)[0].own)


def test_what_belongs_to_others_changes_nothing(eager, key):
    data = problems.linear_federation()
    start = eager.init(key, data)
    row = jax.tree.map(lambda leaf: leaf[3] / 2, start.own)
    other = start._replace(own=tree.put(start.own, 3, row))
    one, two = (eager.round(key, state, data, Cohort.of([0, 3, 5]))[0] for state in (start, other))
    equal(tree.take(one.own, 0), tree.take(two.own, 0))
    equal(one.model, two.model)
    assert not np.allclose(one.own.model["kernel"][3], two.own.model["kernel"][3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixture": 1.5}, ("mixture", 1.5)),
        ({"mixture": float("nan")}, ("mixture", "nan")),
        ({"mixture_rate": -0.1}, ("mixture_rate", -0.1)),
        ({"local_epochs": 0}, ("local_epochs", 0)),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        apfl(**options)
