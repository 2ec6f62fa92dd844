"""WeCFL against its NumPy loop in both forms, the methods that it becomes, and who joins later."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods, tree
from jaxfl.cohort import Cohort
from jaxfl.methods.base import Row
from jaxfl.methods.parts.multi_centre import FeSEMState
from jaxfl.methods.wecfl import wecfl
from jaxfl.random import Stream, key_for
from jaxfl.testing import CHECKS
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import equal

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE = 0.4
TASK = problems.softmax_task()
COHORTS = [(0, 2, 3, 5, 6), (6, 1, 4, 3, 2), (5, 0, 1, 4, 3), (2, 5, 4, 0, 6)]
OPTIONS = {"local_epochs": 2, "batch_size": 3}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


close = functools.partial(reference.close, rtol=1e-9)  # some ten steps amplify rounding


@functools.cache
def build(**options):
    """Returns the method, compiled; the same for the same options."""
    return compiled(wecfl(TASK, optax.sgd(RATE), **{"num_clusters": 3, **OPTIONS, **options}))


def advance(method, data, key, state):
    """Returns the state after a round with each of the cohorts, and the last info."""
    info = None
    for cohort in COHORTS:
        state, info = method.round(key, state, data, Cohort.of(cohort))
    return state, info


class WeCFL:
    """Clients one by one; k-means by trying every partition, names of clusters by trying every order."""

    def __init__(self, setting, model, clusters, layers):
        self.setting, self.layers, self.slots = setting, layers, range(clusters)
        self.rows = [len(y) for _, y in setting.clients]
        self.centres, self.cluster = [model] * clusters, [0] * len(self.rows)

    def vector(self, model):
        return np.concatenate([np.ravel(model[name]) for name in sorted(self.layers)])

    def inertia(self, sent, labels):
        """Returns the objective with the best centres, the weighted means."""
        total = 0
        for k in set(labels):
            points, weights = zip(
                *((self.vector(sent[i]), self.rows[i]) for i, label in zip(sent, labels, strict=True) if label == k),
                strict=True,
            )
            centre = np.average(points, axis=0, weights=weights)
            total += sum(w * np.sum((point - centre) ** 2) for point, w in zip(points, weights, strict=True))
        return total

    def best_partition(self, sent):
        labels = min(itertools.product(self.slots, repeat=len(sent)), key=lambda labels: self.inertia(sent, labels))
        shared = {
            order: sum(self.rows[i] for i, k in zip(sent, labels, strict=True) if order[k] == self.cluster[i])
            for order in itertools.permutations(self.slots)
        }
        order = max(shared, key=shared.__getitem__)
        assert sorted(shared.values())[-2] < shared[order], "one order is the best, or the library may take another"
        return dict(zip(sent, [order[k] for k in labels], strict=True))

    def nearest(self, sent):
        centres = [self.vector(centre) for centre in self.centres]
        return {i: int(np.argmin([np.sum((self.vector(sent[i]) - c) ** 2) for c in centres])) for i in sent}

    def objective(self, sent):
        """Returns the objective with the centres as they are."""
        return sum(
            self.rows[i] * np.sum((self.vector(sent[i]) - self.vector(self.centres[self.cluster[i]])) ** 2)
            for i in sent
        )

    def round(self, number, cohort, scratch):
        """Returns the objective before, after E, and after M."""
        cohort = reference.with_rows(self.setting, sorted(cohort))
        sent = {i: reference.train(self.setting, number, i, self.centres[self.cluster[i]])[0] for i in cohort}
        path = [self.objective(sent)]
        for i, k in (self.best_partition(sent) if scratch else self.nearest(sent)).items():
            self.cluster[i] = k
        path.append(self.objective(sent))
        for k in self.slots:
            members = [i for i in cohort if self.cluster[i] == k]
            if members:
                self.centres[k] = reference.average([sent[i] for i in members], [self.rows[i] for i in members])
        return [*path, self.objective(sent)]


@pytest.mark.rotating
@pytest.mark.parametrize("preset", ["paper", "official"])
def test_every_round_is_the_papers(preset, key):
    """From the start's centres but wrong clusters, so that there is something to do."""
    data, scratch = problems.linear_federation(), preset == "official"
    method = build(preset=preset)
    state = method.init(key, data)
    setting = reference.Setting(key, problems.rows_of(data), RATE, 2, 3)
    start = jax.tree.map(np.asarray, TASK.init(key_for(key, Stream.INIT)))
    loop = WeCFL(setting, start, 3, ("kernel",) if scratch else ("bias", "kernel"))
    sent = {}
    for i in reference.with_rows(setting, range(7)):
        x, y = setting.clients[i]
        sent[i] = start
        for rows in reference.batches(key_for(key, Stream.START, client=i), len(y), 2, 3):
            sent[i] = reference.combine([(1, sent[i]), (-RATE, reference.gradient(sent[i], x[rows], y[rows])[1])])
    loop.cluster = np.asarray(state.cluster).tolist()
    assert loop.best_partition(sent) == {i: loop.cluster[i] for i in sent}, "the best of all weighted partitions"
    for k in range(3):
        members = [i for i in sent if loop.cluster[i] == k]
        loop.centres[k] = reference.average([sent[i] for i in members], [loop.rows[i] for i in members])
        close(tree.take(state.centres, k), loop.centres[k])

    loop.cluster = [0, 0, 1, 1, 0, 2, 2]
    state, changed = state._replace(cluster=jnp.array(loop.cluster, jnp.int32)), 0
    for number, cohort in enumerate(COHORTS):
        state, info = method.round(key, state, data, Cohort.of(cohort))
        path = loop.round(number, cohort, scratch)
        assert state.cluster.tolist() == loop.cluster
        changed += int(info.extra["changed"])
        for k, centre in enumerate(loop.centres):
            close(tree.take(state.centres, k), centre)
        if not scratch:  # there the centres are made after the clusters, of whole models
            assert path == sorted(path, reverse=True), "neither E nor M raises the objective"
    assert changed > 0


