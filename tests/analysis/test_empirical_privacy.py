"""Lower bounds on epsilon: worked values, closed forms, and how often they hold."""

import math

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from jaxfl.analysis.empirical_privacy import epsilon_from_guesses, epsilon_from_rates
from tests.messages import mentions


@pytest.mark.parametrize(("correct", "guesses", "wanted"), [(80, 100, 0.9584), (700, 1000, 0.7320), (60, 100, 0.0519)])
def test_reference_values_of_one_run(correct, guesses, wanted):
    assert epsilon_from_guesses(correct, guesses) == pytest.approx(wanted, abs=5e-5)


@pytest.mark.parametrize(("correct", "guesses"), [(9, 10), (55, 60), (40, 40)])
def test_at_the_bound_of_one_run_so_many_guesses_have_the_probability_of_its_level(correct, guesses):
    for confidence in (0.9, 0.95):
        epsilon = epsilon_from_guesses(correct, guesses, confidence=confidence)
        rate = math.exp(epsilon) / (1 + math.exp(epsilon))
        assert binom.sf(correct - 1, guesses, rate) == pytest.approx(1 - confidence, rel=1e-6)


def chance_by_loop(correct, guesses, records, epsilon, delta):
    """Returns the bound of theorem 5.2, term by term."""
    rate = math.exp(epsilon) / (1 + math.exp(epsilon))

    def probability(count):
        return math.comb(guesses, count) * rate**count * (1 - rate) ** (guesses - count)

    whole = sum(probability(count) for count in range(correct, guesses + 1))
    terms = [sum(probability(correct - j) for j in range(1, i + 1)) / i for i in range(1, correct + 1)]
    return whole + 2 * records * delta * max(terms)


def test_the_bound_of_one_run_with_delta():
    epsilon = epsilon_from_guesses(80, 100, records=150, delta=1e-4)
    assert 0 < epsilon < epsilon_from_guesses(80, 100)
    assert chance_by_loop(80, 100, 150, epsilon, 1e-4) == pytest.approx(0.05, rel=1e-5)
    assert epsilon_from_guesses(80, 100, records=10**6, delta=1e-3) == 0


def test_the_bound_of_rates():
    assert epsilon_from_rates(50, 100, 2, 100) == pytest.approx(1.733, abs=5e-4)
    low = binomtest(50, 100).proportion_ci(0.95, "exact").low
    high = binomtest(2, 100).proportion_ci(0.95, "exact").high
    assert (low, high) == pytest.approx((0.3983, 0.0704), abs=5e-5)
    assert epsilon_from_rates(50, 100, 2, 100, delta=0.01) == pytest.approx(math.log((low - 0.01) / high))
    # an adversary who says no: the same bound of what is not said
    assert epsilon_from_rates(98, 100, 50, 100) == pytest.approx(epsilon_from_rates(50, 100, 2, 100))
    assert epsilon_from_rates(50, 100, 50, 100) == 0 == epsilon_from_rates(0, 10, 0, 10)
    assert epsilon_from_rates(100, 100, 0, 100) == pytest.approx(math.log(0.025**0.01 / (1 - 0.025**0.01)))


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_the_bounds_hold_as_often_as_they_say(epsilon):
    """Randomised response has exactly this epsilon: the bound is above it in at most 5 % of the runs."""
    rng, rate = np.random.default_rng(3), math.exp(epsilon) / (1 + math.exp(epsilon))
    runs = 300
    above = sum(epsilon_from_guesses(int(rng.binomial(60, rate)), 60) > epsilon for _ in range(runs))
    rates = [(int(rng.binomial(60, rate)), int(rng.binomial(60, 1 - rate))) for _ in range(runs)]
    above_rates = sum(epsilon_from_rates(true, 60, false, 60) > epsilon for true, false in rates)
    most = binom.ppf(0.999, runs, 0.05)
    assert above <= most and above_rates <= most
    assert np.median([epsilon_from_guesses(int(rng.binomial(400, rate)), 400) for _ in range(20)]) >= 0.6 * epsilon


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: epsilon_from_guesses(5, 4), ("correct", 5, 4)),
        (lambda: epsilon_from_guesses(1, 4, records=3), ("records", 4, 3)),
        (lambda: epsilon_from_guesses(1, 4, delta=-1), ("delta", -1)),
        (lambda: epsilon_from_guesses(1, 4, confidence=1.0), ("confidence", 1.0)),
        (lambda: epsilon_from_rates(5, 4, 0, 4), ("true_positives", 5, 4)),
        (lambda: epsilon_from_rates(0, 4, 0, 0), ("false_positives", 0)),
    ],
)
def test_numbers_out_of_range(call, named):
    with pytest.raises(ValueError, match=mentions(*named)):
        call()
