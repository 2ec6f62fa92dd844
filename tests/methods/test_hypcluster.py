"""HypCluster against a plain loop, its server's optimiser, and FedJAX's start as FedJAX does it: train everybody."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods, server, tree
from jaxfl.cohort import Cohort
from jaxfl.random import Stream, key_for
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import equal

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE, MOMENTUM, SERVER_RATE = 0.4, 0.6, 0.8
TASK = problems.softmax_task()
EVERYBODY = Cohort.of(range(7))
EPOCHS = {"local_epochs": 2}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


close = functools.partial(reference.close, rtol=1e-9)  # some ten steps amplify rounding


def advance(method, state, key, data, rounds=3, cohort=None):
    for _ in range(rounds):
        chosen = EVERYBODY if cohort is None else problems.sample(key, state.round, data, cohort)
        state, _ = method.round(key, state, data, chosen)
    return state


@functools.cache
def hypcluster(**options):
    """Returns the method, compiled; the same for the same options."""
    return compiled(methods.hypcluster(TASK, optax.sgd(RATE), **{"num_clusters": 3, **EPOCHS, **options}))


class HypCluster:
    """K models under momentum; in the first `warmup` rounds a client's cluster is its group."""

    def __init__(self, setting, models, groups, warmup):
        self.setting, self.models, self.cluster, self.warmup = setting, list(models), list(groups), warmup
        self.speed = [None] * len(models)

    def round(self, number, cohort):
        clients, cohort = self.setting.clients, reference.with_rows(self.setting, cohort)
        if number >= self.warmup:
            for i in cohort:
                self.cluster[i] = int(np.argmin([reference.gradient(model, *clients[i])[0] for model in self.models]))
        for k, model in enumerate(self.models):
            members = [i for i in cohort if self.cluster[i] == k]
            if members:
                trained = [reference.train(self.setting, number, i, model)[0] for i in members]
                mean = reference.average(trained, reference.weights(self.setting, members))
                away = reference.combine([(1, model), (-1, mean)])
                old = self.speed[k]
                self.speed[k] = reference.combine([(1, away)] + ([] if old is None else [(MOMENTUM, old)]))
                self.models[k] = reference.combine([(1, model), (-SERVER_RATE, self.speed[k])])


@pytest.mark.rotating
@pytest.mark.parametrize(("batch_size", "weighting"), [(None, "uniform"), (3, "rows")])
def test_every_round_is_the_papers_with_momentum_and_warm_up(batch_size, weighting, key):
    data, warmup = problems.linear_federation(), 2
    method = hypcluster(
        batch_size=batch_size,
        weighting=weighting,
        warmup_rounds=warmup,
        server_optimizer=optax.sgd(SERVER_RATE, momentum=MOMENTUM),
    )
    state = method.init(key, data)
    setting = reference.Setting(key, problems.rows_of(data), RATE, 2, batch_size, weighting)
    start = [jax.tree.map(np.asarray, tree.take(state.models, k)) for k in range(3)]
    loop, filled = HypCluster(setting, start, state.cluster.tolist(), warmup), []
    rows = np.flatnonzero(data.train.size > 0)
    for number in range(5):
        cohort = problems.sample(key, state.round, data, 4)
        state, info = method.round(key, state, data, cohort)
        loop.round(number, cohort.ids.tolist())
        filled.append(len(np.unique(np.asarray(info.cluster)[np.asarray(cohort.mask)])))
        assert state.cluster[rows].tolist() == np.array(loop.cluster)[rows].tolist()
        for k in range(3):
            close(tree.take(state.models, k), loop.models[k])
    assert min(filled) < 3, "some cluster was empty in some round"


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("optimizer", "start"),
    [(None, "groups"), (server.fedadam(0.1), "random"), (optax.sgd(1.0, momentum=0.9), "groups")],
)
def test_one_cluster_is_fedavg_with_the_same_server(optimizer, start, key):
    data = problems.linear_federation()
    options = {"server_optimizer": optimizer, "batch_size": 3, **EPOCHS}
    one = compiled(methods.hypcluster(TASK, optax.sgd(RATE), num_clusters=1, start=start, warmup_rounds=2, **options))
    alike = compiled(methods.fedavg(TASK, optax.sgd(RATE), **options))
    state, wanted = (advance(method, method.init(key, data), key, data, 4, cohort=4) for method in (one, alike))
    close(tree.take(state.models, 0), wanted.model)


