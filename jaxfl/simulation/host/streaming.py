"""Streaming of host rows: the window of a round is cut and sent to the device while the round before is trained.

Cohorts follow from the seed, so they are known ahead. The program of a round is that of resident rows but for the
cohort, which it is given, and its results are the same, bit for bit: a window keeps the clients' numbers and sizes (see
`jaxfl.data.windows`). On the device are the windows of two rounds, and what is known of every client, a few numbers
each. Of several devices each has the rows of the clients that it trains, and each of several processes cuts out those
of its devices.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import engine, tree
from jaxfl.cohort import Cohort, Plan
from jaxfl.data.clients import FederatedData
from jaxfl.data.windows import Windows
from jaxfl.methods.base import Method, slots_of
from jaxfl.sampling import Sampler
from jaxfl.simulation import processes
from jaxfl.simulation.program import available_bytes, cached_program, draw_ordered_cohort, shapes_of
from jaxfl.typing import Array, Key

Resident = bool | Literal["auto"]
# Rounds that a program of streamed rows is made for, though it advances one: of the only cohort XLA would know that it
# stays the same while the program loops, take what depends on it out of the loop, and round sums otherwise.
STREAM_LIMIT = 2
HOST_SHARE = 0.5  # of the memory that is free: rows that need more of it are streamed


class RowStream:
    """The windows and cohorts of a run, round by round; the cohorts alone where all rows are resident.

    Args:
        data: the federation, in host memory or mapped files; on the device, where nothing is cut.
        key: of the run.
        size: clients of a cohort.
        plan: chunk and devices.
        sampler: draws the cohorts.
        rounds: in all: nothing is cut beyond.
        cut: whether rows are cut.

    Attributes:
        blank: a window without clients, on the device; the data where nothing is cut.
        rounds: in all.
    """

    def __init__(
        self,
        data: FederatedData,
        key: Key,
        size: int,
        plan: Plan,
        sampler: Sampler,
        rounds: int,
        *,
        cut: bool = True,
    ):
        self._windows = Windows(data, engine.padded_size(plan, size), mesh=plan.mesh, sharded=True) if cut else None
        self.blank = data if self._windows is None else self._windows.blank
        self._key, self.rounds = key, rounds
        self._draw = _cohort_drawer(sampler, size, plan, shapes_of(self.blank))
        self._drawn: dict[int, Cohort] = {}  # of this round and the next two
        self._cut: dict[int, Future[FederatedData]] = {}  # of this round and the next
        self._thread = ThreadPoolExecutor(1, "windows")

    @property
    def cohorts(self) -> Cohort:
        """Returns the shapes of the cohorts that a program takes `[STREAM_LIMIT, C]`."""
        return jax.eval_shape(self._draw, self._key, jnp.int32(0), self.blank)

    def at(self, round: int) -> tuple[FederatedData, Cohort]:
        """Returns a round's window and cohort (the first of `[STREAM_LIMIT, C]`), and begins to cut the next window.

        Args:
            round: from 0; any, but those that follow each other are ready sooner.
        """
        ahead = [r for r in (round, round + 1) if r == round or r < self.rounds]
        self._cut = {r: self._cut[r] if r in self._cut else self._begin(r) for r in ahead}
        # drawn before the device is busy with this round
        self._drawn = {r: self._cohort(r) for r in (*ahead, round + 2) if r <= ahead[-1] or r < self.rounds}
        return self._cut[round].result(), self._drawn[round]

    def clients(self, round: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the cohort of a round, ids and mask `[C]` on the host."""
        cohort = self._cohort(round)
        return np.asarray(cohort.ids)[0], np.asarray(cohort.mask)[0]

    def _begin(self, round: int) -> "Future[FederatedData]":
        """Begins to cut the window of a round."""
        self._drawn[round] = cohort = self._cohort(round)

        def cut() -> FederatedData:
            if self._windows is None:
                return self.blank
            return self._windows.of(np.asarray(cohort.ids)[0], np.asarray(cohort.mask)[0], round)

        return self._thread.submit(cut)

    def _cohort(self, round: int) -> Cohort:
        """Returns the cohort of a round."""
        return self._drawn[round] if round in self._drawn else self._draw(self._key, jnp.int32(round), self.blank)


@cached_program()
def _cohort_drawer(
    sampler: Sampler, size: int, plan: Plan, shapes: Any
) -> Callable[[Key, Array, FederatedData], Cohort]:
    """Returns `(key, round, data) -> cohort`: the cohort of the round, stacked `STREAM_LIMIT` times."""

    def draw(key: Key, round: Array, data: FederatedData) -> Cohort:
        now = data.at(round)
        return plan.readable(tree.repeat(draw_ordered_cohort(sampler, key, round, now, size, plan), STREAM_LIMIT))

    return draw


def keeps_data_on_host(method: Method, data: FederatedData, resident: Resident) -> bool:
    """Returns whether the clients' rows of data stay on the host.

    Args:
        method: `reads` is `"cohort"` or `"everybody"`.
        data: the federation.
        resident: True or False; `"auto"` where the data need more than half of the memory that is free: the device's,
            or on a CPU the machine's.

    Raises:
        ValueError: they do not fit, or must not be resident, and the method reads everybody's rows, or clients arrive
            or leave.
    """
    free, wanted = processes.least(available_bytes()), tree.num_bytes(data)
    large = _exceeds_share(wanted, free)
    if data.absent is not None and (resident is False or (resident == "auto" and large)):
        raise ValueError(
            f"resident must be True where clients arrive or leave, got {resident!r} for {wanted / 1e9:.1f} GB; take "
            "fewer clients, or clients that stay."
        )
    if resident is True or (resident == "auto" and not large):
        return False
    if method.reads == "cohort":
        return True
    if resident == "auto" and free is not None and wanted <= free:
        return False
    raise ValueError(
        f"resident must be True for this method, which reads the rows of all {data.num_clients} clients, got "
        f"{resident!r} for {wanted / 1e9:.1f} GB; take fewer clients, or a method or options that read a cohort's."
    )


def keeps_state_on_host(
    method: Method, shapes: Any, size: int, resident: Resident, plan: Plan = Plan(), beside: int = 0
) -> bool:
    """Returns whether a state's rows of the clients stay on the host, see `jaxfl.simulation.host.rows`.

    Args:
        method: says which field has them; None has none.
        shapes: of its state.
        size: clients of a cohort.
        resident: as in `keeps_data_on_host`; but `"auto"` keeps rows on the device where those of a cohort take as
            much, and several processes always keep them there.
        plan: has the devices, each of which has the state.
        beside: bytes of data that will be on the device.
    """
    if method.per_client is None or resident is True or processes.several():
        return False
    rows = getattr(shapes, method.per_client)
    wanted = tree.num_bytes(rows)
    if resident is False or not wanted:
        return wanted > 0
    read = 1 if jax.default_backend() == "cpu" else 0  # what is read from the file lies beside what is sent
    if (plan.copies + read) * size >= plan.copies * slots_of(rows):
        return False
    free = available_bytes()
    return _exceeds_share(wanted * plan.copies, None if free is None else free - beside)


def _exceeds_share(wanted: int, free: int | None) -> bool:
    """Returns whether bytes exceed the share of the free memory that resident arrays may take."""
    return free is not None and wanted > HOST_SHARE * free
