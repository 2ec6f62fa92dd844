"""How well the clients are served: every client's own test rows under the model it is served; or of many, some.

Many clients share a model and a test set (four rotations of MNIST under four models are at most sixteen pairs, whatever
the number of clients), so the pass runs over the distinct pairs and its counts are handed to all who share one. What is
made of the counts is in `metrics.py`.

Who is tested together, and where the rows come from, is in `testers.py`.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import engine, tree
from jaxfl.client.passes import fold_rows
from jaxfl.cohort import Cohort, Plan
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.engine import by_size, over_clients
from jaxfl.methods.base import Method, keep_clusters
from jaxfl.simulation import kept_rows
from jaxfl.simulation.finetune import FineTune, trainer
from jaxfl.simulation.metrics import Evaluation, summarise
from jaxfl.simulation.program import kept, program_bytes, shapes_of
from jaxfl.simulation.testers import Block, in_windows, of_all, parted, resident
from jaxfl.typing import Array, Key

BLOCK = 1000  # test rows taken at once
FINETUNED = (  # of the metrics, those that are reported of fine-tuned models too
    *("micro_accuracy", "macro_accuracy", "micro_f1", "macro_f1", "unseen_micro_accuracy", "unseen_macro_accuracy"),
)


def evaluator(
    method: Method,
    data: FederatedData,
    plan: Plan = Plan(),
    finetune: FineTune | None = None,
    test_rows: int | None = None,
    *,
    clients: np.ndarray | None = None,
    stream: bool = False,
) -> Callable[[Key, Any], Evaluation]:
    """Returns `(key, state) -> Evaluation`; it compiles once for a method and may be called after any round.

    Args:
        method: gives the models (`assign`, then `client_params`) and the task.
        data: the federation.
        plan: how the engine walks through the clients.
        finetune: what clients train before they are tested a second time; None tests them once.
        test_rows: the most rows of a client that are tested; None tests all.
        clients: who is tested `[M]`, in ascending order; None tests all.
        stream: whether the rows stay on the host, and are sent in windows.
    """
    ids = np.arange(data.num_clients) if clients is None else clients
    if stream:
        assigns, trains = method.assign is not keep_clusters, finetune is not None
        blocks = in_windows(data, ids, plan, test_rows, assigns=assigns, trains=trains)
    else:
        blocks = resident(data, ids, plan, test_rows)
    few, note = (data, {}) if clients is None else (data.subset(ids), {"eval_clients": len(ids)})

    def summary(counts: np.ndarray, loss: np.ndarray, cluster: np.ndarray) -> Evaluation:
        found = summarise(counts.astype(np.int64), loss.astype(np.float64), cluster[ids], few)
        return of_all(found._replace(metrics=found.metrics | note), ids, cluster)

    def evaluate(key: Key, state: Any) -> Evaluation:
        cluster, plain, tuned = np.array(state.cluster), [], []
        split = parted if kept_rows.has_any(state) else lambda block: iter([block])
        for block in itertools.chain.from_iterable(map(split, blocks())):
            shapes = shapes_of(block.data, block.tested, block.ids)
            served = kept_rows.at_hand(state, block.ids, plan.place)
            if method.assign is not keep_clusters:  # else a copy of the state would be all that comes of it
                served = _assigner(method, plan, shapes)(key, served, block.data, block.ids, block.real)
            own = block.ids[block.real]
            cluster[own] = np.asarray(served.cluster)[own]
            plain.append(_counts(_counter(method, plan, shapes), served, block, cluster, plan))
            if finetune is not None:
                found = _tuner(method, finetune, plan, shapes)(key, served, block.tested, block.ids, block.real)
                tuned.append([np.asarray(leaf)[block.real] for leaf in found])
        counts, loss = map(np.concatenate, zip(*plain, strict=True))
        result = summary(counts, loss, cluster)
        if finetune is None:
            return result
        counts, loss, diverged = map(np.concatenate, zip(*tuned, strict=True))
        second = summary(counts, loss, cluster)
        metrics = {f"finetuned_{name}": second.metrics[name] for name in FINETUNED if name in second.metrics}
        metrics["finetuned_diverged"] = int(diverged.sum())
        return result._replace(metrics=result.metrics | metrics, finetuned=second)

    return evaluate


def evaluation_bytes(method: Method, key: Key, state: Any, data: FederatedData, plan: Plan, clients: int) -> int:
    """Returns the most bytes that an evaluation takes beside data and state.

    Args:
        method: the method.
        key: of a run.
        state: its shapes.
        data: its shapes.
        plan: how the engine walks through the clients.
        clients: that are tested in one go.
    """
    everywhere = None if plan.mesh is None else plan.place

    def there(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere)

    state, data, ids = jax.tree.map(there, (state, data, jax.ShapeDtypeStruct((clients,), jnp.int32)))
    real, shapes = there(jax.ShapeDtypeStruct(ids.shape, bool)), shapes_of(data, data, ids)
    tested = program_bytes(_counter(method, plan, shapes).lower(state, data, ids, real).compile())
    if method.assign is keep_clusters:
        return tested
    assigned = program_bytes(_assigner(method, plan, shapes).lower(key, state, data, ids, real).compile())
    return tree.num_bytes(state) + max(tested, assigned)  # its result is a state


def _counts(
    count: Callable[..., tuple[Array, Array]], state: Any, block: Block, cluster: np.ndarray, plan: Plan
) -> tuple[np.ndarray, np.ndarray]:
    """Returns counts `[M, 3, L]` and losses `[M]` of a block's real clients, with a pass over its distinct pairs."""
    own = block.ids[block.real]
    first, inverse = distinct(block.tested, cluster, own)
    # one program for every number of pairs: what is not needed is skipped, or with chunks kept below twice the need
    most = len(block.ids)
    width = most if plan.chunk == 1 else min(most, 1 << (len(first) - 1).bit_length())
    counts, loss = count(state, block.tested, np.resize(own[first], width), np.arange(width) < len(first))
    return np.asarray(counts)[inverse], np.asarray(loss)[inverse]


