"""Learning-rate schedules over rounds, for any method.

The clients' optimisers start fresh in every round, so that a schedule of theirs cannot depend on the round. Instead,
the updates of local training are multiplied by a learning-rate factor that depends on the round. That is equal to
another learning rate, with momentum, Adam and weight decay too. (It is not for an optimiser that changes its steps
after they have their length, such as `optax.chain(optax.sgd(0.1), optax.clip(1.0))`.)
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Info, Method
from jaxfl.typing import Array, Key

REMEDY = "optax.cosine_decay_schedule(1.0, 100) is one"


def scheduled(method: Method, schedule: Callable[[Array], Array | float]) -> Method:
    """Returns the method with the clients' learning rate multiplied by a factor that depends on the round.

    The factor applies to clients in rounds alone: training before the first round, the assignment of new clients,
    fine-tuning and a server's optimiser have the full learning rate. The steps of FedSGD and of IFCA with gradients are
    made by the clients' optimiser, and are multiplied too.

    Args:
        method: with `jaxfl.client.training.local_train` as local training, like all built-in methods.
        schedule: `round [] float32 -> factor []`, from round 0; for example an optax schedule with a learning rate of
            1. The factors of two schedules of a method are multiplied.

    Raises:
        TypeError: `schedule` is no function.
        ValueError: `schedule` does not return one number.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> method = scheduled(jaxfl.methods.fedavg(task, optax.sgd(0.1)), optax.cosine_decay_schedule(1.0, 10))
    >>> jaxfl.run(method, data, rounds=2, cohort=4).history.column("round")
    [1, 2]
    """
    if not callable(schedule):
        raise TypeError(f"schedule must be a function of the round, got {schedule!r}; {REMEDY}.")
    factor = jax.eval_shape(lambda number: jnp.asarray(schedule(number)), jax.ShapeDtypeStruct((), jnp.float32))
    if factor.shape != () or factor.dtype == bool:
        got = f"{factor.dtype}{list(factor.shape)}"
        raise ValueError(f"schedule must return one number for a round, got {got}; {REMEDY}.")

    def round(key: Key, state: Any, data: FederatedData, cohort: Cohort) -> tuple[Any, Info]:
        rate = jnp.asarray(schedule(state.round.astype(jnp.float32)), jnp.float32)
        return method.round(key, state, replace(data, rate=rate if data.rate is None else rate * data.rate), cohort)

    return method._replace(round=round)
