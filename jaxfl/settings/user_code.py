"""User code by address: `FILE.py:NAME` in place of the name of a method, model or task.

The file is executed as a separate module; it can import the files beside it. Runs store a checksum of its content, and
their folders a copy: a run does not continue with other code of the same name.
"""

import contextlib
import functools
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxfl.files import crc
from jaxfl.schema import did_you_mean, quoted

ADDRESS = re.compile(r"(?P<file>.+\.py):(?P<name>\w+)")


def is_address(name: Any) -> bool:
    """Returns whether a name is an address in a file."""
    return isinstance(name, str) and ADDRESS.fullmatch(name) is not None


def run_label(name: str) -> str:
    """Returns the name that a run stores: an address without the folder of its file, or any other name unchanged.

    >>> run_label("../mine/my_method.py:factory"), run_label("ifca")
    ('my_method.py:factory', 'ifca')
    """
    return f"{Path(name.rpartition(':')[0]).name}:{name.rpartition(':')[2]}" if is_address(name) else name


def address_file(address: str) -> Path:
    """Returns the file of an address.

    Raises:
        ValueError: there is no such file.
    """
    return existing_file(address.rpartition(":")[0], "write FILE.py:NAME, with the path from the current folder")


def existing_file(name: str, remedy: str = "write its path from the current folder") -> Path:
    """Returns the path of a file.

    Raises:
        ValueError: there is no such file.
    """
    path = Path(name).expanduser()
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}; {remedy}.")
    return path


def file_checksum(path: Path) -> str:
    """Returns the checksum of a file's content."""
    return crc(path.read_bytes())


def load(address: str) -> Any:
    """Returns the object of an address. The file is executed, once for the same content.

    Raises:
        ValueError: there is no such file, it cannot be executed, or it has no such name.
    """
    path, name = address_file(address), address.rpartition(":")[2]
    module = _module(path.resolve(), file_checksum(path))
    if not hasattr(module, name):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ValueError(f"{path} has no {quoted(name)}{did_you_mean(name, names)}")
    return getattr(module, name)


def error_location(error: BaseException) -> str:
    """Returns the line of a user's file where an error was raised, as the end of a message, or "".

    It is the last line of the traceback that is in such a file.
    """
    found, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename in _executed:
            found = f" ({Path(code.co_filename).name}, line {trace.tb_lineno}, in {code.co_name})"
        trace = trace.tb_next
    return found


@contextlib.contextmanager
def one_line_errors(name: str, remedy: str) -> Iterator[None]:
    """Raises a one-line ValueError with the source of an error in user code, in place of a traceback.

    Args:
        name: address of the code.
        remedy: the end of the message.

    Raises:
        ValueError: the code raised an error; its own ValueErrors are unchanged.
    """
    try:
        yield
    except ValueError:  # the code refuses an argument
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}{error_location(error)}"
        raise ValueError(f"{name} cannot be made, it raised {reason}; {remedy}.") from error


_executed: set[str] = set()  # paths of the executed files


@functools.cache
def _module(path: Path, content: str) -> ModuleType:
    """Returns the executed module of a file; a new one for another checksum of its content."""
    name = f"{path.stem}_{content}"  # not the stem alone, which may be the name of an installed package
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    _executed.add(str(path))
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # as of a script, but behind what is installed
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ValueError(
            f"{path} cannot be executed: {type(error).__name__}: {error}{error_location(error)}."
        ) from error
    return module
