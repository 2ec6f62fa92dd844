"""PACFL against its NumPy loop with SciPy's trees, the methods that it becomes, and who joins later."""

import functools
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

import jaxfl
from jaxfl import methods, tree
from jaxfl.cohort import Cohort
from jaxfl.data import federate
from jaxfl.methods.pacfl import cluster_distances, pacfl
from jaxfl.random import Stream, key_for
from jaxfl.testing.compare import assert_same_partition
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE = 0.4
TASK = problems.softmax_task()
COHORTS = [(0, 2, 3, 5, 6), (6, 1, 4, 3, 2), (5, 0, 1, 4, 3)]
OPTIONS = {"local_epochs": 2, "batch_size": 3}
EMPTY, WITH_ROWS = 1, [0, 2, 3, 4, 5, 6]


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


close = functools.partial(reference.close, rtol=1e-9)  # some ten steps amplify rounding


@functools.cache
def build(**options):
    """Returns the method, compiled; the same for the same options."""
    return compiled(pacfl(TASK, optax.sgd(RATE), **{"rank": 1, "slots": 8, **OPTIONS, **options}))


def advance(method, data, key, state):
    """Returns the state after a round with each of the cohorts, and the last info."""
    info = None
    for cohort in COHORTS:
        state, info = method.round(key, state, data, Cohort.of(cohort))
    return state, info


def a_round(*arguments):
    """Makes a round, which is one whatever the clusters were found by: compiled once."""
    return build().round(*arguments)


class PACFL:
    """Clusters are a list of models and everybody's place in it."""

    def __init__(self, setting, model, by_label, rank):
        self.setting, self.by_label, self.rank = setting, by_label, rank
        known = self.known = reference.with_rows(setting, range(len(setting.clients)))
        bases = [self.basis(*setting.clients[i]) for i in known]
        away = np.array([[self.angle(a, b) for b in bases] for a in bases])
        assert not by_label or np.ptp(away - away.T) < 1e-9
        np.fill_diagonal(away, 0)
        merges = hierarchy.linkage(squareform(away, checks=False), "weighted" if by_label else "average")
        self.threshold = merges[-3:-1, 2].mean()  # three clusters
        found = hierarchy.fcluster(merges, self.threshold, "distance").tolist()
        names = list(dict.fromkeys(found))  # in the order of their first members
        self.cluster = [-1] * len(setting.clients)
        for i, label in zip(known, found, strict=True):
            self.cluster[i] = names.index(label)
        self.models = [model] * len(names)

    def basis(self, x, y):
        vectors = []
        for part in [x[y == label] for label in np.unique(y)] if self.by_label else [x]:
            u = np.linalg.svd(part.T, full_matrices=False)[0][:, : self.rank]
            vectors.append(u * np.where(u.sum(0) < 0, -1, 1))
        return np.hstack(vectors)

    def angle(self, left, right):
        product = left.T @ right
        cosine = product.max() if self.by_label else np.linalg.svd(product, compute_uv=False)[0]
        return np.degrees(np.arccos(np.clip(cosine, -1, 1)))

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        for k, model in enumerate(list(self.models)):
            members = [i for i in cohort if self.cluster[i] == k]
            if members:
                trained = [reference.train(self.setting, number, i, model)[0] for i in members]
                self.models[k] = reference.average(trained, reference.weights(self.setting, members))


@pytest.mark.rotating
@pytest.mark.parametrize("preset", ["paper", "official"])
def test_every_round_is_the_papers(preset, key):
    data = problems.linear_federation()
    start = jax.tree.map(np.asarray, TASK.init(key_for(key, Stream.INIT)))
    loop = PACFL(reference.Setting(key, problems.rows_of(data), RATE, 2, 3), start, preset == "official", 1)
    method = build(preset=preset, threshold=float(loop.threshold))
    state = method.init(key, data)
    assert state.cluster.tolist() == loop.cluster
    for number, cohort in enumerate(COHORTS):
        state, info = a_round(key, state, data, Cohort.of(cohort))
        loop.round(number, cohort)
        assert int(info.num_clusters) == len(loop.models) == 3 and int(info.overflow) == 0
        for k, model in enumerate(loop.models):
            close(tree.take(state.models, k), model)
    served = method.client_params(state, jnp.arange(7))
    close(tree.take(served, EMPTY), start)


def test_at_ninety_degrees_it_is_fedavg_bit_for_bit(key):
    data, fedavg = problems.linear_federation(), compiled(methods.fedavg(TASK, optax.sgd(RATE), **OPTIONS))
    method = build(threshold=90.0)
    state, info = advance(build(), data, key, method.init(key, data))
    assert int(info.num_clusters) == 1 and state.cluster.tolist() == [0, -1, 0, 0, 0, 0, 0]
    wanted, _ = advance(fedavg, data, key, fedavg.init(key, data))
    reference.equal(tree.take(state.models, 0), wanted.model)


def test_below_zero_degrees_it_is_local_training_and_slots_grow(key):
    data, local = problems.linear_federation(), compiled(methods.local(TASK, optax.sgd(RATE), **OPTIONS))
    method = build(threshold=-1.0, slots=2)
    start = method.init(key, data)
    _, info = method.round(key, start, data, Cohort.of(COHORTS[0]))
    assert int(info.overflow) == 2, "six clusters, two slots"
    state, _ = advance(build(), data, key, method.grow(method.grow(start)))
    wanted, _ = advance(local, data, key, local.init(key, data))
    ids = jnp.array(WITH_ROWS)
    close(method.client_params(state, ids), local.client_params(wanted, ids))


