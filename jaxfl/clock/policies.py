"""Policies of a synchronous round: how many clients are asked, until when they may report, and who is cut.

The server asks S = ceil(`over_select` M) clients and aggregates the first M that report. With a `deadline` the round
ends by then: a client that is later is cut (`late="drop"`), or sends the whole steps that fit (`late="partial"`, the
partial work of FedProx). If fewer than `min_reports` clients have reported, the round waits for as many. Clients that
are cut are as clients that fail (see `jaxfl.sampling.dropouts`): nothing of them is aggregated, and no state of theirs
changes. They have worked until the round's end, and what they have received counts.
"""

import math
import re
from typing import Literal, NamedTuple

import jax.numpy as jnp

from jaxfl.clock.work import RoundWork
from jaxfl.data.clients import Speeds
from jaxfl.methods.base import Method
from jaxfl.sampling import Sampler
from jaxfl.schema import quoted
from jaxfl.typing import Array

Late = Literal["drop", "partial"]
RoundDeadline = float | str | None


class Policy(NamedTuple):
    """A policy, see above.

    Attributes:
        over_select: clients that are asked, as a multiple of the cohort.
        deadline: seconds from the start of the round; or `"p80"`, when 80 percent of the asked clients have reported;
            None waits for all.
        late: `"drop"` or `"partial"`.
        min_reports: R, the fewest clients of a round.
        cohort: M, set by a run.
    """

    over_select: float = 1.0
    deadline: RoundDeadline = None
    late: Late = "drop"
    min_reports: int = 1
    cohort: int | None = None

    @property
    def waits_for_all(self) -> bool:
        """Whether no client is ever cut."""
        return self.over_select == 1 and self.deadline is None

    @property
    def percentile(self) -> float | None:
        """The percentile of the deadline; None of another one.

        >>> Policy(deadline="p80").percentile, Policy(deadline=60.0).percentile
        (80.0, None)
        """
        return float(self.deadline[1:]) if isinstance(self.deadline, str) else None

    def asked(self, cohort: int) -> int:
        """Returns S, of a cohort of M.

        >>> Policy(over_select=1.3).asked(10), Policy().asked(10)
        (13, 10)
        """
        return math.ceil(round(self.over_select * cohort, 6))


def check_policy(policy: Policy) -> None:
    """Raises ValueError if a number of a policy is out of range, or without effect."""
    over, deadline, late, least, _ = policy
    if not 1 <= over < math.inf:
        raise ValueError(f"over_select must be at least 1 and finite, got {over}; 1.3 asks three more than ten.")
    if isinstance(deadline, str):
        if not re.fullmatch(r"p\d+(\.\d+)?", deadline) or not 0 < float(deadline[1:]) <= 100:
            raise ValueError(
                f"deadline must be seconds or a percentile from p1 to p100, got {quoted(deadline)}; p80 waits for 80 "
                "percent of the clients."
            )
    elif deadline is not None and not 0 < deadline < math.inf:
        raise ValueError(f"deadline must be above 0 seconds and finite, got {deadline}; p80 fits any speed.")
    if least < 1:
        raise ValueError(f"min_reports must be at least 1, got {least}; 1 is the default.")
    for name, given in (("late", late != "drop"), ("min_reports", least != 1)):
        if given and deadline is None:
            raise ValueError(f"{name} needs a deadline, got {getattr(policy, name)!r} without it; give deadline=p80.")


def asked_clients(policy: Policy, method: Method, sampler: Sampler, places: int, population: int) -> int:
    """Returns the clients that are asked in a round.

    Args:
        policy: with the cohort.
        method: of the run.
        sampler: of the run.
        places: of a cohort without the policy.
        population: the clients that take part.

    Raises:
        ValueError: there are not as many, or cohorts must not be cut.
    """
    name, value = ("over_select", policy.over_select) if policy.over_select > 1 else ("deadline", policy.deadline)
    if method.privacy is not None or getattr(sampler, "poisson", None) is not None:
        raise ValueError(
            f"{name} must be left out with noise or Poisson sampling, got {value}: which clients are cut depends on "
            "the others, and no accountant covers it."
        )
    asked = policy.asked(places)
    if asked > population:
        raise ValueError(
            f"over_select must ask at most the {population} clients that take part, got {value}, which asks {asked}; "
            "lower it, or the cohort."
        )
    return asked


class Reports(NamedTuple):
    """The reports of a round.

    Attributes:
        reported: whether a client is aggregated `[C]` bool.
        seconds: that a client works in this round `[C]`; 0 of clients that were not asked.
        end: the end of the round in seconds `[]`.
        waited: whether the round waited beyond the deadline for `min_reports` clients `[]` bool.
        most_steps: of each client's local training `[C]` int32, with `late="partial"`; else None.
    """

    reported: Array
    seconds: Array
    end: Array
    waited: Array
    most_steps: Array | None = None


