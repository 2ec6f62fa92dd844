"""Optimisers of clients and server by name, the checks of their numbers, and a user's `FILE.py:NAME` for either.

A user's optimiser is a function that returns an `optax.GradientTransformation`; its parameters are its options.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import optax

from jaxfl.schema import Option, check_name, is_known, parameter_options, quoted, value_phrase
from jaxfl.server import optimizers
from jaxfl.settings import user_code


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
REMEDY = "it must be a function (*, options) that returns an optax.GradientTransformation, such as optax.sgd(0.1)"


def options(name: str) -> dict[str, Option]:
    """Returns the options of a clients' optimiser.

    Args:
        name: a key of `OPTIMIZERS`, or `FILE.py:NAME`.

    Raises:
        ValueError: there is no such optimiser.

    >>> list(options("momentum"))
    ['learning_rate', 'momentum']
    """
    return _options_by_name("optimizer", name, OPTIMIZERS)


def server_options(name: str | None) -> dict[str, Option]:
    """Returns the options of a server's optimiser; none without one.

    Args:
        name: a key of `SERVERS`, `FILE.py:NAME`, or None or `"none"` without one.

    Raises:
        ValueError: there is no such optimiser.
    """
    return {} if name in (None, "none") else _options_by_name("server_optimizer", name, SERVERS)


def _options_by_name(argument: str, name: str, known: Mapping[str, tuple[Any, dict[str, float]]]) -> dict[str, Option]:
    """Returns the options of an optimiser in a table or in a user's file."""
    if not user_code.is_address(name):
        if str(name).endswith(".py"):
            raise ValueError(
                f"{argument} must be FILE.py:NAME, got {name!r}; write {name}: and the name of its factory."
            )
        check_name(argument, name, known if argument == "optimizer" else ["none", *known])
        return number_options(known[name][1])
    found = user_code.load(name)
    if not callable(found):
        raise ValueError(f"{name} must be a function that makes an optimiser, got {quoted(found)}; {REMEDY}.")
    return parameter_options(found)


def number_options(defaults: Mapping[str, float]) -> dict[str, Option]:
    """Returns the numbers of an optimiser as options, all but flags traceable."""
    return {
        name: Option(
            name, default, bool if isinstance(default, bool) else float, traceable=not isinstance(default, bool)
        )
        for name, default in defaults.items()
    }


def client_optimizer(name: str, given: Mapping[str, Any]) -> optax.GradientTransformation:
    """Returns the clients' optimiser.

    Args:
        name: a key of `OPTIMIZERS`, or `FILE.py:NAME`.
        given: the options that differ from its defaults.

    Raises:
        ValueError: a number is out of range, or a user's function raises or returns no optimiser.

    >>> client_optimizer("sgd", {"learning_rate": -1.0})
    Traceback (most recent call last):
    ValueError: learning_rate must be above 0, got -1.0; 0.1 is usual.
    """
    if user_code.is_address(name):
        return _user_optimizer(name, given)
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


def _user_optimizer(name: str, given: Mapping[str, Any]) -> optax.GradientTransformation:
    """Returns what a user's function makes of the given options."""
    with user_code.one_line_errors(name, REMEDY):
        made = user_code.load(name)(**given)
    if not all(callable(getattr(made, part, None)) for part in ("init", "update")) or isinstance(made, type):
        raise ValueError(
            f"{name} must return an optax.GradientTransformation, returned {value_phrase(made)}; {REMEDY}."
        )
    return made


def check_traceable(name: str | None, given: Mapping[str, Any], traced: Collection[str]) -> None:
    """Checks that a user's optimiser is made of numbers without values where they are declared `Traceable`.

    Args:
        name: as for `client_optimizer` or `server_optimizer`; None without one.
        given: the options that differ from its defaults.
        traced: the options whose numbers are arguments of compiled programs.

    Raises:
        ValueError: the function needs the value of such a number.
    """
    if not user_code.is_address(name) or not traced:
        return
    try:
        jax.eval_shape(
            lambda values: (_user_optimizer(name, {**given, **values}), 0)[1], {option: 1.0 for option in traced}
        )
    except ValueError as error:
        raise ValueError(
            f"{name} declares {', '.join(sorted(traced))} as Traceable, and needs a value: ask "
            f"jaxfl.schema.is_known before a check, or declare it as float ({error})"
        ) from error


def server_optimizer(name: str, given: Mapping[str, Any]) -> optax.GradientTransformation:
    """Returns the server's optimiser; with a learning rate of 0 the model is constant.

    Args:
        name: a key of `SERVERS`, or `FILE.py:NAME`.
        given: the options that differ from its defaults.

    Raises:
        ValueError: a number is out of range, or a user's function raises or returns no optimiser.
    """
    if user_code.is_address(name):
        return _user_optimizer(name, given)
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
