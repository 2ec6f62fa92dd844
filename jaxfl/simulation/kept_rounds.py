"""The compiled rounds of a state whose rows of the clients stay on the host."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import engine, tree
from jaxfl.cohort import Plan
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Method, slots_of
from jaxfl.sampling import Sampler
from jaxfl.simulation.kept_rows import Index, KeptRows, at_hand
from jaxfl.simulation.program import Made, kept, shapes_of
from jaxfl.simulation.rounds import Rounds, serves_anybody
from jaxfl.simulation.rows_here import RowsHere, places, sent, shapes_here, with_field
from jaxfl.simulation.streaming import Stream
from jaxfl.simulation.testers import BESIDE
from jaxfl.typing import Array, Key, Params

LOOKED_AT = 64  # clients that are asked whether all start from the same row


class KeptRounds(Rounds):
    """The rounds of `Rounds`, of a state whose field `Method.per_client` is `KeptRows` between them.

    A round is given its cohort's rows. Those of the next are read while it trains; who is in both gets the row that it
    made. What it made is written while the next one trains.

    Args:
        method: the method.
        key: of the run.
        size: clients of a cohort.
        plan: chunk and devices.
        sampler: draws the cohorts.
        stream: has every round's data and cohort.
        folder: of the file of rows; None makes a temporary one.
    """

    def __init__(
        self, method: Method, key: Key, size: int, plan: Plan, sampler: Sampler, stream: Stream, folder: Path | None
    ):
        super().__init__(method, key, stream.blank, size, plan, sampler, stream)
        self._field, self._folder, self._cohorts = str(method.per_client), folder, stream
        self._ahead: dict[int, Future[Params]] = {}  # of the next round: its rows, read before this one was written
        self._last: RowsHere | None = None  # what the last round made, on the host
        self._memory: Params = (
            None  # that rows are read into, the same for every round: new pages cost more than reading
        )

    def advance(self, state: Any, count: int) -> tuple[Any, Made]:
        """Makes a round. The state that is given is used up."""
        began, round, rows = time.perf_counter(), int(state.round), getattr(state, self._field)
        self._cohorts.at(round)  # draws the next ones while the device has nothing to do
        given = with_field(state, self._field, self._sent(rows, round))
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
        self.pace = made.pace if made.count else self.pace
        return with_field(state, self._field, rows), made

    def serves(self, state: Any) -> bool:
        """Returns whether anybody is served a finite model."""
        everybody = np.arange(state.cluster.shape[0], dtype=np.int32)
        for begin in range(0, len(everybody), BESIDE):
            ids = np.resize(everybody[begin : begin + BESIDE], min(BESIDE, len(everybody)))
            if serves_anybody(self._method, at_hand(state, ids, self._plan.place), jnp.asarray(ids)):
                return True
        return False

    def _sent(self, rows: KeptRows, round: int) -> RowsHere:
        """Returns the rows of a round's cohort, on the device."""
        ids, mask = self._cohorts.clients(round)
        reading = self._ahead.pop(round, None) or rows.read(ids, self._memory)
        values = self._memory = reading.result()
        if self._last is not None:
            newest, place = self._last.values, self._last.place[ids]
            both = place < slots_of(newest)  # in this round and in the last
            for leaf, made in zip(jax.tree.leaves(values), jax.tree.leaves(newest), strict=True):
                leaf[both] = made[place[both]]
        return sent(RowsHere(values, places(ids, len(rows.index.place), mask)), self._plan.place)

    def _keep(self, rows: KeptRows, made: RowsHere, round: int) -> None:
        """Begins to write what a round has made."""
        ids, mask = self._cohorts.clients(round)
        values = jax.tree.map(np.asarray, made.values)
        self._last = RowsHere(values, np.asarray(made.place))
        rows.write(ids, values, mask)

    def _shapes(self, shapes: Any, saved: Sequence[Any]) -> Any:
        self._here = shapes_here(getattr(shapes, self._field), engine.places(self._plan, self._size))
        return super()._shapes(shapes, saved)

    def _compile(self, state: Any) -> None:
        super()._compile(with_field(state, self._field, self._here))

    def _first(self, saved: Sequence[Any]) -> Any:
        state = saved[0]
        if state is None:
            begin = beginner(self._method, shapes_of(self._data), self._plan.mesh)
            state, alike = begin(self._key, self._data)
            if not alike:
                raise ValueError(
                    f"resident must be True for this method, whose clients do not all start from the same "
                    f"{self._field}, got False or 'auto'; take fewer clients, or another solver."
                )
            first, count = getattr(state, self._field), state.cluster.shape[0]
            rows = KeptRows(Index.of_nobody(first, count), self._folder, new=True)
            rows.check_room(min(count, self._cohorts.rounds * self._size))
            state = with_field(state, self._field, rows)
        return tree.placed(state, self._plan.place)


@kept
def beginner(method: Method, shapes: Any, mesh: Any) -> Callable[[Key, FederatedData], tuple[Any, Array]]:
    """Returns `(key, data) -> (state, alike)`, jitted: the first state with one row for all, and whether it suits them.

    XLA makes no more of what all start from than is asked for: nothing of the size of all rows is ever there. So some
    clients are looked at, not all.
    """

    def begin(key: Key, data: FederatedData) -> tuple[Any, Array]:
        state = engine.within(mesh)(method.init)(key, data.at(0))
        rows = getattr(state, str(method.per_client))
        first, step = jax.tree.map(lambda leaf: leaf[:1], rows), -(-data.num_clients // LOOKED_AT)
        alike = [(leaf[::step] == leaf[:1]).all() for leaf in jax.tree.leaves(rows)]
        return with_field(state, str(method.per_client), first), jnp.stack(alike).all()

    return engine.jit(begin)
