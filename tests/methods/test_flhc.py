"""FL+HC against its NumPy loop with SciPy's trees, the methods that it becomes, and whom clustering leaves aside."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster import hierarchy
from scipy.spatial.distance import pdist, squareform

import jaxfl
from jaxfl import methods, tree
from jaxfl.clustering import components, scores
from jaxfl.cohort import Cohort
from jaxfl.data.synthetic import clustered_linear
from jaxfl.methods.parts.one_shot import cluster_clients
from jaxfl.random import Stream, key_for
from jaxfl.testing import small
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE, ROUNDS, WARMUP, COHORT = 0.4, 6, 2, 5
TASK = problems.softmax_task()
EVERYBODY = Cohort.of(range(7))
EMPTY = 1
WITH_ROWS = [0, 2, 3, 4, 5, 6]
SCIPY: dict[str, Any] = {"l1": "cityblock", "l2": "euclidean", "cosine": "cosine"}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


close = functools.partial(reference.close, rtol=1e-9)  # some ten steps amplify rounding


@functools.cache
def flhc(rate=RATE, **options):
    """Returns the method, compiled; the same for the same options."""
    options = {"warmup_rounds": WARMUP, "local_epochs": 2, "slots": 8, "sketch_size": None, **options}
    return compiled(methods.flhc(TASK, optax.sgd(rate), **options))


def advance(method, data, *, key, rounds=ROUNDS, cohort=None, state=None):
    """Returns the state after some rounds, and the last info."""
    state = method.init(key, data) if state is None else state
    info: Any = None
    for _ in range(rounds):
        chosen = problems.sample(key, state.round, data, COHORT) if cohort is None else cohort
        state, info = method.round(key, state, data, chosen)
    return state, info


def served(method, state, ids=tuple(range(7))):
    return method.client_params(state, jnp.array(ids))


def setting_of(key, data, batch_size=None, weighting="rows", epochs=2, rate=RATE):
    return reference.Setting(key, problems.rows_of(data), rate, epochs, batch_size, weighting)


def initial(key):
    return jax.tree.map(np.asarray, TASK.init(key_for(key, Stream.INIT)))


class FLHC:
    """Clusters are a list of models and everybody's place in it."""

    def __init__(self, setting, model, *, metric, linkage, layers=("bias", "kernel"), gap=None):
        self.setting, self.models, self.cluster = setting, [model], [0] * len(setting.clients)
        self.metric, self.linkage, self.layers, self.gap = metric, linkage, layers, gap

    def point(self, client):
        x, y = self.setting.clients[client]
        start = model = self.models[0]
        key = key_for(self.setting.root, Stream.START, client=client)
        for rows in reference.batches(key, len(y), self.setting.epochs, self.setting.batch_size):
            model = reference.combine(
                [(1, model), (-self.setting.rate, reference.gradient(model, x[rows], y[rows])[1])]
            )
        sent = reference.combine([(1, model), (-1, start)])
        return np.concatenate([np.ravel(sent[name]) for name in sorted(self.layers)])

    def find_clusters(self):
        """Cuts where the tree has three clusters, and takes note of the threshold."""
        known = reference.with_rows(self.setting, range(len(self.cluster)))
        merges = hierarchy.linkage(pdist([self.point(i) for i in known], SCIPY[self.metric]), self.linkage)
        self.threshold = merges[-3:-1, 2].mean()
        found = dict(zip(known, hierarchy.fcluster(merges, self.threshold, "distance").tolist(), strict=True))
        names = list(dict.fromkeys(found.values()))  # in the order of their first members
        largest = max(names, key=lambda name: list(found.values()).count(name))
        self.cluster = [names.index(found.get(i, largest)) for i in range(len(self.cluster))]
        self.models = self.models * len(names)

    def round(self, number, cohort):
        if number == WARMUP:
            self.find_clusters()
        cohort = reference.with_rows(self.setting, cohort)
        for k, model in enumerate(list(self.models)):
            members = [i for i in cohort if self.cluster[i] == k]
            if members:
                trained = [reference.train(self.setting, number, i, model)[0] for i in members]
                self.models[k] = reference.average(trained, reference.weights(self.setting, members))


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("options", "batch_size", "weighting"),
    [
        ({"metric": "cosine", "linkage": "average"}, None, "rows"),
        ({"metric": "cosine", "linkage": "single"}, 3, "rows"),
        ({"metric": "l1", "linkage": "complete", "layers": ("kernel",)}, 3, "uniform"),
        ({"metric": "l2", "linkage": "ward", "layers": ("bias",)}, None, "uniform"),
    ],
)
def test_every_round_is_the_papers(options, batch_size, weighting, key):
    data = problems.linear_federation()
    wanted = FLHC(setting_of(key, data, batch_size, weighting), initial(key), **options)
    cohorts = [problems.sample(key, jnp.int32(number), data, COHORT) for number in range(ROUNDS)]
    history = []
    for number, cohort in enumerate(cohorts):
        wanted.round(number, cohort.ids.tolist())
        history.append((list(wanted.models), list(wanted.cluster)))
    method = flhc(threshold=wanted.threshold, batch_size=batch_size, weighting=weighting, **options)
    state = method.init(key, data)
    for number, (cohort, (models, found)) in enumerate(zip(cohorts, history, strict=True)):
        state, info = method.round(key, state, data, cohort)
        assert state.cluster.tolist() == found
        assert int(info.num_clusters) == len(models) == (1 if number < WARMUP else 3)
        for k, model in enumerate(models):
            close(tree.take(state.models, k), model)


