"""Lower bounds on epsilon from the guesses of an adversary: what a run reveals at least, beside what is proved at most.

Under (epsilon, delta) differential privacy nobody can guess well whether a record, here a client, took part. If guesses
are better than some epsilon allows, the true one is larger, at a level of confidence.

    groups   many runs, one guess each: P[yes | in] <= e^epsilon P[yes | out] + delta, and the same for "no" with in and
             out exchanged. The rates are bounded by Clopper and Pearson's interval, of which each end holds at
             1 - (1 - confidence) / 2.
    one run  m records, each in the run by a coin of its own: the number of right guesses is at most binomial with the
             probability e^epsilon / (1 + e^epsilon), up to a term in delta. Steinke, Nasr and Jagielski, "Privacy
             Auditing with One (1) Training Run", NeurIPS 2023, theorem 5.2.
"""

import math

import numpy as np

LARGEST_EPSILON = 100.0  # beyond it no number of guesses tells epsilons apart in float64


def epsilon_from_rates(
    true_positives: int,
    positives: int,
    false_positives: int,
    negatives: int,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
) -> float:
    """Returns a lower bound on epsilon from how often a record was seen in runs with it and in runs without it.

    All runs must be independent, and the rule that says yes must be fixed before them.

    Args:
        true_positives: runs with the record of which the adversary says that it is in.
        positives: runs with the record.
        false_positives: runs without it of which it says the same.
        negatives: runs without it.
        delta: of differential privacy, from 0 to 1.
        confidence: probability with which the bound holds, between 0 and 1.

    Raises:
        ValueError: a number is out of range.

    >>> round(epsilon_from_rates(50, 100, 2, 100), 3)
    1.733
    """
    from scipy.stats import beta

    for name, count, all in (
        ("true_positives", true_positives, positives),
        ("false_positives", false_positives, negatives),
    ):
        if not 0 <= count <= all or all < 1:
            raise ValueError(f"{name} must be from 0 to the number of its runs, at least 1, got {count} of {all}.")
    _check_level(delta, confidence)
    tail = (1 - confidence) / 2
    true_low = beta.ppf(tail, true_positives, positives - true_positives + 1) if true_positives else 0.0
    missed = negatives - false_positives
    false_high = beta.ppf(1 - tail, false_positives + 1, missed) if missed else 1.0
    pairs = (true_low - delta, false_high), (1 - false_high - delta, 1 - true_low)
    return max([0.0, *(math.log(more / less) for more, less in pairs if more > 0 and less > 0)])


def epsilon_from_guesses(
    correct: int, guesses: int, *, records: int | None = None, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """Returns a lower bound on epsilon from guesses about many records of one run.

    Each record was in the run by a coin of its own, and the adversary may guess some of them only.

    Args:
        correct: right guesses.
        guesses: in all.
        records: whose coins were tossed; None is as many as guesses. With delta = 0 it has no effect.
        delta: of differential privacy, from 0 to 1.
        confidence: probability with which the bound holds, between 0 and 1.

    Raises:
        ValueError: a number is out of range.

    >>> round(epsilon_from_guesses(80, 100), 4), round(epsilon_from_guesses(700, 1000), 4)
    (0.9584, 0.732)
    """
    records = guesses if records is None else records
    if not 0 <= correct <= guesses <= records:
        raise ValueError(
            "correct must be at most guesses, and guesses at most records, from 0, got "
            f"{correct}, {guesses} and {records}."
        )
    _check_level(delta, confidence)
    low, high = 0.0, LARGEST_EPSILON
    if _chance_of_guesses(correct, guesses, records, low, delta) >= 1 - confidence:
        return 0.0
    while high - low > 1e-9:  # the chance rises with epsilon
        middle = (low + high) / 2
        refuted = _chance_of_guesses(correct, guesses, records, middle, delta) < 1 - confidence
        low, high = (middle, high) if refuted else (low, middle)
    return low


def _chance_of_guesses(correct: int, guesses: int, records: int, epsilon: float, delta: float) -> float:
    """Returns a bound on the probability of so many right guesses under (epsilon, delta) differential privacy.

    With W binomial it is P[W >= v] + 2 m delta max over i of P[v > W >= v - i] / i.
    """
    from scipy.stats import binom

    rate = 1 / (1 + math.exp(-epsilon))
    chance = binom.sf(correct - 1, guesses, rate)
    if delta > 0 and correct > 0:
        below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, rate))  # [v] of i = 1, 2, ...
        chance += 2 * records * delta * (below / np.arange(1, correct + 1)).max()
    return min(float(chance), 1.0)


def _check_level(delta: float, confidence: float) -> None:
    """Raises ValueError unless delta and confidence are probabilities."""
    if not 0 <= delta <= 1:
        raise ValueError(f"delta must be from 0 to 1, got {delta}; 0 is pure differential privacy.")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}; 0.95 is usual.")
