"""FedEM: its NumPy loop, what it is with one learner, equal or hard ones, and how a mixture is served and tested."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import methods, tree
from jaxfl.cohort import Cohort
from jaxfl.methods.parts.expectation import expectation, responsibilities
from jaxfl.random import Stream, key_for
from jaxfl.simulation.evaluation.evaluate import evaluator
from jaxfl.simulation.evaluation.finetune import trainer
from jaxfl.tasks import mixture
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import close, equal

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE, ROUNDS, COHORT = 0.4, 4, 4
TASK = problems.softmax_task()
DATA = problems.linear_federation()
EPOCHS = {"local_epochs": 2, "batch_size": 3}
EVERYBODY = tuple(range(7))


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def rowwise(model, x, y):
    """Returns each row's loss, and the residual p - onehot(y)."""
    scores = x @ model["kernel"] + model["bias"]
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return -np.log(p[range(len(y)), y]), p - np.eye(p.shape[1])[y]


class FedEM:
    """Learners are a list of models; `weights[i]` is client i's pi."""

    def __init__(self, setting, learners, weighting, mean_over):
        self.setting, self.learners, self.weighting, self.mean_over = setting, list(learners), weighting, mean_over
        self.weights = np.full((len(setting.clients), len(learners)), 1 / len(learners))

    def expect(self, client):
        x, y = self.setting.clients[client]
        joint = self.weights[client][:, None] * np.exp([-rowwise(model, x, y)[0] for model in self.learners])
        return joint / joint.sum(0)  # [K, n]

    def train(self, number, client, learner, q):
        x, y = self.setting.clients[client]
        key = key_for(self.setting.root, Stream.BATCHES, number, client)
        for rows in reference.batches(key, len(y), self.setting.epochs, self.setting.batch_size):
            residual = q[rows, None] * rowwise(learner, x[rows], y[rows])[1]
            slope = {"bias": residual.mean(0), "kernel": x[rows].T @ residual / len(rows)}
            learner = reference.combine([(1, learner), (-self.setting.rate, slope)])
        return learner

    def share(self, client, k):
        rows = len(self.setting.clients[client][1])
        return rows if self.weighting == "rows" else rows * self.weights[client][k]

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        q = {i: self.expect(i) for i in cohort}
        trained = {i: [self.train(number, i, model, q[i][k]) for k, model in enumerate(self.learners)] for i in cohort}
        for i in cohort:
            self.weights[i] = q[i].mean(1)
        absent = [i for i in EVERYBODY if i not in cohort] if self.mean_over == "everybody" else []
        for k, old in enumerate(list(self.learners)):
            models = [*(trained[i][k] for i in cohort), *(old for _ in absent)]
            self.learners[k] = reference.average(models, [self.share(i, k) for i in [*cohort, *absent]])


@functools.cache  # tests share what they compile
def fedem(optimizer=None, **options):
    options = {"num_clusters": 2, **EPOCHS, **options}
    return compiled(methods.fedem(TASK, optimizer or optax.sgd(RATE), **options))


def train(method, *, rounds=3, data=DATA, start=None):
    """Returns the state after some rounds with a sampled cohort."""
    key = jax.random.key(0)
    state = method.init(key, data) if start is None else start
    for _ in range(rounds):
        state, _ = method.round(key, state, data, problems.sample(key, state.round, data, COHORT))
    return state


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("weighting", "mean_over", "batch_size"),
    [("rows", "everybody", None), ("responsibilities", "cohort", 3)],
)
def test_every_round_is_the_papers(weighting, mean_over, batch_size, key):
    method = fedem(weighting=weighting, mean_over=mean_over, batch_size=batch_size, num_clusters=3)
    state = method.init(key, DATA)
    learners = [jax.tree.map(np.asarray, tree.take(state.learners, k)) for k in range(3)]
    setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, batch_size)
    loop = FedEM(setting, learners, weighting, mean_over)
    for number in range(ROUNDS):
        cohort = problems.sample(key, state.round, DATA, COHORT)
        state, info = method.round(key, state, DATA, cohort)
        loop.round(number, cohort.ids.tolist())
        # rounding of float64 (1e-16), amplified by some steps
        np.testing.assert_allclose(np.exp(state.log_weights), loop.weights, rtol=1e-9, atol=1e-12)
        for k, model in enumerate(loop.learners):
            close(tree.take(state.learners, k), model, rtol=1e-9)
    assert info.extra["shares"].shape == (3,) and abs(float(info.extra["shares"].sum()) - 1) < 1e-9


