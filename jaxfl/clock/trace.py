"""Traces: clients' devices that change, and come and go, in the course of simulated time.

A file (parquet, or csv with a column `time`) has the columns `client`, `time` in seconds from 0, `available`, `flops`,
`up` and `down`, see `jaxfl.clock.profiles`. A row holds until the client's next row. The trace ends at its latest time,
whichever client's row that is, and begins anew.

What a client is at the beginning of a round holds for the whole round: one that is not available then is not drawn,
and one that is stays until it has sent its results. Where nobody is available, the round of nobody lasts until somebody
is. Passes over all clients, which some methods make, include those that are away.

The compiled program has the time as integers: how often the trace has ended, seconds and parts of 2^-30 seconds. They
are exact on every device and in any number of rounds of a call, which no float32 is; the length of a round is rounded
to a part, which is below its float32 precision from 8 ms on.
"""

import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl.clock.profiles import EQUAL, WATTS
from jaxfl.clock.rounds import RoundTimes
from jaxfl.cohort import Cohort, Plan
from jaxfl.data.clients import FederatedData, Speeds, Trace
from jaxfl.data.sources import columns, shards
from jaxfl.methods.base import Method
from jaxfl.sampling import Sampler, draw_cohort
from jaxfl.schema import quoted
from jaxfl.typing import Array, Key

COLUMNS = ("client", "time", "available", *EQUAL)
REMEDY = f"write a trace with the columns {', '.join(COLUMNS)}"
PARTS = 1 << 30  # of a second
LONGEST = 1 << 30  # seconds of a trace: sums with those of a round fit into int32
LONGEST_ROUND = float(1 << 29)  # seconds, 17 years
FLAGS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}


def is_trace(path: Path) -> bool:
    """Returns whether a file of devices is a trace: parquet, or csv with a column `time`."""
    if not path.is_file() or shards.is_parquet(path):
        return path.is_file()
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        return "time" in next(csv.reader(file), [])


def read_trace(path: Path, data: FederatedData) -> Trace:
    """Returns the trace of a file, at its beginning.

    Args:
        path: of the file.
        data: the federation.

    Raises:
        ValueError: a column, a client or a number is missing or out of range; the message names the file and the row.
    """
    form = columns.PLAIN if shards.is_parquet(path) else columns.CsvFormat(encoding="utf-8-sig")
    names = columns.read_names(path, form)
    for name in COLUMNS:
        if name not in names:
            raise ValueError(f"clock must have the column {name}, got {str(path)!r} without it; {REMEDY}.")
    numeric = [*EQUAL, *([WATTS] if WATTS in names else [])]
    found = columns.read(path, [*COLUMNS, *numeric[len(EQUAL) :]], form)
    client = _parse_clients(path, found["client"], data)
    values = {name: _parse_speeds(path, name, found[name]) for name in numeric}
    time, available = _parse_times(path, found["time"]), _parse_flags(path, found["available"])
    order = np.argsort(client, kind="stable")
    client, time, available = client[order], time[order], available[order]
    values = {name: column[order] for name, column in values.items()}
    _check_course(path, client, time, order, data)
    watts = _constant_watts(path, client, values.pop(WATTS), order) if WATTS in values else None
    exact = np.stack([np.floor(time), np.rint((time - np.floor(time)) * PARTS)], 1).astype(np.int64)
    exact[:, 0] += exact[:, 1] // PARTS
    exact[:, 1] %= PARTS
    ticks = exact[:, 0] * PARTS + exact[:, 1]
    period = int(ticks.max())
    if period < PARTS:
        raise ValueError(
            f"clock must be a trace of at least 1 s, got {str(path)!r}, which ends at time {time.max():g}; add a row "
            "at the time at which it ends."
        )
    holds = ticks < period  # a row at the end is the end
    client, available = client[holds], available[holds]
    _check_available(path, client, available, data)
    size = np.bincount(client, minlength=data.num_clients)
    lengths = [each for k in range(31) if (each := period << k) < PARTS << 31]
    return Trace(
        now=np.zeros(3, np.int32),
        start=(np.cumsum(size) - size).astype(np.int32),
        size=size.astype(np.int32),
        time=exact[holds].astype(np.int32),
        available=available,
        periods=np.array([divmod(each, PARTS) for each in lengths], np.int32),
        watts=watts,
        **{name: column[holds] for name, column in values.items()},
    )


