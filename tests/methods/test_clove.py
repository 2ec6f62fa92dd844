"""CLoVE: its NumPy loop, its worked example, where IFCA errs, permuted models, and what is sent once it is stable."""

import functools
import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.cluster import hierarchy
from sklearn.metrics import silhouette_score

import jaxfl
from jaxfl import methods, tree
from jaxfl.clustering.assignment import match
from jaxfl.cohort import Cohort
from jaxfl.methods.base import Participation
from jaxfl.tasks import Task, masked_mean
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import close, equal

pytestmark = pytest.mark.rotating("function", weeks=6)

RATE, COHORT = 0.4, 5
TASK = problems.softmax_task()
DATA = replace(problems.linear_federation(), held_out=np.arange(7) == 5)


@functools.cache  # tests share what they compile
def made(name="clove", **options):
    return compiled(getattr(methods, name)(TASK, optax.sgd(RATE), **{"local_epochs": 2, "batch_size": 3, **options}))


def best_partition(points, count):
    """Returns the labels of the least inertia in at most `count` clusters, by trying all."""

    def inertia(labels):
        parts = [points[np.array(labels) == k] for k in {*labels}]
        return sum(((part - part.mean(0)) ** 2).sum() for part in parts)

    return min(itertools.product(range(count), repeat=len(points)), key=inertia)


def clusters_of_unknown_number(points, most):
    """Returns the labels of Ward's clusters, their number by the silhouette, after k-means from their means."""
    labels, best = None, None
    for k in range(2, min(most, len(points) - 1) + 1):
        found = hierarchy.cut_tree(hierarchy.linkage(points, "ward"), k)[:, 0]
        score = silhouette_score(points, found)
        if best is None or score > 1.1 * best:
            labels, best = found, score
    before = None
    while before is None or (labels != before).any():
        means, before = [points[labels == k].mean(0) for k in range(labels.max() + 1)], labels
        labels = np.array([np.argmin([((point - mean) ** 2).sum() for mean in means]) for point in points])
    return labels


class CLoVE:
    def __init__(self, setting, models, vectors, *, known=True):
        self.setting, self.models, self.vectors, self.known = setting, list(models), vectors, known
        self.cluster, self.centroids, self.seen = [0] * len(setting.clients), None, set()

    def losses(self, i):
        return np.array([reference.gradient(model, *self.setting.clients[i])[0] for model in self.models])

    def point(self, i):
        return np.sqrt(self.losses(i)) if self.vectors == "roots" else self.losses(i)

    def round(self, number, cohort):
        cohort, count = reference.with_rows(self.setting, cohort), len(self.models)
        if len(cohort) >= (count if self.known else 3):
            points, losses = (np.array([of(i) for i in cohort]) for of in (self.point, self.losses))
            labels = (
                np.array(best_partition(points, count)) if self.known else clusters_of_unknown_number(points, count)
            )
            costs = np.array([losses[labels == c].sum(0) for c in range(count)])
            name = min(
                itertools.permutations(range(count)), key=lambda name: sum(costs[c, name[c]] for c in range(count))
            )
            self.centroids = {name[c]: points[labels == c].mean(0) for c in {*labels.tolist()}}
            for i, label in zip(cohort, labels, strict=True):
                self.cluster[i] = name[label]
        self.seen |= {*cohort}
        for k, model in enumerate(list(self.models)):
            if members := [i for i in cohort if self.cluster[i] == k]:
                trained = [reference.train(self.setting, number, i, model)[0] for i in members]
                self.models[k] = reference.average(trained, reference.weights(self.setting, members))

    def assigned(self, i):
        if i in self.seen or not len(self.setting.clients[i][1]):
            return self.cluster[i]
        if self.centroids is None:
            return int(np.argmin(self.losses(i)))
        return min(self.centroids, key=lambda k: ((self.point(i) - self.centroids[k]) ** 2).sum())


