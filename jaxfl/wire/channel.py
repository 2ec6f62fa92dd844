"""The links of a channel: what a client does to its update before sending it, and the bytes that are then sent.

An update is the difference between what a client contributes and what it received, all leaves of all contributions of a
pass as one vector v `[d]`. Links are joined by `chain`.

    clip(S)        v min(1, S / |v|)                                              McMahan et al., ICLR 2018
    top_k(p)       the k = ceil(p d) entries of the largest magnitude             Aji and Heafield, EMNLP 2017
    random_k(p)    d / k times v, at k places drawn without replacement           Stich et al., NeurIPS 2018
    sign           sign(v) times the mean magnitude of the entries that are not 0 Karimireddy et al., ICML 2019
    qsgd(b)        |v| sign(v) l / s with s = 2^(b - 1) - 1, l = s |v_i| / |v| rounded up or down at random, without
                   bias                                                           Alistarh et al., NeurIPS 2017
    bfloat16       the nearest bfloat16

`random_k` and `qsgd` are unbiased, the others are not.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxfl import tree
from jaxfl.schema import is_known
from jaxfl.typing import Array, Key
from jaxfl.wire.clipping import LEAST_CLIP, clip_factor

FLOAT_BITS = 32  # of a number that is sent as it is
SCALE_BITS = 32  # of a scale, or of the seed of random places


class CodeSize(NamedTuple):
    """The size of a message in a code of fixed length.

    Attributes:
        numbers: how many are sent.
        bits: of each number.
        place_bits: of each number's place; 0 where places are not sent.
        more_bits: of the whole message, such as a scale.
    """

    numbers: int
    bits: int = FLOAT_BITS
    place_bits: int = 0
    more_bits: int = 0

    @property
    def num_bytes(self) -> float:
        """Returns the bytes of the message.

        >>> CodeSize(numbers=10, bits=8, place_bits=7, more_bits=32).num_bytes
        22.75
        """
        return (self.numbers * (self.bits + self.place_bits) + self.more_bits) / 8


class Transform(NamedTuple):
    """A link of a channel, or several links.

    Attributes:
        change: `(key, v [d]) -> [d]`, what the server receives in place of an update; `key` is the client's in this
            round.
        coded: what the link makes of the size of a message.
        error: `numbers -> float`, the largest mean squared error of a message of so many numbers other than 0, by its
            own square; below 1 it can be fed back, see `jaxfl.wire.memory`. Of a chain it is its links' largest.
        longest: S, of a link that does nothing but shorten messages to this norm, for which kernels can stay in
            coordinates, see `jaxfl.wire.clipping`; None of any other.
    """

    change: Callable[[Key, Array], Array]
    coded: Callable[[CodeSize], CodeSize] = lambda size: size
    error: Callable[[int], float] = lambda numbers: 0.0
    longest: Any = None


def chain(*links: Transform) -> Transform:
    """Returns the channel of several links, applied in their order.

    >>> v = jnp.array([3.0, -1.0, 2.0, -4.0, 0.5, 0.0])
    >>> chain(top_k(0.5), sign()).change(jax.random.key(0), v).tolist()
    [3.0, 0.0, 3.0, -3.0, 0.0, 0.0]
    """

    def change(key: Key, v: Array) -> Array:
        for number, link in enumerate(links):
            v = link.change(jax.random.fold_in(key, number), v)
        return v

    def coded(size: CodeSize) -> CodeSize:
        for link in links:
            size = link.coded(size)
        return size

    def error(numbers: int) -> float:
        size, largest = CodeSize(numbers), 0.0
        for link in links:
            largest, size = max(largest, link.error(size.numbers)), link.coded(size)
        return largest

    return Transform(change, coded, error, links[0].longest if len(links) == 1 else None)


def clip(norm: float) -> Transform:
    """Returns the link that shortens updates to a largest norm.

    Args:
        norm: S, above 0.

    Raises:
        ValueError: `norm` is below the smallest number that is not rounded to 0, or infinite.

    >>> clip(2.5).change(jax.random.key(0), jnp.array([3.0, 4.0])).tolist()
    [1.5, 2.0]
    """
    if is_known(norm) and not LEAST_CLIP <= norm < math.inf:
        raise ValueError(
            f"clip must be above 0 and finite, got {norm} (below {LEAST_CLIP:.2g} is 0 in float32); 1.0 is usual, "
            "none does not clip."
        )

    def change(key: Key, v: Array) -> Array:
        return v * clip_factor(tree.norm(v), norm)

    return Transform(change, longest=norm)


def top_k(share: float) -> Transform:
    """Returns the link that keeps the entries of the largest magnitude; ties go to the first places.

    Args:
        share: p, above 0 and at most 1.

    Raises:
        ValueError: `share` is out of range.
    """
    _check_share("topk", share)

    def change(key: Key, v: Array) -> Array:
        k = _num_kept(share, v.size)
        return v if k == v.size else jnp.where(largest(jnp.abs(v), k), v, 0)

    def coded(size: CodeSize) -> CodeSize:
        k = _num_kept(share, size.numbers)
        if k == size.numbers:
            return size
        return size._replace(numbers=k, place_bits=max(size.place_bits, math.ceil(math.log2(size.numbers))))

    return Transform(change, coded)


def random_k(share: float) -> Transform:
    """Returns the link that keeps entries at random places, scaled by d / k; the places follow from a seed.

    Args:
        share: p, above 0 and at most 1.

    Raises:
        ValueError: `share` is out of range.
    """
    _check_share("randk", share)

    def change(key: Key, v: Array) -> Array:
        k = _num_kept(share, v.size)
        if k == v.size:
            return v
        drawn = largest(jax.random.uniform(key, v.shape), k)
        return jnp.where(drawn, v * jnp.asarray(v.size / k, v.dtype), 0)

    def coded(size: CodeSize) -> CodeSize:
        k = _num_kept(share, size.numbers)
        return size if k == size.numbers else size._replace(numbers=k, more_bits=size.more_bits + SCALE_BITS)

    return Transform(change, coded, lambda numbers: numbers / _num_kept(share, numbers) - 1)


def sign() -> Transform:
    """Returns the link that sends one bit for each entry, and the mean magnitude of those that are not 0."""

    def change(key: Key, v: Array) -> Array:
        count = jnp.maximum((v != 0).sum(), 1)
        return jnp.abs(v).sum() / count.astype(v.dtype) * jnp.sign(v)

    return Transform(change, lambda size: size._replace(bits=1, more_bits=size.more_bits + SCALE_BITS))


def qsgd(bits: int) -> Transform:
    """Returns the link that rounds entries at random to multiples of |v| / (2^(b - 1) - 1).

    Args:
        bits: b of each entry, its sign among them, from 2 to 16.

    Raises:
        ValueError: `bits` is out of range.
    """
    if isinstance(bits, bool) or not isinstance(bits, int) or not 2 <= bits <= 16:
        raise ValueError(f"qsgd must have 2 to 16 bits, got {bits}; qsgd:8 is usual.")
    levels = 2 ** (bits - 1) - 1

    def change(key: Key, v: Array) -> Array:
        length = tree.norm(v)
        level = jnp.abs(v) / jnp.where(length > 0, length, 1) * levels
        lower = jnp.floor(level)
        level = lower + (jax.random.uniform(key, v.shape, v.dtype) < level - lower).astype(v.dtype)
        return jnp.sign(v) * (length / levels) * level

    return Transform(
        change,
        lambda size: size._replace(bits=bits, more_bits=size.more_bits + SCALE_BITS),
        lambda numbers: numbers / (2 * levels) ** 2,  # the variance of each level is 1/4 at most
    )


def bfloat16() -> Transform:
    """Returns the link that rounds entries to bfloat16."""

    def change(key: Key, v: Array) -> Array:
        return v.astype(jnp.bfloat16).astype(v.dtype)

    return Transform(change, lambda size: size._replace(bits=16))


def largest(values: Array, count: int) -> Array:
    """Returns which of `values [d]`, which are not negative, are the `count` largest, bool `[d]`; ties to the first.

    Floats that are not negative have the order of their bits: bisection finds the smallest of the `count` in as many
    sums over d as a number has bits. A sort takes several times as long.

    >>> largest(jnp.array([3.0, 1.0, 2.0, 3.0, 2.0]), 3).tolist()
    [True, False, True, True, False]
    """
    values = values.astype(jnp.float32) if values.dtype.itemsize < 4 else values
    width = 8 * values.dtype.itemsize
    whole: Any = jnp.int64 if width == 64 else jnp.int32
    bits = jax.lax.bitcast_convert_type(values, whole)

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends  # at least `count` are low or above, fewer are high or above
        middle = low + (high - low) // 2
        enough = (bits >= middle).sum() >= count
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    ends = jnp.zeros((), whole), jnp.asarray(jnp.iinfo(whole).max, whole)
    smallest, _ = jax.lax.fori_loop(0, width - 1, halve, ends)
    above, equal = bits > smallest, bits == smallest
    return above | (equal & (jnp.cumsum(equal) <= count - above.sum()))


def _num_kept(share: float, size: int) -> int:
    """Returns k = ceil(p d); 0.28 of 25 is 7, although the product is a little above 7 in floating point."""
    return min(size, math.ceil(round(share * size, 6)))


def _check_share(name: str, share: float) -> None:
    """Raises ValueError unless a share of the entries is above 0 and at most 1."""
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise ValueError(
            f"{name} must keep a share of the entries above 0 and at most 1, got {share}; {name}:0.01 keeps one in "
            "hundred."
        )
