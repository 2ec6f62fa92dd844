"""Asynchronous methods: any method whose round is one pass over its clients, without rounds that wait."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxfl import engine, tree
from jaxfl.clock.asynchronous.events import Flight, NewVersion, fly, starters
from jaxfl.clock.asynchronous.rule import Kind, Rule
from jaxfl.clock.asynchronous.versions import Blank, Flying, Versions
from jaxfl.clock.rounds import RoundTimes, work_seconds
from jaxfl.clock.work import round_work
from jaxfl.cohort import Cohort, Plan
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Info, Method, Participation, Round
from jaxfl.methods.hyperparameters import attach, hyperparameters_of
from jaxfl.sampling import Sampler
from jaxfl.server.flight_context import activated_flight
from jaxfl.typing import Array, Key

ROWS = "rows"  # the field of the clients' own rows
NO_CLIENT = "asynchronous must be none for a method whose clients send nothing, got one; run it without."


class AsynchronousState(NamedTuple):
    """The state of a method, the clients in flight, and what they have started from."""

    inner: Any  # of the method, with None in its field of rows, if it has one
    rows: Any  # [N, ...] those rows
    flight: Flight
    versions: Versions

    @property
    def cluster(self) -> Array:
        """Returns the clusters of the method `[N]`."""
        return self.inner.cluster

    @property
    def round(self) -> Array:
        """Returns the number of rounds done `[]`."""
        return self.inner.round


class AsynchronousRounds(NamedTuple):
    """The rounds of an asynchronous method, for `Method.own_rounds`.

    Attributes:
        method: in rounds that wait.
        rule: of the aggregation.
    """

    method: Method
    rule: Rule

    def round(
        self,
        train: Round,
        policy: Any,
        key: Key,
        state: AsynchronousState,
        data: FederatedData,
        sampler: Sampler,
        plan: Plan,
    ) -> tuple[AsynchronousState, Cohort, Info, RoundTimes]:
        """Returns the state after a round, the clients that have arrived, the info and the times; traceable.

        Args:
            train: the round of the method, or that with a wire.
            policy: of synchronous rounds, which plays no part.
            key: of the run.
            state: before.
            data: the federation in this round, with the clients' devices.
            sampler: draws clients.
            plan: chunk and devices.
        """
        rule, inner, count = self.rule, inner_state(self.method, state), data.num_clients
        first, later = starters(sampler, key, state.round, data, state.flight, rule.arrivals)
        starting = jnp.concatenate([first, later])
        there = starting < count
        everybody = Cohort(jnp.where(there, starting, 0), there, Plan())
        work = round_work(self.method, train, key, inner, data, everybody)
        if work.in_turn:
            raise ValueError(
                "asynchronous must be none where clients train one after another, got one: each waits for the one "
                "before it; take update=parallel."
            )
        assert work.bytes_up is not None and work.bytes_down is not None and data.speeds is not None
        seconds = work_seconds(work, work.bytes_up, work.bytes_down, data.speeds)
        place = state.versions.free(state.flight.place, jnp.isfinite(state.flight.left))
        new = NewVersion(state.round, place)
        flight, arrived, end = fly(state.flight, first, later, seconds, new, rule.arrivals)

        arrives, ids = arrived.client < count, arrived.client
        cohort = engine.by_size(data, Cohort(jnp.where(arrives, ids, 0), arrives, plan))

        def by_client(values: Array) -> Array:
            return jnp.zeros(count, values.dtype).at[ids].set(values, mode="drop")

        late = by_client(state.round - arrived.version)
        asked, staleness = cohort.mask, jnp.where(cohort.mask, late[cohort.ids], 0)
        if rule.max_staleness is not None:
            cohort = dataclasses.replace(cohort, mask=asked & (staleness <= rule.max_staleness))
        flying = Flying(rule, key, data, state.versions, new, by_client(arrived.place))
        with activated_flight(flying):
            inner, info = train(key, inner, data, cohort)
        number = jnp.maximum(asked.sum(), 1).astype(jnp.float32)
        mean = staleness.sum().astype(jnp.float32) / number
        info = info._replace(extra={**info.extra, "staleness": mean, "staleness_max": staleness.max()})
        each = work.bytes_down / jnp.maximum(work.there.sum(), 1).astype(jnp.float32)
        cut = (asked & ~cohort.mask).sum().astype(jnp.float32)
        times = RoundTimes(asked, by_client(arrived.seconds)[cohort.ids], end, jnp.array(False), cut * each)
        return joined_state(self.method, inner, flight, flying.versions), cohort, info, times


def asynchronous_method(
    method: Method, rule: Rule, sampler: Sampler, in_flight: int, population: int
) -> tuple[Method, int]:
    """Returns the asynchronous method of a run, and the number of clients that arrive in a round.

    Args:
        method: of the run.
        rule: of the aggregation.
        sampler: of the run.
        in_flight: M, the clients that work at a time.
        population: the clients that take part.

    Raises:
        ValueError: see `asynchronous`, the sampler cannot draw single clients, or a buffer waits for more clients than
            there are.
    """
    if getattr(sampler, "poisson", None) is not None:
        raise ValueError(
            "asynchronous must be none with Poisson sampling, got one: it draws cohorts and no single clients; take "
            "sampler=uniform."
        )
    rule = rule._replace(in_flight=in_flight)
    if rule.arrivals > population:
        raise ValueError(
            f"buffer must be at most the {population} clients that take part, each of which is in it once, got "
            f"{rule.arrivals}; lower it."
        )
    return asynchronous(method, rule), rule.arrivals


def asynchronous(method: Method, rule: Rule) -> Method:
    """Returns a method whose server steps when some clients have arrived, see `jaxfl.clock.asynchronous`.

    Args:
        method: whose round is one pass over its clients.
        rule: of the aggregation, with the number of clients in flight.

    Raises:
        ValueError: the method's slots can grow; or, when the first state is made, its clients answer more than once in
            a round, its rule or its options need rounds, or the rule mixes one model and it has several.
    """
    if method.grow is not None:
        raise ValueError(
            "asynchronous must be none for this method, got one: its clusters grow, and clients in flight have started "
            "from fewer; take fedavg, fedper or ifca."
        )
    found = hyperparameters_of(method)
    made = _asynchronous(method, rule)
    return made if found is None else attach(_maker_of(found.build, rule), dict(found.values), made)


def refusal(method: Method, data: FederatedData, kind: Kind = "fedbuff") -> str:
    """Returns the reason why a method has no asynchronous rounds, as a sentence; an empty text if it has them.

    Args:
        method: in rounds that wait.
        data: a federation that it takes.
        kind: of the rule.
    """
    try:
        made = asynchronous(method, Rule(kind))
        jax.eval_shape(made.init, jax.random.key(0), data)
    except ValueError as error:
        return str(error)
    return ""


@functools.lru_cache
def _maker_of(build: Any, rule: Rule) -> Any:
    """Returns a function that makes the asynchronous method of hyperparameters; the same one for equal arguments."""
    return lambda values: _asynchronous(build(values), rule)


def _asynchronous(method: Method, rule: Rule) -> Method:
    def init(key: Key, data: FederatedData) -> AsynchronousState:
        inner, blank = method.init(key, data), Blank(rule, key, data)
        few = Cohort.of(jnp.arange(min(data.num_clients, 2)))
        with activated_flight(blank):
            jax.eval_shape(lambda inner: method.round(key, inner, data, few), inner)
        if not blank.passes:
            raise ValueError(NO_CLIENT)
        flight = Flight.empty(rule.in_flight, data.num_clients)
        return joined_state(method, inner, flight, blank.versions())

    def round(key: Key, state: AsynchronousState, data: FederatedData, cohort: Cohort) -> tuple[Any, Info]:
        raise ValueError("an asynchronous round draws its clients itself; run the method by jaxfl.run.")

    def assign(key: Key, state: AsynchronousState, data: FederatedData, cohort: Cohort) -> AsynchronousState:
        return _with_method_state(method, state, method.assign(key, inner_state(method, state), data, cohort))

    def join(
        key: Key, state: AsynchronousState, data: FederatedData, ids: Sequence[int]
    ) -> tuple[AsynchronousState, Array]:
        assert method.join is not None
        inner, clusters = method.join(key, inner_state(method, state), data, ids)
        return joined_state(method, inner, state.flight, state.versions), clusters

    def shortfall(state: AsynchronousState, data: FederatedData, participation: Participation) -> str:
        assert method.shortfall is not None
        return method.shortfall(inner_state(method, state), data, participation)

    adapt = method.adapt
    return method._replace(
        init=init,
        round=round,
        client_params=lambda state, ids: method.client_params(inner_state(method, state), ids),
        assign=assign,
        join=None if method.join is None else join,
        per_client=None if method.per_client is None else ROWS,
        shortfall=None if method.shortfall is None else shortfall,
        adapt=adapt and (lambda key, state, *given: adapt(key, inner_state(method, state), *given)),
        own_rounds=AsynchronousRounds(method, rule),
    )


def inner_state(method: Method, state: AsynchronousState) -> Any:
    """Returns the state of the method with its rows."""
    return state.inner if method.per_client is None else tree.with_field(state.inner, method.per_client, state.rows)


def joined_state(method: Method, inner: Any, flight: Flight, versions: Versions) -> AsynchronousState:
    """Returns the state of the method with the clients in flight."""
    if method.per_client is None:
        return AsynchronousState(inner, None, flight, versions)
    rows, inner = getattr(inner, method.per_client), tree.with_field(inner, method.per_client, None)
    return AsynchronousState(inner, rows, flight, versions)


def _with_method_state(method: Method, state: AsynchronousState, inner: Any) -> AsynchronousState:
    """Returns the state with another one of the method, whose rows are unchanged."""
    return state._replace(inner=inner if method.per_client is None else tree.with_field(inner, method.per_client, None))
