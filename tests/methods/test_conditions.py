"""Every method under stragglers and attackers: what a condition means does not depend on who averages."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxfl.cohort import Cohort
from jaxfl.data import conditions
from jaxfl.methods import METHODS
from jaxfl.testing.compare import assert_close, assert_finite, leaves
from jaxfl.testing.small import COHORT, federation, linear_task

pytestmark = [pytest.mark.rotating("function", weeks=6), pytest.mark.quick]

EPOCHS, RATE = 2, 0.3  # of those who are not late
TASK = linear_task()


@functools.lru_cache(maxsize=2)  # a method with as many epochs, and with one
def two_rounds(name, epochs=EPOCHS):
    """Returns `(data, later=1) -> the models served after two rounds`, one program for each kind of attack.

    In full batches, which are less to compile: those of stragglers are in tests/client/test_training.py. All steps of a
    training but its first are `later` times as long.
    """
    row = METHODS[name]
    options = {**row.small, "batch_size": None, **dict.fromkeys(epochs_of(row), epochs)}
    options = {option: value for option, value in options.items() if option in row.options}

    @jax.jit
    def run(key, cohort, data, later):
        method = row.factory(TASK, optax.sgd(lambda step: RATE * jnp.where(step == 0, 1, later)), **options)
        start = method.init(key, data)
        state, _ = jax.lax.scan(lambda state, _: method.round(key, state, data, cohort), start, length=2)
        return method.client_params(state, jnp.arange(data.num_clients, dtype=jnp.int32))

    return lambda data, later=1.0: run(jax.random.key(0), Cohort.of(COHORT), data, np.float32(later))


def epochs_of(row):
    """Returns the options that are numbers of epochs."""
    return [name for name, default in row.options.items() if name.endswith("epochs") and default is not None]


def under(kind, *, late=0.0):
    """Returns the battery's federation under an attack, with a share of stragglers; 0 is nobody, as an array.

    None in place of arrays would be another program: attackers of a kind and stragglers are of one. So are those who
    flip labels and those who flip signs: what flips labels is said in `train.flipped` alone, and nobody does the other.
    """
    data = replace(conditions.attack(federation(), kind, 0.3), stragglers=np.float32(late))
    nobody = np.zeros(data.num_clients, bool)
    if kind == "label-flip":
        return replace(data, attack=replace(data.attack, kind="sign-flip", attacker=nobody))
    return replace(data, train=replace(data.train, flipped=nobody))


def attacked_by_nobody(data):
    """Returns the federation with nobody attacking, in the same program."""
    nobody = np.zeros_like(data.attack.attacker)
    return replace(data, attack=replace(data.attack, attacker=nobody), train=replace(data.train, flipped=nobody))


def flipped_labels_are_other_labels(name):
    data, run = under("label-flip"), two_rounds(name)
    split, labels = data.train, np.array(data.labels)
    for client in np.flatnonzero(data.train.flipped):
        rows = np.asarray(split.rows)[split.start[client] :][: split.size[client]]
        labels[rows] = data.num_classes - 1 - labels[rows]
    relabelled = replace(attacked_by_nobody(data), labels=labels)
    assert_close(run(data), run(relabelled), "label-flip must be training on the labels L - 1 - y")


def attackers_are_noticed_and_survived(name):
    """What they send gets somewhere, and nobody is served anything that is not finite."""
    run = two_rounds(name)
    for kind in ("sign-flip", "gaussian") if name in SENT else ("sign-flip",):
        attacked, honest = run(under(kind)), leaves(run(attacked_by_nobody(under(kind))))
        assert_finite(attacked, f"what is served under {kind}")
        assert max(abs(honest[path] - leaf).max() for path, leaf in leaves(attacked).items()) > 1e-3, kind


def two_epochs_of_the_late_are_one(name):
    if not epochs_of(METHODS[name]):
        pytest.skip("no local epochs")
    late = two_rounds(name)(attacked_by_nobody(under("sign-flip", late=1.0)))
    if name in OUTER:
        one = two_rounds(name, epochs=1)(federation())
    else:  # the same program, since an epoch is a step here
        one = two_rounds(name)(attacked_by_nobody(under("sign-flip")), later=0.0)
    assert_close(late, one, "with E = 2, the late make one epoch")


CHECKS = flipped_labels_are_other_labels, attackers_are_noticed_and_survived, two_epochs_of_the_late_are_one
SENT = {"fedsgd", "fedavg", "fedrep"}  # a gradient, a model, a model of two trainings: there the kinds are told apart
OUTER = {"pfedme"}  # its outer steps have a rate of their own, beside the optimiser's
ALIKE = {"fedprox", "feddist", "feddws", "hypcluster", "fedbn"}  # a round of fedavg, ifca or fedper, with other options
# method by method, so that the checks of one share what they compiled
PAIRS = [(name, check) for name in METHODS if name not in ALIKE for check in CHECKS]


@pytest.mark.rotating("name")
@pytest.mark.parametrize(("name", "check"), PAIRS, ids=[f"{name}-{check.__name__}" for name, check in PAIRS])
def test_condition(name, check):
    check(name)
