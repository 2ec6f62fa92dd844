"""FedSoft: its NumPy loop, what it is without a pull, with one centre, or with hard weights, and what is served."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods, tree
from jaxfl.cohort import Cohort
from jaxfl.methods.fedsoft import importance, mean_centre
from jaxfl.testing import CHECKS
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import close, equal

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE, ROUNDS, COHORT = 0.4, 5, 4
TASK = problems.softmax_task()
DATA = problems.linear_federation()
EPOCHS = {"local_epochs": 2, "batch_size": 3}
EVERYBODY = Cohort.of(range(7))


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


class FedSoft:
    """Centres and models are lists; `weights[k]` is client k's u, None until it is made."""

    def __init__(self, setting, centres, model, pull, sigma, tau, everybody):
        self.setting, self.centres, self.pull = setting, list(centres), pull
        self.sigma, self.tau, self.everybody = sigma, tau, everybody
        self.models = [model] * len(setting.clients)
        self.weights = [None] * len(setting.clients)
        self.trained = set()

    def estimate(self, client):
        x, y = self.setting.clients[client]
        if not len(y):
            return np.full(len(self.centres), 1 / len(self.centres))
        losses = [[reference.gradient(c, x[j : j + 1], y[j : j + 1])[0] for j in range(len(y))] for c in self.centres]
        won = np.bincount(np.argmin(losses, 0), minlength=len(self.centres))
        return np.where(won, won / len(y), self.sigma)

    def round(self, number, cohort):
        due = number % self.tau == 0
        for i in range(len(self.models)) if self.everybody else cohort:
            if due or (not self.everybody and i not in self.trained):
                self.weights[i] = self.estimate(i)
        cohort = reference.with_rows(self.setting, cohort)
        for i in cohort:
            u = self.weights[i]
            middle = reference.average(self.centres, u)
            options = {"pull": self.pull * sum(u), "anchor": middle}
            self.models[i], _ = reference.train(self.setting, number, i, self.models[i], **options)
            self.trained.add(i)
        shares = reference.weights(self.setting, cohort)
        for s, old in enumerate(self.centres):
            weights = [self.weights[i][s] * n for i, n in zip(cohort, shares, strict=True)]
            self.centres[s] = reference.average([self.models[i] for i in cohort], weights) if sum(weights) else old


@functools.cache  # tests share what they compile
def fedsoft(**options):
    return compiled(methods.fedsoft(TASK, optax.sgd(RATE), **{**EPOCHS, **options}))


def train(method, *, rounds=3, data=DATA, start=None):
    """Returns the state after some rounds with a sampled cohort."""
    key = jax.random.key(0)
    state = method.init(key, data) if start is None else start
    for _ in range(rounds):
        state, _ = method.round(key, state, data, problems.sample(key, state.round, data, COHORT))
    return state


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("options", "weighting", "batch_size"),
    [
        ({"num_clusters": 3, "estimate_every": 3}, "rows", 3),
        ({"preset": "official", "smoother": 0.2}, "uniform", None),
    ],
)
def test_every_round_is_the_papers(options, weighting, batch_size, key):
    method = fedsoft(proximal_weight=0.7, weighting=weighting, **{**options, "batch_size": batch_size})
    state = method.init(key, DATA)
    centres = [jax.tree.map(np.asarray, tree.take(state.centres, s)) for s in range(options.get("num_clusters", 2))]
    model = jax.tree.map(np.asarray, tree.take(state.models, 0))
    setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, batch_size, weighting)
    everybody = "preset" in options
    loop = FedSoft(setting, centres, model, 0.7, options.get("smoother", 0), 2 if everybody else 3, everybody)
    for number in range(ROUNDS):
        cohort = problems.sample(key, state.round, DATA, COHORT)
        state, _ = method.round(key, state, DATA, cohort)
        loop.round(number, cohort.ids.tolist())
        for s, centre in enumerate(loop.centres):
            close(tree.take(state.centres, s), centre, rtol=1e-9)
        for client, u in enumerate(loop.weights):
            close(tree.take(state.models, client), loop.models[client], rtol=1e-9)
            if u is not None:
                close(state.weights[client], u)
    assert not everybody or all(u is not None for u in loop.weights)


