"""Learning rates that change from round to round, for any method.

Optimisers of clients start fresh in every round and do not know which one it is. So the round tells them: what local
training adds to a model is multiplied by a number that depends on the round, which is what another learning rate does,
with momentum, Adam and weight decay too. (Only an optimiser that does something to its steps after they have their
length, such as `optax.chain(optax.sgd(0.1), optax.clip(1.0))`, is another one at another learning rate.)
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
    """Returns the method whose clients' learning rate is multiplied by a number that depends on the round.

    In rounds alone, and of clients alone: what a method trains before the first round has the whole learning rate, as
    have a new client that is being assigned, fine-tuning, and a server's optimiser. FedSGD's step and IFCA's along
    gradients are made by the clients' optimiser, and count as theirs.

    Args:
        method: any whose local training is `jaxfl.client.training.local_train`, as that of all built-in ones is.
        schedule: `round [] float32 -> factor []`, from round 0; one of optax suits, with 1 for the learning rate. Of
            two that a method is given, the factors are multiplied.

    Raises:
        TypeError: the schedule is no function.
        ValueError: the schedule does not return one number.

    >>> import jaxfl, optax
    >>> data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    >>> task = jaxfl.classification(jaxfl.models.Logistic(num_classes=10), data)
    >>> method = scheduled(jaxfl.methods.fedavg(task, optax.sgd(0.1)), optax.cosine_decay_schedule(1.0, 10))
    >>> jaxfl.run(method, data, rounds=2, cohort=4).history.column("round")
    [1, 2]
    """
    if not callable(schedule):
        raise TypeError(f"schedule must be a function of the round, got {schedule!r}; {REMEDY}.")
    told = jax.eval_shape(lambda number: jnp.asarray(schedule(number)), jax.ShapeDtypeStruct((), jnp.float32))
    if told.shape != () or told.dtype == bool:
        raise ValueError(f"schedule must return one number for a round, got {told.dtype}{list(told.shape)}; {REMEDY}.")

    def round(key: Key, state: Any, data: FederatedData, cohort: Cohort) -> tuple[Any, Info]:
        rate = jnp.asarray(schedule(state.round.astype(jnp.float32)), jnp.float32)
        return method.round(key, state, replace(data, rate=rate if data.rate is None else rate * data.rate), cohort)

    return method._replace(round=round)