def _parse_clients(path: Path, column: np.ndarray, data: FederatedData) -> np.ndarray:
    """Returns the number of the client of each row `[R]`; each client of the federation has a row."""
    names = data.client_names or tuple(map(str, range(data.num_clients)))
    numbers, place = {name: number for number, name in enumerate(names)}, f"{str(path)!r}"
    rows = [str(one).strip() for one in column]
    client = np.array([numbers.get(name, -1) for name in rows], int)
    how = f"named as in the column {'name' if data.client_names else 'client'} of clients.csv"
    if (wrong := client < 0).any():
        row = int(wrong.argmax())
        raise ValueError(
            f"clock must have rows of the {len(names)} clients alone, got client {quoted(rows[row])} in row {row + 1} "
            f"of {place}; remove its rows, or write it {how}."
        )
    missing = np.setdiff1d(np.arange(len(names)), client)
    if len(missing):
        raise ValueError(
            f"clock must have rows for each of the {len(names)} clients, got {place} without client "
            f"{quoted(names[missing[0]])} ({len(missing)} missing); add them, {how}."
        )
    return client


def _numbers_or_nan(column: np.ndarray) -> np.ndarray:
    """Returns numbers `[R]` float64; NaN for what is none."""

    def number(value: object) -> float:
        try:
            return float(str(value))
        except ValueError:
            return np.nan

    return column.astype(np.float64) if column.dtype.kind in "iuf" else np.array([number(one) for one in column])


def _entry(value: Any) -> str:
    """Returns a value of a file as messages show it."""
    return quoted(value.item() if isinstance(value, np.generic) else value)


def _parse_speeds(path: Path, name: str, column: np.ndarray) -> np.ndarray:
    """Returns a column of numbers above 0 and finite `[R]` float32."""
    with np.errstate(over="ignore", under="ignore"):
        values = _numbers_or_nan(column).astype(np.float32)
    if (wrong := ~((values > 0) & np.isfinite(values))).any():
        row = int(wrong.argmax())
        raise ValueError(
            f"{name} must be above 0 and finite, got {_entry(column[row])} in row {row + 1} of {str(path)!r}; give "
            f"{EQUAL.get(name, 5.0):g} for a usual device, and available=false while a client is away."
        )
    return values


def _parse_times(path: Path, column: np.ndarray) -> np.ndarray:
    """Returns the times `[R]` float64."""
    values = _numbers_or_nan(column)
    if (wrong := ~((values >= 0) & (values < LONGEST))).any():
        row = int(wrong.argmax())
        raise ValueError(
            f"time must be seconds from 0 to below 2^30, got {_entry(column[row])} in row {row + 1} of {str(path)!r}; "
            "subtract the time at which the trace begins."
        )
    return values


def _parse_flags(path: Path, column: np.ndarray) -> np.ndarray:
    """Returns whether a client is available by each row `[R]` bool."""
    known = [FLAGS.get(str(one).strip().lower()) for one in column]
    if None in known:
        row = known.index(None)
        raise ValueError(
            f"available must be true or false, got {_entry(column[row])} in row {row + 1} of {str(path)!r}; 1 and 0 "
            "will do as well."
        )
    return np.array(known, bool)


def _check_course(path: Path, client: np.ndarray, time: np.ndarray, order: np.ndarray, data: FederatedData) -> None:
    """Raises ValueError unless each client's times begin at 0 and ascend.

    Args:
        path: of the file.
        client, time: `[R]`, client by client.
        order: the rows of the file `[R]`.
        data: the federation.
    """

    def place(row: int) -> str:
        name = data.client_names[client[row]] if data.client_names else str(client[row])
        return f"client {quoted(name)} in row {order[row] + 1} of {str(path)!r}"

    first = np.append(True, client[1:] != client[:-1])
    if (wrong := ~first[1:] & (time[1:] <= time[:-1])).any():
        row = int(wrong.argmax())
        raise ValueError(
            f"time must ascend for each client, got {time[row + 1]:g} after {time[row]:g} for {place(row + 1)}; sort "
            "the rows by time, with one for each time."
        )
    if (wrong := first & (time != 0)).any():
        row = int(wrong.argmax())
        raise ValueError(
            f"time must be 0 in the first row of each client, got {time[row]:g} for {place(row)}; add a row at 0."
        )


