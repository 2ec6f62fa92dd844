"""FedPAC: its NumPy loop, its worked example, the combination's optimum, and FedRep of one client."""

import functools
import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods, tree
from jaxfl.cohort import Cohort
from jaxfl.data import conditions
from jaxfl.methods.fedpac import FeatureStatistics, combination_weights, feature_statistics
from jaxfl.methods.parts.heads import ClassSums
from jaxfl.random import Stream, key_for
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import close, equal

pytestmark = pytest.mark.rotating("function", weeks=6)

RATE, COHORT, WIDTH = 0.4, 4, 3
# client 1 has no rows, client 4 has one, client 5 is held out
DATA = replace(problems.linear_federation(), held_out=np.arange(7) == 5)
TASK = problems.tanh_task()


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@functools.cache  # tests share what they compile
def made(name="fedpac", **options):
    return compiled(getattr(methods, name)(TASK, optax.sgd(RATE), **{"local_epochs": 2, "batch_size": 3, **options}))


def features(model, x):
    return np.tanh(x @ model["a"]["kernel"])


def sides(model, x, y):
    """Returns the features and the gradient of the mean loss by the logits."""
    u, truth = features(model, x), np.eye(2)[y]
    scores = u @ model["b"]["kernel"] + model["b"]["bias"]
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    return u, (p - truth) / len(y)


def best_weights(form):
    """Returns the convex weights of least value, of all sets of weights that are not 0."""
    found = []
    for size in range(1, len(form) + 1):
        for on in map(list, itertools.combinations(range(len(form)), size)):
            part = np.linalg.solve(form[np.ix_(on, on)], np.ones(size))
            weights = np.zeros(len(form))
            weights[on] = part / part.sum()
            if (weights >= 0).all():
                found.append((weights @ form @ weights, weights))
    return min(found, key=lambda one: one[0])[1]


class FedPAC:
    def __init__(self, setting, model, pull, head_rate):
        self.setting, self.pull, self.head_rate = setting, pull, head_rate
        self.base, self.heads, self.means = model["a"], [model["b"] for _ in setting.clients], {}
        self.trained = set()

    def train(self, number, i):
        (x, y), model = self.setting.clients[i], {"a": self.base, "b": self.heads[i]}
        own = {k: features(model, x[y == k]).mean(0) for k in {*y.tolist()}}
        u = features(model, x)
        shares = np.array([u[y == k].sum(0) / len(y) for k in range(2)])
        variance = ((u**2).sum(1).mean() - (shares**2).sum()) / len(y)
        key = key_for(self.setting.root, Stream.BATCHES, number, i)
        for rows in reference.batches(key_for(key, Stream.HEADS), len(y), 1, self.setting.batch_size):
            u, residual = sides(model, x[rows], y[rows])
            slopes = {"bias": residual.sum(0), "kernel": u.T @ residual}
            head = jax.tree.map(lambda leaf, slope: leaf - self.head_rate * RATE * slope, model["b"], slopes)
            model = {"a": model["a"], "b": head}
        for rows in reference.batches(key, len(y), self.setting.epochs, self.setting.batch_size):
            u, residual = sides(model, x[rows], y[rows])
            targets = np.array([self.means.get(k, own[k]) for k in y[rows].tolist()])
            pull = self.pull if number else 0
            below = residual @ model["b"]["kernel"].T + pull * 2 * (u - targets) / (WIDTH * len(rows))
            slope = x[rows].T @ (below * (1 - u**2))
            model = {"a": {"kernel": model["a"]["kernel"] - RATE * slope}, "b": model["b"]}
        return model, shares, variance

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        trained, shares, variances = zip(*(self.train(number, i) for i in cohort), strict=True)
        counts = reference.weights(self.setting, cohort)
        self.base = reference.average([model["a"] for model in trained], counts)
        for k in range(2):
            rows = [
                features(m, self.setting.clients[i][0][self.setting.clients[i][1] == k])
                for m, i in zip(trained, cohort, strict=True)
            ]
            if sum(map(len, rows)):
                self.means[k] = np.concatenate(rows).mean(0)
        for place, i in enumerate(cohort):
            away = np.array([(shares[place] - other).ravel() for other in shares])
            form = away @ away.T + np.diag(variances)
            form += 1e-15 * np.trace(form) * np.eye(len(form))  # client 4 has no variance
            alpha = best_weights(form)
            alpha = np.where(alpha < 1e-3, 0, alpha)
            self.heads[i] = reference.average([model["b"] for model in trained], alpha)
        self.trained |= {*cohort}

    def head(self, i, newcomers):
        if i in self.trained or newcomers == "initial":
            return self.heads[i]
        return reference.average([self.heads[j] for j in self.trained], [1] * len(self.trained))


