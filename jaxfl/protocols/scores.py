"""Scores of publications, from the records of a history.

| score | meaning | who |
|---|---|---|
| `micro-last` | correct rows / test rows over all clients, last round | FedEM, FedRep |
| `micro-best` | the same, maximum over rounds: optimistic | PFLlib |
| `micro-last10` | the same, mean of the last ten evaluations | FedRep |
| `macro-last` | unweighted mean over clients, last round | FedCCFA, CFL-GP, Comparative Evaluation, CLoVE |
| `macro-best` | the same, maximum over rounds: optimistic | |
| `macro-minloss` | the same, at the round of the least validation loss | FLUX |
| `macro-valbest` | test accuracy of each client at its own best validation round, their mean | |
| `shared-last` | unweighted mean over clients on the test rows of all, each in its own view, last round | FedCCFA |
| `weighted-test` | the same rows, weighted by the client's training class shares, last round | |
| `weighted-valbest` | the same at each client's own best validation round | pFedGraph |
| `concept-test` | the same rows with clean features, mean over concepts, last round | FedRC |
| `unseen-last` | correct rows / test rows over the clients that only test, last round | IFCA |

`NEEDS` says which options of a run some of them need.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxfl.schema import check_name
from jaxfl.simulation.evaluation.test_sets import parse_test_sets
from jaxfl.simulation.records.history import History

LAST = 10  # evaluations of `micro-last10`
Records = Sequence[Mapping[str, Any]] | History
NEEDS: dict[str, dict[str, str]] = {  # options of a run without which it has no such score, and a value of each
    "macro-minloss": {"data.validation": "0.2"},
    "macro-valbest": {"data.validation": "0.2", "run.clients_history": "true"},
    "shared-last": {"run.test_sets": "shared"},
    "weighted-test": {"run.test_sets": "shared"},
    "weighted-valbest": {"data.validation": "0.2", "run.test_sets": "shared", "run.clients_history": "true"},
    "concept-test": {"run.test_sets": "concept"},
}


def score(name: str, records: Records) -> float | None:
    """Returns the score of a run; None where the run has no such metric or no evaluation.

    Args:
        name: a key of `SCORES`.
        records: of `history.jsonl`, in the order of the rounds; the history itself for scores that need
            `clients_history`.

    >>> records = [{"round": 1, "micro_accuracy": 0.5}, {"round": 2, "micro_accuracy": 0.25}]
    >>> score("micro-best", records), score("micro-last", records), score("macro-last", records)
    (0.5, 0.25, None)
    """
    try:
        return SCORES[name](records)
    except (KeyError, IndexError, TypeError, AttributeError):  # without the metric, or of a run that was not evaluated
        return None


def score_entry(name: str) -> str:
    """Returns what a score is called in tables and in the summary of several seeds; it is shown in percent."""
    return f"{name} accuracy"


def missing_options(name: str, config: Mapping[str, Any]) -> list[str]:
    """Returns options, as `--set` takes them, that a run needs to have a score and does not have.

    Args:
        name: of the score.
        config: the values of the run's options by `owner.name`.

    Raises:
        ValueError: there is no such score.

    >>> missing_options("macro-valbest", {"data.validation": 0.1, "run.clients_history": False})
    ['clients_history=true']
    """
    check_name("score", name, SCORES)
    found = []
    for option, value in NEEDS.get(name, {}).items():
        given, is_set = config.get(option), option.endswith("test_sets")
        if not (value in parse_test_sets(given) if is_set else given):
            found.append(f"{option.partition('.')[2]}={value}")
    return found


def check_score(name: str | None, config: Mapping[str, Any]) -> None:
    """Raises ValueError if there is no such score, or a run with these options has none; arguments as above."""
    if name is not None and (missing := missing_options(name, config)):
        raise ValueError(f"score {name} needs {' and '.join(missing)}; add --set {' --set '.join(missing)}.")


def values_of(records: Records, metric: str) -> list[float]:
    """Returns a metric at all evaluations; raises KeyError where one lacks it."""
    return [float(record[metric]) for record in records]


def _at_best(records: Records, by: Callable[[Mapping[str, Any]], float]) -> float:
    """Returns the macro accuracy of the first evaluation at which a number is highest."""
    return float(records[max(range(len(records)), key=lambda place: by(records[place]))]["macro_accuracy"])


def _at_own_best(history: Any, metric: str) -> float:
    """Returns the mean over clients of a metric, each at the first evaluation at which its validation accuracy is best.

    Clients that were never tested on both kinds of rows are left out, and those that no metric of the run counts.
    """
    validation, values = history.clients["validation_accuracy"], history.clients[metric]  # [evaluations, N]
    known = np.isfinite(validation) & np.isfinite(values)
    if "excluded" in history.clients.names:
        known &= history.clients["excluded"] != 1
    best = np.where(known, validation, -np.inf).argmax(0)
    return float(np.take_along_axis(values, best[None], 0)[0, known.any(0)].mean())


SCORES: dict[str, Callable[[Records], float]] = {
    "micro-last": lambda records: values_of(records, "micro_accuracy")[-1],
    "micro-best": lambda records: max(values_of(records, "micro_accuracy")),
    "micro-last10": lambda records: statistics.fmean(values_of(records, "micro_accuracy")[-LAST:]),
    "macro-last": lambda records: values_of(records, "macro_accuracy")[-1],
    "macro-best": lambda records: max(values_of(records, "macro_accuracy")),
    "macro-minloss": lambda records: _at_best(records, lambda record: -record["validation_loss"]),
    "macro-valbest": lambda history: _at_own_best(history, "accuracy"),
    "shared-last": lambda records: values_of(records, "shared_macro_accuracy")[-1],
    "weighted-test": lambda records: values_of(records, "weighted_macro_accuracy")[-1],
    "weighted-valbest": lambda history: _at_own_best(history, "weighted_accuracy"),
    "concept-test": lambda records: values_of(records, "concept_macro_accuracy")[-1],
    "unseen-last": lambda records: values_of(records, "unseen_micro_accuracy")[-1],
}
