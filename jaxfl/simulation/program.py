"""The compiled program of a run, its cache and its memory.

One program advances any number of rounds up to a bound: sample, train, aggregate, again. How many is an argument, so
that evaluation, checkpoints and a progress bar decide when Python looks, and never what is computed. The state is
donated: there is one of it.

Key, state and data are arguments. So the next run of the same method, on data of the same shapes, takes the program of
the last one: another seed costs no compilation and no memory.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import engine, sampling, tree
from jaxfl.client.fast import coordinates
from jaxfl.clock.policies import Policy
from jaxfl.clock.rounds import RoundTimes, timed_round
from jaxfl.clock.trace import at_time, begin_round, end_round
from jaxfl.cohort import Cohort, Plan, default_mesh
from jaxfl.data.clients import FederatedData
from jaxfl.host.operating_system import peak_memory, return_freed_memory
from jaxfl.host.text import encodable
from jaxfl.methods.base import Info, Method
from jaxfl.methods.hyperparameters import hyperparameters_of
from jaxfl.sampling import Sampler
from jaxfl.simulation.processes import least
from jaxfl.typing import Array, Key
from jaxfl.wire.wired import attacked

AXIS = "lanes"


class Lanes(NamedTuple):
    """The lanes of seeds that share a program: they are spread over devices, and mapped on each device.

    Attributes:
        mesh: the devices, with one axis; None is one device.
        each: lanes of a device.
        own: of each array of the data, whether every lane has its own.
    """

    mesh: Any
    each: int
    own: tuple[bool, ...]

    @property
    def count(self) -> int:
        """Returns how many lanes there are."""
        return self.each * (1 if self.mesh is None else self.mesh.size)

    @property
    def place(self) -> Any:
        """The place of arrays that each lane has for itself."""
        return self._placed(True)

    @property
    def everywhere(self) -> Any:
        """The place of arrays that all lanes share."""
        return self._placed(False)

    def _placed(self, dealt: bool) -> Any:
        if self.mesh is None:
            return jax.local_devices()[0]
        return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec(*self.mesh.axis_names * dealt))

    def most(self, number: Array) -> Array:
        """Returns the highest number of all lanes; call it inside a lane."""
        axes = (*((AXIS,) if self.each > 1 else ()), *(() if self.mesh is None else self.mesh.axis_names))
        return jax.lax.pmax(number, axes)

    def lift(self, advance: Callable[..., tuple]) -> Callable[..., tuple]:
        """Returns `(keys [S], states [S, ...], data, count)` of a program that advances one of them.

        Args:
            advance: `(key, state, data, count) -> (state, log, done, overflow)`. Lanes wait for each other in a round
                only where it asks for `most`.
        """

        def together(keys: Array, states: Any, data: FederatedData, count: Array) -> tuple:
            leaves, structure = jax.tree.flatten(data)

            def one(key: Array, state: Any, leaves: list[Array], count: Array) -> tuple:
                state, log, done, overflow = advance(key, state, jax.tree.unflatten(structure, leaves), count)
                return state, log, -self.most(-done), self.most(overflow)

            def alone(keys: Array, states: Any, leaves: list[Array], count: Array) -> tuple:
                mine = [leaf[0] if own else leaf for leaf, own in zip(leaves, self.own, strict=True)]
                state, log, *rest = one(keys[0], tree.take(states, 0), mine, count)
                return *jax.tree.map(lambda leaf: leaf[None], (state, log)), *rest

            axes = (0, 0, [0 if own else None for own in self.own], None)
            many = alone
            if self.each > 1:
                many = jax.vmap(one, in_axes=axes, out_axes=(0, 0, None, None), axis_name=AXIS)
            if self.mesh is not None:
                spec = jax.sharding.PartitionSpec
                mine, all = spec(*self.mesh.axis_names), spec()
                specs = (mine, mine, [mine if own else all for own in self.own], all)
                many = jax.shard_map(
                    many, mesh=self.mesh, in_specs=specs, out_specs=(mine, mine, all, all), check_vma=False
                )
            return many(keys, states, leaves, count)

        return together


CAPACITY = 64  # rounds that one call may advance: their `Info` is kept until Python looks
CACHED_METHODS = 4  # methods, per builder, with programs in the cache
CACHED_SHAPES = 8  # of each, programs: slots double, and seeds may be tested on other numbers of rows

P = ParamSpec("P")


class RoundLog(NamedTuple):
    """The records of the rounds of one call, in buffers of `CAPACITY` rounds."""

    ids: Array  # [R, C]
    mask: Array  # [R, C] bool, False for clients that did not take part
    info: Info  # [R, ...]
    times: RoundTimes | None = None  # [R, ...] of a run with a clock


class Advance(NamedTuple):
    """The result of one call: a round log and the time that it took."""

    log: RoundLog
    count: int  # rounds done
    overflow: int  # how often the slots must double before the next round; 0 where they suffice
    seconds: float  # for all of them

    @property
    def round_seconds(self) -> float:
        """Returns the seconds of one round."""
        return self.seconds / self.count

    @property
    def last_cohort(self) -> np.ndarray:
        """Returns the ids of the clients that took part in the last round, ascending; of the round log of one seed."""
        ids, mask = np.asarray(self.log.ids), np.asarray(self.log.mask)
        return np.sort(ids[self.count - 1][mask[self.count - 1]])


class Program:
    """A jitted function, with the hyperparameters that it is called with.

    Attributes:
        values: None, or the hyperparameters, which the jitted function takes first.
        decisions: those that were made while it was traced, see `jaxfl.client.fast.coordinates`.
    """

    def __init__(self, jitted: Any, values: Any = None, decisions: list[str] | None = None):
        self._jitted, self.values = jitted, values
        self.decisions: list[str] = [] if decisions is None else decisions

    def __call__(self, *args: Any) -> Any:
        """Returns the result of the function."""
        return self._jitted(*self.given, *args)

    @property
    def given(self) -> tuple:
        """The arguments that the jitted function, and its compiled form, take before all others."""
        return () if self.values is None else (self.values,)

    def eval_shape(self, *args: Any) -> Any:
        """Returns the shapes of the result, for arguments or their shapes."""
        return self._jitted.eval_shape(*self.given, *args)

    def lower(self, *args: Any, **options: Any) -> Any:
        """Returns the function traced and lowered, for arguments or their shapes; `options` are JAX's for lowering."""
        return self._jitted.trace(*self.given, *args).lower(**options)

    def at(self, values: Any) -> "Program":
        """Returns the program with other hyperparameters."""
        return Program(self._jitted, values, self.decisions)


