"""Confusion matrices of a classification, one for each cluster."""

import math
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import tree
from jaxfl.data.clients import Batch
from jaxfl.simulation.evaluation.metrics import counted_clients
from jaxfl.simulation.prepared import Prepared
from jaxfl.simulation.result import TrainedRun
from jaxfl.tasks import Metrics
from jaxfl.tasks.metrics import ACCURACY
from jaxfl.typing import Array


class ClassConfusion(NamedTuple):
    """Test rows by cluster, true class and predicted class, see `class_confusion`."""

    counts: np.ndarray  # [K, L, L] int64: of cluster k, rows of class i that are taken for class j
    cluster: np.ndarray  # [K] slots of the models; -1 for clients that have none


def class_confusion(result: TrainedRun) -> ClassConfusion:
    """Returns the confusion matrix of each cluster: its clients' test rows under the models that they are served.

    Counted are the clients that the run's accuracy is of: those that are tested, neither held out nor attackers. So
    the diagonals' share of all rows is `micro_accuracy`. It costs one evaluation.

    Args:
        result: of `jaxfl.run` or `jaxfl.load`, of a classification.

    Raises:
        ValueError: the result does not know its method, or classifies nothing.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> result = jaxfl.run(jaxfl.methods.ifca(task, optax.sgd(0.1), num_clusters=2), data, rounds=2)
    >>> found = class_confusion(result)
    >>> found.counts.shape[1:], int(found.counts.sum()) == int(result.evaluation.rows.sum())
    ((10, 10), True)
    """
    method, data, run = result.method, replace(result.data, validation=None), result.evaluation
    if method is None or method.task.metrics is not ACCURACY:
        got = "one without its method" if method is None else f"one whose metrics are {', '.join(run.values)}"
        raise ValueError(f"result must be of a classification (jaxfl.classification), got {got}.")
    number = data.num_classes
    counted = method._replace(task=method.task._replace(metrics=_pair_metrics(number)))
    tested = np.flatnonzero(run.rows) if "eval_clients" in run.metrics else None
    prepared = Prepared.of(method, data, data.num_clients if tested is None else len(tested))._replace(method=counted)
    (rows,) = prepared.place([data])
    found = prepared.evaluator(rows, sample=tested)(
        jax.random.key(result.seed), tree.placed(result.state, prepared.plan.place)
    )

    clients = (found.rows > 0) & counted_clients(data)
    columns = np.stack([found.values[_pair_name(*pair)] for pair in np.ndindex(number, number)], 1)
    pairs = columns[clients].astype(np.int64)
    clusters, place = np.unique(found.cluster[clients], return_inverse=True)
    counts = np.zeros((len(clusters), number * number), np.int64)
    np.add.at(counts, place, pairs)
    return ClassConfusion(counts.reshape(-1, number, number), clusters)


def _pair_name(truth: int, guess: int) -> str:
    return f"{truth} as {guess}"


def _pair_metrics(number: int) -> Metrics:
    """Returns metrics that are the entries of a client's confusion matrix."""

    def counts(outputs: Array, batch: Batch) -> Array:
        pair = batch.y * number + jnp.argmax(outputs, 1)  # [B]
        return jax.nn.one_hot(pair, number * number, dtype=bool)

    def values(sums: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
        return {_pair_name(*divmod(pair, number)): sums[:, pair] for pair in range(math.prod(sums.shape[1:]))}

    return Metrics(counts, values, pooled=False)