def client_seconds(operations: Array, up: Array, down: Array, speeds: Speeds, ids: Array) -> Array:
    """Returns the seconds of clients: `down * 8 / d + operations / v + up * 8 / u`.

    Args:
        operations: of each client `[C]`.
        up, down: bytes that a client sends and receives `[]`.
        speeds: of all clients.
        ids: of the clients `[C]`.

    >>> client_seconds(jnp.array([2e11]), 1e6, 5e6, Speeds(*jnp.array([[1e11], [1e7], [5e7]])), jnp.array([0])).tolist()
    [3.5999999046325684]
    """
    v, u, d = (jnp.asarray(values)[ids] for values in (speeds.flops, speeds.up, speeds.down))
    return down * 8 / d + operations / v + up * 8 / u


def reports_of(policy: Policy, seconds: Array, asked: Array, ids: Array, short: Array | None = None) -> Reports:
    """Returns who is aggregated, and when the round ends.

    Args:
        policy: with the cohort.
        seconds: of each client `[C]`.
        asked: bool `[C]`, False for clients that do not take part.
        ids: `[C]`, which decide between equal times: the lower one reports first.
        short: seconds of the work that each client has done by the deadline `[C]`, of one without a whole step its
            seconds; None drops clients that are late.
    """
    number = asked.sum(dtype=jnp.int32)
    target = jnp.minimum(number, len(ids) if policy.cohort is None else policy.cohort)
    late = deadline_of(policy, seconds, asked)
    if short is not None:
        seconds = jnp.where(seconds > late, short, seconds)
    full = seconds
    seconds = jnp.where(asked, seconds, jnp.inf)
    order = jnp.lexsort((ids, seconds))
    rank = jnp.zeros(len(ids), jnp.int32).at[order].set(jnp.arange(len(ids), dtype=jnp.int32))
    least = jnp.minimum(policy.min_reports, number)
    on_time = asked & (seconds <= late)
    waited = on_time.sum() < least
    on_time = jnp.where(waited, asked & (rank < least), on_time)
    reported = on_time & (rank < target)
    last = jnp.where(reported, full, 0).max(initial=0)
    waits = (reported.sum() < target) & ~waited  # for clients that do not report in time
    return Reports(reported, jnp.where(asked, full, 0), jnp.where(waits, late, last), waited)


def deadline_of(policy: Policy, seconds: Array, asked: Array) -> Array:
    """Returns the deadline of a round in seconds `[]`; infinite without one."""
    if policy.percentile is None:
        return jnp.float32(jnp.inf if policy.deadline is None else policy.deadline)
    number = asked.sum(dtype=jnp.int32)
    place = jnp.ceil(policy.percentile / 100 * number.astype(jnp.float32) - 1e-4).astype(jnp.int32) - 1
    return jnp.sort(jnp.where(asked, seconds, jnp.inf))[jnp.maximum(place, 0)]


def partial_steps(work: RoundWork, sizes: Array, fixed: Array, speeds: Speeds, ids: Array, late: Array) -> Array:
    """Returns the whole steps of local training that each client can make before a deadline `[C]` int32.

    Args:
        work: of the round.
        sizes: training rows of the clients `[C]`.
        fixed: seconds of each client without local training `[C]`.
        speeds: of all clients.
        ids: of the clients `[C]`.
        late: the deadline in seconds `[]`.
    """
    flop, width = jnp.maximum(work.flop[ids], 1), jnp.maximum(work.width[ids], 1)
    size = jnp.maximum(sizes, 1).astype(jnp.float32)
    width = jnp.minimum(width, size)
    rows = jnp.floor(jnp.maximum(late - fixed, 0) * jnp.asarray(speeds.flops)[ids] / flop)
    epochs = jnp.floor(rows / size)
    steps = epochs * jnp.ceil(size / width) + jnp.floor((rows - epochs * size) / width)
    return jnp.minimum(steps, 2.0**30).astype(jnp.int32)


def partial_rows(work: RoundWork, sizes: Array, ids: Array, steps: Array) -> Array:
    """Returns the rows of a number of steps `[C]`, at most those of the whole training."""
    width = jnp.maximum(jnp.minimum(work.width[ids], sizes.astype(jnp.float32)), 1)
    of_epoch = jnp.maximum(jnp.ceil(sizes / width), 1)
    epochs = jnp.floor(steps / of_epoch)
    rows = epochs * sizes + jnp.minimum((steps - epochs * of_epoch) * width, sizes)
    return jnp.minimum(rows, work.training[ids] / jnp.maximum(work.flop[ids], 1))
