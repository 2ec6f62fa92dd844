"""Finished runs in folders: search, settings and names for comparisons."""

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxfl.analysis.comparison import PARTICIPATION, Line
from jaxfl.data import catalog
from jaxfl.files import real_path, user_path
from jaxfl.settings import options, user_code
from jaxfl.settings.removed import removed_defaults
from jaxfl.settings.switches import unused_options
from jaxfl.simulation.records.directory import CONFIG, HISTORY, SUMMARY, RunDirectory
from jaxfl.simulation.records.history import History
from jaxfl.simulation.records.identity import DATA_CHECKSUM, JAX_SETTINGS

# What a run's numbers do not depend on, but for rounding.
MACHINE_OPTIONS = ("run.chunk", "run.devices", "run.resident", "run.fast_forms")
# Entries of a setting that are of its federation and its budget, beside the options of the data.
DATA_ENTRIES = ("data", "rounds", "cohort", "run.eval_clients", *PARTICIPATION, DATA_CHECKSUM, *JAX_SETTINGS)

EMPTY: tuple[Any, ...] = (None, "", [], {})  # values of options that choose nothing


class FinishedRun(NamedTuple):
    """A finished run.

    Attributes:
        path: its directory.
        summary: what came of it.
        history: a record per evaluation.
        config: the names and options of the job.

    A run that was given more rounds has the old summary until it has made them: it is not finished meanwhile.
    """

    path: Path
    summary: dict[str, Any]
    history: History
    config: dict[str, Any]

    @property
    def seed(self) -> int:
        """Its seed."""
        return self.summary["seed"]

    @property
    def rounds(self) -> int:
        """The rounds of the job; a callback may have ended the run before."""
        return self.config.get("rounds", self.summary["rounds"])

    @property
    def is_unfinished(self) -> bool:
        """Whether it has more rounds done than its summary has."""
        return RunDirectory(self.path).is_unfinished()

    def setting(self) -> dict[str, Any]:
        """Returns all that defines the run but its seed; options that are newer than the run have their defaults."""
        every = {**self.defaults(), **self.summary["options"]}
        asked = {name: self.summary[name] for name in ("method", "data", "cohort")} | {"rounds": self.rounds}
        asked |= {name: self.summary[name] for name in JAX_SETTINGS if name in self.summary}
        return {**{name: value for name, value in every.items() if name not in MACHINE_OPTIONS}, **asked}

    def usual(self) -> dict[str, Any]:
        """Returns the setting that the run would have if its method and its data alone had been chosen."""
        try:
            model = catalog.dataset(self.config.get("data", "")).model[0]
        except ValueError:
            return self.defaults()
        return {"model": model, "optimizer": "sgd", "server_optimizer": None, **self.defaults()}

    def defaults(self) -> dict[str, Any]:
        """Returns the defaults of all options, those removed since too; none for what the library does not know."""
        chosen = {**self.summary["options"], **self.config}  # the summary's data are the federation, by its own name
        method, data, model, optimizer = (chosen.get(name, "") for name in ("method", "data", "model", "optimizer"))
        if any(map(user_code.is_address, (method, data, model, optimizer))):  # a file, which is not run for this
            return {}
        try:
            defaults = options.default_values(method, data, model, optimizer, chosen.get("server_optimizer"))
        except (KeyError, ValueError):  # something is not called so any more
            return {}
        return removed_defaults(method) | json.loads(json.dumps(defaults))


