"""pFedMe: its NumPy loop, the proximal point and the gradient of its envelope, and the methods that it becomes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods, tree
from jaxfl.client.corrections import proximal_pull
from jaxfl.cohort import Cohort
from jaxfl.data.clients import Batch
from jaxfl.methods.pfedme import envelope
from jaxfl.tasks import Averages
from tests import problems, reference
from tests.messages import mentions
from tests.problems import compiled
from tests.reference import close, equal, follow

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE, PULL, OUTER = 0.2, 1.5, 0.3
TASK = problems.softmax_task()
COHORT = Cohort.of([0, 1, 3, 6])


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


class PFedMe:
    def __init__(self, setting, model, steps, *, warm=False, decay=0.0):
        self.setting, self.model, self.steps, self.warm, self.decay = setting, model, steps, warm, decay
        self.own = {}

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        sent = [self.train(number, i) for i in cohort]
        self.model = reference.average(sent, reference.weights(self.setting, cohort))

    def train(self, number, i):
        w, theta, (x, y) = self.model, self.model, self.setting.clients[i]
        key = reference.key_for(self.setting.root, reference.Stream.BATCHES, number, i)
        for rows in reference.batches(key, len(y), self.setting.epochs, self.setting.batch_size):
            theta = theta if self.warm else w
            for _ in range(self.steps):
                slope = reference.gradient(theta, x[rows], y[rows])[1]
                step = reference.combine([(1, slope), (PULL + self.decay, theta), (-PULL, w)])
                theta = reference.combine([(1, theta), (-self.setting.rate, step)])
            w = reference.combine([(1 - OUTER * PULL, w), (OUTER * PULL, theta)])
        self.own[i] = theta
        return w

    def served(self, i):
        return self.own.get(i, self.model)


def pfedme(task=TASK, **options):
    given = {"proximal_weight": PULL, "outer_rate": OUTER, "inner_steps": 3, "local_epochs": 2, **options}
    return compiled(methods.pfedme(task, optax.sgd(RATE), **given))


def one_round(method, key, data):
    return method.round(key, method.init(key, data), data, COHORT)[0]


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("options", "weighting", "further"),
    [
        ({"batch_size": 3}, "uniform", {}),
        ({"preset": "official", "decay": 0.2}, "rows", {"warm": True, "decay": 0.2}),
    ],
    ids=["paper", "official"],
)
def test_every_round_is_the_papers(options, weighting, further, key):
    data = problems.linear_federation()
    method = pfedme(**options)
    setting = reference.Setting(key, problems.rows_of(data), RATE, 2, options.get("batch_size"), weighting)
    loop = PFedMe(setting, jax.tree.map(np.asarray, method.init(key, data).model), 3, **further)
    close(follow(method, loop, data, key).model, loop.model)


@pytest.mark.rotating
@pytest.mark.parametrize(("rows", "widest"), [(300, 0), (40, 1 << 21)])
def test_a_full_batch_is_never_cut(rows, widest, key):
    """Of more rows than other methods take at once: a mean of proximal points is not that of all rows.

    Of a convolutional network, whose rows are wide, a CPU takes fewer at once.
    """
    data = problems.linear_federation(sizes=(rows, 20), groups=(0, 1))
    method = pfedme(TASK._replace(fast=TASK.fast._replace(widest=widest)), local_epochs=1)
    setting = reference.Setting(key, problems.rows_of(data), RATE, 1, None, "uniform")
    loop = PFedMe(setting, jax.tree.map(np.asarray, method.init(key, data).model), 3)
    follow(method, loop, data, key, rounds=1, cohort=2)


def test_one_full_batch_with_eta_lambda_of_one_is_fedprox(key):
    data = problems.linear_federation()
    options = {"proximal_weight": 2.5, "weighting": "uniform"}
    fedprox = compiled(methods.fedprox(TASK, optax.sgd(RATE), local_epochs=3, **options))
    found = one_round(pfedme(outer_rate=0.4, local_epochs=1, **options), key, data)
    close(found.model, one_round(fedprox, key, data).model)


def test_one_step_of_one_full_batch_is_fedsgd_and_the_server_may_go_halfway(key):
    data = problems.linear_federation()
    fedsgd = compiled(methods.fedsgd(TASK, optax.sgd(OUTER * PULL * RATE / 2), weighting="uniform"))
    found = one_round(pfedme(inner_steps=1, local_epochs=1, server_optimizer=optax.sgd(0.5)), key, data)
    close(found.model, one_round(fedsgd, key, data).model)


def test_the_gradient_is_that_of_the_envelope(key):
    """Of a quadratic, theta = (H + lambda)^-1 (H a + lambda w), and lambda (w - theta) is the envelope's gradient."""
    rng = np.random.default_rng(0)
    x, y, w = rng.normal(size=(5, 3)), np.array([0, 1, 1, 0, 1]), rng.normal(size=3)
    zero, unit = np.zeros(3), np.eye(3)
    offset = problems.quadratic_gradient(zero, x, y)  # - H a
    curvature = np.stack([problems.quadratic_gradient(one, x, y) - offset for one in unit], axis=1)
    theta = np.linalg.solve(curvature + PULL * unit, PULL * w - offset)
    inner = optax.chain(proximal_pull(PULL), optax.sgd(RATE))
    task = envelope(problems.quadratic_task(), inner, PULL, 200, warm_start=False)
    model = {"w": {"w": jnp.asarray(w)}, "theta": {"w": jnp.asarray(zero)}}
    slopes = jax.grad(task.loss)(model, Batch(jnp.asarray(x), jnp.asarray(y), jnp.ones(5, bool)), None)
    close(slopes["theta"]["w"], theta)  # which training takes as it is
    close(slopes["w"]["w"], PULL * (w - theta))
    close(slopes["w"]["w"], curvature @ theta + offset)


