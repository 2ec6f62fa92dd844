"""FedDBE: its NumPy loop, its worked example, the consensual mean, and FedAvg without a pull and a shift."""

import functools
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
from jaxfl.methods.feddbe import half_mean_square, moving_mean
from jaxfl.random import Stream, key_for
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import close, equal

pytestmark = pytest.mark.rotating("function", weeks=6)

RATE, COHORT, WIDTH, CLIENTS = 0.4, 4, 3, np.arange(7)
# client 1 has no rows, clients 4 and 6 may have one class, client 5 is held out
DATA = replace(problems.linear_federation(), held_out=CLIENTS == 5)
TASK = problems.tanh_task()


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@functools.cache  # tests share what they compile
def made(name="feddbe", **options):
    return compiled(getattr(methods, name)(TASK, optax.sgd(RATE), **{"local_epochs": 2, "batch_size": 3, **options}))


class FedDBE:
    """r is the moving mean of the features, z the shift, M the consensual mean."""

    def __init__(self, setting, model, *, pull, momentum, shift_rate, start):
        self.setting, self.model, self.momentum, self.shift_rate, self.pull = setting, model, momentum, shift_rate, pull
        self.shifts, self.mean = [np.zeros(WIDTH) for _ in setting.clients], None
        if start == "everybody":
            self.mean = self.consensus([i for i in CLIENTS.tolist() if i != 5])

    def consensus(self, clients):
        clients = reference.with_rows(self.setting, clients)
        means = [self.train(key_for(self.setting.root, Stream.START, 0, i), i, 0.0, 0.0)[2] for i in clients]
        return np.average(means, axis=0, weights=reference.weights(self.setting, clients))

    def train(self, key, i, pull, shift_rate):
        (x, y), model, z, r = self.setting.clients[i], self.model, self.shifts[i], np.zeros(WIDTH)
        for rows in reference.batches(key, len(y), self.setting.epochs, self.setting.batch_size):
            u, truth, count = np.tanh(x[rows] @ model["a"]["kernel"]), np.eye(2)[y[rows]], len(rows)
            r = (1 - self.momentum) * r + self.momentum * u.mean(0)
            scores = (u + z) @ model["b"]["kernel"] + model["b"]["bias"]
            p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
            residual = (p - truth) / count
            of_features = residual @ model["b"]["kernel"].T
            of_mean = pull * (r - self.mean) / WIDTH if pull else np.zeros(WIDTH)
            below = of_features + self.momentum * of_mean / count
            slopes = {
                "a": {"kernel": x[rows].T @ (below * (1 - u**2))},
                "b": {"bias": residual.sum(0), "kernel": (u + z).T @ residual},
            }
            model = jax.tree.map(lambda leaf, slope: leaf - RATE * slope, model, slopes)
            z = z - shift_rate * RATE * of_features.sum(0)
        return model, z, r

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        self.mean = self.consensus(cohort) if self.mean is None else self.mean
        keys = [key_for(self.setting.root, Stream.BATCHES, number, i) for i in cohort]
        trained = [self.train(key, i, self.pull, self.shift_rate) for key, i in zip(keys, cohort, strict=True)]
        for (_, shift, _), i in zip(trained, cohort, strict=True):
            self.shifts[i] = shift
        counts = reference.weights(self.setting, cohort)
        self.model = {part: reference.average([one[part] for one, _, _ in trained], counts) for part in ("a", "b")}


@pytest.mark.parametrize(
    ("start", "pull", "momentum", "shift_rate", "weighting", "batch_size"),
    [("everybody", 5.0, 1.0, 1.0, "rows", 3), ("cohort", 2.0, 0.3, 0.5, "uniform", None)],
)
def test_every_round_is_that_of_a_loop(start, pull, momentum, shift_rate, weighting, batch_size, key):
    options = {"mean_pull": pull, "mean_momentum": momentum, "shift_rate": shift_rate, "start": start}
    method = made(weighting=weighting, batch_size=batch_size, **options)
    setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, batch_size, weighting)
    first = jax.tree.map(np.asarray, TASK.init(key_for(key, Stream.INIT)))
    loop = FedDBE(setting, first, pull=pull, momentum=momentum, shift_rate=shift_rate, start=start)
    state = method.init(key, DATA)
    for number in range(4):
        cohort = problems.sample(key, state.round, DATA, COHORT)
        state, info = method.round(key, state, DATA, cohort)
        loop.round(number, cohort.ids.tolist())
        close(state.mean, loop.mean, rtol=1e-9)
        served = method.client_params(state, CLIENTS)
        for client in range(7):
            close(tree.take(served, client), {"net": loop.model, "shift": loop.shifts[client]}, rtol=1e-9)
        # of 17 numbers in the network; five clients of all have rows and are not held out
        more = {"everybody": (5 * 3, 5 * (17 + 3)) if number == 0 else (0, 0), "cohort": (0, 3 * COHORT)}[start]
        more = (more[0] + 3 * COHORT, more[1]) if (start, number) == ("cohort", 0) else more
        assert (info.bytes_up, info.bytes_down) == tuple(8 * (17 * COHORT + extra) for extra in more)
    shifts = np.asarray(served["shift"])
    assert not np.any(shifts[[1, 5]]) and np.any(shifts[cohort.ids])


def test_the_worked_example():
    """r = (1, 3), M = (0, 1), kappa 1: 1.25 with mu = 1; 0.125 after the first step with mu = 0.1."""
    x, target = jnp.array([[0.0, 2.0], [2.0, 4.0], [9.0, 9.0]]), jnp.array([0.0, 1.0])
    mask = jnp.array([True, True, False])
    for momentum, wanted in ((1.0, 1.25), (0.1, 0.125)):
        np.testing.assert_allclose(half_mean_square(moving_mean(jnp.zeros(2), x, mask, momentum), target), wanted)