def test_at_an_infinite_threshold_it_is_fedavg_bit_for_bit(key):
    data = problems.linear_federation()
    options: dict[str, Any] = {"local_epochs": 2, "batch_size": 3}
    state, info = advance(flhc(threshold=np.inf, **options), data, key=key)
    wanted, _ = advance(compiled(methods.fedavg(TASK, optax.sgd(RATE), **options)), data, key=key)
    assert int(info.num_clusters) == 1 and state.cluster.tolist() == [0] * 7
    reference.equal(tree.take(state.models, 0), wanted.model)


@functools.cache
def local():
    return compiled(methods.local(TASK, optax.sgd(RATE), local_epochs=2))


@pytest.mark.rotating
@pytest.mark.parametrize("metric", ["l1", "cosine"])
def test_at_threshold_zero_it_is_local_from_round_n_on(metric, key):
    data = problems.linear_federation()
    ours, alone = flhc(metric=metric, threshold=0.0), local()
    warm, _ = advance(ours, data, key=key, rounds=WARMUP)
    start = alone.init(key, data)._replace(models=tree.repeat(tree.take(warm.models, 0), 7), round=warm.round)
    state, info = advance(ours, data, key=key, state=warm, rounds=3)
    wanted, _ = advance(alone, data, key=key, state=start, rounds=3)
    assert int(info.num_clusters) == len(WITH_ROWS)
    close(served(ours, state, WITH_ROWS), served(alone, wanted, WITH_ROWS))


def test_the_cosine_has_no_scale(key):
    """One full step is the rate times the gradient: a tenth of the rate, a tenth of every update."""
    data, options = problems.linear_federation(), {"warmup_rounds": 0, "local_epochs": 1, "threshold": 0.45}
    found = [advance(flhc(rate, **options), data, key=key, rounds=1)[0].cluster.tolist() for rate in (RATE, RATE / 10)]
    assert found[0] == found[1] and 1 < len(set(found[0])) < len(WITH_ROWS)


@given(seed=st.integers(0, 10**6), share=st.floats(0.1, 0.9))
def test_single_linkage_leaves_the_connected_components(seed, share):
    distance = squareform(pdist(np.random.default_rng(seed).normal(size=(12, 2)))).astype(np.float32)
    threshold = float(np.quantile(distance, share))
    everybody = jnp.ones(12, bool)
    found, count = cluster_clients(jnp.asarray(distance), everybody, everybody, "single", threshold, None)
    wanted = components.threshold_components(jnp.asarray(-distance), -threshold)
    assert scores.adjusted_rand_index(wanted, found) == 1
    assert int(count) == len(set(wanted.tolist()))


