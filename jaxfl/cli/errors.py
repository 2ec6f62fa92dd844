"""Errors and warnings of the command line: one line each, and the exit status."""

import contextlib
import importlib.metadata
import os
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from jaxfl.cli.signals import exit_status
from jaxfl.settings import user_code
from jaxfl.simulation.interrupts import Stopped

# packages whose modules have another name
PACKAGES = {
    "PIL": "pillow",
    "dp_accounting": "dp-accounting",
    "sklearn": "scikit-learn",
    "tensorflow_datasets": "tensorflow-datasets",
}

LONGEST = 1500  # letters of a line


@contextlib.contextmanager
def reported_errors() -> Iterator[None]:
    """Prints an error of the library as one red line, a warning as a yellow one.

    Raises:
        typer.Exit: with 2 after an error, with `signals.exit_status` after a run that a signal has stopped.
    """
    import typer

    try:
        with warnings.catch_warnings():
            warnings.showwarning = _print_warning
            yield
    except (ValueError, OSError, MemoryError, ImportError) as error:
        text = f"{' '.join(str(error).split())}{user_code.error_location(error)}{_install_hint(error)}"
        _print_styled(f"error: {text}", "red")
        _exit_if_distributed(2)
        raise typer.Exit(2) from None
    except Exception as error:
        if isinstance(error, RuntimeError | AssertionError) and (reason := _device_error()):
            _print_styled(f"error: {reason}", "red")
            raise typer.Exit(2) from None
        if not isinstance(error, typer.Exit):
            _exit_if_distributed(1, error)
        raise
    except SystemExit as error:  # of a program of the user, whose status would be that of the command
        place = user_code.error_location(error)
        _print_styled(f"error: a program ended the process (SystemExit: {error.code}){place}; it must return.", "red")
        _exit_if_distributed(2)
        raise typer.Exit(2) from None
    except Stopped as stopped:  # what is saved is printed already
        raise typer.Exit(exit_status(stopped.number)) from None


def _install_hint(error: BaseException) -> str:
    """Returns how to install a package that jaxfl requires and that is missing, as in a slim installation; or "".

    >>> _install_hint(ModuleNotFoundError("No module named 'sklearn.svm'", name="sklearn.svm"))
    '; pip install scikit-learn'
    >>> _install_hint(ModuleNotFoundError("No module named 'mine'", name="mine"))
    ''
    """
    name = (getattr(error, "name", None) or "").partition(".")[0]
    package = PACKAGES.get(name, name)
    required = {re.split(r"[^\w-]", line)[0] for line in importlib.metadata.requires("jaxfl") or ()}
    missing = isinstance(error, ModuleNotFoundError) and package in required
    return f"; pip install {package}" if missing else ""


def _device_error() -> str:
    """Returns a sentence about devices that JAX does not find; an empty text where it finds some."""
    if (jax := sys.modules.get("jax")) is None:
        return ""
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        asked, found = jax.config.values["jax_platforms"], " ".join(str(error).split()) or "it is not installed"
        return (
            f"JAX_PLATFORMS must name devices that JAX finds, got {asked!r} ({found}); set JAX_PLATFORMS=cpu, or leave "
            "it out."
        )
    return ""


def _print_warning(message: Warning | str, *place: Any) -> None:
    """Prints a warning as one line, without its place in the code."""
    _print_styled(f"warning: {' '.join(str(message).split())}", "yellow")


def _print_styled(text: str, style: str) -> None:
    """Prints a line to standard error; a file may hold values of millions of letters, of which it has both ends."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - 500]} [...] {text[-500:]}"
    try:
        from jaxfl.cli.tables.console import stderr
    except (OSError, ImportError, ValueError):  # as the error itself: no folder takes temporary files, JAX no variable
        print(text, file=sys.stderr)
        return
    stderr().print(text, style=style, soft_wrap=True)


def _exit_if_distributed(code: int, error: Exception | None = None) -> None:
    """Ends the process if it is one of several, which would wait for it; prints the traceback of an error first."""
    jax = sys.modules.get("jax")  # whose own import may be what has failed
    if jax is not None and jax.distributed.is_initialized():
        from jaxfl.cli.hosts import exit_process

        if error is not None:
            traceback.print_exception(error)
        exit_process(code)


def check_words(words: Sequence[str]) -> None:
    """Checks that no argument is empty, which would be the current folder where a path is expected, or `-`.

    Raises:
        ValueError: a word is empty, or ends with the `=` of a flag; or it is `-`, with a flag or alone.

    >>> check_words(["run", "fedavg", "--out", ""])
    Traceback (most recent call last):
    ValueError: --out must not be empty, got ""; give a value ("." is the current folder), or leave --out out.
    """
    for before, word in zip(["", *words], words, strict=False):
        if word == "-" or re.fullmatch("--[a-z-]+=-", word):
            flag = word.rpartition("=")[0] or (before if before.startswith("--") else "an argument")
            raise ValueError(
                f'{flag} must be a name or a path, got "-", which is neither standard input nor standard output here; '
                "give a file, ./- if it is to be called so."
            )
        if not word or re.fullmatch("--[a-z-]+=", word):
            flag = (word or before).rstrip("=")
            if flag.startswith("-"):
                remedy = f'give a value ("." is the current folder), or leave {flag} out'
                raise ValueError(f'{flag} must not be empty, got ""; {remedy}.')
            raise ValueError(f'an argument must not be empty, got "" after {shlex.quote(flag)}; leave it out.')


def with_home(words: Sequence[str]) -> list[str]:
    """Returns the words of a command line with the user's folder in place of a `~` that the shell has left.

    A shell replaces it at the beginning of a word without quotes alone, and not in `--out=~/a`.

    >>> words = with_home(["run", "--out=~/a", "--set", "weights=~/b", "--label", "a=~b"])
    >>> [word.replace(os.path.expanduser("~"), "HOME") for word in words]
    ['run', '--out=HOME/a', '--set', 'weights=HOME/b', '--label', 'a=~b']
    """
    home = re.compile(r"^((?:--[a-z-]+=)?(?:[\w.:]+=)?)~(?=/|$)")  # behind a flag, or the key of an option
    return [home.sub(lambda found: found[1] + os.path.expanduser("~"), word) for word in words]


def refuse_setting(flag: str, words: Sequence[str]) -> None:
    """Refuses an unknown flag that is an option of `--set`; does nothing about others.

    Args:
        flag: unknown to the command.
        words: of the command line.

    Raises:
        ValueError: it names an option.

    >>> refuse_setting("--eval-clients", ["fedavg", "--eval-clients", "20"])
    Traceback (most recent call last):
    ValueError: --eval-clients is not a flag; write --set eval_clients=20.
    """
    from jaxfl.settings import options

    name = flag.lstrip("-").replace("-", "_")
    choices = {*options.CHOICES, *(option.name for option in options.RUN)}
    if name not in choices and not options.option_owners(name):
        return
    after = [word for before, word in zip(words, words[1:], strict=False) if before == flag]
    given = [word.partition("=")[2] for word in words if word.startswith(f"{flag}=")] or after or ["VALUE"]
    raise ValueError(f"{flag} is not a flag; write --set {shlex.quote(f'{name}={given[0]}')}.")
