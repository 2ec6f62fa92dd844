"""SCAFFOLD against its NumPy loop, its fixed point, and the methods that it becomes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods, tree
from jaxfl.cohort import Cohort
from jaxfl.data import conditions
from jaxfl.tasks import Averages, Task, masked_mean
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import average, batches, close, combine, equal, gradient, key_for

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE, ROUNDS, EVERYONE = 0.2, 4, (0, 1, 2, 3, 4, 5, 6)
TASK, QUADRATIC = problems.softmax_task(), problems.quadratic_task()
DATA = problems.linear_federation()
SIZES = DATA.train.size


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


class Scaffold:
    """One client after the other; everybody's control is the mean of all of them, made anew."""

    def __init__(self, setting, model, controls):
        self.setting, self.model, self.option = setting, model, controls
        self.controls = [combine([(0, model)])] * len(setting.clients)

    @property
    def control(self):
        everybody = reference.with_rows(self.setting, range(len(self.controls)))
        return average([self.controls[i] for i in everybody], reference.weights(self.setting, everybody))

    def train(self, number, client, control):
        x, y = self.setting.clients[client]
        key, model, own, steps = (
            key_for(self.setting.root, reference.Stream.BATCHES, number, client),
            self.model,
            self.controls[client],
            0,
        )
        for rows in batches(key, len(y), self.setting.epochs, self.setting.batch_size):
            slope = combine([(1, gradient(model, x[rows], y[rows])[1]), (-1, own), (1, control)])
            model, steps = combine([(1, model), (-self.setting.rate, slope)]), steps + 1
        if self.option == "gradient":
            return model, gradient(self.model, x, y)[1]
        far = 1 / (steps * self.setting.rate)
        return model, combine([(1, own), (-1, control), (far, self.model), (-far, model)])

    def round(self, number, cohort):
        cohort, control = reference.with_rows(self.setting, cohort), self.control
        trained = [self.train(number, i, control) for i in cohort]
        self.model = average([model for model, _ in trained], reference.weights(self.setting, cohort))
        for client, (_, own) in zip(cohort, trained, strict=True):
            self.controls[client] = own


@pytest.mark.rotating
@pytest.mark.parametrize(("controls", "weighting", "batch_size"), [("steps", "uniform", 3), ("gradient", "rows", None)])
def test_every_round_is_the_papers(controls, weighting, batch_size, key):
    options = {"controls": controls, "weighting": weighting, "local_epochs": 2, "batch_size": batch_size}
    method = compiled(methods.scaffold(TASK, optax.sgd(RATE), **options))
    state = method.init(key, DATA)
    setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, batch_size, weighting)
    wanted = Scaffold(setting, jax.tree.map(np.asarray, state.model), controls)
    for number in range(ROUNDS):
        cohort = problems.sample(key, state.round, DATA, 4)
        state, _ = method.round(key, state, DATA, cohort)
        wanted.round(number, cohort.ids.tolist())
        close(state.model, wanted.model)
        close(state.control, wanted.control)  # the mean of all controls, whoever was asked
    close(state.controls, {name: np.stack([own[name] for own in wanted.controls]) for name in state.model})


def train(factory, data=DATA, *, task=TASK, optimizer=None, rounds=3, start=None, **options):
    """Returns the state after some rounds of everybody."""
    method, key = compiled(factory(task, optimizer or optax.sgd(RATE), **options)), jax.random.key(0)
    state = method.init(key, data) if start is None else start
    for _ in range(rounds):
        state, _ = method.round(key, state, data, Cohort.of(EVERYONE[: data.num_clients]))
    return state


EPOCHS = {"local_epochs": 2, "batch_size": 3}


def test_its_first_round_is_fedavg():
    first, wanted = (train(f, rounds=1, weighting="uniform", **EPOCHS) for f in (methods.scaffold, methods.fedavg))
    close(first.model, wanted.model)


def test_one_full_step_is_fedsgd_with_either_option():
    steps, gradients = (train(methods.scaffold, local_epochs=1, controls=one) for one in ("steps", "gradient"))
    close(steps, gradients)
    close(steps.model, train(methods.fedsgd, weighting="uniform").model)


def test_identical_clients_make_it_fedavg():
    data = problems.linear_federation(sizes=(6,) * 3, groups=(0,) * 3)
    same = replace(data, train=replace(data.train, start=np.zeros(3, np.int32)))
    close(*(train(factory, same, local_epochs=2).model for factory in (methods.scaffold, methods.fedavg)))