def read_runs(
    folders: Sequence[str | os.PathLike], *, by_data: bool = False
) -> tuple[dict[str, list[FinishedRun]], list[Path]]:
    """Returns the finished runs in some folders and below them, by setting, and the directories of unfinished ones.

    Runs that differ in their seed alone are of one setting, which is named by its method and by what tells it from the
    others.

    Args:
        folders: directories of runs that the command line has written, or of several such directories.
        by_data: whether runs on several federations are of one setting, for `comparison.compare_by_data`: then a name
            has the options that vary for the method on some federation, and nothing of data, rounds and cohort.

    Warns:
        UserWarning: a file is none of a run, or a damaged one, or with `by_data` the run is that of another folder, by
            its federation, its seed and its name, whatever its config says of the data; the run is left out.

    Raises:
        ValueError: a folder has no run, none of all runs is finished and can be read, or two are of one setting and
            seed.
    """
    runs: dict[Path, FinishedRun] = {}
    unfinished: set[Path] = set()
    refused: list[Exception] = []  # of damaged runs
    going_on: list[Exception] = []  # of folders in which no run is finished
    for folder in map(user_path, folders):
        # within a run is what the run itself keeps, its best round for example
        histories = sorted(
            one for one in _histories(folder) if one.parent == folder or not (one.parent.parent / HISTORY).exists()
        )
        ended, found, damaged = [one.parent for one in histories if (one.parent / SUMMARY).exists()], {}, {}
        for path in ended:
            try:
                if not (run := _read_run(path)).is_unfinished:
                    found[real_path(path)] = run
            except (OSError, ValueError) as error:
                damaged[path] = error
        refused += damaged.values()
        if not found and not damaged:
            going = (
                f"; {len(histories)} are not finished: --resume ends those of jaxfl run, and those of jaxfl.run are "
                "compared in Python, by jaxfl.analysis.comparison.compare"
                if histories
                else ""
            )
            error = ValueError(
                f"{str(folder)!r} has no finished run, which is a {SUMMARY} beside a {HISTORY}{going}; give the "
                "directory of jaxfl run --out, or one above it."
            )
            if not histories and not any((folder / name).exists() for name in (CONFIG, SUMMARY)):  # a wrong name
                raise error
            going_on.append(error)
            unfinished |= set() if histories else {folder}
        runs |= {place: run for place, run in found.items() if place not in runs}
        unfinished |= {
            one.parent for one in histories if real_path(one.parent) not in found and one.parent not in damaged
        }
    if not runs and (refused or going_on):
        raise [*refused, *going_on][0]
    for error in refused:  # the others are compared
        warnings.warn(f"{error} The run is left out.", stacklevel=2)
    settings: dict[str, list[FinishedRun]] = {}
    for run in runs.values():
        settings.setdefault(json.dumps(run.setting(), sort_keys=True), []).append(run)
    for same in settings.values():
        same.sort(key=lambda run: run.seed)
        for one, other in zip(same, same[1:], strict=False):
            if one.seed == other.seed:
                raise ValueError(
                    f"{str(one.path)!r} and {str(other.path)!r} are one run, of seed {one.seed}; give one of them."
                )
    first = [same[0] for same in settings.values()]
    named = setting_names([run.setting() for run in first], [run.usual() for run in first], by_data=by_data)
    by_name: dict[str, list[FinishedRun]] = {}
    for name, same in zip(named, settings.values(), strict=True):
        kept = by_name.setdefault(name, [])
        for run in same:
            twin = next((other for other in kept if _is_on_federation_of(run, other)), None) if by_data else None
            if twin is None:
                kept.append(run)
                continue
            warnings.warn(
                f"{str(twin.path)!r} and {str(run.path)!r} are one run of {name!r}, of seed {run.seed} on one "
                "federation, with other options of the data; the second one is left out.",
                stacklevel=2,
            )
    return by_name, sorted(unfinished)


def _is_on_federation_of(run: FinishedRun, other: FinishedRun) -> bool:
    """Returns whether nothing tells the seeds, the federations and the budgets of two runs apart."""
    return run.seed == other.seed and Line("", {run.seed: run}).is_comparable(Line("", {run.seed: other}))


def _histories(folder: Path) -> Iterator[Path]:
    """Yields the histories in a folder and below it, without folders that cannot be read or are removed meanwhile."""
    for below, folders, files in os.walk(folder):
        if HISTORY in (*files, *folders):  # a folder of this name is told as a damaged file
            yield Path(below, HISTORY)


