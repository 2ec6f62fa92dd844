"""FedDANE against its NumPy loop, and the methods that it becomes."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods
from jaxfl.client import conduct, corrections
from jaxfl.cohort import Cohort
from jaxfl.data import conditions
from jaxfl.random import Stream, key_for
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import average, batches, close, combine, gradient

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE, ROUNDS, COHORT, EVERYONE = 0.2, 5, 4, (0, 1, 2, 3, 4, 5, 6)
TASK = problems.softmax_task()
DATA = problems.linear_federation()


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


@functools.cache  # tests share what they compile
def made(name, optimizer=None, **options):
    return compiled(getattr(methods, name)(TASK, optimizer or optax.sgd(RATE), **options))


@pytest.mark.rotating
@pytest.mark.parametrize(("weighting", "batch_size"), [("rows", None), ("uniform", 3)])
def test_every_round_is_the_papers(weighting, batch_size, key):
    data = problems.linear_federation()
    options = {"proximal_weight": 0.7, "local_epochs": 2, "batch_size": batch_size, "weighting": weighting}
    method = made("feddane", **options)
    state = method.init(key, data)
    setting = reference.Setting(key, problems.rows_of(data), RATE, 2, batch_size, weighting)
    wanted = FedDANE(setting, jax.tree.map(np.asarray, state.model), 0.7)
    for number in range(ROUNDS):
        cohort = problems.sample(key, state.round, data, COHORT)
        state, _ = method.round(key, state, data, cohort)
        wanted.round(number, cohort.ids.tolist())
        for leaf, value in wanted.model.items():
            # rounding of float64 (1e-16), amplified by ten steps
            np.testing.assert_allclose(state.model[leaf], value, rtol=1e-9, atol=1e-12, err_msg=f"round {number}")


def of(ids):
    """Returns the cohort of these clients, the others under a mask: as wide as one of everybody."""
    everybody = Cohort.of(EVERYONE)
    return replace(everybody, mask=jnp.asarray(np.isin(EVERYONE, ids)))


def train(method, data=DATA, *, rounds=3, cohort=EVERYONE):
    """Returns the global model after some rounds of this cohort."""
    key = jax.random.key(0)
    state = method.init(key, data)
    for _ in range(rounds):
        state, _ = method.round(key, state, data, of(cohort))
    return state.model


@pytest.mark.rotating
@pytest.mark.parametrize("weight", [0.0, 2.0])
def test_one_full_step_is_fedsgd(weight):
    for cohort in (EVERYONE, (1, 2, 5)):
        model = train(made("feddane", proximal_weight=weight, local_epochs=1), cohort=cohort)
        close(model, train(made("fedsgd"), cohort=cohort))


EPOCHS = {"local_epochs": 3, "batch_size": 3, "proximal_weight": 0.5}


def test_identical_clients_and_one_alone_make_it_fedprox_and_unlike_ones_do_not():
    both = [made(name, **EPOCHS) for name in ("feddane", "fedprox")]
    split = DATA.train
    all_of = {"start": np.full_like(split.start, split.start[3]), "size": np.full_like(split.size, split.size[3])}
    same = replace(DATA, train=replace(split, **all_of))
    close(*(train(method, same) for method in both))
    close(*(train(method, cohort=(3,)) for method in both))
    assert not np.allclose(*(train(method)["kernel"] for method in both), rtol=1e-3)


def along_the_correction(power):
    """An optimiser that knows nothing but the correction, and goes one step along a power of it."""

    def update(updates, state, params=None, *, correction=None, **extra):
        return jax.tree.map(lambda c: -(c**power), correction), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


@pytest.mark.rotating
@pytest.mark.parametrize(("weighting", "power"), [("rows", 1), ("rows", 2), ("uniform", 1)])
def test_corrections_sum_to_zero(weighting, power, key):
    """Where all walk along their corrections their average stays, though each of them moves."""
    start = jax.tree.map(np.asarray, TASK.init(key_for(key, Stream.INIT)))
    model = train(made("feddane", along_the_correction(power), local_epochs=1, weighting=weighting), rounds=1)
    if power == 1:
        close(model, start)
    else:
        assert not np.allclose(model["kernel"], start["kernel"], rtol=1e-3)


def test_an_attackers_noise_is_its_gradient_in_both_exchanges_and_another_in_every_round(monkeypatch, key):
    monkeypatch.setattr(conduct, "perturb_model", lambda key, start, trained, data, client: trained)
    data = conditions.attack(DATA, "gaussian", 0.3)
    method = compiled(methods.feddane(TASK, along_the_correction(2), local_epochs=1))
    state = method.init(key, data)
    (first, again, second), (alone, *_) = (
        [method.round(key, state._replace(round=np.int32(round)), data, of(cohort))[0].model for round in (0, 0, 1)]
        for cohort in (EVERYONE, (int(data.attack.attacker.argmax()),))
    )
    close(alone, state.model)  # nobody else is there: a gradient and the cohort's are one, and nothing is corrected
    close(again, first)
    assert not np.allclose(second["kernel"], first["kernel"], rtol=1e-3)


def test_both_exchanges_are_counted(key):
    twice, once = (
        method.round(key, method.init(key, DATA), DATA, of((0, 2)))[1]
        for method in (made(name, **EPOCHS) for name in ("feddane", "fedprox"))
    )
    assert float(twice.bytes_up) == 2 * float(once.bytes_up) > 0
    assert float(twice.bytes_down) == 2 * float(once.bytes_down) > 0


def test_a_server_optimiser_takes_the_step():
    plain, halfway = made("feddane", **EPOCHS), made("feddane", server_optimizer=optax.sgd(0.5), **EPOCHS)
    start, whole, half = train(plain, rounds=0), train(plain, rounds=1), train(halfway, rounds=1)
    close(half, jax.tree.map(lambda a, b: (a + b) / 2, start, whole))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"proximal_weight": -1.0}, ("proximal_weight", -1.0)),
        ({"weighting": "size"}, ("weighting", "size")),
        ({"local_epochs": 0}, ("local_epochs", 0)),
        ({"batch_size": 0}, ("batch_size", 0)),
    ],
)
def test_refusals(options, words):
    with pytest.raises(ValueError, match=mentions(*words)):
        methods.feddane(TASK, optax.sgd(RATE), **options)


def test_a_correction_must_be_given():
    correct = corrections.gradient_correction()
    with pytest.raises(ValueError, match=mentions("correction", "update")):
        correct.update(np.ones(2), correct.init(np.ones(2)), np.ones(2))
