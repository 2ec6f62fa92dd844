"""FedBABU: its NumPy loop, the head that never moves, and what it is without a head or without a body."""

import functools
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest

from jaxfl import methods, tree
from jaxfl.random import Stream
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import close, equal, follow

pytestmark = pytest.mark.rotating("function", weeks=6)

RATE, COHORT = 0.4, 4
TASK = problems.softmax_task()
EPOCHS = {"local_epochs": 2, "batch_size": 3}
DATA = replace(problems.linear_federation(), held_out=np.arange(7) == 5)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@functools.cache  # tests share what they compile
def made(name="fedbabu", **options):
    return compiled(getattr(methods, name)(TASK, optax.sgd(RATE), **{**EPOCHS, **options}))


def train_leaves(setting, round, client, model, names, stream=Stream.BATCHES):
    """Returns the model with some leaves trained, the others constant."""
    rest = {name: leaf for name, leaf in model.items() if name not in names}
    x, y = setting.clients[client]
    key = reference.key_for(setting.root, stream, round, client)
    for rows in reference.batches(key, len(y), setting.epochs, setting.batch_size):
        slope = reference.gradient(model, x[rows], y[rows])[1]
        model = {**{name: model[name] - setting.rate * slope[name] for name in names}, **rest}
    return model


class FedBABU:
    def __init__(self, setting, model, head, tuned, epochs):
        self.setting, self.model, self.tuned = setting, model, tuned
        self.body, self.tuning, self.rounds = sorted({*model} - {head}), setting._replace(epochs=epochs), 0

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        trained = [train_leaves(self.setting, number, i, self.model, self.body) for i in cohort]
        mean = reference.average(trained, reference.weights(self.setting, cohort))
        self.model = {name: mean[name] if name in self.body else leaf for name, leaf in self.model.items()}
        self.rounds = number + 1

    def served(self, client):
        if not len(self.setting.clients[client][1]):
            return self.model
        return train_leaves(self.tuning, self.rounds, client, self.model, self.tuned, Stream.FINETUNE)


@pytest.mark.parametrize(
    ("weighting", "batch_size", "part"),
    [("uniform", 3, "all"), ("rows", None, "head"), pytest.param("rows", None, "body", marks=pytest.mark.slow)],
)
def test_every_round_is_the_papers(weighting, batch_size, part, key):
    options = {"weighting": weighting, "batch_size": batch_size, "finetune_part": part, "finetune_epochs": 3}
    method = made(personal="bias", **options)
    setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, batch_size, weighting)
    start = tree.take(jax.tree.map(np.asarray, method.client_params(method.init(key, DATA), np.arange(1))), 0)
    tuned = {"all": ["bias", "kernel"], "head": ["bias"], "body": ["kernel"]}[part]
    state = follow(method, FedBABU(setting, start, "bias", tuned, 3), DATA, key, rounds=4, cohort=COHORT)
    equal(state.head["bias"], start["bias"])


def train(method, rounds=3):
    """Returns the models before fine-tuning, and the info of the last round."""
    key, info = jax.random.key(0), None
    state = method.init(key, DATA)
    for _ in range(rounds):
        state, info = method.round(key, state, DATA, problems.sample(key, state.round, DATA, COHORT))
    return jax.tree.map(np.asarray, (method.client_params(state, np.arange(7)), info))


def test_without_a_head_it_is_fedavg_and_without_a_body_nothing_moves():
    served, info = train(made(personal=(), finetune_epochs=0))
    equal(served, train(made("fedavg", weighting="uniform"))[0])
    assert info.bytes_up == info.bytes_down == 8 * 8 * COHORT and info.num_clusters == 1
    still = made(personal=".*", finetune_epochs=0)
    equal(train(still)[0], train(still, rounds=0)[0])


def test_it_is_fedper_whose_heads_have_a_rate_of_0():
    """Its clients exchange the body alone: a kernel of six numbers."""
    frozen = optax.multi_transform(
        {"body": optax.sgd(RATE), "head": optax.set_to_zero()}, {"bias": "head", "kernel": "body"}
    )
    fedper = compiled(methods.fedper(TASK, frozen, personal="bias", weighting="uniform", **EPOCHS))
    served, info = train(made(personal="bias", finetune_epochs=0))
    close(served, train(fedper)[0])
    assert info.bytes_up == info.bytes_down == 6 * 8 * COHORT


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"finetune_epochs": -1}, ("finetune_epochs", -1)),
        ({"finetune_part": "tail"}, ("finetune_part", "tail")),
        ({"personal": "Dense_7"}, ("Dense_7", "bias, kernel")),
    ],
)
def test_refusals(options, words):
    with pytest.raises(ValueError, match=mentions(*words)):
        methods.fedbabu(TASK, optax.sgd(RATE), **options)
