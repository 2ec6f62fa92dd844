"""Ditto: its NumPy loop, what it is at the ends of its options, and how it chooses among several lambdas."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxfl import methods, tree
from jaxfl.client.passes import full_gradient
from jaxfl.cohort import Cohort, Plan
from jaxfl.data.clients import Drift, Split
from jaxfl.data.divide import divide_rows
from jaxfl.methods.ditto import VALIDATION_SHARE
from jaxfl.simulation.rounds import add_newcomers
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import close, equal, follow

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE, ROUNDS, COHORT = 0.4, 5, 4
TASK = problems.softmax_task()
EPOCHS = {"local_epochs": 2, "batch_size": 3}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


class Ditto:
    """Algorithm 1: a model for each client beside FedAvg or FedProx; `judge[i]` is client i's validation rows."""

    def __init__(self, setting, model, pulls, *, solver_pull=0.0, personal_epochs=None, judge=None):
        self.setting, self.pulls, self.judge = setting, pulls, judge
        self.personal = setting._replace(epochs=personal_epochs or setting.epochs)
        self.solver = reference.FedProx(setting, model, solver_pull)
        self.models, self.trained, self.won = [model] * len(setting.clients), set(), set()

    def round(self, number, cohort):
        broadcast = self.solver.model
        self.solver.round(number, cohort)
        for i in reference.with_rows(self.setting, cohort):
            self.models[i] = self.steps(number, i, broadcast)
            self.trained.add(i)

    def steps(self, number, client, anchor):
        setting, model, (x, y) = self.personal, self.models[client], self.setting.clients[client]
        if len(self.pulls) == 1:
            return reference.train(setting, number, client, model, pull=self.pulls[0], anchor=anchor)[0]
        key = reference.key_for(setting.root, reference.Stream.BATCHES, number, client)
        for rows in reference.batches(key, len(y), setting.epochs, setting.batch_size):
            slope = reference.gradient(model, x[rows], y[rows])[1]
            tried = []
            for pull in self.pulls:
                step = reference.combine([(1, slope), (pull, model), (-pull, anchor)])
                tried.append(reference.combine([(1, model), (-setting.rate, step)]))
            validation = self.judge[client]
            best = np.argmin([reference.gradient(one, *validation)[0] for one in tried]) if len(validation[1]) else 0
            model = tried[best]
            self.won.add(int(best))
        return model

    def served(self, client):
        return self.models[client] if client in self.trained else self.solver.model


divided = jax.jit(divide_rows, static_argnums=2)


def numbers(models):
    return jax.tree.map(np.asarray, models)


def sgd():
    return optax.sgd(RATE)


@functools.cache  # tests share what they compile
def ditto(**options):
    return compiled(methods.ditto(TASK, sgd(), **options))


def train(method, data, *, rounds=3, cohort=COHORT):
    key = jax.random.key(0)
    state = method.init(key, data)
    for _ in range(rounds):
        state, _ = method.round(key, state, data, problems.sample(key, state.round, data, cohort))
    return state


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("options", "weighting", "further", "batch_size"),
    [
        ({"proximal_weight": 0.7}, "uniform", {}, None),
        ({"proximal_weight": 0.3, "personal_epochs": 3, "weighting": "rows"}, "rows", {"personal_epochs": 3}, 3),
    ],
    ids=["uniform", "rows-more-epochs"],
)
def test_every_round_is_the_papers(options, weighting, further, batch_size, key):
    data = problems.linear_federation()
    method = ditto(local_epochs=2, batch_size=batch_size, **options)
    setting = reference.Setting(key, problems.rows_of(data), RATE, 2, batch_size, weighting)
    model = numbers(method.init(key, data).solver.model)
    follow(method, Ditto(setting, model, [options["proximal_weight"]], **further), data, key)


