"""CFL-GP: its NumPy loop with singular vectors, renamed clusters, FedAvg, and what is sent when."""

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
from jaxfl.methods.base import Participation
from jaxfl.methods.cfl_gp import fill_blocks, keep_numbers
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import close, equal

pytestmark = pytest.mark.rotating("function", weeks=6)

RATE, COHORT = 0.4, 5
TASK = problems.softmax_task()
DATA = replace(problems.linear_federation(), held_out=np.arange(7) == 5)
MODEL = 4 * 8  # bytes of a model in float32; a sketch has as many numbers


@functools.cache  # tests share what they compile
def made(name="cfl_gp", **options):
    return compiled(getattr(methods, name)(TASK, optax.sgd(RATE), **{"local_epochs": 2, "batch_size": 3, **options}))


def vector(model):
    return np.concatenate([model[name].ravel() for name in sorted(model)])


class CFLGP:
    """With profiles as dictionaries {(client, block): vector}, their SVD, and all K! renamings."""

    def __init__(self, setting, models, *, own=False, schedule=False, every=2, until=None):
        self.setting, self.models, self.own, self.schedule = setting, list(models), own, schedule
        self.every, self.until = every, until
        self.blocks = 1 if own else len(models)
        self.profile, self.visits, self.anchors = {}, {}, {}
        self.centres, self.placed, self.cluster = None, set(), [0] * len(setting.clients)

    def update(self, number, i, model):
        trained, _ = reference.train(self.setting, number, i, model)
        return reference.combine([(1, trained), (-1, model)])

    def columns(self):
        clients = sorted({i for i, _ in self.profile})
        mean = {
            m: np.mean([self.profile[i, m] for i in clients if (i, m) in self.profile], 0)
            for m in range(self.blocks)
            if any((i, m) in self.profile for i in clients)
        }
        return clients, np.array([self.stacked({m: self.profile.get((i, m), mean[m]) for m in mean}) for i in clients])

    def stacked(self, parts):
        return np.concatenate([parts.get(m, np.zeros(8)) for m in range(self.blocks)])

    def cluster_cohort(self, number, cohort):
        m, count = (number // self.every) % self.blocks, len(self.models)
        for i in cohort:
            v = vector(self.update(number, i, self.models[self.cluster[i] if self.own else m]))
            visits = self.visits.get((i, m), 0)
            beta = 1 / ((number + 1) // (count * self.every) + 1) if self.schedule and visits else 1 / (visits + 1)
            self.profile[i, m] = (1 - beta) * self.profile.get((i, m), 0 * v) + beta * v
            self.visits[i, m] = visits + 1
        self.anchors[m] = self.models[m]
        clients, columns = self.columns()
        if len(clients) < count:
            return
        self.left = np.linalg.svd(columns.T, full_matrices=False)[0][:, :count]
        points = columns @ self.left
        labels = best_partition(points, count)
        new = {i: label for i, label in zip(clients, labels, strict=True)}

        def worth(name):
            agreed = sum(name[new[i]] == self.cluster[i] for i in clients)
            return -agreed, sum(abs(k - name[k]) for k in range(count))

        name = min(itertools.permutations(range(count)), key=worth)
        self.centres = {name[c]: points[labels == c].mean(0) for c in {*labels.tolist()}}
        for i in cohort:
            self.cluster[i] = name[new[i]]
            self.placed.add(i)

    def nearest(self, number, i):
        """Returns the cluster of a client that was in no clustering: by its updates at the anchors."""
        if self.centres is None or i in self.placed or not len(self.setting.clients[i][1]):
            return self.cluster[i]
        sent = {m: vector(self.update(number, i, model)) for m, model in self.anchors.items()}
        point = self.stacked(sent) @ self.left
        return min(self.centres, key=lambda k: ((point - self.centres[k]) ** 2).sum())

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        if due := number % self.every == 0 and (self.until is None or number < self.until):
            held = list(self.cluster)
            self.cluster_cohort(number, cohort)
        else:
            for i in cohort:
                self.cluster[i] = self.nearest(number, i)
                if self.centres is not None:
                    self.placed.add(i)
            held = list(self.cluster)
        updates = {i: self.update(number, i, self.models[held[i]]) for i in cohort}
        for k, model in enumerate(list(self.models)):
            if members := [i for i in cohort if self.cluster[i] == k]:
                step = reference.average([updates[i] for i in members], reference.weights(self.setting, members))
                self.models[k] = reference.combine([(1, model), (1, step)])
        return due


def best_partition(points, count):
    """Returns the labels of the least inertia in at most `count` clusters, by the first client, by trying all."""

    def inertia(labels):
        parts = [points[np.array(labels) == k] for k in {*labels}]
        return sum(((part - part.mean(0)) ** 2).sum() for part in parts)

    best = min(itertools.product(range(count), repeat=len(points)), key=inertia)
    order = list(dict.fromkeys(best))
    return np.array([order.index(label) for label in best])


CASES = {
    "paper": (2, {"cluster_until": None}, {}),
    "three, often": (3, {"cluster_every": 1, "cluster_until": 3}, {"every": 1, "until": 3}),
    "once": (2, {"cluster_until": 1, "weighting": "rows"}, {"until": 1}),
    "official": (2, {"preset": "official", "cluster_every": 1}, {"own": True, "schedule": True, "every": 1}),
}


@pytest.mark.parametrize("case", CASES)
def test_every_round_is_that_of_a_loop(case, key):
    """A client has no rows, one is held out, and others come late: these are placed by their updates at all models."""
    count, options, of_loop = CASES[case]
    with jax.enable_x64(True):
        method = made(num_clusters=count, **options)
        weighting = options.get("weighting", "uniform")
        setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, 3, weighting)
        state = method.init(key, DATA)
        first = [jax.tree.map(np.asarray, tree.take(state.models, k)) for k in range(count)]
        assert (case == "official") != all(np.array_equal(model["kernel"], first[0]["kernel"]) for model in first)
        loop, everybody = CFLGP(setting, first, **of_loop), Cohort.of(range(7))
        for number in range(5):
            placed = method.assign(key, state, DATA, everybody)
            assert placed.cluster.tolist() == [loop.nearest(number, i) for i in range(7)]
            cohort = problems.sample(key, state.round, DATA, 3 if number == 1 else COHORT)
            state, info = method.round(key, state, DATA, cohort)
            assert loop.round(number, cohort.ids.tolist()) == bool(info.extra["clustered"])
            assert state.cluster.tolist() == loop.cluster
            close(state.models, jax.tree.map(lambda *leaves: np.stack(leaves), *loop.models), rtol=1e-9)


def test_clusters_keep_the_numbers_that_most_clients_have():
    """The specification's example, where two renamings agree on three clients and the first wins."""
    assert keep_numbers(jnp.array([0, 0, 1, 1]), jnp.array([1, 1, 0, 2]), 3).tolist() == [1, 1, 0, 0]
    assert keep_numbers(jnp.array([1, 1, 2, 2, -1]), jnp.array([0] * 5), 3).tolist() == [0, 0, 1, 1, -1]
    for seed in range(5):
        old, names = np.random.default_rng(seed).integers(0, 4, 20), np.random.default_rng(seed).permutation(4)
        assert keep_numbers(jnp.asarray(names[old]), jnp.asarray(old), 4).tolist() == old.tolist()


def test_blocks_that_were_not_sent_tell_no_clients_apart():
    profile = np.random.default_rng(0).normal(size=(4, 2, 3))
    visits = np.array([[1, 1], [1, 0], [1, 1], [0, 0]])
    found = np.asarray(fill_blocks(jnp.asarray(profile, jnp.float32), jnp.asarray(visits))).reshape(4, 2, 3)
    np.testing.assert_allclose(found[1, 1], profile[[0, 2], 1].mean(0), rtol=1e-6)
    np.testing.assert_allclose(found[:3, 0], profile[:3, 0], rtol=1e-6)
    assert not found[3].any()


def test_one_model_is_fedavg_of_equal_clients(key):
    one, fedavg = made(num_clusters=1), made("fedavg", weighting="uniform")
    state, wanted = one.init(key, DATA), fedavg.init(key, DATA)
    for _ in range(3):
        cohort = problems.sample(key, state.round, DATA, COHORT)
        (state, _), (wanted, _) = one.round(key, state, DATA, cohort), fedavg.round(key, wanted, DATA, cohort)
    close(tree.take(state.models, 0), wanted.model, rtol=1e-5)


def test_the_second_model_and_the_sketch_are_sent_in_rounds_of_clustering_alone(key):
    """In round 2 it is the turn of model 1, which the clients of cluster 0 receive beside their own."""
    method, cohort = made(num_clusters=2), Cohort.of([0, 2, 3, 6])
    state, sent = method.init(key, DATA), []
    for _ in range(3):
        before = state.cluster[cohort.ids]
        state, info = method.round(key, state, DATA, cohort)
        sent.append((float(info.bytes_up), float(info.bytes_down)))
    others = int((before != 1).sum())
    assert 0 < others < 4
    assert sent == [(8 * MODEL, 4 * MODEL), (4 * MODEL, 4 * MODEL), (8 * MODEL, (4 + others) * MODEL)]
    assert state.visits.tolist() == [[1, 1] if i in (0, 2, 3, 6) else [0, 0] for i in range(7)]
    late = Cohort.of([0, 2, 3, 4])  # client 4 comes after the clustering: it sends, and receives, both blocks
    after, info = method.round(key, state, DATA, late)
    assert (info.bytes_up, info.bytes_down) == ((4 + 2) * MODEL, (4 + 2) * MODEL)
    assert bool(after.placed[4]) and after.cluster[4] == method.assign(key, state, DATA, late).cluster[4]
    equal(after.cluster[:4], state.cluster[:4])


def test_a_federation_of_too_few_clients_is_not_clustered(key):
    method = made(num_clusters=3)
    start = method.init(key, DATA)
    state, _ = method.round(key, start, DATA, Cohort.of([0, 1, 2]))
    assert not state.cluster.any() and not state.placed.any()
    equal(method.assign(key, state, DATA, Cohort.of(range(7))).cluster, state.cluster)
    assert "num_clusters=3" in method.shortfall(state, DATA, Participation(3))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_clusters": 0}, ("num_clusters", 0)),
        ({"cluster_every": 0}, ("cluster_every", 0)),
        ({"cluster_until": 0}, ("cluster_until", 0)),
        ({"sketch_size": 0}, ("sketch_size", 0)),
        ({"profile": "all"}, ("profile", "all")),
    ],
)
def test_refusals(options, words, key):
    with pytest.raises(ValueError, match=mentions(*words)):
        methods.cfl_gp(TASK, optax.sgd(RATE), **options)
    with pytest.raises(ValueError, match=mentions("num_clusters", 8, 7)):
        methods.cfl_gp(TASK, optax.sgd(RATE), num_clusters=8).init(key, DATA)
