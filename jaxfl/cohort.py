"""The clients of a round, and the plan by which the engine walks through them."""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxfl import tree
from jaxfl.typing import Array, Params

MODEL_COPIES = 6  # models alive per mapped client: its own, gradient, update, start, and room for activations
CACHE_BYTES = 1 << 20  # of the mapped clients' models on a CPU: the second-level cache of a core
MOST_MAPPED = 128  # clients mapped on a CPU: logistic models gain nothing beyond (71 ms at 1, 29 at 17, 26 at 128)


class Plan(NamedTuple):
    """The chunk and the devices with which a cohort is computed; static, so every plan is a program of its own.

    Attributes:
        chunk: clients trained side by side (the mapped axis); None takes the whole cohort at once.
        mesh: a `jax.sharding.Mesh` with one axis, `"clients"`, to spread the chunks over devices; None uses one device.
    """

    chunk: int | None = 1
    mesh: Any = None

    @property
    def place(self) -> Any:
        """The sharding of arrays that every device needs: replicated over the mesh, or on the first device."""
        if self.mesh is None:
            return jax.local_devices()[0]
        return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())

    @property
    def copies(self) -> int:
        """The number of copies of such arrays in one memory: the cores of a CPU, as devices, share theirs."""
        return 1 if self.mesh is None or jax.default_backend() != "cpu" else len(self.mesh.local_devices)

    def readable(self, arrays: Any) -> Any:
        """Returns arrays of a program so that each of several processes can read them whole; traceable."""
        if self.mesh is None or not self.mesh.is_multi_process:
            return arrays
        return jax.lax.with_sharding_constraint(arrays, self.place)


PlanChoice = Plan | Literal["auto"]  # what `resolve_plan` makes a plan of
DevicesChoice = int | Literal["all"] | None  # how many of them, see there


@struct.dataclass
class Cohort:
    """The clients of one round.

    Attributes:
        ids: client ids `[C]`, int32.
        mask: False on padding `[C]`; a padded entry changes nothing.
        plan: the chunk and the devices.
        expected: of Poisson sampling, the expected number of clients `[]` float32; None where the mask has as many as
            were to be drawn.
    """

    ids: Array
    mask: Array
    plan: Plan = struct.field(pytree_node=False, default=Plan())
    expected: Array | None = None

    @classmethod
    def of(cls, ids: Sequence[int] | Array, plan: Plan = Plan()) -> "Cohort":
        """Returns the cohort of these clients, all of them real.

        >>> Cohort.of([3, 1]).mask.tolist()
        [True, True]
        """
        # made on the host: on the device each length would be a program or two
        ids = jnp.asarray(ids if isinstance(ids, jax.Array) else np.asarray(ids, np.int32), jnp.int32)
        return cls(ids=ids, mask=jnp.asarray(np.ones(ids.shape, bool)), plan=plan)