def test_the_solver_can_be_exchanged(key):
    data = problems.linear_federation()
    solver = compiled(methods.fedprox(TASK, sgd(), proximal_weight=0.9, **EPOCHS))
    method = ditto(proximal_weight=0.3, solver=solver, **EPOCHS)
    setting = reference.Setting(key, problems.rows_of(data), RATE, 2, 3, "rows")
    model = numbers(method.init(key, data).solver.model)
    state = follow(method, Ditto(setting, model, [0.3], solver_pull=0.9), data, key)
    equal(state.solver, train(solver, data, rounds=ROUNDS))


def test_a_lambda_of_several_is_chosen_in_every_step(key):
    data = problems.linear_federation()
    pulls = (0.1, 1.0, 2.0)
    method = ditto(proximal_weight=pulls, **EPOCHS)
    left, held = divided(key, data.train, VALIDATION_SHARE)
    rest, validation = (problems.rows_of(replace(data, train=split)) for split in (left, held))
    setting = reference.Setting(key, rest, RATE, 2, 3, "uniform")
    loop = Ditto(setting, numbers(method.init(key, data).solver.model), pulls, judge=validation)
    follow(method, loop, data, key)
    assert len(loop.won) > 1, "different ones must win"


def test_without_pull_it_is_local_training_beside_fedavg():
    data = problems.linear_federation()
    state = train(ditto(proximal_weight=0.0, **EPOCHS), data)
    equal(state.models, train(compiled(methods.local(TASK, sgd(), **EPOCHS)), data).models)
    equal(state.solver, train(compiled(methods.fedavg(TASK, sgd(), weighting="uniform", **EPOCHS)), data))


def test_the_global_model_does_not_depend_on_lambda():
    data = problems.linear_federation()
    one, other = train(ditto(proximal_weight=0.0, **EPOCHS), data), train(ditto(**EPOCHS), data)
    equal(one.solver, other.solver)
    assert not np.allclose(one.models["kernel"], other.models["kernel"])


def test_with_pull_of_one_over_rate_the_last_step_is_from_the_broadcast_model():
    """With rate * lambda = 1, v = w^t - rate * grad F(v), with w^t from before the round."""
    data = problems.linear_federation()
    method = ditto(proximal_weight=1 / RATE, local_epochs=1)
    before, after = (train(method, data, rounds=rounds, cohort=data.num_clients) for rounds in (2, 3))
    gradient = jax.jit(full_gradient(TASK))
    for client in np.flatnonzero(data.train.size):
        slope = gradient(tree.take(before.models, client), data, jnp.int32(client), jax.random.key(0))[1]
        close(tree.take(after.models, client), jax.tree.map(lambda w, g: w - RATE * g, before.solver.model, slope))


def test_stocfl_that_merges_nothing_is_ditto():
    data = problems.linear_federation()
    method, pull = ditto(**EPOCHS), methods.METHODS["ditto"].options["proximal_weight"]
    stocfl = compiled(methods.stocfl(TASK, sgd(), threshold=1.1, proximal_weight=pull, slots=8, **EPOCHS))
    clustered, state = train(stocfl, data), train(method, data)
    close(clustered.solver.model, state.solver.model)
    seen = np.flatnonzero(np.asarray(clustered.cluster) >= 0)
    assert len(seen) > 2
    close(stocfl.client_params(clustered, seen), method.client_params(state, seen))


def test_beside_one_cluster_of_ifca_it_is_ditto_beside_fedavg():
    data = problems.linear_federation()
    ifca = methods.ifca(TASK, sgd(), num_clusters=1, **EPOCHS)
    state = train(compiled(methods.ditto(TASK, sgd(), solver=ifca, **EPOCHS)), data)
    close(state.models, train(ditto(**EPOCHS), data).models)


