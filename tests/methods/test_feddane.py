"""FedDANE against its NumPy loop, and the methods that it becomes."""

from dataclasses import replace

import jax
import numpy as np
import optax
import pytest

from jaxfl import methods, sampling
from jaxfl.client import conduct, corrections
from jaxfl.cohort import Cohort
from jaxfl.data import conditions
from jaxfl.random import Stream, key_for
from tests import problems, reference
from tests.problems import compiled
from tests.reference import average, batches, close, combine, gradient

RATE, ROUNDS, COHORT, EVERYONE = 0.2, 5, 4, (0, 1, 2, 3, 4, 5, 6)
TASK = problems.softmax_task()


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


class FedDANE:
    """Phase A, then phase B, each one client after the other."""

    def __init__(self, setting, model, pull):
        self.setting, self.model, self.pull = setting, model, pull

    def solve(self, number, client, correction):
        x, y = self.setting.clients[client]
        key = key_for(self.setting.root, Stream.BATCHES, number, client)
        model = self.model
        for rows in batches(key, len(y), self.setting.epochs, self.setting.batch_size):
            slope = gradient(model, x[rows], y[rows])[1]
            away = combine([(1, model), (-1, self.model)])
            step = combine([(1, slope), (1, correction), (self.pull, away)])
            model = combine([(1, model), (-self.setting.rate, step)])
        return model

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        shares = reference.weights(self.setting, cohort)
        slopes = [gradient(self.model, *self.setting.clients[i])[1] for i in cohort]
        together = average(slopes, shares)
        corrections = [combine([(1, together), (-1, slope)]) for slope in slopes]
        solutions = [self.solve(number, i, c) for i, c in zip(cohort, corrections, strict=True)]
        self.model = average(solutions, shares)


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("weighting", ["rows", "uniform"])
def test_every_round_is_the_papers(weighting, batch_size, key):
    data = problems.linear_federation()
    options = {"proximal_weight": 0.7, "local_epochs": 2, "batch_size": batch_size, "weighting": weighting}
    method = methods.feddane(TASK, optax.sgd(RATE), **options)
    state = method.init(key, data)
    setting = reference.Setting(key, problems.rows_of(data), RATE, 2, batch_size, weighting)
    wanted = FedDANE(setting, jax.tree.map(np.asarray, state.model), 0.7)
    step = jax.jit(method.round)
    for number in range(ROUNDS):
        cohort = sampling.sample(key, state.round, data, COHORT)
        state, _ = step(key, state, data, cohort)
        wanted.round(number, cohort.ids.tolist())
        for leaf, value in wanted.model.items():
            # rounding of float64 (1e-16), amplified by ten steps
            np.testing.assert_allclose(state.model[leaf], value, rtol=1e-9, atol=1e-12, err_msg=f"round {number}")


def train(factory, data, *, rounds=3, cohort=EVERYONE, optimizer=None, **options):
    """Returns the global model after some rounds of this cohort."""
    method = factory(TASK, optimizer or optax.sgd(RATE), **options)
    key = jax.random.key(0)
    state = method.init(key, data)
    for _ in range(rounds):
        state, _ = jax.jit(method.round)(key, state, data, Cohort.of(cohort))
    return state.model


@pytest.mark.parametrize("weight", [0.0, 2.0])
@pytest.mark.parametrize("cohort", [EVERYONE, (1, 2, 5)])
def test_one_full_step_is_fedsgd(cohort, weight):
    data = problems.linear_federation()
    model = train(methods.feddane, data, cohort=cohort, proximal_weight=weight, local_epochs=1)
    close(model, train(methods.fedsgd, data, cohort=cohort))


EPOCHS = {"local_epochs": 3, "batch_size": 3, "proximal_weight": 0.5}


def test_identical_clients_make_it_fedprox():
    data = problems.linear_federation(sizes=(6,) * 3, groups=(0,) * 3)
    same = replace(data, train=replace(data.train, start=np.zeros(3, np.int32)))
    models = [train(factory, same, cohort=(0, 1, 2), **EPOCHS) for factory in (methods.feddane, methods.fedprox)]
    close(*models)


