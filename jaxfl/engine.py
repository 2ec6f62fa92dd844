"""One pass over the clients of a round: mapped inside a chunk, scanned over chunks, spread over devices.

A method writes the function of one client; `over_clients` runs it for the whole cohort in one compiled program and
adds up the contributions. The models of all clients never exist at once: at most one chunk of them is alive, and a sum
by cluster and a small record per client leave the chunk.

The client function is traced once, and its program is run as it is. Only where a client trains in coordinates and the
server needs nothing but sums of its kernels, `jaxfl.server.coordinate_sums` replaces it by one that does not make them.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import tree
from jaxfl.cohort import Cohort, Plan
from jaxfl.data import windows
from jaxfl.data.clients import FederatedData
from jaxfl.server import aggregate, coordinate_sums
from jaxfl.server.aggregate import add_many, add_one
from jaxfl.server.coordinate_sums import PRODUCT_CLIENTS, ClientWork
from jaxfl.server.flight_context import active_flight
from jaxfl.server.wire_context import active_wire
from jaxfl.typing import Array, Params

# Bytes of rows that are written at once, by devices that wait for each other; at least the rows of PRODUCT_CLIENTS.
WRITE_BYTES = 16 << 20
NO_ROW = np.iinfo(np.int32).max  # a row's place that nothing is written to
# XLA's CPU backend gives products, sums and convolutions to a library, YNN. Nothing is as fast as its products, but its
# convolutions take one core alone where there are few channels, and longer than XLA's own: those it is not given. What
# is best on GPUs is to be measured: `python -m experiments.speed.accelerator --only launch`.
COMPILER_OPTIONS: dict[str, dict[str, Any]] = {
    "cpu": {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"},
    "gpu": {},
}


def jit(fn: Callable, **options: Any) -> Any:
    """Returns `jax.jit(fn, **options)` of a program that trains or tests networks, compiled as they need it.

    `COMPILER_OPTIONS` has what XLA is told for each backend. On a CPU convolutions are XLA's own and not its library's:
    forward and gradient of 32 channels and more take half of the time on two cores
    (`python -m experiments.speed.convolutions`, with `--library` and without).

    Args:
        fn: the function.
        **options: of `jax.jit`.

    Raises:
        ValueError: the program is called inside another `jax.jit`: XLA takes options of whole programs alone.

    >>> jit(lambda x: x + 1)(1).item()
    2
    """
    return jax.jit(fn, compiler_options=COMPILER_OPTIONS.get(jax.default_backend()) or None, **options)


def over_clients(fn: Callable[..., tuple[Any, Any]], shared: Any, cohort: Cohort, *rows: Params) -> tuple[Any, Any]:
    """Runs `fn` for every client of the cohort.

    Args:
        fn: `(shared, client, *rows) -> (sums, kept)` for one client: `client` is its id `[]`, `rows` its own rows of
            `rows`. `sums` is a pytree of `aggregate.contribute(...)`, which the server receives as sums alone.
            `kept` is a small record.
        shared: given to every client (state, data, keys): a pytree, passed as an argument and never captured, or
            XLA would fold it as a constant and `shard_map` would refuse it.
        cohort: the clients of the round, and the plan: chunk and devices. Where each device has the rows of its own
            clients alone (see `jaxfl.data.windows`), the cohort of the round, in its order.
        *rows: pytrees with a leading axis `[C, ...]`, a row for each client of the cohort.

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
    return _over_cohort(fn, shared, cohort, None, rows)[:2]


def over_owners(
    fn: Callable[..., tuple[Any, Any, Params]], shared: Any, cohort: Cohort, own: Params, *rows: Params
) -> tuple[Any, Any, Params]:
    """Runs `fn` for every client of the cohort, which may change the client's own row, such as a personal model.

    A row is read when its client's turn comes, and written in its place with a few others: the rows of a cohort never
    exist beside those of all clients. Each of several devices has the rows of all clients, and writes those that all
    devices have computed.

    Args:
        fn: `(shared, client, row, *rows) -> (sums, kept, row)`: as in `over_clients`, and the client's row of `own`.
        shared: as there.
        cohort: as there; but for padding no client is in it twice.
        own: rows of all clients `[N, ...]`, reached by `tree.take` and `tree.put` alone, see `Method.per_client`.
        *rows: as there.

    Returns:
        `sums` and `kept` as there, and `own` after; padding changes no row.

    >>> from jaxfl.cohort import Cohort
    >>> grown = lambda shared, client, row: ((), row, row * shared)
    >>> over_owners(grown, jnp.int32(5), Cohort.of([2, 0]), jnp.array([1, 2, 3]))[2].tolist()
    [5, 2, 15]
    """
    return _over_cohort(fn, shared, cohort, own, rows)


