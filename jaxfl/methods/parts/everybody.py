"""The mean over all clients of what each of them keeps, as a server knows it: from what a cohort says has changed."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import takes_part
from jaxfl.server.aggregate import Total, Weighting
from jaxfl.typing import Array, Params


class Counted(NamedTuple):
    """Of whom the mean was when it was last moved, by weight."""

    there: Array  # [N] float32, of those that took part
    heard: Array  # [] float32, of them without those who diverged in that round


def count_nobody(clients: int) -> Counted:
    """Returns what the mean of no clients is of, which is 0."""
    return Counted(jnp.zeros(clients, jnp.float32), jnp.float32(0))


def update_mean(
    mean: Params,
    change: Params,
    counted: Counted,
    total: Total,
    data: FederatedData,
    cohort: Cohort,
    weighting: Weighting,
) -> tuple[Params, Counted]:
    """Returns the weighted mean over all clients after a cohort's rows have changed, and of whom it is.

    All clients are those that take part, with rows and not held out: others would damp the change. Nor do those count
    in a round in which they are left out because they diverge. What clients begin with is 0: when some arrive, the sum
    is of more. When some leave, nobody knows what each of them has, and the mean stays: theirs is taken to be that of
    all.

    Args:
        mean: before `[...]`.
        change: of the cohort's rows, their weighted sum `[...]`.
        counted: of whom the mean is.
        total: what the change was taken from, for the weight that counts; without clusters.
        data: the federation.
        cohort: who was asked.
        weighting: of the clients, `"rows"` or `"uniform"`.
    """

    def weight(sizes: Array) -> Array:
        return (sizes if weighting == "rows" else sizes > 0).astype(jnp.float32)

    sizes = jnp.asarray(data.train.size)
    there = jnp.where(takes_part(data), weight(sizes), 0)
    left_out = jnp.where(cohort.mask, weight(sizes[cohort.ids]), 0).sum() - total.weight[0]
    heard = jnp.maximum(there.sum() - left_out, 1)
    before, still = counted.there.sum(), jnp.where(there > 0, counted.there, 0).sum()
    stay = jnp.where(before > still, still / jnp.maximum(before, 1), 1)
    kept, share = (part.astype(float) / heard.astype(float) for part in (counted.heard * stay, jnp.ones_like(heard)))
    anybody = total.weight[0] > 0

    def add(leaf: Array, more: Array) -> Array:
        return jnp.where(anybody, kept.astype(leaf.dtype) * leaf + share.astype(leaf.dtype) * more, leaf)

    now = jax.tree.map(lambda new, old: jnp.where(anybody, new, old), Counted(there, heard), counted)
    return jax.tree.map(add, mean, change), now
