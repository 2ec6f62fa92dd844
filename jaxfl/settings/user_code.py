"""User code by address: `FILE.py:NAME` in place of the name of a method, data set, model, optimiser or task.

The file is executed as a separate module; it can import the files beside it. Runs store checksums of its content, and
their folders a copy: a run does not continue with other code of the same name.

The address of data may have shifts before it, `rotated+FILE.py:NAME`.

A file is executed where the user's call names it. A file that the folder of a run names is executed only if the user
trusts it, see `trusted_file`: the folder may be of somebody else.
"""

import contextlib
import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeGuard

from jaxfl.files import crc, user_path
from jaxfl.schema import did_you_mean, quoted

ADDRESS = re.compile(r"(?P<file>.+\.py):(?P<name>\w+)", re.DOTALL)  # a file may have any name


def is_address(name: Any) -> TypeGuard[str]:
    """Returns whether a name is an address in a file."""
    return isinstance(name, str) and ADDRESS.fullmatch(name) is not None


def shifts_before(address: str) -> tuple[str, ...]:
    """Returns the shifts before an address.

    >>> shifts_before("rotated+swapped+mine.py:clients"), shifts_before("mine+yours.py:clients")
    (('rotated', 'swapped'), ())
    """
    return tuple(_address_parts(address)["shifts"].split("+")[:-1])


def in_file(address: str, file: str | Path) -> str:
    """Returns an address with another file.

    >>> in_file("rotated+mine.py:clients", "copy/mine.py")
    'rotated+copy/mine.py:clients'
    """
    parts = _address_parts(address)
    return f"{parts['shifts']}{file}:{parts['name']}"


def file_name(address: str) -> str:
    """Returns the file of an address, as it is written."""
    return _address_parts(address)["file"]


def _address_parts(address: str) -> dict[str, str]:
    """Returns the shifts, the file and the name of an address."""
    from jaxfl.data.catalog import SHIFTS  # imports JAX, which no command starts with

    found = ADDRESS.fullmatch(address)
    assert found is not None, address
    shifts = ""
    while (shift := found["file"][len(shifts) :].partition("+")[0]) in SHIFTS:
        shifts += f"{shift}+"
    return {"shifts": shifts, "file": found["file"][len(shifts) :], "name": found["name"]}


def run_label(name: str) -> str:
    """Returns the name that a run stores: an address without the folder of its file, or any other name unchanged.

    >>> run_label("../mine/my_method.py:factory"), run_label("ifca"), run_label("a\\nb/c.py:factory")
    ('my_method.py:factory', 'ifca', 'c.py:factory')
    """
    return in_file(name, Path(file_name(name)).name) if is_address(name) else name


def address_file(address: str) -> Path:
    """Returns the file of an address.

    Raises:
        ValueError: there is no such file.
    """
    remedy = "write FILE.py:NAME, with the path from the current folder"
    if "+" in (file := file_name(address)):
        from jaxfl.data.catalog import SHIFTS

        remedy += f"; before data in a file may stand {' or '.join(f'{shift}+' for shift in SHIFTS)}"
    return existing_file(file, remedy)


def existing_file(name: str, remedy: str = "write its path from the current folder") -> Path:
    """Returns the path of a file.

    Raises:
        ValueError: there is no such file.
    """
    path = user_path(name)
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}; {remedy}.")
    return path


def file_checksum(path: Path) -> str:
    """Returns the CRC-32 of a file's content: the identity of a run, which anybody can forge."""
    return crc(path.read_bytes())


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file's content."""
    return sha256(path.read_bytes())


def sha256(content: bytes) -> str:
    """Returns the SHA-256 of some bytes as text."""
    return hashlib.sha256(content).hexdigest()


Trust = bool | str | os.PathLike | Sequence[str | os.PathLike]