def setting_names(
    settings: Sequence[Mapping[str, Any]], usual: Sequence[Mapping[str, Any]] = (), *, by_data: bool = False
) -> list[str]:
    """Returns a name for each of several settings: its method, and the options in which it differs from the others.

    An option is named where settings of one method on one data set differ in it; where settings of other methods or on
    other data sets differ in it, unless it has its usual value. Empty values, such as none, and options that do not
    count, such as those of an attack where there is none, are left out. Names that are equal then have all options in
    which they differ.

    Args:
        settings: the method and all options of each.
        usual: what each would have if nothing else was chosen; empty where that is not known.
        by_data: whether to name settings on several federations alike, see `read_runs`.

    >>> small, large = {"method": "ifca", "method.num_clusters": 2}, {"method": "ifca", "method.num_clusters": 4}
    >>> setting_names([{"method": "fedavg"}, small, large])
    ['fedavg', 'ifca num_clusters=2', 'ifca num_clusters=4']
    >>> setting_names([{"method": "fedavg", "run.finetune": epochs} for epochs in (None, 1)])
    ['fedavg', 'fedavg finetune=1']
    >>> setting_names([small, small | {"run.drift": None}])
    ['ifca drift=unknown', 'ifca drift=none']
    >>> setting_names([{"method": "mine.py:make", "method.layers": layers} for layers in ("a b", "ab")])
    ['mine.py:make layers="a b"', 'mine.py:make layers="ab"']
    >>> here, there = {"data": "digits", "optimizer.momentum": 0.0}, {"data": "mnist", "optimizer.momentum": 0.9}
    >>> setting_names([{"method": "fedavg"} | here, {"method": "fedavg"} | there, small | there], by_data=True)
    ['fedavg', 'fedavg', 'ifca']
    """
    usual = usual or [{} for _ in settings]
    unused = [_unused_keys(one) for one in settings]
    federations = [_data_entries(one) if by_data else "" for one in settings]
    if by_data:
        settings = [{key: one[key] for key in one if not _is_of_data(key)} for one in settings]

    def alike(place: int, key: str) -> list[int]:
        """Returns the settings that an option can be compared with."""
        one, owner = settings[place], key.partition(".")[0]
        chosen = {"method": "method", "data": "data", "server": "server_optimizer"}
        same = None if owner == key else chosen.get(owner)
        if owner.endswith("_checksum"):  # of a file, from which settings without it need no distinction
            file = owner.removesuffix("_checksum")
            same = file if file in one else f"run.{file}"
        return [
            other
            for other in range(len(settings))
            if federations[other] == federations[place] and (same is None or settings[other].get(same) == one.get(same))
        ]

    def is_named(place: int, key: str) -> bool:
        if key in unused[place]:
            return False
        one = settings[place]
        others = [other for other in alike(place, key) if settings[other].get(key) != one[key]]
        of_same = [
            other
            for other in others
            if all(settings[other].get(name) == one.get(name) for name in ("method", "data") if name != key)
        ]
        if of_same or by_data:
            return bool(of_same)
        return bool(others) and (key not in usual[place] or usual[place][key] != one[key])

    def word(place: int, key: str) -> str:
        """Returns a value without spaces, or as JSON where two values would be the same without them."""
        one, others = settings[place], [settings[other] for other in alike(place, key)]
        same = {
            repr(other[key]) for other in others if key in other and _value_word(other[key]) == _value_word(one[key])
        }
        return _value_word(one[key]) if len(same) == 1 else json.dumps(one[key])

    named: dict[str, set[str]] = {}  # the options of each method, on all federations
    for place, one in enumerate(settings):
        keys = {key for key in one if key != "method" and is_named(place, key)}
        named.setdefault(one["method"] if by_data else str(place), set()).update(keys)
    found = []
    for place, one in enumerate(settings):
        keys = named[one["method"] if by_data else str(place)]
        words = [f"{_bare_option(key)}={word(place, key)}" for key in one if key in keys and one[key] not in EMPTY]
        found.append(" ".join([one["method"], *words]))
    called: dict[tuple[str, str], list[int]] = {}
    for place, name in enumerate(found):
        called.setdefault((federations[place], name), []).append(place)
    for places in called.values():  # one of an older version may lack an option that others have with none
        alike_in_name = [settings[place] for place in places]
        values = {key: [one.get(key, "unknown") for one in alike_in_name] for one in alike_in_name for key in one}
        differing = {key: some for key, some in values.items() if len(set(map(repr, some))) > 1}
        for number, place in enumerate(places):
            found[place] += "".join(
                f" {_bare_option(key)}={_value_word(some[number])}" for key, some in differing.items()
            )
    return found


def _unused_keys(setting: Mapping[str, Any]) -> set[str]:
    """Returns the keys of a setting whose options do not count, see `jaxfl.settings.switches`."""
    names = {key: _bare_option(key) for key in setting if key.startswith(("data.", "run."))}
    unused = unused_options({name: setting[key] for key, name in names.items()})
    return {key for key, name in names.items() if name in unused}


def _is_of_data(key: str) -> bool:
    """Returns whether an entry of a setting is of its federation or its budget."""
    return key in DATA_ENTRIES or key.startswith("data.")


def _data_entries(setting: Mapping[str, Any]) -> str:
    """Returns the entries of a setting that are of its federation and its budget, as JSON."""
    return json.dumps({key: setting[key] for key in sorted(setting) if _is_of_data(key)})


def _bare_option(key: str) -> str:
    """Returns the name of an option without its owner; the server's keep it, whose learning rate is another one."""
    return key if key.startswith("server.") else key.rpartition(".")[2]


def _value_word(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value).replace(" ", "")


def _read_run(path: Path) -> FinishedRun:
    """Returns the run of a directory.

    Raises:
        ValueError: it has files of something else.
    """
    summary = RunDirectory(path).summary() or {}
    needed = ("method", "data", "seed", "rounds", "cohort", "options")
    missing = [name for name in needed if name not in summary or "seeds" in summary]
    if missing:
        raise ValueError(
            f"{path / SUMMARY} is no summary of a run of the command line, which has {', '.join(missing)}; leave "
            f"{str(path)!r} out."
        )
    return FinishedRun(path, summary, History(path / HISTORY), RunDirectory(path).config() or {})
