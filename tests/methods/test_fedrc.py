"""FedRC: its NumPy loop, its worked example, FedEM and FedAvg as its ends, and its label shares."""

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
from jaxfl.methods.fedrc import label_counts, log_label_shares, row_prior
from jaxfl.methods.parts.expectation import mean_log_weights, row_responsibilities
from jaxfl.random import Stream, key_for
from jaxfl.tasks import Task, masked_mean
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import close, equal

pytestmark = pytest.mark.rotating("function", weeks=4)

RATE, ROUNDS, COHORT = 0.4, 4, 4
TASK = problems.softmax_task()
DATA = replace(problems.linear_federation(), held_out=np.arange(7) == 5)
EVERYBODY = Cohort.of(range(7))


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@functools.cache  # tests share what they compile
def made(name="fedrc", **options):
    options = {"num_clusters": 2, "local_epochs": 2, "batch_size": 3, **options}
    return compiled(getattr(methods, name)(TASK, optax.sgd(RATE), **options))


def advance(method, state, key, rounds=3, data=DATA):
    for _ in range(rounds):
        state, _ = method.round(key, state, data, problems.sample(key, state.round, data, COHORT))
    return state


def rowwise(model, x, y):
    """Returns each row's loss, and the residual p - onehot(y)."""
    scores = x @ model["kernel"] + model["bias"]
    p = np.exp(scores)
    p /= p.sum(1, keepdims=True)
    return -np.log(p[range(len(y)), y]), p - np.eye(2)[y]


class FedRC:
    """Learners are a list of models; omega and A are those of each client."""

    def __init__(self, setting, learners, *, official, everybody=False):
        self.setting, self.learners, self.official, self.everybody = setting, list(learners), official, everybody
        clients, count = len(setting.clients), len(self.learners)
        self.omega = np.full((clients, count), 1 / count)
        trains = [len(y) > 0 and i != 5 for i, (_, y) in enumerate(setting.clients)]
        self.counts = {i: np.full((count, 2), 0.5) for i in range(clients) if official and trains[i]}

    def rows(self, i):
        return len(self.setting.clients[i][1])

    def shares(self):
        sums = np.maximum(sum(self.counts.values(), np.zeros((len(self.learners), 2))), 1e-8)
        return sums / sums.sum(1, keepdims=True)

    def expect(self, i, shares):
        x, y = self.setting.clients[i]
        joint = self.omega[i][:, None] * np.exp([-rowwise(model, x, y)[0] for model in self.learners]) / shares[:, y]
        return joint / joint.sum(0)  # [K, n]

    def train(self, number, i, learner, q):
        x, y = self.setting.clients[i]
        key = key_for(self.setting.root, Stream.BATCHES, number, i)
        for rows in reference.batches(key, len(y), self.setting.epochs, self.setting.batch_size):
            residual = q[rows, None] * rowwise(learner, x[rows], y[rows])[1]
            slope = {"bias": residual.mean(0), "kernel": x[rows].T @ residual / len(rows)}
            learner = reference.combine([(1, learner), (-self.setting.rate, slope)])
        return learner

    def round(self, number, cohort):
        cohort, shares = reference.with_rows(self.setting, cohort), self.shares()
        q = {i: self.expect(i, shares) for i in cohort}
        trained = {i: [self.train(number, i, model, q[i][k]) for k, model in enumerate(self.learners)] for i in cohort}
        sizes = reference.weights(self.setting, cohort)
        self.learners = [reference.average([trained[i][k] for i in cohort], sizes) for k in range(len(self.learners))]
        for i in cohort:
            self.omega[i] = q[i].mean(1)
            self.counts[i] = np.stack([q[i][:, self.setting.clients[i][1] == c].sum(1) for c in range(2)], 1)
        if self.everybody:
            after = np.ones_like(shares) if self.official else self.shares()
            for i in set(reference.with_rows(self.setting, range(7))) - {*cohort}:
                self.omega[i] = self.expect(i, after).mean(1)


