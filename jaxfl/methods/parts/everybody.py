"""The mean over all clients of a value that each client stores, updated by the server from a cohort's changes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import takes_part
from jaxfl.server.aggregate import Total, Weighting, client_weight
from jaxfl.server.wire_context import refuse_noise
from jaxfl.typing import Array, Params


class Counted(NamedTuple):
    """The weights of the clients that a mean was over when it was last updated."""

    there: Array  # [N] float32, of the clients that took part
    heard: Array  # [] float32, their sum without the clients that diverged in that round


def count_nobody(clients: int) -> Counted:
    """Returns the weights before the first round: those of no client."""
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
    """Returns the weighted mean over all clients after a cohort's values have changed, and the new weights.

    The mean is over the clients that take part, with rows and not held out: others would damp the change. Clients that
    diverge do not count in that round; noisy sums do not tell how many do. A client begins with the value 0, so that a
    new client adds its weight alone. The server does not have the values of single clients: when clients leave, their
    values are taken to be the mean, and the mean stays.

    Args:
        mean: before the round `[...]`.
        change: weighted sum of the changes of the cohort's values `[...]`.
        counted: the weights of the mean before the round.
        total: the sums that the change was taken from, for their weight; without clusters.
        data: the federation.
        cohort: the clients of the round.
        weighting: of the clients, `"rows"` or `"uniform"`.
    """

    if weighting == "rows":
        refuse_noise('weighting="rows"', "the server knows the rows of single clients; take uniform")
    weights = client_weight(data, jnp.arange(data.num_clients), weighting)
    there = jnp.where(takes_part(data), weights, 0)
    sampled = jnp.where(cohort.mask, weights[cohort.ids], 0).sum()
    left_out = 0 if total.relative else sampled - total.weight[0]
    weight_sum = there.sum() - left_out
    weight_sum = jnp.where(weight_sum > 0, weight_sum, 1)
    before, still = counted.there.sum(), jnp.where(there > 0, counted.there, 0).sum()
    stay = jnp.where(before > still, still / jnp.maximum(before, 1), 1)
    numerators = counted.heard * stay, jnp.ones_like(weight_sum)
    old_share, share = (part.astype(float) / weight_sum.astype(float) for part in numerators)
    contributed = total.weight[0] > 0

    def add(leaf: Array, more: Array) -> Array:
        return jnp.where(contributed, old_share.astype(leaf.dtype) * leaf + share.astype(leaf.dtype) * more, leaf)

    now = jax.tree.map(lambda new, old: jnp.where(contributed, new, old), Counted(there, weight_sum), counted)
    return jax.tree.map(add, mean, change), now
