"""The metrics of an evaluation, from sums over every client's test rows. One for all tasks is added in `summarise`.

What is measured is the task's, see `jaxfl.tasks.Metrics`: `accuracy` and `f1` of classification, `mse`, `mae` and `r2`
of regression, ... The first is the main one; below, `accuracy` stands for it. Reported is, of the clients with test
rows:

- `micro_accuracy`, `micro_f1`, `loss`: weighted by test rows (of tasks whose metrics are pooled, of all rows together:
  all but classification); `macro_accuracy`, `macro_f1`: every client the same. A client's F1 is the mean F1 of the
  classes present in its test rows. (FeSEM's tables weight by train + test rows.)
- `std_accuracy`, `p5_accuracy` ... `p90_accuracy`, `worst_decile_accuracy` (the mean of the worst tenth: of the
  highest, where lower is better): over clients.
- `ari`, `nmi`, `purity`, `num_clusters`: found clusters against true groups, of the clients that have training rows and
  a cluster; None where the true groups are unknown.
- `ari_rotation`, `ari_labels`, `ari_classes` ...: the same clusters against the clients' patterns of each cause alone,
  where the groups were planted by several causes, see `jaxfl.data.causes`.
- `silhouette`, `davies_bouldin`, `wasserstein_silhouette`, `wasserstein_davies_bouldin`: the found clusters of the same
  clients where the true groups are unknown, by their rows, see `cohesion.py`; None unless there are at least two
  clusters, and one has two clients. Data with true groups have none of these.
- `unseen_micro_accuracy`, `unseen_macro_accuracy`: of held-out clients, which are in none of the numbers above.
- `attackers` (how many), `attackers_micro_accuracy`, `attackers_macro_accuracy`: where some clients attack (see
  `jaxfl.data.conditions`), which are in none of the numbers above.
- `attack_success_rate`: where attackers have a backdoor, the share of test rows with the trigger, of the clients of
  `micro_accuracy` and of other classes than the trigger's, that are taken for its class; under the served models.
- `finetuned_micro_accuracy`, `finetuned_macro_accuracy`, `finetuned_micro_f1`, `finetuned_macro_f1`: the same of models
  that every client has first trained on its own training rows, see `FineTune`; only with `finetune`.
  `finetuned_unseen_micro_accuracy`, `finetuned_unseen_macro_accuracy` are those of held-out clients.
  `finetuned_diverged` counts clients whose model was not finite then; they, and clients without training rows, are
  tested with the model that they are served.
- `validation_micro_accuracy`, `validation_loss` and so on: the same of validation rows, where rows are set apart (see
  `jaxfl.data.divide`), under the models that clients are served; for choices that must not look at test rows.
- `shared_macro_accuracy`, `weighted_macro_accuracy`, `concept_macro_accuracy`: of one test set for all clients, with
  `test_sets`, see `test_sets.py`.
- `micro_auc`, `macro_auc` and so on, and `class_recall`, `class_precision`, `class_f1`, lists with a number for each
  class: with `metrics`, see `jaxfl.tasks.with_metrics`.
- `eval_clients`: how many, where a sample of the clients is tested. All numbers are theirs, those of clusters too.

A metric that a client's rows do not define (R2 of equal targets) is NaN for that client, and left out of the means; not
where its loss is not finite.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxfl.clustering import scores
from jaxfl.data.clients import FederatedData
from jaxfl.host.text import encodable
from jaxfl.tasks import Metrics

# of whom or when an entry of a record is, what it is of their metrics, and the metric
NAME = re.compile(
    "((before_drift|at_drift|area|finetuned|validation|shared|weighted|concept|unseen|attackers|train)_)*"
    r"((micro|macro|std|worst_decile|p\d+)_)?(?P<metric>.+?)"
)
SUCCESS = "attack_success_rate"
CAUSE_PREFIX = "ari_"  # begins the agreement with the patterns of one cause
# of data without true groups alone; the second and the last are better where they are lower
COHESION_METRICS = ("silhouette", "davies_bouldin", "wasserstein_silhouette", "wasserstein_davies_bouldin")
COLUMNS = frozenset(("client", "name", "group", "held_out", "cluster", "train_rows", "test_rows", "loss"))  # of clients


OtherMetrics = tuple[dict[str, Any], dict[str, np.ndarray]]  # of all clients, and of each [N], by their names


class Totals(NamedTuple):
    """Sums over the test rows of each client."""

    sums: Any  # of the task's metrics, arrays [N, ...]
    loss: Any  # [N]
    rows: Any  # [N] int32
    ranked: Any = None  # the task's metrics that are no sums, by their names [N]; None without any


class Evaluation(NamedTuple):
    """One evaluation of all clients or of a sample; other clients have NaN, and the cluster that they were last in.

    The metrics of each client have names of their own, too: `evaluation.accuracy` is `evaluation.values["accuracy"]`.
    """

    metrics: dict[str, Any]  # by the names above; plain numbers, ready for JSON
    values: dict[str, np.ndarray]  # the task's metrics, the main one first: [N], NaN for a client without test rows
    rows: np.ndarray  # [N] test rows that were looked at
    loss: np.ndarray  # [N]
    cluster: np.ndarray  # [N] slot of the model that each client is served, -1 for none
    finetuned: "Evaluation | None" = None  # the same of fine-tuned models, with `finetune`
    others: Mapping[
        str, np.ndarray
    ] = {}  # [N] metrics of other rows, such as `validation_accuracy`; `excluded` clients

    @property
    def main(self) -> str:
        """Returns the name of the task's main metric."""
        return next(iter(self.values))

    def __getattr__(self, name: str) -> np.ndarray:
        """Returns one of the task's metrics, of each client `[N]`."""
        if name not in self.values:
            raise AttributeError(f"an evaluation has no {name!r}; metrics of clients are {', '.join(self.values)}.")
        return self.values[name]

    def __repr__(self) -> str:
        """Returns a line: it has some numbers for every client."""
        names = (f"micro_{self.main}", f"macro_{self.main}", "loss", "num_clusters")
        return f"Evaluation({len(self.cluster)} clients, {numbers_phrase(self.metrics, names)})"


