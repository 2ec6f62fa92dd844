"""Robust aggregators: what a server takes in place of the mean of its clients' updates, by cluster.

An aggregator is a function `(updates [C, d], labels [C], num_clusters) -> [K, d]`. Every member of a cluster counts
once, whatever its rows, since an attacker can report any number of them. A label of -1 is in no cluster, and a cluster
without members gets 0. In a cluster of n members, f = floor(share n) are taken to be attackers.

    median, trimmed_mean  of every coordinate, see `jaxfl.clustering.centres`            Yin et al., ICML 2018
    krum                  the update with the least sum of squared distances to its
                          n - f - 2 nearest ones                                         Blanchard et al., NeurIPS 2017
    multi_krum            the mean of the n - f updates that are best by this sum        the same
    geometric_median      Weiszfeld's iteration from the mean                            Pillutla et al., IEEE TSP 2022
    centred_clip          v <- v + mean of (x_i - v) min(1, tau / |x_i - v|) from v = 0  Karimireddy et al., ICML 2021

A norm bound is none of these functions: the server shortens each update that is longer than tau, and takes the method's
own mean of them (Sun et al., "Can you really backdoor federated learning?", 2019). It needs one update at a time.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxfl.clustering import centres
from jaxfl.typing import Array

Aggregator = Callable[[Array, Array, int], Array]


class OfCoordinates(NamedTuple):
    """An aggregator that takes every coordinate by itself: each of several devices may have a part of them."""

    aggregate: Aggregator

    def __call__(self, updates: Array, labels: Array, num_clusters: int) -> Array:
        """Returns the aggregate `[K, d]`."""
        return self.aggregate(updates, labels, num_clusters)


class Krum(NamedTuple):
    """Krum or Multi-Krum, which is proved for n > 2 f + 2 members of which f attack.

    Attributes:
        aggregate: the aggregator.
        name: `"krum"` or `"multikrum"`, for messages.
        share: of the members that may be attackers.
    """

    aggregate: Aggregator
    name: str
    share: float

    def __call__(self, updates: Array, labels: Array, num_clusters: int) -> Array:
        """Returns the aggregate `[K, d]`."""
        return self.aggregate(updates, labels, num_clusters)

    def check(self, attackers: int, clients: int, cohort: int) -> None:
        """Raises ValueError if the condition cannot hold in a run, even if all clients are in one cluster.

        Args:
            attackers: clients of the federation that attack.
            clients: clients of the federation that train.
            cohort: clients of a round.
        """
        given, assumed = f"{self.name}:{self.share:g}", _num_attackers(self.share, cohort)
        if cohort < 2 * assumed + 3:
            lower = math.floor(100 * ((cohort - 3) // 2) / cohort) / 100
            take = f"take {self.name}:{lower:g}, or a larger cohort" if cohort >= 3 else "take a larger cohort"
            raise ValueError(
                "aggregator must have n > 2 f + 2 for the n clients of a cohort, of which f = floor(share n) attack, "
                f"got {given} with n = {cohort} and f = {assumed}; {take}."
            )
        if attackers > max(round(self.share * clients), self.share > 0):  # as many as attackers=SHARE chooses
            higher = math.ceil(100 * attackers / clients) / 100
            holds = cohort >= 2 * _num_attackers(higher, cohort) + 3
            take = f"take {self.name}:{higher:g}, or fewer attackers" if holds else "take fewer attackers"
            raise ValueError(
                f"aggregator must have a share that is at least that of the attackers, got {given} with {attackers} of "
                f"{clients} clients that attack; {take}."
            )


class NormBound(NamedTuple):
    """The largest norm of an update that a server takes."""

    radius: float


def median() -> Aggregator:
    """Returns the median of every coordinate.

    >>> median()(jnp.array([[1.0], [2.0], [99.0], [7.0]]), jnp.array([0, 0, 0, 1]), 2).ravel().tolist()
    [2.0, 7.0]
    """
    return OfCoordinates(lambda updates, labels, count: centres.median(updates, labels, _zeros(updates, count)))


def trimmed_mean(share: float) -> Aggregator:
    """Returns the mean of every coordinate without its extremes.

    Args:
        share: of the members left out on either side, from 0 (the mean) to 0.5 (the median).

    Raises:
        ValueError: `share` is out of range.
    """
    _check_attackers("trimmed", share, 0.5)

    def aggregate(updates: Array, labels: Array, count: int) -> Array:
        return centres.trimmed_mean(updates, labels, _zeros(updates, count), share=share)

    return OfCoordinates(aggregate)


def geometric_median(steps: int = 8) -> Aggregator:
    """Returns the geometric median, by a number of steps of Weiszfeld's iteration."""
    return lambda updates, labels, count: centres.geometric_median(updates, labels, _zeros(updates, count), steps=steps)