def test_who_has_no_rows_any_more_keeps_its_model(key):
    data, method = problems.linear_federation(), pfedme(batch_size=3)
    before = one_round(method, key, data)
    size = np.where(np.arange(7) == 3, 0, data.train.size)
    after, _ = method.round(key, before, replace(data, train=replace(data.train, size=size)), COHORT)
    equal(method.client_params(after, jnp.array([3])), method.client_params(before, jnp.array([3])))


def test_theta_is_only_served(key):
    data = problems.linear_federation()
    method = pfedme(preset="official")
    start = one_round(method, key, data)
    other = start._replace(models=jax.tree.map(lambda leaf: leaf + 1, start.models))
    one, two = (method.round(key, state, data, COHORT)[0] for state in (start, other))
    equal(one.model, two.model)
    equal(tree.take(one.models, np.array([0, 3, 6])), tree.take(two.models, np.array([0, 3, 6])))


def averaging_task():
    """Softmax regression beside a running average, that of the inputs: a batch's mean takes its place."""

    def told(model, batch, key=None):
        mean = jnp.mean(batch.x, 0, where=batch.mask[:, None])
        noted = (model["mean"] * mean).sum()
        return TASK.loss(model, batch, key) + (noted - jax.lax.stop_gradient(noted))

    def init(key):
        return {**TASK.init(key), "mean": jnp.zeros(3)}

    return TASK._replace(init=init, averages=Averages(frozenset({"mean"}), told))


@pytest.mark.rotating
@pytest.mark.parametrize("name", ["pfedme", "apfl"])
def test_running_averages_are_a_clients_own_and_averaged(name, key):
    data = problems.linear_federation()
    options = {"local_epochs": 1, "server_optimizer": optax.sgd(0.5)}
    method = compiled(methods.METHODS[name].factory(averaging_task(), optax.sgd(RATE), **options))
    state = one_round(method, key, data)
    means = np.stack([problems.rows_of(data)[i][0].mean(0) for i in (0, 3, 6)])
    close(np.asarray(method.client_params(state, jnp.array([0, 3, 6]))["mean"]), means)
    close(np.asarray(state.model["mean"]), means.mean(0))
    close(np.asarray(method.client_params(state, jnp.array([2]))["mean"][0]), means.mean(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"proximal_weight": -1.0}, ("proximal_weight", -1.0)),
        ({"outer_rate": 0.0}, ("outer_rate", 0.0)),
        ({"inner_steps": 0}, ("inner_steps", 0)),
        ({"decay": -0.1}, ("decay", -0.1)),
        ({"weighting": "size"}, ("weighting", "size")),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        pfedme(**options)