@pytest.mark.parametrize(("count", "vectors", "batch_size"), [(2, "losses", 3), (3, "roots", None)])
def test_every_round_is_that_of_a_loop(count, vectors, batch_size, key):
    """A client has no rows, one is held out, and others are sampled late: these are placed by the nearest vector."""
    with jax.enable_x64(True):
        method = made(num_clusters=count, vectors=vectors, batch_size=batch_size, stable_rounds=None)
        setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, batch_size, "rows")
        state = method.init(key, DATA)
        loop = CLoVE(setting, [jax.tree.map(np.asarray, tree.take(state.models, k)) for k in range(count)], vectors)
        everybody = Cohort.of(range(7))
        for number in range(4):
            placed = method.assign(key, state, DATA, everybody)
            assert placed.cluster.tolist() == [loop.assigned(i) for i in range(7)]
            cohort = problems.sample(key, state.round, DATA, COHORT)
            state, _ = method.round(key, state, DATA, cohort)
            loop.round(number, cohort.ids.tolist())
            assert state.cluster.tolist() == loop.cluster
            close(state.models, jax.tree.map(lambda *leaves: np.stack(leaves), *loop.models), rtol=1e-9)


@pytest.mark.parametrize("size", [2, 5, 6])
def test_every_round_of_an_unknown_number_is_that_of_a_loop(size, key):
    """Five models; two clients are too few for a clustering."""
    with jax.enable_x64(True):
        method = made(num_clusters=None, max_clusters=5, stable_rounds=None)
        setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, 3, "rows")
        state = method.init(key, DATA)
        models = [jax.tree.map(np.asarray, tree.take(state.models, k)) for k in range(5)]
        loop, numbers = CLoVE(setting, models, "losses", known=False), set()
        for number in range(4):
            cohort = problems.sample(key, state.round, DATA, size)
            state, info = method.round(key, state, DATA, cohort)
            loop.round(number, cohort.ids.tolist())
            assert state.cluster.tolist() == loop.cluster
            close(state.models, jax.tree.map(lambda *leaves: np.stack(leaves), *loop.models), rtol=1e-9)
            numbers.add(len({*np.asarray(state.cluster)[reference.with_rows(setting, cohort.ids.tolist())]}))
            assert info.bytes_up == size * 8 * (8 + 5) and info.bytes_down == size * 8 * 5 * 8
        assert numbers == {1} if size == 2 else numbers > set(), "one model without a clustering"
        assert bool(state.clustered) == (size > 2)


def table(losses):
    """Returns a federation and a method of models whose losses at each client are the numbers of a table."""
    clients, count = np.shape(losses)
    rows = np.eye(clients)
    data = jaxfl.data.federate(
        np.concatenate([rows, 2 * rows]),
        np.zeros(2 * clients),
        [[i] for i in range(clients)],
        [[clients + i] for i in range(clients)],
    )
    task = Task(
        lambda key: {"w": jnp.zeros(clients)},
        lambda model, batch, key=None: masked_mean(batch.x @ model["w"], batch.mask),
        lambda model, batch: batch.x,
    )
    start = {"w": np.asarray(losses, np.float32).T}

    def make(name, unknown=False, **options):
        options |= {"num_clusters": None, "max_clusters": count} if unknown else {"num_clusters": count}
        return start_at(getattr(methods, name)(task, optax.sgd(0.0), **options), start)

    return data, make


def start_at(method, models):
    return method._replace(init=lambda key, data: method.init(key, data)._replace(models=models))


LOSSES = np.array([(0.9, 1.4), (1.0, 1.5), (0.7, 0.8), (0.8, 0.9)])


def chosen(losses, name="clove"):
    data, make = table(losses)
    method = make(name)
    state, _ = jax.jit(method.round)(jax.random.key(0), method.init(jax.random.key(0), data), data, Cohort.of(range(4)))
    return state.cluster.tolist(), state


def test_the_worked_example_where_all_choose_one_model_of_ifca():
    assert chosen(LOSSES, "ifca")[0] == [0, 0, 0, 0]
    data, make = table(np.pad(LOSSES, ((0, 0), (0, 1)), constant_values=9.0))  # a model that is bad for all
    method = make("clove", unknown=True)
    state, _ = jax.jit(method.round)(jax.random.key(0), method.init(jax.random.key(0), data), data, Cohort.of(range(4)))
    assert state.cluster.tolist() == [0, 0, 1, 1], "the number of clusters is found"
    found, state = chosen(LOSSES)
    assert found == [0, 0, 1, 1]
    close(state.centroids, np.array([(0.95, 1.45), (0.75, 0.85)]), rtol=1e-6)
    assert match(jnp.array([[1.9, 2.9], [1.5, 1.7]])).tolist() == [0, 1]


