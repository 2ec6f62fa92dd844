"""FeSEM-CAM, IFCA-CAM and WeCFL-CAM: their NumPy loops, a worked example, and the methods that they become."""

import functools
import itertools
from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import methods, tree
from jaxfl.cohort import Cohort
from jaxfl.methods.base import Row
from jaxfl.methods.fedcam import FedCAMState
from jaxfl.random import Stream, key_for
from jaxfl.tasks import Task, additive, masked_mean, residual_task
from jaxfl.testing import CHECKS
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import equal

pytestmark = pytest.mark.rotating("function", weeks=6)

RATE, ROUNDS = 0.4, 4
TASK = problems.softmax_task()
DATA = replace(problems.linear_federation(), held_out=np.arange(7) == 5)
EVERYBODY = Cohort.of(range(7))
NAMES = ("ifca_cam", "fesem_cam", "wecfl_cam")
close = functools.partial(reference.close, rtol=1e-9)  # some ten steps amplify rounding


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@functools.cache  # tests share what they compile
def made(name, **options):
    options = {"num_clusters": 2, "local_epochs": 2, "batch_size": 3, **options}
    return compiled(getattr(methods, name)(TASK, optax.sgd(RATE), **options))


def advance(method, state, key, *, data=DATA, rounds=3, size=5):
    """Returns the state after some rounds with sampled cohorts, and the last info."""
    info = None
    for _ in range(rounds):
        state, info = method.round(key, state, data, problems.sample(key, state.round, data, size))
    return state, info


def split(models):
    return [jax.tree.map(np.asarray, tree.take(models, k)) for k in range(len(models["bias"]))]


def scores(model, x):
    return x @ model["kernel"] + model["bias"]


def vector(model, layers):
    return np.concatenate([np.ravel(model[name]) for name in layers])


class FedCAM:
    """One client after the other; clusters by trying every partition and every name of its parts."""

    def __init__(self, setting, model, centres, cluster, *, base, scratch=False, pull=0.0, layers=("bias", "kernel")):
        self.setting, self.model, self.centres, self.cluster = setting, model, list(centres), list(cluster)
        self.base, self.scratch, self.pull, self.layers = base, scratch, pull, layers

    def rows(self, i):
        return len(self.setting.clients[i][1])

    def sum_loss(self, i, k):
        x, y = self.setting.clients[i]
        z = scores(self.model, x) + scores(self.centres[k], x)
        return np.mean(np.log(np.exp(z).sum(1)) - z[range(len(y)), y])

    def learn(self, number, i, model, other, pull):
        """Returns the model after training on the loss of the sum with another one, which stays."""
        x, y = self.setting.clients[i]
        start, key = model, key_for(self.setting.root, Stream.BATCHES, number, i)
        for rows in reference.batches(key, len(y), self.setting.epochs, self.setting.batch_size):
            p = np.exp(scores(model, x[rows]) + scores(other, x[rows]))
            residual = p / p.sum(1, keepdims=True) - np.eye(2)[y[rows]]
            slope = {"bias": residual.mean(0), "kernel": x[rows].T @ residual / len(rows)}
            step = reference.combine([(1, slope), (pull, model), (-pull, start)])
            model = reference.combine([(1, model), (-self.setting.rate, step)])
        return model

    def away(self, one, other):
        return np.sum((vector(one, self.layers) - vector(other, self.layers)) ** 2)

    def best_partition(self, sent):
        """Returns the clusters of the least weighted inertia, named as those before with which they share the most."""
        clients, votes = [*sent], [self.rows(i) if self.base == "wecfl_cam" else 1 for i in sent]
        points, slots = np.array([vector(sent[i], self.layers) for i in clients]), range(len(self.centres))

        def inertia(labels):
            total = 0.0
            for k in {*labels}:
                chosen = [n for n, label in enumerate(labels) if label == k]
                mean = np.average(points[chosen], axis=0, weights=[votes[n] for n in chosen])
                total += sum(votes[n] * np.sum((points[n] - mean) ** 2) for n in chosen)
            return total

        labels = min(itertools.product(slots, repeat=len(clients)), key=inertia)
        shared = {
            name: sum(vote for i, vote, k in zip(clients, votes, labels, strict=True) if name[k] == self.cluster[i])
            for name in itertools.permutations(slots)
        }
        assert sorted(shared.values())[-2] < max(shared.values()), "or the library may take another"
        name = max(shared, key=shared.__getitem__)
        return {i: name[k] for i, k in zip(clients, labels, strict=True)}

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, sorted(cohort))
        slots = range(len(self.centres))
        if self.base == "ifca_cam":
            for i in cohort:
                self.cluster[i] = int(np.argmin([self.sum_loss(i, k) for k in slots]))
        own = {i: self.centres[self.cluster[i]] for i in cohort}
        shared = {i: self.learn(number, i, self.model, own[i], 0.0) for i in cohort}
        sent = {i: self.learn(number, i, own[i], shared[i], self.pull) for i in cohort}
        if self.base != "ifca_cam":
            nearest = {i: int(np.argmin([self.away(sent[i], centre) for centre in self.centres])) for i in cohort}
            for i, k in (self.best_partition(sent) if self.scratch else nearest).items():
                self.cluster[i] = k
        self.model = reference.average([shared[i] for i in cohort], [self.rows(i) for i in cohort])
        for k in slots:
            if members := [i for i in cohort if self.cluster[i] == k]:
                self.centres[k] = reference.average([sent[i] for i in members], [self.rows(i) for i in members])