def test_nobody_leaves_the_optimum():
    """FedAvg's clients do; and without a server's rate the model stays wherever it is."""
    rows = [(x, y) for x, y in problems.rows_of(DATA) if len(y)]
    # the gradients of the clients' quadratics sum to zero at a weighted mean of their rows
    own = [problems.SCALE[y] / len(y) for _, y in rows]
    best = sum(a @ x for a, (x, _) in zip(own, rows, strict=True)) / sum(a.sum() for a in own)
    slopes = [problems.quadratic_gradient(best, x, y) if len(y) else np.zeros(3) for x, y in problems.rows_of(DATA)]
    options = {"task": QUADRATIC, "local_epochs": 5, "weighting": "uniform"}
    start = train(methods.scaffold, rounds=0, **options)
    start = start._replace(model={"w": jnp.asarray(best)}, controls={"w": jnp.asarray(np.stack(slopes))})
    close(train(methods.scaffold, start=start, **options).model["w"], best)
    begun = train(methods.fedavg, rounds=0, **options)._replace(model=start.model)
    assert np.linalg.norm(train(methods.fedavg, start=begun, **options).model["w"] - best) > 1e-3
    stopped = optax.sgd(0.0)
    away = start._replace(model={"w": jnp.asarray(best) + 1}, server=stopped.init(start.model))
    still = train(methods.scaffold, start=away, server_optimizer=stopped, **options)
    close(still.model, away.model)
    assert not np.allclose(still.controls["w"], away.controls["w"], rtol=1e-3)


def loss(model, batch, key=None):
    return masked_mean(batch.x @ model["w"], batch.mask)


def test_a_control_is_the_mean_gradient_whatever_the_steps():
    """Of a client whose gradient is always the same: with momentum, decay of the rate, and stragglers."""
    inputs, slopes = np.array(DATA.inputs), np.arange(7) - 2.5
    for slope, start, size in zip(slopes, DATA.train.start, SIZES, strict=True):
        inputs[DATA.train.rows[start : start + size]] = slope
    data = conditions.straggle(replace(DATA, inputs=inputs), 0.5)
    task = Task(lambda key: {"w": jnp.zeros(3), "seen": jnp.zeros(3)}, loss, lambda model, batch: batch.x)

    def training(model, batch, key=None):  # a running average beside it, which makes no steps
        return loss(model, batch) + model["seen"].sum() * jax.lax.stop_gradient(batch.x.mean())

    task = task._replace(averages=Averages(frozenset({"seen"}), training))
    paced = optax.sgd(optax.exponential_decay(RATE, 3, 0.5), momentum=0.9)
    state = train(methods.scaffold, data, task=task, optimizer=paced, local_epochs=3, batch_size=3)
    wanted = np.where(SIZES > 0, slopes, 0)[:, None] * np.ones(3)
    close(state.controls, {"seen": np.zeros((7, 3)), "w": wanted})


def test_a_client_that_diverges_keeps_its_control_and_counts_for_nothing():
    """Nor does it count among all clients in that round, as if it had no rows."""
    inputs = np.array(DATA.inputs)
    inputs[DATA.train.rows[DATA.train.start[3] :][: SIZES[3]]] = np.nan
    sick = replace(DATA, inputs=inputs)
    gone = replace(DATA, train=replace(DATA.train, size=np.where(np.arange(7) == 3, 0, SIZES).astype(np.int32)))
    options = {"weighting": "rows", "local_epochs": 2}
    found, wanted = (train(methods.scaffold, data, **options) for data in (sick, gone))
    close(found._replace(counted=wanted.counted), wanted)  # it does take part
    equal(tree.take(found.controls, 3), jax.tree.map(jnp.zeros_like, found.model))


def test_an_attackers_control_has_noise_of_its_own():
    """The noise of its model once more, and the server would subtract what was added."""
    data = conditions.attack(DATA, "gaussian", 0.3)
    one = next(client for client in np.flatnonzero(data.attack.attacker) if SIZES[client])
    method = compiled(methods.scaffold(TASK, optax.sgd(RATE), controls="gradient"))
    before = method.init(jax.random.key(0), data)
    after, _ = method.round(jax.random.key(0), before, data, Cohort.of([one]))
    noises = jax.tree.map(jnp.subtract, after.model, before.model), tree.take(after.controls, one)
    model, control = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(noise)]) for noise in noises)
    assert min(np.abs(model).min(), np.abs(control).min()) > 0 and np.abs(model - control).min() > 1e-6


def test_refusals():
    with pytest.raises(ValueError, match=mentions("controls", "gradients")):
        methods.scaffold(TASK, optax.sgd(RATE), controls="gradients")
    clipped = optax.chain(optax.clip(1.0), optax.sgd(RATE))
    with pytest.raises(ValueError, match=mentions("optimizer", "Adam")):
        methods.scaffold(TASK, clipped)
    methods.scaffold(TASK, clipped, controls="gradient")
    averaging = TASK._replace(averages=Averages(frozenset({"bias"}), TASK.loss))
    with pytest.raises(ValueError, match=mentions('controls="gradient"', "running averages")):
        methods.scaffold(averaging, optax.sgd(RATE), controls="gradient")
