"""FeSEM against its NumPy loop, the methods that it becomes, its objective, and its empty clusters."""

import functools
import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods, models, tree
from jaxfl.clustering import scores
from jaxfl.cohort import Cohort, Plan
from jaxfl.data.synthetic import clustered_linear
from jaxfl.methods.base import Row
from jaxfl.methods.fesem import fesem
from jaxfl.methods.parts.multi_centre import FeSEMState
from jaxfl.methods.parts.vectors import compared_leaves
from jaxfl.random import Stream, key_for
from jaxfl.tasks import Task, classification
from jaxfl.testing import CHECKS
from jaxfl.testing.compare import assert_close
from jaxfl.testing.small import linear_task
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import equal

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE, ROUNDS = 0.4, 5
TASK = problems.softmax_task()
EVERYBODY = Cohort.of(range(7))
EPOCHS = {"local_epochs": 2}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


close = functools.partial(reference.close, rtol=1e-9)  # some ten steps amplify rounding


@functools.partial(problems.once, fesem)
def build(**options):
    return compiled(fesem(TASK, optax.sgd(RATE), **{"num_clusters": 2, **EPOCHS, **options}))


@functools.cache
def planted(**options):
    """Returns the method for planted groups, compiled."""
    return compiled(fesem(linear_task(), optax.sgd(0.3), num_clusters=2, **options))


def advance(method, data, key, *, rounds=1, cohort=EVERYBODY, state=None):
    """Returns the state after some rounds, and the last info."""
    state, info = method.init(key, data) if state is None else state, None
    for _ in range(rounds):
        state, info = method.round(key, state, data, cohort)
    return state, info


def one_centre(model):
    """Returns the state in which everybody is served this model."""
    return FeSEMState(tree.repeat(model, 1), jnp.zeros(7, jnp.int32), jnp.int32(0))


def vector(model, layers):
    return np.concatenate([np.ravel(model[name]) for name in sorted(layers)])


MEASURES = {
    "squared_l2": lambda a, b: np.sum((a - b) ** 2),
    "l1": lambda a, b: np.sum(np.abs(a - b)),
    "cosine": lambda a, b: 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b),
}


class FeSEM:
    """Algorithm 1, its third step first."""

    def __init__(self, setting, model, clusters, *, pull, rows_in_pull, layers, distance):
        self.setting, self.layers, self.measure = setting, layers, MEASURES[distance]
        self.clients = reference.with_rows(setting, range(len(setting.clients)))
        mean = np.mean([len(setting.clients[i][1]) for i in self.clients])
        self.mu = {i: 2 * pull * (mean / len(setting.clients[i][1]) if rows_in_pull else 1) for i in self.clients}
        self.centres = [model] * clusters
        self.sent = {i: self.learn(key_for(setting.root, Stream.START, client=i), i, model) for i in self.clients}

    def learn(self, key, client, centre):
        x, y = self.setting.clients[client]
        model, mu = centre, self.mu[client]
        for rows in reference.batches(key, len(y), self.setting.epochs, self.setting.batch_size):
            step = reference.combine([(1, reference.gradient(model, x[rows], y[rows])[1]), (mu, model), (-mu, centre)])
            model = reference.combine([(1, model), (-self.setting.rate, step)])
        return model

    def best_partition(self):
        """Returns the clusters of the first updates with the lowest intra-cluster distance of all there are."""
        points = np.array([vector(self.sent[i], self.layers) for i in self.clients])

        def inertia(labels):
            labels = np.array(labels)
            return sum(np.sum((points[labels == k] - points[labels == k].mean(0)) ** 2) for k in set(labels.tolist()))

        return min(itertools.product(range(len(self.centres)), repeat=len(points)), key=inertia)

    def start_from(self, cluster):
        self.cluster = list(cluster)
        self.maximise(self.sent)

    def maximise(self, sent):
        for k in range(len(self.centres)):
            members = [i for i in sent if self.cluster[i] == k]
            if members:
                shares = reference.weights(self.setting, members)
                self.centres[k] = reference.average([sent[i] for i in members], shares)

    def away(self, model, k):
        return self.measure(vector(model, self.layers), vector(self.centres[k], self.layers))

    def objective(self, sent):
        return np.mean([self.away(sent[i], self.cluster[i]) for i in sent])

    def round(self, number, cohort):
        """Returns the objective before and after E, and after M."""
        cohort, slots = reference.with_rows(self.setting, cohort), range(len(self.centres))
        sent = {
            i: self.learn(key_for(self.setting.root, Stream.BATCHES, number, i), i, self.centres[self.cluster[i]])
            for i in cohort
        }
        objectives = [self.objective(sent)]
        for i in cohort:
            self.cluster[i] = int(np.argmin([self.away(sent[i], k) for k in slots]))
        objectives.append(self.objective(sent))
        self.distance = {i: self.away(sent[i], self.cluster[i]) for i in cohort}
        self.maximise(sent)
        return [*objectives, self.objective(sent)]


