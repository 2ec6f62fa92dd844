"""Several seeds in one program: each has a lane. States are stacked, and what of the data is the same is shared."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import tree
from jaxfl.cohort import Plan, PlanChoice, resolve_plan
from jaxfl.data.clients import FederatedData, replace_field
from jaxfl.methods.base import Grow, Method, doubled
from jaxfl.sampling import Sampler, cohort_size
from jaxfl.simulation.asked import One
from jaxfl.simulation.program import Lanes, Made, initialiser, kept, shapes_of
from jaxfl.simulation.rounds import Rounds
from jaxfl.simulation.schedule import Schedule


class RoundsInLanes(Rounds):
    """The compiled rounds of several seeds: those of `Rounds`, of states `[S, ...]`.

    All lanes make the same rounds. Where the slots of one run out, all stop before this round, and all grow.

    Args:
        method: the method.
        seeds: of the runs.
        data: of each; arrays that are the same object in all of them are shared.
        size: clients of a cohort.
        plan: has the devices that the lanes are dealt to.
        inside: the plan of a lane, on one device.
        sampler: draws the cohorts.
    """

    def __init__(
        self,
        method: Method,
        seeds: Sequence[int],
        data: Sequence[FederatedData],
        size: int,
        plan: Plan,
        inside: Plan,
        sampler: Sampler,
    ):
        arrays = list(zip(*map(jax.tree.leaves, data), strict=True))
        own = [any(leaf is not leaves[0] for leaf in leaves) for leaves in arrays]
        lanes = lanes_of(plan, len(seeds), own)
        # lanes that are left over repeat the last seed
        self._filled = [min(lane, len(seeds) - 1) for lane in range(lanes.count)]
        self._keys, self._of_each, self._outside = [jax.random.key(seed) for seed in seeds], data, plan.place
        self._place = lanes.place
        placed = [
            self._dealt(leaves) if apart else jax.device_put(leaves[0], lanes.everywhere)
            for leaves, apart in zip(arrays, own, strict=True)
        ]
        together = jax.tree.unflatten(jax.tree.structure(data[0]), placed)
        super().__init__(method, self._dealt(self._keys), together, size, inside, sampler)
        self._lanes = lanes

    def parts(self, state: Any, made: Made) -> Iterator[tuple[Any, Made]]:
        """Yields for each seed its state, and what was made of it, with its share of the time."""
        log = jax.device_get(made.log)
        for lane, mine in enumerate(self.states(state)):
            own = tree.take(log, lane)
            yield mine, made._replace(log=own, seconds=made.seconds / len(self._keys))

    def states(self, state: Any) -> Iterator[Any]:
        """Yields the state of each seed."""
        for lane in range(len(self._keys)):
            yield jax.device_put(_one(shapes_of(state))(state, lane), self._outside)

    def _shapes(self, shapes: Any, saved: Sequence[Any]) -> Any:
        largest = max((state for state in saved if state is not None), key=tree.num_bytes, default=shapes)
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


@kept
def _one(shapes: Any) -> Callable[[Any, int], Any]:
    """Returns `(states [S, ...], lane) -> state`, jitted."""
    return jax.jit(tree.take)


def together(count: int) -> int:
    """Returns how many of so many seeds are trained in one program: on a process's accelerators all, on a CPU one.

    The clients of one run keep the cores of a CPU busy. On two of them, 200 rounds of five seeds take 3.2 s one after
    another, 3.1 s with a seed on each core (784-32-10; one seed takes 0.7 s), and 1.9 s and 2.1 s (logistic; 0.4 s).
    Mapped, they take 0.87 (784-32-10) and 0.97 (logistic) of the processor time, but of one core.
    """
    return 1 if jax.default_backend() == "cpu" or jax.process_count() > 1 else count


def inside(choice: PlanChoice, plan: Plan, model: Any, size: int, count: int) -> Plan:
    """Returns the plan of one lane of so many seeds, on its device.

    Args:
        choice: what was asked for.
        plan: what it is for one seed.
        model: shapes of what a client trains.
        size: clients of a cohort.
        count: seeds in one program.
    """
    if isinstance(choice, Plan):
        return choice._replace(mesh=None)
    devices = 1 if plan.mesh is None else plan.mesh.size
    return resolve_plan(choice, model, size, models=-(-count // devices), devices=1)


def behind(ones: Sequence[One], schedule: Schedule, resume: bool) -> dict[int, int]:
    """Returns the rounds that each of several seeds has made, by seed; of one nothing, which is opened at once.

    Raises:
        ValueError: one of them cannot be gone on with; none has been trained by then, and nothing is written.
    """
    made = {}
    for one in ones if len(ones) > 1 else ():
        made[one.seed] = 0 if one.directory is None else one.directory.behind(one.identity, resume=resume)
        schedule.check_done(made[one.seed])
    return made


def groups(ones: Sequence[One], most: int, made: Mapping[int, int]) -> Iterator[list[One]]:
    """Yields the seeds of one program each: those who have made as many rounds.

    Args:
        ones: of all seeds.
        most: how many a program may have.
        made: the rounds that each seed has behind it; of those that are not named, none.
    """

    def done(one: One) -> int:
        return made.get(one.seed, 0)

    for _, equal in itertools.groupby(sorted(ones, key=done), done):
        alike = list(equal)
        yield from (alike[first : first + most] for first in range(0, len(alike), most))


def alike(data: Sequence[FederatedData]) -> list[FederatedData] | None:
    """Returns federations whose equal arrays are the same object; None where shapes differ, or how many take part.

    Raises:
        ValueError: in one of them nobody who takes part has training rows.

    >>> from jaxfl.data import synthetic
    >>> data = synthetic.clustered_linear(4), synthetic.clustered_linear(4)
    >>> one, other = alike(data)
    >>> one.inputs is other.inputs, alike([*data, synthetic.clustered_linear(3)])
    (True, None)
    """
    first, *others = data
    if len({cohort_size(1.0, one) for one in data}) > 1:  # a share of the clients would be another number of them
        return None
    if any(other is not first and shapes_of(other.in_programs()) != shapes_of(first.in_programs()) for other in others):
        return None

    def known(mine: Any, leaf: Any) -> Any:
        return mine if leaf is mine or np.array_equal(leaf, mine) else leaf

    bare = first.in_programs()
    found = (jax.tree.map(known, bare, other.in_programs()) for other in others)
    return [
        first,
        *(replace_field(one, "client_names", of.client_names) for one, of in zip(found, others, strict=True)),
    ]


def placed(data: Sequence[FederatedData], plan: Plan) -> list[FederatedData]:
    """Returns federations on the plan's devices; an array that several have lies there once."""
    there: dict[int, Any] = {}

    def put(leaf: Any) -> Any:
        if id(leaf) not in there:
            there[id(leaf)] = jax.device_put(leaf, None if plan.mesh is None else plan.place)
        return there[id(leaf)]

    return [jax.tree.map(put, one) for one in data]