def test_a_solver_that_grows_lets_ditto_grow(key):
    data, solver = problems.linear_federation(), methods.fedavg(TASK, sgd(), local_epochs=1)

    def full(key, state, data, cohort):
        state, info = solver.round(key, state, data, cohort)
        return state, info._replace(overflow=jnp.int32(2))

    growing = solver._replace(round=full, grow=lambda state: state._replace(round=state.round + 100))
    method = compiled(methods.ditto(TASK, sgd(), solver=growing, local_epochs=1))
    state, info = method.round(key, method.init(key, data), data, Cohort.of(range(7)))
    assert int(info.overflow) == 2 and method.grow is not None
    assert method.grow(state).solver.round == 101
    assert ditto(**EPOCHS).grow is None


def test_what_clients_that_have_never_trained_are_served(key):
    data, method, everybody = problems.linear_federation(), ditto(**EPOCHS), jnp.arange(7)
    state, _ = method.round(key, method.init(key, data), data, problems.sample(key, 0, data, COHORT))
    never = np.flatnonzero(~np.asarray(state.trained))
    assert 1 in never and len(never) > 2, "client 1 has no rows"
    first = jax.jit(TASK.init)(reference.key_for(key, reference.Stream.INIT))
    for one, wanted in ((method, state.solver.model), (ditto(newcomers="initial", **EPOCHS), first)):
        served = numbers(one.client_params(state, everybody))
        for client in never:
            equal(tree.take(served, client), wanted)


def test_who_has_no_model_is_served_what_the_solver_serves_the_unseen(key):
    data, solver = problems.linear_federation(), methods.ifca(TASK, sgd(), num_clusters=3, **EPOCHS)
    method, everybody = compiled(methods.ditto(TASK, sgd(), solver=solver, **EPOCHS)), Cohort.of(range(7))
    state = method.init(key, data)
    for _ in range(2):
        state, _ = method.round(key, state, data, Cohort.of([0, 2]))
    chosen = solver.assign(key, state.solver, data, everybody)
    never = jnp.flatnonzero(~state.trained)
    assert len(set(chosen.cluster[never].tolist())) > 1, "they do not all choose the same model"
    served = method.client_params(method.assign(key, state, data, everybody), never)
    equal(served, solver.client_params(chosen, never))


def test_clients_that_arrive_enter_the_solver_by_its_own_join(key):
    """StoCFL beside Ditto is StoCFL alone: an arriving group opens a cluster, which `assign` never does."""
    still = problems.linear_federation((5, 4, 6, 8, 5, 6, 4), (0, 0, 1, 1, 0, 1, 0))
    late, nobody = np.asarray(still.group) == 1, np.zeros(7, bool)
    moving = replace(
        still,
        held_out=late,
        absent=late,
        drift=Drift(np.array([1], np.int32), held_out=nobody[:, None], absent=nobody[:, None]),
    )
    stocfl = methods.stocfl(TASK, sgd(), threshold=0.9, local_epochs=1)
    method = compiled(methods.ditto(TASK, sgd(), solver=stocfl, local_epochs=1))
    state, _ = method.round(key, method.init(key, moving), moving, Cohort.of([0, 1, 4]))
    after, alone = (
        add_newcomers(one, key, own, moving, Plan()) for one, own in ((method, state), (stocfl, state.solver))
    )
    equal(after.solver, alone)
    assert {*alone.cluster[late].tolist()} - {*alone.cluster[~late].tolist()}, "no cluster that was there before"
    equal(after._replace(solver=None), state._replace(solver=None))


def test_a_federation_may_grow_beside_a_solver_that_lets_clients_join(key):
    data, small = problems.linear_federation(), problems.linear_federation().subset(range(5))
    stocfl = methods.stocfl(TASK, sgd(), local_epochs=1)
    method = compiled(methods.ditto(TASK, sgd(), solver=stocfl, **EPOCHS))
    state, _ = method.round(key, method.init(key, small), small, Cohort.of([0, 2, 4]))
    assert method.join is not None
    after, clusters = method.join(key, state, data, [5, 6])
    equal(after.solver, stocfl.join(key, state.solver, data, [5, 6])[0])
    assert clusters.tolist() == [5, 6] and after.cluster.tolist() == list(range(7))
    assert after.trained.tolist() == [*state.trained.tolist(), False, False]
    first = method.init(key, data).models
    close(after.models, jax.tree.map(lambda old, new: jnp.concatenate([old, new[5:]]), state.models, first))
    new = jnp.array([5, 6])
    equal(method.client_params(after, new), stocfl.client_params(after.solver, new))
    trained, _ = method.round(key, after, data, Cohort.of([5, 6]))
    assert trained.trained.tolist() == [*state.trained.tolist(), True, True]
    assert ditto(**EPOCHS).join is None