LARGE_PROGRAM = 1 << 28  # bytes beside which it matters what the compiler has freed; to return it takes 0.3 s of a core


class _Family(NamedTuple):
    """All objects that differ in their hyperparameters alone, in the place of one of them."""

    build: Callable[[dict[str, Any]], Any]


def cached_program(
    jit: Callable[..., Any] = jax.jit, donate: Sequence[int] = ()
) -> Callable[[Callable[P, Callable[..., Any]]], Callable[P, Program]]:
    """Returns a decorator for builders of functions, which then return the same `Program` for the same arguments.

    JAX frees a compiled program with its function, so later runs would compile again. Of each builder, the programs of
    the last `CACHED_METHODS` first arguments are cached, and for each of these the last `CACHED_SHAPES`. The arguments
    must contain shapes (see `shapes_of`), or one function would hold the programs of all shapes. Where an argument
    cannot be hashed, nothing is cached. Arguments that differ in their `Hyperparameters` alone have one program: its
    functions are built inside the trace, with numbers that are not known yet.

    Args:
        jit: `jax.jit` or `jaxfl.engine.jit`.
        donate: the arguments of the functions that are donated.
    """

    def decorate(build: Callable[P, Callable[..., Any]]) -> Callable[P, Program]:
        function_of: Callable[..., Callable[..., Any]] = build

        def make(*parts: Any) -> Program:
            if not any(isinstance(part, _Family) for part in parts):
                return Program(jit(function_of(*parts), donate_argnums=donate))

            def program(values: list[dict[str, Any]], *args: Any) -> Any:
                given = iter(values)
                known = [part.build(next(given)) if isinstance(part, _Family) else part for part in parts]
                return function_of(*known)(*args)

            return Program(jit(program, donate_argnums=[place + 1 for place in donate]))

        @functools.lru_cache(CACHED_METHODS)
        def cached(first: Any) -> Callable[..., Program]:
            return functools.lru_cache(CACHED_SHAPES)(functools.partial(make, first))

        @functools.wraps(build)
        def get(*args: P.args, **kwargs: P.kwargs) -> Program:
            arguments = inspect.signature(build).bind(*args, **kwargs)
            arguments.apply_defaults()
            found = [hyperparameters_of(argument) for argument in arguments.args]
            parts = [
                argument if own is None else _Family(own.build)
                for argument, own in zip(arguments.args, found, strict=True)
            ]
            values = [dict(own.values) for own in found if own is not None]
            try:
                hash(tuple(parts))
            except TypeError:
                made = make(*parts)
            else:
                made = cached(parts[0])(*parts[1:])
            return made.at(values) if values else made

        return get

    return decorate