def history_columns(found: Evaluation) -> dict[str, np.ndarray]:
    """Returns the numbers of each client `[N]` that a history of the clients has."""
    columns = {"cluster": found.cluster, "rows": found.rows, **found.values, "loss": found.loss}
    if found.finetuned is not None:
        columns |= {f"finetuned_{name}": values for name, values in found.finetuned.values.items()}
    return columns | dict(found.others)


def counted_clients(data: FederatedData) -> np.ndarray:
    """Returns the mask `[N]` of the clients in the run's metrics: neither held out nor attackers."""
    out = np.zeros(data.num_clients, bool) if data.held_out is None else np.asarray(data.held_out)
    return ~out if data.attack is None else ~(out | np.asarray(data.attack.attacker))


def cluster_is_known(evaluation: Evaluation, data: FederatedData) -> np.ndarray:
    """Returns the mask `[N]` of clients whose cluster is known: those of the evaluation sample that have not left."""
    seen = evaluation.rows > 0 if "eval_clients" in evaluation.metrics else np.ones(len(evaluation.cluster), bool)
    return seen if data.absent is None else seen & ~np.asarray(data.absent)


def main_metric(record: Mapping[str, Any]) -> str:
    """Returns the name of the main metric of a record or a summary; `accuracy` where it has none.

    >>> main_metric({"round": 5, "micro_mse": 0.1, "micro_mae": 0.2})
    'mse'
    """
    return next((name.removeprefix("micro_") for name in record if name.startswith("micro_")), "accuracy")


def is_lower_better(name: str, lower: Iterable[str]) -> bool:
    """Returns whether an entry of a record is better where it is lower.

    Args:
        name: of the entry, such as `unseen_micro_mse`.
        lower: metrics that are, as `summary["lower_is_better"]` names them; a loss and the success of attackers always
            are, and a Davies-Bouldin index.

    >>> is_lower_better("unseen_micro_mse", ["mse"]), is_lower_better("micro_no_mse", ["mse"])
    (True, False)
    """
    found, named = {"loss", SUCCESS, *COHESION_METRICS[1::2], *lower}, NAME.fullmatch(name)
    return name in found or (named is not None and named["metric"] in found)


