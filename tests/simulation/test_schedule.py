"""The schedule: every round that is due is stopped at, once, whatever the pace."""

import pytest

from jaxfl.simulation.program import CAPACITY
from jaxfl.simulation.schedule import Schedule
from tests.messages import mentions


@pytest.mark.parametrize("pace", [None, 1e-12, 0.3, 5.0])
@pytest.mark.parametrize("schedule", [Schedule.of(7), Schedule(100, 9, 4), Schedule(200, 150, 150), Schedule(1, 5, 5)])
def test_no_due_round_is_passed_over(schedule, pace):
    done, stops = 0, []
    while done < schedule.rounds:
        ahead = schedule.ahead(done, pace)
        assert 1 <= ahead <= CAPACITY
        done += ahead
        stops.append(done)
    due = {done for done in range(1, schedule.rounds + 1) if schedule.evaluates(done) or schedule.saves(done)}
    assert done == schedule.rounds and due <= set(stops)
    if pace in (None, 5.0):
        assert len(stops) == schedule.rounds, "slow rounds, and the first one, are looked at one by one"
    if pace == 1e-12:
        assert set(stops) - due <= {CAPACITY, 150 + CAPACITY, 2 * CAPACITY}, "fast ones only where something is due"


@pytest.mark.parametrize("name", ["rounds", "eval_every", "checkpoint_every"])
def test_numbers_beyond_the_counter_are_refused(name):
    with pytest.raises(ValueError, match=mentions(name, 2147483648)):
        Schedule.of(**{"rounds": 3, name: 2**31})


def test_what_is_not_said_is_ten_evaluations_each_of_them_saved():
    found = [Schedule.of(*given)[:3] for given in ((100,), (5,), (100, 7))]
    assert found == [(100, 10, 10), (5, 1, 1), (100, 7, 7)]


def test_a_checkpoint_is_written_at_a_drift_where_each_evaluation_has_one():
    each, rarer = Schedule.of(10, 4, None, None, (5,)), Schedule.of(10, 4, 3, None, (5,))
    several = Schedule.of(10, 4, None, None, (2, 5, 7))
    assert [done for done in range(1, 11) if several.saves(done)] == [1, 2, 4, 5, 6, 7, 8, 10]
    assert [done for done in range(1, 11) if each.saves(done)] == [4, 5, 8, 10]
    assert [done for done in range(1, 11) if rarer.saves(done)] == [3, 6, 9, 10]
    for schedule in (each, rarer, several):
        left = [sum(schedule.saves(later) for later in range(done + 1, 11)) for done in range(11)]
        assert [schedule.checkpoints_after(done) for done in range(11)] == left
