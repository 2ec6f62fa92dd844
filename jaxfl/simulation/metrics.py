"""The metrics of an evaluation, from counts of every client's test rows. To add one, add it to `summarise`.

What is reported, of the clients with test rows:

- `micro_accuracy`, `micro_f1`, `loss`: weighted by test rows; `macro_accuracy`, `macro_f1`: every client the same.
  A client's F1 is the mean F1 of the classes present in its test rows. (FeSEM's tables weight by train + test rows.)
- `std_accuracy`, `p5_accuracy` ... `p90_accuracy`, `worst_decile_accuracy` (the mean of the worst tenth): over clients.
- `ari`, `nmi`, `purity`, `num_clusters`: found clusters against true groups, of the clients that have a cluster; None
  where the true groups are unknown.
- `unseen_micro_accuracy`, `unseen_macro_accuracy`: of held-out clients, who are in none of the numbers above.
- `attackers` (how many), `attackers_micro_accuracy`, `attackers_macro_accuracy`: where some clients attack (see
  `jaxfl.data.conditions`), who are in none of the numbers above.
- `finetuned_micro_accuracy`, `finetuned_macro_accuracy`, `finetuned_micro_f1`, `finetuned_macro_f1`: the same of models
  that every client has first trained on its own training rows, see `FineTune`; where asked for.
  `finetuned_unseen_micro_accuracy`, `finetuned_unseen_macro_accuracy` are of held-out clients, who do so as well.
  `finetuned_diverged` counts clients whose model was not finite then; they, and clients without training rows, are
  tested with the model that they are served.
- `validation_micro_accuracy`, `validation_loss` and so on: the same of validation rows, where rows are set apart (see
  `jaxfl.data.divide`), under the models that clients are served; for choices that must not look at test rows.
- `eval_clients`: how many, where a sample of the clients is tested. All numbers are theirs, those of clusters too.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxfl.clustering import scores
from jaxfl.data.clients import FederatedData


class Evaluation(NamedTuple):
    """One evaluation of all clients, or of a sample: the others have NaN, and the cluster that they were last in."""

    metrics: dict[str, Any]  # by the names above; plain numbers, ready for JSON
    accuracy: np.ndarray  # [N], NaN for a client without test rows
    f1: np.ndarray  # [N]
    loss: np.ndarray  # [N]
    cluster: np.ndarray  # [N] slot of the model that each client is served, -1 for none
    finetuned: "Evaluation | None" = None  # the same of fine-tuned models, where asked for

    def __repr__(self) -> str:
        """Returns a line: it has some numbers for every client."""
        names = ("micro_accuracy", "macro_accuracy", "loss", "num_clusters")
        return f"Evaluation({len(self.cluster)} clients, {in_a_line(self.metrics, names)})"


def in_a_line(numbers: Mapping[str, Any], names: Sequence[str]) -> str:
    """Returns some numbers, four digits of each.

    >>> in_a_line({"rounds": 3, "loss": 0.123456, "ari": None}, ["rounds", "loss", "ari"])
    'rounds=3, loss=0.1235, ari=None'
    """
    values = {name: numbers.get(name) for name in names}
    return ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items())


def summarise(counts: np.ndarray, loss: np.ndarray, cluster: np.ndarray, data: FederatedData) -> Evaluation:
    """Turns counts into metrics.

    Args:
        counts: `[N, 3, L]`, see `count_rows`.
        loss: `[N]` sums of losses.
        cluster: `[N]`.
        data: the federation.
    """
    truth, guess, hits = counts[:, 0], counts[:, 1], counts[:, 2]  # [N, L]
    rows = truth.sum(1)  # [N]
    with np.errstate(invalid="ignore", divide="ignore"):
        accuracy = hits.sum(1) / rows
        by_class = np.where(truth > 0, 2 * hits / np.maximum(truth + guess, 1), 0.0)
        f1 = by_class.sum(1) / (truth > 0).sum(1)
        loss = loss / rows
    held_out = np.zeros(data.num_clients, bool) if data.held_out is None else np.asarray(data.held_out)
    attacker = np.zeros(data.num_clients, bool) if data.attack is None else np.asarray(data.attack.attacker)
    served, unseen, hostile = (rows > 0) & ~held_out & ~attacker, (rows > 0) & held_out, (rows > 0) & attacker

    def micro(values: np.ndarray, who: np.ndarray) -> float | None:
        return float(np.average(values[who], weights=rows[who])) if who.any() else None

    def macro(values: np.ndarray, who: np.ndarray) -> float | None:
        return float(values[who].mean()) if who.any() else None

    metrics: dict[str, Any] = {
        "micro_accuracy": micro(accuracy, served),
        "macro_accuracy": macro(accuracy, served),
        "micro_f1": micro(f1, served),
        "macro_f1": macro(f1, served),
        "loss": micro(loss, served),
        **spread(accuracy[served]),
        **found(cluster, data, ~held_out & ~attacker),
        "clusters": [
            {
                "cluster": int(k),
                "clients": int((cluster == k).sum()),
                "micro_accuracy": micro(accuracy, served & (cluster == k)),
            }
            for k in np.unique(cluster)[:100]  # a model per client would repeat every client
        ],
    }
    if held_out.any():
        metrics |= {"unseen_micro_accuracy": micro(accuracy, unseen), "unseen_macro_accuracy": macro(accuracy, unseen)}
    if attacker.any():
        metrics |= {
            "attackers": int(attacker.sum()),
            "attackers_micro_accuracy": micro(accuracy, hostile),
            "attackers_macro_accuracy": macro(accuracy, hostile),
        }
    return Evaluation(metrics, accuracy, f1, loss, cluster)


def spread(accuracy: np.ndarray) -> dict[str, float | None]:
    """Returns how unequal the accuracies `[M]` are: standard deviation, percentiles, mean of the worst tenth."""
    names = ["std_accuracy", *(f"p{q}_accuracy" for q in (5, 10, 50, 90)), "worst_decile_accuracy"]
    if not len(accuracy):
        return dict.fromkeys(names)
    worst = np.sort(accuracy)[: max(1, len(accuracy) // 10)]
    return dict(
        zip(names, map(float, [accuracy.std(), *np.percentile(accuracy, [5, 10, 50, 90]), worst.mean()]), strict=True)
    )


def found(cluster: np.ndarray, data: FederatedData, who: np.ndarray) -> dict[str, Any]:
    """Returns how the found clusters agree with the true groups, of the clients `who [N]` that have a cluster."""
    who = who & (cluster >= 0)
    number = len(np.unique(cluster[who]))
    if data.group is None or not who.any():
        return {"num_clusters": number, "ari": None, "nmi": None, "purity": None}
    truth, labels = np.asarray(data.group)[who], cluster[who]
    return {
        "num_clusters": number,
        "ari": scores.adjusted_rand_index(truth, labels),
        "nmi": scores.normalized_mutual_information(truth, labels),
        "purity": scores.purity(truth, labels),
    }