def test_without_a_server_optimiser_it_is_ifca_weighted_by_rows(key):
    data = problems.linear_federation()
    options = {"num_clusters": 3, "batch_size": 3, **EPOCHS}
    ifca = compiled(methods.ifca(TASK, optax.sgd(RATE), weighting="rows", **options))
    plain, stepping = (hypcluster(start="random", batch_size=3, server_optimizer=o) for o in (None, optax.sgd(1.0)))
    wanted, state, stepped = (advance(method, method.init(key, data), key, data) for method in (ifca, plain, stepping))
    equal(state, wanted)
    close(stepped.models, wanted.models)


def test_an_empty_cluster_keeps_its_model_and_its_moments(key):
    """Cluster 2 trains in the warm-up, and then loses everybody to models beyond its reach."""
    data = problems.linear_federation()
    method = hypcluster(warmup_rounds=2, server_optimizer=server.fedadam(0.1))
    state = advance(method, method.init(key, data), key, data, 2)
    trained = state.server
    assert float(jnp.abs(trained.mean["kernel"][2]).max()) > 0
    lost = {"bias": 50 * jnp.array([1.0, -1.0]), "kernel": jnp.zeros((3, 2))}  # sure of one class: wrong somewhere
    state = state._replace(models=tree.put(state.models, 2, lost))
    after = advance(method, state, key, data, 2)
    assert 2 not in after.cluster
    equal(tree.take(after.models, 2), lost)
    equal(*(jax.tree.map(lambda leaf: leaf[2], run.server) for run in (after, state)))
    filled = np.unique(after.cluster[data.train.size > 0])
    for cluster in filled:
        assert not np.allclose(after.server.square["kernel"][cluster], state.server.square["kernel"][cluster])


@functools.cache
def alone():
    return compiled(methods.local(TASK, optax.sgd(RATE), batch_size=3, **EPOCHS))


@pytest.mark.rotating
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num_clusters", [2, 3])
def test_kmeans_start_is_fedjax_with_every_candidate_trained(seed, num_clusters):
    key, data, rounds = jax.random.key(seed), problems.linear_federation((5, 0, 3, 8, 1, 6, 4, 7), (0, 1) * 4), 4
    start = hypcluster(num_clusters=num_clusters, start="kmeans++", warmup_rounds=rounds, batch_size=3).init(key, data)
    local = alone()
    models = advance(local, local.init(key, data), key, data, rounds, cohort=8).models
    models = [jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i]), models) for i in range(8)]
    clients = problems.rows_of(data)
    candidates = [i for i in range(8) if len(clients[i][1])]
    loss = {(i, j): reference.gradient(models[j], *clients[i])[0] for i in candidates for j in candidates}
    draws = {i: float(jax.random.uniform(key_for(key, Stream.START, client=i))) for i in candidates}
    chosen = [max(candidates, key=lambda i: draws[i])]
    while len(chosen) < num_clusters:
        rest = [i for i in candidates if i not in chosen]
        chosen.append(max(rest, key=lambda i: min(loss[i, j] for j in chosen)))
    for k, i in enumerate(chosen):
        close(tree.take(start.models, k), models[i])


def test_kmeans_start_separates_planted_groups():
    """The client worst served by a model of one group is of the other."""
    data = problems.linear_federation(sizes=(20,) * 7, groups=(0, 1, 0, 1, 1, 0, 0))
    for seed in range(4):
        method = hypcluster(num_clusters=2, start="kmeans++", warmup_rounds=10)
        state = method.init(jax.random.key(seed), data)
        found = np.asarray(method.assign(jax.random.key(seed), state, data, EVERYBODY).cluster)
        assert (found == data.group).all() or (found != data.group).all(), seed


def test_kmeans_start_leaves_out_who_diverges(key):
    data = problems.linear_federation()
    options = {"num_clusters": 2, "start": "kmeans++", "warmup_rounds": 1, **EPOCHS}
    method = compiled(methods.hypcluster(TASK, optax.sgd(jnp.inf), **options))
    first = jax.jit(TASK.init)(key_for(key, Stream.INIT))
    equal(method.init(key, data).models, tree.repeat(first, 2))


def test_starts_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=mentions("start", "fedavg")):
        hypcluster(start="fedavg")
    with pytest.raises(ValueError, match=mentions("min_share", 0.5, "num_clusters", 0.333)):
        hypcluster(start="balanced", min_share=0.5)