_work_beside: ContextVar[Callable[[], None] | None] = ContextVar("work_beside", default=None)


@contextlib.contextmanager
def work_beside(work: Callable[[], None]) -> Iterator[None]:
    """Calls a function inside while XLA compiles rounds: the caller will need what it does, and must not fail."""
    token = _work_beside.set(work)
    try:
        yield
    finally:
        _work_beside.reset(token)


def shapes_of(*trees: Any) -> Any:
    """Returns structure, shapes and types of trees of arrays, which can be hashed and compared.

    >>> shapes_of({"w": jnp.zeros(3)}) == shapes_of({"w": jnp.ones(3)}) != shapes_of({"w": jnp.ones(4)})
    True
    """
    leaves, structure = jax.tree.flatten(trees)
    return structure, tuple((jnp.shape(leaf), leaf.dtype) for leaf in leaves)


def compile_rounds(
    method: Method,
    key: Key,
    state: Any,
    data: FederatedData,
    size: int,
    plan: Plan,
    *,
    limit: int = CAPACITY,
    sampler: Sampler = sampling.uniform,
    cohort: Cohort | None = None,
    lanes: Lanes | None = None,
    policy: Policy | None = None,
    beside: Callable[[], None] | None = None,
) -> Callable[..., tuple[Any, RoundLog, Array, Array]]:
    """Compiles `(key, state, data, count) -> (state, log, done, overflow)`, which advances up to `count` rounds.

    It stops at a round that needs more slots, which is undone; `overflow []` is that of its `Info`, otherwise 0.

    Args:
        method: the method.
        key: the key of the run.
        state: a state or its shapes.
        data: the federation or its shapes.
        size: clients of a cohort.
        plan: chunk and devices.
        limit: the most rounds that one call can advance.
        sampler: draws the cohorts.
        cohort: the shapes of one for each round `[limit, C]`, which the program takes as its last argument; None draws
            them.
        lanes: of several seeds, whose keys and states are stacked; None is one.
        policy: of a run with a clock, whose data have the clients' devices; None has no clock.
        beside: called while XLA compiles, which leaves Python to others.

    Raises:
        MemoryError: the program needs more memory than the device has left.
    """
    lowered, given = lower(method, key, state, data, size, plan, limit, sampler, cohort, lanes, policy)
    with ThreadPoolExecutor(1, "jaxfl-compile") as pool:
        compiling = pool.submit(lowered.compile)
        for one in (beside, _work_beside.get()):
            if one is not None:
                one()
        compiled = compiling.result()
    if program_bytes(compiled) > LARGE_PROGRAM:
        return_freed_memory()
    held, available = plan.copies * tree.num_bytes(state), least(available_bytes())
    needed = held + plan.copies * program_bytes(compiled)
    if available is None or needed <= available:
        return functools.partial(compiled, *given) if given else compiled
    problem = f"the run needs about {needed / 1e9:.1f} GB beside its data and {available / 1e9:.1f} GB are free"
    alone = "" if plan.copies == 1 else f"devices=1 (each of {plan.copies} cores has all of it), "
    if held <= available:
        raise MemoryError(
            f"{problem}; {alone and f'take {alone}or '}lower plan.chunk (now {plan.chunk}), the model or the number of "
            "models; jaxfl.footprint shows what takes it."
        )
    few = ""
    if method.per_client is not None:
        here = isinstance(getattr(state, method.per_client), tree.Rows)
        few = "a smaller cohort, " if here else "a smaller cohort with resident=False (others' models are in a file), "
    raise MemoryError(
        f"{problem}, its state of {data.num_clients} clients alone {held / 1e9:.1f} GB; take {alone}{few}fewer "
        "clients, a smaller model, or a method that keeps less for each of them."
    )


