"""The compiled rounds of a run, and newcomers that arrive between them."""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import engine, tree
from jaxfl.client.fast import coordinates
from jaxfl.clock.asynchronous import AsynchronousState
from jaxfl.clock.policies import Policy
from jaxfl.clock.trace import at_time
from jaxfl.cohort import Plan, default_mesh
from jaxfl.data.clients import FederatedData
from jaxfl.edges import EdgeState
from jaxfl.methods.base import Grow, Method, doubled, keep_clusters, slots_of
from jaxfl.sampling import Sampler
from jaxfl.simulation.evaluation.evaluate import WINDOW_CLIENTS, Evaluator, assign_clusters
from jaxfl.simulation.host import rows
from jaxfl.simulation.host.rows import (
    HostRows,
    Index,
    ResidentRows,
    resident_shapes,
    row_places,
    send_rows,
    with_resident_rows,
)
from jaxfl.simulation.host.streaming import STREAM_LIMIT, RowStream
from jaxfl.simulation.prepared import Prepared
from jaxfl.simulation.program import CAPACITY, Advance, Lanes, cached_program, compile_rounds, initialiser, shapes_of
from jaxfl.typing import Array, Key, Params
from jaxfl.wire.memory import WiredState


def arriving_clients(data: FederatedData, round: int | None = None) -> np.ndarray:
    """Returns the clients `[M]` that are absent at first and there later; ascending.

    Args:
        data: the federation, with its drift.
        round: those that arrive before this round; None is those of all rounds.

    >>> from jaxfl.data import load
    >>> len(arriving_clients(load("rotated-digits", drift_round=5, arrive=0.25, leave=0.1)))
    10
    """
    if data.absent is None or data.drift is None:  # without a drift, no client arrives
        return np.zeros(0, int)
    if round is None:
        return np.flatnonzero(np.asarray(data.absent))
    before, after = (np.asarray(data.at(one).absent) for one in (round - 1, round))
    return np.flatnonzero(before & ~after)


def add_newcomers(
    method: Method, key: Key, state: Any, data: FederatedData, plan: Plan, round: int | None = None
) -> Any:
    """Returns the state with the arriving clients in clusters: by `Method.join`, or assigned like held-out clients.

    Methods without a rule for either leave them where they start.

    Args:
        method: the method.
        key: of the run.
        state: after the rounds before the drift.
        data: the federation, with its drift and arriving clients.
        plan: chunk and devices of the run.
        round: first round of the stage in which they arrive; None is that of the first.
    """
    round = data.drift_rounds[0] if round is None else round
    before, after, ids = data.at(round - 1), data.at(round), arriving_clients(data, round)
    if method.join is not None:
        return tree.placed(method.join(key, state, after, ids.tolist())[0], plan.place)
    if method.assign is keep_clusters:
        return state
    unseen = dataclasses.replace(after, held_out=before.held_out)  # so that rules for unseen clients are theirs
    here = ids.astype(np.int32)
    found = assign_clusters(method, plan, key, rows.with_resident_rows(state, here, plan.place), unseen, here)
    return with_clusters(state, found, ids, plan)


def with_clusters(state: Any, found: Any, ids: np.ndarray, plan: Plan) -> Any:
    """Returns the state with the clusters that some clients have in another one, also in the state inside of a wire.

    It may be that of asynchronous rounds or of edge servers. A state that holds one of a solver has them there, too.

    Args:
        state: of a method.
        found: with the clusters.
        ids: of the clients.
        plan: devices of the run.
    """
    if isinstance(state, WiredState | AsynchronousState):
        return state._replace(inner=with_clusters(state.inner, found.inner, ids, plan))
    if isinstance(state, EdgeState):
        return state._replace(cloud=with_clusters(state.cloud, found.cloud, ids, plan))
    cluster = np.array(state.cluster)
    cluster[ids] = np.asarray(found.cluster)[ids]
    state = tree.with_field(state, "cluster", tree.placed(jnp.asarray(cluster), plan.place))
    solver = getattr(state, "solver", None)
    if not hasattr(solver, "cluster"):
        return state
    return tree.with_field(state, "solver", with_clusters(solver, found.solver, ids, plan))


