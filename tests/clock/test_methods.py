"""The work of the clients of every method of the registry."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl import tree
from jaxfl.clock.work import round_work
from jaxfl.cohort import Cohort, Plan
from jaxfl.methods import METHODS

DATA = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20).in_programs()
COHORT = (0, 2, 3)
FORWARD = 2 * 20 * (64 * 16 + 16 * 10)  # operations of one pass over the rows of a client


@pytest.mark.slow
@pytest.mark.rotating(weeks=27)
@pytest.mark.parametrize("name", METHODS)
def test_the_clients_of_a_round_work_and_no_others_work_more(name):
    task = jaxfl.classification(jaxfl.models.MLP(hidden=(16,), num_classes=10), DATA)
    method = METHODS[name].factory(task, optax.sgd(0.1), **METHODS[name].small)
    key, cohort = jax.random.key(0), Cohort.of(COHORT, Plan(chunk=1))
    trainings = []

    def work(state, cohort):
        found = round_work(method, method.round, key, state, DATA, cohort, traffic=False)
        trainings.append(found.trainings)
        return found.operations, found.training

    state = tree.with_field(jax.jit(method.init)(key, DATA), "round", jnp.int32(1))
    operations, training = map(np.asarray, jax.jit(work)(state, cohort))
    inside = np.isin(np.arange(8), COHORT)
    assert operations[inside].min() >= FORWARD and operations[~inside].max() <= operations[inside].min()
    assert trainings[0] >= 1 if name != "fedsgd" else not training.any()
    # of as many rows as clients train for the same number of steps; FedCCFA balances their classes
    assert np.ptp(training[inside]) == 0 or name == "fedccfa"
