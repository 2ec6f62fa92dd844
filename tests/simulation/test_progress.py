"""What is added up over rounds does not depend on how many of them a call makes."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from jaxfl.cohort import Cohort
from jaxfl.data.synthetic import clustered_linear
from jaxfl.methods import base
from jaxfl.simulation.program import RoundLog
from jaxfl.simulation.progress import RoundTotals
from jaxfl.simulation.schedule import Clock, Schedule
from tests.messages import mentions

DATA = clustered_linear(8, rows=8, features=4)


def rounds(losses, diverged=0):
    """The log of rounds in which three clients have these losses, and so many updates are not finite."""
    info = base.info(
        Cohort.of([1, 2, 3]), jnp.zeros(3), jnp.zeros(3, jnp.int32), num_clusters=2, diverged=jnp.int32(diverged),
        up={"w": jnp.zeros(5)}, down={"w": jnp.zeros(5)},
    )  # fmt: skip
    one = [info._replace(loss=np.float32(loss)) for loss in losses]
    stacked = type(info)(*(np.stack([np.asarray(getattr(row, name)) for row in one]) for name in info._fields[:-1]), {})
    return RoundLog(np.tile(np.arange(1, 4), (len(losses), 1)), np.ones((len(losses), 3), bool), stacked)


def test_rounds_add_up_to_the_same_bits_however_they_are_called():
    losses = np.random.default_rng(0).uniform(1, 3, (40, 3))
    sums = []
    for width in (1, 3, 7, 40):
        tally = RoundTotals()
        for start in range(0, 40, width):
            part = losses[start : start + width]
            tally.add(rounds(part), len(part), DATA, 0.5 * len(part))
        sums.append(vars(tally))
    assert all(one == sums[0] for one in sums[1:])
    np.testing.assert_allclose(sums[0]["loss_sum"] / sums[0]["loss_weight"], losses.mean(), rtol=1e-6)


def test_updates_are_lost_until_a_round_has_a_finite_one():
    tally, seen = RoundTotals(), []
    for diverged, loss in ((0, 1.0), (3, np.nan), (3, np.inf), (2, 5.0), (3, np.nan)):
        tally.add(rounds(np.full((1, 3), loss), diverged), 1, DATA, 1.0)
        seen.append((tally.lost, tally.updates, tally.last_loss))
    assert str(seen) == "[(0, 3, 1.0), (3, 6, nan), (6, 9, nan), (0, 12, 5.0), (3, 15, nan)]"
    assert (tally.loss_sum, tally.loss_weight) == (6.0, 2), "rounds without a finite loss are in no mean"


def test_a_round_without_anybody_loses_nothing():
    tally = RoundTotals()
    tally.add(rounds(np.full((1, 3), np.nan), 3), 1, DATA, 1.0)
    nobody = rounds(np.zeros((2, 3)))
    tally.add(nobody._replace(mask=np.zeros((2, 3), bool)), 2, DATA, 1.0)
    assert (tally.lost, tally.updates) == (3, 3) and np.isnan(tally.last_loss)


def test_what_is_left_is_rounds_evaluations_and_checkpoints():
    clock = Clock()
    assert clock.left(Schedule(10, 3, 3), 4, 2.0) == 12, "evaluations are free as long as none is known"
    clock.evaluations = [9.0]
    assert clock.left(Schedule(10, 3, 3), 4, 2.0) == 12 + 3 * 9
    clock.evaluations = [9.0, 1.0, 1.5, 1.0]  # the first one compiled
    assert clock.left(Schedule(10, 3, 3), 4, 2.0) == 12 + 3 * 1
    assert clock.evaluate(lambda number: number + 1, 1) == 2 and len(clock.evaluations) == 5
    clock.savings = [30.0, 50.0, 40.0]
    assert clock.left(Schedule(10, 3, 4), 4, 2.0) == 12 + 3 * 1 + 2 * 40, "after rounds 8 and 10"
    assert clock.left(Schedule(10, 3, 4), 10, 2.0) == 0


@pytest.mark.parametrize("written", [True, False])
def test_only_checkpoints_that_are_written_count(written):
    clock = Clock()
    clock.save(types.SimpleNamespace(save=lambda state: written), None)
    assert len(clock.savings) == written


@pytest.mark.parametrize("saved", [{"unknown": 1}, {"seconds": "1"}, {"participants": None}, {"extra": [1]}])
def test_what_is_nothing_that_is_added_up_is_refused(saved):
    ((name, value),) = saved.items()
    with pytest.raises(ValueError, match=mentions(f"{name}={value!r}")):
        RoundTotals(**saved)
