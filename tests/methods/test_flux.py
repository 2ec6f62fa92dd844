"""FLUX: its NumPy loop, DBSCAN, its worked example, laws of descriptors, and newcomers whose labels nobody reads."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.cluster import DBSCAN

from jaxfl import methods, tree
from jaxfl.clustering import scores
from jaxfl.cohort import Cohort, Plan
from jaxfl.methods.flux import descriptors, neighbour_components, projection, rank_labels
from jaxfl.methods.parts.heads import find_head
from tests import problems, reference
from tests.messages import mentions
from tests.methods.test_fedproto import TASK, features
from tests.problems import compiled
from tests.reference import close, equal

pytestmark = pytest.mark.rotating("function", weeks=6)

RATE, COHORT = 0.4, 4
HEAD = find_head(TASK, "flux")
# client 1 has no rows, client 4 has one, client 5 is held out
DATA = replace(problems.linear_federation(), held_out=np.arange(7) == 5)
MODEL = 4 * (3 * 3 + 3 * 2 + 2)  # bytes in float32
DESCRIPTOR = 4 * 2 * 3 * 2  # of two classes, on two projected features


@functools.cache  # tests share what they compile
def made(name="flux", **options):
    fixed = {"local_epochs": 2, "batch_size": 3, **({"warmup_rounds": 1, "slots": 6} if name == "flux" else {})}
    return compiled(getattr(methods, name)(TASK, optax.sgd(RATE), **{**fixed, **options}))


def train(setting, number, i, model):
    """Returns the trained network of two layers, by its gradient."""
    x, y = setting.clients[i]
    key = reference.key_for(setting.root, reference.Stream.BATCHES, number, i)
    for rows in reference.batches(key, len(y), setting.epochs, setting.batch_size):
        hidden = features(model, x[rows])
        _, slope = reference.gradient(model["b"], hidden, y[rows])
        scores_of = hidden @ model["b"]["kernel"] + model["b"]["bias"]
        p = np.exp(scores_of - scores_of.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        back = (p - np.eye(2)[y[rows]]) @ model["b"]["kernel"].T * (1 - hidden**2)
        below = x[rows].T @ back / len(rows)
        model = {
            "a": {"kernel": model["a"]["kernel"] - setting.rate * below},
            "b": {name: model["b"][name] - setting.rate * slope[name] for name in slope},
        }
    return model


def mean(models, weights):
    return jax.tree.map(lambda *leaves: np.average(np.array(leaves), axis=0, weights=weights), *models)


class FLUX:
    """Clusters are a dictionary {client: label}; distances are compared pair by pair."""

    def __init__(self, setting, model, columns, held_out, *, warmup=1, eps=None, labelled=False):
        self.setting, self.models, self.columns, self.warmup = setting, [model], columns, warmup
        self.held_out, self.eps, self.labelled, self.theta = held_out, eps, labelled, None
        self.cluster = {}

    def describe(self, i, model):
        """Returns groups [mean, deviation] of all rows and of each class, as the specification has them."""
        x, y = self.setting.clients[i]
        p = features(model, x) @ self.columns
        found = [np.array([p.mean(0), p.std(0)])]
        for k in range(2):
            part = p[y == k]
            found.append(np.array([part.mean(0), part.std(0)]) if len(part) > 1 else -np.ones((2, p.shape[1])))
        return np.array(found)  # [1 + L, 2, q]

    def cluster_all(self):
        self.theta = self.models[0]
        able = reference.with_rows(self.setting, range(len(self.setting.clients)))
        raw = {i: self.describe(i, self.theta) for i in able}
        known = [i for i in able if not self.held_out[i]]
        low = np.min([raw[i] for i in known], (0, 3), keepdims=True)[0]
        high = np.max([raw[i] for i in known], (0, 3), keepdims=True)[0]
        self.scale = lambda found: (found - low) / np.where(high > low, high - low, 1)
        points = {i: self.scale(raw[i]) for i in known}
        away = {(i, j): np.linalg.norm(points[i] - points[j]) for i in known for j in known if i != j}
        nearest = sorted(min(away[i, j] for j in known if j != i) for i in known)
        n, (first, *_, last) = len(known), nearest
        below = [j / (n - 1) - (value - first) / (last - first) for j, value in enumerate(nearest)]
        self.found_eps = nearest[max(range(n), key=lambda j: (below[j], j))] if self.eps is None else self.eps
        groups = [[known[index] for index in group] for group in self.linked(known, away)]
        self.cluster = {i: k for k, group in enumerate(groups) for i in group}
        self.centroids = [np.mean([points[i] for i in group], 0) for group in groups]
        self.models = [self.theta] * len(groups)
        for i in able:
            self.cluster.setdefault(i, self.nearest(i))

    def linked(self, known, away):
        within = {pair for pair, value in away.items() if value <= self.found_eps * (1 + 1e-6)}
        return sorted(
            sorted(group) for group in reference.merge(range(len(known)), lambda a, b: (known[a], known[b]) in within)
        )

    def nearest(self, i):
        part = slice(None) if self.labelled else slice(0, 1)
        point = self.scale(self.describe(i, self.theta))[part]
        return int(np.argmin([((point - centre[part]) ** 2).sum() for centre in self.centroids]))

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        if number == self.warmup:
            self.cluster_all()
        for k, model in enumerate(list(self.models)):
            if members := [i for i in cohort if self.cluster.get(i, 0) == k]:
                trained = [train(self.setting, number, i, model) for i in members]
                self.models[k] = mean(trained, reference.weights(self.setting, members))

    def served(self, i):
        if self.theta is None:
            return self.models[0]
        return self.models[self.cluster[i]] if i in self.cluster else self.theta


CASES = {
    "elbow": ({}, {}),
    "labelled": ({"newcomers": "labelled", "weighting": "uniform"}, {"labelled": True}),
    "by hand": ({"threshold": 0.9, "warmup_rounds": 2}, {"eps": 0.9, "warmup": 2}),
}


@pytest.mark.parametrize("case", CASES)
def test_every_round_is_that_of_a_loop(case, key):
    """A client has no rows, one is held out, one has a single row, and others are sampled late."""
    options, of_loop = CASES[case]
    with jax.enable_x64(True):
        method = made(**options)
        setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, 3, options.get("weighting", "rows"))
        state = method.init(key, DATA)
        first = jax.tree.map(np.asarray, tree.take(state.models, 0))
        loop = FLUX(setting, first, np.asarray(projection(key, HEAD)), DATA.held_out, **of_loop)
        for number in range(5):
            cohort = problems.sample(key, state.round, DATA, COHORT)
            state, info = method.round(key, state, DATA, cohort)
            loop.round(number, cohort.ids.tolist())
            served = method.client_params(state, np.arange(7))
            for i in range(7):
                close(tree.take(served, i), loop.served(i), rtol=1e-9)
            if loop.cluster:
                assert state.cluster.tolist() == [loop.cluster.get(i, -1) for i in range(7)]
                assert int(info.num_clusters) == len(loop.models)
        assert 1 < len(loop.models) < 5, "or it would be no test"


def test_components_are_those_of_dbscan_with_noise_alone():
    for seed in range(4):
        points = np.random.default_rng(seed).normal(size=(40, 2))
        for eps in (0.2, 0.4, 0.8):
            found = np.asarray(neighbour_components(jnp.asarray(points, jnp.float32), jnp.ones(40, bool), eps))
            theirs = DBSCAN(eps=eps, min_samples=2).fit(points).labels_
            theirs = np.where(theirs < 0, 100 + np.arange(40), theirs)
            assert scores.adjusted_rand_index(found, theirs) == 1


def test_the_worked_example_and_absent_points():
    points = np.array([0, 0.1, 0.25, 5, 5.2, 9, 5.1])[:, None] / 9
    known = np.arange(7) < 6
    find = functools.partial(neighbour_components, jnp.asarray(points, jnp.float32))
    assert find(jnp.asarray(known), None).tolist() == [0, 0, 0, 3, 3, 5, -1]
    assert find(jnp.asarray(known), jnp.inf).tolist() == [0] * 6 + [-1]
    assert find(jnp.asarray(known), 0.001).tolist() == [*range(6), -1]
    assert rank_labels(jnp.array([0, 0, 0, 3, 3, 5])).tolist() == [0, 0, 0, 1, 1, 2]
    assert find(jnp.arange(7) == 2, None)[2] == 2


def described(data, key, model=None):
    describe = jax.jit(descriptors(TASK, HEAD))
    cohort = Cohort.of(np.arange(data.num_clients), Plan(chunk=2))
    return np.asarray(describe(key, TASK.init(key) if model is None else model, data, cohort))


def test_a_descriptor_does_not_depend_on_the_order_of_rows_and_its_first_part_not_on_labels(key):
    with jax.enable_x64(True):
        found = described(DATA, key)
        rows = np.array(DATA.train.rows)
        for start, size in zip(DATA.train.start, DATA.train.size, strict=True):
            rows[start : start + size] = rows[start : start + size][::-1]
        mixed = described(replace(DATA, train=replace(DATA.train, rows=rows)), key)
        other = described(replace(DATA, labels=1 - np.asarray(DATA.labels)), key)
    np.testing.assert_allclose(found, mixed, rtol=1e-9, atol=1e-12)
    equal(found[:, :, 0], other[:, :, 0])
    np.testing.assert_allclose(found[:, :, 1:], other[:, :, :0:-1], rtol=1e-9, atol=1e-12)
    assert (found[4, :, 1:] == -1).all(1).any() and not (found[4, :, 0] == -1).any()  # one row, of one class


@pytest.mark.slow
def test_a_newcomers_labels_change_nothing(key):
    """The held-out client has the labels of the other group: it is placed as before, but for `labelled`."""
    labels = np.array(DATA.labels)
    own = np.asarray(DATA.train.rows)[DATA.train.start[5] :][: DATA.train.size[5]]
    labels[own] = 1 - labels[own]
    other, moved = replace(DATA, labels=labels), []
    for options in ({}, {"newcomers": "labelled"}):
        method, states = made(**options), []
        for data in (DATA, other):
            state = method.init(key, data)
            for _ in range(2):
                state, _ = method.round(key, state, data, problems.sample(key, state.round, data, COHORT))
            found = method.assign(key, state._replace(placed=state.placed.at[5].set(False)), data, Cohort.of([5]))
            assert found.cluster[5] == state.cluster[5]
            states.append(state)
        equal(states[0].centroids, states[1].centroids)
        moved.append(states[0].cluster[5] != states[1].cluster[5])
    assert not moved[0]


def test_before_the_clustering_and_where_all_are_one_cluster_it_is_fedavg(key):
    ours, fedavg = made(threshold=np.inf), made("fedavg")
    state, wanted = ours.init(key, DATA), fedavg.init(key, DATA)
    for number in range(3):
        cohort = problems.sample(key, state.round, DATA, COHORT)
        (state, info), (wanted, _) = ours.round(key, state, DATA, cohort), fedavg.round(key, wanted, DATA, cohort)
        close(tree.take(state.models, 0), wanted.model, rtol=1e-6)
        assert int(info.num_clusters) == 1 and (state.num_clusters > 0) == (number > 0)


def test_descriptors_are_sent_once_and_by_those_who_come_late(key):
    method, state = made(), made().init(key, DATA)
    sent = []
    for cohort in ([0, 2, 3], [0, 2, 3], [0, 2, 3]):
        state, info = method.round(key, state, DATA, Cohort.of(cohort))
        sent.append((float(info.bytes_up), float(info.bytes_down)))
    assert sent == [
        (3 * MODEL, 3 * MODEL),
        (3 * MODEL + 5 * DESCRIPTOR, 5 * MODEL),  # of five clients with rows that are not held out
        (3 * MODEL, 3 * MODEL),
    ]
    late = state._replace(placed=state.placed.at[4].set(False), cluster=state.cluster.at[4].set(0))
    after, info = method.round(key, late, DATA, Cohort.of([0, 2, 4]))
    assert (info.bytes_up, info.bytes_down) == (3 * MODEL + DESCRIPTOR / 3, 4 * MODEL)
    assert bool(after.placed[4]) and after.cluster[4] == method.assign(key, late, DATA, Cohort.of([4])).cluster[4]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"warmup_rounds": -1}, ("warmup_rounds", -1)),
        ({"threshold": -0.5}, ("threshold", -0.5)),
        ({"threshold": np.nan}, ("threshold", "nan")),
        ({"slots": 0}, ("slots", 0)),
        ({"newcomers": "some"}, ("newcomers", "some")),
    ],
)
def test_refusals(options, words):
    with pytest.raises(ValueError, match=mentions(*words)):
        methods.flux(TASK, optax.sgd(RATE), **options)