@pytest.mark.parametrize(
    ("pull", "head_rate", "weighting", "batch_size", "newcomers"),
    [(0.8, 2.0, "rows", 3, "initial"), (0.5, 1.0, "uniform", None, "mean")],
)
def test_every_round_is_that_of_a_loop(pull, head_rate, weighting, batch_size, newcomers, key):
    options = {"weighting": weighting, "batch_size": batch_size, "newcomers": newcomers}
    method = made(alignment_weight=pull, head_rate=head_rate, **options)
    setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, batch_size, weighting)
    state = method.init(key, DATA)
    loop = FedPAC(setting, jax.tree.map(np.asarray, TASK.init(key_for(key, Stream.INIT))), pull, head_rate)
    for number in range(5):
        cohort = problems.sample(key, state.round, DATA, COHORT)
        state, info = method.round(key, state, DATA, cohort)
        # of 9 numbers in the base and 8 in the head; d = 3, L = 2
        assert info.bytes_up == 8 * COHORT * (17 + 2 * 6 + 2 + 1) and info.bytes_down == 8 * COHORT * (17 + 6)
        loop.round(number, cohort.ids.tolist())
        served = method.client_params(state, np.arange(7))
        for client in range(7):
            close(tree.take(served, client), {"a": loop.base, "b": loop.head(client, newcomers)}, rtol=1e-9)
        assert np.flatnonzero(state.known).tolist() == sorted(loop.means)
        for k, mean in loop.means.items():
            close(state.anchors[k], mean, rtol=1e-9)


def statistics_of(x, y):
    x, y = np.array(x, float), np.array(y)
    members = np.eye(2)[y]
    return feature_statistics(ClassSums(jnp.asarray(members.T @ x), jnp.asarray(members.sum(0)), jnp.sum(x**2)))


def test_the_worked_example():
    clients = [
        statistics_of([(1, 0), (1, 0.2), (0, 1)], [0, 0, 1]),
        statistics_of([(0.9, 0.1), (0.1, 1), (0, 1.2), (0, 0.8)], [0, 1, 1, 1]),
        statistics_of([(0, 1), (1, 0)], [0, 1]),
    ]
    statistics = jax.tree.map(lambda *leaves: jnp.stack(leaves), *clients)
    np.testing.assert_allclose(statistics.variance, [0.151111, 0.090781, 0.25], atol=1e-6)
    np.testing.assert_allclose(statistics.shares[0], [[0.666667, 0.066667], [0, 0.333333]], atol=1e-6)
    np.testing.assert_allclose(
        combination_weights(statistics, jnp.ones(3, bool)),
        [[0.722088, 0.216240, 0.061672], [0.129908, 0.834315, 0.035777], [0.102032, 0.098527, 0.799442]],
        atol=1e-6,
    )


def test_the_combination_of_equal_clients_follows_their_variances_and_no_unit():
    """And a client that is not valid is in none of them, whatever it sent."""
    shares, variance = jnp.ones((4, 2, 3)), jnp.array([0.1, 0.2, 0.4, 0.3])
    valid = jnp.array([True, True, True, False])
    wanted = np.append(1 / variance[:3], 0) / np.sum(1 / variance[:3])
    broken = FeatureStatistics(shares.at[3].set(jnp.nan), variance.at[3].set(jnp.nan))
    found = combination_weights(broken, valid)
    close(found, np.stack([wanted] * 3 + [np.zeros(4)]))
    away = shares + jax.random.normal(jax.random.key(0), shares.shape)
    one, two = (combination_weights(FeatureStatistics(c * away, c**2 * variance), valid) for c in (1.0, 1e3))
    close(one, two, rtol=1e-8)
    none = FeatureStatistics(jnp.zeros((4, 2, 3)), jnp.zeros(4))  # features of zeros: all heads are alike
    close(combination_weights(none, valid)[0], np.array([1, 1, 1, 0]) / 3)


def test_a_row_without_variance_keeps_its_own_head():
    with jax.enable_x64(False):
        shares = jax.random.normal(jax.random.key(0), (3, 2, 3), jnp.float32)
        statistics = FeatureStatistics(shares, jnp.array([0.0, 0.01, -1e-9], jnp.float32))
        found = combination_weights(statistics, jnp.ones(3, bool))
    equal(found[0], np.array([1, 0, 0], np.float32))
    equal(found[2], np.array([0, 0, 1], np.float32))


def rounds(method, cohort, key, data=DATA):
    state = method.init(key, data)
    for _ in range(2):
        state, _ = method.round(key, state, data, cohort)
    return state


def test_of_one_client_without_alignment_it_is_fedrep(key):
    cohort = Cohort.of([3])
    found, wanted = (
        method.client_params(rounds(method, cohort, key), np.arange(7))
        for method in (made(alignment_weight=0.0), made("fedrep", head_epochs=1, weighting="rows"))
    )
    close(found, wanted)


def test_an_attacker_is_honest_until_it_sends(key):
    """It turns the steps of both parts; a flipped head would turn the base another way."""
    method, attacked = made(), conditions.attack(DATA, "sign-flip", 0.2, scale=1.0)
    (attacker,) = np.flatnonzero(attacked.attack.attacker)
    nobody = replace(attacked, attack=replace(attacked.attack, attacker=np.zeros(7, bool)))
    start = method.init(key, DATA)
    moved = []
    for data in (attacked, nobody):
        after, _ = method.round(key, start, data, Cohort.of([attacker]))
        served = [tree.take(method.client_params(state, np.array([attacker])), 0) for state in (after, start)]
        moved.append(jax.tree.map(np.subtract, *served))
    close(moved[0], jax.tree.map(np.negative, moved[1]))
    assert np.any(moved[0]["a"]["kernel"]) and np.any(moved[0]["b"]["kernel"])


@pytest.mark.parametrize(
    ("option", "value"), [("alignment_weight", -1.0), ("head_rate", 0.0), ("head_epochs", 0), ("local_epochs", 0)]
)
def test_refusals(option, value):
    with pytest.raises(ValueError, match=mentions(option, value)):
        methods.fedpac(TASK, optax.sgd(RATE), **{option: value})