class Rounds:
    """The compiled rounds of a run, which start, advance, and double their slots.

    Args:
        prepared: the method and its plan.
        key: of the run.
        data: the federation, on the device; of a stream, its blank window.
        sampler: draws the cohorts.
        stream: has every round's rows and cohort, where they are not on the device.
        policy: of a run with a clock; None without one.

    Attributes:
        compile_seconds: what getting ready has taken so far: compilations, and the first state.
        factored: whether clients train in the shorter form of `jaxfl.client.fast.coordinates`, or why not.
        round_seconds: of a round in the last call; None before the first.
    """

    def __init__(
        self,
        prepared: Prepared,
        key: Key,
        data: FederatedData,
        sampler: Sampler,
        stream: RowStream | None = None,
        policy: Policy | None = None,
    ):
        self._policy = policy
        self.compile_seconds, self.factored, self._stream = 0.0, "", stream
        self.round_seconds: float | None = None
        self._prepared, self._method, self._plan = prepared, prepared.method, prepared.plan
        self._key, self._data, self._sampler = key, data, sampler
        self._lanes: Lanes | None = None

    def start(self, saved: Sequence[Any] = (None,), evaluator: Evaluator | None = None) -> Any:
        """Compiles the rounds, and returns the state that they start from.

        Args:
            saved: of each seed, a checkpoint's state; its slots may have grown. None takes the method's first.
            evaluator: of resident rows; its programs are compiled beside the rounds. None compiles them later.

        Raises:
            MemoryError: the rounds need more memory than the device has left.
        """
        began = time.perf_counter()
        shapes = self._shapes(saved)
        self._compile(shapes, None if evaluator is None else functools.partial(self._compile_beside, evaluator, shapes))
        state = jax.block_until_ready(self._first(saved))
        self.compile_seconds += time.perf_counter() - began
        return state

    def advance(self, state: Any, count: int) -> tuple[Any, Advance]:
        """Advances the state by up to `count` rounds: fewer if slots run out, one of a stream. The given state is
        donated.
        """
        began = time.perf_counter()
        if self._stream is None:
            arguments = self._data, jnp.int32(count)
        else:
            data, cohorts = self._stream.at(int(state.round))
            arguments = data, jnp.int32(min(count, 1)), cohorts
        state, log, done, overflow = self._advance(self._key, state, *arguments)
        made = Advance(log, int(done), int(overflow), time.perf_counter() - began)  # waits for the device
        trace, times = self._data.trace, log.times
        if made.count and trace is not None and times is not None and times.now is not None:
            now = times.now[..., made.count - 1, :]  # of each lane
            self._data = at_time(self._data, jax.device_put(now, jnp.asarray(trace.now).sharding))
        self.round_seconds = made.round_seconds if made.count else self.round_seconds
        return state, made

    def grow(self, state: Any, doublings: int, round: int) -> Any:
        """Returns the state with its slots doubled so often, and compiles the rounds for it.

        Args:
            state: of the rounds before.
            doublings: how often.
            round: the one that needs them.

        Raises:
            RuntimeError: the method cannot grow.
        """
        if self._method.grow is None:
            raise RuntimeError(
                f"round {round} needs more clusters than the method has slots, and it cannot grow; give it more."
            )
        state = self._doubled(self._method.grow, state, doublings)
        began = time.perf_counter()
        self._compile(state)
        self.compile_seconds += time.perf_counter() - began
        return state

    def add_newcomers(self, state: Any, round: int) -> Any:
        """Returns the state after clients have arrived before a round, see `add_newcomers`."""
        began, before = time.perf_counter(), state
        state = add_newcomers(self._method, self._key, state, self._data, self._plan, round)
        if self._method.join is not None:
            now, then = (shapes_of(self._without_host_rows(one)) for one in (state, before))
            if now != then:  # there are more slots
                self._compile(state)
        self.compile_seconds += time.perf_counter() - began
        return state

    def serves(self, state: Any) -> bool:
        """Returns whether any client is served a finite model; a state without one is not saved."""
        return serves_finite_model(self._method, state, jnp.arange(state.cluster.shape[0], dtype=jnp.int32))

    def parts(self, state: Any, made: Advance) -> Iterable[tuple[Any, Advance]]:
        """Returns the state and the advance of each seed; here there is one."""
        return [(state, made)]

    def states(self, state: Any) -> Iterable[Any]:
        """Returns the state of each seed."""
        return [state]

    def _without_host_rows(self, state: Any) -> Any:
        """Returns the state as a round is given it, with shapes in place of rows that stay on the host."""
        return state

    def _shapes(self, saved: Sequence[Any]) -> Any:
        """Returns the shapes of the state to start from."""
        return self._prepared.shapes if saved[0] is None else saved[0]

    def _first(self, saved: Sequence[Any]) -> Any:
        """Returns the state to start from."""
        init = initialiser(self._method, shapes_of(self._data), self._plan.mesh)
        # a first stage, which chooses devices by itself, may leave its results on several
        return tree.placed(init(self._key, self._data) if saved[0] is None else saved[0], self._plan.place)

    def _doubled(self, grow: Grow, state: Any, doublings: int) -> Any:
        """Returns the state with its slots doubled so often."""
        return doubled(grow, state, doublings)

    def _compile_beside(self, evaluator: Evaluator, state: Any) -> None:
        """Compiles the programs of the first state and of the evaluation for states of these shapes; runs none."""
        init = initialiser(self._method, shapes_of(self._data), self._plan.mesh)
        there = tree.shapes_on(self._plan.mesh, state)
        for lowered in (init.lower(self._key, self._data), *evaluator.lowered(self._key, there)):
            lowered.compile()

    def _compile(self, state: Any, beside: Callable[[], None] | None = None) -> None:
        """Compiles the rounds for states of these shapes; `beside` is called meanwhile."""
        with coordinates.decisions() as decisions:
            self._advance = compile_rounds(
                self._method,
                self._key,
                state,
                self._data,
                self._prepared.size,
                self._plan,
                limit=CAPACITY if self._stream is None else STREAM_LIMIT,
                sampler=self._sampler,
                cohort=None if self._stream is None else self._stream.cohorts,
                lanes=self._lanes,
                policy=self._policy,
                beside=beside,
            )
        self.factored = coordinates.phrase(decisions)


