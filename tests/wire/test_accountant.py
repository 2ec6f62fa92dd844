"""The accountant: reference values, closed forms, and laws of epsilon."""

import math

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from jaxfl.wire.accountant import LEAST_NOISE, NoisyRounds, default_delta, epsilon, noise_for
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=3)

# N, expected cohort, capacity, z, T, delta: epsilon by dp-accounting 0.6.0, neighbours by adding or removing a client
REFERENCE = [
    (1, 1, None, 1, 1, 1e-5, 4.3772),
    (1, 1, None, 4, 1, 1e-5, 0.9263),
    (1, 1, None, 8, 50, 1e-5, 3.7965),
    (1000, 100, None, 1, 1, 1e-5, 1.6845),
    (1000, 100, None, 1, 100, 1e-5, 7.0466),
    (1000, 10, None, 0.8, 500, 1e-5, 2.3994),
    (1200, 120, None, 1, 200, 1200**-1.1, 7.7029),
    (100, 10, None, 1, 50, 1e-3, 3.3139),
    (10000, 100, None, 0.6, 1000, 1e-6, 8.7114),
    (40, 20, None, 2, 20, 1e-2, 2.9340),
    (1000, 100, 150, 1, 100, 1e-5, 7.04692),
    (1200, 120, 180, 1, 200, 1200**-1.1, 7.70292),
    (1200, 120, 150, 1, 200, 1200**-1.1, 8.15695),
]


@pytest.mark.rotating
@pytest.mark.parametrize(("population", "cohort", "capacity", "noise", "rounds", "delta", "wanted"), REFERENCE)
def test_reference_values(population, cohort, capacity, noise, rounds, delta, wanted):
    of = NoisyRounds(cohort / population, capacity, population)
    digits = 4 if capacity is None else 5
    assert epsilon(of, noise=noise, rounds=rounds, delta=delta) == pytest.approx(wanted, abs=0.501 * 10**-digits)


@pytest.mark.parametrize(
    ("noise", "rounds", "delta"), [(1.0, 1, 1e-5), (4.0, 1, 1e-5), (8.0, 50, 1e-5), (2.0, 3, 1e-2)]
)
def test_rounds_of_all_clients_have_the_closed_form(noise, rounds, delta):
    """Balle and Wang, ICML 2018, theorem 8."""
    s = noise / math.sqrt(rounds)

    def spent(e):
        return norm.cdf(1 / (2 * s) - e * s) - math.exp(e) * norm.cdf(-1 / (2 * s) - e * s) - delta

    found = epsilon(NoisyRounds(1.0, None, 10), noise=noise, rounds=rounds, delta=delta)
    assert found == pytest.approx(brentq(spent, 1e-6, 50), abs=1e-6)


@pytest.mark.parametrize(("q", "noise", "delta"), [(0.1, 1.0, 1e-5), (0.5, 2.0, 1e-3)])
def test_one_round_of_a_poisson_sample_has_the_closed_form(q, noise, delta):
    """Of a client that is removed, which is the larger one."""

    def spent(e):
        x = noise**2 * math.log((math.exp(e) - 1 + q) / q) + 0.5
        without, with_it = norm.sf(x / noise), norm.sf((x - 1) / noise)
        return (1 - q) * without + q * with_it - math.exp(e) * without - delta

    found = epsilon(NoisyRounds(q, None, 100), noise=noise, rounds=1, delta=delta)
    assert found == pytest.approx(brentq(spent, 1e-6, 50), abs=1e-6)


def test_epsilon_rises_with_rounds_and_probability_and_falls_with_noise_and_delta():
    def spent(q=0.1, noise=1.0, rounds=10, delta=1e-3, capacity=None, **of):
        return epsilon(NoisyRounds(q, capacity, 100, **of), noise=noise, rounds=rounds, delta=delta)

    usual = spent()
    assert spent(rounds=0) == 0 and spent(noise=0.0) == math.inf
    assert spent(rounds=5) < usual < spent(q=0.2) and spent(noise=2.0) < usual < spent(delta=1e-4)
    # two releases with the same noise are one with a noise that is smaller by the root of 2
    assert spent(releases=2) == spent(noise=1 / math.sqrt(2)) > usual
    assert spent(capacity=100) == usual < spent(capacity=14)
    assert default_delta(1200) == pytest.approx(1200**-1.1)


@pytest.mark.rotating(weeks=3)
@pytest.mark.parametrize(
    ("population", "rounds", "delta", "wanted", "noise"),
    [(1000, 100, 1e-5, 8.0, 0.93593), (1200, 200, 1200**-1.1, 8.0, 0.98043), (1200, 200, 1200**-1.1, 2.0, 2.3802)],
)
def test_the_noise_of_an_epsilon_gives_it_back(population, rounds, delta, wanted, noise):
    of = NoisyRounds(0.1, None, population)
    found = noise_for(of, wanted, rounds=rounds, delta=delta)
    assert found == pytest.approx(noise, rel=5e-5)
    assert wanted * (1 - 1e-4) < epsilon(of, noise=found, rounds=rounds, delta=delta) <= wanted


def test_where_delta_allows_everything_the_noise_is_the_least_that_is_accounted():
    """A client that takes part with a probability below delta may be told."""
    rounds = NoisyRounds(0.01, None, 100)
    assert noise_for(rounds, 1.0, rounds=1, delta=0.02) == LEAST_NOISE
    assert epsilon(rounds, noise=LEAST_NOISE, rounds=1, delta=0.02) == 0


def test_what_the_accountant_refuses():
    of = NoisyRounds(0.1, None, 100)
    with pytest.raises(ValueError, match=mentions("delta", 1.5)):
        epsilon(of, noise=1.0, rounds=1, delta=1.5)
    with pytest.raises(ValueError, match=mentions("epsilon", 1e-12)):
        noise_for(of, 1e-12, rounds=1, delta=1e-9)
    with pytest.raises(ValueError, match=mentions("epsilon", 50, 1e9)):  # of minutes and gigabytes
        noise_for(of, 1e9, rounds=1, delta=1e-3)
    assert epsilon(of, noise=1e-6, rounds=1, delta=1e-3) == math.inf
