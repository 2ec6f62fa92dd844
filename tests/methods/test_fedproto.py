"""FedProto: its NumPy loop, its worked example, local training without a pull, and prototypes inside the means."""

import functools
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import methods, tree
from jaxfl.cohort import Cohort
from jaxfl.methods.fedproto import mean_squared_distances, prototype_task
from jaxfl.methods.parts.heads import find_head
from jaxfl.random import Stream, key_for
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import close, equal

pytestmark = pytest.mark.rotating("function", weeks=6)

RATE, COHORT, PULL, WIDTH = 0.4, 4, 0.8, 3
# client 1 has no rows, clients 4 and 6 may have one class, client 5 is held out
DATA = replace(problems.linear_federation(), held_out=np.arange(7) == 5)


TASK = problems.tanh_task()


@functools.cache  # tests share what they compile
def made(name="fedproto", **options):
    return compiled(getattr(methods, name)(TASK, optax.sgd(RATE), **{"local_epochs": 2, "batch_size": 3, **options}))


def features(model, x):
    return np.tanh(x @ model["a"]["kernel"])


class FedProto:
    def __init__(self, setting, model, classes):
        self.setting, self.models, self.classes = setting, [model for _ in setting.clients], classes
        self.prototypes, self.seen = {}, [set() for _ in setting.clients]

    def train(self, number, client):
        (x, y), model = self.setting.clients[client], self.models[client]
        key = key_for(self.setting.root, Stream.BATCHES, number, client)
        for rows in reference.batches(key, len(y), self.setting.epochs, self.setting.batch_size):
            u, count = features(model, x[rows]), len(rows)
            scores = u @ model["b"]["kernel"] + model["b"]["bias"]
            p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
            residual = (p - np.eye(2)[y[rows]]) / count
            targets = np.array([self.prototypes.get(k, row) for k, row in zip(y[rows], u, strict=True)])
            below = residual @ model["b"]["kernel"].T + PULL * 2 * (u - targets) / (WIDTH * count)
            slopes = {
                "a": {"kernel": x[rows].T @ (below * (1 - u**2))},
                "b": {"bias": residual.sum(0), "kernel": u.T @ residual},
            }
            model = jax.tree.map(lambda leaf, slope: leaf - RATE * slope, model, slopes)
        return model

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        for i, model in [(i, self.train(number, i)) for i in cohort]:
            self.models[i], self.seen[i] = model, {*self.setting.clients[i][1].tolist()}
        for k in range(2):
            having = [(i, self.setting.clients[i]) for i in cohort if k in self.seen[i]]
            means = [features(self.models[i], x[y == k]).mean(0) for i, (x, y) in having]
            shares = [(y == k).sum() if self.setting.weighting == "rows" else 1 for _, (_, y) in having]
            if having:
                self.prototypes[k] = np.average(means, axis=0, weights=shares)

    def usable(self, client):
        own = self.seen[client] if self.classes == "own" and self.seen[client] else {0, 1}
        return {k: point for k, point in self.prototypes.items() if k in own}


@pytest.mark.parametrize(("weighting", "classes", "batch_size"), [("uniform", "own", 3), ("rows", "all", None)])
def test_every_round_is_that_of_a_loop(weighting, classes, batch_size, key):
    with jax.enable_x64(True):
        method = made(weighting=weighting, classes=classes, batch_size=batch_size, prototype_weight=PULL)
        setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, batch_size, weighting)
        state = method.init(key, DATA)
        served = method.client_params(state, np.arange(7))
        loop = FedProto(setting, jax.tree.map(np.asarray, tree.take(served["net"], 0)), classes)
        for number in range(4):
            cohort = problems.sample(key, state.round, DATA, COHORT)
            state, info = method.round(key, state, DATA, cohort)
            assert info.bytes_up == info.bytes_down == (2 * WIDTH + 2) * 8 * COHORT, "whatever the network is"
            loop.round(number, cohort.ids.tolist())
            served = method.client_params(state, np.arange(7))
            for client in range(7):
                found, wanted = tree.take(served, client), loop.usable(client)
                close(found["net"], loop.models[client], rtol=1e-9)
                assert np.flatnonzero(found["usable"]).tolist() == sorted(wanted)
                for k, point in wanted.items():
                    close(found["prototypes"][k], point, rtol=1e-9)


def test_without_a_pull_the_networks_are_those_of_local_training(key):
    alone, free = made("local"), made(prototype_weight=0.0, served="head")
    one, two = alone.init(key, DATA), free.init(key, DATA)
    for _ in range(2):
        cohort = problems.sample(key, one.round, DATA, COHORT)
        (one, _), (two, _) = alone.round(key, one, DATA, cohort), free.round(key, two, DATA, cohort)
    close(two.own.model, one.models, rtol=1e-6)


def test_the_worked_example():
    """m_1 = (1, 0) of one row, m_2 = (3, 2) of three; x = (1, 1) is nearer to (2, 1) than to (0, 2)."""
    with jax.enable_x64(True):
        rows = np.array([[1.0, 0, 0], [3, 2, 0], [2, 1, 0], [4, 3, 0], [5, 5, 5], [6, 6, 6]])
        data = jaxfl.data.federate(rows, np.zeros(6, int), [[0], [1, 2, 3]], [[4], [5]], num_classes=2)
        for weighting, wanted in (("uniform", [2, 1, 0]), ("rows", [2.5, 1.5, 0])):
            method = methods.fedproto(problems.softmax_task(), optax.sgd(0.0), weighting=weighting)
            state = method.init(jax.random.key(0), data)
            state, _ = jax.jit(method.round)(jax.random.key(0), state, data, Cohort.of([0, 1]))
            close(state.prototypes[0], wanted)
            assert state.known.tolist() == [True, False] and not np.any(state.prototypes[1])
    points = np.array([[2.0, 1.0], [0.0, 2.0]])
    np.testing.assert_allclose(mean_squared_distances(np.array([[1.0, 1.0]]), points), [[0.5, 1.0]])


def test_a_client_without_usable_prototypes_predicts_by_its_head_and_fine_tuning_keeps_them(key):
    head = find_head(TASK, "fedproto")
    served = prototype_task(TASK, head, "prototypes")
    model = served.init(key)
    batch = DATA.batch(DATA.train, 3, np.arange(4))
    close(served.outputs(model, batch), TASK.outputs(model["net"], batch), rtol=1e-6)
    model |= {"prototypes": np.ones((2, WIDTH), np.float32), "usable": np.array([0, 1], np.float32)}
    assert served.outputs(model, batch).argmax(1).tolist() == [1] * 4
    decay = optax.chain(optax.add_decayed_weights(0.5), optax.sgd(RATE))
    train = jaxfl.client.training.local_train(served, decay, local_epochs=2, batch_size=None)
    trained = jax.jit(train)(key, model, DATA, 3)[0]
    equal({name: trained[name] for name in ("prototypes", "usable")}, {n: model[n] for n in ("prototypes", "usable")})
    assert not np.allclose(trained["net"]["a"]["kernel"], model["net"]["a"]["kernel"])


def test_refusals():
    with pytest.raises(ValueError, match=mentions("prototype_weight", -1.0)):
        methods.fedproto(TASK, optax.sgd(RATE), prototype_weight=-1.0)
