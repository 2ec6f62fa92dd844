"""kNN-Per: its NumPy loop, its worked example, FedAvg without a memory, and shares of classes in the limit."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods, tree
from jaxfl.cohort import Plan
from jaxfl.methods.knnper import neighbour_shares
from jaxfl.random import Stream, key_for
from jaxfl.simulation.evaluation.evaluate import evaluator
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import close, equal

pytestmark = pytest.mark.rotating("function", weeks=6)

RATE, COHORT = 0.4, 4
TASK = problems.softmax_task()
DATA = replace(problems.linear_federation(), held_out=np.arange(7) == 5)


@functools.cache  # tests share what they compile
def made(name="knnper", **options):
    small = {"capacity": 4} if name == "knnper" else {}
    return compiled(getattr(methods, name)(TASK, optax.sgd(RATE), **{"local_epochs": 2, **small, **options}))


def softmax(scores):
    p = np.exp(scores - scores.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def by_hand(root, rounds, client, model, rows, x, *, neighbours, weight, scale, mix):
    """Returns the outputs for x of a client that remembers four of its rows; features are the inputs."""
    keys, labels = rows
    z = x @ model["kernel"] + model["bias"]
    if not len(labels):
        return z
    key = key_for(root, Stream.FINETUNE, rounds, client)
    order = np.argsort(np.asarray(jax.random.bits(key, (16,), np.uint32))[: len(labels)] >> 1, kind="stable")[:4]
    keys, labels, found = keys[order], labels[order], []
    for row, logits in zip(x, z, strict=True):
        away = ((keys - row) ** 2).sum(1)
        near = np.argsort(away, kind="stable")[:neighbours]
        similar = np.exp(-away[near] / (x.shape[1] * scale))
        shares = np.array([similar[labels[near] == k].sum() for k in range(2)]) / similar.sum()
        own = logits if mix == "logits" else softmax(logits[None])[0]
        mixed = weight * shares + (1 - weight) * own
        found.append(mixed if mix == "logits" else np.log(mixed))
    return np.array(found)


@pytest.mark.parametrize(("mix", "neighbours", "batch_size"), [("probabilities", 3, 3), ("logits", 9, None)])
def test_every_round_is_that_of_a_loop(mix, neighbours, batch_size, key):
    with jax.enable_x64(True):
        how = {"neighbours": neighbours, "scale": 0.7}
        named = {"preset": "official"} if mix == "logits" else {}
        method = made(memory_weight=0.4, batch_size=batch_size, **how, **named)
        how["mix"] = mix
        setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, batch_size, "rows")
        state = method.init(key, DATA)
        loop = reference.FedProx(setting, jax.tree.map(np.asarray, state.model))
        x = np.random.default_rng(0).normal(size=(6, 3))
        batch = DATA.batch(DATA.test, 0, np.arange(6, dtype=np.int32))._replace(x=jnp.asarray(x))
        for number in range(4):
            cohort = problems.sample(key, state.round, DATA, COHORT)
            state, _ = method.round(key, state, DATA, cohort)
            loop.round(number, cohort.ids.tolist())
            served = reference.served_models(method, key, state, DATA)
            for client in range(7):
                wanted = by_hand(key, number + 1, client, loop.model, setting.clients[client], x, weight=0.4, **how)
                found = method.task.outputs(tree.take(served, client), batch)
                np.testing.assert_allclose(found, wanted, rtol=1e-9, err_msg=f"round {number}, client {client}")


def memory(keys, labels, spare=2):
    """Returns a memory with room for more rows."""
    padding = np.zeros((spare, np.shape(keys)[1]))
    return {
        "keys": jnp.asarray(np.concatenate([keys, padding])),
        "labels": jnp.asarray([*labels, *[0.0] * spare]),
        "there": jnp.asarray([1.0] * len(labels) + [0.0] * spare),
    }


def test_the_worked_example():
    with jax.enable_x64(True):
        keys, labels = np.array([[0.0, 0], [1, 0], [0, 2], [3, 3]]), [0.0, 1.0, 1.0, 2.0]
        shares = neighbour_shares(jnp.array([[0.5, 0.0]]), memory(keys, labels), 3, 1.0, 3)
        np.testing.assert_allclose(shares, [[0.468311, 0.531689, 0]], atol=1e-6)
        mixed = 0.5 * shares + 0.5 * np.array([[0.2, 0.3, 0.5]])
        np.testing.assert_allclose(mixed, [[0.334155, 0.415845, 0.25]], atol=1e-6)
        own = neighbour_shares(jnp.asarray(keys), memory(keys, labels), 1, 1.0, 3)
        assert own.argmax(1).tolist() == [0, 1, 1, 2], "the nearest of its own rows is itself"
        many = neighbour_shares(jnp.asarray(keys), memory(keys, labels), 9, 1e12, 3)
        np.testing.assert_allclose(many, np.broadcast_to([0.25, 0.5, 0.25], (4, 3)), atol=1e-9)
        far = neighbour_shares(jnp.array([[1e4, 0.0]]), memory(keys, labels), 3, 1e-3, 3)
        np.testing.assert_allclose(far.sum(), 1)


def test_without_weight_its_evaluation_is_fedavgs(key):
    plain, method = made("fedavg"), made(memory_weight=0.0)
    one, two = plain.init(key, DATA), method.init(key, DATA)
    for _ in range(2):
        cohort = problems.sample(key, one.round, DATA, COHORT)
        (one, _), (two, info) = plain.round(key, one, DATA, cohort), method.round(key, two, DATA, cohort)
    assert info.bytes_up == info.bytes_down == 8 * 4 * COHORT
    wanted, found = evaluator(plain, DATA, Plan())(key, one), evaluator(method, DATA, Plan())(key, two)
    equal(found.accuracy, wanted.accuracy)
    close(found.loss, wanted.loss, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"neighbours": 0}, ("neighbours", 0)),
        ({"capacity": 0}, ("capacity", 0)),
        ({"memory_weight": 1.5}, ("memory_weight", 1.5)),
        ({"scale": 0.0}, ("scale", 0.0)),
    ],
)
def test_refusals(options, words):
    with pytest.raises(ValueError, match=mentions(*words)):
        methods.knnper(TASK, optax.sgd(RATE), **options)