LOOPS = {
    "ifca": ("ifca_cam", {"proximal_weight": 0.3}, {"pull": 0.3}),
    "fesem": ("fesem_cam", {"num_clusters": 3}, {}),
    "wecfl": ("wecfl_cam", {"proximal_weight": 0.2, "batch_size": None}, {"pull": 0.2}),
    "fesem, scratch": (
        "fesem_cam",
        {"recluster": "scratch", "layers": "kernel"},
        {"scratch": True, "layers": ("kernel",)},
    ),
    "wecfl, scratch": ("wecfl_cam", {"recluster": "scratch", "num_clusters": 3}, {"scratch": True}),
}


@pytest.mark.rotating
@pytest.mark.parametrize("case", LOOPS)
def test_every_round_is_that_of_a_loop(case, key):
    """From wrong clusters. A client has no rows, one is held out, some lack a class, and all have unequal rows."""
    name, options, of_loop = LOOPS[case]
    method, count = made(name, **options), options.get("num_clusters", 2)
    wrong = (0, 0, 1, 1, 0, 2, 2) if case == "wecfl, scratch" else (1, 0, 3, 2, 1, 0, 3)  # of no two equal names
    cluster = [k % count for k in wrong]
    state = method.init(key, DATA)
    near = jax.tree.map(lambda leaf: 0.9 * leaf.mean(0, keepdims=True) + 0.1 * leaf, state.centres)
    centres = state.centres if name == "ifca_cam" else near  # or nobody would come nearer to another one
    state = state._replace(cluster=jnp.array(cluster, jnp.int32), centres=centres)
    setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, options.get("batch_size", 3))
    loop = FedCAM(setting, jax.tree.map(np.asarray, state.model), split(state.centres), cluster, base=name, **of_loop)
    everyone, changed = np.arange(7), 0
    for number in range(ROUNDS):
        cohort = problems.sample(key, state.round, DATA, 5)
        before = list(loop.cluster)
        state, info = method.round(key, state, DATA, cohort)
        loop.round(number, cohort.ids.tolist())
        assert state.cluster.tolist() == loop.cluster
        changed += sum(a != b for a, b in zip(before, loop.cluster, strict=True))
        close(state.model, loop.model)
        for found, wanted in zip(split(state.centres), loop.centres, strict=True):
            close(found, wanted)
        served = method.client_params(state, everyone)
        equal(tree.take(served["own"], 4), tree.take(state.centres, loop.cluster[4]))
        equal(tree.take(served["shared"], 4), state.model)
        if name == "ifca_cam":
            placed = method.assign(key, state, DATA, EVERYBODY).cluster
            assert placed.tolist() == [
                int(np.argmin([loop.sum_loss(i, k) for k in range(count)])) if loop.rows(i) else loop.cluster[i]
                for i in range(7)
            ]
    assert changed > 0 and not info.diverged


