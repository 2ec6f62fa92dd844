"""The mean over all clients stays that of their rows, whoever arrives, and whoever diverges for a round."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl import methods, tree
from jaxfl.cohort import Cohort
from tests import problems
from tests.problems import compiled
from tests.reference import close

TASK, DATA, RATE = problems.softmax_task(), problems.linear_federation(), 0.3
SIZES = np.asarray(DATA.train.size)
LATE = np.arange(7) >= 5
METHODS = {
    "scaffold, uniform": (methods.scaffold, {}, np.sign(SIZES)),
    "scaffold, rows": (methods.scaffold, {"weighting": "rows"}, SIZES),
    "feddyn": (methods.feddyn, {"preset": "official"}, np.sign(SIZES)),
}


def made(name):
    factory, options, weights = METHODS[name]
    return compiled(factory(TASK, optax.sgd(RATE), local_epochs=2, **options)), weights


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def means(state):
    """Returns each mean that the server has, with the rows that it is of."""
    if hasattr(state, "control"):
        return [(state.control, state.controls)]
    return [(state.history, state.rows.history), (state.served, state.rows.last)]


def all_are_of(state, weights):
    for mean, rows in means(state):
        close(mean, jax.tree.map(lambda leaf: np.average(leaf, 0, weights), jax.device_get(rows)))


def there(out):
    return DATA.replace(held_out=np.asarray(out))


@pytest.mark.rotating
@pytest.mark.parametrize("name", METHODS)
def test_whoever_arrives_and_whoever_diverges_for_a_round(name, key):
    method, weights = made(name)
    state = method.init(key, DATA)
    sick = np.array(DATA.inputs)
    sick[DATA.train.rows[DATA.train.start[3] :][: SIZES[3]]] = np.nan
    for number in range(9):
        late, ill = number < 3, number == 5
        data = there(LATE & late)
        data = data.replace(inputs=sick if ill else DATA.inputs)
        cohort = [0, 2, 3] if number % 2 else [2, 4] if late else [3, 4, 6]
        state, info = method.round(key, state, data, Cohort.of(cohort))
        assert int(info.diverged) == ill
        if not ill:  # then the server divides by the weight of the others, for a client that ever diverges has nothing
            all_are_of(state, np.where(LATE & late, 0, weights))


@pytest.mark.rotating
@pytest.mark.parametrize("name", METHODS)
def test_when_clients_leave_the_mean_is_as_it_was(name, key):
    """And moves by those who are left: all rows of the others are taken to be the mean."""
    method, weights = made(name)
    state = method.init(key, DATA)
    for _ in range(3):
        state, _ = method.round(key, state, DATA, Cohort.of(range(7)))
    before, data = state, there(LATE)
    state, _ = method.round(key, state, data, Cohort.of([2, 4]))
    left = np.where(LATE, 0, weights)
    for (mean, rows), (then, old) in zip(means(state), means(before), strict=True):
        moved = jax.tree.map(lambda now, was: np.average(now - was, 0, left), jax.device_get(rows), jax.device_get(old))
        close(jax.tree.map(jnp.subtract, mean, then), moved)
    state, _ = method.round(key, state, data, Cohort.of([0, 3]))
    assert float(tree.norm(means(state)[0][0])) < 2 * float(tree.norm(means(before)[0][0]))


@pytest.mark.rotating
@pytest.mark.parametrize("name", METHODS)
def test_some_leave_as_others_arrive(name, key):
    """In as large a number, too: who arrives has what all begin with, and not what those who leave had."""
    method, weights = made(name)
    early = there(LATE)
    state = method.init(key, early)
    begin = [mean for mean, _ in means(state)]
    for _ in range(3):
        state, _ = method.round(key, state, early, Cohort.of([0, 2, 3, 4]))
    before, gone = state, np.isin(np.arange(7), (0, 3))
    state, _ = method.round(key, state, there(gone), Cohort.of([2, 4]))
    now, stay = np.where(gone, 0, weights).astype(float), float(np.where(gone | LATE, 0, weights).sum())
    for first, (mean, rows), (then, old) in zip(begin, means(state), means(before), strict=True):
        moved = jax.tree.map(
            lambda new, was: np.tensordot(now, new - was, 1), jax.device_get(rows), jax.device_get(old)
        )
        found = jax.tree.map(lambda new, zero: now.sum() * (new - zero), mean, first)
        close(found, jax.tree.map(lambda was, zero, by: stay * (was - zero) + by, then, first, moved))
