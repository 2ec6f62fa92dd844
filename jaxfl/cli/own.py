"""What a user wrote: `FILE.py:NAME`, the network where a model's name stands, or the task where a task's does.

NAME is a module of flax.linen, the class of one of flax.nnx, or a function that makes either; see `classification`. Its
attributes, or what it takes beside `rngs`, are its options; `num_classes` is given to it if it takes that. Of a task it
is a function of network and federation, see `jaxfl.supervised`.
"""

import functools
import importlib.util
import inspect
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxfl.data.clients import FederatedData
from jaxfl.models import networks
from jaxfl.models.adapters import Network
from jaxfl.schema import REQUIRED, Option, check_name, did_you_mean, lines_of, quoted
from jaxfl.tasks import TASKS, Task

ADDRESS = re.compile(r"(?P<file>.+\.py):(?P<name>\w+)")
GIVEN = ("self", "num_classes", "rngs", "parent", "name")  # not chosen by options


def is_own(name: Any) -> bool:
    """Returns whether a name is an address in a file."""
    return isinstance(name, str) and ADDRESS.fullmatch(name) is not None


def checksum(address: str) -> str:
    """Returns that of the file: a run is not resumed with another network of the same name."""
    return f"{zlib.crc32(_file(address).read_bytes()):08x}"


def model_options(name: str) -> dict[str, Option]:
    """Returns the options of a model: of a user's, or of one of `jaxfl.models`.

    Raises:
        ValueError: there is no such model.
    """
    if not is_own(name):
        return networks.options(name)
    return {option.name: option for option in _takes(load(name)) if option.name not in GIVEN}


def create_model(name: str, num_classes: int, **chosen: Any) -> Network:
    """Returns a network with its options chosen."""
    if not is_own(name):
        return networks.create(name, num_classes, **chosen)
    made = load(name)
    takes = [option.name for option in _takes(made)]
    chosen |= {"num_classes": num_classes} if "num_classes" in takes else {}
    if "rngs" not in takes:
        return made(**chosen)
    return lambda rngs: made(**chosen, rngs=rngs)


def check_task(name: str) -> None:
    """Raises ValueError if there is no task of this name, or no function at this address."""
    if is_own(name):
        load(name)
    else:
        check_name("task", name, ["auto", *TASKS])


def create_task(name: str, network: Network, data: FederatedData, **how: Any) -> Task:
    """Returns a task by its name: `"auto"` is the one that the labels are for.

    Args:
        name: of a task, or an address in a file.
        network: what learns.
        data: the federation.
        **how: `fast_forms` and `compute`, see `jaxfl.classification`; a user's function says these itself.

    Raises:
        ValueError: the labels are of another kind, or a user's function returns no task.
    """
    if not is_own(name):
        return TASKS[data.kind if name == "auto" else name](network, data, **how)
    if not isinstance(made := load(name)(network, data), Task):
        raise ValueError(f"{name} must return a task, such as jaxfl.supervised(module, data, ...), got {made!r}.")
    return made


@functools.cache
def load(address: str) -> Callable[..., Any]:
    """Returns what stands in a file under a name. The file is executed.

    Raises:
        ValueError: there is no such file, it cannot be executed, or it has no such name.
    """
    path, name = _file(address), address.rpartition(":")[2]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{path} cannot be executed: {type(error).__name__}: {error}") from error
    if not callable(found := getattr(module, name, None)):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ValueError(f"{path} has no {quoted(name)} that can be called{did_you_mean(name, names)}")
    return found


def _file(address: str) -> Path:
    path = Path(address.rpartition(":")[0]).expanduser()
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}; write FILE.py:NAME, the path from where you are.")
    return path


def _takes(made: Callable[..., Any]) -> list[Option]:
    """Returns what a function takes, or a class when an instance is made."""
    function = made.__init__ if isinstance(made, type) else made  # flax.nnx hides the signature of its classes
    lines = lines_of(made)
    return [
        Option(
            word.name,
            REQUIRED if word.default is word.empty else word.default,
            Any if word.annotation is word.empty else word.annotation,
            lines.get(word.name, ""),
        )
        for word in inspect.signature(function, eval_str=True).parameters.values()
        if word.kind in (word.POSITIONAL_OR_KEYWORD, word.KEYWORD_ONLY)
    ]