def test_the_worked_example(key):
    """One number a model, losses (g + f - y)^2 / 2 and one step of 0.5 each: two trainings at once would be others."""
    targets, rows = (1.0, 3.0, -2.0, -4.0), (1, 3, 2, 2)
    y = np.tile(np.repeat(targets, rows), 2)
    parts = np.split(np.arange(8), np.cumsum(rows)[:-1])
    y[8:] += 0.5  # of test rows: no whole numbers, which might be classes
    data = jaxfl.data.federate(np.zeros((16, 1)), y, parts, [part + 8 for part in parts])

    def offset_losses(model, batch, key, offset):
        return jnp.square(model["b"] + offset[:, 0] - batch.y) / 2

    task = Task(
        lambda key: {"b": jnp.zeros(())},
        lambda model, batch, key=None: masked_mean(jnp.square(model["b"] - batch.y) / 2, batch.mask),
        lambda model, batch: jnp.zeros_like(batch.x) + model["b"],
        offset_losses=offset_losses,
    )
    method = methods.ifca_cam(task, optax.sgd(0.5), num_clusters=2, local_epochs=1)
    start = method.init(key, data)._replace(model={"b": jnp.array(0.2)}, centres={"b": jnp.array([1.0, -1.0])})
    state, info = jax.jit(method.round)(key, start, data, Cohort.of(range(4)))
    assert state.cluster.tolist() == [0, 0, 1, 1] and info.extra["clients"].tolist() == [2, 2]
    close(state.model["b"], -0.025)
    close(state.centres["b"], np.array([1.325, -1.55]))


# What they are with these settings


BASES = {
    "ifca_cam": ("ifca", "models", {"weighting": "rows"}),
    "fesem_cam": ("fesem", "centres", {"weighting": "rows", "proximal_weight": 0.0}),
    "wecfl_cam": ("wecfl", "centres", {}),
}


@pytest.mark.parametrize("name", NAMES)
def test_without_a_global_model_it_is_its_base(name, key):
    """G says 0 and is not trained: the start, the clusters and the models are those of the method without it."""
    base, field, options = BASES[name]
    plain, ours = made(base, **options), made(name, global_epochs=0)
    wanted, state = plain.init(key, DATA), ours.init(key, DATA)
    equal((state.centres, state.cluster), (getattr(wanted, field), wanted.cluster))
    state = state._replace(model=jax.tree.map(jnp.zeros_like, state.model))
    (state, _), (wanted, _) = advance(ours, state, key), advance(plain, wanted, key)
    close(state.centres, getattr(wanted, field))
    equal(state.cluster, wanted.cluster)


@pytest.mark.slow
def test_without_models_of_clusters_it_is_fedavg(key):
    ours, fedavg = made("wecfl_cam"), made_fedavg()
    state, wanted = ours.init(key, DATA), fedavg.init(key, DATA)
    nothing = jax.tree.map(jnp.zeros_like, state.centres)
    state = state._replace(model=wanted.model)
    for _ in range(3):
        state, _ = advance(ours, state._replace(centres=nothing), key, rounds=1)
        wanted, _ = advance(fedavg, wanted, key, rounds=1)
    close(state.model, wanted.model)


@functools.cache
def made_fedavg():
    return compiled(methods.fedavg(TASK, optax.sgd(RATE), local_epochs=2, batch_size=3))


def start_of(key, count=2):
    """Returns a state that all three can go on from."""
    state = made("ifca_cam", num_clusters=count).init(key, DATA)
    return state._replace(cluster=jnp.arange(7, dtype=jnp.int32) % count)


def test_with_one_cluster_the_three_are_one(key):
    found = [advance(made(name, num_clusters=1), start_of(key, 1), key)[0] for name in NAMES]
    for other in found[1:]:
        close((other.model, other.centres), (found[0].model, found[0].centres))


