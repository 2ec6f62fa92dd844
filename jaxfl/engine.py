"""One pass over the clients of a round: mapped inside a chunk, scanned over chunks, spread over devices.

A method writes what one client does; `over_clients` runs it for the whole cohort in one compiled program and adds up
what the clients send. The models of all clients never exist at once: at most one chunk of them is alive, and what
leaves the chunk is a sum by cluster and a small record per client.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import tree
from jaxfl.cohort import Cohort, DevicesChoice, Plan, PlanChoice
from jaxfl.data import windows
from jaxfl.data.clients import FederatedData
from jaxfl.server import coordinate_sums
from jaxfl.typing import Array, Params

COPIES = 6  # models alive per mapped client: its own, gradient, update, start, and room for activations
CACHE_BYTES = 1 << 20  # of the mapped clients' models on a CPU: the second-level cache of a core
# XLA's CPU backend gives products, sums and convolutions to a library, YNN. Nothing is as fast as its products, but its
# convolutions take one core alone where there are few channels, and longer than XLA's own: those it is not given.
LIBRARY = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"}
WIDEST = 128  # clients mapped on a CPU: logistic models gain nothing beyond (71 ms at 1, 29 at 17, 26 at 128)


def jit(fn: Callable, **options: Any) -> Any:
    """Returns `jax.jit(fn, **options)` of a program that trains or tests networks, compiled as they need it.

    On a CPU convolutions are XLA's own and not its library's: forward and gradient of 32 channels and more take half of
    the time on two cores (`python -m experiments.speed.convolutions`, with `--library` and without).

    Args:
        fn: the function.
        **options: of `jax.jit`.

    Raises:
        ValueError: the program is called inside another `jax.jit`: XLA takes options of whole programs alone.

    >>> jit(lambda x: x + 1)(1).item()
    2
    """
    return jax.jit(fn, compiler_options=LIBRARY if jax.default_backend() == "cpu" else None, **options)


def over_clients(fn: Callable[..., tuple[Any, Any]], shared: Any, cohort: Cohort, *rows: Params) -> tuple[Any, Any]:
    """Runs `fn` for every client of the cohort.

    Args:
        fn: `(shared, client, *rows) -> (sums, kept)` for one client: `client` is its id `[]`, `rows` its own rows of
            `rows`. `sums` is a pytree of `aggregate.contribute(...)`: what a server may receive. `kept` is a small
            record.
        shared: what every client is sent (state, data, keys): a pytree, passed as an argument and never captured, or
            XLA would fold it as a constant and `shard_map` would refuse it.
        cohort: who takes part, and the plan: chunk and devices. Where each device has the rows of its own clients alone
            (see `jaxfl.data.windows`), that of the round, in its order.
        *rows: pytrees with a leading axis `[C, ...]`: what belongs to each client of the cohort.

    Returns:
        `sums` with every contribution replaced by its `aggregate.Total`, and `kept` stacked `[C, ...]` in the cohort's
        order (rows of padding clients hold anything).

    >>> from jaxfl.cohort import Cohort
    >>> from jaxfl.server import aggregate
    >>> double = lambda shared, client: (aggregate.contribute({"w": shared * client}, jnp.float32(1)), client)
    >>> sums, kept = over_clients(double, jnp.int32(2), Cohort.of([4, 1]))
    >>> sums.values["w"].tolist(), kept.tolist()
    ([10], [4, 1])
    """

    def one(shared: Any, client: Array, nothing: Params, *rows: Params) -> tuple[Any, Any, Params]:
        return *fn(shared, client, *rows), nothing

    return over_owners(one, shared, cohort, (), *rows)[:2]


def over_owners(
    fn: Callable[..., tuple[Any, Any, Params]], shared: Any, cohort: Cohort, own: Params, *rows: Params
) -> tuple[Any, Any, Params]:
    """Runs `fn` for every client of the cohort, and lets it change what belongs to the client, such as a model.

    A row is read when its client's turn comes, and written in its place with a few others: the rows of a cohort never
    exist beside those of all clients. Each of several devices has the rows of all, and writes what all have made.

    Args:
        fn: `(shared, client, row, *rows) -> (sums, kept, row)`: as in `over_clients`, and the client's row of `own`.
        shared: as there.
        cohort: as there; but for padding nobody is named twice.
        own: rows of all clients `[N, ...]`, reached by `tree.take` and `tree.put` alone, see `Method.per_client`.
        *rows: as there.

    Returns:
        `sums` and `kept` as there, and `own` after; padding changes no row.

    >>> from jaxfl.cohort import Cohort
    >>> grown = lambda shared, client, row: ((), row, row * shared)
    >>> over_owners(grown, jnp.int32(5), Cohort.of([2, 0]), jnp.array([1, 2, 3]))[2].tolist()
    [5, 2, 15]
    """
    shared = jax.tree.map(jnp.asarray, shared)  # data still in host memory: NumPy arrays take no traced index
    mesh, count = cohort.plan.mesh, cohort.ids.shape[0]
    chunk, padding = _dealt(cohort.plan, count)
    xs = jax.tree.map(lambda leaf: _pad(leaf, padding), (cohort.ids, *rows))
    mask = jnp.concatenate([cohort.mask, jnp.zeros(padding, bool)])  # padding clients are computed and thrown away

    def on_one_device(shared: Any, own: Params, mask: Array, xs: Any, axis: str | None) -> tuple[Any, Any, Params]:
        client, *given = tree.take(xs, 0)
        work = coordinate_sums.read(fn, shared, client, jax.eval_shape(tree.take, own, client), *given)
        return coordinate_sums.add_all(work, shared, own, mask, xs, chunk, axis)

    if mesh is None:
        sums, kept, own = on_one_device(shared, own, mask, xs, None)
    else:
        # shard_map, not automatic partitioning: XLA replicates work that is batched over clients (openxla/xla 47945)
        spec = jax.sharding.PartitionSpec
        axis = mesh.axis_names[0]

        def on_each_device(shared: Any, own: Params, mask: Array, xs: Any) -> tuple[Any, Any, Params]:
            sums, kept, own = on_one_device(windows.local_window(shared, axis), own, mask, xs, axis)
            return jax.lax.psum(sums, axis), kept, own

        spread = jax.shard_map(
            on_each_device,
            mesh=mesh,
            in_specs=(windows.window_specs(shared, axis), spec(), spec(axis), spec(axis)),
            out_specs=(spec(), spec(axis), spec()),
            check_vma=False,
        )
        sums, kept, own = spread(shared, own, mask, xs)
    return sums, jax.tree.map(lambda leaf: leaf[:count], kept), own


def by_size(data: FederatedData, cohort: Cohort) -> Cohort:
    """Returns the cohort with its largest clients first, so that a chunk holds clients of like size; dealt to devices.

    A chunk runs to its largest client. Sorted, the log-normal cohorts of FEMNIST make 1,240 steps instead of 5,000 for
    1,119 useful ones. The order changes nothing else; one client at a time needs no order, and is left in its own. Of
    several devices each gets as many clients, with masked ones where they do not divide.
    """
    if cohort.plan.chunk == 1 and cohort.plan.mesh is None:
        return cohort
    order = jnp.argsort(jnp.where(cohort.mask, -data.train.size[cohort.ids], 1), stable=True)
    ids, mask = cohort.ids[order], cohort.mask[order]
    if cohort.plan.mesh is not None:
        # dealt like cards: contiguous blocks would give the first device all the large clients, and the last one all of
        # the padding
        devices, padding = cohort.plan.mesh.size, _dealt(cohort.plan, len(order))[1]
        ids, mask = _pad(ids, padding), jnp.concatenate([mask, jnp.zeros(padding, bool)])
        deal = np.arange(len(ids)).reshape(-1, devices).T.reshape(-1)
        ids, mask = ids[deal], mask[deal]
    return dataclasses.replace(cohort, ids=ids, mask=mask)


def places(plan: Plan, size: int) -> int:
    """Returns how many clients `by_size` makes of a cohort: as many for each of several devices."""
    return size if plan.mesh is None else size + _dealt(plan, size)[1]


def _dealt(plan: Plan, count: int) -> tuple[int, int]:
    """Returns how many clients are mapped on each device, and how many are to be added so that devices have as many."""
    devices = 1 if plan.mesh is None else plan.mesh.size
    chunk = min(plan.chunk or count, -(-count // devices))
    return chunk, -count % (chunk * devices)


def _pad(leaf: Array, padding: int) -> Array:
    """Repeats the last row, the smallest client's of a cohort by size; valid work whose result is masked out."""
    return leaf if padding == 0 else jnp.concatenate([leaf, jnp.repeat(leaf[-1:], padding, 0)])