def _constant_watts(path: Path, client: np.ndarray, watts: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Returns the power of each client `[N]`, of rows client by client."""
    if (wrong := (client[1:] == client[:-1]) & (watts[1:] != watts[:-1])).any():
        row = int(wrong.argmax()) + 1
        raise ValueError(
            f"watts must be the same in all rows of a client, got {watts[row]:g} after {watts[row - 1]:g} in row "
            f"{order[row] + 1} of {str(path)!r}; give their mean, or leave the column out."
        )
    return watts[np.append(True, client[1:] != client[:-1])]


def _check_available(path: Path, client: np.ndarray, available: np.ndarray, data: FederatedData) -> None:
    """Raises ValueError if nobody who takes part is ever available."""
    for phase in data.phases:
        takes_part = np.ones(len(client), bool) if phase.held_out is None else ~np.asarray(phase.held_out)[client]
        if not (available & takes_part).any():
            raise ValueError(
                f"available must be true at some time for a client that takes part, got false everywhere in "
                f"{str(path)!r}; no round would have a client."
            )


def check_trace(method: Method, sampler: Sampler) -> None:
    """Raises ValueError if a run with noise or Poisson sampling is to follow a trace."""
    if method.privacy is not None or getattr(sampler, "poisson", None) is not None:
        raise ValueError(
            "clock must be no trace with noise or Poisson sampling, got one: who is drawn depends on how long others "
            "have worked, and no accountant covers it."
        )


def begin_round(data: FederatedData, sampler: Sampler) -> tuple[FederatedData, Sampler]:
    """Returns the federation with the devices as they are now, and the sampler of available clients; traceable."""
    trace = data.trace
    assert trace is not None
    rows = current_rows(trace)
    speeds = Speeds(*(jnp.asarray(values)[rows] for values in (trace.flops, trace.up, trace.down)))
    away = ~jnp.asarray(trace.available)[rows]

    def available(root: Key, round: Array, data: FederatedData, size: int, plan: Plan = Plan()) -> Cohort:
        out = away if data.held_out is None else away | jnp.asarray(data.held_out)
        cohort = draw_cohort(sampler, root, round, dataclasses.replace(data, held_out=out), size, plan)
        return dataclasses.replace(cohort, mask=cohort.mask & ~out[cohort.ids])

    return dataclasses.replace(data, speeds=speeds), available


def end_round(data: FederatedData, times: RoundTimes) -> RoundTimes:
    """Returns the times of a round with the time at its end; a round of nobody waits until somebody is available.

    Args:
        data: the federation in this round.
        times: without waiting.
    """
    trace = data.trace
    assert trace is not None
    takes_part = jnp.ones(data.num_clients, bool) if data.held_out is None else ~jnp.asarray(data.held_out)
    available = jnp.asarray(trace.available)[current_rows(trace)] & takes_part
    idle = ~available.any() & ~times.asked.any()
    coming = jax.lax.cond(idle, lambda: next_available(trace, takes_part), lambda: jnp.asarray(trace.now))
    length = jnp.asarray(trace.periods)[0].astype(jnp.float32)
    passed = (coming - jnp.asarray(trace.now)).astype(jnp.float32)
    wait = passed[0] * (length[0] + length[1] / PARTS) + passed[1] + passed[2] / PARTS
    waits = idle & (wait > times.end)  # it may have a pass over all clients
    now = jnp.where(waits, coming, time_after(trace, times.end))
    return times._replace(end=jnp.where(waits, wait, times.end), now=now, idle=idle)


def current_rows(trace: Trace) -> Array:
    """Returns the row of each client that holds now `[N]`."""
    time, now = jnp.asarray(trace.time), jnp.asarray(trace.now)[1:]
    low = jnp.asarray(trace.start)
    high = low + jnp.asarray(trace.size)  # time[low] <= now < time[high]
    for _ in range(len(time).bit_length()):
        middle = (low + high) // 2
        later = _is_before(now, time[middle])
        low, high = jnp.where(later, low, middle), jnp.where(later, middle, high)
    return low


def time_after(trace: Trace, seconds: Array) -> Array:
    """Returns the time `[3]` some seconds `[]` after that of a trace."""
    laps, whole, parts = jnp.asarray(trace.now)
    seconds = jnp.clip(seconds, 0, LONGEST_ROUND)
    parts += jnp.round((seconds - jnp.floor(seconds)) * PARTS).astype(jnp.int32)  # at most 2^31 - 1
    whole += jnp.floor(seconds).astype(jnp.int32) + parts // PARTS
    now = jnp.stack([whole, parts % PARTS])
    periods = jnp.asarray(trace.periods)

    def leave_out(carry: tuple[Array, Array], some: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        (laps, now), (number, length) = carry, some
        left = now - length
        left = jnp.where(left[1] < 0, left + jnp.array([-1, PARTS], jnp.int32), left)
        passes = ~_is_before(now, length)
        return (laps + jnp.where(passes, number, 0), jnp.where(passes, left, now)), None

    numbers = jnp.asarray(1 << np.arange(len(periods)), jnp.int32)
    (laps, now), _ = jax.lax.scan(leave_out, (laps, now), (numbers, periods), reverse=True)
    return jnp.append(laps, now)


def next_available(trace: Trace, takes_part: Array) -> Array:
    """Returns the next time `[3]` from which a client that takes part is available, where now none is.

    Args:
        trace: with the time.
        takes_part: `[N]` bool.
    """
    time, now = jnp.asarray(trace.time), jnp.asarray(trace.now)
    client = jnp.repeat(jnp.arange(len(takes_part)), jnp.asarray(trace.size), total_repeat_length=len(time))
    comes = jnp.asarray(trace.available) & takes_part[client]
    later = comes & _is_before(now[1:], time)
    anew = ~later.any()
    comes = jnp.where(anew, comes, later)
    most = np.iinfo(np.int32).max
    whole = jnp.where(comes, time[:, 0], most).min()
    parts = jnp.where(comes & (time[:, 0] == whole), time[:, 1], most).min()
    return jnp.stack([now[0] + anew.astype(jnp.int32), whole, parts])


def _is_before(one: Array, other: Array) -> Array:
    """Returns whether times `[..., 2]` are before others."""
    return (one[..., 0] < other[..., 0]) | ((one[..., 0] == other[..., 0]) & (one[..., 1] < other[..., 1]))


def at_time(data: FederatedData, now: Array | Sequence[int] | None) -> FederatedData:
    """Returns the federation with the time of its trace `[3]`; as it is where there is none."""
    if data.trace is None or now is None:
        return data
    moment = now if isinstance(now, jax.Array) else np.array(now, np.int32)
    return dataclasses.replace(data, trace=dataclasses.replace(data.trace, now=moment))


def seconds_at(trace: Trace, now: Sequence[int]) -> float:
    """Returns the seconds from the start of a run.

    Args:
        trace: of the run.
        now: the time `[3]`.
    """
    laps, whole, parts = map(int, now)
    return (laps * _period_parts(trace) + whole * PARTS + parts) / PARTS


def period_seconds(trace: Trace) -> float:
    """Returns the length of a trace in seconds."""
    return _period_parts(trace) / PARTS


def mean_speeds(trace: Trace) -> Speeds:
    """Returns the devices of the clients in the mean over time, geometric, on the host."""
    start = np.asarray(trace.start)
    time = np.asarray(trace.time, np.float64) @ np.array([1, 1 / PARTS])
    until = np.append(time[1:], 0.0)
    until[np.append(start[1:], len(time)) - 1] = period_seconds(trace)
    share = (until - time) / period_seconds(trace)
    numbers = (trace.flops, trace.up, trace.down)
    return Speeds(*(np.exp(np.add.reduceat(share * np.log(np.asarray(one, np.float64)), start)) for one in numbers))


def _period_parts(trace: Trace) -> int:
    """Returns the length of a trace in parts of a second."""
    whole, parts = map(int, np.asarray(trace.periods)[0])
    return whole * PARTS + parts
