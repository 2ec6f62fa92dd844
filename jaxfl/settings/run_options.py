"""The options that every run has, whatever its method, data, model and optimiser."""

from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp

from jaxfl import sampling
from jaxfl.models.precision import Compute
from jaxfl.schema import Option
from jaxfl.typing import Array

ScheduleName = Literal["constant", "cosine", "step", "exponential", "warmup"]
# What the factor falls to within `rounds` (or, of `warmup`, rises from), where nothing is said of it.
SCHEDULE_FACTORS = {"cosine": 0.0, "step": 0.1, "exponential": 0.1, "warmup": 0.0}


def learning_rate_schedule(
    name: ScheduleName, rounds: int | None, factor: float | None
) -> Callable[[Array], Any] | None:
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
    >>> {name: np.asarray(learning_rate_schedule(name, 4, None)(numbers), float).round(2).tolist() for name in names}
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
    end = SCHEDULE_FACTORS[name] if factor is None else factor
    if not 0 <= end <= 1 or (end == 0 and name == "exponential"):
        raise ValueError(
            f"schedule_factor must be from 0 to 1, and above 0 of schedule=exponential, got {end} of {name}; "
            f"{SCHEDULE_FACTORS[name]} is usual."
        )
    shapes: dict[str, Callable[[Array], Any]] = {
        "cosine": lambda past: end + (1 - end) * (1 + jnp.cos(jnp.pi * jnp.minimum(past, 1))) / 2,
        # a compiled program multiplies with 1 / rounds, and 41 times 1 / 41 is below 1
        "step": lambda past: jnp.float32(end) ** jnp.floor(past + 0.5 / rounds),
        "exponential": lambda past: jnp.float32(end) ** past,
        "warmup": lambda past: end + (1 - end) * jnp.minimum(past + 1 / rounds, 1),
    }
    return lambda number: shapes[name](number / rounds)


# Of every run. `dropouts` and `availability` say who takes part, see `jaxfl.sampling`; see `jaxfl.FineTune` too.
RUN = (
    Option(
        "chunk",
        "auto",
        int | None | Literal["auto"],
        "clients trained side by side; auto fits the device, none takes all of a cohort",
    ),
    Option("devices", None, int | None | Literal["all"], "devices that share a round; none takes all GPUs, or cores"),
    Option("dropouts", 0.0, float, "share of the sampled clients that fail"),
    Option("availability", "always", sampling.Pattern, "who can be sampled"),
    Option("availability_period", 24.0, float, "rounds of a day, of availability=diurnal"),
    Option("fast_forms", True, bool, "whether convolutions and poolings take the forms that are fast for many clients"),
    Option("compute", "float32", Compute, "what the network computes in; parameters and losses are float32 anyway"),
    Option("task", "auto", str, "what is learned; auto goes by the data's labels, FILE.py:NAME is your own"),
    Option("test_rows", None, int | None, "the most rows tested of a client before the last round; none tests all"),
    Option("eval_clients", None, int | None, "clients that are tested; none tests all of up to 10,000"),
    Option(
        "resident",
        "auto",
        bool | Literal["auto"],
        "whether all clients' rows and models lie on the device, or a round's are sent ahead",
    ),
    Option(
        "finetune",
        None,
        int | None,
        "epochs that every client trains the served model on its own training rows before a second test, with the "
        "run's optimiser and batch size: finetuned_micro_accuracy and so on",
    ),
    Option(
        "finetune_batch_size", "local", int | None | Literal["local"], "of these epochs; none takes all rows at once"
    ),
    Option("schedule", "constant", ScheduleName, "how the clients' learning rate changes from round to round"),
    Option("schedule_rounds", None, int | None, "rounds that it falls or rises for, or between two steps"),
    Option("schedule_factor", None, float | None, "of the learning rate: where it falls to, or rises from"),
    Option("weights", None, str | None, "FILE.safetensors with the model that all start from, see jaxfl.start_from"),
)
