"""Who takes part in a round: (root key, round) -> Cohort, the same for every method at one seed."""

import jax
import jax.numpy as jnp

from jaxfl.data.clients import Cohort, FederatedData, Plan
from jaxfl.random import Stream, key_for
from jaxfl.typing import Array, Key


def cohort_size(cohort: int | float, data: FederatedData) -> int:
    """Returns how many clients a round samples.

    Args:
        cohort: a share of the participating clients (a float in (0, 1]) or a count (an int from 1 to their number).
        data: the federation; held-out clients do not take part.

    Raises:
        ValueError: the share or the count is out of range.

    >>> import jaxfl
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> cohort_size(0.5, data), cohort_size(3, data), cohort_size(1.0, data)
    (4, 3, 8)
    """
    available = data.num_clients if data.held_out is None else int((~jnp.asarray(data.held_out)).sum())
    remedy = f"give a share in (0, 1] or a count from 1 to {available}"
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


def sample(root: Key, round: Array, data: FederatedData, size: int, plan: Plan = Plan()) -> Cohort:
    """Returns the cohort of one round: `size` clients, uniformly and without replacement, in ascending order of id.

    Args:
        root: the key of the run.
        round: the round `[]`, from 0.
        data: the federation; held-out clients are never drawn.
        size: C, at most the number of participating clients.
        plan: how the engine walks through the cohort.
    """
    if size == data.num_clients:
        return Cohort.of(jnp.arange(size), plan)
    draw = jax.random.uniform(key_for(root, Stream.COHORT, round), (data.num_clients,))
    if data.held_out is not None:
        draw = jnp.where(data.held_out, -1.0, draw)
    _, ids = jax.lax.top_k(draw, size)
    return Cohort.of(jnp.sort(ids), plan)
