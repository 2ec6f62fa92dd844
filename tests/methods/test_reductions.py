"""One method with these settings is another: what the papers say, or what follows from their equations."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods, sampling, tree
from jaxfl.client.passes import full_gradient
from jaxfl.cohort import Cohort
from tests import problems
from tests.problems import compiled
from tests.reference import close, equal

RATE = 0.4
TASK = problems.softmax_task()
FULL = (0, 1, 2, 3, 4, 5, 6)
EPOCHS = {"local_epochs": 3, "batch_size": 3}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def train(method, data, *, rounds=3, cohort=None, start=None):
    """Returns the models that all clients are served, and the state."""
    key = jax.random.key(0)
    state = method.init(key, data) if start is None else start
    step = jax.jit(method.round)
    for _ in range(rounds):
        chosen = (
            Cohort.of(FULL[: data.num_clients]) if cohort is None else sampling.sample(key, state.round, data, cohort)
        )
        state, _ = step(key, state, data, chosen)
    return method.client_params(state, jnp.arange(data.num_clients)), state


def sgd():
    return optax.sgd(RATE)


def pooled(data):
    return [np.concatenate(parts) for parts in zip(*problems.rows_of(data), strict=True)]


def test_fedsgd_is_a_centralised_step_on_the_pooled_rows(key):
    data, task = problems.linear_federation(), problems.quadratic_task()
    method = methods.fedsgd(task, sgd())
    start = np.asarray(method.init(key, data).model["w"])
    served, _ = train(method, data, rounds=1)
    close(served["w"][0], start - RATE * problems.quadratic_gradient(start, *pooled(data)))


def test_fedavg_of_one_full_step_is_fedsgd():
    data = problems.linear_federation()
    average = methods.fedavg(TASK, sgd(), local_epochs=1)
    close(train(average, data, cohort=4)[0], train(methods.fedsgd(TASK, sgd()), data, cohort=4)[0])


def test_fedavg_of_one_client_is_local_training():
    data = problems.linear_federation(sizes=(7,), groups=(0,))
    # one client: its weighted mean is n * w / n, a rounding away
    close(train(methods.fedavg(TASK, sgd(), **EPOCHS), data)[0], train(methods.local(TASK, sgd(), **EPOCHS), data)[0])


def test_fedavg_of_identical_clients_is_centralised_descent():
    data = problems.linear_federation(sizes=(6,) * 3, groups=(0,) * 3)
    rows = replace(data.train, start=np.zeros(3, np.int32))
    same = replace(data, train=rows)
    options = {"local_epochs": 2}
    close(train(methods.fedavg(TASK, sgd(), **options), same)[0], train(methods.local(TASK, sgd(), **options), same)[0])


def test_fedprox_without_pull_is_fedavg_bit_for_bit():
    data = problems.linear_federation()
    proximal = methods.fedprox(TASK, sgd(), proximal_weight=0.0, **EPOCHS)
    equal(train(proximal, data, cohort=4)[0], train(methods.fedavg(TASK, sgd(), **EPOCHS), data, cohort=4)[0])


@pytest.mark.parametrize("weight", [0.1, 3.0])
def test_one_full_step_of_fedprox_is_fedavg(weight):
    data = problems.linear_federation()
    proximal = methods.fedprox(TASK, sgd(), proximal_weight=weight, local_epochs=1)
    close(train(proximal, data)[0], train(methods.fedavg(TASK, sgd(), local_epochs=1), data)[0])


def test_pull_of_one_over_rate_forgets_the_last_step(key):
    """With rate * mu = 1, every step is w_t - rate * grad f(w), whatever w is."""
    data, task = problems.linear_federation(sizes=(7,), groups=(0,)), problems.quadratic_task()
    method = methods.fedprox(task, sgd(), proximal_weight=1 / RATE, local_epochs=4)
    start = np.asarray(method.init(key, data).model["w"])
    rows, here = problems.rows_of(data)[0], start
    for _ in range(4):
        here = start - RATE * problems.quadratic_gradient(here, *rows)
    close(train(method, data, rounds=1)[0]["w"][0], here)


def test_stronger_pull_means_less_drift(key):
    data, task = problems.linear_federation(), problems.quadratic_task()
    drift = []
    for weight in (0.0, 0.1, 1.0, 3.0):
        method = methods.fedprox(task, optax.sgd(0.2), proximal_weight=weight, local_epochs=10)
        moved = train(method, data, rounds=1)[0]["w"][0] - method.init(key, data).model["w"]
        drift.append(float(jnp.linalg.norm(moved)))
    assert drift == sorted(drift, reverse=True) and len(set(drift)) == 4


def test_local_training_sees_no_other_client():
    data = problems.linear_federation()
    rows = np.asarray(data.inputs).copy()
    first = data.train.rows[: data.train.size[0]]
    rows[first] += 1
    method = methods.local(TASK, sgd(), **EPOCHS)
    before, after = train(method, data)[0], train(method, replace(data, inputs=rows))[0]
    equal(tree.take(before, slice(1, None)), tree.take(after, slice(1, None)))
    assert not np.allclose(before["kernel"][0], after["kernel"][0])


@pytest.mark.parametrize("weighting", ["uniform", "rows"])
def test_ifca_of_one_model_is_fedavg(weighting):
    data = problems.linear_federation()
    one = methods.ifca(TASK, sgd(), num_clusters=1, weighting=weighting, **EPOCHS)
    close(
        train(one, data, cohort=4)[0],
        train(methods.fedavg(TASK, sgd(), weighting=weighting, **EPOCHS), data, cohort=4)[0],
    )


def test_ifcas_gradient_averaging_divides_by_the_whole_cohort(key):
    """With K equal clusters and K times the rate, it is FedSGD in every cluster."""
    data = problems.linear_federation(sizes=(20,) * 4, groups=(0, 1, 0, 1))
    method = methods.ifca(TASK, optax.sgd(2 * RATE), num_clusters=2, average="gradients")
    kernel = jnp.array([[-1.5, 1.5], [1.0, -1.0], [-0.5, 0.5]])  # points the way of group 0
    models = {"bias": jnp.zeros((2, 2)), "kernel": jnp.stack([kernel, -kernel])}
    served, state = train(method, data, start=method.init(key, data)._replace(models=models))
    assert state.cluster.tolist() == [0, 1, 0, 1], "oracle initial models assign everybody to the true group"
    alone = compiled(methods.fedsgd(TASK, sgd()))
    for group in (0, 1):
        members = Cohort.of([group, group + 2])
        wanted = alone.init(key, data)._replace(model=tree.take(models, group))
        for _ in range(3):
            wanted, _ = alone.round(key, wanted, data, members)
        close(tree.take(served, group), wanted.model)


@pytest.mark.parametrize("average", ["models", "gradients"])
def test_ifca_of_equal_models_collapses_and_leaves_empty_clusters_alone(average, key):
    data = problems.linear_federation()
    method = methods.ifca(TASK, sgd(), num_clusters=3, average=average)
    start = method.init(key, data)
    model = tree.take(start.models, 0)
    _, state = train(method, data, rounds=1, start=start._replace(models=tree.repeat(model, 3)))
    assert state.cluster.tolist() == [0] * 7, "ties go to the lowest index"
    equal(tree.take(state.models, slice(1, None)), tree.repeat(model, 2))
    assert not np.allclose(state.models["kernel"][0], model["kernel"])


@pytest.mark.parametrize("cohort", [None, 3])
def test_stocfl_in_one_cluster_without_pull_is_uniform_fedavg(cohort):
    data = problems.linear_federation()
    stocfl = methods.stocfl(TASK, sgd(), threshold=-1.0, proximal_weight=0.0, slots=8, **EPOCHS)
    fedavg = methods.fedavg(TASK, sgd(), weighting="uniform", **EPOCHS)
    (served, state), (wanted, averaged) = (train(method, data, cohort=cohort) for method in (stocfl, fedavg))
    seen = np.flatnonzero(np.asarray(state.cluster) >= 0)
    assert set(np.asarray(state.cluster)[seen].tolist()) == {0} and len(seen) > 2
    close(tree.take(served, seen), tree.take(wanted, seen))
    close(state.solver.model, averaged.model)


def test_stocfl_without_merging_or_pull_is_local_training():
    data = problems.linear_federation()
    stocfl = methods.stocfl(TASK, sgd(), threshold=1.1, proximal_weight=0.0, slots=8, **EPOCHS)
    served, state = train(stocfl, data, cohort=4)
    wanted, _ = train(methods.local(TASK, sgd(), **EPOCHS), data, cohort=4)
    seen = np.flatnonzero(np.asarray(state.cluster) >= 0)
    assert len(set(np.asarray(state.cluster)[seen].tolist())) == len(seen), "nobody merges above a cosine of 1"
    close(tree.take(served, seen), tree.take(wanted, seen))


def test_stocfl_with_pull_of_one_over_rate_steps_from_omega(key):
    """With rate * lambda = 1 the last of E steps is omega - rate * grad f(theta), in a cluster of one."""
    data = problems.linear_federation(sizes=(7,), groups=(0,))
    method = methods.stocfl(TASK, sgd(), threshold=1.1, proximal_weight=1 / RATE, slots=2, local_epochs=2)
    _, state = train(method, data, rounds=1)
    served, _ = train(method, data, rounds=1, start=state)
    gradient_of = full_gradient(TASK)
    theta = tree.take(state.models, 0)
    for _ in range(2):
        slope = gradient_of(theta, data, jnp.int32(0), key)[1]
        theta = jax.tree.map(lambda omega, g: omega - RATE * g, state.solver.model, slope)
    close(tree.take(served, 0), theta)


def test_psi_is_unaffected_by_training_and_unit_long():
    data = problems.linear_federation()
    method = methods.stocfl(TASK, sgd(), slots=8)
    early, late = (train(method, data, rounds=rounds)[1] for rounds in (1, 4))
    equal(early.memory.psi, late.memory.psi)
    length = np.linalg.norm(late.memory.psi, axis=1)
    close(length, (data.train.size > 0).astype(float))