def test_clients_of_equal_rows_are_clustered_alike_with_and_without_weights(key):
    data = problems.linear_federation(sizes=(6,) * 7)
    starts = [made(name, num_clusters=3).init(key, data) for name in ("fesem_cam", "wecfl_cam")]
    equal(*starts)
    equal(*(advance(made(name, num_clusters=3), starts[0], key, data=data)[0] for name in ("fesem_cam", "wecfl_cam")))


@pytest.mark.parametrize("name", ["ifca_cam", "wecfl_cam"])
def test_a_constant_goes_from_one_model_to_the_others_without_a_trace(name, key):
    """Of all outputs, losses and gradients; the models keep it apart."""
    method, start, c = made(name), start_of(key), np.array([3.0, -2.0])
    raised = {**start.model, "bias": start.model["bias"] + c}
    lowered = {**start.centres, "bias": start.centres["bias"] - c[None]}
    one, _ = advance(method, start, key)
    two, _ = advance(method, start._replace(model=raised, centres=lowered), key)
    equal(one.cluster, two.cluster)
    close({**two.model, "bias": two.model["bias"] - c}, one.model)
    close({**two.centres, "bias": two.centres["bias"] + c[None]}, one.centres)


def test_names_of_the_clusters_mean_nothing(key):
    order, start = np.array([2, 0, 1]), start_of(key, 3)
    for name in ("ifca_cam", "fesem_cam"):
        method = made(name, num_clusters=3)
        other = FedCAMState(
            start.model,
            tree.take(start.centres, order),
            jnp.asarray(np.argsort(order)[np.asarray(start.cluster)], jnp.int32),
            start.round,
        )
        one, two = (advance(method, state, key)[0] for state in (start, other))
        close((tree.take(one.centres, order), one.model), (two.centres, two.model))


# Bytes, newcomers, networks


def test_the_models_that_are_sent_are_counted(key):
    """IFCA-CAM's clients receive G and all F_k; in the others' first round their start is counted, of 5 clients."""
    number = 8 * 8
    _, info = advance(made("ifca_cam", num_clusters=3), start_of(key, 3), key, rounds=1, size=4)
    assert (info.bytes_up, info.bytes_down) == (4 * 2 * number, 4 * 4 * number)
    for round, once in ((0, 5 * number), (1, 0)):
        state = start_of(key)._replace(round=jnp.int32(round))
        _, info = advance(made("wecfl_cam"), state, key, rounds=1, size=4)
        assert info.bytes_up == info.bytes_down == 4 * 2 * number + once


def test_newcomers_join_the_cluster_that_moves_them_least(key):
    """With G as it is, from which every step of theirs is taken."""
    state = start_of(key, 3)._replace(cluster=jnp.array([2, 1, 0, 0], jnp.int32))
    setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, 3)
    loop = FedCAM(setting, jax.tree.map(np.asarray, state.model), split(state.centres), [0] * 7, base="wecfl_cam")
    wanted = []
    for client in (6, 4):
        x, y = setting.clients[client]
        moved = []
        for centre in loop.centres:
            model = centre
            for rows in reference.batches(key_for(key, Stream.START, client=client), len(y), 2, 3):
                p = np.exp(scores(model, x[rows]) + scores(loop.model, x[rows]))
                residual = p / p.sum(1, keepdims=True) - np.eye(2)[y[rows]]
                slope = {"bias": residual.mean(0), "kernel": x[rows].T @ residual / len(rows)}
                model = reference.combine([(1, model), (-RATE, slope)])
            moved.append(loop.away(model, centre))
        wanted.append(int(np.argmin(moved)))
    after, clusters = made("wecfl_cam", num_clusters=3).join(key, state, DATA, [6, 4])
    assert clusters.tolist() == wanted and after.cluster.tolist()[:4] == [2, 1, 0, 0]
    equal((after.model, after.centres), (state.model, state.centres))


