"""Optimisers of clients and server by name, and the checks of their numbers."""

from collections.abc import Callable, Mapping

import optax

from jaxfl.schema import is_known
from jaxfl.server import optimizers


def sgd(
    learning_rate: float, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0
) -> optax.GradientTransformation:
    """Returns gradient descent as PyTorch has it: decay is added to the gradient, in front of the momentum.

    >>> import jax.numpy as jnp
    >>> optimizer, w = sgd(0.1, momentum=0.9, nesterov=True, weight_decay=0.01), jnp.array(1.0)
    >>> round(float(optimizer.update(jnp.array(2.0), optimizer.init(w), w)[0]), 4)  # - 0.1 (1 + 0.9) (2 + 0.01)
    -0.3819
    """
    without = is_known(momentum) and momentum == 0
    plain = optax.sgd(learning_rate, None if without else momentum, nesterov)
    if is_known(weight_decay) and weight_decay == 0:
        return plain
    return optax.chain(optax.add_decayed_weights(weight_decay), plain)


OPTIMIZERS: dict[str, tuple[Callable[..., optax.GradientTransformation], dict[str, float]]] = {
    "sgd": (sgd, {"learning_rate": 0.1, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}),
    "momentum": (optax.sgd, {"learning_rate": 0.1, "momentum": 0.9}),
    "adam": (optax.adam, {"learning_rate": 0.001}),
    "adamw": (optax.adamw, {"learning_rate": 0.001, "weight_decay": 0.01}),
}
# For methods with a `server_optimizer`: the papers' defaults, except for learning rates, which the papers tune.
SERVERS: dict[str, tuple[Callable[..., optax.GradientTransformation], dict[str, float]]] = {
    "fedavgm": (optax.sgd, {"learning_rate": 1.0, "momentum": 0.9}),
    "fedadam": (optimizers.fedadam, {"learning_rate": 0.01, "b1": 0.9, "b2": 0.99, "tau": 0.001}),
    "fedyogi": (optimizers.fedyogi, {"learning_rate": 0.01, "b1": 0.9, "b2": 0.99, "tau": 0.001}),
}


def client_optimizer(name: str, given: Mapping[str, float]) -> optax.GradientTransformation:
    """Returns the clients' optimiser.

    Args:
        name: a key of `OPTIMIZERS`.
        given: the numbers that differ from its defaults.

    Raises:
        ValueError: a number is out of range.

    >>> client_optimizer("sgd", {"learning_rate": -1.0})
    Traceback (most recent call last):
    ValueError: learning_rate must be above 0, got -1.0; 0.1 is usual.
    """
    make, defaults = OPTIMIZERS[name]
    numbers = {**defaults, **given}
    if is_known(numbers["learning_rate"]) and not numbers["learning_rate"] > 0:
        raise ValueError(f"learning_rate must be above 0, got {numbers['learning_rate']}; 0.1 is usual.")
    if is_known(decay := numbers.get("weight_decay", 0)) and not decay >= 0:
        raise ValueError(f"weight_decay must be 0 or more, got {decay}; 0.01 is usual.")
    if numbers.get("nesterov") and is_known(numbers["momentum"]) and not numbers["momentum"]:
        raise ValueError("nesterov needs a momentum above 0, got nesterov=True without it; add --set momentum=0.9.")
    _check_momentum("momentum", numbers)
    return make(**numbers)


def server_optimizer(name: str, given: Mapping[str, float]) -> optax.GradientTransformation:
    """Returns the server's optimiser; with a learning rate of 0 the model is constant.

    Args:
        name: a key of `SERVERS`.
        given: the numbers that differ from its defaults.

    Raises:
        ValueError: a number is out of range.
    """
    make, defaults = SERVERS[name]
    numbers = {**defaults, **given}
    if is_known(numbers["learning_rate"]) and not numbers["learning_rate"] >= 0:
        raise ValueError(f"server.learning_rate must be 0 or more, got {numbers['learning_rate']}.")
    _check_momentum("server.momentum", numbers)
    return make(**numbers)


def _check_momentum(name: str, numbers: Mapping[str, float]) -> None:
    """Raises ValueError unless the momentum, if there is one, is at least 0 and below 1."""
    if is_known(momentum := numbers.get("momentum", 0)) and not 0 <= momentum < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {momentum}; 0.9 is usual.")