def trusted_files(trust: Trust) -> bool | list[Path]:
    """Returns the paths of the files that a user trusts; True for the copies in the run's folder, False for none.

    Raises:
        ValueError: there is no such file.
        TypeError: it is something else.
    """
    if isinstance(trust, bool):
        return trust
    paths = [trust] if isinstance(trust, str | os.PathLike) else trust
    if not isinstance(paths, Sequence):
        raise TypeError(f"trust must be True, False, or paths of your files, got {trust!r}.")
    return [existing_file(os.fspath(path)).resolve() for path in paths]


def trusted_file(folder: Path, owner: str, address: str, config: Mapping[str, Any], trust: bool | list[Path]) -> Path:
    """Returns the file of Python that the folder of a run names, if the user trusts it and it is unchanged.

    Args:
        folder: of the run.
        owner: what is in the file: `"method"`, `"data"`, `"model"`, `"optimizer"`, `"server_optimizer"` or
            `"task"`.
        address: `FILE.py:NAME`, from the config.
        config: of the run, with the checksums; those of older runs have no SHA-256.
        trust: from `trusted_files`; of the user's own files the one of the same name counts.

    Raises:
        ValueError: it is not trusted, lies outside the folder, or has changed.
    """
    file = file_name(address)
    run = f"{str(folder)!r} holds a run whose {owner} is in a file of Python, {file!r}"
    path = next((path for path in trust if path.name == file), None) if isinstance(trust, list) else None
    if path is None and trust is not True:
        raise ValueError(
            f"{run}, which is executed only if you trust it; read it, then give trust=True for the copy in the folder, "
            "or trust=PATH for your own file."
        )
    copy = path is None
    if path is None:
        path = folder / file
        if file != Path(file).name or path.resolve().parent != folder.resolve():
            raise ValueError(f"{run}, which is outside the folder; give trust=PATH for your own file.")
    recorded, checksum = config.get(f"{owner}_sha256"), sha256
    if recorded is None:  # of an older version
        recorded, checksum = config.get(f"{owner}_checksum"), crc
    content = path.read_bytes() if path.is_file() else None
    if content is None or checksum(content) != recorded:
        raise ValueError(
            f"{run}, which has changed, and {str(path)!r} is no copy of it as it was; put it back, or give trust=PATH "
            "for your own file as it was."
        )
    if copy:
        _copies[path.resolve()] = sha256(content)
    return path


def load(address: str) -> Any:
    """Returns the object of an address. The file is executed, once for the same content.

    Raises:
        ValueError: there is no such file, it cannot be executed, or it has no such name.
    """
    path, name = address_file(address), _address_parts(address)["name"]
    content = path.read_bytes()
    if _copies.get(path.resolve(), sha256(content)) != sha256(content):
        raise ValueError(f"{path} has changed since it was checked; load the run again.")
    module = _module(path.resolve(), content)
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
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}{error_location(error)}"
        raise ValueError(f"{name} cannot be made, it raised {reason}; {remedy}.") from error


_executed: set[str] = set()  # paths of the executed files
_copies: dict[Path, str] = {}  # SHA-256 of trusted copies in folders of runs, whose neighbours are not trusted


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Loads a module from source that was read before: bytecode beside the file could be of another source."""

    source: bytes

    def get_code(self, fullname: str) -> CodeType:
        """Returns the code of the source."""
        return self.source_to_code(self.source, self.path)


@functools.cache
def _module(path: Path, content: bytes) -> ModuleType:
    """Returns the executed module of a file; a new one for other content."""
    name = f"{path.stem}_{crc(content)}"  # not the stem alone, which may be the name of an installed package
    loader = _SourceLoader(name, str(path))
    loader.source = content
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    _executed.add(str(path))
    if path not in _copies and str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # as of a script, but behind what is installed
    sys.modules[name] = module  # dataclasses look their module up
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script may end its process: it has no __main__ here
        del sys.modules[name]
        alone = path in _copies and isinstance(error, ImportError)
        remedy = "; what lies beside a copy is not imported, give trust=PATH for your own file" if alone else ""
        raise ValueError(
            f"{path} cannot be executed: {type(error).__name__}: {error}{error_location(error)}{remedy}."
        ) from error
    return module
