"""Tasks by name: the task of the labels, another one of `jaxfl.tasks`, or a user's.

A user's task is a function of network and federation that returns a task, see `jaxfl.supervised`.
"""

from collections.abc import Callable
from typing import Any

from jaxfl.data.clients import FederatedData
from jaxfl.models.adapters import Network
from jaxfl.schema import check_name, quoted
from jaxfl.settings import user_code
from jaxfl.settings.run_options import RUN
from jaxfl.tasks import TASKS, Task


def check_task(name: str) -> None:
    """Raises ValueError unless there is such a task, or such a function in a user's file."""
    if user_code.is_address(name):
        if not callable(found := user_code.load(name)):
            raise ValueError(f"{name} must be a function that makes a task, got {quoted(found)}.")
    else:
        check_name("task", name, ["auto", *TASKS])


def create(name: str, network: Network, data: FederatedData, **how: Any) -> Task:
    """Returns a task; `"auto"` is the task of the labels.

    Args:
        name: of a task, or an address in a file.
        network: that is trained.
        data: the federation.
        **how: `fast_forms` and `compute`, see `jaxfl.classification`; a user's function sets these itself.

    Raises:
        ValueError: the labels are of another kind, or a user's function returns no task.
    """
    if not user_code.is_address(name):
        known: dict[str, Callable[..., Task]] = {"auto": TASKS[data.kind], **TASKS}
        return known[name](network, data, **how)
    usual = {option.name: option.default for option in RUN}
    if changed := {key: value for key, value in how.items() if value != usual[key]}:
        given = ", ".join(f"{key}={str(value).lower()}" for key, value in changed.items())
        raise ValueError(
            f"{given} is for the tasks of jaxfl, got the task {name}; leave it out, and give it to jaxfl.supervised in "
            "that file."
        )
    with user_code.one_line_errors(name, "it must be a function (network, data) that returns a task"):
        task = user_code.load(name)(network, data)
    if not isinstance(task, Task):
        raise ValueError(f"{name} must return a task, such as jaxfl.supervised(module, data, ...), got {task!r}.")
    return task
