"""FedGroup against its NumPy loop with singular vectors, FedAvg, and who joins later."""

import functools
import importlib
import itertools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfl import methods, tree
from jaxfl.cohort import Cohort
from jaxfl.methods.fedgroup import attract_models, decomposed_cosines, draw_clients, fedgroup, nearest_direction
from jaxfl.random import Stream, key_for
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE = 0.4
TASK = problems.softmax_task()
COHORTS = [(0, 2, 3, 5, 6), (6, 1, 4, 3, 2), (5, 0, 1, 4, 3)]
OPTIONS = {"local_epochs": 2, "batch_size": 3, "first_epochs": 3}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


close = functools.partial(reference.close, rtol=1e-9)  # some ten steps amplify rounding


def advance(method, data, key, state):
    """Returns the state after a round with each of the cohorts, and the last info."""
    info = None
    for cohort in COHORTS:
        state, info = method.round(key, state, data, Cohort.of(cohort))
    return state, info


def vector(model):
    return np.concatenate([np.ravel(model[name]) for name in sorted(model)])


def cosine(left, right):
    return left @ right / np.linalg.norm(left) / np.linalg.norm(right)


class FedGroup:
    """Groups by singular vectors and the best of all partitions; then one client after the other."""

    def __init__(self, setting, model, drawn, *, clusters, between=0.0, pull=0.0, names=None):
        self.setting, self.initial, self.between, self.pull = setting, model, between, pull
        able = reference.with_rows(setting, range(len(setting.clients)))
        sent = {i: self.first(i) for i in able}
        moved = {i: vector(sent[i]) - vector(model) for i in able}
        left = np.linalg.svd(np.array([moved[i] for i in drawn]).T, full_matrices=False)[0][:, :clusters]
        points = np.array([[cosine(moved[i], column) for column in left.T] for i in drawn])

        def inertia(labels):
            parts = [points[np.array(labels) == k] for k in set(labels)]
            return sum(np.sum((part - part.mean(0)) ** 2) for part in parts)

        labels = min(itertools.product(range(clusters), repeat=len(drawn)), key=inertia)
        if names is not None:  # the library's, of the same partition
            labels = [dict(zip(labels, (names[i] for i in drawn), strict=True))[label] for label in labels]
        groups = [[i for i, label in zip(drawn, labels, strict=True) if label == k] for k in range(clusters)]
        self.directions = [np.mean([moved[i] for i in group], 0) for group in groups]
        self.models = [reference.average([sent[i] for i in group], [1] * len(group)) for group in groups]
        self.cluster = [-1] * len(setting.clients)
        for i in able:
            self.cluster[i] = labels[drawn.index(i)] if i in drawn else self.nearest(moved[i])

    def first(self, client):
        x, y = self.setting.clients[client]
        model, key = self.initial, key_for(self.setting.root, Stream.START, client=client)
        for rows in reference.batches(key, len(y), 3, 3):
            model = reference.combine(
                [(1, model), (-self.setting.rate, reference.gradient(model, x[rows], y[rows])[1])]
            )
        return model

    def nearest(self, moved):
        return int(np.argmin([(1 - cosine(moved, direction)) / 2 for direction in self.directions]))

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        for k, model in enumerate(list(self.models)):
            group = [i for i in cohort if self.cluster[i] == k]
            if group:
                options = {"pull": self.pull, "anchor": model}
                trained = [reference.train(self.setting, number, i, model, **options)[0] for i in group]
                self.models[k] = reference.average(trained, reference.weights(self.setting, group))
        old = list(self.models)
        for k, model in enumerate(old):
            others = [(self.between / np.linalg.norm(vector(other)), other) for j, other in enumerate(old) if j != k]
            self.models[k] = reference.average([model, *(o for _, o in others)], [1, *(w for w, _ in others)])


@pytest.mark.rotating
def test_every_round_is_the_papers(key, monkeypatch):
    """With both of its extras, and groups found from four of six clients."""
    # 20 clients for each group would be more than there are
    monkeypatch.setattr(importlib.import_module("jaxfl.methods.fedgroup"), "ALPHA", 2)
    options: dict[str, Any] = {"between_rate": 0.3, "proximal_weight": 0.7}
    data = problems.linear_federation()
    method = compiled(fedgroup(TASK, optax.sgd(RATE), num_clusters=2, **OPTIONS, **options))
    state = method.init(key, data)
    drawn = draw_clients(key, jnp.asarray(data.train.size > 0), 4).tolist()
    loop = FedGroup(
        reference.Setting(key, problems.rows_of(data), RATE, 2, 3),
        jax.tree.map(np.asarray, TASK.init(key_for(key, Stream.INIT))),
        drawn,
        clusters=2,
        between=0.3,
        pull=0.7,
        names=state.cluster.tolist(),
    )
    assert len(drawn) == 4 and state.cluster.tolist() == loop.cluster
    np.testing.assert_allclose(state.directions, loop.directions, rtol=1e-9)
    for number, cohort in enumerate([None, *COHORTS]):
        if cohort is not None:
            state, info = method.round(key, state, data, Cohort.of(cohort))
            loop.round(number - 1, cohort)
            assert int(info.num_clusters) == 2
        for k, model in enumerate(loop.models):
            close(tree.take(state.models, k), model)
    close(tree.take(method.client_params(state, jnp.array([1])), 0), loop.initial)