def test_permuted_models_permute_the_clusters_and_a_constant_moves_none():
    assert chosen(LOSSES[:, ::-1])[0] == [1, 1, 0, 0]
    raised = chosen(LOSSES + np.array([5.0, 0.0]))[0]  # of one model: the partition stays
    assert raised in ([0, 0, 1, 1], [1, 1, 0, 0])
    harder = LOSSES + np.array([[0.0], [3.0], [0.0], [3.0]])  # of two clients: IFCA sees nothing of it
    assert chosen(harder)[0] in ([0, 1, 0, 1], [1, 0, 1, 0]) and chosen(harder, "ifca")[0] == [0] * 4


def test_one_model_is_fedavg(key):
    one, fedavg = made(num_clusters=1), made("fedavg")
    state, wanted = one.init(key, DATA), fedavg.init(key, DATA)
    state = state._replace(models=tree.repeat(wanted.model, 1))
    for _ in range(2):
        cohort = problems.sample(key, state.round, DATA, COHORT)
        (state, _), (wanted, _) = one.round(key, state, DATA, cohort), fedavg.round(key, wanted, DATA, cohort)
    close(tree.take(state.models, 0), wanted.model, rtol=1e-6)


def test_when_clusters_are_stable_each_client_receives_one_model(key):
    """A client that comes later is asked, and takes the nearest model; nobody else moves, whatever the losses are."""
    method = made(num_clusters=2, batch_size=None)
    state, number, early = method.init(key, DATA), 8 * 4, Cohort.of([0, 2, 3, 6])
    for _ in range(3):
        assert not state.stable
        state, info = method.round(key, state, DATA, early)
        assert (info.bytes_up, info.bytes_down) == (4 * (number + 8), 4 * 2 * number)
    steady = np.asarray(state.unchanged)[[0, 2, 3, 6]].min() == 3
    assert bool(state.stable) == steady == bool(info.extra["stable"]) and steady
    swapped = state._replace(models=tree.take(state.models, np.array([1, 0])))
    after, info = method.round(key, swapped, DATA, early)
    equal(after.cluster, state.cluster)
    assert (info.bytes_up, info.bytes_down) == (4 * number, 4 * number)
    late, info = method.round(key, state, DATA, Cohort.of([0, 2, 3, 4]))
    assert (info.bytes_up, info.bytes_down) == (4 * number + 8, 5 * number)
    placed = method.assign(key, state, DATA, Cohort.of(range(7)))
    assert late.cluster[4] == placed.cluster[4] and late.unchanged[4] == 1


def test_a_cohort_of_fewer_clients_than_clusters_keeps_its_models(key):
    method = made(num_clusters=3, batch_size=None)
    start = method.init(key, DATA)
    state, _ = method.round(key, start._replace(cluster=np.full(7, 2, np.int32)), DATA, Cohort.of([0, 1, 2]))
    assert state.cluster.tolist() == [2] * 7 and not state.clustered
    equal(tree.take(state.models, np.arange(2)), tree.take(start.models, np.arange(2)))
    assert "num_clusters=3" in method.shortfall(state, DATA, Participation(3))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_clusters": 0}, ("num_clusters", 0)),
        ({"stable_rounds": 0}, ("stable_rounds", 0)),
        ({"num_clusters": None, "max_clusters": 1}, ("max_clusters", 1)),
        ({"vectors": "squares"}, ("vectors", "squares")),
    ],
)
def test_refusals(options, words, key):
    with pytest.raises(ValueError, match=mentions(*words)):
        methods.clove(TASK, optax.sgd(RATE), **options)
    with pytest.raises(ValueError, match=mentions("num_clusters", 8, 7)):
        methods.clove(TASK, optax.sgd(RATE), num_clusters=8).init(key, DATA)