def test_it_is_fesem_by_rows_without_pull_bit_for_bit(key):
    data, options = problems.linear_federation(), {"proximal_weight": 0.0, "weighting": "rows", **OPTIONS}
    fesem = compiled(methods.fesem(TASK, optax.sgd(RATE), num_clusters=3, **options))
    start = build().init(key, data)
    equal(advance(build(), data, key, start), advance(fesem, data, key, start))


def test_one_centre_is_fedavg(key):
    data = problems.linear_federation()
    fedavg = compiled(methods.fedavg(TASK, optax.sgd(RATE), **OPTIONS))
    start = fedavg.init(key, data)
    ours = FeSEMState(tree.repeat(start.model, 1), start.cluster, start.round)
    state, _ = advance(build(num_clusters=1), data, key, ours)
    wanted, _ = advance(fedavg, data, key, start)
    close(tree.take(state.centres, 0), wanted.model)


def test_clients_join_the_centre_that_moves_them_least(key):
    """Clients 4 to 6 are new; 6 has no rows."""
    data = problems.linear_federation(sizes=(5, 2, 3, 8, 4, 6, 0))
    setting = reference.Setting(key, problems.rows_of(data), RATE, 2, 3)
    start = [{"bias": np.array([k, -k]), "kernel": np.array([[k, -k], [-k, k], [0.0, 0.3]])} for k in (-1.0, 0.0, 1.0)]
    centres = jax.tree.map(lambda *leaves: jnp.stack(leaves), *start)
    state = FeSEMState(centres, jnp.array([2, 1, 0, 0], jnp.int32), jnp.int32(3))
    wanted = {6: 0}
    for client in (4, 5):
        x, y = setting.clients[client]
        moved = []
        for centre in start:
            model = centre
            for rows in reference.batches(key_for(key, Stream.START, client=client), len(y), 2, 3):
                model = reference.combine([(1, model), (-RATE, reference.gradient(model, x[rows], y[rows])[1])])
            moved.append(sum(np.sum((model[name] - centre[name]) ** 2) for name in model))
        wanted[client] = int(np.argmin(moved))
    assert wanted[4] != wanted[5], "or it would be no test"
    join = wecfl(TASK, optax.sgd(RATE), num_clusters=3, **OPTIONS).join
    assert join is not None
    after, clusters = join(key, state, data, [6, 4, 5])
    assert clusters.tolist() == [wanted[6], wanted[4], wanted[5]]
    assert after.cluster.tolist() == [2, 1, 0, 0, wanted[4], wanted[5], wanted[6]]
    equal(after.centres, centres)
    with pytest.raises(ValueError, match=mentions("data", "7 clients", 4)):
        join(key, after, data.subset(range(4)), [0])


@pytest.mark.slow
@pytest.mark.rotating
@pytest.mark.parametrize("law", ["nobody", "cohort order", "sick client"])
def test_clustering_from_scratch_keeps_the_laws(law):
    with jax.enable_x64(False):
        CHECKS[law](Row(wecfl, "", "", small=methods.METHODS["wecfl"].small | {"preset": "official"}))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"recluster": "never"}, ("recluster", "never")),
        ({"num_clusters": 0}, ("num_clusters", 0)),
        ({"layers": "Dense_9"}, ("Dense_9", "bias, kernel")),
    ],
)
def test_refusals(options, complaint):
    with pytest.raises(ValueError, match=mentions(*complaint)):
        build(**options)
