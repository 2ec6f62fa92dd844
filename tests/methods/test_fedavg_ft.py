"""Fine-tuning as a part of a method: its NumPy loop, FineTune beside FedAvg, and what is served where it fails."""

import functools
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest

from jaxfl import methods, tree
from jaxfl.cohort import Cohort, Plan
from jaxfl.data.divide import set_apart
from jaxfl.random import Stream
from jaxfl.simulation.evaluation.evaluate import client_model, evaluator
from jaxfl.simulation.evaluation.finetune import FineTune
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import close, equal, follow

pytestmark = pytest.mark.rotating("function", weeks=6)

RATE, COHORT = 0.4, 4
TASK = problems.softmax_task()
DATA = replace(problems.linear_federation(), held_out=np.arange(7) == 5)


@functools.cache  # tests share what they compile
def made(name, **options):
    return compiled(getattr(methods, name)(TASK, optax.sgd(RATE), **options))


class FineTuned(reference.FedProx):
    """FedProx, whose model every client trains for a test, at the address of the rounds that are done."""

    def __init__(self, setting, model, epochs, pull):
        super().__init__(setting, model, pull)
        self.tuning, self.rounds = setting._replace(epochs=epochs), 0

    def round(self, number, cohort):
        super().round(number, cohort)
        self.rounds = number + 1

    def served(self, client):
        if not len(self.setting.clients[client][1]):
            return self.model
        own = {"pull": self.pull, "anchor": self.model, "stream": Stream.FINETUNE}
        return reference.train(self.tuning, self.rounds, client, self.model, **own)[0]


@pytest.mark.parametrize(
    ("name", "weighting", "batch_size", "epochs", "pull"),
    [("fedavg_ft", "uniform", 3, 3, 0.0), ("fedprox_ft", "rows", 3, None, 0.7)],
)
def test_every_round_is_the_papers(name, weighting, batch_size, epochs, pull, key):
    """The client that is held out is fine-tuned too, and the one without rows is not."""
    options = {"local_epochs": 2, "batch_size": batch_size, "weighting": weighting, "finetune_epochs": epochs}
    with jax.enable_x64(True):
        method = made(name, **options, **({"proximal_weight": pull} if pull else {}))
        setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, batch_size, weighting)
        start = jax.tree.map(np.asarray, method.init(key, DATA).model)
        follow(method, FineTuned(setting, start, epochs or 2, pull), DATA, key, rounds=4, cohort=COHORT)


@pytest.mark.parametrize("name", ["fedavg_ft", "fedprox_ft"])
def test_in_full_batches_the_next_model_is_the_mean_of_what_is_served(name, key):
    with jax.enable_x64(True):
        data = problems.linear_federation()
        method = made(name, local_epochs=3)
        state = method.init(key, data)
        served = reference.served_models(method, key, state, data)
        after, _ = method.round(key, state, data, Cohort.of(range(7)))
        shares = np.asarray(data.train.size) / np.sum(data.train.size)
        close(after.model, jax.tree.map(lambda leaf: np.einsum("n,n...->...", shares, leaf), served))


def test_one_full_step_has_no_pull(key):
    with jax.enable_x64(True):
        state = made("fedavg_ft", finetune_epochs=1).init(key, DATA)
        wanted, pulled = (
            reference.served_models(made(name, finetune_epochs=1), key, state, DATA)
            for name in ("fedavg_ft", "fedprox_ft")
        )
    close(pulled, wanted)


@pytest.mark.parametrize(
    ("apart", "pull"), [(False, 0.0), (False, 0.7), pytest.param(True, 0.0, marks=pytest.mark.slow)]
)
def test_its_evaluation_is_that_of_fedavg_fine_tuned_and_the_run_is_fedavgs(apart, pull, key):
    """With rows in windows too, and for a single client; validation rows are tested under fine-tuned models."""
    data = set_apart(DATA, 0.3) if apart else DATA
    options = {"local_epochs": 2, "batch_size": 3} | ({"proximal_weight": pull} if pull else {})
    tuned, plain = (made(name, **options) for name in (("fedprox_ft", "fedprox") if pull else ("fedavg_ft", "fedavg")))
    one, two = (method.init(key, data) for method in (tuned, plain))
    for _ in range(2):
        cohort = problems.sample(key, one.round, data, COHORT)
        (one, _), (two, _) = (method.round(key, s, data, cohort) for method, s in ((tuned, one), (plain, two)))
    equal(one.model, two.model)
    wanted = evaluator(plain, data, Plan(), FineTune(optax.sgd(RATE), 2, 3, pull=pull))(key, two)
    for stream in (False, True) if apart else (False,):
        found = evaluator(tuned, data, Plan(), stream=stream)(key, one)
        equal(found.accuracy, wanted.finetuned.accuracy)
        close(found.loss, wanted.finetuned.loss, rtol=1e-6)
        for name in ("micro_accuracy", "macro_accuracy", "unseen_micro_accuracy"):
            assert found.metrics[name] == wanted.metrics[f"finetuned_{name}"]
        assert not apart or found.metrics["validation_loss"] != wanted.metrics["validation_loss"]
        assert found.metrics["adapted_diverged"] == 0 and found.cluster.tolist() == list(range(7))
    models = reference.served_models(tuned, key, one, data)
    close(client_model(tuned, one, data, 3, seed=0), tree.take(models, 3), rtol=1e-5)


def test_a_client_whose_fine_tuning_diverges_is_served_the_model_and_counted(key):
    inputs = np.array(DATA.inputs)
    inputs[DATA.train.rows[DATA.train.start[3] :][: DATA.train.size[3]]] = np.nan
    method = made("fedavg_ft", local_epochs=2)
    state = method.init(key, DATA)
    found = evaluator(method, replace(DATA, inputs=inputs), Plan())(key, state)
    plain = evaluator(made("fedavg", local_epochs=2), DATA, Plan())(key, state)
    assert found.metrics["adapted_diverged"] == 1
    assert found.loss[3] == plain.loss[3] and found.loss[0] != plain.loss[0]


@pytest.mark.parametrize("name", ["fedavg_ft", "fedprox_ft"])
def test_refusals(name):
    with pytest.raises(ValueError, match=mentions("finetune_epochs", 0)):
        getattr(methods, name)(TASK, optax.sgd(RATE), finetune_epochs=0)
    with pytest.raises(ValueError, match=mentions("local_epochs", 0)):  # what is given, not what follows from it
        getattr(methods, name)(TASK, optax.sgd(RATE), local_epochs=0)
