"""The accountant of noisy rounds: epsilon of a noise, and the noise of an epsilon, by privacy loss distributions.

dp-accounting composes the rounds (https://github.com/google/differential-privacy): T rounds, each a Gaussian mechanism
on a Poisson sample of the clients. A sample that is cut to a capacity is accounted as such, see
https://arxiv.org/abs/2508.15089. Neighbours differ by one client, which is added or removed. The number is an upper
bound, within 1e-4 of the exact one.

>>> rounds = NoisyRounds(probability=0.1, capacity=None, population=1000)
>>> round(epsilon(rounds, noise=1.0, rounds=100, delta=1e-5), 2)
7.05
>>> round(noise_for(rounds, 8.0, rounds=100, delta=1e-5), 2)
0.94
"""

import functools
import math
from typing import Any, NamedTuple

STEP = 1e-4  # of a privacy loss distribution
COARSE_STEP = 1e-3  # where a noise is found: ten times as fast, and epsilon 5e-6 too large at most
TOLERANCE = 1e-6  # relative, of a noise that is found
LEAST_EPSILON, MOST_EPSILON = 1e-3, 50.0  # whose noise is found
LEAST_NOISE = 0.1  # below, a distribution takes minutes and gigabytes, to find an epsilon that promises nothing
RELATION = "add-remove"


class NoisyRounds(NamedTuple):
    """The sampling of a run with noise, for the accountant.

    Attributes:
        probability: q, of each client in a round; 1 where all take part.
        capacity: most clients of a round; None where there is no such number.
        population: N, the clients that take part.
        releases: noisy releases of a round, which are Gaussian mechanisms with the same noise.
    """

    probability: float
    capacity: int | None
    population: int
    releases: int = 1


def default_delta(population: int) -> float:
    """Returns 1 / N^1.1.

    >>> round(default_delta(1000), 6)
    0.000501
    """
    return population**-1.1


def epsilon(of: NoisyRounds, *, noise: float, rounds: int, delta: float) -> float:
    """Returns epsilon of a number of rounds; infinity without noise or below `LEAST_NOISE`, 0 without rounds.

    Args:
        of: the sampling.
        noise: z, a multiple of the sensitivity of a release.
        rounds: T.
        delta: of the guarantee.

    Raises:
        ValueError: `delta` is not above 0 and below 1.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must be above 0 and below 1, got {delta}; 1e-5 is usual.")
    if rounds == 0:
        return 0.0
    return _epsilon(of, float(noise), int(rounds), float(delta), STEP) if noise >= LEAST_NOISE else math.inf


def noise_for(of: NoisyRounds, epsilon: float, *, rounds: int, delta: float) -> float:
    """Returns the least noise z with at most this epsilon, and at least `LEAST_NOISE`.

    Args:
        of: the sampling.
        epsilon: of all rounds.
        rounds: T.
        delta: of the guarantee.

    Raises:
        ValueError: `epsilon` is below 0.001, which no accountant of this precision tells from 0, or above 50.
    """
    from scipy.optimize import brentq

    if not LEAST_EPSILON <= epsilon <= MOST_EPSILON:
        raise ValueError(
            f"epsilon must be from {LEAST_EPSILON} to {MOST_EPSILON:g} to find its noise, got {epsilon}; 1 is strict, "
            "8 is usual, and more than 50 promises nothing."
        )
    step = min(COARSE_STEP, epsilon / 100)

    def excess(log_noise: float) -> float:
        found = _epsilon(of, math.exp(log_noise), rounds, delta, step)
        return math.log(max(found, 1e-12) / epsilon)  # 0 where delta alone allows everything

    high, least = 0.0, math.log(LEAST_NOISE)
    while excess(high) > 0:
        high += 1
    low = high - 1
    while excess(low) <= 0:
        if low == least:
            return LEAST_NOISE
        low, high = max(low - 1, least), low
    root: Any = brentq(excess, low, high, xtol=TOLERANCE)
    return math.exp(root + TOLERANCE)


def accountant_name() -> str:
    """Returns the accountant and its version, as a phrase."""
    from importlib.metadata import version

    return f"privacy loss distributions, dp-accounting {version('dp-accounting')}"


@functools.lru_cache(256)
def _epsilon(of: NoisyRounds, noise: float, rounds: int, delta: float, step: float) -> float:
    """Returns epsilon by distributions of this step."""
    import dp_accounting  # takes a second
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=step)
    accountant.compose(dp_accounting.SelfComposedDpEvent(_event(of, noise), rounds))
    return float(accountant.get_epsilon(delta))


def _event(of: NoisyRounds, noise: float) -> Any:
    """Returns the event of a round, for dp-accounting."""
    import dp_accounting

    effective = noise / math.sqrt(of.releases)
    gaussian = dp_accounting.GaussianDpEvent(effective)
    if of.probability == 1 and (of.capacity is None or of.capacity >= of.population):
        return gaussian
    if of.capacity is None or of.capacity >= of.population:
        return dp_accounting.PoissonSampledDpEvent(of.probability, gaussian)
    return dp_accounting.TruncatedSubsampledGaussianDpEvent(of.population, of.probability, of.capacity, effective)