@pytest.mark.rotating
@pytest.mark.parametrize("sketch_size", [None, 20])
def test_the_default_threshold_leaves_one_group_whole_and_parts_four(sketch_size, key):
    with jax.enable_x64(False):
        method = compiled(methods.flhc(linear_task(), optax.sgd(0.3), warmup_rounds=3, sketch_size=sketch_size))
        for groups in (1, 4):
            data = replace(clustered_linear(24, groups, 60), group_names=())  # the same program
            state, info = advance(method, data, key=key, rounds=4, cohort=Cohort.of(range(24)))
            assert int(info.num_clusters) == groups
            assert scores.adjusted_rand_index(np.asarray(data.group), state.cluster) == 1


def linear_task():
    """The battery's task for rows of eight numbers."""
    return small.linear_task()._replace(
        init=lambda key: {"kernel": 0.1 * jax.random.normal(key, (8, 3)), "bias": jnp.zeros(3)}
    )


def test_everybody_is_asked_in_round_n_and_the_bytes_say_so(key):
    data, one = problems.linear_federation(), Cohort.of([0])
    method = flhc(num_clusters=3, layers="kernel")
    state, before = advance(method, data, key=key, rounds=WARMUP, cohort=one)
    assert int(before.num_clusters) == 1 and int(state.num_clusters) == 0
    state, during = advance(method, data, key=key, rounds=1, cohort=one, state=state)
    assert int(during.num_clusters) == 3 and set(state.cluster.tolist()) == {0, 1, 2}
    numbers, kernel = 8, 6
    assert float(before.bytes_up) == float(before.bytes_down) == 8 * numbers
    assert float(during.bytes_up) == 8 * (numbers + 6 * kernel), "client 1 has no rows"
    assert float(during.bytes_down) == 8 * (numbers + 6 * numbers)
    after, info = advance(method, data, key=key, rounds=1, cohort=one, state=state)
    assert float(info.bytes_up) == 8 * numbers
    assert after.cluster.tolist() == state.cluster.tolist(), "never clustered again"


def test_the_clustering_waits_for_somebody(key):
    data = problems.linear_federation()
    method, nobody = flhc(num_clusters=3), Cohort(EVERYBODY.ids[:COHORT], jnp.zeros(COHORT, bool))
    state, _ = advance(method, data, key=key, rounds=WARMUP)
    waited, info = advance(method, data, key=key, rounds=2, cohort=nobody, state=state)
    assert int(info.num_clusters) == 1 and float(info.bytes_up) == 0
    found, info = advance(method, data, key=key, rounds=1, state=waited)
    assert int(info.num_clusters) == 3
    assert found.cluster.tolist() == advance(method, data, key=key, rounds=1, state=state)[0].cluster.tolist()


def test_held_out_clients_are_placed_and_heard_by_nobody(key):
    data = clustered_linear(12, 3, 40, dtype=np.float64)
    out = np.arange(12) < 4
    others = Cohort.of(range(4, 12))
    method = compiled(methods.flhc(linear_task(), optax.sgd(0.3), warmup_rounds=1))
    state, info = advance(method, replace(data, held_out=out), key=key, rounds=3, cohort=others)
    size = np.where(out, 0, data.train.size)
    without = replace(data, train=replace(data.train, size=size), held_out=np.zeros(12, bool))
    absent, _ = advance(method, without, key=key, rounds=3, cohort=others)
    assert scores.adjusted_rand_index(np.asarray(data.group), state.cluster) == 1
    assert int(info.num_clusters) == 3
    assert state.cluster[4:].tolist() == absent.cluster[4:].tolist()
    close(state.models, absent.models)