def test_without_a_pull_own_models_are_local_training(key):
    found = train(fedsoft(proximal_weight=0.0))
    equal(found.models, train(compiled(methods.local(TASK, optax.sgd(RATE), **EPOCHS))).models)


def test_of_one_centre_own_models_are_dittos(key):
    ditto = compiled(methods.ditto(TASK, optax.sgd(RATE), proximal_weight=0.7, **EPOCHS))
    method = fedsoft(proximal_weight=0.7, num_clusters=1)
    start, begin = method.init(key, DATA), ditto.init(key, DATA)
    solver = begin.solver._replace(model=tree.take(start.centres, 0))
    wanted, _ = ditto.round(key, begin._replace(solver=solver), DATA, EVERYBODY)
    found, info = method.round(key, start, DATA, EVERYBODY)
    close(found.models, wanted.models)
    rows = DATA.train.size / DATA.train.size.sum()
    close(found.centres["bias"][0], rows @ np.asarray(found.models["bias"]))
    assert info.extra["shares"].tolist() == [1.0]


def test_with_hard_weights_from_the_centres_on_it_is_ifca(key):
    ifca = compiled(methods.ifca(TASK, optax.sgd(RATE), num_clusters=2, weighting="rows", **EPOCHS))
    """Where every client's own model is the centre that it is pulled to."""
    options = {"proximal_weight": 0.0, "estimate_every": 1000}
    method, start = fedsoft(**options), ifca.init(key, DATA)
    start = start._replace(round=jnp.int32(1))  # in round 0 u would be made
    wanted, info = ifca.round(key, start, DATA, EVERYBODY)
    state = method.init(key, DATA)._replace(
        centres=start.models,
        models=tree.take(start.models, info.cluster),
        weights=jax.nn.one_hot(info.cluster, 2, dtype=jnp.float64),
        trained=jnp.ones(7, bool),
        round=start.round,
    )
    found, _ = method.round(key, state, DATA, EVERYBODY)
    assert {*np.asarray(info.cluster).tolist()} == {0, 1}, "both must have clients"
    close(found.centres, wanted.models)


def test_of_equal_centres_the_first_wins_all_rows(key):
    centres = tree.repeat(TASK.init(key), 3)
    weigh = jax.jit(importance(TASK, 0.25))
    assert weigh(centres, DATA.on_device(), jnp.int32(0)).tolist() == [1, 0.25, 0.25]
    assert np.allclose(weigh(centres, DATA.on_device(), jnp.int32(1)), 1 / 3), "client 1 has no rows"
    sick = jax.tree.map(lambda leaf: leaf.at[0].set(jnp.nan), centres)
    assert weigh(sick, DATA.on_device(), jnp.int32(0)).tolist() == [0.25, 1, 0.25], "no row is lost to NaN"


@pytest.mark.rotating
@pytest.mark.parametrize("options", [{}, {"estimate": "everybody"}])
def test_who_diverges_keeps_its_weights_and_counts_in_no_share(options, key):
    """Client 4's rows are not finite."""
    inputs = np.array(DATA.inputs)
    inputs[DATA.train.rows[DATA.train.start[4] :][: DATA.train.size[4]]] = np.nan
    method = fedsoft(estimate_every=3, **options)
    state, info = method.round(key, method.init(key, DATA), replace(DATA, inputs=inputs), Cohort.of((0, 4, 5)))
    assert info.diverged == 1 and state.weights[4].tolist() == [0.5, 0.5]
    close(info.extra["shares"], state.weights[np.array([0, 5])].mean(0))


