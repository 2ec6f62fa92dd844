"""Who is tested in an evaluation, in which blocks, and where their rows come from."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from jaxfl.cohort import Plan
from jaxfl.data.clients import FederatedData, Split
from jaxfl.data.windows import Windows
from jaxfl.random import host_rng
from jaxfl.simulation.metrics import Evaluation, counting

EVERYBODY = 10_000  # clients that are all tested unless another number is asked for
BESIDE = 250  # clients of a window


class Block(NamedTuple):
    """Clients that are tested in one go."""

    ids: np.ndarray  # [M] int32; what is not real repeats the first
    real: np.ndarray  # [M] bool
    data: FederatedData  # has their rows, if the method's `assign` reads them
    tested: FederatedData  # has their test rows, if need be thinned, and if they train the training rows too


Blocks = Callable[[], Iterator[Block]]


def sampled_clients(data: FederatedData, most: int | None, seed: int) -> np.ndarray | None:
    """Returns who is tested `[M]` in ascending order, the same clients in every evaluation; None tests all.

    Args:
        data: the federation.
        most: how many clients; None is `EVERYBODY`. Drawn are those with test rows, and where clients arrive or leave
            those who are there all the time, if there are such.
        seed: of the run.

    Raises:
        ValueError: less than one.

    >>> from jaxfl.data import synthetic
    >>> data = synthetic.clustered_linear(8)
    >>> sampled_clients(data, None, 0) is None, len(sampled_clients(data, 3, 0))
    (True, 3)
    """
    if most is not None and most < 1:
        raise ValueError(f"eval_clients must be at least 1, got {most}; none tests all of up to {EVERYBODY} clients.")
    most = EVERYBODY if most is None else most
    if data.num_clients <= most:
        return None
    there = [np.asarray(now.test.size) > 0 for now in data.phases]
    there += [~np.asarray(now.absent) for now in data.phases if now.absent is not None]
    able = np.flatnonzero(np.all(there, 0))
    able = able if len(able) else np.flatnonzero(np.asarray(data.test.size))
    drawn = host_rng(seed, "eval_clients").permutation(able) if len(able) else np.arange(data.num_clients)
    count = counting(data)[drawn]
    if count.any() and not count[:most].any():  # the metrics of the run would be of nobody
        drawn = np.concatenate([drawn[count][:1], drawn[~count]])
    return np.sort(drawn[:most])


def resident(data: FederatedData, ids: np.ndarray, plan: Plan, test_rows: int | None) -> Blocks:
    """Returns one block of everybody that is tested, of rows on the device.

    Args:
        data: the federation.
        ids: who is tested.
        plan: has the devices.
        test_rows: the most rows of a client that are tested, or None.
    """
    tested = data if test_rows is None else _thinned(data, ids, test_rows).on_device(plan.mesh)
    whole = Block(ids.astype(np.int32), np.ones(len(ids), bool), data, tested)
    return lambda: iter([whole])


def in_windows(
    data: FederatedData, ids: np.ndarray, plan: Plan, test_rows: int | None, *, assigns: bool, trains: bool
) -> Blocks:
    """Returns blocks of the same shapes, of rows on the host; every call reads them anew.

    Args:
        data: the federation.
        ids: who is tested.
        plan: has the devices.
        test_rows: the most rows of a client that are tested, or None.
        assigns: whether the rows decide what clients are served.
        trains: whether clients train before a second test.
    """
    beside = min(BESIDE, len(ids))
    tested = data if test_rows is None else _thinned(data, ids, test_rows)
    both = Windows(data, beside, ("train", "test"), plan.mesh) if assigns else None
    if both is None or test_rows is not None:
        own = Windows(tested, beside, ("train", "test") if trains else ("test",), plan.mesh)
    else:
        own = both

    def blocks() -> Iterator[Block]:
        for padded, real in _parts(ids, beside):
            few = padded[real]
            window = own.of(few)
            yield Block(padded, real, window if both in (own, None) else both.of(few), window)

    return blocks


def parted(block: Block) -> Iterator[Block]:
    """Yields blocks of at most `BESIDE` clients, of the same shapes; one that has no more as it is."""
    own = block.ids[block.real]
    if len(block.ids) <= BESIDE:
        yield block
        return
    for padded, real in _parts(own, BESIDE):
        yield block._replace(ids=padded, real=real)


def of_all(found: Evaluation, ids: np.ndarray, cluster: np.ndarray) -> Evaluation:
    """Returns the evaluation of some clients as one of all `[N]`: NaN for those that were not tested.

    Args:
        found: of the clients `ids`.
        ids: who was tested.
        cluster: of all clients.
    """

    def spread(values: np.ndarray) -> np.ndarray:
        everybody = np.full(len(cluster), np.nan)
        everybody[ids] = values
        return everybody

    rows = np.zeros(len(cluster), np.int64)
    rows[ids] = found.rows
    values = {name: spread(one) for name, one in found.values.items()}
    return found._replace(values=values, rows=rows, loss=spread(found.loss), cluster=cluster)


def _parts(ids: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields parts of this size, int32, and what of each is real."""
    for begin in range(0, len(ids), size):
        few = ids[begin : begin + size].astype(np.int32)
        yield np.resize(few, size), np.arange(size) < len(few)


def _thinned(data: FederatedData, ids: np.ndarray, test_rows: int) -> FederatedData:
    """Returns the federation with at most so many test rows of each client `ids`, and none of anybody else."""
    mine = np.zeros(data.num_clients, bool)
    mine[ids] = True
    start, size = (np.where(mine, np.asarray(part), 0).astype(np.int32) for part in (data.test.start, data.test.size))
    few: Split = replace(data.test, start=start, size=size)
    return replace(data, test=few.thinned(test_rows))
