"""Per-FedAvg: its NumPy loop on quadratics, whose Hessian is known, and FedAvg, which it is without a step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import methods, tree
from jaxfl.methods.perfedavg import meta_task
from jaxfl.random import Stream, key_for
from jaxfl.tasks import masked_mean
from tests import problems, reference
from tests.messages import mentions
from tests.reference import close, equal

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

ALPHA, BETA, ROUNDS, COHORT = 0.6, 0.2, 3, 4
TASK = problems.quadratic_task()


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


class PerFedAvg:
    """D, D' and D'' are every second or third row of a batch; who has too few takes the first of them."""

    def __init__(self, setting, model, order):
        self.setting, self.model, self.order = setting, model, order

    def parts(self, rows):
        if self.setting.batch_size is None:
            return rows, rows, rows
        count = 2 if self.order == "first" else 3
        dealt = [rows[k::count] for k in range(count)]
        dealt = [part if len(part) else dealt[0] for part in dealt]
        return dealt[0], dealt[1], dealt[-1]

    def train(self, number, client):
        (x, y), w = self.setting.clients[client], self.model
        key = key_for(self.setting.root, Stream.BATCHES, number, client)
        for rows in reference.batches(key, len(y), self.setting.epochs, self.setting.batch_size):
            inner, outer, third = self.parts(rows)
            there = w - ALPHA * problems.quadratic_gradient(w, x[inner], y[inner])
            step = problems.quadratic_gradient(there, x[outer], y[outer])
            if self.order != "first":
                step = step - ALPHA * problems.SCALE[y[third]].mean() * problems.CURVATURE @ step
            w = w - BETA * step
        return w

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        self.model = np.mean([self.train(number, i) for i in cohort], 0)


def perfedavg(task=TASK, **options):
    return methods.perfedavg(task, optax.sgd(BETA), **{"adaptation_rate": ALPHA, "local_epochs": 2, **options})


def both(data, key, order, batch_size, rounds=ROUNDS, task=TASK):
    """Trains the method and its loop; their models must agree after each round."""
    method = perfedavg(task, order=order, batch_size=batch_size)
    state, step = method.init(key, data), jax.jit(method.round)
    setting = reference.Setting(key, problems.rows_of(data), BETA, 2, batch_size, "uniform")
    loop = PerFedAvg(setting, np.asarray(state.model["w"]), order)
    for number in range(rounds):
        cohort = problems.sample(key, state.round, data, min(COHORT, data.num_clients))
        state, _ = step(key, state, data, cohort)
        loop.round(number, cohort.ids.tolist())
        # differences of gradients are exact for quadratics, up to rounding, 1e-16, over 2 delta, 0.2
        np.testing.assert_allclose(state.model["w"], loop.model, rtol=1e-9, atol=1e-11)


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("order", "batch_size"), [("first", 5), ("first", None), ("exact", 5), ("exact", 2), ("hessian-free", 5)]
)
def test_every_round_is_the_papers(order, batch_size, key):
    both(problems.linear_federation(), key, order, batch_size)


@pytest.mark.rotating
@pytest.mark.parametrize(("rows", "widest"), [(300, 0), (40, 1 << 21)])
def test_full_batches_are_of_all_rows(rows, widest, key):
    """A client of more rows than are taken at once elsewhere adapts to all of them, not to each block.

    Of a convolutional network, whose rows are wide, a CPU takes fewer at once.
    """
    data = problems.linear_federation(sizes=(rows, 4), groups=(0, 1))
    both(data, key, "exact", None, rounds=1, task=TASK._replace(fast=TASK.fast._replace(widest=widest)))


def test_without_a_step_it_is_fedavg(key):
    data, models = problems.linear_federation(), []
    fedavg = methods.fedavg(TASK, optax.sgd(BETA), weighting="uniform", local_epochs=2)
    for method in (perfedavg(adaptation_rate=0.0), fedavg):
        state, step = method.init(key, data), jax.jit(method.round)
        for _ in range(2):
            state, _ = step(key, state, data, problems.sample(key, state.round, data, COHORT))
        models.append(state.model)
    equal(*models)


@pytest.mark.rotating
@pytest.mark.parametrize("order", ["first", "exact"])
def test_a_step_that_reaches_the_optimum_leaves_nothing_to_learn(order, key):
    """With alpha times the Hessian the identity, every start is as good, and has no slope."""

    def loss(model, batch, key=None):
        return masked_mean(0.5 * jnp.square(model["w"][None] - batch.x).sum(1), batch.mask)

    batch = problems.batch_of(problems.linear_federation(), "train", 3, jnp.arange(8, dtype=jnp.int32))
    whole = meta_task(TASK._replace(loss=loss), 1.0, order, 1)
    value, slope = jax.jit(jax.value_and_grad(whole.loss))(TASK.init(key), batch)
    close(value, loss({"w": batch.x.mean(0)}, batch))
    np.testing.assert_allclose(slope["w"], 0, atol=1e-12)  # rounding of float64


def test_orders_of_a_loss_that_bends(key):
    """Exact and Hessian-free are the slope of the loss after the step, and the first order is not."""
    task, data = problems.softmax_task(), problems.linear_federation()
    model, batch = task.init(key), problems.batch_of(data, "train", 3, jnp.arange(8, dtype=jnp.int32))

    def after(model):
        slope = jax.grad(task.loss)(model, batch)
        return task.loss(jax.tree.map(lambda leaf, g: leaf - ALPHA * g, model, slope), batch)

    wanted, exact, free, first = jax.jit(
        lambda model: [
            jax.value_and_grad(after)(model),
            *(
                jax.value_and_grad(meta_task(task, ALPHA, order, 1, delta=1e-4).loss)(model, batch)
                for order in ("exact", "hessian-free", "first")
            ),
        ]
    )(model)
    close(exact, wanted)
    close(free, wanted, rtol=1e-6)  # differences are right up to delta^2
    close(first[0], wanted[0])
    assert not np.allclose(tree.ravel(first[1]), tree.ravel(wanted[1]), rtol=0.05)


def test_running_averages_are_those_after_the_step(key):
    data = jaxfl.data.load("rotated-digits", num_clients=4, rows_per_client=20)
    with jax.enable_x64(False):
        task = jaxfl.classification(jaxfl.models.NormalisedMLP(hidden=(4,), num_classes=10), data)
        batch = problems.batch_of(data, "train", 0, jnp.arange(8))

        @jax.jit
        def slopes(model):
            slope = jax.grad(task.loss)(model, batch, key)
            there = jax.tree.map(lambda leaf, g: leaf - ALPHA * g, model, slope)
            own = meta_task(task, ALPHA, "exact", 1).averages
            return [jax.grad(one.loss)(at, batch, key) for one, at in ((task.averages, there), (own, model))]

        model = jax.jit(task.init)(key)
        wanted, found = (slope["BatchNorm_0"] for slope in slopes(model))
    for name in ("mean", "var"):
        assert np.abs(wanted[name] - model["BatchNorm_0"][name]).max() > 0.01
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5)


def test_refusals():
    with pytest.raises(ValueError, match=mentions("adaptation_rate", -0.1)):
        perfedavg(adaptation_rate=-0.1)