def _over_cohort(
    fn: Callable[..., tuple], shared: Any, cohort: Cohort, own: Params | None, rows: Sequence[Params]
) -> tuple[Any, Any, Params | None]:
    """Returns `over_owners`, or where `own` is None `over_clients`: through the wire, where one is set.

    In an asynchronous round each client works from what it was sent at its start.
    """
    flight, wire = active_flight(), active_wire()
    run = _run_cohort if flight is None else functools.partial(flight.over, _run_cohort)
    return run(fn, shared, cohort, own, rows) if wire is None else wire.over(run, fn, shared, cohort, own, rows)


def _run_cohort(
    fn: Callable[..., tuple], shared: Any, cohort: Cohort, own: Params | None, rows: Sequence[Params]
) -> tuple[Any, Any, Params | None]:
    """Returns `_over_cohort` without a wire: on one device, or spread over several."""
    shared = jax.tree.map(jnp.asarray, shared)  # data still in host memory: NumPy arrays take no traced index
    mesh, count = cohort.plan.mesh, cohort.ids.shape[0]
    chunk, padding = _chunk_and_padding(cohort.plan, count)
    xs = jax.tree.map(lambda leaf: _pad(leaf, padding), (cohort.ids, *rows))
    mask = jnp.concatenate([cohort.mask, jnp.zeros(padding, bool)])  # padding clients are computed and thrown away
    if mesh is None:
        sums, kept, own = _over_device(fn, shared, own, mask, xs, chunk, None)
    else:
        # shard_map, not automatic partitioning: XLA replicates work that is batched over clients (openxla/xla 47945)
        spec = jax.sharding.PartitionSpec
        axis = mesh.axis_names[0]

        def on_each_device(shared: Any, own: Params, mask: Array, xs: Any) -> tuple[Any, Any, Params]:
            sums, kept, own = _over_device(fn, windows.local_window(shared, axis), own, mask, xs, chunk, axis)
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


