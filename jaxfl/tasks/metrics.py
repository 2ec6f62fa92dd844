"""Metrics of test rows: the counts of a row, and the values of a client's sums.

Rows are looked at on the device and summed there, client by client; only the sums are kept. What is made of the metrics
of all clients (means, percentiles, the worst tenth, ...) is in `jaxfl.simulation.evaluation.metrics`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfl.data.clients import Batch
from jaxfl.data.labels import MASKED
from jaxfl.typing import Array


class Metrics(NamedTuple):
    """Metrics of test rows.

    Attributes:
        counts: `(outputs [B, ...], batch) -> counts`, what each row contributes: a pytree of arrays `[B, ...]`, numbers
            or bools. Padding is left out of the sums by who calls it.
        values: `(sums, rows) -> {name: [N]}` of NumPy arrays: the counts summed over each client's rows `[N, ...]`, and
            how many rows these are `[N]`. The first one is the main metric, of which spread, clusters and unseen
            clients are reported. NaN where a client's rows do not define it.
        lower: names of those that are better where they are lower.
        pooled: micro metrics are those of all clients' rows together; False takes the clients' mean, weighted by rows.
        class_counts: `sums -> (rows of each class, rows taken for it, rows that are both)`, each `[N, L]`; None of
            metrics that know no classes.
        ranked: `(outputs [T, ...], labels [T, ...], mask [T]) -> {name: []}`, further metrics of all rows of a client
            together, which are no sums over rows, such as ranks; None has none. Padding is not in the mask.
        by_class: whether `class_counts` are reported, as `class_recall`, `class_precision` and `class_f1`.

    >>> def counts(outputs, batch):
    ...     return {"close": jnp.abs(outputs[:, 0] - batch.y) < 0.5}
    >>> close = Metrics(counts, lambda sums, rows: {"close": sums["close"] / rows})
    >>> close.values({"close": np.array([1, 3])}, np.array([4, 4]))["close"].tolist()
    [0.25, 0.75]
    """

    counts: Callable[[Array, Batch], Any]
    values: Callable[[Any, np.ndarray], Mapping[str, np.ndarray]]
    lower: tuple[str, ...] = ()
    pooled: bool = True
    class_counts: Callable[[Any], tuple[np.ndarray, np.ndarray, np.ndarray]] | None = None
    ranked: Callable[[Array, Array, Array], Mapping[str, Array]] | None = None
    by_class: bool = False


def _classes(outputs: Array, batch: Batch) -> tuple[Array, Array, Array]:
    """Returns the class of each row, the one predicted, and where these are the same, each `[B, L]` bool."""
    predicted = jnp.argmax(outputs, 1)  # [B]
    truth, guess = (jax.nn.one_hot(y, outputs.shape[1], dtype=bool) for y in (batch.y, predicted))
    return truth, guess, truth & guess


def _accuracy(sums: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Returns accuracy, and the mean F1 of the classes that a client has."""
    truth, guess, hits = sums  # [N, L]
    by_class = np.where(truth > 0, 2 * hits / np.maximum(truth + guess, 1), 0.0)
    return {"accuracy": hits.sum(1) / rows, "f1": by_class.sum(1) / (truth > 0).sum(1)}


# A client's F1 is of its own classes: of all rows together it would be of other classes.
ACCURACY = Metrics(_classes, _accuracy, pooled=False, class_counts=lambda sums: sums)


def of_targets(center: np.ndarray) -> Metrics:
    """Returns the metrics of regression: `mse`, `mae` and `r2`, means over the targets of a row.

    Args:
        center: about the mean of the targets `[L]`: squares of what is near 0 lose no digits.
    """

    def counts(outputs: Array, batch: Batch) -> dict[str, Array]:
        targets = batch.y.reshape(outputs.shape)  # [B, L]
        around, away = targets - jnp.asarray(center, targets.dtype)[None], targets - outputs
        return {"around": around, "squares": around**2, "squared": away**2, "absolute": jnp.abs(away)}

    def values(sums: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        squared = sums["squared"].sum(1)
        spread = (sums["squares"] - sums["around"] ** 2 / rows[:, None]).sum(1)  # of the client's own targets
        flat = spread <= 1e-6 * sums["squares"].sum(1)  # of equal targets, rounding is left
        r2 = np.where(flat, np.nan, 1 - squared / np.where(flat, 1.0, spread))
        number = rows * sums["squared"].shape[1]
        return {"mse": squared / number, "mae": sums["absolute"].sum(1) / number, "r2": r2}

    return Metrics(counts, values, lower=("mse", "mae"))


def _flags(outputs: Array, batch: Batch) -> tuple[Array, ...]:
    """Returns which labels a row has, which are predicted, which are both, and which are right, each `[B, L]` bool."""
    guess = outputs > 0
    return batch.y, guess, batch.y & guess, batch.y == guess


def _labels(sums: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the share of labels that are right, F1 of all labels together, and the mean F1 of the labels there are.

    The last two are called micro-F1 and macro-F1 elsewhere.
    """
    truth, guess, hits, right = sums  # [N, L]
    some = (truth + guess).sum(1)
    together = np.where(some > 0, 2 * hits.sum(1) / np.maximum(some, 1), np.nan)
    by_label = np.where(truth > 0, 2 * hits / np.maximum(truth + guess, 1), 0.0)
    there = (truth > 0).sum(1)
    mean = np.where(there > 0, by_label.sum(1) / np.maximum(there, 1), np.nan)
    return {"accuracy": right.mean(1) / rows, "f1": together, "label_f1": mean}


LABELS = Metrics(_flags, _labels, class_counts=lambda sums: sums[:3])


def _tokens(outputs: Array, batch: Batch) -> dict[str, Array]:
    """Returns of each row the tokens to be learned, those predicted, and the sum of their losses `[B]`."""
    known = batch.y != MASKED  # [B, T]
    losses = optax.softmax_cross_entropy_with_integer_labels(outputs, jnp.where(known, batch.y, 0))
    hits = known & (jnp.argmax(outputs, 2) == batch.y)
    return {"tokens": known.sum(1), "hits": hits.sum(1), "losses": jnp.where(known, losses, 0).sum(1)}


def _perplexity(sums: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the share of tokens that are predicted, and e to the mean loss of a token."""
    return {"accuracy": sums["hits"] / sums["tokens"], "perplexity": np.exp(sums["losses"] / sums["tokens"])}


TOKENS = Metrics(_tokens, _perplexity, lower=("perplexity",))