CASES = [
    ("paper", 3, "cohort"),
    ("official", None, "cohort"),
    ("paper", None, "everybody"),
    ("official", 3, "everybody"),
]


@pytest.mark.rotating
@pytest.mark.parametrize(("preset", "batch_size", "estimate"), CASES)
def test_every_round_is_that_of_a_loop(preset, batch_size, estimate, key):
    """A client has no rows, one is held out, some are sampled late, and some lack a class."""
    method = made(preset=preset, batch_size=batch_size, estimate=estimate, num_clusters=3)
    state = method.init(key, DATA)
    learners = [jax.tree.map(np.asarray, tree.take(state.learners, k)) for k in range(3)]
    setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, batch_size)
    loop = FedRC(setting, learners, official=preset == "official", everybody=estimate == "everybody")
    for number in range(ROUNDS):
        cohort = problems.sample(key, state.round, DATA, COHORT)
        state, info = method.round(key, state, DATA, cohort)
        loop.round(number, cohort.ids.tolist())
        np.testing.assert_allclose(np.exp(state.log_weights), loop.omega, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(np.exp(log_label_shares(state.counts, 1e-8)), loop.shares(), rtol=1e-9)
        for i, counts in loop.counts.items():
            np.testing.assert_allclose(state.counts[i], counts, rtol=1e-9, atol=1e-12)
        for k, model in enumerate(loop.learners):
            close(tree.take(state.learners, k), model, rtol=1e-9)
    assert abs(float(info.extra["shares"].sum()) - 1) < 1e-9
    for i in reference.with_rows(setting, cohort.ids.tolist()):
        close(state.counts[i].sum(1), loop.rows(i) * np.exp(state.log_weights[i]), rtol=1e-9)


def test_the_worked_example():
    """Two clients whose losses are the numbers of a table; shares change every responsibility of FedEM."""
    losses = np.array([(0.2, 1.2), (0.5, 0.4), (1.0, 0.3), (1.1, 0.1), (0.9, 0.6)])
    parts = [[0, 1, 2], [3, 4]]
    data = jaxfl.data.federate(np.eye(5), np.array([0, 0, 1, 1, 1]), parts, parts, num_classes=2)
    task = Task(
        lambda key: {"w": jnp.zeros(5)},
        lambda model, batch, key=None: masked_mean(batch.x @ model["w"], batch.mask),
        lambda model, batch: batch.x[:, :2],
    )
    responsible, half = row_responsibilities(task, row_prior), jnp.log(jnp.full(2, 0.5))

    def of(prior, client):
        q = responsible({"w": jnp.array(losses.T)}, prior, data.on_device(), client)
        weights = mean_log_weights(q, prior[0], data.train.size[client])
        return weights, label_counts(q, data.on_device(), client)

    plain, _ = of((half, jnp.log(jnp.full((2, 2), 0.5))), client=jnp.int32(0))
    np.testing.assert_allclose(np.exp(plain), (0.512631, 0.487369), atol=1e-6)
    prior = half, jnp.log(jnp.array([(0.8, 0.2), (0.4, 0.6)]))
    omega, first = of(prior, client=jnp.int32(0))
    np.testing.assert_allclose(np.exp(omega), (0.495321, 0.504679), atol=1e-6)
    np.testing.assert_allclose(first, [(0.887610, 0.598354), (1.112390, 0.401646)], atol=1e-6)
    _, second = of(prior, client=jnp.int32(1))
    np.testing.assert_allclose(second, [(0, 1.214311), (0, 0.785689)], atol=1e-6)
    shares = np.exp(log_label_shares(jnp.stack([first, second]), 1e-8))
    np.testing.assert_allclose(shares, [(0.328711, 0.671289), (0.483706, 0.516294)], atol=1e-6)
    raised = prior[1] + jnp.log(jnp.array([3.0, 0.2]))[None]  # a factor of a label, the same for all learners
    close(of((half, raised), client=jnp.int32(0)), (omega, first))


def test_shares_of_equal_learners_are_no_shares(key):
    """The first round is FedEM's, and so are later ones as long as no share is known."""
    ours, fedem = made(preset="official"), made("fedem")
    state, wanted = ours.init(key, DATA), fedem.init(key, DATA)
    equal(state.learners, wanted.learners)
    for _ in range(3):
        state, wanted = advance(ours, state, key, rounds=1), advance(fedem, wanted, key, rounds=1)
        close((state.learners, state.log_weights), (wanted.learners, wanted.log_weights), rtol=1e-9)
        state = state._replace(counts=jnp.ones_like(state.counts))


def test_one_learner_is_fedavg(key):
    found = advance(made(num_clusters=1), made(num_clusters=1).init(key, DATA), key)
    fedavg = compiled(methods.fedavg(TASK, optax.sgd(RATE), local_epochs=2, batch_size=3))
    close(tree.take(found.learners, 0), advance(fedavg, fedavg.init(key, DATA), key).model)


def test_names_of_the_learners_mean_nothing(key):
    method, order = made(num_clusters=3), np.array([2, 0, 1])
    start = advance(method, method.init(key, DATA), key, rounds=1)
    moved = start._replace(
        learners=tree.take(start.learners, order),
        log_weights=start.log_weights[:, order],
        counts=start.counts[:, order],
    )
    one, two = advance(method, start, key), advance(method, moved, key)
    close(
        (tree.take(one.learners, order), one.log_weights[:, order], one.counts[:, order]),
        (two.learners, two.log_weights, two.counts),
        rtol=1e-9,
    )


def test_what_is_sent_is_counted_and_the_leader_is_served(key):
    method = made(served="leader", estimate="everybody")
    state = method.init(key, DATA)
    state, info = method.round(key, state, DATA, Cohort.of([0, 2, 3, 4]))
    numbers, labels = 2 * 8 * 8, 2 * 2 * 8  # two learners of 8 numbers, and 2 x 2 counts or shares
    assert (info.bytes_up, info.bytes_down) == (4 * (numbers + labels), 7 * (numbers + labels))
    served = method.client_params(state, jnp.arange(7))["log_weights"]
    assert np.argmax(served, 1).tolist() == np.argmax(state.log_weights, 1).tolist()
    assert np.exp(served).sum(1).tolist() == [1] * 7
    assert method.server_sees == "data"


def test_clients_join_with_a_step_of_their_weights(key):
    few, method = DATA.subset(range(5)), made()
    state = advance(method, method.init(key, few), key, rounds=2, data=few)
    joined, clusters = method.join(key, state, DATA, [6, 5])
    equal((joined.log_weights[:5], joined.counts[:5]), (state.log_weights, state.counts))
    equal(joined.counts[5:], np.zeros((2, 2, 2)))
    assert clusters.tolist() == [6, 5] and joined.cluster.tolist() == list(range(7))
    setting = reference.Setting(key, problems.rows_of(DATA), RATE)
    loop = FedRC(setting, [jax.tree.map(np.asarray, tree.take(state.learners, k)) for k in range(2)], official=False)
    shares = np.exp(log_label_shares(state.counts, 1e-8))
    for i in (5, 6):
        np.testing.assert_allclose(np.exp(joined.log_weights[i]), loop.expect(i, shares).mean(1), rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_clusters": 0}, ("num_clusters", 0)),
        ({"count_floor": 0.0}, ("count_floor", 0.0)),
        ({"count_floor": float("nan")}, ("count_floor", "nan")),
        ({"local_epochs": 0}, ("local_epochs", 0)),
    ],
)
def test_refusals(options, words):
    with pytest.raises(ValueError, match=mentions(*words)):
        methods.fedrc(TASK, optax.sgd(RATE), **options)


def test_labels_that_are_no_classes_are_refused(key):
    data = jaxfl.data.federate(np.ones((8, 3)), np.linspace(0, 1, 8), [[0, 1], [2, 3]], [[4, 5], [6, 7]])
    with pytest.raises(ValueError, match=mentions("data", "regression")):
        methods.fedrc(TASK, optax.sgd(RATE)).init(key, data)