def _over_device(
    fn: Callable[..., tuple], shared: Any, own: Params | None, mask: Array, xs: Any, chunk: int, axis: str | None
) -> tuple[Any, Any, Params | None]:
    """Runs `fn` for the clients of one device, adds up their contributions, and writes their own rows.

    Args:
        fn: as for `over_owners`, or where `own` is None for `over_clients`.
        shared: given to all clients.
        own: rows of all clients `[N, ...]`; None where clients have none.
        mask: `[C]` bool, False for padding.
        xs: given to each client, `[C, ...]`, its id first.
        chunk: how many clients are mapped, a divisor of C; at 1 they run one after another.
        axis: of the devices, each of which runs its clients and has the rows of all; None for one device.

    Returns:
        `(sums, kept, own)`: a total for each contribution, the records `[C, ...]`, and the rows of the clients of all
        devices after the round.
    """

    row = [] if own is None else [jax.eval_shape(tree.take, own, 0)]
    example, *given = tree.take(xs, 0)
    work = coordinate_sums.client_work(fn, shared, example, *row, *given)
    run, weigh, add = functools.partial(work.run, shared), functools.partial(coordinate_sums.weighted, work), add_one
    if chunk > 1:
        run, weigh, add = jax.vmap(run), jax.vmap(weigh), add_many

    def clients(own: Params | None, sums: Any, part: Any) -> tuple[Any, Any]:  # one, or a chunk of them
        mask, (ids, *given) = part
        row = [] if own is None else [tree.take(own, ids)]
        sent, kept, *rest = run(ids, *row, *given)
        after, in_coordinates = rest[: len(row)], rest[len(row) :]
        in_coordinates = weigh(sent, mask, in_coordinates)
        sums = jax.tree.map(lambda one, total: add(total, one, mask), sent, sums, is_leaf=aggregate.is_contribution)
        return sums, (kept, after, in_coordinates)

    def write(own: Params | None, mask: Array, ids: Array, after: list[Params]) -> Params | None:
        if not jax.tree.leaves(own):
            return own
        if axis is not None:
            mask, ids, after = jax.lax.all_gather((mask, ids, after), axis, tiled=True)
        return tree.put(own, jnp.where(mask, ids, NO_ROW), after[0])

    def group(carry: Any, parts: Any) -> tuple[Any, Any]:
        (sums, kernel_sums, own), (mask, (ids, *_)) = carry, parts
        step = functools.partial(clients, own)
        if chunk == 1:
            sums, results = jax.lax.scan(step, sums, parts)
        elif chunk == size:
            sums, results = step(sums, parts)
        else:
            sums, results = jax.lax.scan(step, sums, _split_axis(parts, chunk))
            results = _join_axes(results)
        kept, after, in_coordinates = results
        return (sums, coordinate_sums.add(kernel_sums, in_coordinates), write(own, mask, ids, after)), kept

    size = _group_size(work, own, mask.shape[0], chunk)
    parts = _split_axis((mask, xs), size)
    sums = jax.tree.map(aggregate.empty_total, work.sums, is_leaf=aggregate.is_contribution)
    carry = (sums, coordinate_sums.empty_sums(work), own)
    if size == mask.shape[0]:
        (sums, kernel_sums, own), kept = group(carry, tree.take(parts, 0))
    else:
        (sums, kernel_sums, own), kept = jax.lax.scan(group, carry, parts)
        kept = _join_axes(kept)
    return coordinate_sums.with_kernels(work, sums, kernel_sums), kept, own


def _group_size(work: ClientWork, own: Params | None, count: int, chunk: int) -> int:
    """Returns the number of clients whose kernels are summed by one product, and whose rows are written at once."""
    rows = jax.tree.leaves(jax.eval_shape(tree.take, own, 0))
    if rows:
        most = PRODUCT_CLIENTS if work.places else max(PRODUCT_CLIENTS, WRITE_BYTES // tree.num_bytes(rows))
    elif chunk > 1:
        most = chunk
    else:
        most = PRODUCT_CLIENTS if work.places else count
    return max(size for size in range(chunk, max(most, chunk) + 1, chunk) if count % size == 0)


def _split_axis(stacked: Any, size: int) -> Any:
    """Returns `[C, ...]` as `[C / size, size, ...]`."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, size, *leaf.shape[1:]), stacked)


def _join_axes(divided: Any) -> Any:
    """Returns `[G, S, ...]` as `[G * S, ...]`."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), divided)


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
        devices, padding = cohort.plan.mesh.size, _chunk_and_padding(cohort.plan, len(order))[1]
        ids, mask = _pad(ids, padding), jnp.concatenate([mask, jnp.zeros(padding, bool)])
        deal = np.arange(len(ids)).reshape(-1, devices).T.reshape(-1)
        ids, mask = ids[deal], mask[deal]
    return dataclasses.replace(cohort, ids=ids, mask=mask)


def padded_size(plan: Plan, size: int) -> int:
    """Returns the size of a cohort after `by_size`, which is a multiple of the number of devices."""
    return size if plan.mesh is None else size + _chunk_and_padding(plan, size)[1]


def _chunk_and_padding(plan: Plan, count: int) -> tuple[int, int]:
    """Returns the clients mapped on each device, and the padding with which all devices have equal numbers."""
    devices = 1 if plan.mesh is None else plan.mesh.size
    chunk = min(plan.chunk or count, -(-count // devices))
    return chunk, -count % (chunk * devices)


def _pad(leaf: Array, padding: int) -> Array:
    """Returns rows with the last one repeated, the smallest client's of a cohort by size; its results are masked."""
    return leaf if padding == 0 else jnp.concatenate([leaf, jnp.repeat(leaf[-1:], padding, 0)])