def krum(share: float) -> Krum:
    """Returns Krum; with less than four members it means little, since an update has hardly a neighbour.

    Runs are refused whose cohorts are too small for the share, or whose attackers are more.

    Args:
        share: of the members that may be attackers, from 0 and below 0.5.

    Raises:
        ValueError: `share` is out of range.
    """
    return _krum("krum", share, lambda members, attackers: jnp.minimum(members, 1))


def multi_krum(share: float) -> Krum:
    """Returns Multi-Krum.

    Args:
        share: as in `krum`.

    Raises:
        ValueError: `share` is out of range.
    """
    return _krum("multikrum", share, lambda members, attackers: members - attackers)


def centred_clip(radius: float, steps: int = 3) -> Aggregator:
    """Returns centred clipping.

    Args:
        radius: tau, above 0: the farthest that one member moves the centre, times the number of members.
        steps: of the iteration.

    Raises:
        ValueError: `radius` is not above 0 and finite.
    """
    _check_radius("cclip", radius)

    def aggregate(updates: Array, labels: Array, count: int) -> Array:
        inside = (labels >= 0)[:, None]
        slot = jnp.maximum(labels, 0)

        def step(_: Array, found: Array) -> Array:
            away = jnp.where(inside, updates - found[slot], 0)
            length = jnp.sqrt(jnp.square(away).sum(1, keepdims=True))
            scale = jnp.where(length > radius, radius / jnp.where(length > 0, length, 1), 1).astype(updates.dtype)
            return found + centres.mean(away * scale, labels, _zeros(updates, count))

        return jax.lax.fori_loop(0, steps, step, _zeros(updates, count))

    return aggregate


def norm_bound(radius: float) -> NormBound:
    """Returns the norm bound.

    Args:
        radius: tau, above 0: the longest update, all that a client contributes in an exchange as one.

    Raises:
        ValueError: `radius` is not above 0 and finite.
    """
    _check_radius("norm", radius)
    return NormBound(radius)


def _krum(name: str, share: float, num_chosen: Callable[[Array, Array], Array]) -> Krum:
    """Returns the mean of the `num_chosen(n, f)` updates of each cluster that are best by Krum's sum.

    Distances are of differences: a product of all updates would lose those among honest clients to one that is huge.
    """
    _check_attackers(name, share, 0.5)
    if share == 0.5:
        raise ValueError(f"{name} must have a share of attackers below 0.5, got {share}; {name}:0.2 is usual.")

    def aggregate(updates: Array, labels: Array, count: int) -> Array:
        size = labels.shape[0]
        members = centres.counts(labels, count)  # [K]
        attackers = jnp.asarray(centres.trim_counts(share, size))[members]
        near = jnp.maximum(members - attackers - 2, jnp.minimum(members - 1, 1))  # [K] neighbours that are looked at
        slot = jnp.maximum(labels, 0)

        def score(index: Array) -> Array:
            square = jnp.square(updates - updates[index][None]).sum(1)
            others = (labels == labels[index]) & (jnp.arange(size) != index)
            nearest = jnp.sort(jnp.where(others, square, jnp.inf))
            return jnp.where(jnp.arange(size) < near[slot[index]], nearest, 0).sum()

        scores = jax.lax.map(score, jnp.arange(size))  # [C]
        better = (scores[None] < scores[:, None]) | (
            (scores[None] == scores[:, None]) & (jnp.arange(size)[None] < jnp.arange(size)[:, None])
        )
        rank = (better & (labels[None] == labels[:, None])).sum(1, dtype=jnp.int32)  # [C], ties by index
        chosen = rank < num_chosen(members, attackers)[slot]
        return centres.mean(updates, jnp.where(chosen, labels, -1), _zeros(updates, count))

    return Krum(aggregate, name, share)


def _num_attackers(share: float, members: int) -> int:
    """Returns f of a cluster with some members."""
    return int(centres.trim_counts(share, members)[members])


def _zeros(updates: Array, count: int) -> Array:
    """Returns 0 for every cluster `[K, d]`."""
    return jnp.zeros((count, updates.shape[1]), updates.dtype)


def _check_radius(name: str, radius: float) -> None:
    """Raises ValueError unless a radius is above 0 and finite."""
    if not 0 < radius < math.inf:
        raise ValueError(f"{name} must have a radius above 0 and finite, got {radius}; {name}:1.0 is usual.")


def _check_attackers(name: str, share: float, most: float) -> None:
    """Raises ValueError unless a share of attackers is from 0 to `most`."""
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= most:
        raise ValueError(f"{name} must have a share of attackers from 0 to {most}, got {share}; {name}:0.2 is usual.")
