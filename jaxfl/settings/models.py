"""Networks by name: those of `jaxfl.models`, of installed packages (entry points `jaxfl.models`), and a user's.

A user's is a module of flax.linen, the class of one of flax.nnx, or a function that makes either; see `classification`.
Its attributes, or what it takes beside `rngs`, are its options; `num_classes` is given to it if it takes that. One
that is made already has no options.
"""

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

from flax import linen as nn
from flax import nnx

from jaxfl.models import networks
from jaxfl.models.adapters import Composed, Functions, Network
from jaxfl.schema import REQUIRED, Option, check_name, docstring_lines, installed_entry_points, load_entry_point, quoted
from jaxfl.settings import user_code

GROUP = "jaxfl.models"
REMEDY = "it must be a network, or a class or function that makes one"
RESERVED = ("self", "num_classes", "rngs", "parent", "name")  # not chosen by options


def options(name: str) -> dict[str, Option]:
    """Returns the options of a model.

    Raises:
        ValueError: there is no such model.
    """
    if (made := _load_user_network(name)) is None:
        return networks.options(name)
    return (
        {}
        if _is_network(made)
        else {option.name: option for option in _parameters_as_options(made) if option.name not in RESERVED}
    )


def create(name: str, num_classes: int, **chosen: Any) -> Network:
    """Returns a network with its options chosen."""
    if (made := _load_user_network(name)) is None:
        return networks.create(name, num_classes, **chosen)
    if _is_network(made):
        return made
    takes = [option.name for option in _parameters_as_options(made)]
    chosen |= {"num_classes": num_classes} if "num_classes" in takes else {}
    if "rngs" not in takes:
        with user_code.one_line_errors(name, REMEDY):
            return made(**chosen)
    return lambda rngs: made(**chosen, rngs=rngs)


def one_line_errors(name: str) -> contextlib.AbstractContextManager[None]:
    """Says of an error while a network is looked at where it comes from, if the network is not of jaxfl."""
    return contextlib.nullcontext() if name in networks.MODELS else user_code.one_line_errors(name, REMEDY)


def _is_network(found: Any) -> bool:
    """Returns whether it is a network, and not what makes one; one of flax.nnx is refused where it is used."""
    return isinstance(found, (nn.Module, nnx.Module, Functions, Composed)) and not isinstance(found, type)


def _load_user_network(name: str) -> Any:
    """Returns a network that is not of jaxfl, or what makes one; None where it is."""
    if user_code.is_address(name):
        found = user_code.load(name)
    elif name in networks.MODELS or name not in installed_entry_points(GROUP):
        check_name("model", name, [*networks.MODELS, *installed_entry_points(GROUP)])
        return None
    else:
        found = load_entry_point(GROUP, name)
    if not callable(found) and not _is_network(found):
        raise ValueError(f"{name} must be a class or a function that makes a network, got {quoted(found)}.")
    return found


def _parameters_as_options(made: Callable[..., Any]) -> list[Option]:
    """Returns what a function takes, or a class when an instance is made."""
    function = made.__init__ if isinstance(made, type) else made  # flax.nnx hides the signature of its classes
    lines = docstring_lines(made)
    try:
        words = inspect.signature(function, eval_str=True).parameters.values()
    except NameError:  # of a type that is imported for a type checker alone
        words = [one.replace(annotation=one.empty) for one in inspect.signature(function).parameters.values()]
    return [
        Option(
            word.name,
            REQUIRED if word.default is word.empty else word.default,
            Any if word.annotation is word.empty else word.annotation,
            lines.get(word.name, ""),
        )
        for word in words
        if word.kind in (word.POSITIONAL_OR_KEYWORD, word.KEYWORD_ONLY)
    ]
