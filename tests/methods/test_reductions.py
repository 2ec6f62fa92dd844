"""One method with these settings is another: what the papers say, or what follows from their equations."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods, tree
from jaxfl.cohort import Cohort
from tests import problems
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import close, equal, gradient

pytestmark = pytest.mark.rotating("function", weeks=6)

RATE = 0.4
TASK, QUADRATIC = problems.softmax_task(), problems.quadratic_task()
DATA = problems.linear_federation()
EVERYBODY = tuple(range(7))
EPOCHS = {"local_epochs": 3, "batch_size": 3}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@functools.cache  # tests share what they compile
def made(name, *, task=TASK, rate=RATE, **options):
    return compiled(getattr(methods, name)(task, optax.sgd(rate), **options))


def train(method, data=DATA, *, rounds=3, cohort=EVERYBODY, start=None):
    """Returns the models that all clients are served, and the state; a cohort is a number, or clients."""
    key = jax.random.key(0)
    state = method.init(key, data) if start is None else start
    for _ in range(rounds):
        chosen = problems.sample(key, state.round, data, cohort) if isinstance(cohort, int) else of(cohort, data)
        state, _ = method.round(key, state, data, chosen)
    served = method.client_params(state, np.arange(data.num_clients))
    return jax.tree.map(np.asarray, (served, state))


def of(ids, data):
    """Returns the cohort of these clients, the others under a mask: as wide as one of everybody."""
    everybody = Cohort.of(range(data.num_clients))
    return replace(everybody, mask=jnp.asarray(np.isin(np.arange(data.num_clients), ids)))


def pooled(data):
    return [np.concatenate(parts) for parts in zip(*problems.rows_of(data), strict=True)]


def test_without_a_client_fedsgd_makes_no_step(key):
    """Weight decay would move a model without a gradient."""
    method = compiled(methods.fedsgd(QUADRATIC, optax.chain(optax.add_decayed_weights(0.5), optax.sgd(RATE))))
    start = method.init(key, DATA)
    equal(train(method, cohort=(), start=start)[1].model, start.model)


def test_fedsgd_is_a_centralised_step_on_the_pooled_rows(key):
    method = made("fedsgd", task=QUADRATIC)
    start = np.asarray(method.init(key, DATA).model["w"])
    served, _ = train(method, rounds=1)
    close(served["w"][0], start - RATE * problems.quadratic_gradient(start, *pooled(DATA)))


def test_fedavg_of_one_full_step_is_fedsgd():
    close(train(made("fedavg", local_epochs=1))[0], train(made("fedsgd"))[0])


def test_fedavg_of_one_client_is_local_training():
    # one client: its weighted mean is n * w / n, a rounding away
    average, alone = (train(made(name, **EPOCHS), cohort=(3,))[0] for name in ("fedavg", "local"))
    close(tree.take(average, 3), tree.take(alone, 3))


def test_fedavg_of_identical_clients_is_centralised_descent():
    """All have the rows of client 3; in full batches, whose order they do not share."""
    split = DATA.train
    all_of = {"start": np.full_like(split.start, split.start[3]), "size": np.full_like(split.size, split.size[3])}
    same = replace(DATA, train=replace(split, **all_of))
    close(*(train(made(name, local_epochs=2), same)[0] for name in ("fedavg", "local")))


def test_fedprox_without_pull_is_fedavg_bit_for_bit():
    equal(train(made("fedprox", proximal_weight=0.0, **EPOCHS))[0], train(made("fedavg", **EPOCHS))[0])


def test_one_full_step_of_fedprox_is_fedavg():
    proximal = made("fedprox", proximal_weight=3.0, local_epochs=1)
    close(train(proximal)[0], train(made("fedavg", local_epochs=1))[0])


def test_pull_of_one_over_rate_forgets_the_last_step(key):
    """With rate * mu = 1, every step is w_t - rate * grad f(w), whatever w is."""
    method = made("fedprox", task=QUADRATIC, proximal_weight=1 / RATE, local_epochs=4)
    start = np.asarray(method.init(key, DATA).model["w"])
    rows, here = problems.rows_of(DATA)[3], start
    for _ in range(4):
        here = start - RATE * problems.quadratic_gradient(here, *rows)
    close(train(method, rounds=1, cohort=(3,))[0]["w"][0], here)


def test_stronger_pull_means_less_drift(key):
    start = QUADRATIC.init(key)

    @jax.jit
    def drift(weight):
        method = methods.fedprox(QUADRATIC, optax.sgd(0.2), proximal_weight=weight, local_epochs=10)
        state = method.init(key, DATA)._replace(model=start)
        moved = method.round(key, state, DATA, Cohort.of(EVERYBODY))[0].model["w"] - start["w"]
        return jnp.linalg.norm(moved)

    drifts = [float(drift(weight)) for weight in (0.0, 0.1, 1.0, 3.0)]
    assert drifts == sorted(drifts, reverse=True) and len(set(drifts)) == 4


def test_local_training_sees_no_other_client():
    rows = np.asarray(DATA.inputs).copy()
    first = DATA.train.rows[: DATA.train.size[0]]
    rows[first] += 1
    before, after = (train(made("local", **EPOCHS), data)[0] for data in (DATA, replace(DATA, inputs=rows)))
    equal(tree.take(before, slice(1, None)), tree.take(after, slice(1, None)))
    assert not np.allclose(before["kernel"][0], after["kernel"][0])


@pytest.mark.parametrize("weighting", ["uniform", "rows"])
def test_ifca_of_one_model_is_fedavg(weighting):
    options = {"weighting": weighting, **EPOCHS}
    close(train(made("ifca", num_clusters=1, **options))[0], train(made("fedavg", **options))[0])


def test_ifcas_gradient_averaging_divides_by_the_whole_cohort(key):
    """With K equal clusters and K times the rate, it is FedSGD in every cluster."""
    data = problems.linear_federation(sizes=(20,) * 4, groups=(0, 1, 0, 1))
    method, everybody = made("ifca", rate=2 * RATE, num_clusters=2, average="gradients"), range(4)
    kernel = np.array([[-1.5, 1.5], [1.0, -1.0], [-0.5, 0.5]])  # points the way of group 0
    models = {"bias": np.zeros((2, 2)), "kernel": np.stack([kernel, -kernel])}
    served, state = train(method, data, cohort=everybody, start=method.init(key, data)._replace(models=models))
    assert state.cluster.tolist() == [0, 1, 0, 1], "oracle initial models assign everybody to the true group"
    alone = made("fedsgd")
    for group in (0, 1):
        start = alone.init(key, data)._replace(model=tree.take(models, group))
        wanted = train(alone, data, cohort=(group, group + 2), start=start)[1]
        close(tree.take(served, group), wanted.model)


@pytest.mark.parametrize("average", ["models", "gradients"])
def test_ifca_of_equal_models_collapses_and_leaves_empty_clusters_alone(average, key):
    method = made("ifca", num_clusters=3, average=average)
    start = jax.tree.map(np.asarray, method.init(key, DATA))
    equals = jax.tree.map(lambda leaf: np.repeat(leaf[:1], 3, 0), start.models)
    _, state = train(method, rounds=1, start=start._replace(models=equals))
    assert state.cluster.tolist() == [0] * 7, "ties go to the lowest index"
    equal(tree.take(state.models, slice(1, None)), tree.take(equals, slice(1, None)))
    assert not np.allclose(state.models["kernel"][0], equals["kernel"][0])


def test_stocfl_in_one_cluster_without_pull_is_uniform_fedavg():
    """Some clients are never seen; Psi is as it was when they first were, one long."""
    stocfl = made("stocfl", threshold=-1.0, proximal_weight=0.0, slots=8, **EPOCHS)
    fedavg = made("fedavg", weighting="uniform", **EPOCHS)
    (served, state), (wanted, averaged) = (train(method, cohort=3) for method in (stocfl, fedavg))
    seen = np.flatnonzero(state.cluster >= 0)
    assert set(state.cluster[seen].tolist()) == {0} and 2 < len(seen) < 7
    close(tree.take(served, seen), tree.take(wanted, seen))
    close(state.solver.model, averaged.model)
    close(np.linalg.norm(state.memory.psi, axis=1), (state.cluster >= 0).astype(float))
    early = train(stocfl, cohort=3, rounds=1)[1]
    begun = np.flatnonzero(early.cluster >= 0)
    equal(early.memory.psi[begun], state.memory.psi[begun])


def test_stocfl_without_merging_or_pull_is_local_training():
    stocfl = made("stocfl", threshold=1.1, proximal_weight=0.0, slots=8, **EPOCHS)
    (served, state), (wanted, _) = (train(method) for method in (stocfl, made("local", **EPOCHS)))
    seen = np.flatnonzero(state.cluster >= 0)
    assert len(seen) == 6, "all but the client without rows"
    assert len(set(state.cluster[seen].tolist())) == len(seen), "nobody merges above a cosine of 1"
    close(tree.take(served, seen), tree.take(wanted, seen))


def test_stocfl_with_pull_of_one_over_rate_steps_from_omega():
    """With rate * lambda = 1 the last of E steps is omega - rate * grad f(theta), in a cluster of one."""
    data = problems.linear_federation(sizes=(7,), groups=(0,))
    method = made("stocfl", threshold=1.1, proximal_weight=1 / RATE, slots=2, local_epochs=2)
    _, state = train(method, data, rounds=1, cohort=(0,))
    served, _ = train(method, data, rounds=1, cohort=(0,), start=state)
    theta = tree.take(state.models, 0)
    for _ in range(2):
        slope = gradient(theta, *problems.rows_of(data)[0])[1]
        theta = jax.tree.map(lambda omega, g: omega - RATE * g, state.solver.model, slope)
    close(tree.take(served, 0), theta)


COMPARING = [name for name, row in methods.METHODS.items() if "layers" in row.options]


def test_methods_that_compare_models_have_a_choice_of_layers():
    assert {"cfl", "layercfl", "adacfl", "flhc", "stocfl", "kfed", "robust", "fesem", "wecfl"} <= set(COMPARING)


@pytest.mark.parametrize("name", COMPARING)
def test_the_last_kernel_is_a_name_of_its_pattern(name):
    """The programs are equal, letter by letter, and that of all layers is another one."""

    def program(layers):
        method = methods.METHODS[name].factory(TASK, optax.sgd(RATE), **methods.METHODS[name].small, layers=layers)

        def run(key, data):
            return method.round(key, method.init(key, data), data, Cohort.of(EVERYBODY))[0]

        return jax.jit(run).lower(jax.random.key(0), DATA).as_text()

    assert program("last kernel") == program("kernel") != program(".*")
    with pytest.raises(ValueError, match=mentions("nowhere")):
        program("nowhere")
