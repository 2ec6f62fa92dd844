"""Optional metrics of classes: the area under the ROC curve, and recall, precision and F1 of each class."""

import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxfl.schema import check_name
from jaxfl.tasks.contract import Task
from jaxfl.typing import Array

AUC, PER_CLASS = "auc", "per_class"
CLASS_METRICS = (AUC, PER_CLASS)
MAX_CLASSES = 1000  # of lists in a run's history


def parse_metrics(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Returns the names of optional metrics, in the order of `CLASS_METRICS`.

    Args:
        given: `"auc"`, `"per_class"` or both, separated by a comma or a plus, or in a list; None is none.

    Raises:
        ValueError: a name is unknown.

    >>> parse_metrics("per_class+auc"), parse_metrics(None)
    (('auc', 'per_class'), ())
    """
    names = re.split(r"\s*[,+]\s*", given.strip()) if isinstance(given, str) else list(given or ())
    for name in names:
        check_name("metrics", name, CLASS_METRICS)
    return tuple(name for name in CLASS_METRICS if name in names)


def with_metrics(task: Task, metrics: str | Sequence[str]) -> Task:
    """Returns the task with optional metrics, which change nothing of the training.

    - `auc`: of each client, the area under the ROC curve of each class of its test rows against its other test rows,
      and their mean over the classes (one-vs-rest, macro): `micro_auc`, `macro_auc` and so on, as for accuracy. NaN for
      a client with one class alone. It is exact, by ranks: the probabilities of one client's rows are sorted on the
      device, and no outputs are kept beyond the clients that are tested side by side.
    - `per_class`: `class_recall` (the accuracy on the rows of a class), `class_precision` and `class_f1`, a list with a
      number for each class, over all clients' rows; None where it is not defined.

    Args:
        task: of classes; `per_class` also of several labels for each row.
        metrics: as `parse_metrics` takes them.

    Raises:
        ValueError: a name is unknown, or the task has no classes, or too many for lists.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = with_metrics(jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data), "auc,per_class")
    >>> summary = jaxfl.run(jaxfl.methods.fedavg(task, optax.sgd(0.1)), data, rounds=2).summary
    >>> 0.5 < summary["macro_auc"] < 1, len(summary["class_recall"])
    (True, 10)
    """
    names, known = parse_metrics(metrics), task.metrics
    if names and known.class_counts is None:
        raise ValueError(f"metrics must be left out for a task whose metrics know no classes, got {','.join(names)}.")
    if AUC in names and known.pooled:
        raise ValueError(
            "metrics must not have auc for rows with several labels, got auc; per_class is defined for them."
        )
    if PER_CLASS in names and task.rows is not None and task.rows.num_classes > MAX_CLASSES:
        raise ValueError(
            f"metrics must not have per_class for {task.rows.num_classes:,} classes, above {MAX_CLASSES:,}."
        )
    ranked = one_vs_rest if AUC in names else known.ranked
    return task._replace(metrics=known._replace(ranked=ranked, by_class=PER_CLASS in names or known.by_class))


def one_vs_rest(outputs: Array, labels: Array, mask: Array) -> dict[str, Array]:
    """Returns `auc []`, the mean over classes of the area under the ROC curve of one class against the others.

    Rows are ranked by the probability of the class. Classes without rows, or with all of them, are left out; NaN where
    no class is left, or an output is not finite.

    Args:
        outputs: logits `[T, L]`.
        labels: classes `[T]`.
        mask: `[T]`, False on padding.

    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]]))
    >>> float(one_vs_rest(logits, jnp.array([0, 1, 1, 0]), jnp.ones(4, bool))["auc"])
    0.75
    """
    positive = jax.nn.one_hot(labels, outputs.shape[1], dtype=bool) & mask[:, None]  # [T, L]
    areas = jax.vmap(_area_under_curve, (1, 1, None))(_log_odds(outputs), positive, mask)  # [L]
    defined = ~jnp.isnan(areas)
    finite = (jnp.isfinite(outputs) | ~mask[:, None]).all()
    mean = jnp.where(defined, areas, 0).sum() / jnp.maximum(defined.sum(), 1).astype(areas.dtype)
    return {AUC: jnp.where(defined.any() & finite, mean, jnp.nan)}


def _log_odds(outputs: Array) -> Array:
    """Returns log p / (1 - p) of each class `[T, L]`: in the order of p, but different where p rounds to 1."""
    best = jax.nn.one_hot(jnp.argmax(outputs, 1), outputs.shape[1], dtype=bool)
    others = jax.nn.logsumexp(jnp.where(best, -jnp.inf, outputs), 1, keepdims=True)
    log_p = jnp.where(best, -jnp.inf, jax.nn.log_softmax(outputs))  # at most log 1/2
    return jnp.where(best, outputs - others, log_p - jnp.log1p(-jnp.exp(log_p)))


def _area_under_curve(scores: Array, positive: Array, mask: Array) -> Array:
    """Returns the share of pairs of a positive and a negative row in which the positive one is higher, ties by half.

    Args:
        scores: of the rows `[T]`.
        positive: rows of the class `[T]`.
        mask: `[T]`, False on padding.
    """
    negative = mask & ~positive
    count = negative.sum(dtype=jnp.int32)
    below = jnp.sort(jnp.where(negative, scores, jnp.inf))
    first, last = (jnp.searchsorted(below, scores, side=side).astype(jnp.int32) for side in ("left", "right"))
    won = (jnp.minimum(first, count) + jnp.minimum(last, count)).astype(scores.dtype) / 2
    share = jnp.where(positive, won / jnp.maximum(count, 1).astype(scores.dtype), 0).sum()
    number = positive.sum(dtype=jnp.int32)
    return jnp.where((number > 0) & (count > 0), share / jnp.maximum(number, 1).astype(scores.dtype), jnp.nan)
