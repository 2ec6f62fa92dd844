"""FedNova against its NumPy loop, the shares that it gives its clients, and the methods that it becomes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods
from jaxfl.client import conduct
from jaxfl.cohort import Cohort
from jaxfl.data import conditions
from jaxfl.tasks import Averages, Task, masked_mean
from tests import problems, reference
from tests.problems import compiled
from tests.reference import batches, close, combine, gradient, key_for

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE, ROUNDS, EVERYONE = 0.2, 3, (0, 1, 2, 3, 4, 5, 6)
TASK = problems.softmax_task()
DATA = problems.linear_federation()
SIZES = DATA.train.size


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


class FedNova:
    """Changes by clients, one after the other; how far an optimiser goes is the paper's formula."""

    def __init__(self, setting, model, pull=0.0, momentum=0.0, counted=False):
        self.setting, self.model, self.pull, self.momentum, self.counted = setting, model, pull, momentum, counted

    def train(self, number, client):
        x, y = self.setting.clients[client]
        key = key_for(self.setting.root, reference.Stream.BATCHES, number, client)
        model, velocity, steps = self.model, combine([(0, self.model)]), 0
        for rows in batches(key, len(y), self.setting.epochs, self.setting.batch_size):
            slope = gradient(model, x[rows], y[rows])[1]
            slope = combine([(1, slope), (self.pull, model), (-self.pull, self.model)])
            velocity = combine([(1, slope), (self.momentum, velocity)])
            model, steps = combine([(1, model), (-self.setting.rate, velocity)]), steps + 1
        return model, steps

    def norm(self, steps):
        rho, pull = self.momentum, self.setting.rate * self.pull
        if rho:
            return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
        return (1 - (1 - pull) ** steps) / pull if pull else steps

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        shares = np.array(reference.weights(self.setting, cohort), float)
        shares /= shares.sum()
        trained = [self.train(number, i) for i in cohort]
        lengths = np.array([self.norm(steps) for _, steps in trained])
        slopes = [combine([(1 / a, self.model), (-1 / a, y)]) for a, (y, _) in zip(lengths, trained, strict=True)]
        tau = shares @ ([steps for _, steps in trained] if self.counted else lengths)
        self.model = combine([(1, self.model), (-tau, combine(zip(shares, slopes, strict=True)))])


CASES = {
    "momentum": ({"weighting": "rows"}, {"momentum": 0.9}),
    "pull": ({"proximal_weight": 0.7, "weighting": "uniform"}, {"pull": 0.7}),
    "official": ({"proximal_weight": 0.7, "preset": "official"}, {"pull": 0.7, "counted": True}),
}


@pytest.mark.rotating
@pytest.mark.parametrize("name", CASES)
def test_every_round_is_the_papers(name, key):
    options, arguments = CASES[name]
    optimizer = optax.sgd(RATE, momentum=arguments.get("momentum"))
    method = compiled(methods.fednova(TASK, optimizer, local_epochs=2, batch_size=3, **options))
    state = method.init(key, DATA)
    weighting = options.get("weighting", "rows")
    setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, 3, weighting)
    wanted = FedNova(setting, jax.tree.map(np.asarray, state.model), **arguments)
    for number in range(ROUNDS):
        cohort = problems.sample(key, state.round, DATA, 4)
        state, _ = method.round(key, state, DATA, cohort)
        wanted.round(number, cohort.ids.tolist())
        close(state.model, wanted.model)


def train(factory, data=DATA, *, task=TASK, rate=RATE, rounds=2, **options):
    """Returns the global model after some rounds of everybody."""
    method, key = compiled(factory(task, optax.sgd(rate), **options)), jax.random.key(0)
    state = method.init(key, data)
    for _ in range(rounds):
        state, _ = method.round(key, state, data, Cohort.of(EVERYONE))
    return state.model


def test_equal_steps_make_it_fedavg_and_one_step_fedsgd():
    options = {"local_epochs": 3, "weighting": "uniform"}
    close(train(methods.fednova, **options), train(methods.fedavg, **options))
    close(train(methods.fednova, local_epochs=1), train(methods.fedsgd))


def loss(model, batch, key=None):
    """Linear: every gradient of a client of equal rows is the same."""
    return masked_mean(batch.x @ model["w"], batch.mask)


LINEAR = Task(lambda key: {"w": jnp.zeros(3)}, loss, lambda model, batch: batch.x)


def test_a_clients_share_does_not_depend_on_how_many_steps_it_makes():
    """Client i makes ceil(n_i / 3) steps an epoch, and some are late; in FedAvg it is heard as often."""
    slopes, inputs = np.array([3.0, 0.0, -1.0, 2.0, 4.0, -2.0, 1.0]), np.array(DATA.inputs)
    for slope, start, size in zip(slopes, DATA.train.start, SIZES, strict=True):
        inputs[DATA.train.rows[start : start + size]] = slope
    data = conditions.straggle(DATA.replace(inputs=inputs), 0.5)
    keys = [key_for(jax.random.key(0), reference.Stream.BATCHES, 0, client) for client in EVERYONE]
    epochs = np.array([int(conduct.training_length(key, data, 3)) for key in keys])
    assert len({*epochs[SIZES > 0]}) > 1
    counts, shares = epochs * np.ceil(SIZES / 3), SIZES / SIZES.sum()
    options = {"data": data, "task": LINEAR, "rounds": 1, "local_epochs": 3, "batch_size": 3}
    close(train(methods.fednova, **options)["w"], np.full(3, -RATE * (shares @ counts) * (shares @ slopes)))
    close(train(methods.fedavg, **options)["w"], np.full(3, -RATE * (shares * counts) @ slopes))


def test_it_minimises_the_objective_and_fedavg_another():
    rows, counts = problems.rows_of(DATA), SIZES.astype(float)  # one row a step: n_i steps

    def optimum(weights):
        """Where the gradients of the weighted sum of the clients' quadratics are zero: a weighted mean of rows."""
        own = [weight * problems.SCALE[y] / max(len(y), 1) for weight, (_, y) in zip(weights, rows, strict=True)]
        return sum(a @ x for a, (x, _) in zip(own, rows, strict=True)) / sum(a.sum() for a in own)

    true, other = optimum(SIZES), optimum(SIZES * counts)
    options = {"task": problems.quadratic_task(), "rate": 0.015, "rounds": 400, "local_epochs": 1, "batch_size": 1}
    nova, average = (np.asarray(train(factory, **options)["w"]) for factory in (methods.fednova, methods.fedavg))
    # what is left is of the order of the learning rate
    assert np.linalg.norm(nova - true) < 0.2 * np.linalg.norm(nova - other)
    assert np.linalg.norm(average - other) < 0.2 * np.linalg.norm(average - true)


def test_running_averages_are_averaged_as_they_are():
    """A value that steps do not make is not carried beyond the clients' own."""

    def training(model, batch, key=None):
        seen = jax.lax.stop_gradient(batch.mask.sum().astype(float))
        return loss(model, batch) + model["seen"] * seen

    task = LINEAR._replace(init=lambda key: {"seen": jnp.zeros(()), "w": jnp.zeros(3)})
    task = task._replace(averages=Averages(frozenset({"seen"}), training))
    model = train(methods.fednova, task=task, rounds=1, local_epochs=1, batch_size=1, weighting="uniform")
    close(model["seen"], 1.0)
