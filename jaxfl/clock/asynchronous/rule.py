"""Rules of asynchronous aggregation: when the server steps, and how a contribution counts that started long ago.

    FedBuff     w <- w + (1 / n) sum_j s(r_j) n_j (w_j - v_j)        when Z contributions have arrived
    FedAsync    w <- w + a s(r_j) (w_j - w)                          at every arrival

w_j is what client j sends, v_j the model that it has started from, n_j its weight and n the sum of them; r_j is its
staleness, the server's steps since its start. s is a constant 1, the polynomial (1 + r)^-b, or the hinge, 1 up to
r = c and then 1 / (b (r - c) + 1).

FedAsync: Xie, Koyejo and Gupta, "Asynchronous Federated Optimization", 2019 (arXiv 1903.03934), section 5; its hinge
has 1 / (b (r - c) + 1). FedBuff: Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS
2022, Algorithm 1, whose experiments weigh by 1 / sqrt(1 + r); there all clients weigh the same
(`weighting="uniform"` of the methods).
"""

import re
from typing import Literal, NamedTuple, get_args

import jax.numpy as jnp

from jaxfl.schema import quoted
from jaxfl.typing import Array

Kind = Literal["fedbuff", "fedasync"]
DEFAULTS = {"constant": (), "polynomial": (0.5,), "hinge": (10.0, 4.0)}
NUMBERS = {"constant": "no number", "polynomial": "the exponent b", "hinge": "the slope b and the threshold c"}


class Rule(NamedTuple):
    """A rule, see above.

    Attributes:
        kind: `"fedbuff"` or `"fedasync"`.
        buffer: Z, contributions of a step of the server; None is 10 for FedBuff, at most as many as the clients in
            flight, and 1 for FedAsync.
        staleness: `"constant"`, `"polynomial:B"` or `"hinge:B,C"`.
        mixing: a, of FedAsync.
        max_staleness: the highest staleness, in rounds, of a client that counts: others are dropped, as clients that
            are cut; None drops nobody.
        cluster_buffer: contributions to one of several sums of a round, such as a cluster's, for which it waits; None
            is Z / K, rounded up, of K sums.
        in_flight: M, the clients that work at a time, set by a run.
    """

    kind: Kind
    buffer: int | None = None
    staleness: str = "polynomial"
    mixing: float = 0.6
    max_staleness: int | None = None
    cluster_buffer: int | None = None
    in_flight: int = 1

    @property
    def arrivals(self) -> int:
        """Z, the contributions of a round.

        >>> Rule("fedbuff", in_flight=4).arrivals, Rule("fedbuff", buffer=20).arrivals, Rule("fedasync").arrivals
        (4, 20, 1)
        """
        if self.buffer is not None:
            return self.buffer
        return min(10, self.in_flight) if self.kind == "fedbuff" else 1

    @property
    def places(self) -> int:
        """The versions of the server's models that are kept: clients in flight have started from no more."""
        most = self.in_flight + 1
        return most if self.max_staleness is None else min(most, self.max_staleness + 1)

    def waits_for(self, sums: int) -> int:
        """Returns the contributions for which each of a number of sums waits."""
        if sums == 1:
            return 1  # a round has them all
        return -(-self.arrivals // sums) if self.cluster_buffer is None else self.cluster_buffer

    def weight(self, staleness: Array) -> Array:
        """Returns how much contributions of a staleness count, of the shape of `staleness`, float32.

        >>> Rule("fedbuff").weight(jnp.array([0, 3])).tolist()
        [1.0, 0.5]
        >>> Rule("fedbuff", staleness="hinge:9,4").weight(jnp.array([4, 5])).round(3).tolist()
        [1.0, 0.10000000149011612]
        """
        kind, numbers = parse_staleness(self.staleness)
        late = jnp.maximum(staleness, 0).astype(jnp.float32)
        if kind == "polynomial":
            found = (1 + late) ** -jnp.float32(numbers[0])
        elif kind == "hinge":
            slope, start = numbers
            found = jnp.where(late <= start, 1, 1 / (slope * jnp.maximum(late - start, 0) + 1))
        else:
            found = jnp.ones_like(late)
        return found * jnp.float32(self.mixing) if self.kind == "fedasync" else found


def parse_staleness(text: str) -> tuple[str, tuple[float, ...]]:
    """Returns the name of a weight by staleness, and its numbers.

    Raises:
        ValueError: it is unknown, or its numbers are out of range.

    >>> parse_staleness("hinge"), parse_staleness("polynomial:1")
    (('hinge', (10.0, 4.0)), ('polynomial', (1.0,)))
    """
    kind, colon, rest = text.partition(":")
    if kind not in DEFAULTS:
        raise ValueError(
            f"staleness must be one of {', '.join(DEFAULTS)}, got {quoted(text)}; polynomial:0.5 is usual."
        )
    if not colon:
        return kind, DEFAULTS[kind]
    parts, usual = rest.split(","), DEFAULTS[kind]
    if len(parts) != len(usual) or not all(re.fullmatch(r"\d+(\.\d+)?|\.\d+", part.strip()) for part in parts):
        example = ":".join(filter(None, (kind, ",".join(f"{number:g}" for number in usual))))
        raise ValueError(f"staleness={kind} takes {NUMBERS[kind]}, from 0, got {quoted(text)}; {example} is usual.")
    return kind, tuple(float(part) for part in parts)


def check_rule(rule: Rule) -> None:
    """Raises ValueError if a number of a rule is out of range, or without effect."""
    if rule.kind not in get_args(Kind):
        raise ValueError(f"asynchronous must be one of {', '.join(get_args(Kind))}, got {quoted(rule.kind)}.")
    parse_staleness(rule.staleness)
    for name in ("buffer", "cluster_buffer"):
        value = getattr(rule, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}; leave it out for the default.")
    if rule.max_staleness is not None and rule.max_staleness < 0:
        raise ValueError(f"max_staleness must be at least 0, got {rule.max_staleness}; none takes all contributions.")
    if not 0 < rule.mixing <= 1:
        raise ValueError(f"mixing must be above 0 and at most 1, got {rule.mixing}; 0.6 is usual.")
    if rule.mixing != Rule._field_defaults["mixing"] and rule.kind != "fedasync":
        raise ValueError(
            f"mixing needs asynchronous=fedasync, got {rule.mixing} with {rule.kind}; take a server_optimizer of the "
            "method for another length of the step."
        )
