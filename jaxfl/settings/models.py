"""Networks by name: those of `jaxfl.models`, of installed packages (entry points `jaxfl.models`), and a user's.

A user's network is a module of flax.linen, the class of one of flax.nnx, or a function that returns either; see
`classification`. Its attributes, or its parameters without `rngs`, are its options; it gets `num_classes` if it has
this parameter. An instance has no options.
"""

import contextlib
from typing import Any

from flax import linen as nn

from jaxfl.models import networks
from jaxfl.models.adapters import Composed, Functions, Network, nnx_classes
from jaxfl.schema import Option, check_name, installed_entry_points, load_entry_point, parameter_options, quoted
from jaxfl.settings import user_code

GROUP = "jaxfl.models"
REMEDY = "it must be a network, or a class or function that makes one"
RESERVED = ("self", "num_classes", "rngs", "parent", "name")  # not chosen by options


def options(name: str) -> dict[str, Option]:
    """Returns the options of a model.

    Raises:
        ValueError: there is no such model.
    """
    if (found := _load_user_network(name)) is None:
        return networks.options(name)
    if is_network(found):
        return {}
    return {name: option for name, option in parameter_options(found).items() if name not in RESERVED}


def create(name: str, num_classes: int, **chosen: Any) -> Network:
    """Returns a network with the chosen options."""
    if (found := _load_user_network(name)) is None:
        return networks.create(name, num_classes, **chosen)
    if is_network(found):
        return found
    parameters = parameter_options(found)
    chosen |= {"num_classes": num_classes} if "num_classes" in parameters else {}
    if "rngs" not in parameters:
        with user_code.one_line_errors(name, REMEDY):
            return found(**chosen)
    return lambda rngs: found(**chosen, rngs=rngs)


def one_line_errors(name: str) -> contextlib.AbstractContextManager[None]:
    """Returns the context in which an error of a user's network becomes a one-line error with its source."""
    return contextlib.nullcontext() if name in networks.MODELS else user_code.one_line_errors(name, REMEDY)


def is_network(found: Any) -> bool:
    """Returns whether an object is a network, and no factory of one; an nnx instance is refused where it is used."""
    return isinstance(found, (nn.Module, *nnx_classes("Module"), Functions, Composed)) and not isinstance(found, type)


def _load_user_network(name: str) -> Any:
    """Returns a user's network, or its class or factory; None for a network of jaxfl."""
    if user_code.is_address(name):
        found = user_code.load(name)
    elif name in networks.MODELS or name not in installed_entry_points(GROUP):
        check_name("model", name, [*networks.MODELS, *installed_entry_points(GROUP)])
        return None
    else:
        found = load_entry_point(GROUP, name)
    if not callable(found) and not is_network(found):
        raise ValueError(f"{name} must be a network, or a class or function that makes one, got {quoted(found)}.")
    return found