def test_one_client_alone_makes_it_fedprox():
    data = problems.linear_federation()
    models = [train(factory, data, cohort=(3,), **EPOCHS) for factory in (methods.feddane, methods.fedprox)]
    close(*models)


def test_unlike_clients_do_not():
    data = problems.linear_federation()
    models = [train(factory, data, **EPOCHS) for factory in (methods.feddane, methods.fedprox)]
    assert not np.allclose(*(model["kernel"] for model in models), rtol=1e-3)


def along_the_correction(power):
    """An optimiser that knows nothing but the correction, and goes one step along a power of it."""

    def update(updates, state, params=None, *, correction=None, **extra):
        return jax.tree.map(lambda c: -(c**power), correction), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


@pytest.mark.parametrize("weighting", ["rows", "uniform"])
def test_corrections_sum_to_zero(weighting, key):
    """Where all walk along their corrections their average stays, though each of them moves."""
    data = problems.linear_federation()
    start = TASK.init(key_for(key, Stream.INIT))
    options = {"local_epochs": 1, "weighting": weighting, "rounds": 1}
    close(train(methods.feddane, data, optimizer=along_the_correction(1), **options), start)
    squares = train(methods.feddane, data, optimizer=along_the_correction(2), **options)
    assert not np.allclose(squares["kernel"], start["kernel"], rtol=1e-3)


def test_an_attackers_noise_is_its_gradient_in_both_exchanges_and_another_in_every_round(monkeypatch, key):
    monkeypatch.setattr(conduct, "sent_model", lambda key, start, trained, data, client: trained)
    data = conditions.attack(problems.linear_federation(), "gaussian", 0.3)
    method = methods.feddane(TASK, along_the_correction(2), local_epochs=1)
    state, step = method.init(key, data), jax.jit(method.round)
    (first, again, second), (alone, *_) = (
        [step(key, state._replace(round=np.int32(round)), data, Cohort.of(cohort))[0].model for round in (0, 0, 1)]
        for cohort in (EVERYONE, (int(data.attack.attacker.argmax()),))
    )
    close(alone, state.model)  # nobody else is there: a gradient and the cohort's are one, and nothing is corrected
    close(again, first)
    assert not np.allclose(second["kernel"], first["kernel"], rtol=1e-3)


def test_both_exchanges_are_counted(key):
    data, cohort = problems.linear_federation(), Cohort.of((0, 2))
    twice, once = (
        method.round(key, method.init(key, data), data, cohort)[1]
        for method in (compiled(factory(TASK, optax.sgd(RATE))) for factory in (methods.feddane, methods.fedavg))
    )
    assert float(twice.bytes_up) == 2 * float(once.bytes_up) > 0
    assert float(twice.bytes_down) == 2 * float(once.bytes_down) > 0


def test_a_server_optimiser_takes_the_step():
    data = problems.linear_federation()
    start, half, whole = (
        train(methods.feddane, data, rounds=rounds, server_optimizer=server, **EPOCHS)
        for rounds, server in ((0, None), (1, optax.sgd(0.5)), (1, None))
    )
    close(half, jax.tree.map(lambda a, b: (a + b) / 2, start, whole))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"proximal_weight": -1.0}, "proximal_weight must be at least 0, got -1.0"),
        ({"weighting": "size"}, "weighting must be"),
        ({"local_epochs": 0}, "local_epochs must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ],
)
def test_refusals(options, words):
    with pytest.raises(ValueError, match=words):
        methods.feddane(TASK, optax.sgd(RATE), **options)


def test_a_correction_must_be_given():
    correct = corrections.gradient_correction()
    with pytest.raises(ValueError, match="correction must be passed to the update"):
        correct.update(np.ones(2), correct.init(np.ones(2)), np.ones(2))
