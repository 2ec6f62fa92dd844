"""Samplers of cohorts: the same clients for every method at one seed.

A sampler is `(root key, round, data, size, plan) -> Cohort`; `jaxfl.run(..., sampler=...)` takes any. It returns `size`
distinct clients, none of them held out where there are as many; those whose mask is False change nothing (they are
padding), and a round without any client changes nothing but the number of the round. `uniform` is the usual one,
`poisson` that of differential privacy.

>>> import jaxfl
>>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
>>> unreliable = dropouts(0.3, availability("diurnal", period=12))
>>> unreliable(jax.random.key(0), jnp.int32(0), data, 4, Plan()).mask.shape
(4,)
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl.client import conduct
from jaxfl.cohort import Cohort, Plan
from jaxfl.data.clients import FederatedData
from jaxfl.random import Stream, key_for
from jaxfl.schema import checked, is_known, is_zero
from jaxfl.typing import AnyArray, Array, Key

MOST_DRAWS = 1 << 16  # clients above which a lot for each of them would take longer than many a round
LOT_BITS = 31  # of a lot of Poisson sampling
OVERFLOW = 1e-6  # probability that a round of Poisson sampling draws more clients than the default capacity

Sampler = Callable[[Key, Array, FederatedData, int, Plan], Cohort]
Pattern = Literal["always", "diurnal", "random"]


class PoissonSampling(NamedTuple):
    """The numbers of Poisson sampling in a run.

    Attributes:
        probability: q, of each client in each round.
        capacity: most clients of a round.
        population: N, the clients that take part; where clients arrive or leave, the most at a time.
    """

    probability: float
    capacity: int
    population: int


@dataclasses.dataclass(frozen=True)
class NamedSampler:
    """A sampler with a name.

    Attributes:
        name: in the identity of a run, see `sampler_name`.
        draw: the function.
        hyperparameters: the numbers that compiled programs take as an argument; None makes them constants.
        bind: `(size, population) -> sampler`, the sampler of a run with `size` clients in a round, of as many that take
            part; None of one that is the same in all runs.
        poisson: the numbers of Poisson sampling, of one that is bound; None of others.
    """

    name: str
    draw: Sampler
    hyperparameters: Any = None
    bind: Callable[[int, int], "NamedSampler"] | None = None
    poisson: PoissonSampling | None = None

    def __call__(self, root: Key, round: Array, data: FederatedData, size: int, plan: Plan = Plan()) -> Cohort:
        """Returns the cohort of a round."""
        return self.draw(root, round, data, size, plan)

    @property
    def __name__(self) -> str:
        """The name of a function."""
        return self.name


def cohort_size(cohort: int | float, data: FederatedData) -> int:
    """Returns the size of a cohort.

    Args:
        cohort: a share of the participating clients (a float in (0, 1]) or a count (an int from 1 to their number).
        data: the federation; held-out clients do not take part. Where clients arrive or leave, the most that are there
            at a time count; of fewer the rest of the cohort is padding.

    Raises:
        ValueError: the share or the count is out of range, or no client has training rows.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> cohort_size(0.5, data), cohort_size(3, data), cohort_size(1.0, data)
    (4, 3, 8)
    """
    available = 0
    for now in data.phases:
        takes_part = np.ones(now.num_clients, bool) if now.held_out is None else ~np.asarray(now.held_out)
        available = max(available, int(takes_part.sum()))
        if np.asarray(now.train.size)[takes_part].any():
            continue
        if not takes_part.any():
            raise ValueError(
                f"held_out must leave clients to train, got all {now.num_clients} held out or absent; it can "
                "be tested alone, by result.evaluate."
            )
        raise ValueError(
            f"data must have training rows, got none of the {available} clients that take part; give some in train."
        )
    remedy = f"give a share in (0, 1] or a count from 1 to {available}"
    cohort = cohort.item() if isinstance(cohort, np.integer | np.floating) else cohort
    if isinstance(cohort, bool) or not isinstance(cohort, (int, float)):
        raise ValueError(f"cohort must be a number, got {cohort!r}; {remedy}.")
    if isinstance(cohort, int):
        if not 1 <= cohort <= available:
            raise ValueError(
                f"cohort must be from 1 to the number of participating clients ({available}), got {cohort}; {remedy}."
            )
        return cohort
    if not 0 < cohort <= 1:
        raise ValueError(f"cohort must be a share in (0, 1], got {cohort}; {remedy}.")
    return max(1, round(cohort * available))


def cohorts_of(sampler: Sampler, cohort: int | float, data: FederatedData) -> tuple[Sampler, int]:
    """Returns the sampler of a run, and the number of places in its cohorts, which are `cohort_size` or more.

    Args:
        sampler: that was given.
        cohort: as for `cohort_size`; of Poisson sampling, the expected number or share.
        data: the federation.

    Raises:
        ValueError: as `cohort_size`, or `sampling.poisson` has a probability beside a cohort.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=40, rows_per_client=20)
    >>> sampler, places = cohorts_of(poisson(), 0.1, data)
    >>> sampler_name(sampler), places
    ('poisson(0.1, capacity=15)', 15)
    """
    size = cohort_size(cohort, data)
    bind = getattr(sampler, "bind", None)
    if bind is None:
        return sampler, size
    bound = bind(size, cohort_size(1.0, data))
    return bound, bound.poisson.capacity


def check_sampler(sampler: object) -> None:
    """Raises TypeError for a sampler that is not a function.

    Raises:
        TypeError: the sampler cannot be called.
    """
    if not callable(sampler):
        raise TypeError(f"sampler must be a function such as jaxfl.sampling.uniform, got {sampler!r}.")


def check_drawn(ids: AnyArray, mask: AnyArray, data: FederatedData) -> None:
    """Raises ValueError unless cohorts hold participating clients only, each once in a round.

    Args:
        ids: `[R, C]`.
        mask: False on padding `[R, C]`.
        data: the federation.

    Raises:
        ValueError: they are not.
    """
    ids, mask = np.asarray(ids), np.asarray(mask)
    if np.any(wrong := (ids < 0) | (ids >= data.num_clients)):
        raise ValueError(f"sampler must draw clients from 0 to {data.num_clients - 1}, got {ids[wrong][0]}.")
    if data.held_out is not None and np.any(wrong := mask & np.asarray(data.held_out)[ids]):
        raise ValueError(f"sampler must draw clients that take part, got {ids[wrong][0]}, which is held out.")
    real = np.sort(np.where(mask, ids, -1 - np.arange(ids.shape[1])), 1)  # every padding entry gets an id of its own
    if np.any(twice := real[:, 1:] == real[:, :-1]):
        raise ValueError(f"sampler must draw a client once in a round, got {real[:, 1:][twice][0]} twice.")


def uniform(root: Key, round: Array, data: FederatedData, size: int, plan: Plan = Plan()) -> Cohort:
    """Returns the cohort of one round: `size` clients, uniformly and without replacement, in ascending order of id.

    Up to 65,536 clients (or eight cohorts) draw a lot each, and the highest take part; of more, clients are drawn one
    by one until there are enough different ones, which takes as long for a million of them as for a thousand.

    Args:
        root: the key of the run.
        round: the round `[]`, from 0.
        data: the federation; held-out clients are never drawn.
        size: C, at most the number of participating clients.
        plan: how the engine walks through the cohort.
    """
    if size == data.num_clients:
        return Cohort.of(jnp.arange(size), plan)
    if data.num_clients <= max(MOST_DRAWS, 8 * size):
        return Cohort.of(jnp.sort(_highest_draws(root, round, data, size)[1]), plan)
    return Cohort.of(_distinct_draws(root, round, data, size), plan)


def draw_cohort(
    sampler: Sampler, root: Key, round: Array, data: FederatedData, size: int, plan: Plan = Plan()
) -> Cohort:
    """Returns the cohort that a sampler draws, with padding in place of clients that are absent in this round.

    Where clients arrive or leave there may be fewer than `size` present, and a sampler fills its cohort with others:
    absent and held-out ones.

    Args:
        sampler: draws it.
        root: the key of the run.
        round: the round `[]`, from 0.
        data: the federation in this round.
        size: C.
        plan: how the engine walks through the cohort.

    Raises:
        TypeError: the sampler returns no `Cohort`.
        ValueError: the sampler draws more or fewer than `size` clients, or its mask is not bool `[size]`.
    """
    cohort = sampler(root, round, data, size, plan)
    if not isinstance(cohort, Cohort):
        raise TypeError(f"sampler must return a Cohort, got a {type(cohort).__name__}; give Cohort.of(ids, plan).")
    if cohort.ids.shape != (size,):
        raise ValueError(
            f"sampler must draw ids [{size}], the size of the cohort, got the shape {list(cohort.ids.shape)}; where "
            "fewer take part, fill up with any clients and leave them out by the mask."
        )
    if cohort.mask.shape != (size,) or cohort.mask.dtype != bool:
        got = f"{cohort.mask.dtype} {list(cohort.mask.shape)}"
        raise ValueError(
            f"sampler must give a mask of bools [{size}], True for participating clients, got {got}; use .astype(bool)."
        )
    cohort = dataclasses.replace(cohort, plan=plan)  # the plan of the run, whatever the sampler returned
    if data.absent is None:
        return cohort
    return dataclasses.replace(cohort, mask=cohort.mask & ~jnp.asarray(data.held_out)[cohort.ids])


@checked
def poisson(probability: float | None = None, capacity: int | None = None) -> NamedSampler:
    """Returns the sampler that draws each client by itself with the same probability (Poisson sampling).

    The sampling that accountants of differential privacy assume, see `jaxfl.Privacy`. A cohort has `capacity` places:
    where more clients are drawn, a random subset of them takes part; where fewer are, the rest is padding, which is
    computed and thrown away. The numbers of clients in a round are binomial.

    Args:
        probability: q; None is the cohort of the run, divided by the clients that take part. Given, the cohort of the
            run must be left out, or be q N.
        capacity: most clients of a round; None is the least number that a round exceeds with a probability of at most
            1e-6. For q N = 100 of 1,000 clients it is 148.

    Raises:
        ValueError: the probability or the capacity is out of range.
    """
    if probability is not None and not 0 < probability <= 1:
        raise ValueError(f"probability must be above 0 and at most 1, got {probability}; 0.1 draws a tenth.")
    if capacity is not None and capacity < 1:
        raise ValueError(f"capacity must be at least 1, got {capacity}; None exceeds it in one of a million rounds.")

    def draw(root: Key, round: Array, data: FederatedData, size: int, plan: Plan = Plan()) -> Cohort:
        if probability is None:
            raise ValueError("probability must be given where no run binds the sampler, got None; poisson(0.1) is one.")
        return draw_poisson(probability, root, round, data, min(size, capacity or size), size, plan)

    def bind(size: int, population: int) -> NamedSampler:
        if probability is not None and size not in (population, round(probability * population)):
            raise ValueError(
                f"cohort must be left out with sampling.poisson({probability}), which draws "
                f"{probability * population:g} of {population} clients, got {size}; or give poisson() no probability."
            )
        q = size / population if probability is None else probability
        most = min(population, capacity or poisson_capacity(q, population))
        if size > most and probability is None:
            raise ValueError(
                f"capacity must be at least the cohort ({size}), got {capacity}; lower cohort, or leave it out."
            )
        return _bound_poisson(PoissonSampling(q, most, population))

    chosen = [] if probability is None else [str(probability)]
    chosen += [] if capacity is None else [f"capacity={capacity}"]
    return NamedSampler(f"poisson({', '.join(chosen)})", draw, bind=bind)


@functools.lru_cache(64)  # equal samplers share programs
def _bound_poisson(numbers: PoissonSampling) -> NamedSampler:
    """Returns the Poisson sampler of a run."""
    q, capacity, _ = numbers

    def draw(root: Key, round: Array, data: FederatedData, size: int, plan: Plan = Plan()) -> Cohort:
        return draw_poisson(q, root, round, data, min(size, capacity), size, plan)

    return NamedSampler(f"poisson({q:.6g}, capacity={capacity})", draw, poisson=numbers)


def poisson_capacity(probability: float, population: int, overflow: float = OVERFLOW) -> int:
    """Returns the least number of clients that a round of Poisson sampling exceeds with at most this probability.

    >>> poisson_capacity(0.1, 1000), poisson_capacity(0.5, 10), poisson_capacity(1.0, 10)
    (148, 10, 10)
    """
    from scipy.special import bdtrc

    counts = np.arange(1, population + 1)
    return int(counts[bdtrc(counts, population, probability) <= overflow][0])


def draw_poisson(
    probability: float, root: Key, round: Array, data: FederatedData, capacity: int, size: int, plan: Plan
) -> Cohort:
    """Returns the cohort of one round of Poisson sampling, in ascending order of id.

    A client takes part if its lot, 31 random bits, is below q 2^31. Of more than `capacity` such clients those with
    the lowest lots take part: they are a random subset.

    Args:
        probability: q.
        root: the key of the run.
        round: the round `[]`, from 0.
        data: the federation; held-out clients are never drawn.
        capacity: most clients that take part.
        size: C, the places of the cohort.
        plan: how the engine walks through the cohort.
    """
    bits = jax.random.bits(key_for(root, Stream.COHORT, round), (data.num_clients,), jnp.uint32)
    lots = (bits >> (32 - LOT_BITS)).astype(jnp.int32)
    highest = max(0, int(probability * 2**LOT_BITS + 0.5) - 1)
    there = jnp.ones(data.num_clients, bool) if data.held_out is None else ~jnp.asarray(data.held_out)
    drawn = (lots <= highest) & there
    _, ids = jax.lax.top_k(jnp.where(drawn, -lots, jnp.iinfo(jnp.int32).min), size)
    mask = drawn[ids] & (jnp.arange(size) < capacity)
    order = jnp.argsort(ids)
    expected = jnp.float32(probability) * there.sum(dtype=jnp.float32)
    return dataclasses.replace(Cohort.of(ids[order], plan), mask=mask[order], expected=expected)


@checked
def dropouts(share: float, sampler: Sampler = uniform) -> Sampler:
    """Returns a sampler whose clients fail with a probability: they are sampled, and contribute nothing.

    Clients that fail count for nothing: neither in averages, nor in bytes, nor in losses. In every round they are the
    clients that would be late under `conditions.straggle` with the same share: FedAvg with `dropouts(s)` is the FedAvg
    that FedProx is compared with, which drops its stragglers (Li et al., MLSys 2020, figure 1). Where a run has both,
    one random number of each client decides both. With `dropouts` below `stragglers`, the clients that fail are some of
    the stragglers, and the others train for fewer epochs; otherwise all stragglers fail. How late a straggler is plays
    no part.

    Args:
        share: the probability, 0 to below 1; 0 is `sampler` itself.
        sampler: draws the clients that may fail.

    Raises:
        ValueError: the share is out of range.
    """
    check_sampler(sampler)
    if is_known(share) and not 0 <= share < 1:
        raise ValueError(
            f"dropouts must be a share of the cohort, 0 or more and below 1, got {share}; 0.3 is a high share."
        )
    if is_zero(share):
        return sampler

    def draw(root: Key, round: Array, data: FederatedData, size: int, plan: Plan = Plan()) -> Cohort:
        cohort = sampler(root, round, data, size, plan)

        def fails(client: Array) -> Array:
            return conduct.is_late(key_for(root, Stream.BATCHES, round, client), share)

        return dataclasses.replace(cohort, mask=cohort.mask & ~jax.vmap(fails)(cohort.ids))

    bind = getattr(sampler, "bind", None)
    bound: Any = None if bind is None else lambda size, population: dropouts(share, bind(size, population))
    name, numbers = f"dropouts({share}, {sampler_name(sampler)})", getattr(sampler, "poisson", None)
    return NamedSampler(name, draw, bind=bound, poisson=numbers)


@checked
def availability(
    pattern: Pattern = "always", *, period: float = 24.0, threshold: float = 0.0, lowest: float = 0.1
) -> Sampler:
    """Returns a sampler that draws uniformly among the clients that are available in a round.

        always    all clients in every round: `uniform`
        diurnal   client i in round t if cos(2 pi (t / period + phase_i)) > threshold, phase_i uniform in [0, 1)
        random    client i in any round with probability p_i, p_i uniform in [lowest, 1)

    Available are, in the mean over clients, a share arccos(threshold) / pi (a half at 0) or (1 + lowest) / 2 of them.
    Devices come and go with the hours of the day (Bonawitz et al., "Towards Federated Learning at Scale", MLSys 2019,
    section 9; Eichner et al., "Semi-Cyclic Stochastic Gradient Descent", ICML 2019); probabilities of their own are
    those of Gu et al., "Fast Federated Learning in the Presence of Arbitrary Device Unavailability", NeurIPS 2021,
    which there depend on the labels. Where fewer are available than are to be drawn, the rest of the cohort is padding.

    Args:
        pattern: `"always"`, `"diurnal"` or `"random"`.
        period: rounds of a day, above 0.
        threshold: above -1 (always) and below 1 (never).
        lowest: the smallest probability, 0 to 1.

    Raises:
        ValueError: an unknown pattern, or a number out of range.
    """
    if not 0 < period < float("inf"):
        raise ValueError(f"availability_period must be a number of rounds above 0, got {period}; 24 is a day of hours.")
    if not -1 < threshold < 1:
        raise ValueError(f"threshold must be above -1 and below 1, got {threshold}; at 0 a half is available.")
    if not 0 <= lowest <= 1:
        raise ValueError(f"lowest must be a probability, from 0 to 1, got {lowest}; 0.1 is the default.")
    if pattern == "always":
        return uniform

    def diurnal(root: Key, round: Array, habit: Array) -> Array:
        return jnp.cos(2 * jnp.pi * (jnp.asarray(round, jnp.float32) / period + habit)) > threshold

    def random(root: Key, round: Array, habit: Array) -> Array:
        luck = jax.random.uniform(key_for(root, Stream.PRESENCE, round), habit.shape, jnp.float32)
        return luck < lowest + (1 - lowest) * habit

    available, words = {
        "diurnal": (diurnal, f"period={period}, threshold={threshold}"),
        "random": (random, f"lowest={lowest}"),
    }[pattern]

    def draw(root: Key, round: Array, data: FederatedData, size: int, plan: Plan = Plan()) -> Cohort:
        # what a client is like is drawn once for the whole run
        habit = jax.random.uniform(key_for(root, Stream.HABIT), (data.num_clients,), jnp.float32)
        lots, ids = _highest_draws(root, round, data, size, available(root, round, habit))
        order = jnp.argsort(ids)
        return dataclasses.replace(Cohort.of(ids[order], plan), mask=lots[order] >= 0)

    return NamedSampler(f"availability({pattern}, {words})", draw)


def sampler_name(sampler: Callable[..., Any]) -> str:
    """Returns the name of a sampler in the identity of a run, which is not resumed under another one.

    It is the `__name__`; of a partial without one, that of its function, and its arguments; of another object its repr.

    >>> sampler_name(dropouts(0.3)), sampler_name(functools.partial(uniform, plan=Plan(chunk=4)))
    ('dropouts(0.3, uniform)', 'uniform(plan=Plan(chunk=4, mesh=None))')
    """
    if hasattr(sampler, "__name__"):
        return sampler.__name__
    if not isinstance(sampler, functools.partial):
        return repr(sampler)

    def shown(value: Any) -> str:
        return sampler_name(value) if callable(value) else repr(value)

    given = [*map(shown, sampler.args), *(f"{name}={shown(one)}" for name, one in sorted(sampler.keywords.items()))]
    return f"{sampler_name(sampler.func)}({', '.join(given)})"


def _highest_draws(
    root: Key, round: Array, data: FederatedData, size: int, available: Array | None = None
) -> tuple[Array, Array]:
    """Returns the `size` highest draws of all clients, and their ids; below 0 for absent or held-out clients."""
    lots = jax.random.uniform(key_for(root, Stream.COHORT, round), (data.num_clients,))
    if available is not None:
        lots = jnp.where(available, lots, -1.0)
    if data.held_out is not None:
        lots = jnp.where(data.held_out, -2.0, lots)
    return jax.lax.top_k(lots, size)


def _distinct_draws(root: Key, round: Array, data: FederatedData, size: int) -> Array:
    """Returns the first `size` distinct clients of a sequence of independent draws, in ascending order.

    The sequence ends after three cohorts. Where too few of it are different, since most are held out, lots are drawn:
    whether this happens does not depend on which clients they are, so that all clients stay equally likely.
    """
    ids = jax.random.randint(key_for(root, Stream.COHORT, round), (3 * size + 16,), 0, data.num_clients)
    order = jnp.argsort(ids, stable=True)
    again = jnp.append(False, jnp.diff(ids[order]) == 0)
    new = jnp.zeros_like(again).at[order].set(~again, unique_indices=True)
    if data.held_out is not None:
        new &= ~jnp.asarray(data.held_out)[ids]
    drawn = jnp.cumsum(new)
    different = jnp.sort(jnp.where(new & (drawn <= size), ids, data.num_clients))[:size]
    return jax.lax.cond(
        drawn[-1] >= size,
        lambda: different,
        lambda: jnp.sort(_highest_draws(root, round, data, size)[1]).astype(ids.dtype),
    )
