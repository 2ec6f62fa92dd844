"""Kind, options and summary of what is in a user's file: a method, data, a network, a task or an optimiser."""

import inspect
from typing import Any

from jaxfl.methods import Row
from jaxfl.schema import Option, parameter_options
from jaxfl.settings import federations, models, optimizers, tasks, user_code

OPTIONS = {
    "data": federations.own_options,
    "model": models.options,
    "task": tasks.options,
    "optimizer": optimizers.options,
}


def owner_of(name: str) -> str:
    """Returns what a name is of: "method", "data", "model", "task" or "optimizer"; a name of no file is a method's.

    A function of two arguments makes a method or, if the second one is called `data`, a task. Of the others, the
    annotation of what they return decides; without one, those with `learning_rate` make optimisers, those with `seed`
    or `data_dir` federations, and the rest networks.

    Args:
        name: of a method, or `FILE.py:NAME`.

    Raises:
        ValueError: there is no such file, or nothing of this name in it.
    """
    if not user_code.is_address(name):
        return "method"
    found = user_code.load(name)
    if isinstance(found, Row) or not (callable(found) or models.is_network(found)):
        return "method"
    if models.is_network(found) or isinstance(found, type):
        return "model"
    parameters = list(parameter_options(found))
    positional = [one for one in inspect.signature(found).parameters.values() if one.default is one.empty]
    first = [one.name for one in positional if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if len(first) == 2:
        return "task" if first[1] == "data" else "method"
    returned: Any = inspect.signature(found).return_annotation
    word = getattr(returned, "__name__", str(returned))
    if "GradientTransformation" in word or "learning_rate" in parameters:
        return "optimizer"
    return "data" if "FederatedData" in word or {*federations.OF_THE_RUN} & {*parameters} else "model"


def options(name: str, owner: str) -> dict[str, Option]:
    """Returns the options of a user's data, network, task or optimiser, without those that all data have."""
    return OPTIONS[owner](name)


def summary(name: str) -> str:
    """Returns the first line of the docstring of what is in a user's file."""
    doc = inspect.cleandoc(user_code.load(name).__doc__ or "")  # not that of a class above
    generated = doc.startswith(f"{name.rpartition(':')[2]}(")  # by dataclasses: the signature
    return "of your own" if generated or not doc else doc.splitlines()[0].rstrip(".")