def test_rotations_are_found_and_labels_are_not_seen(key):
    with jax.enable_x64(False):
        for name, groups in (("rotated-digits", 4), ("shifted-digits", 1)):
            data = jaxfl.data.load(name, num_clients=8, rows_per_client=100, held_out=0.25, seed=0)
            task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
            state = jax.jit(pacfl(task, optax.sgd(0.1)).init)(key, data.on_device())
            assert int(state.num_clusters) == groups
            assert_same_partition(state.cluster, data.group if groups > 1 else [0] * 8, "held out or not")


@pytest.mark.rotating
@pytest.mark.parametrize("name", ["pacfl", "fedgroup"])
def test_lapack_is_given_one_matrix_at_a_time(name, key):
    """On several CPU devices its jobs for many matrices take the threads that they wait for, and none goes on."""
    method = getattr(methods, name)(TASK, optax.sgd(RATE))
    program = jax.jit(method.init).lower(key, problems.linear_federation()).as_text()
    given = re.findall(r"custom_call @lapack_\w+\([^)]*\).*?: \((tensor<[^>]*>)", program)
    assert given and all(shape.count("x") == 2 for shape in given), given


DIRECTIONS = [[1, 0, 0], [1, 0.1, 0], [0, 1, 0], [0.1, 1, 0]]


def rays(directions, empty=()):
    """Returns a federation whose clients have two rows each along one direction."""
    inputs = np.repeat(np.array(directions, float), 2, axis=0) * np.tile([[1.0], [-2.0]], (len(directions), 1))
    rows = [np.arange(2 * i, 2 * i + (0 if i in empty else 2)) for i in range(len(directions))]
    return federate(inputs, np.arange(len(inputs)) % 2, rows, rows, num_classes=2)


def test_newcomers_join_the_nearest_cluster_or_open_one(key):
    method = pacfl(TASK, optax.sgd(RATE), rank=1, threshold=15.0, slots=2)
    state = compiled(method).init(key, rays(DIRECTIONS))
    assert state.cluster.tolist() == [0, 0, 1, 1]
    state = state._replace(models=jax.tree.map(lambda leaf: leaf + 1, state.models))
    new = [[1, 0.27, 0], [0, 0, 1], [0, 0.05, 1], [0, 0, 0]]  # 15.1, 9.4 and on average 12.3 degrees; two strangers
    assert method.join is not None
    after, clusters = method.join(key, state, rays([*DIRECTIONS, *new], empty=[7]), [4, 5, 6, 7])
    assert clusters.tolist() == [0, 2, 2, -1] and after.cluster.tolist() == [0, 0, 1, 1, 0, 2, 2, -1]
    assert int(after.num_clusters) == 3 and jax.tree.leaves(after.models)[0].shape[0] == 4
    reference.equal(tree.take(after.models, slice(0, 2)), state.models)
    reference.equal(tree.take(after.models, 2), state.initial)
    others = [DIRECTIONS[2], *DIRECTIONS[1:], *new]  # client 0 has other rows now; 5 and 6 know nobody but each other
    again, clusters = method.join(key, after, rays(others, empty=[7]), [0, 5, 6, 7])
    assert clusters.tolist() == [1, 3, 3, -1] and again.cluster.tolist() == [1, 0, 1, 1, 0, 3, 3, -1]


def test_who_is_held_out_draws_no_newcomer(key):
    """It is served by a cluster whose members are others."""
    method = pacfl(TASK, optax.sgd(RATE), rank=1, threshold=60.0, slots=2)
    assert method.join is not None
    for apart in ([1, 0.1, 0], [0.1, 1, 0]):  # what client 2, who is held out, has
        data = rays([[1, 0, 0], [0, 1, 0], apart, [1, 1.2, 0]])
        held_out = np.array([False, False, True, True])
        state = compiled(method).init(key, replace(data, held_out=held_out, absent=np.arange(4) == 3))
        _, clusters = method.join(key, state, replace(data, held_out=held_out), [3])
        assert state.cluster.tolist()[:2] == [0, 1] and clusters.tolist() == [1]


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("linkage", "wanted"), [("single", [1, 8]), ("complete", [6, 8]), ("average", [3, 8]), ("weighted", [3, 8])]
)
def test_distances_from_clusters_are_the_linkages(linkage, wanted):
    away, cluster = jnp.array([[1.0, 2.0, 8.0, 6.0, 0.0]]), jnp.array([0, 0, 1, 0, -1], jnp.int32)
    assert cluster_distances(away, cluster, 3, linkage).tolist() == [[*wanted, np.inf]]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"rank": 0}, ("rank", 0)),
        ({"slots": 0}, ("slots", 0)),
        ({"num_clusters": 0}, ("num_clusters", 0)),
        ({"threshold": np.nan}, ("threshold", "nan")),
        ({"linkage": "ward"}, ("linkage", "ward")),
    ],
)
def test_refusals(options, complaint):
    with pytest.raises(ValueError, match=mentions(*complaint)):
        build(**options)


def test_data_without_subspaces_or_labels_are_refused(key):
    data = problems.linear_federation()
    with pytest.raises(ValueError, match=mentions("num_clusters", 8, 7)):
        pacfl(TASK, optax.sgd(RATE), num_clusters=8).init(key, data)
    with pytest.raises(ValueError, match=mentions("data", "tokens")):
        pacfl(TASK, optax.sgd(RATE)).init(key, replace(data, inputs=np.zeros((60, 3), np.int32)))
    with pytest.raises(ValueError, match=mentions("vectors", "client")):
        pacfl(TASK, optax.sgd(RATE), preset="official").init(key, replace(data, labels=np.zeros(60)))
