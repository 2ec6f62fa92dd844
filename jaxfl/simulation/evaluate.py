"""How well the clients are served: every client's own test rows under the model it is served.

Many clients share a model and a test set (four rotations of MNIST under four models are at most sixteen pairs, whatever
the number of clients), so the pass runs over the distinct pairs and its counts are handed to all who share one. What is
made of the counts is in `metrics.py`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import tree
from jaxfl.client.passes import fold_rows
from jaxfl.cohort import Cohort, Plan
from jaxfl.data.clients import Batch, FederatedData
from jaxfl.engine import by_size, over_clients
from jaxfl.methods.base import Method
from jaxfl.simulation.finetune import FineTune, trainer
from jaxfl.simulation.metrics import Evaluation, summarise
from jaxfl.simulation.program import kept, shapes_of
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
) -> Callable[[Key, Any], Evaluation]:
    """Returns `(key, state) -> Evaluation`; it compiles once for a method and may be called after any round.

    Args:
        method: gives the models (`assign`, then `client_params`) and the task.
        data: the federation.
        plan: how the engine walks through the clients.
        finetune: what clients train before they are tested a second time; None tests them once.
        test_rows: the most rows of a client that are tested; None tests all.
    """
    tested = data if test_rows is None else dataclasses.replace(data, test=data.test.thinned(test_rows)).on_device()
    assign, shapes = _assigner(method, plan, shapes_of(data)), shapes_of(tested)
    count = _counter(method, plan, shapes)
    tune = None if finetune is None else _tuner(method, finetune, plan, shapes)

    def evaluate(key: Key, state: Any) -> Evaluation:
        state = assign(key, state, data)
        cluster = np.asarray(state.cluster)
        first, inverse = distinct(tested, cluster)
        # one program for every number of pairs: what is not needed is skipped, or with chunks kept below twice the need
        width = data.num_clients if plan.chunk == 1 else min(data.num_clients, 1 << (len(first) - 1).bit_length())
        ids = np.resize(first, width)
        counts, loss = count(state, tested, ids, np.arange(width) < len(first))
        counts, loss = np.asarray(counts)[inverse], np.asarray(loss, np.float64)[inverse]
        plain = summarise(counts.astype(np.int64), loss, cluster, data)
        if tune is None:
            return plain
        (counts, loss), diverged = tune(key, state, tested)
        tuned = summarise(np.asarray(counts, np.int64), np.asarray(loss, np.float64), cluster, data)
        metrics = {f"finetuned_{name}": tuned.metrics[name] for name in FINETUNED if name in tuned.metrics}
        metrics["finetuned_diverged"] = int(np.asarray(diverged).sum())
        return plain._replace(metrics=plain.metrics | metrics, finetuned=tuned)

    return evaluate


@kept
def _assigner(method: Method, plan: Plan, shapes: Any) -> Callable[[Key, Any, FederatedData], Any]:
    """Returns `(key, state, data) -> state` with everybody's cluster up to date; compiled."""

    @jax.jit
    def assign(key: Key, state: Any, data: FederatedData) -> Any:
        return method.assign(key, state, data, Cohort.of(jnp.arange(data.num_clients), plan))

    return assign


@kept
def _counter(method: Method, plan: Plan, shapes: Any) -> Callable[..., tuple[Array, Array]]:
    """Returns `(state, data, ids [M], real [M]) -> (counts [M, 3, L], losses [M])`, zeros where not real; compiled."""

    @jax.jit
    def count(state: Any, data: FederatedData, ids: Array, real: Array) -> tuple[Array, Array]:
        def client(shared: Any, client: Array, real: Array) -> tuple[tuple, tuple[Array, Array]]:
            state, data = shared

            def run() -> tuple[Array, Array]:
                return count_rows(method, tree.take(method.client_params(state, client[None]), 0), data, client)

            return (), _where_needed(real, run)

        return over_clients(client, (state, data), Cohort.of(ids, plan), real)[1]

    return count


@kept
def _tuner(method: Method, finetune: FineTune, plan: Plan, shapes: Any) -> Callable[..., tuple]:
    """Returns `(key, state, data) -> (counts, loss), diverged` of all clients `[N, ...]`, fine-tuned; compiled.

    A fine-tuned model lives as long as its client's test: there is a chunk of them, never a stack.
    """
    train = trainer(method, finetune)

    def client(shared: Any, client: Array) -> tuple[tuple, Any]:
        key, state, data = shared

        def run() -> Any:
            model, finite = train(key, state, data, client)
            return count_rows(method, model, data, client), ~finite

        return (), _where_needed(data.test.size[client] > 0, run)

    @jax.jit
    def tune(key: Key, state: Any, data: FederatedData) -> Any:
        cohort = by_size(data, Cohort.of(jnp.arange(data.num_clients), plan))
        found = over_clients(client, (key, state, data), cohort)[1]

        def of_all(leaf: Array) -> Array:  # devices that share a cohort evenly may have its last client more than once
            return jnp.zeros((data.num_clients, *leaf.shape[1:]), leaf.dtype).at[cohort.ids].set(leaf)

        return jax.tree.map(of_all, found)

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


def distinct(data: FederatedData, cluster: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns one client of each distinct (model, test rows as they are seen), and for every client which it shares.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)  # two clients a rotation
    >>> [len(part) for part in distinct(data, np.zeros(8, int))]
    [4, 8]
    """
    rows = np.stack([np.asarray(column) for column in (cluster, *data.per_client("test").values())], 1)
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)