@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(0, 9), min_size=6, max_size=6), st.floats(0.05, 0.95), st.integers(0, 3))
def test_rows_are_divided_within_each_client(sizes, share, seed):
    sizes = [*sizes, 54 - sum(sizes)]  # always as many rows: shapes that are compiled once
    split = Split.pack(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]))
    left, held = divide_rows(jax.random.key(seed), split, share)
    most = int(np.argmax(sizes))
    assert held.max_size == int(held.size[most]) and left.max_size == int(left.size[most])
    for client, size in enumerate(sizes):
        both = [
            np.asarray(part.rows)[part.start[client] : part.start[client] + part.size[client]] for part in (left, held)
        ]
        first = int(split.start[client])
        assert sorted(np.concatenate(both).tolist()) == list(range(first, first + size))
        assert abs(len(both[1]) - share * size) <= 1 and (size < 2 or min(map(len, both)) >= 1)


def test_which_rows_are_held_back_is_the_keys(key):
    split = Split.pack([np.arange(200)])
    rows = [set(np.asarray(divide_rows(k, split, 0.2)[1].rows)[160:].tolist()) for k in (key, key, jax.random.key(1))]
    assert rows[0] == rows[1] != rows[2] and rows[0] != set(range(160, 200))


@pytest.mark.slow
@pytest.mark.rotating
@pytest.mark.parametrize("solver", [None, methods.fesem(TASK, sgd(), num_clusters=2, **EPOCHS)], ids=["own", "fesem"])
def test_validation_rows_train_nothing(solver, key):
    """Other values of the rows that are held back leave all models as they are; FeSEM trains at its start, too."""
    data = problems.linear_federation()
    inputs = np.asarray(data.inputs).copy()
    _, held = divided(key, data.train, VALIDATION_SHARE)
    for start, size in zip(held.start, held.size, strict=True):
        inputs[held.rows[start : start + size]] += 1.0
    method = ditto(proximal_weight=(0.5, 0.5), solver=solver, **EPOCHS)
    one, other = train(method, data), train(method, replace(data, inputs=inputs))
    equal(one.solver, other.solver)
    equal(one.models, other.models)  # the same lambda twice: whichever wins


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"proximal_weight": -1.0}, ("proximal_weight", -1.0)),
        ({"proximal_weight": float("inf")}, ("proximal_weight", "inf")),
        ({"proximal_weight": (0.1, -2.0)}, ("proximal_weight", -2.0)),
        ({"proximal_weight": ()}, ("proximal_weight", "()")),
        ({"personal_epochs": 0}, ("personal_epochs", 0)),
        ({"newcomers": "none"}, ("newcomers", "none")),
        ({"weighting": "size"}, ("weighting", "size")),
        ({"solver": methods.fedsgd(problems.softmax_task(), optax.sgd(1.0))}, ("solver", "ditto", "task")),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        ditto(**options)


def test_a_division_of_some_clients_is_of_their_own_rows():
    # what lies between their rows belongs to clients who are not there
    parts = np.split(np.arange(40), 8)
    split = replace(Split.pack(parts), start=np.int32([0, 15, 30]), size=np.int32([5, 5, 5]))
    left, held = divided(jax.random.key(0), split, 0.4)
    for client, part in enumerate((parts[0], parts[3], parts[6])):
        found = [np.asarray(one.rows)[one.start[client] :][: one.size[client]] for one in (left, held)]
        assert sorted(np.concatenate(found).tolist()) == part.tolist(), "these are the client's, each once"