def resolve_plan(plan: PlanChoice, model: Params, size: int, *, models: int = 1, devices: DevicesChoice = None) -> Plan:
    """Returns the plan itself, or for `"auto"` one for this machine.

    On the CPU one client at a time keeps its weights in cache and every core on its matrix products: 242-281 GFLOP/s
    against 80-87 with all clients mapped (784-2048-10 network, 50 rows, two cores). Models so small that several fit
    the cache gain from being mapped: logistic regression is 2.7 times as fast at 128 clients. (784-200-10 would gain
    15 % at 4, but its batched products then take four times as long for seconds at a time.) On an accelerator chunks
    are as large as memory allows, up to the whole cohort.

    Args:
        plan: a `Plan`, or `"auto"`.
        model: the model that a client trains, or its shapes.
        size: clients of a cohort.
        models: how many such models each client trains at once.
        devices: how many of each process's devices, or `"all"`. None takes all that are accelerators, the cores that
            `use_cores` has made devices, or one CPU; with a `Plan`, those of the plan.

    Raises:
        ValueError: `plan` is neither, its chunk is below 1, there are not so many devices, or it has a mesh already.

    >>> resolve_plan("auto", {"w": jnp.zeros(10**7)}, 100).chunk, resolve_plan(Plan(chunk=3), {}, 100).chunk
    (1, 3)
    >>> resolve_plan("auto", {"w": jnp.zeros(100)}, 130, devices=1).chunk  # where 128 fit, not 128 and 2
    65
    """
    mesh = resolve_mesh(plan, devices)
    if isinstance(plan, Plan):
        return plan._replace(mesh=mesh)
    size = size if mesh is None else -(-size // mesh.size)
    model_bytes = MODEL_COPIES * tree.num_bytes(model)
    if jax.default_backend() == "cpu":
        fits = min(MOST_MAPPED, CACHE_BYTES // model_bytes)
    else:
        limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 8 << 30)
        fits = int(limit / 4) // model_bytes
    passes = -(-size // max(1, fits // models))
    return Plan(chunk=-(-size // passes), mesh=mesh)  # evenly: what a last chunk lacks is computed and thrown away


def resolve_mesh(plan: PlanChoice, devices: DevicesChoice = None) -> jax.sharding.Mesh | None:
    """Returns the devices of the plan that `resolve_plan` returns.

    Raises:
        ValueError: as there.
    """
    if isinstance(plan, Plan) and plan.chunk is not None:
        whole = isinstance(plan.chunk, int | np.integer) and not isinstance(plan.chunk, bool)
        if not (whole and 1 <= plan.chunk < 2**31):
            raise ValueError(f"chunk must be a whole number from 1 on, got {plan.chunk!r}; None takes all at once.")
    if isinstance(plan, Plan) and devices is None and (plan.mesh is not None or jax.process_count() == 1):
        return plan.mesh
    if isinstance(plan, Plan) and plan.mesh is not None:
        raise ValueError(f"devices must be None where the plan has a mesh, got {devices!r}; leave one of them out.")
    if not isinstance(plan, Plan) and plan != "auto":
        raise ValueError(f'plan must be a jaxfl.Plan or "auto", got {plan!r}; Plan(chunk=8) trains 8 clients at once.')
    given = _default_mesh.get()
    return _make_mesh(devices) if given is None or devices is not None else given[0]


@contextlib.contextmanager
def default_mesh(mesh: jax.sharding.Mesh | None) -> Iterator[None]:
    """Sets the mesh that plans resolved inside take by default: those of a method's own passes over clients."""
    token = _default_mesh.set((mesh,))
    try:
        yield
    finally:
        _default_mesh.reset(token)


_default_mesh: contextvars.ContextVar[tuple[jax.sharding.Mesh | None] | None] = contextvars.ContextVar(
    "default_mesh", default=None
)


def _make_mesh(devices: DevicesChoice) -> jax.sharding.Mesh | None:
    """Returns a mesh of `devices` devices of every process; None for one device."""
    there = jax.local_devices()
    if devices is None:
        cores = jax.config.values["jax_num_cpu_devices"] > 1
        devices = "all" if cores or there[0].platform != "cpu" else 1
    if devices == "all":
        devices = len(there)
    if not isinstance(devices, int) or not 1 <= devices <= len(there):
        raise ValueError(f'devices must be 1 to {len(there)}, those of this process, or "all", got {devices!r}.')
    if devices == 1 and jax.process_count() == 1:
        return None
    by_process = [jax.local_devices(process) for process in range(jax.process_count())]
    if len({*map(len, by_process)}) > 1:
        raise ValueError(
            f"devices must be as many in every process, got {[*map(len, by_process)]}; CUDA_VISIBLE_DEVICES hides some."
        )
    return jax.sharding.Mesh(np.concatenate([some[:devices] for some in by_process]), ("clients",))


def halve_chunk(plan: Plan, size: int) -> Plan | None:
    """Returns the plan with half the chunk; None where the chunk is 1.

    >>> halve_chunk(Plan(chunk=None), 7), halve_chunk(Plan(chunk=1), 7)
    (Plan(chunk=3, mesh=None), None)
    """
    chunk = size if plan.chunk is None else min(plan.chunk, size)
    return plan._replace(chunk=chunk // 2) if chunk > 1 else None