@pytest.mark.rotating
@pytest.mark.parametrize("options", [{}, {"estimate": "everybody"}])
def test_who_has_lost_its_rows_keeps_its_weights(options, key):
    method = fedsoft(estimate_every=1, **options)
    state = method.init(key, DATA)
    state = state._replace(weights=state.weights.at[1].set(jnp.array([0.2, 0.8])))
    later, _ = method.round(key, state, DATA, Cohort.of((0, 1, 5)))
    assert later.weights[1].tolist() == [0.2, 0.8] and DATA.train.size[1] == 0


def test_newcomers_are_served_a_mixture_or_the_initial_model(key):
    everybody, method = jnp.arange(7), fedsoft()
    trained = np.array([0, 2, 4, 5])
    state, _ = method.round(key, method.init(key, DATA), DATA, Cohort.of(trained))
    served = method.client_params(state, everybody)
    equal(tree.take(served, trained), tree.take(state.models, trained))
    close(tree.take(served, 3), mean_centre(state.centres, jnp.array([0.5, 0.5])))
    initial = fedsoft(newcomers="initial").client_params(state, everybody)
    close(tree.take(initial, 3), TASK.init(reference.key_for(key, reference.Stream.INIT)))


def test_in_the_official_code_everybody_estimates_in_every_second_round(key):
    data = replace(DATA, held_out=np.arange(7) == 6)
    method, few = fedsoft(preset="official", smoother=0.2), Cohort.of((0, 2))
    first, one = method.round(key, method.init(key, data), data, few)
    second, two = method.round(key, first, data, few)
    third, _ = method.round(key, second, data, few)
    equal(second.weights, first.weights)
    assert not np.array_equal(third.weights, second.weights)
    weigh = jax.jit(importance(TASK, 0.2))
    close(third.weights[6], weigh(second.centres, data, jnp.int32(6)))  # held out
    model, numbers = 8 * 8, 2 * 8  # of float64: 8 numbers of a model, 2 of a client
    assert (one.bytes_up, two.bytes_up) == (2 * (model + numbers) + 5 * numbers, 2 * (model + numbers))
    assert (one.bytes_down, two.bytes_down) == (7 * 2 * model, 2 * 2 * model)
    away = replace(data, absent=np.arange(7) == 6)
    later, seen = method.round(key, method.init(key, away), away, few)
    assert seen.bytes_down == 6 * 2 * model and later.weights[6].tolist() == [0.5, 0.5]


@pytest.mark.rotating
@pytest.mark.parametrize("law", ["planted clusters", "held out clients"])
def test_served_the_centres_it_clusters(law):
    small = {"num_clusters": 2, "served": "cluster", "proximal_weight": 1.0}
    with jax.enable_x64(False):
        assert CHECKS[law](methods.METHODS["fedsoft"]._replace(small=small, finds_clusters=True)) is None


def test_a_mixture_is_a_product_of_the_centres():
    """XLA's sum over the first axis of wide layers is a thousand times slower on a CPU."""
    centres, share = {"w": jnp.arange(12.0).reshape(2, 2, 3)}, jnp.array([1.0, 3.0])
    close(mean_centre(centres, share)["w"], np.arange(6.0).reshape(2, 3) + 4.5)
    parts = [str(equation.primitive) for equation in jax.make_jaxpr(mean_centre)(centres, share).eqns]
    assert (parts.count("dot_general"), parts.count("reduce_sum")) == (1, 1)  # the sum is that of the weights


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_clusters": 0}, ("num_clusters", 0)),
        ({"estimate_every": 0}, ("estimate_every", 0)),
        ({"smoother": -0.1}, ("smoother", -0.1)),
        ({"smoother": float("inf")}, ("smoother", "inf")),
        ({"proximal_weight": -1.0}, ("proximal_weight", -1.0)),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        methods.fedsoft(TASK, optax.sgd(RATE), **options)