def resolve_plan(plan: PlanChoice, model: Params, size: int, *, models: int = 1, devices: DevicesChoice = None) -> Plan:
    """Returns the plan itself, or for `"auto"` one for this machine: how many clients to train side by side.

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
        ValueError: it is neither, its chunk is below 1, there are not so many devices, or the plan has others already.

    >>> resolve_plan("auto", {"w": jnp.zeros(10**7)}, 100).chunk, resolve_plan(Plan(chunk=3), {}, 100).chunk
    (1, 3)
    >>> resolve_plan("auto", {"w": jnp.zeros(100)}, 130, devices=1).chunk  # where 128 fit, not 128 and 2
    65
    """
    mesh = mesh_of(plan, devices)
    if isinstance(plan, Plan):
        return plan._replace(mesh=mesh)
    size = size if mesh is None else -(-size // mesh.size)
    model_bytes = COPIES * tree.num_bytes(model)
    if jax.default_backend() == "cpu":
        fits = min(WIDEST, CACHE_BYTES // model_bytes)
    else:
        limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 8 << 30)
        fits = int(limit / 4) // model_bytes
    passes = -(-size // max(1, fits // models))
    return Plan(chunk=-(-size // passes), mesh=mesh)  # evenly: what a last chunk lacks is computed and thrown away


def mesh_of(plan: PlanChoice, devices: DevicesChoice = None) -> jax.sharding.Mesh | None:
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
    given = _within.get()
    return _mesh(devices) if given is None or devices is not None else given[0]


@contextlib.contextmanager
def within(mesh: jax.sharding.Mesh | None) -> Iterator[None]:
    """Inside, plans that are resolved for no devices in particular take these: a method's own passes over clients."""
    token = _within.set((mesh,))
    try:
        yield
    finally:
        _within.reset(token)


_within: contextvars.ContextVar[tuple[jax.sharding.Mesh | None] | None] = contextvars.ContextVar("within", default=None)


def _mesh(devices: DevicesChoice) -> jax.sharding.Mesh | None:
    """Returns the devices to spread the clients over, as many of every process; None for one."""
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
            f"every process must have as many devices, got {[*map(len, by_process)]}; CUDA_VISIBLE_DEVICES hides some."
        )
    return jax.sharding.Mesh(np.concatenate([some[:devices] for some in by_process]), ("clients",))


def halved(plan: Plan, size: int) -> Plan | None:
    """Returns the plan with half as many clients side by side; None where there is one only.

    >>> halved(Plan(chunk=None), 7), halved(Plan(chunk=1), 7)
    (Plan(chunk=3, mesh=None), None)
    """
    chunk = size if plan.chunk is None else min(plan.chunk, size)
    return plan._replace(chunk=chunk // 2) if chunk > 1 else None
