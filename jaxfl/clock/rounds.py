"""Rounds of a run with a clock: the time of each client, the clients that are cut, and the end of the round."""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxfl.clock.policies import Policy, client_seconds, deadline_of, partial_rows, partial_steps, reports_of
from jaxfl.clock.work import RoundWork, round_work
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData, Speeds
from jaxfl.methods.base import Info, Method, Round
from jaxfl.typing import Array, Key

UNLIMITED = np.iinfo(np.int32).max  # steps


class RoundTimes(NamedTuple):
    """The times of a round.

    Attributes:
        asked: clients that take part, those that are cut too `[C]` bool.
        seconds: that each of them works, until the end of the round at most `[C]` float32.
        end: seconds of the round `[]` float32.
        waited: whether the round waited beyond its deadline `[]` bool; None where no client is ever cut.
        bytes_down: that clients which were cut have received `[]` float32; None likewise.
        now: the time at the end of the round `[3]` int32, see `jaxfl.clock.trace`; None without a trace.
        idle: whether no client was available, so that the round waited for one `[]` bool; None likewise.
    """

    asked: Array
    seconds: Array
    end: Array
    waited: Array | None = None
    bytes_down: Array | None = None
    now: Array | None = None
    idle: Array | None = None


def timed_round(
    method: Method, round: Round, policy: Policy, key: Key, state: Any, data: FederatedData, cohort: Cohort
) -> tuple[Any, Cohort, Info, RoundTimes]:
    """Returns the state after a round, the clients that were aggregated, the info and the times; traceable.

    Args:
        method: the method.
        round: its round, or that with a wire.
        policy: with the cohort.
        key: of the run.
        state: before the round.
        data: the federation in this round, with the clients' devices.
        cohort: the clients that are asked.

    Raises:
        ValueError: the method's clients train one after another and some may be cut, or it makes more than one local
            training and is to take partial work.
    """
    speeds = data.speeds
    assert speeds is not None
    work = round_work(method, round, key, state, data, cohort, traffic=not policy.waits_for_all)
    if policy.waits_for_all:
        state, info = round(key, state, data, cohort)
        seconds, outside = _seconds(work, info.bytes_up, info.bytes_down, speeds, cohort)
        seconds = jnp.where(cohort.mask, seconds, 0)
        end = jnp.maximum(seconds.sum() if work.in_turn else seconds.max(initial=0), outside)
        return state, cohort, info, RoundTimes(cohort.mask, seconds, end)
    _check_cuts(policy, work)
    assert work.bytes_up is not None and work.bytes_down is not None
    seconds, outside = _seconds(work, work.bytes_up, work.bytes_down, speeds, cohort)
    ids, short = cohort.ids, None
    if policy.late == "partial":
        sizes, late = data.train.size[ids], deadline_of(policy, seconds, cohort.mask)
        without = seconds - work.training[ids] / jnp.asarray(speeds.flops)[ids]
        steps = partial_steps(work, sizes, without, speeds, ids, late)
        rows = partial_rows(work, sizes.astype(jnp.float32), ids, steps.astype(jnp.float32))
        done = without + rows * work.flop[ids] / jnp.asarray(speeds.flops)[ids]
        fits = steps > 0
        short = jnp.where(fits, jnp.minimum(done, late), seconds)
        most = jnp.where(fits & (seconds > late), steps, UNLIMITED)
        limits = jnp.full(data.num_clients, UNLIMITED, jnp.int32).at[ids].set(most)
        data = dataclasses.replace(data, most_steps=limits)
    reports = reports_of(policy, seconds, cohort.mask, ids, short)
    reported = dataclasses.replace(cohort, mask=reports.reported)
    state, info = round(key, state, data, reported)
    each = work.bytes_down / jnp.maximum(work.there.sum(), 1).astype(jnp.float32)
    cut = (cohort.mask & ~reports.reported).sum().astype(jnp.float32)
    end = jnp.maximum(reports.end, outside)
    worked = jnp.minimum(reports.seconds, end)
    return state, reported, info, RoundTimes(cohort.mask, worked, end, reports.waited, cut * each)


def work_seconds(work: RoundWork, up: Array, down: Array, speeds: Speeds) -> Array:
    """Returns the seconds of each client `[N]`.

    Args:
        work: of the round.
        up, down: bytes of all clients that work `[]`.
        speeds: of all clients.
    """
    number = jnp.maximum(work.there.sum(), 1).astype(jnp.float32)
    return client_seconds(work.operations, up / number, down / number, speeds, jnp.arange(len(work.there)))


def _seconds(work: RoundWork, up: Array, down: Array, speeds: Speeds, cohort: Cohort) -> tuple[Array, Array]:
    """Returns the seconds of the cohort's clients `[C]`, and of the slowest client outside of it that works `[]`."""
    seconds = work_seconds(work, up, down, speeds)
    inside = jnp.where(cohort.mask, cohort.ids, len(work.there))
    outside = work.there.at[inside].set(False, mode="drop")
    return seconds[cohort.ids], jnp.where(outside, seconds, 0).max(initial=0)


def _check_cuts(policy: Policy, work: RoundWork) -> None:
    """Raises ValueError if clients of a method cannot be cut, or cannot send partial work."""
    name, value = ("over_select", policy.over_select) if policy.deadline is None else ("deadline", policy.deadline)
    if work.in_turn:
        raise ValueError(
            f"{name} must be left out where clients train one after another, got {value}: each waits for the one "
            "before it; take update=parallel."
        )
    if policy.late == "partial" and work.trainings != 1:
        raise ValueError(
            f'late must be "drop" for a method whose clients make {work.trainings:g} local trainings in a round, got '
            '"partial": it is not known which of them is cut short.'
        )