def numbers_phrase(numbers: Mapping[str, Any], names: Sequence[str]) -> str:
    """Returns a phrase with some numbers, four digits of each.

    >>> numbers_phrase({"rounds": 3, "loss": 0.123456, "ari": None}, ["rounds", "loss", "ari"])
    'rounds=3, loss=0.1235, ari=None'
    """
    values = {name: numbers.get(name) for name in names}
    return ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items())


def join_totals(parts: Sequence[Totals]) -> Totals:
    """Returns the totals of several blocks of clients, concatenated, in the precision of the host."""

    def joined(*leaves: Any) -> np.ndarray:
        leaf = np.concatenate(leaves)
        return leaf.astype(np.float64 if leaf.dtype.kind == "f" else np.int64)

    return jax.tree.map(joined, *parts)


def summarise(task: Metrics, tested: Totals, cluster: np.ndarray, data: FederatedData) -> Evaluation:
    """Returns the evaluation of totals.

    Args:
        task: what is measured.
        tested: sums of every client.
        cluster: `[N]`.
        data: the federation.
    """
    rows = tested.rows  # [N]
    values = _client_values(task, tested.sums, rows)
    values |= {name: np.where(rows > 0, one, np.nan) for name, one in (tested.ranked or {}).items()}
    with np.errstate(invalid="ignore", divide="ignore"):
        loss = tested.loss / rows
    main = next(iter(values))
    held_out = np.zeros(data.num_clients, bool) if data.held_out is None else np.asarray(data.held_out)
    attacker = np.zeros(data.num_clients, bool) if data.attack is None else np.asarray(data.attack.attacker)
    served, unseen, hostile = (rows > 0) & ~held_out & ~attacker, (rows > 0) & held_out, (rows > 0) & attacker

    def defined(name: str, who: np.ndarray) -> np.ndarray:
        return who & ~(np.isnan(values[name]) & np.isfinite(loss))

    def micro(name: str, who: np.ndarray) -> float | None:
        if task.pooled:
            some = np.flatnonzero(who)
            sums = jax.tree.map(lambda leaf: leaf[some].sum(0, keepdims=True), tested.sums)
            found = float(_client_values(task, sums, rows[some].sum(keepdims=True))[name][0])
            lost = math.isnan(found) and np.isfinite(loss[some]).all()  # not even all rows together define it
            return found if len(some) and not lost else None
        who = defined(name, who)
        return float(np.average(values[name][who], weights=rows[who])) if who.any() else None

    def macro(name: str, who: np.ndarray) -> float | None:
        who = defined(name, who)
        return float(values[name][who].mean()) if who.any() else None

    def both(name: str, who: np.ndarray, prefix: str = "") -> dict[str, float | None]:
        return {f"{prefix}micro_{name}": micro(name, who), f"{prefix}macro_{name}": macro(name, who)}

    metrics: dict[str, Any] = {
        **{key: value for name in values for key, value in both(name, served).items()},
        "loss": float(np.average(loss[served], weights=rows[served])) if served.any() else None,
        **client_spread(values[main][defined(main, served)], main, lower=main in task.lower),
        **cluster_scores(cluster, data, counted_clients(data) & (np.asarray(data.train.size) > 0)),
        "clusters": [
            {
                "cluster": int(k),
                "clients": int((cluster == k).sum()),
                f"micro_{main}": micro(main, served & (cluster == k)),
            }
            for k in np.unique(cluster)[:100]  # a model per client would repeat every client
        ],
    }
    if task.by_class and task.class_counts is not None:
        metrics |= class_metrics(*(one[served].sum(0) for one in task.class_counts(tested.sums)))
    if held_out.any():
        metrics |= both(main, unseen, "unseen_")
    if attacker.any():
        metrics |= {"attackers": int(attacker.sum()), **both(main, hostile, "attackers_")}
    excluded = held_out | attacker
    return Evaluation(metrics, values, rows, loss, cluster, others={"excluded": excluded} if excluded.any() else {})


def class_metrics(truth: np.ndarray, predicted: np.ndarray, hits: np.ndarray) -> dict[str, list[float | None]]:
    """Returns recall, precision and F1 of each class, None where a class has no rows, or none are taken for it.

    Args:
        truth: rows of each class `[L]`.
        predicted: rows taken for it `[L]`.
        hits: rows that are both `[L]`.

    >>> class_metrics(np.array([4, 0]), np.array([2, 2]), np.array([1, 0]))
    {'class_recall': [0.25, None], 'class_precision': [0.5, 0.0], 'class_f1': [0.3333333333333333, None]}
    """
    with np.errstate(invalid="ignore"):
        recall, precision = hits / truth, hits / predicted
        f1 = np.where(truth > 0, 2 * hits / (truth + predicted), np.nan)
    found = {"class_recall": recall, "class_precision": precision, "class_f1": f1}
    return {name: [None if math.isnan(one) else one for one in values.tolist()] for name, values in found.items()}