def serves_finite_model(method: Method, state: Any, ids: Array) -> bool:
    """Returns whether one of the clients `ids [M]` is served a finite model; the search stops at the first."""
    return bool(_finite_model_search(method, shapes_of(state, ids))(state, ids))


@cached_program()
def _finite_model_search(method: Method, shapes: Any) -> Callable[[Any, Array], Array]:
    """Returns `(state, ids [M]) -> []` bool."""

    def search(state: Any, ids: Array) -> Array:
        def look(carry: tuple[Array, Array]) -> tuple[Array, Array]:
            place, _ = carry
            return place + 1, tree.is_finite(tree.take(method.client_params(state, ids[place][None]), 0))

        def go(carry: tuple[Array, Array]) -> Array:
            place, found = carry
            return (place < ids.shape[0]) & ~found

        return jax.lax.while_loop(go, look, (jnp.int32(0), jnp.array(False)))[1]

    return search


CHECKED_CLIENTS = 64  # clients for which it is checked that all start from the same row


class HostRounds(Rounds):
    """The compiled rounds of a state whose field `Method.per_client` is `HostRows` between them.

    A round is given its cohort's rows. The rows of the next round are read while it trains; a client in both cohorts
    gets its new row. New rows are written while the next round trains.

    Args:
        prepared: the method and its plan.
        key: of the run.
        sampler: draws the cohorts.
        stream: has every round's data and cohort.
        folder: of the file of rows; None makes a temporary one.
        policy: of a run with a clock; None without one.
    """

    def __init__(
        self,
        prepared: Prepared,
        key: Key,
        sampler: Sampler,
        stream: RowStream,
        folder: Path | None,
        policy: Policy | None = None,
    ):
        super().__init__(prepared, key, stream.blank, sampler, stream, policy)
        self._field, self._folder, self._cohorts = str(prepared.method.per_client), folder, stream
        self._ahead: dict[int, Future[Params]] = {}  # of the next round: its rows, read before this one was written
        self._last: ResidentRows | None = None  # what the last round made, on the host
        self._memory: Params = (
            None  # that rows are read into, the same for every round: new pages cost more than reading
        )

    def advance(self, state: Any, count: int) -> tuple[Any, Advance]:
        """Advances the state by a round. The given state is donated."""
        began, round, rows = time.perf_counter(), int(state.round), getattr(state, self._field)
        self._cohorts.at(round)  # draws the next ones while the device has nothing to do
        given = tree.with_field(state, self._field, self._sent(rows, round))
        if round + 1 < self._cohorts.rounds:
            self._ahead = {round + 1: rows.read(self._cohorts.clients(round + 1)[0], self._memory)}
        try:
            state, made = super().advance(given, count)
        except Exception:
            rows.settle()  # another one may go on with the file
            raise
        if made.count:
            self._keep(rows, getattr(state, self._field), round)
        made = made._replace(seconds=time.perf_counter() - began)
        self.round_seconds = made.round_seconds if made.count else self.round_seconds
        return tree.with_field(state, self._field, rows), made

    def serves(self, state: Any) -> bool:
        """Returns whether any client is served a finite model."""
        all_ids = np.arange(state.cluster.shape[0], dtype=np.int32)
        for begin in range(0, len(all_ids), WINDOW_CLIENTS):
            ids = np.resize(all_ids[begin : begin + WINDOW_CLIENTS], min(WINDOW_CLIENTS, len(all_ids)))
            if serves_finite_model(self._method, with_resident_rows(state, ids, self._plan.place), jnp.asarray(ids)):
                return True
        return False

    def _sent(self, rows: HostRows, round: int) -> ResidentRows:
        """Returns the rows of a round's cohort, on the device."""
        ids, mask = self._cohorts.clients(round)
        reading = self._ahead.pop(round, None) or rows.read(ids, self._memory)
        values = self._memory = reading.result()
        if self._last is not None:
            newest, place = self._last.values, self._last.place[ids]
            both = place < slots_of(newest)  # in this round and in the last
            for leaf, made in zip(jax.tree.leaves(values), jax.tree.leaves(newest), strict=True):
                leaf[both] = made[place[both]]
        return send_rows(ResidentRows(values, row_places(ids, len(rows.index.place), mask)), self._plan.place)

    def _keep(self, rows: HostRows, made: ResidentRows, round: int) -> None:
        """Begins to write the rows that a round has trained."""
        ids, mask = self._cohorts.clients(round)
        values = jax.tree.map(np.asarray, made.values)
        self._last = ResidentRows(values, np.asarray(made.place))
        rows.write(ids, values, mask)

    def _shapes(self, saved: Sequence[Any]) -> Any:
        whole = getattr(self._prepared.shapes, self._field)
        self._here = resident_shapes(whole, engine.padded_size(self._plan, self._prepared.size))
        return super()._shapes(saved)

    def _without_host_rows(self, state: Any) -> Any:
        return tree.with_field(state, self._field, self._here)

    def _compile(self, state: Any, beside: Callable[[], None] | None = None) -> None:
        super()._compile(self._without_host_rows(state), beside)

    def _first(self, saved: Sequence[Any]) -> Any:
        state = saved[0]
        if state is None:
            begin = host_initialiser(self._method, shapes_of(self._data), self._plan.mesh)
            state, equal = begin(self._key, self._data)
            if not equal:
                raise ValueError(
                    f"resident must be True for this method, whose clients do not all start from the same "
                    f"{self._field}, got False or 'auto'; take fewer clients, or another solver."
                )
            first, count = getattr(state, self._field), state.cluster.shape[0]
            rows = HostRows(Index.empty(first, count), self._folder, new=True)
            rows.check_room(min(count, self._cohorts.rounds * self._prepared.size))
            state = tree.with_field(state, self._field, rows)
        return tree.placed(state, self._plan.place)


@cached_program(engine.jit)
def host_initialiser(method: Method, shapes: Any, mesh: Any) -> Callable[[Key, FederatedData], tuple[Any, Array]]:
    """Returns `(key, data) -> (state, equal)`: the first state with one row, and whether all clients start from
    it.

    XLA computes only the rows that are used, so that arrays of the size of all rows never exist. Therefore some
    clients are looked at, not all.
    """

    def begin(key: Key, data: FederatedData) -> tuple[Any, Array]:
        state = default_mesh(mesh)(method.init)(key, data.at(0))
        rows = getattr(state, str(method.per_client))
        first, step = jax.tree.map(lambda leaf: leaf[:1], rows), -(-data.num_clients // CHECKED_CLIENTS)
        equal = [(leaf[::step] == leaf[:1]).all() for leaf in jax.tree.leaves(rows)]
        return tree.with_field(state, str(method.per_client), first), jnp.stack(equal).all()

    return begin
