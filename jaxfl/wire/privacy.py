"""Client-level differential privacy: bounded messages, and noise on every sum.

The updates of a client in one pass, of all its contributions, are one message v_i, which goes to the sum of the
client's cluster k_i. The server receives noisy sums in place of the sums, and the models are

    v_i      <-  v_i min(1, S / |v_i|)                                       S is the clip
    V_k      <-  sum_{i: k_i = k} v_i + N(0, (z S')^2)                       of every cluster, also of an empty one
    w_k      <-  w_k + V_k / D_k                                             w_k is what the clients have received

McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018. All clients weigh the same, and
D_k does not depend on who takes part. For one cluster it is the expected cohort, and S' = S. For K clusters the counts
are a release as well: each client adds a S onehot(k_i), a = 1/2, to its message, and

    S' = S sqrt(1 + a^2),    D_k = max(floor, n_k + N(0, (z sqrt(1 + a^2) / a)^2))

A client that is added or removed changes the sums and the counts of all clusters together by S' at most, whatever its
choice of a cluster depends on: a round is a Gaussian mechanism of noise z, and `jaxfl.wire.accountant` has its epsilon.

>>> import jaxfl, optax
>>> data = jaxfl.data.load("rotated-digits", num_clients=40, rows_per_client=20)
>>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
>>> method = jaxfl.wired(jaxfl.methods.fedavg(task, optax.sgd(0.1)), privacy=Privacy(clip=0.5, noise=2.0))
>>> summary = jaxfl.run(method, data, rounds=2, cohort=10).summary
>>> round(summary["epsilon"], 3), round(summary["delta"], 4), summary["sampling"]
(0.213, 0.0173, 'poisson(0.25, capacity=24)')
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxfl import tree
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Method
from jaxfl.random import Stream, key_for
from jaxfl.schema import check_literal, is_known, quoted
from jaxfl.server.aggregate import Contribution, Total
from jaxfl.typing import Array, Key, Params
from jaxfl.wire.clipping import LEAST_CLIP, clipped

COUNT_SHARE = 0.5  # a, of the clip, that a client adds to the count of its cluster
Accounting = Literal["poisson", "poisson-assumed"]
Denominator = Literal["auto", "noisy", "fixed"]


@dataclasses.dataclass(frozen=True)
class Privacy:
    """Client-level differential privacy of a wired method, see `jaxfl.wire.privacy`.

    Attributes:
        clip: S, largest norm of a client's message.
        noise: z, the standard deviation of the noise as a multiple of the sensitivity S'; 0 adds none, and is not
            private.
        epsilon: of all rounds of a run, which finds the noise for it; in place of `noise`.
        delta: of the run; None is 1 / N^1.1 for N clients that take part.
        denominator: D_k: `"noisy"`, from noisy counts; `"fixed"`, the expected cohort divided by K; or `"auto"`, noisy
            counts for several clusters.
        floor: the least D_k of noisy counts.
        accounting: `"poisson"`: a run draws its cohorts by `jaxfl.sampling.poisson`; or `"poisson-assumed"`: its
            cohorts have a fixed size, and epsilon is that of Poisson sampling, which they have not. Papers often report
            the latter; it is not a guarantee.

    Raises:
        ValueError: a number is out of range, or `noise` and `epsilon` are not one of both.

    >>> Privacy(clip=1.0)
    Traceback (most recent call last):
    ValueError: noise must be given where epsilon is none, got none; noise=1.0 is usual, epsilon=8 finds it for a run.
    """

    clip: float
    noise: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    denominator: Denominator = "auto"
    floor: float = 1.0
    accounting: Accounting = "poisson"

    def __post_init__(self) -> None:
        if self.clip is None or not _is_in(self.clip, least=LEAST_CLIP):
            raise ValueError(
                f"clip must be above 0 and finite for noise, got {self.clip} (below {LEAST_CLIP:.2g} is 0 in float32); "
                "1.0 is usual."
            )
        if self.noise is None and self.epsilon is None:
            raise ValueError(
                "noise must be given where epsilon is none, got none; noise=1.0 is usual, epsilon=8 finds it for a run."
            )
        if self.noise is not None and self.epsilon is not None:
            raise ValueError(
                f"epsilon must be none where noise is given, got {self.epsilon} and noise={self.noise}; leave one out."
            )
        if not _is_in(self.noise, least=0):
            raise ValueError(f"noise must be at least 0 and finite, got {self.noise}; 1.0 is usual.")
        if not _is_in(self.epsilon, above=0):
            raise ValueError(f"epsilon must be above 0 and finite, got {self.epsilon}; 8 is usual.")
        if not _is_in(self.delta, above=0) or (is_known(self.delta) and self.delta is not None and self.delta >= 1):
            raise ValueError(f"delta must be above 0 and below 1, got {self.delta}; none is 1 / N^1.1 for N clients.")
        if not _is_in(self.floor, above=0):
            raise ValueError(f"floor must be above 0 and finite, got {self.floor}; 1 is the default.")
        check_literal("denominator", self.denominator, Denominator)
        check_literal("accounting", self.accounting, Accounting)

    def counts_clients(self, num_clusters: int) -> bool:
        """Returns whether the counts of the clusters are released, with noise, as denominators."""
        return self.denominator == "noisy" or (self.denominator == "auto" and num_clusters > 1)


class PrivateRounds(NamedTuple):
    """The part of a wired method that a run needs for its privacy, `Method.privacy`.

    Attributes:
        privacy: the numbers; its noise is None until it is found for an epsilon.
        round: of the method that this belongs to.
        with_noise: `noise -> method`, the method with another noise.
        count_releases: `(key, state, data, cohort) -> int`, the number of passes of a round that sum messages, from
            arrays or shapes.
    """

    privacy: Privacy
    round: Callable[..., Any]
    with_noise: Callable[[float], Method]
    count_releases: Callable[[Key, Any, FederatedData, Cohort], int]


class RoundPrivacy(NamedTuple):
    """The privacy of a round that is being traced.

    Attributes:
        privacy: the numbers.
        key: of the noise of this round.
        averages: names of the leaves that are running averages of batch normalisation.
    """

    privacy: Privacy
    key: Key
    averages: frozenset[str]


def check_privacy(
    privacy: Privacy | None, method: Method, *, aggregator: Any, min_sum: int, error_feedback: bool
) -> None:
    """Raises an error unless a wired method may have this privacy.

    Raises:
        TypeError: it is no `Privacy`.
        ValueError: it is given with an aggregator or a smallest sum, or the server sees more than sums.
    """
    if privacy is None:
        return
    if not isinstance(privacy, Privacy):
        raise TypeError(f"privacy must be a Privacy, got {quoted(privacy)}; jaxfl.Privacy(clip=1.0, noise=1.0) is one.")
    if aggregator is not None:
        raise ValueError(
            "aggregator must be mean with noise, got another one: what a client can change in it is not bounded by the "
            "clip; leave one of them out."
        )
    if min_sum != 1:
        raise ValueError(
            f"min_sum must be 1 with noise, got {min_sum}: which sums are dropped would tell the numbers of clients; "
            "leave one of them out."
        )
    if error_feedback:
        raise ValueError(
            "error_feedback must be False with noise, got True: the memory is of earlier rounds, in which a client was "
            "not counted; leave one of them out."
        )
    if method.server_sees in (None, "unknown"):
        raise ValueError(
            "method must declare what its server sees to have noise, got one that does not; decorate its factory with "
            'jaxfl.methods.exposure.server_sees(Seen("sums", ...)) if that is so.'
        )
    if method.server_sees != "sums":
        raise ValueError(
            f"noise must be none for a method whose server sees more than sums of clients, got one that sees "
            f"{method.server_sees}, which noise on sums does not cover; take ifca, or fedavg."
        )


def bounded(many: Sequence[Contribution], starts: Sequence[Params], of_round: RoundPrivacy) -> list[Contribution]:
    """Returns a client's contributions with its updates in place of the models, jointly clipped, of weight 1.

    A client without weight still has none; updates that are not finite stay so, and are dropped as ever.

    Args:
        many: the contributions of one pass.
        starts: what the client has received in the place of each of their values.
        of_round: the privacy.

    Raises:
        ValueError: a client has a weight in all clusters, or a model running averages.
    """
    leaves = [name for one in many for name in tree.names(one.values)]
    if running := [name for name in leaves if any(f"/{name}".endswith(f"/{each}") for each in of_round.averages)]:
        raise ValueError(
            f"noise must be none where running averages of batch normalisation are sent, got {running[0]}: a noisy "
            "variance may be negative; take fedbn, or a network without them."
        )
    if any(one.weight.ndim for one in many):
        raise ValueError(
            "noise must be none for clients with a weight in all clusters, such as those of fedsoft, whose sums of "
            "weights would be told; take ifca or fedem."
        )
    return [
        dataclasses.replace(one, weight=(one.weight > 0).astype(one.weight.dtype), start=None)
        for one in clipped(many, starts, of_round.privacy.clip, relative=True)
    ]


def noised(totals: Sequence[Total], of_round: RoundPrivacy, number: int, cohort: Cohort) -> list[Total]:
    """Returns the noisy sums of a pass, with their denominators in place of the weights.

    The noise of a sum has the address of its contribution and its cluster, so that doubled slots keep theirs.

    Args:
        totals: the sums of bounded contributions, of weight 1.
        of_round: the privacy.
        number: of the pass in the round.
        cohort: the clients; its expected number is the denominator of one cluster.

    Raises:
        ValueError: the noise has not been found yet.
    """
    privacy, key = of_round.privacy, key_for(of_round.key, Stream.NOISE, number)
    noise = privacy.noise
    if noise is None:
        raise ValueError(
            f"noise must be known in a round, got epsilon={privacy.epsilon} alone; jaxfl.run finds it for its rounds."
        )
    expected = cohort.mask.sum(dtype=jnp.float32) if cohort.expected is None else cohort.expected
    counted, spread = _counted(totals, privacy)

    def release(place: int, total: Total, counts: bool) -> Total:
        slots, dtype = total.weight.shape[0], jnp.result_type(float)
        keys = jax.vmap(lambda slot: key_for(key, Stream.NOISE, place, slot))(jnp.arange(slots))
        drawn = jax.vmap(lambda key: _normal_like(key, total.values))(keys)
        scale = spread * noise * privacy.clip

        def add(sums: Array, normal: Array) -> Array:
            return sums + (jnp.asarray(scale, normal.dtype) * normal).astype(sums.dtype)

        values = jax.tree.map(add, total.values, drawn)
        weight = jnp.broadcast_to(expected / slots, (slots,))
        if counts:
            normal = jax.vmap(lambda key: jax.random.normal(key_for(key, Stream.NOISE), (), dtype))(keys)
            wide = jnp.asarray(spread / COUNT_SHARE * noise, dtype)
            weight = jnp.maximum(total.weight.astype(dtype) + wide * normal, privacy.floor)
        return dataclasses.replace(total, values=values, weight=weight.astype(dtype), relative=True)

    return [release(place, *each) for place, each in enumerate(zip(totals, counted, strict=True))]


def signal_to_noise(totals: Sequence[Total], privacy: Privacy) -> Array:
    """Returns the ratio of signal to noise of a pass `[]` float32: |V| / (z S' sqrt(n)); infinity without noise.

    V are all sums of the pass, n numbers in all, and the noise that is added to them has the mean square length
    (z S')^2 n. The ratio is for the experimenter: V itself is not released.

    Args:
        totals: the sums, without noise.
        privacy: with the noise.

    >>> total = Total(jnp.array([[3.0], [4.0]]), jnp.ones(2), jnp.int32(0))  # of two clusters: S' is 0.5 sqrt(1.25)
    >>> round(float(signal_to_noise([total], Privacy(clip=0.5, noise=2.0))), 4), 5 / (2 * 0.5 * 1.25**0.5 * 2**0.5)
    (3.1623, 3.162277660168379)
    """
    assert privacy.noise is not None
    leaves = [leaf.astype(jnp.float32) for total in totals for leaf in jax.tree.leaves(total.values)]
    length = jnp.sqrt(jnp.stack([jnp.square(leaf).sum() for leaf in leaves]).sum())
    noise = jnp.asarray(_counted(totals, privacy)[1] * privacy.noise * privacy.clip, jnp.float32)
    noise = noise * math.sqrt(sum(leaf.size for leaf in leaves))
    return jnp.where(noise > 0, length / jnp.where(noise > 0, noise, 1), jnp.inf)


def _counted(totals: Sequence[Total], privacy: Privacy) -> tuple[list[bool], float]:
    """Returns which contributions of a pass have noisy counts, and S' / S of the pass."""
    counted = [privacy.counts_clients(total.weight.shape[0]) for total in totals]
    return counted, math.sqrt(1 + COUNT_SHARE**2 * sum(counted))


def _normal_like(key: Key, values: Params) -> Params:
    """Returns standard normal numbers in the place of one cluster's sums, of a stack `[K, ...]`."""
    leaves, structure = jax.tree.flatten(values)
    draws = []
    for place, leaf in enumerate(leaves):
        dtype = leaf.dtype if leaf.dtype.itemsize >= 4 else jnp.float32
        draws.append(jax.random.normal(key_for(key, Stream.NOISE, 1, place), leaf.shape[1:], dtype))
    return jax.tree.unflatten(structure, draws)


def _is_in(value: Any, *, above: float = -math.inf, least: float = -math.inf) -> bool:
    """Returns whether a number is in a range and finite; True of one that is not given, or is not known yet."""
    if value is None or not is_known(value):
        return True
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and above < value < math.inf and value >= least
