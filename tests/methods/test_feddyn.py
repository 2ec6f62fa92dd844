"""FedDyn against its NumPy loop, where it goes, and the method that its first round is."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods, tree
from jaxfl.cohort import Cohort
from jaxfl.tasks import Averages
from tests import problems, reference
from tests.messages import mentions
from tests.reference import average, batches, close, combine, gradient, key_for

pytestmark = pytest.mark.rotating("function", weeks=6)  # but for the rounds of the paper

RATE, ROUNDS, EVERYONE = 0.2, 4, (0, 1, 2, 3, 4, 5, 6)
TASK, QUADRATIC = problems.softmax_task(), problems.quadratic_task()
DATA = problems.linear_federation()
SIZES = DATA.train.size
WITH_ROWS = np.flatnonzero(SIZES)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


class FedDyn:
    """One client after the other; means over all clients are made anew."""

    def __init__(self, setting, model, alpha, by_rows):
        self.setting, self.model, self.alpha, self.by_rows = setting, model, alpha, by_rows
        self.history = [combine([(0, model)])] * len(setting.clients)
        self.last = [model] * len(setting.clients)

    def over_all(self, rows):
        return average([rows[i] for i in WITH_ROWS], [1] * len(WITH_ROWS))

    def solve(self, number, client):
        x, y = self.setting.clients[client]
        alpha = self.alpha / (len(y) / SIZES[WITH_ROWS].mean()) if self.by_rows else self.alpha
        key, model = key_for(self.setting.root, reference.Stream.BATCHES, number, client), self.model
        for rows in batches(key, len(y), self.setting.epochs, self.setting.batch_size):
            away = combine([(1, model), (-1, self.model), (1, self.history[client])])
            slope = combine([(1, gradient(model, x[rows], y[rows])[1]), (alpha, away)])
            model = combine([(1, model), (-self.setting.rate, slope)])
        return model

    def round(self, number, cohort):
        cohort = reference.with_rows(self.setting, cohort)
        for client, model in [(client, self.solve(number, client)) for client in cohort]:
            self.history[client] = combine([(1, self.history[client]), (1, model), (-1, self.model)])
            self.last[client] = model
        self.average = average([self.last[i] for i in cohort], [1] * len(cohort))
        self.model = combine([(1, self.average), (1, self.over_all(self.history))])


@pytest.mark.rotating
@pytest.mark.parametrize("preset", ["paper", "official"])
def test_every_round_is_the_papers(preset, key):
    options = {"preset": preset, "proximal_weight": 0.5, "local_epochs": 2, "batch_size": 3}
    method = methods.feddyn(TASK, optax.sgd(RATE), **options)
    state = method.init(key, DATA)
    setting = reference.Setting(key, problems.rows_of(DATA), RATE, 2, 3)
    wanted = FedDyn(setting, jax.tree.map(np.asarray, state.model), 0.5, by_rows=preset == "official")
    step = jax.jit(method.round)
    for number in range(ROUNDS):
        cohort = problems.sample(key, state.round, DATA, 4)
        state, info = step(key, state, DATA, cohort)
        wanted.round(number, cohort.ids.tolist())
        close(state.model, wanted.model)
        close(state.history, wanted.over_all(wanted.history))
        close(state.served, wanted.model if preset == "paper" else wanted.over_all(wanted.last))
    close(info.extra["history"], np.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(state.history))))


def train(factory, *, data=DATA, task=TASK, rounds=1, cohort=None, **options):
    """Returns the state after some rounds, of everybody if of no cohorts."""
    method, key = factory(task, optax.sgd(RATE), **options), jax.random.key(0)
    state, step = method.init(key, data), jax.jit(method.round)
    for _ in range(rounds):
        chosen = Cohort.of(EVERYONE) if cohort is None else problems.sample(key, state.round, data, cohort)
        state, _ = step(key, state, data, chosen)
    return state


def test_the_mean_of_its_first_round_is_fedprox():
    options = {"proximal_weight": 0.7, "local_epochs": 3, "batch_size": 3}
    found = train(methods.feddyn, served="average", **options)
    close(found.served, train(methods.fedprox, weighting="uniform", **options).model)
    assert not np.allclose(found.model["kernel"], found.served["kernel"], rtol=1e-3)


def test_a_full_step_of_everybody_goes_twice_as_far():
    """theta - 2 eta g + (1 - 2 eta alpha) h, with g the mean gradient at theta."""
    alpha = 0.5
    start, once, twice = (
        train(methods.feddyn, rounds=rounds, proximal_weight=alpha, local_epochs=1) for rounds in (0, 1, 2)
    )
    for before, after in ((start, once), (once, twice)):
        here = jax.tree.map(np.asarray, before.model)
        slopes = [gradient(here, *problems.rows_of(DATA)[i])[1] for i in WITH_ROWS]
        step = average(slopes, [1] * len(slopes))
        close(after.model, combine([(1, before.model), (-2 * RATE, step), (1 - 2 * RATE * alpha, before.history)]))


def test_it_finds_the_optimum_a_few_clients_at_a_time():
    """Local solves are exact but for 0.8^100, and end where the gradient is -alpha h_i."""
    alpha, rows = 1.0, problems.rows_of(DATA)
    options = {"task": QUADRATIC, "proximal_weight": alpha, "local_epochs": 100, "cohort": 4}
    state = train(methods.feddyn, rounds=150, served="everybody", **options)
    own = [problems.SCALE[y] / len(y) for _, y in rows if len(y)]
    best = sum(a @ x for a, (x, y) in zip(own, [one for one in rows if len(one[1])], strict=True))
    best = best / sum(a.sum() for a in own)
    np.testing.assert_allclose(state.model["w"], best, atol=1e-6)
    for client in WITH_ROWS:
        solved = np.asarray(state.rows.last["w"][client])
        slope = problems.quadratic_gradient(solved, *rows[client])
        np.testing.assert_allclose(slope, -alpha * state.rows.history["w"][client], atol=1e-6)


def test_a_client_that_diverges_keeps_its_row_and_counts_for_nothing():
    """Nor does it count among all clients in that round, as if it had no rows."""
    inputs = np.array(DATA.inputs)
    inputs[DATA.train.rows[DATA.train.start[3] :][: SIZES[3]]] = np.nan
    none = np.where(np.arange(7) == 3, 0, SIZES).astype(np.int32)
    sick, gone = DATA.replace(inputs=inputs), DATA.replace(train=DATA.train.replace(size=none))
    found, wanted = (
        train(methods.feddyn, data=data, rounds=2, served="everybody", local_epochs=2) for data in (sick, gone)
    )
    close(found._replace(counted=wanted.counted), wanted)  # it does take part
    assert not any(leaf.any() for leaf in jax.tree.leaves(tree.take(found.rows.history, 3)))


def test_running_averages_are_averaged_and_not_carried_on():
    def training(model, batch, key=None):
        seen = jax.lax.stop_gradient(batch.mask.sum().astype(float))
        return TASK.loss(model["own"], batch, key) + model["seen"] * seen

    task = TASK._replace(
        init=lambda key: {"own": TASK.init(key), "seen": jnp.zeros(())},
        loss=lambda model, batch, key=None: TASK.loss(model["own"], batch, key),
        averages=Averages(frozenset({"seen"}), training),
    )
    state = train(methods.feddyn, task=task, rounds=2, local_epochs=1)
    close(state.model["seen"], SIZES[WITH_ROWS].mean())
    assert not state.history["seen"].any() and not state.rows.history["seen"].any()


def test_refusals():
    with pytest.raises(ValueError, match=mentions("proximal_weight", -1.0)):
        methods.feddyn(TASK, optax.sgd(RATE), proximal_weight=-1.0)
