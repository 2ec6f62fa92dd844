"""FedRoD: its NumPy loop, its worked example, FedAvg where classes are balanced, and batch normalisation below it."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import methods, tree
from jaxfl.data.clients import Batch
from jaxfl.methods.fedrod import PersonalHead, cross_entropy, log_counts
from jaxfl.random import Stream, key_for
from jaxfl.testing.small import linear_task
from tests import problems, reference
from tests.problems import compiled
from tests.reference import close, equal

pytestmark = pytest.mark.rotating("function", weeks=6)

RATE, COHORT = 0.4, 4
TASK = problems.softmax_task()
# client 1 has no rows, clients 4 and 6 have one class, client 5 is held out
DATA = replace(problems.linear_federation(), held_out=np.arange(7) == 5)


@functools.cache  # tests share what they compile
def made(name="fedrod", **options):
    return compiled(getattr(methods, name)(TASK, optax.sgd(RATE), **{"local_epochs": 2, "batch_size": 3, **options}))


def softmax(scores):
    p = np.exp(scores - scores.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


class FedRoD:
    """x are the inputs: the network is its head alone."""

    def __init__(self, setting, model, start):
        self.setting, self.model = setting, model
        zero = {name: np.zeros_like(leaf) for name, leaf in model.items()}
        self.own, self.zero = [model if start == "generic" else zero for _ in setting.clients], zero
        self.trained = set()

    def round(self, number, cohort):
        cohort, shared = reference.with_rows(self.setting, cohort), []
        for i in cohort:
            (x, y), key = self.setting.clients[i], key_for(self.setting.root, Stream.BATCHES, number, i)
            counts, net, own = np.bincount(y, minlength=2), self.model, self.own[i]
            for rows in reference.batches(key, len(y), self.setting.epochs, self.setting.batch_size):
                z, truth = x[rows] @ net["kernel"] + net["bias"], np.eye(2)[y[rows]]
                odds = np.exp(z) * counts
                generic = odds / odds.sum(1, keepdims=True) - truth
                personal = softmax(z + x[rows] @ own["kernel"] + own["bias"]) - truth
                net, own = (
                    {
                        "kernel": part["kernel"] - RATE * x[rows].T @ residual / len(rows),
                        "bias": part["bias"] - RATE * residual.mean(0),
                    }
                    for part, residual in ((net, generic), (own, personal))
                )
            shared.append(net)
            self.own[i] = own
            self.trained.add(i)
        self.model = reference.average(shared, reference.weights(self.setting, cohort))

    def served(self, client):
        return self.model, self.own[client] if client in self.trained else self.zero


@pytest.mark.parametrize(("start", "weighting", "batch_size"), [("zero", "rows", 3), ("generic", "uniform", None)])
def test_every_round_is_that_of_a_loop(start, weighting, batch_size, key):
    with jax.enable_x64(True):
        method = made(start=start, weighting=weighting, batch_size=batch_size)
        setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, batch_size, weighting)
        state = method.init(key, DATA)
        loop = FedRoD(setting, jax.tree.map(np.asarray, state.model), start)
        for number in range(4):
            cohort = problems.sample(key, state.round, DATA, COHORT)
            state, info = method.round(key, state, DATA, cohort)
            assert info.bytes_up == info.bytes_down == 8 * 8 * COHORT
            loop.round(number, cohort.ids.tolist())
            served = method.client_params(state, np.arange(7))
            for client in range(7):
                net, own = loop.served(client)
                found = tree.take(served, client)
                close(found["net"], net, rtol=1e-9)
                close(found["personal"]._asdict(), own, rtol=1e-9)


def test_with_a_plain_loss_the_network_is_fedavgs_and_does_not_see_the_personal_heads(key):
    plain, fedavg = made(generic_loss="plain"), made("fedavg")
    one, two = plain.init(key, DATA), fedavg.init(key, DATA)
    for _ in range(2):
        cohort = problems.sample(key, one.round, DATA, COHORT)
        (one, _), (two, _) = plain.round(key, one, DATA, cohort), fedavg.round(key, two, DATA, cohort)
    close(one.model, two.model, rtol=1e-5)
    method, cohort = made(), problems.sample(key, jnp.int32(0), DATA, COHORT)
    start = method.init(key, DATA)
    other = start._replace(heads=jax.tree.map(lambda leaf: leaf + 1, start.heads))
    equal(*(method.round(key, state, DATA, cohort)[0].model for state in (start, other)))
    generic = made(served="generic").client_params(start._replace(trained=np.ones(7, bool)), np.arange(7))
    assert not np.any(generic["personal"].kernel)


def test_the_worked_example():
    """Of counts (6, 2, 0) the balanced loss of class 1 at z = (1, 0, -1), and that of z + p."""
    z, batch = jnp.array([[1.0, 0.0, -1.0]]), Batch(jnp.zeros((1, 1)), jnp.array([1]), jnp.ones(1, bool))
    prior = log_counts(jnp.array([6.0, 2.0, 0.0]))
    np.testing.assert_allclose(jax.nn.softmax(z + prior[None])[0], [0.890768, 0.109232, 0], atol=1e-6)
    np.testing.assert_allclose(cross_entropy(z + prior[None], batch), 2.214283, atol=1e-6)
    np.testing.assert_allclose(cross_entropy(z, batch), 1.407606, atol=1e-6)
    task = methods.fedrod(linear_task(), optax.sgd(RATE)).task
    net = {"kernel": jnp.zeros((4, 3)), "bias": z[0]}
    model = {"net": net, "personal": PersonalHead(jnp.zeros((4, 3)), jnp.array([-0.5, 1.5, 0.0]))}
    batch = batch._replace(x=jnp.ones((1, 4)))
    np.testing.assert_allclose(task.outputs(model, batch), [[0.5, 1.5, -1.0]])
    np.testing.assert_allclose(task.loss(model, batch, None), 0.371539, atol=1e-6)
    gradient = jax.grad(lambda z: cross_entropy(z + prior[None], batch))(z)
    assert np.isfinite(gradient).all() and gradient[0, 2] == 0


@pytest.mark.slow
def test_a_network_with_batch_normalisation_trains_and_is_fine_tuned():
    data = jaxfl.data.load("pathological-digits", num_clients=8, rows_per_client=20)
    task = jaxfl.classification(jaxfl.models.create("mlp-batch-norm", 10, hidden=(8,)), data)
    tune = jaxfl.FineTune(optax.sgd(0.1))
    result = jaxfl.run(methods.fedrod(task, optax.sgd(0.1), batch_size=10), data, rounds=3, seed=0, finetune=tune)
    before = jax.tree.map(np.asarray, task.init(jax.random.key(0)))
    moved = [
        not np.array_equal(one, two)
        for one, two in zip(jax.tree.leaves(result.state.model), jax.tree.leaves(before), strict=True)
    ]
    assert all(moved) and result.summary["micro_accuracy"] > 0.3
    assert result.summary["finetuned_diverged"] == 0