# options, weighting, batch size
SETTINGS = {
    "paper": ({}, "uniform", None),
    "rows": ({"loss_weighting": "rows", "proximal_weight": 0.05, "layers": "kernel"}, "rows", 3),
    "l1": ({"layers": "bias", "distance": "l1", "proximal_weight": 0.0}, "uniform", None),
    "cosine": ({"distance": "cosine"}, "uniform", 3),
}


@pytest.mark.rotating
@pytest.mark.parametrize("name", SETTINGS)
def test_every_round_is_the_papers(name, key):
    """From wrong clusters, so that there is something to do."""
    options, weighting, batch_size = SETTINGS[name]
    data, layers = problems.linear_federation(), options.get("layers", ("bias", "kernel"))
    method = build(num_clusters=3, batch_size=batch_size, weighting=weighting, **options)
    state = method.init(key, data)
    loop = FeSEM(
        reference.Setting(key, problems.rows_of(data), RATE, 2, batch_size, weighting),
        jax.tree.map(np.asarray, TASK.init(key_for(key, Stream.INIT))),
        clusters=3,
        pull=options.get("proximal_weight", 0.1),
        rows_in_pull=options.get("loss_weighting") == "rows",
        layers=(layers,) if isinstance(layers, str) else layers,
        distance=options.get("distance", "squared_l2"),
    )
    found = np.asarray(state.cluster)
    assert scores.adjusted_rand_index(found[loop.clients], loop.best_partition()) == 1, "the best of all partitions"
    loop.start_from(found.tolist())
    for k, centre in enumerate(loop.centres):
        close(tree.take(state.centres, k), centre)

    loop.cluster = [(i + 1) % 3 for i in range(7)]
    centres = jax.tree.map(lambda *leaves: jnp.stack(leaves), *loop.centres)
    state = state._replace(cluster=jnp.array(loop.cluster, jnp.int32), centres=centres)
    all_changed = 0
    for number in range(ROUNDS):
        cohort = problems.sample(key, state.round, data, 5)
        ids, before = cohort.ids.tolist(), list(loop.cluster)
        state, info = method.round(key, state, data, cohort)
        objectives = loop.round(number, ids)
        assert state.cluster.tolist() == loop.cluster
        assert info.cluster.tolist() == [before[i] for i in ids], "the cluster that it trained in"
        assert int(info.num_clusters) == len({loop.cluster[i] for i in loop.clients})
        close(np.asarray(info.extra["distance"]), np.array([loop.distance.get(i, 0) for i in ids]))
        np.testing.assert_allclose(info.extra["objective"], objectives[1], rtol=1e-9)
        assert int(info.extra["changed"]) == sum(a != b for a, b in zip(before, loop.cluster, strict=True))
        for k, centre in enumerate(loop.centres):
            close(tree.take(state.centres, k), centre)
        assert objectives[1] <= objectives[0], "E"
        if weighting == "uniform" and "distance" not in options:  # whose minimum the mean is
            assert objectives[2] <= objectives[1], "M"
        all_changed += int(info.extra["changed"])
    assert all_changed > 0, "there was something to do"


