"""Tasks by name: the task of the labels, another one of `jaxfl.tasks`, or a user's.

A user's task is a function of network and federation that returns a task, see `jaxfl.supervised`; what else it takes
are its options.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from jaxfl.data.clients import FederatedData
from jaxfl.models.adapters import Network
from jaxfl.schema import Option, check_name, parameter_options, quoted
from jaxfl.settings import user_code
from jaxfl.settings.run_options import RUN
from jaxfl.tasks import TASKS, Task
from jaxfl.tasks.kinds import class_factors

REMEDY = "it must be a function (network, data, *, options) that returns a task"


def options(name: str) -> dict[str, Option]:
    """Returns the options of a task: what a user's function takes beside network and federation; others have none.

    Raises:
        ValueError: there is no such task.
    """
    if not user_code.is_address(name):
        check_name("task", name, ["auto", *TASKS])
        return {}
    if not callable(found := user_code.load(name)):
        raise ValueError(f"{name} must be a function that makes a task, got {quoted(found)}; {REMEDY}.")
    return dict(itertools.islice(parameter_options(found).items(), 2, None))


def create(
    name: str, network: Network, data: FederatedData, chosen: Mapping[str, Any] | None = None, **how: Any
) -> Task:
    """Returns a task; `"auto"` is the task of the labels.

    Args:
        name: of a task, or an address in a file.
        network: that is trained.
        data: the federation.
        chosen: options of a user's function that differ from their defaults.
        **how: `fast_forms`, `compute` and `class_weights`, see `jaxfl.classification`; a user's function sets these
            itself.

    Raises:
        ValueError: the labels are of another kind, or a user's function returns no task.
    """
    if not user_code.is_address(name):
        known: dict[str, Callable[..., Task]] = {"auto": TASKS[data.kind], **TASKS}
        if known[name] is not TASKS["classification"]:
            class_factors(data, how.pop("class_weights", None))  # refuses them without classes
        return known[name](network, data, **how)
    usual = {option.name: option.default for option in RUN}
    if changed := {key: value for key, value in how.items() if value != usual[key]}:
        given = ", ".join(f"{key}={str(value).lower()}" for key, value in changed.items())
        raise ValueError(
            f"{given} is for the tasks of jaxfl, got the task {name}; leave it out, and give it to jaxfl.supervised in "
            "that file."
        )
    with user_code.one_line_errors(name, REMEDY):
        task = user_code.load(name)(network, data, **(chosen or {}))
    if not isinstance(task, Task):
        raise ValueError(f"{name} must return a task, such as jaxfl.supervised(module, data, ...), got {task!r}.")
    return task
