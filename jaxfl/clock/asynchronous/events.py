"""Events of an asynchronous run: clients start, work for their seconds, and arrive.

Up to M clients are in flight. A round lasts until Z of them have arrived, the earliest first, and of equal times the
one with the lower id. A client that has arrived makes room for another one, which starts at that time; of clients that
arrive at the same time all arrive before others start, and those that arrive last in a round make room for clients
which start with the next one, from the model after the server's step. Clients are drawn by the run's sampler among
those that are not in flight and not among the arrivals of this round, in a random order; where it finds none, there is
room until the next round.

Times are seconds from the start of a round, so that small differences are not lost in long runs.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxfl.cohort import Plan
from jaxfl.data.clients import FederatedData
from jaxfl.random import Stream, key_for
from jaxfl.sampling import Sampler, draw_cohort
from jaxfl.typing import Array, Key


class NewVersion(NamedTuple):
    """The version that clients start from in a round: the round `[]`, and its place `[]`."""

    version: Array
    place: Array


class Flight(NamedTuple):
    """The clients in flight.

    Attributes:
        client: `[M]` int32; N where there is room.
        left: seconds until each arrives `[M]` float32; infinite where there is room.
        seconds: that each works in all `[M]` float32.
        version: the round in which each has started `[M]` int32.
        place: of what it was sent then `[M]` int32, see `jaxfl.clock.asynchronous.versions`.
    """

    client: Array
    left: Array
    seconds: Array
    version: Array
    place: Array

    @classmethod
    def empty(cls, in_flight: int, clients: int) -> "Flight":
        """Returns a flight of nobody, with room for a number of clients of a federation."""
        nothing = jnp.zeros(in_flight, jnp.int32)
        return cls(
            jnp.full(in_flight, clients, jnp.int32),
            jnp.full(in_flight, jnp.inf, jnp.float32),
            jnp.zeros(in_flight, jnp.float32),
            nothing,
            nothing,
        )

    def start(
        self, room: Array, candidates: Array, used: Array, at: Array, seconds: Array, new: "NewVersion"
    ) -> "Flight":
        """Returns the flight after clients have started where there is room.

        Args:
            room: where they start `[M]` bool, if there are candidates left.
            candidates: `[C]`, N where there is none, which come last.
            used: how many of them have started before `[]`.
            at: the time `[]`.
            seconds: of the work of every client `[N]`.
            new: the version, and its place.
        """
        rank = used + jnp.cumsum(room, dtype=jnp.int32) - 1
        drawn = candidates.at[rank].get(mode="fill", fill_value=len(seconds))
        starts = room & (drawn < len(seconds))
        took = seconds.at[drawn].get(mode="fill", fill_value=0.0)
        return Flight(
            jnp.where(starts, drawn, self.client),
            jnp.where(starts, at + took, self.left),
            jnp.where(starts, took, self.seconds),
            jnp.where(starts, new.version, self.version),
            jnp.where(starts, new.place, self.place),
        )


class Arrivals(NamedTuple):
    """The arrivals of a round, in their order `[Z]`, see `Flight`; without a client where nobody is in flight.

    Attributes:
        client: N where there is none.
        seconds: that each has worked.
        version: in which each has started.
        place: of what it was sent.
    """

    client: Array
    seconds: Array
    version: Array
    place: Array


def candidates(
    sampler: Sampler, key: Key, version: Array, data: FederatedData, busy: Array, size: int, order: Key
) -> Array:
    """Returns clients that may start `[size]`, in a random order; N, behind them, where there are not as many.

    Args:
        sampler: draws them.
        key: of the run, or of another draw.
        version: the round `[]`.
        data: the federation in this round.
        busy: clients that must not start `[N]` bool.
        size: how many are drawn.
        order: the key of their order.
    """
    held_out = busy if data.held_out is None else busy | jnp.asarray(data.held_out)
    cohort = draw_cohort(sampler, key, version, dataclasses.replace(data, held_out=held_out), size, Plan())
    there = cohort.mask & ~held_out[cohort.ids]
    lots = jnp.where(there, jax.random.uniform(order, (size,)), 2.0)
    return jnp.where(there, cohort.ids, data.num_clients)[jnp.argsort(lots)].astype(jnp.int32)


def starters(
    sampler: Sampler, key: Key, version: Array, data: FederatedData, flight: Flight, arrivals: int
) -> tuple[Array, Array]:
    """Returns who starts at the beginning of a round `[M]`, and who may start in its course `[Z - 1]`.

    Where all M have room, those who start are the cohort that the sampler draws in a synchronous round.
    """
    count = data.num_clients
    busy = jnp.zeros(count, bool).at[flight.client].set(True, mode="drop")
    other = key_for(key, Stream.ARRIVALS, version)
    orders = [key_for(other, Stream.ARRIVALS, number) for number in (0, 1)]
    first = candidates(sampler, key, version, data, busy, len(flight.client), orders[0])
    room = jnp.isinf(flight.left).sum(dtype=jnp.int32)
    first = jnp.where(jnp.arange(len(first), dtype=jnp.int32) < room, first, count)
    if arrivals == 1:
        return first, jnp.full(1, count, jnp.int32)
    busy = busy.at[first].set(True, mode="drop")
    return first, candidates(sampler, other, version, data, busy, arrivals - 1, orders[1])


def fly(
    flight: Flight, first: Array, later: Array, seconds: Array, new: NewVersion, arrivals: int
) -> tuple[Flight, Arrivals, Array]:
    """Returns the flight after a round, its arrivals, and its end in seconds `[]`.

    Args:
        flight: before.
        first: who starts at the beginning `[M]`, see `starters`.
        later: who may start in its course `[Z - 1]`.
        seconds: of the work of every client that may start `[N]`.
        new: what they start from.
        arrivals: Z.
    """
    count, zero = len(seconds), jnp.float32(0)
    flight = flight.start(jnp.isinf(flight.left), first, jnp.int32(0), zero, seconds, new)

    def arrive(carry: tuple, _: None) -> tuple[tuple, Arrivals]:
        flight, at, left_since, used = carry
        room = left_since & (flight.left.min() > at)  # all who arrive at this time are there
        after = flight.start(room, later, used, at, seconds, new)
        used, left_since = used + room.sum(dtype=jnp.int32), left_since & ~room
        soonest = after.left.min()
        there = jnp.isfinite(soonest)
        slot = jnp.argmin(jnp.where(after.left == soonest, after.client, count + 1))
        one = Arrivals(*(jnp.where(there, leaf[slot], fill) for leaf, fill in _arriving(after, count)))
        gone = there & (jnp.arange(len(after.client)) == slot)
        after = after._replace(client=jnp.where(gone, count, after.client), left=jnp.where(gone, jnp.inf, after.left))
        return (after, jnp.where(there, soonest, at), left_since | gone, used), one

    nobody = jnp.zeros(len(flight.client), bool)
    (flight, end, *_), arrived = jax.lax.scan(arrive, (flight, zero, nobody, jnp.int32(0)), None, length=arrivals)
    return flight._replace(left=flight.left - end), arrived, end


def _arriving(flight: Flight, count: int) -> list[tuple[Array, int]]:
    """Returns the arrays of `Arrivals` by slot, and what stands for nobody."""
    return [(flight.client, count), (flight.seconds, 0), (flight.version, 0), (flight.place, 0)]
