"""Scores of publications, from the records of a history.

| score | meaning | who |
|---|---|---|
| `micro-last` | correct rows / test rows over all clients, last round | FedEM, FedRep |
| `micro-best` | the same, maximum over rounds: optimistic | PFLlib |
| `micro-last10` | the same, mean of the last ten evaluations | FedRep |
| `macro-last` | unweighted mean over clients, last round | FedCCFA, CFL-GP, Comparative Evaluation, CLoVE |
| `macro-best` | the same, maximum over rounds: optimistic | |
| `macro-minloss` | the same, at the round of the least validation loss | FLUX |
| `unseen-last` | correct rows / test rows over the clients that only test, last round | IFCA |
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

LAST = 10  # evaluations of `micro-last10`
Records = Sequence[Mapping[str, Any]]


def score(name: str, records: Records) -> float | None:
    """Returns the score of a run; None where the run has no such metric or no evaluation.

    Args:
        name: a key of `SCORES`.
        records: of `history.jsonl`, in the order of the rounds.

    >>> records = [{"round": 1, "micro_accuracy": 0.5}, {"round": 2, "micro_accuracy": 0.25}]
    >>> score("micro-best", records), score("micro-last", records), score("macro-last", records)
    (0.5, 0.25, None)
    """
    try:
        return SCORES[name](records)
    except (KeyError, IndexError, TypeError):  # without the metric, or of a run that was not evaluated
        return None


def values_of(records: Records, metric: str) -> list[float]:
    """Returns a metric at all evaluations; raises KeyError where one lacks it."""
    return [float(record[metric]) for record in records]


def _at_best(records: Records, by: Callable[[Mapping[str, Any]], float]) -> float:
    """Returns the macro accuracy of the first evaluation at which a number is highest."""
    return float(records[max(range(len(records)), key=lambda place: by(records[place]))]["macro_accuracy"])


SCORES: dict[str, Callable[[Records], float]] = {
    "micro-last": lambda records: values_of(records, "micro_accuracy")[-1],
    "micro-best": lambda records: max(values_of(records, "micro_accuracy")),
    "micro-last10": lambda records: statistics.fmean(values_of(records, "micro_accuracy")[-LAST:]),
    "macro-last": lambda records: values_of(records, "macro_accuracy")[-1],
    "macro-best": lambda records: max(values_of(records, "macro_accuracy")),
    "macro-minloss": lambda records: _at_best(records, lambda record: -record["validation_loss"]),
    "unseen-last": lambda records: values_of(records, "unseen_micro_accuracy")[-1],
}