@kept
def _assigner(method: Method, plan: Plan, shapes: Any) -> Any:
    """Returns `(key, state, data, ids [M], real [M]) -> state` with their clusters up to date; compiled."""

    @jax.jit
    def assign(key: Key, state: Any, data: FederatedData, ids: Array, real: Array) -> Any:
        return plan.readable(engine.within(plan.mesh)(method.assign)(key, state, data, Cohort(ids, real, plan)))

    return assign


@kept
def _counter(method: Method, plan: Plan, shapes: Any) -> Any:
    """Returns `(state, data, ids [M], real [M]) -> (counts [M, 3, L], losses [M])`, zeros where not real; compiled."""

    @jax.jit
    def count(state: Any, data: FederatedData, ids: Array, real: Array) -> tuple[Array, Array]:
        def client(shared: Any, client: Array, real: Array) -> tuple[tuple, tuple[Array, Array]]:
            state, data = shared

            def run() -> tuple[Array, Array]:
                return count_rows(method, tree.take(method.client_params(state, client[None]), 0), data, client)

            return (), _where_needed(real, run)

        return plan.readable(over_clients(client, (state, data), Cohort.of(ids, plan), real)[1])

    return count


@kept
def _tuner(method: Method, finetune: FineTune, plan: Plan, shapes: Any) -> Callable[..., tuple]:
    """Returns `(key, state, data, ids [M], real [M]) -> (counts [M, 3, L], losses [M], diverged [M])`; compiled.

    A fine-tuned model lives as long as its client's test: there is a chunk of them, never a stack.
    """
    train = trainer(method, finetune)

    def client(shared: Any, client: Array) -> tuple[tuple, Any]:
        key, state, data = shared

        def run() -> Any:
            model, finite = train(key, state, data, client)
            return *count_rows(method, model, data, client), ~finite

        return (), _where_needed(data.test.size[client] > 0, run)

    @jax.jit
    def tune(key: Key, state: Any, data: FederatedData, ids: Array, real: Array) -> Any:
        cohort = by_size(data, Cohort(ids, real, plan))
        found = over_clients(client, (key, state, data), cohort)[1]
        everybody, count = data.num_clients, ids.shape[0]
        place = jnp.zeros(everybody, jnp.int32)  # of each client among the ids
        place = place.at[jnp.where(real, ids, everybody)].set(jnp.arange(count, dtype=jnp.int32), mode="drop")
        in_order = jax.tree.map(
            lambda leaf: jnp.zeros((count, *leaf.shape[1:]), leaf.dtype).at[place[cohort.ids]].set(leaf), found
        )
        return plan.readable(in_order)

    return tune


def _where_needed(real: Array, run: Callable[[], Any]) -> Any:
    """Returns what `run` returns, or zeros where it is not needed; one client at a time skips it then."""
    shapes = jax.eval_shape(run)
    return jax.lax.cond(real, run, lambda: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes))


def count_rows(method: Method, model: Any, data: FederatedData, client: Array) -> tuple[Array, Array]:
    """Returns counts `[3, L]` (true, predicted and correctly predicted rows of a class) and the sum of the losses."""

    def step(carry: tuple[Array, Array], batch: Batch) -> tuple[Array, Array]:
        counts, total = carry
        predicted = jnp.argmax(method.task.logits(model, batch), 1)  # [B]
        real = batch.mask[:, None]
        truth, guess = (jax.nn.one_hot(y, data.num_classes, dtype=bool) & real for y in (batch.y, predicted))
        found = jnp.stack([truth.sum(0), guess.sum(0), (truth & guess).sum(0)]).astype(jnp.int32)
        rows = batch.mask.sum().astype(total.dtype)
        return counts + found, total + method.task.loss(model, batch, None).astype(total.dtype) * rows

    zero = jnp.zeros((3, data.num_classes), jnp.int32), jnp.zeros((), jnp.float32)
    return fold_rows(step, zero, data, data.test, client, BLOCK)


def distinct(
    data: FederatedData, cluster: np.ndarray, ids: np.ndarray | slice = slice(None)
) -> tuple[np.ndarray, np.ndarray]:
    """Returns one client of each distinct (model, test rows as they are seen), and for every client which it shares.

    Args:
        data: the federation.
        cluster: of all clients `[N]`.
        ids: the clients that are looked at, and whose places are returned; all by default.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)  # two clients a rotation
    >>> [len(part) for part in distinct(data, np.zeros(8, int))]
    [4, 8]
    """
    rows = np.stack([np.asarray(column)[ids] for column in (cluster, *data.per_client("test").values())], 1)
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)
