"""Schedules of the learning rate by name."""

from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp

from jaxfl.typing import Array

Name = Literal["constant", "cosine", "step", "exponential", "warmup"]
# What the factor falls to within `rounds` (or, of `warmup`, rises from), where nothing is said of it.
FACTORS = {"cosine": 0.0, "step": 0.1, "exponential": 0.1, "warmup": 0.0}


def of_rounds(name: Name, rounds: int | None, factor: float | None) -> Callable[[Array], Any] | None:
    """Returns a schedule for `jaxfl.scheduled`; None where the learning rate stays.

    Args:
        name: `cosine` falls from 1 to `factor` along half a wave, and stays there; `step` multiplies by `factor` after
            every `rounds`; `exponential` does so little by little; `warmup` rises from `factor` in equal steps, of
            which the first round takes one, and is 1 from the last of `rounds` on.
        rounds: how many.
        factor: None is 0.1 of `step` and `exponential`, and 0 of the others.

    Raises:
        ValueError: a number is out of range, or given without a schedule.

    >>> import numpy as np
    >>> numbers, names = np.arange(6, dtype=np.float32), ("cosine", "step", "warmup")
    >>> {name: np.asarray(of_rounds(name, 4, None)(numbers), float).round(2).tolist() for name in names}
    {'cosine': [1.0, 0.85, 0.5, 0.15, 0.0, 0.0], 'step': [1.0, 1.0, 1.0, 1.0, 0.1, 0.1],
     'warmup': [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]}
    """
    if name == "constant":
        for option, value in {"schedule_rounds": rounds, "schedule_factor": factor}.items():
            if value is not None:
                raise ValueError(f"{option} needs a schedule, got {value} without it; add --set schedule=cosine.")
        return None
    if rounds is None:
        raise ValueError(f"schedule_rounds must be given with schedule={name}: the rounds that it takes, such as 100.")
    if rounds < 1:
        raise ValueError(f"schedule_rounds must be at least 1, got {rounds}.")
    end = FACTORS[name] if factor is None else factor
    if not 0 <= end <= 1 or (end == 0 and name == "exponential"):
        raise ValueError(
            f"schedule_factor must be from 0 to 1, and above 0 of schedule=exponential, got {end} of {name}; "
            f"{FACTORS[name]} is usual."
        )
    shapes: dict[str, Callable[[Array], Any]] = {
        "cosine": lambda past: end + (1 - end) * (1 + jnp.cos(jnp.pi * jnp.minimum(past, 1))) / 2,
        # a compiled program multiplies with 1 / rounds, and 41 times 1 / 41 is below 1
        "step": lambda past: jnp.float32(end) ** jnp.floor(past + 0.5 / rounds),
        "exponential": lambda past: jnp.float32(end) ** past,
        "warmup": lambda past: end + (1 - end) * jnp.minimum(past + 1 / rounds, 1),
    }
    return lambda number: shapes[name](number / rounds)
