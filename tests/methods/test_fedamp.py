"""FedAMP and HeurFedAMP: their NumPy loops, who counts for whom, and the methods that they become."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods, tree
from jaxfl.cohort import Cohort
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import close, equal, follow

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE = 0.4
TASK = problems.softmax_task()
EPOCHS = {"local_epochs": 2, "batch_size": 3}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def flat(model):
    return np.concatenate([model[name].ravel() for name in sorted(model)])


class FedAMP:
    """`weight(w_i, w_j)` is xi_ij before anything is divided; HeurFedAMP has a share of its own."""

    def __init__(self, setting, model, weight, pull, *, own_share=None):
        self.setting, self.weight, self.pull, self.own_share = setting, weight, pull, own_share
        self.models, self.trained = [model] * len(setting.clients), set()

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        clouds = {i: self.cloud_of(i) for i in cohort}
        for i in cohort:
            trained = reference.train(self.setting, number, i, self.models[i], pull=self.pull, anchor=clouds[i])
            self.models[i] = trained[0]
        self.trained |= {*cohort}

    def cloud_of(self, i):
        others = sorted(self.trained - {i})
        weights = np.array([self.weight(flat(self.models[i]), flat(self.models[j])) for j in others])
        if self.own_share is not None and others:
            weights *= (1 - self.own_share) / weights.sum()
        shares = [(1 - weights.sum(), self.models[i]), *zip(weights, (self.models[j] for j in others), strict=True)]
        return reference.combine(shares)

    def served(self, i):
        return self.models[i]


def by_distance(one, other):
    return 0.1 / 0.8 * np.exp(-np.square(one - other).sum() / 0.8)


def by_cosine(one, other):
    return np.exp(3.0 * reference.cosine(one, other))


def fedamp(**options):
    return compiled(methods.fedamp(TASK, optax.sgd(RATE), **{**EPOCHS, **options}))


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("options", "weight", "further"),
    [
        ({"sigma": 0.8, "attraction": 0.1}, by_distance, {}),
        ({"similarity": "cosine", "sigma": 3.0, "own_share": 0.4, "batch_size": None}, by_cosine, {"own_share": 0.4}),
    ],
    ids=["fedamp", "heurfedamp"],
)
def test_every_round_is_the_papers(options, weight, further, key):
    data = problems.linear_federation()
    method = fedamp(proximal_weight=0.7, **options)
    setting = reference.Setting(key, problems.rows_of(data), RATE, 2, options.get("batch_size", 3))
    model = jax.tree.map(lambda leaf: np.asarray(leaf[0]), method.init(key, data).models)
    follow(method, FedAMP(setting, model, weight, 0.7, **further), data, key)


def rounds(method, data, key, cohort, *, count=2):
    state = method.init(key, data)
    for _ in range(count):
        state, _ = method.round(key, state, data, cohort)
    return state


def test_without_pull_it_is_local_training(key):
    data, cohort = problems.linear_federation(), Cohort.of([0, 1, 3, 4])
    local = compiled(methods.local(TASK, optax.sgd(RATE), **EPOCHS))
    equal(rounds(fedamp(proximal_weight=0.0), data, key, cohort).models, rounds(local, data, key, cohort).models)


@pytest.mark.rotating
@pytest.mark.parametrize("options", [{}, {"similarity": "cosine"}], ids=["distance", "cosine"])
def test_who_is_held_out_weighs_nothing(options, key):
    """N of sigma / N and 1 / N counts the others."""
    method = fedamp(**{"attraction": None, "own_share": None, "sigma": 2.0} | options)
    found = []
    for sizes, out in (((5, 3, 8, 4), ()), ((5, 3, 8, 4, 6), (4,))):
        data = problems.linear_federation(sizes=sizes, groups=(0, 1, 0, 1, 0)[: len(sizes)])
        data = replace(data, held_out=np.isin(np.arange(len(sizes)), out))
        models = rounds(method, data, key, Cohort.of(range(4))).models
        found.append(tree.take(models, np.arange(4)))
    close(*found)


def test_a_model_far_away_and_one_never_trained_count_for_nothing(key):
    data = problems.linear_federation()
    method = fedamp(proximal_weight=0.7)
    start = rounds(method, data, key, Cohort.of([0, 3, 5]), count=1)

    def made_by_client_0(other, distance):
        moved = jax.tree.map(lambda leaf: leaf + distance, tree.take(start.models, other))
        state = start._replace(models=tree.put(start.models, other, moved))
        return np.asarray(method.round(key, state, data, Cohort.of([0]))[0].models["kernel"][0])

    pairs = [
        [made_by_client_0(other, times * distance) for times in (1, 2)]
        for other, distance in ((3, 1e3), (4, 0.1), (5, 0.1))
    ]  # far away, never trained, close and trained
    equal(*pairs[0])
    equal(*pairs[1])
    assert not np.allclose(*pairs[2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sigma": 0.0}, ("sigma", 0.0)),
        ({"similarity": "cosine", "sigma": -1.0}, ("sigma", -1.0)),
        ({"attraction": -0.1}, ("attraction", -0.1)),
        ({"similarity": "cosine", "attraction": 0.1}, ("attraction", 0.1, 'similarity="distance"')),
        ({"own_share": 0.5}, ("own_share", 0.5, 'similarity="cosine"')),
        ({"similarity": "cosine", "own_share": 1.5}, ("own_share", 1.5)),
        ({"proximal_weight": -1.0}, ("proximal_weight", -1.0)),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        fedamp(**options)


def test_an_attraction_that_makes_negative_weights_is_refused(key):
    data = problems.linear_federation()
    method = methods.fedamp(TASK, optax.sgd(RATE), attraction=0.5, sigma=2.0)
    with pytest.raises(ValueError, match=mentions("attraction", 0.333333, "M = 7")):
        method.init(key, data)
    assert jnp.isfinite(methods.fedamp(TASK, optax.sgd(RATE), attraction=0.3, sigma=2.0).init(key, data).round)