# One method with these settings is another


def test_one_centre_is_uniform_fedavg(key):
    data, cohort = problems.linear_federation(), (1, 2, 5)
    fedavg = compiled(methods.fedavg(TASK, optax.sgd(RATE), weighting="uniform", batch_size=3, **EPOCHS))
    ours = build(num_clusters=1, proximal_weight=0.0, batch_size=3)
    start = fedavg.init(key, data)
    state, info = advance(ours, data, key, rounds=3, cohort=Cohort.of(cohort), state=one_centre(start.model))
    wanted, seen = advance(fedavg, data, key, rounds=3, cohort=Cohort.of(cohort), state=start)
    close(tree.take(state.centres, 0), wanted.model)
    assert float(info.bytes_up) == float(seen.bytes_up) and float(info.bytes_down) == float(seen.bytes_down)


def test_the_start_is_a_round_of_its_own(key):
    """With full batches FedAvg is as far after one round as FeSEM before the first."""
    data = problems.linear_federation()
    fedavg = compiled(methods.fedavg(TASK, optax.sgd(RATE), weighting="uniform", **EPOCHS))
    ours, _ = advance(build(num_clusters=1, preset="official"), data, key, rounds=2)
    close(tree.take(ours.centres, 0), advance(fedavg, data, key, rounds=3)[0].model)


@functools.cache
def fedprox_of(weight):
    options = {"proximal_weight": weight, "weighting": "uniform", "batch_size": 3, **EPOCHS}
    return compiled(methods.fedprox(TASK, optax.sgd(RATE), **options))


@pytest.mark.rotating
@pytest.mark.parametrize("loss_weighting", ["uniform", "rows"])
def test_one_centre_with_pull_is_fedprox_of_twice_lambda(loss_weighting, key):
    """If all have as many rows, alpha is 1 / m either way."""
    data, fedprox = problems.linear_federation(sizes=(6,) * 7), fedprox_of(0.6)
    ours = build(num_clusters=1, proximal_weight=0.3, batch_size=3, loss_weighting=loss_weighting)
    start = fedprox.init(key, data)
    state, _ = advance(ours, data, key, rounds=3, state=one_centre(start.model))
    close(tree.take(state.centres, 0), advance(fedprox, data, key, rounds=3, state=start)[0].model)


def test_as_many_centres_as_clients_is_local_training(key):
    data = problems.linear_federation(sizes=(5, 4, 3, 8, 6, 7, 4))
    ours = build(num_clusters=7, proximal_weight=0.0, first_epochs=40, batch_size=3)
    start = ours.init(key, data)
    assert len(set(start.cluster.tolist())) == 7
    state, info = advance(ours, data, key, state=start)
    assert int(info.extra["changed"]) == 0, "or it would not be"
    local = compiled(methods.local(TASK, optax.sgd(RATE), batch_size=3, **EPOCHS))
    everybody = jnp.arange(7)
    models = local.init(key, data)._replace(models=ours.client_params(start, everybody))
    wanted, _ = advance(local, data, key, state=models)
    close(ours.client_params(state, everybody), local.client_params(wanted, everybody))


def test_names_of_the_clusters_mean_nothing(key):
    data, method = problems.linear_federation(), build(num_clusters=3)
    start = method.init(key, data)
    order = np.array([2, 0, 1])  # new slot -> old slot
    centres = jax.tree.map(lambda leaf: np.asarray(leaf)[order], start.centres)
    other = start._replace(centres=centres, cluster=np.argsort(order)[start.cluster].astype(np.int32))
    one, two = (advance(method, data, key, rounds=2, state=state)[0] for state in (start, other))
    close(tree.take(one.centres, order), two.centres)
    assert order[two.cluster].tolist() == one.cluster.tolist()