def test_more_clusters_than_slots_grow_them(key):
    data = problems.linear_federation()
    options: dict[str, Any] = {"rounds": 5, "cohort": COHORT, "seed": 0, "eval_every": 5}
    few = jaxfl.run(flhc(threshold=0.0, slots=4), data, **options)
    method = flhc(threshold=0.0)
    enough, _ = advance(method, data, key=key, rounds=5)
    assert jax.tree.leaves(few.state.models)[0].shape[0] == 8, "six clusters, doubled from four"
    assert few.state.cluster.tolist() == enough.cluster.tolist()
    close(served(method, few.state), served(method, enough))


@given(
    seed=st.integers(0, 10**6),
    linkage=st.sampled_from(["single", "complete", "average", "ward"]),
    absent=st.integers(0, 7),
    share=st.floats(0.05, 1.1),
    by_number=st.booleans(),
)
def test_the_unknown_are_in_nobodys_way(seed, linkage, absent, share, by_number):
    rng = np.random.default_rng(seed)
    distance = squareform(pdist(rng.normal(size=(9, 3)))).astype(np.float32)
    known = np.ones(9, bool)
    known[rng.permutation(9)[:absent]] = False
    able = known | (rng.random(9) < 0.5)
    members = np.flatnonzero(known)
    merges = hierarchy.linkage(squareform(distance[np.ix_(members, members)].astype(float)), linkage)
    threshold, number = share * merges[-1, 2], int(rng.integers(1, len(members) + 1)) if by_number else None
    if by_number:
        wanted = hierarchy.cut_tree(merges, number)[:, 0]
    else:
        wanted = hierarchy.fcluster(merges, threshold, "distance")
    arrays = jnp.asarray(distance), jnp.asarray(known), jnp.asarray(able)
    found, count = cluster_clients(*arrays, linkage, threshold, number)
    found = np.asarray(found)
    assert scores.adjusted_rand_index(wanted, found[known]) == 1
    assert int(count) == len(set(wanted.tolist()))
    assert list(dict.fromkeys(found[known].tolist())) == list(range(int(count)))
    for client in np.flatnonzero(~known):
        if able[client]:
            assert found[client] == found[members[distance[client, members].argmin()]]
        else:
            assert found[client] == np.bincount(found[known]).argmax()


def test_without_anybody_known_there_is_one_cluster():
    nobody = jnp.zeros(3, bool)
    found, count = cluster_clients(jnp.ones((3, 3)), nobody, nobody, "average", 0.5, None)
    assert found.tolist() == [0, 0, 0] and int(count) == 1


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"warmup_rounds": -1}, ("warmup_rounds", -1)),
        ({"threshold": -0.1}, ("threshold", -0.1)),
        ({"threshold": np.nan}, ("threshold", "nan")),
        ({"num_clusters": 0}, ("num_clusters", 0)),
        ({"sketch_size": 0}, ("sketch_size", 0)),
        ({"slots": 0}, ("slots", 0)),
        ({"metric": "l3"}, ("metric", "l3")),
        ({"linkage": "centroid"}, ("linkage", "centroid")),
        ({"linkage": "ward"}, ("metric", "cosine", "linkage='ward'")),
        ({"metric": "l1", "threshold": 1.0, "sketch_size": 10}, ("sketch_size", 10, "metric='l1'")),
        ({"threshold": 0.5, "num_clusters": 2}, ("threshold", 0.5, "num_clusters=2")),
        ({"metric": "l2"}, ("threshold", "metric='l2'", "num_clusters")),
        ({"weighting": "size"}, ("weighting", "size")),
    ],
)
def test_refusals(options, complaint):
    with pytest.raises(ValueError, match=mentions(*complaint)):
        flhc(**options)


def test_more_clusters_than_clients_are_refused(key):
    with pytest.raises(ValueError, match=mentions("num_clusters", 8, 7)):
        flhc(num_clusters=8).init(key, problems.linear_federation())


@pytest.mark.parametrize(("method", "options"), [(methods.flhc, {}), (methods.kfed, {"num_clusters": 2})])
def test_layers_that_match_nothing_are_refused_at_once(method, options):
    with pytest.raises(ValueError, match=mentions("Conv_0", "bias, kernel")):
        method(small.linear_task(), optax.sgd(0.1), layers="Conv_0", **options)
