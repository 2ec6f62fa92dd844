"""pFedGraph: its NumPy loop, its worked example, the graph's optimum, and the methods that it becomes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods, tree
from jaxfl.client.corrections import directional_pull
from jaxfl.cohort import Cohort
from jaxfl.methods.pfedgraph import collaboration_graph
from jaxfl.random import Stream, key_for
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import close, equal, follow

pytestmark = pytest.mark.rotating("function", weeks=6)

RATE, COHORT = 0.4, 4
TASK = problems.softmax_task()
# client 1 has no rows, client 4 one class, client 5 is held out
DATA = replace(problems.linear_federation(), held_out=np.arange(7) == 5)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def pfedgraph(**options):
    return compiled(methods.pfedgraph(TASK, optax.sgd(RATE), **{"local_epochs": 2, "batch_size": 3, **options}))


def flat(model):
    return np.concatenate([model[name].ravel() for name in sorted(model)])


def nearest_weights(point):
    """Returns the projection onto the simplex: negative weights leave until there are none."""
    on = np.ones(len(point), bool)
    while True:
        weights = np.where(on, point - (point[on].sum() - 1) / on.sum(), 0)
        if (weights >= 0).all():
            return weights
        on &= weights > 0


class PFedGraph:
    """`turns` is lambda with its sign; `stored` says whether c_i is sent, or is the direction of theta_i."""

    def __init__(self, setting, model, *, alpha, turns, stored=True, threshold=0.9):
        self.setting, self.start, self.alpha, self.turns = setting, model, alpha, turns
        self.stored, self.threshold = stored, threshold
        self.models, self.directions, self.rows = [model] * len(setting.clients), {}, {}

    def train(self, number, i):
        (x, y), model = self.setting.clients[i], self.models[i]
        c = None
        if i in self.rows:
            c = self.directions[i] if self.stored else reference.combine([(1 / np.linalg.norm(flat(model)), model)])
        key = key_for(self.setting.root, Stream.BATCHES, number, i)
        for rows in reference.batches(key, len(y), self.setting.epochs, self.setting.batch_size):
            _, slope = reference.gradient(model, x[rows], y[rows])
            if c is not None:
                size, inner = np.linalg.norm(flat(model)), flat(c) @ flat(model)
                slope = reference.combine([(1, slope), (-self.turns / size, c), (self.turns * inner / size**3, model)])
            model = reference.combine([(1, model), (-RATE, slope)])
        return model

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        trained = {i: self.train(number, i) for i in cohort}
        counts = {i: len(self.setting.clients[i][1]) for i in cohort}
        changes = {i: flat(model) - flat(self.start) for i, model in trained.items()}
        for i in cohort:
            near = [1.0 if j == i else reference.cosine(changes[i], changes[j]) for j in cohort]
            near = [1.0 if self.threshold is not None and s > self.threshold else s for s in near]
            shares = np.array([counts[j] / sum(counts.values()) for j in cohort])
            weights = nearest_weights(shares + np.array(near) / (2 * self.alpha))
            self.models[i] = reference.combine(zip(weights, trained.values(), strict=True))
            lengths = [np.linalg.norm(flat(model)) for model in trained.values()]
            self.directions[i] = reference.combine(zip(weights / lengths, trained.values(), strict=True))
            self.rows[i] = counts[i]

    def served(self, i):
        if i in self.rows or not self.rows:
            return self.models[i]
        return reference.average([self.models[j] for j in self.rows], list(self.rows.values()))


@pytest.mark.parametrize(
    ("options", "loop"),
    [
        ({"concentration": 0.8, "pull": 0.3}, {"alpha": 0.8, "turns": 0.3}),
        ({"concentration": 0.6, "pull": 0.3, "pull_to": "model"}, {"alpha": 0.6, "turns": 0.3, "stored": False}),
        (
            {"concentration": 1.5, "pull": 0.2, "preset": "official", "threshold": None, "batch_size": None},
            {"alpha": 1.5, "turns": -0.2, "threshold": None},
        ),
    ],
    ids=["paper", "model", "official"],
)
def test_every_round_is_that_of_a_loop(options, loop, key):
    method = pfedgraph(**options)
    setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, options.get("batch_size", 3))
    model = jax.tree.map(np.asarray, method.init(key, DATA).initial)
    loop = PFedGraph(setting, model, **loop)
    state = follow(method, loop, DATA, key, cohort=COHORT)
    assert not np.any(state.own.rows[np.array([1, 5])])
    equal(state.own.model["kernel"][1], state.initial["kernel"])
    close(state.rows, sum(loop.rows.values()))


def test_the_worked_example():
    """Cosines .96, -.6 and -.352; p = (.5, .3, .2)."""
    changes, everyone = {"w": jnp.array([[1.0, 0], [0.96, 0.28], [-0.6, 0.8]])}, jnp.ones(3, bool)

    def graph(alpha, threshold):
        return collaboration_graph(changes, jnp.array([5.0, 3, 2]), everyone, alpha, threshold, {"w": True})

    close(graph(0.8, 0.9), np.array([[0.6, 0.4, 0], [0.6, 0.4, 0], [0.115, 0.07, 0.815]]))
    close(graph(0.8, None), np.array([[0.6125, 0.3875, 0], [0.5875, 0.4125, 0], [0.115, 0.07, 0.815]]))
    close(graph(100.0, 0.9)[0], np.array([0.502667, 0.302667, 0.194667]), rtol=2e-6)
    turn, model, zeros = directional_pull(-1.0), {"w": jnp.array([3.0, 4.0])}, {"w": jnp.zeros(2)}
    found, _ = turn.update(zeros, turn.init(model), model, direction={"w": jnp.array([1.0, 0.0])})
    close(found["w"], np.array([0.128, -0.096]))
    found, _ = turn.update(zeros, turn.init(zeros), zeros, direction=model)
    equal(found["w"], np.zeros(2))


def test_a_row_of_the_graph_is_the_least_of_its_objective():
    rng, valid = np.random.default_rng(0), np.array([True, True, False, True, True])
    changes, sizes, alpha = rng.normal(size=(5, 6)), np.array([4.0, 7, 0, 2, 9]), 0.7
    found = collaboration_graph({"w": jnp.asarray(changes)}, sizes, valid, alpha, None, {"w": True})
    shares, units = sizes / sizes.sum(), changes / np.linalg.norm(changes, axis=1, keepdims=True)
    cosines = units @ units.T
    assert not np.any(found[2]) and not np.any(found[:, 2])
    close(np.sum(found, axis=1), valid.astype(float))
    for i in np.flatnonzero(valid):
        slopes = 2 * alpha * (found[i] - shares) - cosines[i]
        level = slopes[found[i] > 0]
        np.testing.assert_allclose(level, level[0], atol=1e-12)
        assert (slopes[valid] >= level[0] - 1e-12).all(), "a client with a weight of 0 would raise the value"


def test_models_that_have_not_moved_are_like_themselves_alone():
    still = {"w": jnp.zeros((3, 2))}
    found = collaboration_graph(still, jnp.ones(3), jnp.ones(3, bool), 0.25, 0.9, {"w": True})
    close(found, np.eye(3))


def rounds(method, cohort, key, *, data=DATA, count=2):
    state = method.init(key, data)
    for _ in range(count):
        state, _ = method.round(key, state, data, cohort)
    return state


def test_without_others_and_pull_it_is_local_training_and_with_a_high_alpha_fedavg(key):
    local = compiled(methods.local(TASK, optax.sgd(RATE), local_epochs=2, batch_size=3))
    alone = pfedgraph(pull=0.0, concentration=0.1, threshold=None)
    cohort = Cohort.of([0, 3])  # of the two groups: their cosine is far below 0
    close(rounds(alone, cohort, key).own.model, rounds(local, cohort, key).models)
    fedavg = compiled(methods.fedavg(TASK, optax.sgd(RATE), local_epochs=2, batch_size=3))
    equal_models, cohort = pfedgraph(pull=0.0, threshold=-1.0), Cohort.of([0, 3, 4, 6])
    found, wanted = rounds(equal_models, cohort, key), rounds(fedavg, cohort, key)
    close(tree.take(found.own.model, 3), wanted.model)
    close(found.mean, wanted.model)
    with_threshold = rounds(pfedgraph(pull=0.0, concentration=1e12), cohort, key)
    close(tree.take(with_threshold.own.model, 0), wanted.model, rtol=1e-6)


def test_the_direction_is_sent_where_it_is_stored_alone(key):
    cohort, number = Cohort.of([0, 1, 3]), 8 * 8 * 3  # a model has 8 numbers of 8 bytes
    for options, times in (({}, 2), ({"pull_to": "model"}, 1), ({"pull": 0.0}, 1)):
        method = pfedgraph(**options)
        state = method.init(key, DATA)
        _, info = method.round(key, state, DATA, cohort)
        assert (info.bytes_up, info.bytes_down) == (number, times * number)
        assert (state.own.direction == ()) == (times == 1)


def test_the_term_begins_with_the_second_round_of_a_client(key):
    cohort = Cohort.of([0, 3, 6])
    for options in ({}, {"pull_to": "model"}):
        without, with_pull = pfedgraph(pull=0.0), pfedgraph(pull=0.5, **options)
        equal(rounds(without, cohort, key, count=1).own.model, rounds(with_pull, cohort, key, count=1).own.model)
        one, two = (rounds(method, cohort, key).own.model["kernel"] for method in (without, with_pull))
        assert not np.allclose(one, two)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concentration": 0.0}, ("concentration", 0.0)),
        ({"pull": -0.1}, ("pull", -0.1, "away")),
        ({"threshold": 1.5}, ("threshold", 1.5, None)),
        ({"layers": "Dense_7"}, ("Dense_7", "kernel")),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        pfedgraph(**options)