# The presets


def test_official_compares_the_last_kernel_alone_and_pulls_nothing(key):
    data = problems.linear_federation()
    official = build(preset="official", num_clusters=3)
    spelled = build(layers="kernel", proximal_weight=0.0, num_clusters=3)
    start = official.init(key, data)
    states = [advance(method, data, key, rounds=2, state=start)[0] for method in (official, spelled)]
    equal(*states)
    paper, spelled = build(preset="official", layers=".*", proximal_weight=0.1, num_clusters=3), build(num_clusters=3)
    equal(*(advance(method, data, key)[0] for method in (paper, spelled)))
    moved = {**start.centres, "bias": start.centres["bias"] + np.array([[50.0], [0.0], [-50.0]])}
    far = start._replace(centres=moved)  # softmax knows no such shift, so the clients send the same kernels
    by_kernel, by_all = (advance(method, data, key, state=far)[0].cluster for method in (official, spelled))
    assert by_kernel.tolist() == advance(official, data, key, state=start)[0].cluster.tolist()
    assert by_all.tolist() == start.cluster.tolist(), "nobody crosses to the other biases"


def test_the_last_kernel_is_that_of_the_layer_made_last():
    with jax.enable_x64(False):
        data = problems.linear_federation()
        data = replace(data, inputs=data.inputs.astype(np.float32))
        task = classification(models.MLP(hidden=(5,) * 11, num_classes=2), data)  # Dense_10, Dense_11 < Dense_2
    flags = compared_leaves(task, "last kernel")
    names = tree.names(jax.eval_shape(task.init, jax.random.key(0)))
    assert [name for name, yes in zip(names, jax.tree.leaves(flags), strict=True) if yes] == ["Dense_11/kernel"]


# The start, and who is in it


@pytest.mark.rotating
@pytest.mark.parametrize("options", [{}, {"preset": "official"}], ids=str)
def test_planted_groups_are_found_in_part_time(options, key):
    data = clustered_linear(20, 2, 40, 4, 3, dtype=np.float64)
    method = planted(**options)
    state = method.init(key, data)
    for _ in range(3):
        assert scores.adjusted_rand_index(data.group, state.cluster) == 1
        state, info = method.round(key, state, data, problems.sample(key, state.round, data, 6))
        assert int(info.num_clusters) == 2 and int(info.extra["changed"]) == 0


def test_sketches_only_choose_the_clusters(key):
    """The centres of the start are means of whole updates, whatever k-means was shown."""
    data = clustered_linear(20, 2, 40, 400, 3, dtype=np.float64)  # 1,203 parameters: more than a sketch has
    task = linear_task()._replace(
        init=lambda key: {"kernel": 0.01 * jax.random.normal(key, (400, 3)), "bias": jnp.zeros(3)}
    )
    state = compiled(fesem(task, optax.sgd(0.1), num_clusters=2, proximal_weight=0.0)).init(key, data)
    assert scores.adjusted_rand_index(data.group, state.cluster) == 1
    alone = compiled(methods.local(task, optax.sgd(0.1)))
    sent = alone.round(key, alone.init(key, data), data, Cohort.of(range(20)))[0].models  # of all rows: no batches
    for k in range(2):
        mean = jax.tree.map(lambda leaf, k=k: leaf[state.cluster == k].mean(0), sent)
        assert_close(tree.take(state.centres, k), mean, "both must be means of the same updates")


