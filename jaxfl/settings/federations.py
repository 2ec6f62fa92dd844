"""Federations by name: those of the catalogue, and a user's `FILE.py:NAME`.

A user's federation is a function that returns a `FederatedData`, or arrays as `jaxfl.data.federate` takes them: its
arguments as a dictionary, or inputs, labels and the rows of each client for training and for testing. Its parameters
are its options, but for `seed` and `data_dir`, which are those of the run. Beside them it has the options of a saved
federation, such as `held_out` and `attack`. It may have shifts before it, `rotated+FILE.py:NAME`, with their options.
"""

import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxfl.data import catalog
from jaxfl.data.building import federate
from jaxfl.data.catalog import SAVED, Dataset
from jaxfl.data.clients import FederatedData
from jaxfl.files import user_path
from jaxfl.random import check_seed
from jaxfl.schema import REQUIRED, Option, parameter_options, quoted, value_phrase
from jaxfl.settings import user_code

REMEDY = (
    "it must be a function (*, options) that returns a jaxfl.data.FederatedData, or the arguments of "
    "jaxfl.data.federate: a dictionary, or inputs, labels, train and test"
)
OF_THE_RUN = ("seed", "data_dir")  # arguments of a user's function that are no options
UNNAMED = inspect.signature(federate).parameters["name"].default  # a federation's name, if none was given


def dataset(name: str) -> Dataset:
    """Returns the entry of a data set.

    Args:
        name: as for `jaxfl.data.catalog.dataset`, or `FILE.py:NAME`, also with shifts before it.

    Raises:
        ValueError: there is no such data set.
    """
    if not user_code.is_address(name):
        if str(name).endswith(".py"):
            raise ValueError(f"data must be FILE.py:NAME, got {name!r}; write {name}: and the name of its function.")
        return catalog.dataset(name)
    lines = (inspect.getdoc(_load_function(name)) or "a federation of your own").splitlines()
    words = [lines[0].rstrip("."), *catalog.dataset(saved_name(name)).description.split("; ")[1:]]
    return SAVED._replace(
        name=name,
        description="; ".join(words),
        skew="own",
        source="own",
        needs_files=False,
        shifts=user_code.shifts_before(name),
    )


def saved_name(name: str) -> str:
    """Returns the name of a saved federation with the shifts that are before an address, which has the same options."""
    return "+".join([*user_code.shifts_before(name), SAVED.name])


def own_options(name: str) -> dict[str, Option]:
    """Returns the options of a user's function, without those that every federation has.

    Raises:
        ValueError: it has an option that every federation has.
    """
    own = {key: one for key, one in parameter_options(_load_function(name)).items() if key not in OF_THE_RUN}
    if taken := [key for key in own if key in catalog.known_options(saved_name(name))]:
        having = "every federation" if taken[0] in catalog.known_options(SAVED.name) else "a shift before it"
        raise ValueError(f"{name} must not have an option {taken[0]}, which {having} has; give it another name.")
    return own


def known_options(name: str) -> dict[str, Option]:
    """Returns all options of a data set, as `jaxfl.data.catalog.known_options`; those of a user's function are first.

    Raises:
        ValueError: there is no such data set.
    """
    if not user_code.is_address(name):
        return catalog.known_options(dataset(name).name)
    return own_options(name) | catalog.known_options(saved_name(name))


def load(name: str, *, data_dir: str | Path | None = None, seed: int = 0, **settings: Any) -> FederatedData:
    """Returns the federation of a name.

    Args:
        name: as for `dataset`.
        data_dir: folder of its files, see `jaxfl.data.load`.
        seed: of its random choices.
        **settings: its options.

    Raises:
        ValueError: as `jaxfl.data.load`, or a user's function raises, or returns no federation.
    """
    if not user_code.is_address(name):
        return catalog.load(name, data_dir=data_dir, seed=seed, **settings)
    own, function, seed = own_options(name), _load_function(name), check_seed(seed)
    for key, option in own.items():
        if option.default is REQUIRED and key not in settings:
            raise ValueError(f"{key} must be given for data {name}; add --set {key}=...")
    of_the_run = {"seed": seed, "data_dir": None if data_dir is None else user_path(data_dir)}
    given = {key: value for key, value in of_the_run.items() if key in parameter_options(function)}
    given |= {key: value for key, value in settings.items() if key in own}

    def make() -> FederatedData:
        with user_code.one_line_errors(name, REMEDY):
            return _as_federation(name, function(**given))

    rest = {key: settings[key] for key in settings if key not in own}
    return catalog.with_options(make, rest, seed=seed, name=saved_name(name))


def user_files(name: str, data_dir: str | Path | None = None, other: str | None = None) -> list[Path]:
    """Returns the user's files of data, see `jaxfl.data.catalog.user_files`; those that user code reads are unknown."""
    return [] if user_code.is_address(name) else catalog.user_files(name, data_dir, other)


def user_checksum(name: str, data_dir: str | Path | None = None, other: str | None = None) -> str | None:
    """Returns the checksum of `user_files`, see `jaxfl.data.catalog.user_checksum`; None without such files."""
    return None if user_code.is_address(name) else catalog.user_checksum(name, data_dir, other)


def _load_function(name: str) -> Any:
    """Returns a user's function.

    Raises:
        ValueError: there is no such function.
    """
    if not callable(found := user_code.load(name)):
        raise ValueError(f"{name} must be a function that returns a federation, got {quoted(found)}; {REMEDY}.")
    return found


def _as_federation(name: str, made: Any) -> FederatedData:
    """Returns the federation that a user's function has returned, by itself or as arguments of `federate`."""
    label = user_code.run_label(name).removeprefix("".join(f"{shift}+" for shift in user_code.shifts_before(name)))
    if isinstance(made, FederatedData):
        return dataclasses.replace(made, name=label) if made.name == UNNAMED else made
    if isinstance(made, Mapping):
        return federate(**{"name": label, **made})
    if isinstance(made, (tuple, list)) and len(made) == 4:
        return federate(*made, name=label)
    raise ValueError(f"{name} must return a federation, returned {value_phrase(made)}; {REMEDY}.")
