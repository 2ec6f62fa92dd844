"""Assignment of the patterns of shifts to clients: evenly, by shares, together, or apart.

A shift has patterns, such as angles, and each client gets one of them. `assigned` says how, for all shifts that are
applied while it lasts:

    crossed    the clients of each group of before get the patterns evenly, so that the new groups are all pairs
    paired     clients of group g get pattern g, so that the groups stay as they are
    apart      some clients keep the first pattern, which changes nothing; the others get the other patterns evenly

With shares of the patterns, clients get them in these proportions instead of evenly (a minority: R-DPCFL).
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Literal

import numpy as np

from jaxfl.random import host_rng

Mixture = Literal["crossed", "paired", "apart"]
MIX_SHARES = (0.2, 0.4, 0.2, 0.2)  # of clients with the first shift, the second, both, neither (FedRC)
# Names of patterns that change nothing.
UNCHANGED = ("0°", "shift 0", "no swap", "no mirror", "no colour", "clean", "strokes unchanged")
UNCHANGED_CLASSES = ("0° for ", "no colour for ")  # beginnings of them


@dataclasses.dataclass
class Assignment:
    """The rule by which clients get the patterns of the next shift.

    Attributes:
        mix: see above.
        shares: share of the clients with each pattern, or None.
        members: which clients have the shift at all `[N]`, with mix="apart".
        used: whether a shift has assigned its patterns so.
    """

    mix: Mixture = "crossed"
    shares: tuple[float, ...] | None = None
    members: np.ndarray | None = None
    used: bool = False


_current: ContextVar[Assignment | None] = ContextVar("assignment", default=None)


@contextlib.contextmanager
def assigned(assignment: Assignment) -> Iterator[None]:
    """Assigns patterns in a given way."""
    token = _current.set(assignment)
    try:
        yield
    finally:
        _current.reset(token)


def client_patterns(group: np.ndarray, names: Sequence[str], skew: str, seed: int) -> np.ndarray:
    """Returns the number of the pattern of each client `[N]`.

    Args:
        group: groups of before `[N]`, all 0 if there are none.
        names: names of the patterns.
        skew: name of the shift.
        seed: seed of the choice.

    >>> client_patterns(np.zeros(4, int), ("0°", "90°"), "rotated", 0).tolist()
    [0, 0, 1, 1]
    >>> with assigned(Assignment(shares=(0.75, 0.25))):
    ...     client_patterns(np.zeros(4, int), ("0°", "90°"), "rotated", 0).tolist()
    [0, 0, 0, 1]
    """
    rule = _current.get() or Assignment()
    rule.used = rule.mix != "paired" or bool(group.any())
    if rule.mix == "paired" and rule.used:
        if group.max() + 1 != len(names):
            raise ValueError(
                f"mix=paired must have as many patterns of {skew} as there are groups ({group.max() + 1}), got "
                f"{len(names)}: {', '.join(names)}."
            )
        return group.astype(int)
    first = 0
    if rule.members is not None:
        first = 1
        if names[0] not in UNCHANGED and not names[0].startswith(UNCHANGED_CLASSES):
            raise ValueError(
                f"the first pattern of {skew} must change nothing with mix=apart, got {names[0]}; begin with none or 0."
            )
        if len(names) < 2:
            raise ValueError(f"{skew} must have two patterns or more with mix=apart, got {names[0]} alone.")
    choice = np.zeros(len(group), int)
    for index in np.unique(group):
        clients = np.flatnonzero(group == index)
        order = host_rng(seed, "crossed", skew, int(index)).permutation(clients)
        if rule.members is not None:
            order = order[rule.members[order]]
        sizes = group_sizes(len(order), names)
        if sizes is not None:
            numbers = np.repeat(np.arange(len(names)), sizes)
        else:
            # In turns, so that the numbers of clients differ by at most one, and the first ones are larger.
            numbers = first + np.arange(len(order)) % (len(names) - first)
        choice[order] = numbers
    return choice


def group_sizes(num_clients: int, names: Sequence[str]) -> np.ndarray | None:
    """Returns the number of clients with each pattern by the shares, or None without shares; sums are rounded.

    >>> with assigned(Assignment(shares=(0.15, 0.2833, 0.2833, 0.2833))):
    ...     group_sizes(21, ("0°", "90°", "180°", "270°")).tolist()
    [3, 6, 6, 6]
    """
    rule = _current.get()
    if rule is None or rule.shares is None:
        return None
    rule.used = True
    if len(rule.shares) != len(names):
        raise ValueError(
            f"group_shares must have a share for each of the {len(names)} patterns ({', '.join(names)}), got "
            f"{len(rule.shares)}."
        )
    return _divided(num_clients, rule.shares)


def checked_shares(name: str, shares: Sequence[float]) -> tuple[float, ...]:
    """Returns shares; raises ValueError unless they are 0 or more, and their sum is 1 to a hundredth."""
    if not len(shares) or not all(share >= 0 for share in shares) or abs(sum(shares) - 1) > 0.01:
        raise ValueError(f"{name} must be shares whose sum is 1, got {','.join(f'{share:g}' for share in shares)}.")
    return tuple(shares)


def apart(num_clients: int, shares: Sequence[float], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns which clients have the first and which the second of two shifts `[N]`.

    Args:
        num_clients: N.
        shares: of clients with the first shift alone, the second alone, both, neither.
        seed: seed of the choice.

    >>> first, second = apart(10, (0.2, 0.4, 0.2, 0.2), 0)
    >>> int(first.sum()), int(second.sum()), int((first & second).sum())
    (4, 6, 2)
    """
    kind = np.zeros(num_clients, int)
    kind[host_rng(seed, "apart").permutation(num_clients)] = np.repeat(np.arange(4), _divided(num_clients, shares))
    return np.isin(kind, (0, 2)), np.isin(kind, (1, 2))


def _divided(total: int, shares: Sequence[float]) -> np.ndarray:
    """Returns a total divided by shares, whose sums are rounded to whole numbers."""
    ends = np.cumsum(shares) / np.sum(shares) * total
    return np.diff(np.floor(ends + 0.5).astype(int), prepend=0)