def finetuned_names(evaluation: Evaluation) -> list[str]:
    """Returns the names of the metrics that are reported for fine-tuned models too."""
    wanted = [f"{kind}_{name}" for name in evaluation.values for kind in ("micro", "macro")]
    wanted += [f"unseen_{kind}_{evaluation.main}" for kind in ("micro", "macro")]
    return [name for name in wanted if name in evaluation.metrics]


def client_spread(values: np.ndarray, name: str = "accuracy", *, lower: bool = False) -> dict[str, float | None]:
    """Returns the spread of a metric over clients `[M]`: standard deviation, percentiles, mean of the worst tenth."""
    names = [f"std_{name}", *(f"p{q}_{name}" for q in (5, 10, 50, 90)), f"worst_decile_{name}"]
    if not len(values):
        return dict.fromkeys(names)
    if np.isnan(values).any():  # a client without a value may be the worst
        return dict.fromkeys(names, math.nan)
    worst = np.sort(-values if lower else values)[: max(1, len(values) // 10)]
    with np.errstate(invalid="ignore"):  # of infinite ones
        numbers = [values.std(), *np.percentile(values, [5, 10, 50, 90]), -worst.mean() if lower else worst.mean()]
    return dict(zip(names, map(float, numbers), strict=True))


def _client_values(task: Metrics, sums: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the task's metrics of each client `[N]`, NaN of a client without rows.

    Raises:
        ValueError: they are not one number for each client.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        made = {name: np.asarray(one, np.float64) for name, one in task.values(sums, rows).items()}
    wrong = [name for name, one in made.items() if one.shape != rows.shape]
    if wrong or not made:
        got = f"{made[wrong[0]].shape} for {wrong[0]!r}" if wrong else "none"
        raise ValueError(f"metrics must be one number for each client {rows.shape}, got {got}; keep the axis [N].")
    if isinstance(task.lower, str):
        raise ValueError(f"lower must be a tuple of names, got {task.lower!r}; give ({task.lower!r},).")
    if unknown := sorted(set(task.lower) - made.keys()):
        raise ValueError(f"lower must name metrics ({', '.join(made)}), got {unknown[0]!r}.")
    if taken := sorted(made.keys() & COLUMNS):
        raise ValueError(f"metrics must not be called {taken[0]!r}, which is another column of a run's clients.")
    if cut := [name for name in made if set(name) & set(',"\r\n')]:
        raise ValueError(f"metrics must have names without commas, quotation marks and line ends, got {cut[0]!r}.")
    if wrong := [name for name in made if encodable(name) != name]:
        raise ValueError(f"metrics must have names that UTF-8 can encode, got {wrong[0]!r}; rename it.")
    return {name: np.where(rows > 0, one, np.nan) for name, one in made.items()}


def cluster_scores(cluster: np.ndarray, data: FederatedData, who: np.ndarray) -> dict[str, Any]:
    """Returns how the found clusters agree with the true groups, of the clients `who [N]` that have a cluster."""
    who = who & (cluster >= 0)
    number = len(np.unique(cluster[who]))
    causes = data.causes if len(data.causes) > 1 else {}  # one alone is the groups
    by_cause = {f"{CAUSE_PREFIX}{cause}": np.asarray(pattern)[who] for cause, pattern in sorted(causes.items())}
    if data.group is None or not who.any():
        return {"num_clusters": number, "ari": None, "nmi": None, "purity": None, **dict.fromkeys(by_cause)}
    truth, labels = np.asarray(data.group)[who], cluster[who]
    return {
        "num_clusters": number,
        "ari": scores.adjusted_rand_index(truth, labels),
        "nmi": scores.normalized_mutual_information(truth, labels),
        "purity": scores.purity(truth, labels),
        **{name: scores.adjusted_rand_index(pattern, labels) for name, pattern in by_cause.items()},
    }