class Normalised(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool, mask):
        x = nn.BatchNorm(use_running_average=not train, momentum=0.5)(x, mask=mask[:, None])
        return nn.Dense(2)(nn.Dropout(0.5, deterministic=not train)(nn.Dense(4)(x)))


def test_a_model_that_stays_is_in_a_test_and_running_averages_go_on(key):
    """Of the sum of two networks with dropout and batch normalisation."""
    with jax.enable_x64(False):
        data = replace(DATA, inputs=DATA.inputs.astype(np.float32)).on_device()
        task = jaxfl.classification(Normalised(), data)
        one, other = (task.init(key_for(key, Stream.INIT, k)) for k in range(2))
        batch = data.batch(data.train, jnp.int32(3), jnp.arange(8, dtype=jnp.int32))
        both, model = additive(task), {"shared": one, "own": other}
        logits = task.outputs(one, batch) + task.outputs(other, batch)
        reference.close(both.outputs(model, batch), logits, rtol=1e-5)
        wanted = optax.softmax_cross_entropy_with_integer_labels(logits, batch.y).mean()
        reference.close(both.loss(model, batch, None), wanted, rtol=1e-5)
        residual = residual_task(task, one)
        reference.close(residual.loss(other, batch, None), wanted, rtol=1e-5)
        assert residual.loss(other, batch, key) != residual.loss(other, batch, key_for(key, Stream.DROPOUT))
        seen = jax.grad(residual.averages.loss)(other, batch, key)["BatchNorm_0"]["mean"]
        reference.close(seen, 0.5 * batch.x.mean(0), rtol=1e-5)  # the value that it gets
        moved = jax.grad(both.averages.loss)(model, batch, key)
        for part in ("shared", "own"):
            reference.close(moved[part]["BatchNorm_0"]["mean"], 0.5 * batch.x.mean(0), rtol=1e-5)
        result = jaxfl.run(methods.ifca_cam(task, optax.sgd(0.1), num_clusters=2), data, rounds=2, seed=0)
        assert bool(tree.is_finite(result.state.centres)) and np.isfinite(result.summary["micro_accuracy"])


@pytest.mark.slow
@pytest.mark.rotating
@pytest.mark.parametrize("law", ["nobody", "cohort order", "sick client", "server sees"])
def test_clustering_from_scratch_keeps_the_laws(law):
    with jax.enable_x64(False):
        CHECKS[law](Row(methods.wecfl_cam, "", "", small={"num_clusters": 2, "recluster": "scratch"}))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("ifca_cam", {"num_clusters": 0}, ("num_clusters", 0)),
        ("ifca_cam", {"proximal_weight": -1.0}, ("proximal_weight", -1.0)),
        ("wecfl_cam", {"global_epochs": -1}, ("global_epochs", -1)),
        ("fesem_cam", {"first_epochs": 0}, ("first_epochs", 0)),
        ("fesem_cam", {"layers": "Dense_9"}, ("Dense_9", "bias, kernel")),
        ("wecfl_cam", {"local_epochs": 0}, ("local_epochs", 0)),
    ],
)
def test_refusals(name, options, words):
    with pytest.raises(ValueError, match=mentions(*words)):
        getattr(methods, name)(TASK, optax.sgd(RATE), **options)


@pytest.mark.parametrize("name", NAMES)
def test_more_clusters_than_clients_and_a_task_without_sums_are_refused(name, key):
    with pytest.raises(ValueError, match=mentions("num_clusters", 8, 7)):
        getattr(methods, name)(TASK, optax.sgd(RATE), num_clusters=8).init(key, DATA)
    with pytest.raises(ValueError, match=mentions("task", "offset_losses=None")):
        getattr(methods, name)(TASK._replace(offset_losses=None), optax.sgd(RATE))
    with pytest.raises(ValueError, match=mentions("task", "offset_losses=None")):
        other = TASK._replace(made_for=TASK.loss, loss=lambda model, batch, key: 2 * TASK.loss(model, batch, key))
        getattr(methods, name)(other, optax.sgd(RATE))