def lower(
    method: Method,
    key: Key,
    state: Any,
    data: FederatedData,
    size: int,
    plan: Plan,
    limit: int,
    sampler: Sampler,
    cohort: Cohort | None = None,
    lanes: Lanes | None = None,
    policy: Policy | None = None,
) -> tuple[Any, tuple]:
    """Returns the rounds of `compile_rounds`, traced and lowered, and what they take before their arguments.

    The decisions of their first tracing are reported again.
    """
    program = _rounds(method, size, plan, limit, sampler, lanes, policy, shapes_of(key, state, data, cohort))
    where = plan if lanes is None else lanes
    if where.mesh is not None:
        state, cohort = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where.place), (state, cohort)
        )
    with coordinates.decisions() as decisions:
        lowered = program.lower(key, state, data, jnp.int32(0), *(() if cohort is None else (cohort,)))
    program.decisions[:] = decisions or program.decisions  # JAX traces nothing a second time
    coordinates.report(program.decisions)
    return lowered, program.given


def draw_ordered_cohort(sampler: Sampler, key: Key, round: Array, data: FederatedData, size: int, plan: Plan) -> Cohort:
    """Returns the cohort of a round, in the engine's order; traceable.

    Args:
        sampler: draws it.
        key: of the run.
        round: `[]` int32.
        data: the federation as it is in this round.
        size: clients of a cohort.
        plan: chunk and devices.
    """
    return engine.by_size(data, sampling.draw_cohort(sampler, key, round, data, size, plan))


def one_round(
    method: Method,
    key: Key,
    state: Any,
    data: FederatedData,
    size: int,
    plan: Plan,
    sampler: Sampler = sampling.uniform,
    cohort: Cohort | None = None,
    policy: Policy | None = None,
) -> tuple[Any, RoundLog]:
    """Returns the state after a round and the log of the round; traceable.

    Args:
        method: the method.
        key: of the run.
        state: before the round.
        data: the federation; of one that drifts, the round takes it as it is by then.
        size: clients of a cohort.
        plan: chunk and devices.
        sampler: draws the cohort.
        cohort: one that was drawn before; None draws it.
        policy: of a run with a clock; None has no clock.
    """
    data, own = data.at(state.round), method.own_rounds
    train, times = default_mesh(plan.mesh)(attacked(method if own is None else own.method)), None
    if data.trace is not None:
        data, sampler = begin_round(data, sampler)
    if own is not None:
        state, drawn, info, times = own.round(train, policy, key, state, data, sampler, plan)
    else:
        drawn = cohort
        if drawn is None:
            drawn = draw_ordered_cohort(sampler, key, state.round, data, size, plan)
        if policy is None:
            state, info = train(key, state, data, drawn)
        else:
            state, drawn, info, times = timed_round(method, train, policy, key, state, data, drawn)
    if data.trace is not None and times is not None:
        times = end_round(data, times)
    return state, RoundLog(drawn.ids, drawn.mask, info, times)


