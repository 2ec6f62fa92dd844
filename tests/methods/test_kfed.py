"""k-FED: the server's one shot, the NumPy loop around it, and the methods that it becomes."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfl import methods, tree
from jaxfl.clustering import scores
from jaxfl.cohort import Cohort
from jaxfl.methods.kfed import server_centres
from jaxfl.random import Stream, key_for
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE, ROUNDS, COHORT = 0.4, 5, 4
TASK = problems.softmax_task()
SEEDS = st.integers(0, 999)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


close = functools.partial(reference.close, rtol=1e-9)  # some ten steps amplify rounding


@functools.cache
def kfed(**options):
    """Returns the method, compiled; the same for the same options."""
    return compiled(methods.kfed(TASK, optax.sgd(RATE), **{"num_clusters": 2, "local_epochs": 2, **options}))


def server(points, clusters, local=1):
    """Algorithm 2, steps 2 to 8: the points of the first client, the farthest of the rest, Lloyd."""
    centres = list(points[:local])
    while len(centres) < clusters:
        centres.append(max(points, key=lambda point: min(np.sum((point - other) ** 2) for other in centres)))
    for _ in range(100):
        labels = np.array([np.argmin([np.sum((point - centre) ** 2) for centre in centres]) for point in points])
        centres = [points[labels == k].mean(0) if (labels == k).any() else centres[k] for k in range(clusters)]
    return np.array(centres)


class KFed:
    """One exchange, then FedAvg in every cluster."""

    def __init__(self, setting, model, clusters, first_epochs):
        self.setting, self.models = setting, [model] * clusters
        points = {i: self.learn_alone(i, model, first_epochs) for i in range(len(setting.clients))}
        centres = server(np.array([points[i] for i in reference.with_rows(setting, points)]), clusters)
        self.cluster = [int(np.argmin([np.sum((points[i] - centre) ** 2) for centre in centres])) for i in points]

    def learn_alone(self, client, model, epochs):
        x, y = self.setting.clients[client]
        key = key_for(self.setting.root, Stream.START, client=client)
        for rows in reference.batches(key, len(y), epochs, self.setting.batch_size) if len(y) else ():
            slope = reference.gradient(model, x[rows], y[rows])[1]
            model = reference.combine([(1, model), (-self.setting.rate, slope)])
        return np.concatenate([np.ravel(model[name]) for name in sorted(model)])

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        for k, model in enumerate(list(self.models)):
            members = [i for i in cohort if self.cluster[i] == k]
            if members:
                trained = [reference.train(self.setting, number, i, model)[0] for i in members]
                self.models[k] = reference.average(trained, reference.weights(self.setting, members))


@pytest.mark.rotating
@pytest.mark.parametrize(("weighting", "batch_size"), [("uniform", None), ("rows", 3)])
def test_every_round_is_the_papers(weighting, batch_size, key):
    data = problems.linear_federation()
    method = kfed(num_clusters=3, first_epochs=3, weighting=weighting, batch_size=batch_size)
    state = method.init(key, data)
    setting = reference.Setting(key, problems.rows_of(data), RATE, 2, batch_size, weighting)
    wanted = KFed(setting, jax.tree.map(np.asarray, tree.take(state.models, 0)), 3, first_epochs=3)
    assert state.cluster.tolist() == wanted.cluster and len(set(wanted.cluster)) == 3
    for number in range(ROUNDS):
        cohort = problems.sample(key, state.round, data, COHORT)
        state, info = method.round(key, state, data, cohort)
        wanted.round(number, cohort.ids.tolist())
        assert state.cluster.tolist() == wanted.cluster and int(info.num_clusters) == 3
        for k, model in enumerate(wanted.models):
            close(tree.take(state.models, k), model)


@given(seed=SEEDS, clusters=st.integers(1, 4), local=st.integers(1, 3))
def test_the_server_is_the_papers(seed, clusters, local):
    points = np.random.default_rng(seed).normal(size=(12, 3))
    wanted = server(points, clusters, min(local, clusters))
    np.testing.assert_allclose(server_centres(jnp.asarray(points), clusters, local=local), wanted, rtol=1e-9)


def groups(seed, count=3, members=6):
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.repeat(np.arange(count), members))
    return 10 * np.eye(count, 4)[truth] + 0.3 * rng.normal(size=(len(truth), 4)), truth


def labels_of(points, centres):
    return np.square(points[:, None] - np.asarray(centres)[None]).sum(-1).argmin(1)


@given(seed=SEEDS)
def test_separated_groups_are_recovered_in_any_order(seed):
    points, truth = groups(seed)
    for order in (np.arange(18), np.random.default_rng(seed).permutation(18)):
        centres = server_centres(jnp.asarray(points[order]), 3)
        assert scores.adjusted_rand_index(truth[order], labels_of(points[order], centres)) == 1


@given(seed=SEEDS)
def test_only_the_first_client_has_a_place(seed):
    """The order of the others changes nothing, and that of the first two, here, the names alone."""
    points = np.random.default_rng(seed).normal(size=(10, 2))
    order = np.array([0, *(1 + np.random.default_rng(seed).permutation(9))])
    close(np.asarray(server_centres(jnp.asarray(points), 3)), np.asarray(server_centres(jnp.asarray(points[order]), 3)))


def test_absent_points_are_as_if_not_there():
    points, _ = groups(0)
    wide = np.insert(points, [0, 5], [[np.nan], [1e6]], axis=0)
    mask = np.ones(20, bool)
    mask[[0, 6]] = False
    close(
        np.asarray(server_centres(jnp.asarray(wide), 3, mask=jnp.asarray(mask))),
        np.asarray(server_centres(jnp.asarray(points), 3)),
    )


def test_one_cluster_is_the_mean_and_fedavg(key):
    points, _ = groups(1)
    np.testing.assert_allclose(server_centres(jnp.asarray(points), 1)[0], points.mean(0), rtol=1e-12)
    data = problems.linear_federation()
    states = []
    for method in (
        kfed(num_clusters=1, batch_size=3),
        compiled(methods.fedavg(TASK, optax.sgd(RATE), local_epochs=2, batch_size=3)),
    ):
        state = method.init(key, data)
        for _ in range(3):
            state, _ = method.round(key, state, data, Cohort.of(range(7)))
        states.append(method.client_params(state, jnp.arange(7)))
    close(*states)


def test_held_out_clients_are_placed_and_heard_by_nobody(key):
    data = problems.linear_federation()
    size = np.array(data.train.size)
    size[0] = 0  # the first client, whose update would be the first seed
    absent = kfed().init(key, replace(data, train=replace(data.train, size=size), held_out=np.zeros(7, bool)))
    out = kfed().init(key, replace(data, held_out=np.arange(7) == 0))
    assert out.cluster[1:].tolist() == absent.cluster[1:].tolist()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"num_clusters": 0}, ("num_clusters", 0)),
        ({"first_epochs": 0}, ("first_epochs", 0)),
        ({"weighting": "size"}, ("weighting", "size")),
    ],
)
def test_refusals(options, complaint):
    with pytest.raises(ValueError, match=mentions(*complaint)):
        kfed(**options)


def test_more_clusters_than_centres_are_refused(key):
    with pytest.raises(ValueError, match=mentions("num_clusters", 8)):
        kfed(num_clusters=8).init(key, problems.linear_federation())
    with pytest.raises(ValueError, match=mentions("num_clusters", 3, 2)):
        server_centres(jnp.zeros((2, 1)), 3)
