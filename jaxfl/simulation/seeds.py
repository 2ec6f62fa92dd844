"""Several seeds in one program, a lane for each: states are stacked, and equal arrays of the data are shared."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxfl import tree
from jaxfl.clock.policies import Policy
from jaxfl.cohort import Plan
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Grow, doubled
from jaxfl.sampling import Sampler
from jaxfl.simulation.prepared import Prepared
from jaxfl.simulation.program import Advance, Lanes, cached_program, initialiser, shapes_of
from jaxfl.simulation.rounds import Rounds
from jaxfl.simulation.spec import RunSpec, SeedSpec


class LaneRounds(Rounds):
    """The compiled rounds of several seeds, with stacked states `[S, ...]`.

    All lanes make the same rounds. Where the slots of one run out, all stop before this round, and all grow.

    Args:
        prepared: the method; its plan has the devices that the lanes are dealt to, and each lane has the plan `lane`.
        seeds: of the runs.
        data: of each; arrays that are the same object in all of them are shared.
        sampler: draws the cohorts.
        policy: of runs with a clock; None without one.
    """

    def __init__(
        self,
        prepared: Prepared,
        seeds: Sequence[int],
        data: Sequence[FederatedData],
        sampler: Sampler,
        policy: Policy | None = None,
    ):
        arrays = list(zip(*map(jax.tree.leaves, data), strict=True))
        own = [any(leaf is not leaves[0] for leaf in leaves) for leaves in arrays]
        lanes = lanes_of(prepared.plan, len(seeds), own)
        # lanes that are left over repeat the last seed
        self._filled = [min(lane, len(seeds) - 1) for lane in range(lanes.count)]
        self._keys, self._of_each, self._outside = [jax.random.key(seed) for seed in seeds], data, prepared.plan.place
        self._place = lanes.place
        placed = [
            self._dealt(leaves) if apart else jax.device_put(leaves[0], lanes.everywhere)
            for leaves, apart in zip(arrays, own, strict=True)
        ]
        together = jax.tree.unflatten(jax.tree.structure(data[0]), placed)
        alone = prepared._replace(plan=prepared.lane)
        super().__init__(alone, self._dealt(self._keys), together, sampler, policy=policy)
        self._lanes = lanes

    def parts(self, state: Any, made: Advance) -> Iterator[tuple[Any, Advance]]:
        """Yields the state and the advance of each seed, with its share of the time."""
        log = jax.device_get(made.log)
        for lane, mine in enumerate(self.states(state)):
            own = tree.take(log, lane)
            yield mine, made._replace(log=own, seconds=made.seconds / len(self._keys))

    def states(self, state: Any) -> Iterator[Any]:
        """Yields the state of each seed."""
        for lane in range(len(self._keys)):
            yield jax.device_put(_take_lane(shapes_of(state))(state, lane), self._outside)

    def _shapes(self, saved: Sequence[Any]) -> Any:
        restored = (state for state in saved if state is not None)
        largest = max(restored, key=tree.num_bytes, default=self._prepared.shapes)
        count = len(self._filled)
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), largest)

    def _first(self, saved: Sequence[Any]) -> Any:
        init = initialiser(self._method, shapes_of(self._of_each[0]))
        states = [
            init(key, data) if state is None else state
            for key, data, state in zip(self._keys, self._of_each, saved, strict=True)
        ]
        largest, grow = max(map(tree.num_bytes, states)), self._method.grow
        while grow is not None and min(map(tree.num_bytes, states)) < largest:  # of runs that were apart
            states = [grow(state) if tree.num_bytes(state) < largest else state for state in states]
        return self._dealt(states)

    def _doubled(self, grow: Grow, state: Any, doublings: int) -> Any:
        return jax.device_put(doubled(jax.vmap(grow), state, doublings), self._place)

    def _dealt(self, parts: Sequence[Any]) -> Any:
        """Returns the parts of all lanes `[S, ...]`, each where its lane is computed."""
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(parts[seed] for seed in self._filled))
        return jax.device_put(stacked, self._place)


def lanes_of(plan: Plan, seeds: int, own: Sequence[bool]) -> Lanes:
    """Returns the lanes of so many seeds on the plan's devices.

    Args:
        plan: of a run of one seed.
        seeds: how many.
        own: of each array of the data, whether every seed has its own.
    """
    if plan.mesh is None:
        return Lanes(None, seeds, tuple(own))
    devices = min(plan.mesh.size, seeds)
    mesh = jax.sharding.Mesh(plan.mesh.devices.reshape(-1)[:devices], plan.mesh.axis_names)
    return Lanes(mesh, -(-seeds // devices), tuple(own))


@cached_program()
def _take_lane(shapes: Any) -> Callable[[Any, int], Any]:
    """Returns `(states [S, ...], lane) -> state`."""
    return tree.take


def seeds_per_program(count: int) -> int:
    """Returns the seeds per program: all on accelerators of one process, one on a CPU.

    The clients of one run keep the cores of a CPU busy. On two of them, 200 rounds of five seeds take 3.2 s one after
    another, 3.1 s with a seed on each core (784-32-10; one seed takes 0.7 s), and 1.9 s and 2.1 s (logistic; 0.4 s).
    Mapped, they take 0.87 (784-32-10) and 0.97 (logistic) of the processor time, but of one core.
    """
    return 1 if jax.default_backend() == "cpu" or jax.process_count() > 1 else count


def rounds_done(spec: RunSpec) -> dict[int, int]:
    """Returns the rounds done of several resumed runs, by seed; empty for a single run, whose directory is opened next.

    Raises:
        ValueError: one of them cannot go on; none has been trained by then, and nothing is written.
    """
    done = {}
    for one in spec.seeds if len(spec.seeds) > 1 else ():
        done[one.seed] = (
            0 if one.directory is None else one.directory.checked_rounds_done(one.identity, resume=spec.resume)
        )
        spec.schedule.check_done(done[one.seed])
    return done


def program_groups(seeds: Sequence[SeedSpec], most: int, done: Mapping[int, int]) -> Iterator[tuple[SeedSpec, ...]]:
    """Yields the seeds of each program, which have the same rounds done.

    Args:
        seeds: all of them.
        most: how many a program may have.
        done: the rounds done by seed; a seed that is not in it has none.
    """

    def rounds(one: SeedSpec) -> int:
        return done.get(one.seed, 0)

    for _, equal in itertools.groupby(sorted(seeds, key=rounds), rounds):
        some = tuple(equal)
        yield from (some[first : first + most] for first in range(0, len(some), most))