def test_the_mean_of_one_full_batch_is_that_of_all_rows_under_the_initial_network(key):
    """With mu = 0.1 it is a tenth of that: r begins at 0. It is the same whoever attacks, or is sampled later."""
    options = {"local_epochs": 1, "batch_size": None}
    first = jax.tree.map(np.asarray, TASK.init(key_for(key, Stream.INIT)))
    means = [np.tanh(x @ first["a"]["kernel"]).mean(0) for x, _ in problems.rows_of(DATA) if len(x)]
    rows = np.array([5, 3, 8, 1, 6, 4])  # of clients 0, 2, 3, 4, 5 and 6
    there = np.array([True, True, True, True, False, True])
    wanted = np.average(means, axis=0, weights=rows * there)
    method = made(**options)
    start = method.init(key, DATA)
    close(start.mean, wanted)
    close(made(mean_momentum=0.1, **options).init(key, DATA).mean, 0.1 * wanted)
    close(method.init(key, conditions.attack(DATA, "sign-flip", 0.5, scale=3.0)).mean, start.mean)
    after, _ = method.round(key, start, DATA, Cohort.of([0, 3]))
    equal(after.mean, start.mean)
    early = made(start="cohort", **options)
    nobody, _ = early.round(key, early.init(key, DATA), DATA, Cohort.of([1]))
    assert not nobody.known and not np.any(nobody.mean)
    known, _ = early.round(key, nobody, DATA, Cohort.of([0, 3]))
    close(known.mean, np.average([means[0], means[2]], axis=0, weights=[5, 8]))
    equal(early.round(key, known, DATA, Cohort.of([2, 6]))[0].mean, known.mean)


def rounds(method, key, count=3):
    state, info = method.init(key, DATA), None
    for _ in range(count):
        state, info = method.round(key, state, DATA, problems.sample(key, state.round, DATA, COHORT))
    return state, info, method.client_params(state, CLIENTS)


def test_without_a_pull_and_a_shift_it_is_fedavg(key):
    (state, info, served), (_, wanted, global_models) = (
        rounds(method, key, 1) for method in (made(mean_pull=0.0, shift_rate=0.0), made("fedavg"))
    )
    close(served["net"], global_models)
    assert (info.bytes_up, info.bytes_down) == (wanted.bytes_up, wanted.bytes_down) and not state.known
    assert not np.any(served["shift"])


def test_a_shift_is_a_bias_of_the_head(key):
    """(x + z) W + b = x W + (b + z W); while W is 0 it does not move."""
    method = made(local_epochs=1, batch_size=None)
    state, _, served = rounds(method, key)
    batch = problems.batch_of(DATA, "train", 3, np.arange(8, dtype=np.int32))
    one = tree.take(served, 3)
    assert np.any(one["shift"])
    head = one["net"]["b"]
    moved = one["net"] | {"b": {**head, "bias": head["bias"] + one["shift"] @ head["kernel"]}}
    close(*(jax.jit(task.outputs)(model, batch) for task, model in ((method.task, one), (TASK, moved))))
    close(*(jax.jit(task.loss)(model, batch, None) for task, model in ((method.task, one), (TASK, moved))))

    flat = jax.tree.map(np.asarray, state.model)
    flat["b"]["kernel"] = np.zeros_like(flat["b"]["kernel"])
    after, _ = method.round(key, method.init(key, DATA)._replace(model=flat), DATA, Cohort.of([3]))
    assert not np.any(after.shifts) and np.any(after.model["b"]["kernel"])


def test_a_batch_of_more_rows_than_a_block_has_one_mean(key):
    """One step of all rows is the same, whether they are a full batch or a mini-batch that holds them."""
    many = problems.linear_federation(sizes=(300, 5), groups=(0, 1))
    found = []
    for size in (None, 512):
        method = made(batch_size=size, local_epochs=1, mean_pull=50.0, start="cohort")
        state, _ = method.round(key, method.init(key, many), many, Cohort.of([0, 1]))
        found.append((state.mean, state.model, state.shifts))
    close(*found)


@pytest.mark.slow
def test_a_network_with_batch_normalisation_trains_and_is_fine_tuned():
    data = jaxfl.data.load("pathological-digits", num_clients=8, rows_per_client=20)
    task = jaxfl.classification(jaxfl.models.create("mlp-batch-norm", 10, hidden=(8,)), data)
    tune = jaxfl.FineTune(optax.sgd(0.1))
    method = methods.feddbe(task, optax.sgd(0.1), batch_size=10, mean_pull=1.0)
    result = jaxfl.run(method, data, rounds=3, seed=0, finetune=tune)
    before = jax.tree.map(np.asarray, task.init(jax.random.key(0)))
    moved = [
        not np.array_equal(one, two)
        for one, two in zip(jax.tree.leaves(result.state.model), jax.tree.leaves(before), strict=True)
    ]
    assert all(moved) and result.summary["micro_accuracy"] > 0.3
    assert result.summary["finetuned_diverged"] == 0


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("mean_pull", -1.0),
        ("mean_pull", float("nan")),
        ("shift_rate", -0.5),
        ("mean_momentum", 0.0),
        ("mean_momentum", 1.5),
        ("local_epochs", 0),
    ],
)
def test_refusals(option, value):
    with pytest.raises(ValueError, match=mentions(option, value)):
        methods.feddbe(TASK, optax.sgd(RATE), **{option: value})