def test_one_group_is_fedavg_from_the_mean_of_the_first_updates(key):
    data = problems.linear_federation()
    ours = compiled(fedgroup(TASK, optax.sgd(RATE), num_clusters=1, **OPTIONS))
    start = ours.init(key, data)
    options = {name: value for name, value in OPTIONS.items() if name != "first_epochs"}
    fedavg = compiled(methods.fedavg(TASK, optax.sgd(RATE), **options))
    model = fedavg.init(key, data)._replace(model=tree.take(start.models, 0))
    (state, _), (wanted, _) = advance(ours, data, key, start), advance(fedavg, data, key, model)
    close(tree.take(state.models, 0), wanted.model)


@given(seed=st.integers(0, 999), shape=st.sampled_from([(6, 4), (5, 9)]))
def test_cosines_from_products_are_those_with_the_singular_vectors(seed, shape):
    with jax.enable_x64(True):  # once for each example, as the fixture is for none
        updates = np.random.default_rng(seed).normal(size=shape)
        updates[2] = 0
        found = np.asarray(decomposed_cosines(jnp.asarray(updates), 3))
    left = np.linalg.svd(updates.T, full_matrices=False)[0][:, :3]
    length = np.linalg.norm(updates, axis=1, keepdims=True)
    wanted = updates @ left / np.where(length > 0, length, 1)
    np.testing.assert_allclose(np.abs(found), np.abs(wanted), rtol=1e-7, atol=1e-9)
    products = found @ found.T  # signs of columns cancel
    np.testing.assert_allclose(products, wanted @ wanted.T, rtol=1e-7, atol=1e-9)
    assert (np.square(found).sum(1) < 1 + 1e-9).all()


def test_groups_without_members_stay_out_of_it():
    models, together = {"w": np.array([[3.0], [1.0], [100.0]])}, jax.jit(attract_models, static_argnums=2)
    found = np.ravel(together(models, np.array([True, True, False]), 0.5)["w"])
    np.testing.assert_allclose(found, [3.5 / 1.5, 1.5 / (1 + 0.5 / 3), 100])
    same = {"w": np.full((3, 2), 0.7)}
    close(together(same, np.ones(3, bool), 0.5), same)
    directions = np.array([[0.0, 0.0], [0.0, 2.0], [-9.0, 0.0]])
    assert jax.jit(nearest_direction)(np.array([[0.0, -1.0], [1.0, 1.0], [-1.0, 0.5]]), directions).tolist() == [
        2,
        1,
        2,
    ]


@pytest.mark.slow
@pytest.mark.rotating
@pytest.mark.parametrize("alone", [1, 4])
def test_a_round_of_clients_that_count_for_nothing_moves_no_group(alone, key):
    """Client 1 has no rows, client 4's are not finite."""
    data = problems.linear_federation()
    inputs = np.array(data.inputs)
    inputs[data.train.rows[data.train.start[4] :][: data.train.size[4]]] = np.nan
    method = compiled(fedgroup(TASK, optax.sgd(RATE), num_clusters=2, between_rate=0.1, **OPTIONS))
    before = method.init(key, data)
    after, _ = method.round(key, before, replace(data, inputs=inputs), Cohort.of([alone]))
    reference.equal(after.models, before.models)
    moved, _ = method.round(key, before, data, Cohort.of([4]))
    assert not np.array_equal(moved.models["kernel"], before.models["kernel"]), "or it would be no test"


def test_who_is_able_is_drawn_first(key):
    able = jnp.array([False, True, True, False, True, True])
    assert draw_clients(key, able, 9).tolist() == list(range(6)) and draw_clients(key, able, 4).tolist() == [1, 2, 4, 5]
    drawn = {tuple(draw_clients(jax.random.key(seed), able, 2).tolist()) for seed in range(9)}
    assert len(drawn) > 2 and {i for pair in drawn for i in pair} == {1, 2, 4, 5}


def test_newcomers_join_by_their_first_update(key):
    """Clients 4 to 6 are new; 6 has no rows."""
    data = problems.linear_federation(sizes=(5, 2, 3, 8, 4, 6, 0))
    method = fedgroup(TASK, optax.sgd(RATE), num_clusters=2, **OPTIONS)
    assert method.join is not None
    few = data.subset(range(4))
    state = compiled(method).init(key, few)
    setting = reference.Setting(key, problems.rows_of(data), RATE)
    start = jax.tree.map(np.asarray, state.initial)
    loop = FedGroup(setting, start, [0, 1, 2, 3], clusters=2, names=state.cluster.tolist())
    wanted = [loop.nearest(vector(loop.first(i)) - vector(start)) for i in (4, 5)]
    assert wanted[0] != wanted[1], "or it would be no test"
    after, clusters = method.join(key, state, data, [6, 5, 4])
    assert clusters.tolist() == [-1, *wanted[::-1]]
    assert after.cluster.tolist() == [*state.cluster.tolist(), *wanted, -1]
    reference.equal(after.models, state.models)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"num_clusters": 0}, ("num_clusters", 0)),
        ({"first_epochs": 0}, ("first_epochs", 0)),
        ({"sketch_size": 0}, ("sketch_size", 0)),
        ({"between_rate": -0.1}, ("between_rate", -0.1)),
        ({"between_rate": np.inf}, ("between_rate", "inf")),
        ({"proximal_weight": -1.0}, ("proximal_weight", -1.0)),
    ],
)
def test_refusals(options, complaint):
    with pytest.raises(ValueError, match=mentions(*complaint)):
        fedgroup(TASK, optax.sgd(RATE), **options)