def test_held_out_clients_are_placed_and_heard_by_nobody(key):
    data = problems.linear_federation()
    size = np.array(data.train.size)
    size[3] = 0
    absent = build().init(key, replace(data, held_out=np.zeros(7, bool), train=replace(data.train, size=size)))
    out = build().init(key, replace(data, held_out=np.arange(7) == 3))
    close(out.centres, absent.centres)
    others = np.arange(7) != 3
    assert out.cluster[others].tolist() == absent.cluster[others].tolist() and int(out.cluster[3]) in (0, 1)


# Empty clusters


def two_and_none(key, data, method):
    """Returns a state whose third centre is far away and nobody's."""
    state = method.init(key, data)
    far = jax.tree.map(lambda leaf: leaf.at[2].set(100.0), state.centres)
    return FeSEMState(far, jnp.minimum(state.cluster, 1), state.round)


def test_an_empty_centre_is_kept(key):
    data, method = problems.linear_federation(), build(num_clusters=3)
    start = two_and_none(key, data, method)
    state, info = advance(method, data, key, rounds=2, state=start)
    equal(tree.take(state.centres, 2), tree.take(start.centres, 2))
    assert int(info.num_clusters) == 2


# What is held in memory


def test_the_models_of_a_round_are_never_held_together(key, monkeypatch):
    """The temporaries of a start and of a round, for a hundred clients, are those of a few models."""
    size, clients = 400_000, 100
    monkeypatch.setattr("jaxfl.cohort.CACHE_BYTES", 1)  # one client at a time, as for a large model

    def loss(model, batch, key=None):
        return jnp.square(model["w"] * batch.x.sum() - 1).mean()

    with jax.enable_x64(False):
        data = clustered_linear(clients, 2, 3, 4, 3)
        task = Task(lambda key: {"w": jax.random.normal(key, (size,))}, loss, lambda model, batch: batch.x[:, :2])
        method = fesem(task, optax.sgd(0.1), num_clusters=3)
        state = jax.eval_shape(method.init, key, data)
        everybody = Cohort.of(range(clients), Plan(chunk=1))
        programs = {
            "round": jax.jit(method.round).lower(key, state, data, everybody),
            "init": jax.jit(method.init).lower(key, data),
        }
        for name, program in programs.items():
            held = program.compile().memory_analysis().temp_size_in_bytes / (4 * size)
            assert held < 20, f"{name} holds {held:.0f} models of a hundred"


VARIANTS = {
    "official": {"preset": "official", "num_clusters": 3},
    "distances": {"num_clusters": 4, "distance": "l1"},
}
LAWS = ("chunks", "nobody", "padding clients", "cohort order", "sick client")


@pytest.mark.rotating
@pytest.mark.parametrize(("variant", "law"), [(variant, law) for variant in VARIANTS for law in LAWS])
def test_variants_keep_the_laws(variant, law):
    with jax.enable_x64(False):
        CHECKS[law](Row(fesem, "", "", small=VARIANTS[variant]))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"num_clusters": 0}, ("num_clusters", 0)),
        ({"first_epochs": 0}, ("first_epochs", 0)),
        ({"preset": "code"}, ("preset", "code")),
        ({"distance": "l3"}, ("distance", "l3")),
        ({"weighting": "size"}, ("weighting", "size")),
        ({"loss_weighting": "size"}, ("loss_weighting", "size")),
        ({"proximal_weight": -1.0}, ("proximal_weight", -1.0)),
        ({"layers": "Dense_9"}, ("Dense_9", "bias, kernel")),
    ],
)
def test_refusals(options, complaint):
    with pytest.raises(ValueError, match=mentions(*complaint)):
        build(**options)


def test_more_clusters_than_clients_are_refused(key):
    with pytest.raises(ValueError, match=mentions("num_clusters", 8)):
        build(num_clusters=8).init(key, problems.linear_federation())


def test_a_model_without_kernels_has_no_last_one():
    task = TASK._replace(init=lambda key: {"w": jnp.zeros(3)})
    with pytest.raises(ValueError, match=mentions("layers", "last kernel")):
        fesem(task, optax.sgd(RATE), preset="official")