def test_one_learner_is_fedavg_bit_for_bit():
    found = train(fedem(num_clusters=1))
    wanted = train(compiled(methods.fedavg(TASK, optax.sgd(RATE), **EPOCHS)))
    equal(tree.take(found.learners, 0), wanted.model)
    equal(found.log_weights, np.zeros((7, 1)))


def test_equal_learners_stay_equal_and_each_is_fedavg_at_a_share_of_the_rate(key):
    """Clipping looks at one learner at a time, as if it were alone."""
    clip = optax.clip_by_global_norm(0.1)
    method = fedem(num_clusters=2, optimizer=optax.chain(clip, optax.sgd(RATE)))
    average = compiled(methods.fedavg(TASK, optax.chain(optax.scale(0.5), clip, optax.sgd(RATE)), **EPOCHS))
    wanted = average.init(key, DATA)
    found = train(method, start=method.init(key, DATA)._replace(learners=tree.repeat(wanted.model, 2)))
    for k in range(2):
        close(tree.take(found.learners, k), train(average, start=wanted).model)
    np.testing.assert_allclose(np.exp(found.log_weights), 0.5, rtol=1e-12)


def test_learners_that_share_no_row_are_ifca(key):
    """pi of one component for each client, one full-batch step: IFCA's averaged gradients, weighted by rows."""
    method = fedem(num_clusters=2, local_epochs=1, batch_size=None)
    ifca = compiled(methods.ifca(TASK, optax.sgd(RATE), num_clusters=2, average="gradients", weighting="rows"))
    start, everybody = ifca.init(key, DATA), Cohort.of(EVERYBODY)
    wanted, info = ifca.round(key, start, DATA, everybody)
    hard = jnp.log(jnp.where(jax.nn.one_hot(info.cluster, 2, dtype=bool), 1.0, 1e-300))
    state = method.init(key, DATA)
    assert {*np.asarray(info.cluster).tolist()} == {0, 1}, "both components must have clients"
    found, _ = method.round(key, state._replace(learners=start.models, log_weights=hard), DATA, everybody)
    close(found.learners, wanted.models)


def test_a_learner_of_nobody_stays_as_it_is(key):
    """Weights of 1e-308 underflow in the sums, and 0 / 1e-308 is no model."""
    method = fedem(weighting="responsibilities", batch_size=3)
    start = method.init(key, DATA)
    tiny = jnp.tile(jnp.log(jnp.array([1.0, jnp.finfo(float).tiny])), (7, 1))
    found = train(method, rounds=1, start=start._replace(log_weights=tiny))
    equal(found.learners["kernel"][1], start.learners["kernel"][1])
    assert not np.array_equal(found.learners["kernel"][0], start.learners["kernel"][0])


def test_steps_of_pi_alone_never_lower_the_likelihood(key):
    data, served = DATA.on_device(), mixture(TASK, 3)
    step, loss_of = jax.jit(expectation(TASK)), jax.jit(served.loss)
    model = served.init(key)
    batch = data.batch(data.train, jnp.int32(3), jnp.arange(8, dtype=jnp.int32))
    losses = []
    for _ in range(6):
        losses.append(float(loss_of(model, batch)))
        model["log_weights"] = step(model["learners"], model["log_weights"], data, jnp.int32(3))
    assert losses[0] - losses[-1] > 1e-4
    assert all(after <= before + 1e-12 for before, after in zip(losses, losses[1:], strict=False)), losses


def test_responsibilities_are_of_differences_and_know_no_order():
    losses = jnp.asarray(np.random.default_rng(0).gamma(1.0, 2.0, (3, 5)))
    weights = jnp.log(jnp.array([0.2, 0.5, 0.3]))
    q, order = responsibilities(losses, weights), np.array([2, 0, 1])
    close(q.sum(0), np.ones(5))
    close(responsibilities(losses + 700, weights), q, rtol=1e-9)
    close(responsibilities(losses[order], weights[order]), q[order])


def test_clients_are_tested_under_the_mixture_of_probabilities(key):
    method = fedem()
    state = train(method, rounds=6)
    state = state._replace(log_weights=jnp.log(jax.random.dirichlet(key, jnp.ones(2), (7,))))
    found = evaluator(method, DATA.on_device())(key, state)
    test = problems.rows_of(replace(DATA, train=DATA.test))
    learners = [jax.tree.map(np.asarray, tree.take(state.learners, k)) for k in range(2)]
    for client, (x, y) in enumerate(test):
        if not len(y):
            continue
        each = [rowwise(model, x, y)[1] + np.eye(2)[y] for model in learners]  # probabilities
        mixed = np.tensordot(np.exp(state.log_weights[client]), each, 1)  # [T, 2]
        close(found.accuracy[client], (mixed.argmax(1) == y).mean())
        np.testing.assert_allclose(found.loss[client], -np.log(mixed[range(len(y)), y]).mean(), rtol=1e-6)  # float32


