"""Addressed randomness: the only module that folds keys.

A random number in jaxfl is named by an address (root seed, stream, round, client) and by nothing else. No key is split
along a cohort, carried in a state or derived from a position, so results do not depend on the order of a cohort, the
chunk size, the number of devices, how often a run is evaluated, or whether it was interrupted and resumed. Two methods
run at one seed see the same cohorts and the same batches.
"""

import enum
import functools
import zlib
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxfl.typing import Array, Key


class Stream(enum.IntEnum):
    """Purpose of a random number, a part of its address. The values decide results: append, never renumber."""

    INIT = 0  # the initial model
    COHORT = 1  # the clients that are sampled in a round
    BATCHES = 2  # the order of a client's rows in a round
    DROPOUT = 3
    SKETCH = 4  # the random projection of a long vector
    VALIDATION = 5  # rows that are held back from training
    START = 6  # draws of a method, before and in rounds: seeds of clusters, noise between models
    STRAGGLE = 7  # which clients are late, and by how much
    ATTACK = 8  # the noise of an attacker
    HABIT = 9  # how often a client is available
    PRESENCE = 10  # whether a client is available in a round
    FINETUNE = 11  # batches of the fine-tuning before a test
    REPRESENTATION = 12  # a client's representation, which is compared with those of others
    HEADS = 13  # batches of the layers that a client keeps for itself
    WIRE = 14  # roundings and places of a channel
    NOISE = 15  # noise of sums, for differential privacy
    AUGMENT = 16  # changes of a step's training images
    CLOCK = 17  # speeds of the clients' devices
    ARRIVALS = 18  # clients that start in the course of an asynchronous round, and the order of draws


def check_seed(seed: int) -> int:
    """Returns the seed as an int.

    Raises:
        TypeError: the seed is not a whole number.
        ValueError: the seed is not from 0 to 2^32 - 1: JAX takes the 32 lowest bits, so two seeds would be one.

    >>> check_seed(2**32)
    Traceback (most recent call last):
    ValueError: seed must be from 0 to 4294967295, got 4294967296.
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise TypeError(f"seed must be a whole number, got {seed!r}.")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must be from 0 to {2**32 - 1}, got {seed}.")
    return int(seed)


def check_seeds(seeds: Sequence[int]) -> list[int]:
    """Returns the seeds as a list of ints.

    Raises:
        TypeError: the seeds are not a list, or one of them is not a whole number.
        ValueError: a seed is out of range, the list is empty, or a seed is in it twice.

    >>> check_seeds([0, 1, 1])
    Traceback (most recent call last):
    ValueError: seeds must be one or more different numbers, got [0, 1, 1]; [0, 1, 2] is fine.
    """
    if not isinstance(seeds, Iterable):
        raise TypeError(f"seeds must be a list of whole numbers, got {seeds!r}; [0, 1, 2] is fine.")
    checked = [check_seed(seed) for seed in seeds]
    if not checked or len(set(checked)) < len(checked):
        raise ValueError(f"seeds must be one or more different numbers, got {seeds!r}; [0, 1, 2] is fine.")
    return checked


def check_seed_or_seeds(seed: int | None, seeds: Sequence[int] | str | None) -> None:
    """Raises ValueError if a seed and several seeds are both given: it is not clear which of them is meant."""
    if seed is not None and seeds is not None:
        raise ValueError(f"seed must not be given together with seeds={seeds}, got {seed}; add it to seeds.")


def key_for(root: Key, stream: Stream, round: Array | int = 0, client: Array | int = 0) -> Key:
    """Returns the key at one address.

    Args:
        root: the key of the whole run, `jax.random.key(seed)`.
        stream: purpose of the numbers.
        round: the round, or any other counter where rounds have no meaning (a model's index for `INIT`).
        client: the client's id in the federation, not its place in the cohort.

    Returns:
        A typed key, the same on every device and in every chunk.

    >>> root = jax.random.key(0)
    >>> first, second = (key_for(root, Stream.BATCHES, round=3, client=i) for i in (7, 8))
    >>> bool((jax.random.key_data(first) == jax.random.key_data(second)).all())
    False
    """
    # On a CPU in a loop: unrolled, keys would be half of a small program and a fifth of its compile time.
    address = [np.uint32(number) if isinstance(number, int) else number for number in (stream, round, client)]
    return _fold_in_address(root, *address, unroll=jax.default_backend() != "cpu")


@functools.partial(jax.jit, static_argnames="unroll")
def _fold_in_address(root: Key, *address: Array | int, unroll: bool) -> Key:
    """Returns the key with the numbers of an address folded in, one after the other."""
    numbers = jnp.stack([jnp.asarray(number).astype(jnp.uint32) for number in address])
    return lax.scan(lambda key, number: (jax.random.fold_in(key, number), None), root, numbers, unroll=unroll)[0]


def host_rng(seed: int, *address: str | int) -> np.random.Generator:
    """Returns NumPy's generator for host-side choices (partitions, splits), addressed by name.

    Args:
        seed: the seed of the data set.
        *address: words or numbers that name the choice, e.g. `"partition", "dirichlet"`.

    Raises:
        TypeError: the seed is not a whole number.
        ValueError: the seed is out of range, see `check_seed`.

    >>> bool(host_rng(0, "partition").integers(1 << 30) == host_rng(0, "split").integers(1 << 30))
    False
    """
    words = [zlib.crc32(str(part).encode()) for part in address]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([check_seed(seed), *words])))