@cached_program(engine.jit, donate=[1])
def _rounds(
    method: Method,
    size: int,
    plan: Plan,
    limit: int,
    sampler: Sampler,
    lanes: Lanes | None,
    policy: Policy | None,
    shapes: Any,
) -> Callable[..., tuple]:
    train = functools.partial(one_round, method, size=size, plan=plan, sampler=sampler, policy=policy)
    train = jax.jit(train, inline=True)  # which traces it once, for its shapes and for the loop

    def advance(
        key: Key, state: Any, data: FederatedData, count: Array, given: Cohort | None = None
    ) -> tuple[Any, RoundLog, Array, Array]:
        def cohort_at(place: Any) -> Cohort | None:
            return None if given is None else tree.take(given, place)

        _, row = jax.eval_shape(train, key, state, data, cohort=cohort_at(0))
        _check_info(row.info, row.ids.shape)
        log = jax.tree.map(lambda leaf: jnp.zeros((limit, *leaf.shape), leaf.dtype), row)

        def go(carry: tuple) -> Array:
            _, _, done, overflow, _ = carry
            return (done < count) & (overflow == 0)

        def body(carry: tuple) -> tuple:
            state, log, done, _, now = carry
            new, row = train(key, state, at_time(data, now), cohort=cohort_at(done))
            info, now = row.info, None if now is None else row.times.now
            if lanes is not None and method.grow is not None:  # all stop where one has to grow
                info = info._replace(overflow=lanes.most(info.overflow))
            if method.grow is not None:  # a round that ran out of slots has not happened
                new = jax.tree.map(lambda old, new: jnp.where(info.overflow > 0, old, new), state, new)
            row = row._replace(info=info)
            log = jax.tree.map(lambda rows, row: rows.at[done].set(row), log, row)
            overflow = info.overflow.astype(jnp.int32)
            return new, log, done + (overflow == 0).astype(done.dtype), overflow, now

        now = None if data.trace is None else data.trace.now
        state, *rest, _ = jax.lax.while_loop(go, body, (state, log, jnp.int32(0), jnp.int32(0), now))
        if plan.mesh is not None:  # on every device, as it was: the next call expects it there
            state = jax.lax.with_sharding_constraint(state, plan.place)
        return state, *plan.readable(rest)

    return advance if lanes is None else lanes.lift(advance)


@cached_program(engine.jit)
def initialiser(method: Method, shapes: Any, mesh: Any = None) -> Callable[[Key, FederatedData], Any]:
    """Returns `(key, data) -> state`.

    Args:
        method: the method.
        shapes: of the data, see `cached_program`.
        mesh: the devices of the run.

    Raises:
        TypeError: when it is called, the state has no `cluster` or no `round`.
    """

    def init(key: Key, data: FederatedData) -> Any:  # not `method.init`: it lives longer, and the programs with it
        state = method.init(key, data.at(0))
        if lacking := [name for name in ("cluster", "round") if not hasattr(state, name)]:
            raise TypeError(
                f"init must return a state with the fields cluster [N] and round [], got a {type(state).__name__} "
                f"without {' and '.join(lacking)}; take a NamedTuple or a flax.struct.dataclass."
            )
        return state

    return default_mesh(mesh)(init)


def program_bytes(program: Any) -> int:
    """Returns the bytes of a compiled program's intermediate results."""
    analysis = program.memory_analysis()
    return 0 if analysis is None else int(analysis.temp_size_in_bytes)


def available_bytes() -> int | None:
    """Returns the free bytes of the device, of a CPU those of the machine; None where they are unknown."""
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        return stats["bytes_limit"] - stats["bytes_in_use"] if "bytes_limit" in stats else None
    return host_bytes()


def host_bytes() -> int | None:
    """Returns the free bytes of this machine's memory; None where they are unknown."""
    return _proc_bytes("meminfo", "MemAvailable")


def peak_bytes() -> int:
    """Returns the peak bytes of the device so far; of a CPU, those of this process; 0 where they are unknown."""
    stats = jax.local_devices()[0].memory_stats() if jax.default_backend() != "cpu" else None
    if stats and "peak_bytes_in_use" in stats:
        return int(stats["peak_bytes_in_use"])
    return _proc_bytes("self/status", "VmHWM") or peak_memory()


def _proc_bytes(file: str, name: str) -> int | None:
    """Returns the bytes of an entry in a file of Linux's `/proc`; None on another system."""
    try:
        lines = Path("/proc", file).read_text().splitlines()
    except OSError:
        return None
    found = (line.partition(":")[2] for line in lines if line.startswith(f"{name}:"))
    return next((int(value.split()[0]) * 1024 for value in found), None)


def _check_info(info: Info, clients: tuple[int, ...]) -> None:
    """Raises ValueError unless loss and cluster of an info have one number per client, and other entries one number.

    The names of what else a method says must be texts that files may hold.
    """
    if wrong := [name for name in info.extra if encodable(str(name)) != name]:
        raise ValueError(f"round must return info.extra with names that UTF-8 can encode, got {wrong[0]!r}; rename it.")
    for name, got in info._asdict().items():
        wanted = clients if name in ("loss", "cluster") else ()
        if name != "extra" and got.shape != wanted:
            raise ValueError(
                f"round must return info.{name} of shape {list(wanted)}, got {list(got.shape)}; jaxfl check says more."
            )