@pytest.mark.rotating
@pytest.mark.parametrize("batch_size", [None, 3])
def test_fine_tuning_moves_the_learners_and_no_weight(batch_size, key):
    """Weight decay would, without a gradient, too."""
    method, decayed = fedem(), optax.chain(optax.add_decayed_weights(0.5), optax.sgd(0.1))
    state = train(method, rounds=1)
    state = state._replace(log_weights=jnp.log(jax.random.dirichlet(key, jnp.ones(2), (7,))))
    before = tree.take(method.client_params(state, jnp.array([3])), 0)
    tune = jax.jit(trainer(method, jaxfl.FineTune(decayed, epochs=2, batch_size=batch_size)))
    after, finite = tune(key, state, DATA.on_device(), jnp.int32(3))
    equal(after["log_weights"], before["log_weights"])
    assert finite and not np.allclose(after["learners"]["kernel"], before["learners"]["kernel"])


def test_everybodys_weights_are_made_where_asked(key):
    """Of who is not sampled by the new learners; held-out clients learn theirs and nothing of them is trained."""
    data = replace(DATA, held_out=np.isin(np.arange(7), (3, 6)))
    few = Cohort.of((0, 2, 4, 5))
    plain, asked = fedem(), fedem(estimate="everybody")
    start = train(plain, rounds=1)
    wanted, before = plain.round(key, start, DATA, few)
    found, after = asked.round(key, start, data, few)
    equal(found.learners, wanted.learners)
    equal(found.log_weights[few.ids], wanted.log_weights[few.ids])
    step = jax.jit(expectation(TASK))
    for client in (3, 6):
        close(found.log_weights[client], step(found.learners, start.log_weights[client], data, client))
    equal(found.log_weights[1], start.log_weights[1])  # has no rows
    assert after.bytes_down - before.bytes_down == 3 * 2 * 8 * 8  # clients, learners, float64 numbers
    away = replace(data, absent=np.arange(7) == 3)
    later, seen = asked.round(key, start, away, few)
    assert seen.bytes_down - before.bytes_down == 2 * 2 * 8 * 8
    equal(later.log_weights[3], start.log_weights[3])
    assert (asked.reads, plain.reads) == ("everybody", "cohort")


def test_clients_join_with_a_step_of_their_weights(key):
    few, method = DATA.subset(range(5)), fedem()
    state = method.init(key, few)
    state = state._replace(log_weights=jnp.log(jax.random.dirichlet(key, jnp.ones(2), (5,))))
    joined, clusters = method.join(key, state, DATA, [6, 5])
    equal(joined.log_weights[:5], state.log_weights)
    equal(joined.learners, state.learners)
    assert clusters.tolist() == [6, 5] and joined.cluster.tolist() == list(range(7))
    step = jax.jit(expectation(TASK))
    close(joined.log_weights[6], step(state.learners, jnp.log(jnp.full(2, 0.5)), DATA, 6))
    jax.eval_shape(method.round, key, joined, DATA, Cohort.of(EVERYBODY))
    for ids, data, message in (
        ([7], DATA, ("ids", "[7]", 6)),
        ([5, 5], DATA, ("ids", "[5, 5]")),
        ([0], few, ("data", 5, 7)),
    ):
        with pytest.raises(ValueError, match=mentions(*message)):
            method.join(key, joined, data, ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_clusters": 0}, ("num_clusters", 0)),
        ({"local_epochs": 0}, ("local_epochs", 0)),
        ({"batch_size": 0}, ("batch_size", 0)),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        methods.fedem(TASK, optax.sgd(RATE), **options)


def test_a_task_that_cannot_be_mixed_is_refused():
    with jax.enable_x64(False):
        data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=5)
        task = jaxfl.supervised(jaxfl.models.Logistic(num_classes=10), data, lambda o, b: o[:, 0], jaxfl.tasks.ACCURACY)
    with pytest.raises(ValueError, match=mentions("task", "mix=None")):
        methods.fedem(task, optax.sgd(RATE))
