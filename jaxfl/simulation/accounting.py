"""The privacy of a run: its sampler, the noise that an epsilon needs, and the epsilon of the rounds done."""

import math
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxfl import sampling
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Method
from jaxfl.sampling import Sampler, sampler_name
from jaxfl.simulation import processes
from jaxfl.simulation.prepared import Prepared
from jaxfl.simulation.records.directory import RunDirectory
from jaxfl.wire import accountant
from jaxfl.wire.accountant import NoisyRounds
from jaxfl.wire.privacy import Privacy, PrivateRounds

NOISE = "noise"  # of `PRIVACY` in an identity
PRIVACY = "privacy"  # in an identity


class RunPrivacy(NamedTuple):
    """The privacy of a run.

    Attributes:
        privacy: the numbers, with the noise of the run.
        rounds: for the accountant; None where the sampler has none.
        delta: of the guarantee.
        sampling: how cohorts are drawn, as a phrase.
        target: the epsilon that the noise was found for, or None.
    """

    privacy: Privacy
    rounds: NoisyRounds | None
    delta: float
    sampling: str
    target: float | None

    def summary(self, rounds: int) -> dict[str, Any]:
        """Returns what the summary of a run has, after a number of rounds; epsilon is None where there is no bound."""
        spent = None
        if self.rounds is not None and self.privacy.noise is not None:
            spent = accountant.epsilon(self.rounds, noise=self.privacy.noise, rounds=rounds, delta=self.delta)
        told = spent is not None and math.isfinite(spent)
        return {
            "epsilon": spent if told else None,
            "delta": self.delta if told else None,
            "noise": self.privacy.noise,
            "clip": self.privacy.clip,
            "relation": accountant.RELATION if told else None,
            "sampling": self.sampling,
            "accountant": accountant.accountant_name() if told else None,
        }

    def identity(self) -> dict[str, Any]:
        """Returns what the numbers of the run depend on, ready for JSON."""
        one = self.privacy
        told = {NOISE: one.noise, "clip": one.clip, "denominator": one.denominator, "floor": one.floor}
        return told if self.target is None else told | {"epsilon": self.target}


def private_sampler(method: Method, sampler: Sampler) -> Sampler:
    """Returns the sampler of a run: Poisson sampling in place of `uniform` for a method with noise.

    Raises:
        ValueError: sampling is Poisson, and is to be assumed.
    """
    if method.privacy is None:
        return sampler
    if method.privacy.privacy.accounting == "poisson":
        return sampling.poisson() if sampler is sampling.uniform else sampler
    if getattr(sampler, "bind", None) is not None or getattr(sampler, "poisson", None) is not None:
        raise ValueError(
            f'accounting must be "poisson" with the sampler {sampler_name(sampler)}, got "poisson-assumed", which is '
            "for cohorts of a fixed size."
        )
    return sampler


def private_run(
    prepared: Prepared,
    sampler: Sampler,
    cohort: int,
    data: FederatedData,
    *,
    rounds: int,
    folders: Iterable[Path] = (),
) -> tuple[Prepared, RunPrivacy | None]:
    """Returns a run with the noise that its epsilon needs, and its privacy; of other methods the run as it is.

    Args:
        prepared: the method and where it is computed.
        sampler: of the run, bound to it.
        cohort: clients of a round.
        data: the federation.
        rounds: of the run.
        folders: of checkpoints that are resumed: a run that goes on keeps its noise.

    Raises:
        ValueError: the method releases more than sums, no epsilon is known for the sampler, or clients arrive or leave.
    """
    private: PrivateRounds | None = prepared.method.privacy
    if private is None:
        return prepared, None
    asked, phrase, numbers = private.privacy, sampler_name(sampler), getattr(sampler, "poisson", None)
    if data.absent is not None:
        raise ValueError(
            "noise must be none where clients arrive or leave, got a federation with arrive or leave: when a client is "
            "there would be told; leave one of them out."
        )
    if prepared.method.round is not private.round:
        raise ValueError("method must be wired last to be private, got one that was changed after it was wired.")
    known = prepared.method if asked.noise is not None else private.with_noise(1.0)
    began = data.in_programs().at(0)  # the round of a drift is a number, which shapes do not have
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), leaf.dtype), began)
    example = Cohort.of(range(1))
    releases = known.privacy.count_releases(jax.random.key(0), prepared.shapes, shapes, example)
    population = sampling.cohort_size(1.0, data)
    of: NoisyRounds | None = None
    if numbers is not None:
        of = NoisyRounds(numbers.probability, numbers.capacity, numbers.population, releases)
    elif asked.accounting == "poisson-assumed" and sampler is sampling.uniform:
        of, phrase = NoisyRounds(cohort / population, None, population, releases), "poisson-assumed"
    delta = accountant.default_delta(population) if asked.delta is None else asked.delta
    if asked.epsilon is None:
        found = RunPrivacy(asked, of, delta, phrase, None)
        found.summary(rounds)  # whatever is wrong with it is told before the run; the number is kept
        return prepared, found
    if of is None:
        raise ValueError(
            f"epsilon must be none with the sampler {phrase}, got {asked.epsilon}: no accountant covers it; take "
            "sampling.poisson(), or give noise in place of epsilon."
        )
    noise = processes.by_first(lambda: _saved_noise(folders))
    noise = accountant.noise_for(of, asked.epsilon, rounds=rounds, delta=delta) if noise is None else noise
    method = private.with_noise(noise)
    return prepared._replace(method=method), RunPrivacy(method.privacy.privacy, of, delta, phrase, asked.epsilon)


def _saved_noise(folders: Iterable[Path]) -> float | None:
    """Returns the noise of a checkpoint in one of several folders; None where there is none."""
    for folder in folders:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the checkpoint before: the run warns of it
            saved = RunDirectory(folder).newest()
        if saved is not None and (noise := saved.header["identity"].get(PRIVACY, {}).get(NOISE)) is not None:
            return float(noise)
    return None
