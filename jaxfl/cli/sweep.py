"""`jaxfl sweep`: several methods, values of options and seeds on the same clients; finished runs are not repeated."""

import contextlib
import itertools
import json
import re
import time
import tomllib
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxfl.cli import run_page, workers
from jaxfl.cli.compare import COMMAND, print_comparison
from jaxfl.cli.errors import with_home
from jaxfl.cli.plan import footprint_of
from jaxfl.cli.run import (
    LOG,
    CallbackFactory,
    Deadline,
    callback_factory,
    parse_duration,
    parse_seeds,
    rounds_and_cohort,
    run_jobs,
)
from jaxfl.cli.run_page import PAGE
from jaxfl.cli.signals import TRY_AGAIN
from jaxfl.cli.tables.console import print_parts, stderr, stdout
from jaxfl.data.bounded import check_nesting, check_regular
from jaxfl.files import check_output, copy_path, is_missing, signature
from jaxfl.jobs import job
from jaxfl.protocols.scores import check_score
from jaxfl.schema import REQUIRED, Option, did_you_mean, quoted
from jaxfl.settings import methods as known
from jaxfl.settings import models, optimizers, options, tasks
from jaxfl.settings.switches import SWITCHES, asynchronous_options, attack_options, availability_options, clock_options
from jaxfl.settings.user_code import run_label
from jaxfl.simulation.callbacks import Finished
from jaxfl.simulation.interrupts import Stopped
from jaxfl.simulation.records.directory import CONFIG, FolderInUse, RunDirectory
from jaxfl.simulation.records.history import CLUSTERS, MAX_FOLLOWED
from jaxfl.simulation.result import Callback
from jaxfl.simulation.seeds import seeds_per_program

FILE_KEYS = (
    "methods",
    "data",
    "seeds",
    "rounds",
    "cohort",
    "eval_every",
    "checkpoint_every",
    "log",
    "stop_early",
    "time_limit",
    "set",
)  # of a file, beside the tables of methods
LIST_KEYS = ("methods", "seeds", "log")  # keys that may have several values
MAX_SETTINGS = 10_000
OptionValues = Mapping[str, Sequence[str]]


class GridPoint(NamedTuple):
    """One setting of a sweep.

    Attributes:
        method: its name.
        items: `key=value` for `options.route`.
        name: of the folder: the method, and the values of the options that are varied.
    """

    method: str
    items: tuple[str, ...]
    name: str


class Making(NamedTuple):
    """Output, callbacks and time limit of the runs of a sweep.

    Attributes:
        quiet: whether progress and notes are left out.
        html: whether a page is written for each run.
        callbacks: creates the callbacks of some runs; None is for none.
        deadline: the end of the sweep.
    """

    quiet: bool
    html: bool
    callbacks: CallbackFactory | None = None
    deadline: Deadline = Deadline(None)


def grid_points(methods: Sequence[str], given: OptionValues) -> list[GridPoint]:
    """Returns the settings of a sweep: for each method, all combinations of the values that apply to it.

    An option of a method applies to the methods that have it, and `METHOD.key` to that method alone, with priority,
    whatever `key` the command `run` takes. An option of data, model, optimiser or run applies to all methods, and one
    of the server's optimiser to those that have one. An option that some of the models or optimisers of the sweep have
    applies to settings with these, and one of an attack, a drift, a schedule or a fine-tuning to settings with one.

    Args:
        methods: their names.
        given: values by option.

    Raises:
        ValueError: a method is unknown or named twice, or there are too many settings.

    >>> points = grid_points(["fedavg", "ifca"], {"num_clusters": ["2", "4"], "learning_rate": ["0.1"]})
    >>> [point.name for point in points]
    ['fedavg', 'ifca-num_clusters=2', 'ifca-num_clusters=4']
    """
    for method in methods:
        known.row(method)
    if len(set(map(run_label, methods))) < len(methods) or not methods:
        raise ValueError(f"methods must be one or more different names, got {', '.join(methods) or 'none'}.")
    points: dict[GridPoint, None] = {}
    given = dict(sorted(given.items(), key=lambda item: bool(_split_method(item[0])[0])))  # those of a method are last
    chosen_names = {
        choice: {value for key, values in given.items() if _split_method(key)[1] == choice for value in values}
        for choice in (*CHOICES, *(by for switch in SWITCHES for by in switch.by))
    }
    for method in methods:
        own = [key for key in given if _split_method(key)[0] == method]
        applicable = {
            _split_method(key)[1]: values
            for key, values in given.items()
            if _applies_to(key, method, methods)
            and (key in own or not any(_is_same_option(key, other) for other in own))
        }
        varied = [key for key, values in applicable.items() if len(values) > 1]
        for chosen in itertools.product(*applicable.values()):
            items = dict(zip(applicable, chosen, strict=True))
            items = {key: items[key] for key in items if not _is_of_other_choice(key, items, chosen_names)}
            name = "-".join([run_label(method), *(f"{key}={items[key]}" for key in varied if key in items)])
            point = GridPoint(method, tuple(f"{key}={value}" for key, value in items.items()), _safe_file_name(name))
            points[point] = None
            if len(points) > MAX_SETTINGS:
                raise ValueError(f"a sweep must have at most {MAX_SETTINGS:,} settings; give fewer values.")
    return list(points)


def parse_values(items: Sequence[str]) -> dict[str, list[str]]:
    """Returns the values of `key=V,V,...` items by key; commas in brackets or quotes do not separate values.

    Raises:
        ValueError: an item has no values, or a key is given twice.

    >>> parse_values(["threshold=0.3,auto", "hidden=(200,100),32", "label_groups=((0,1),(2,3))"])
    {'threshold': ['0.3', 'auto'], 'hidden': ['(200,100)', '32'], 'label_groups': ['((0,1),(2,3))']}
    """
    found: dict[str, list[str]] = {}
    for item in items:
        key, equals, text = item.partition("=")
        key, values = key.strip(), [value for part in _split_at_commas(text) if (value := part.strip())]
        if not equals or not key or not values:
            raise ValueError(f"--set must be KEY=VALUE or KEY=VALUE,VALUE,..., got {quoted(item)}.")
        if key in found:
            together = ",".join(dict.fromkeys([*found[key], *values]))
            raise ValueError(f"{key} must be set once, got it twice; write all values once, {key}={together}.")
        found[key] = values
    return found


def merge_values(file: OptionValues, line: OptionValues) -> OptionValues:
    """Returns the values of a file, replaced by those of the command line, also where the file has them for one method.

    >>> merge_values({"stocfl.threshold": ["0.3"], "ifca.num_clusters": ["2"]}, {"threshold": ["0.9"]})
    {'ifca.num_clusters': ['2'], 'threshold': ['0.9']}
    """

    def is_replaced(key: str, by: str) -> bool:
        return _split_method(by)[0] in ("", _split_method(key)[0]) and _is_same_option(key, by)

    kept = {
        key: line.get(key, values)
        for key, values in file.items()
        if key in line or not any(is_replaced(key, by) for by in line)
    }
    return {**kept, **line}


def read_sweep_file(path: Path) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Returns the keys of a TOML file as text, and its values of options.

    Raises:
        ValueError: the file is not TOML, or has an unknown key or a value of the wrong type.
        OSError: the file cannot be read.
    """
    try:
        check_regular(path)
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        check_nesting(content)
    except OSError as error:
        raise OSError(
            f"{path} cannot be read ({error.strerror}); give an existing TOML file, or methods: fedavg,ifca."
        ) from error
    except RecursionError as error:
        raise ValueError(f"{path} must be TOML with a few levels, got lists that are nested too deep.") from error
    except ValueError as error:
        raise ValueError(f"{path} must be TOML, got: {error}.") from error
    plain = {key: value for key, value in content.items() if not known.is_method(key)}
    for key, value in content.items():
        if key == "set" or known.is_method(key):
            if not isinstance(value, dict):
                raise ValueError(f"{key} must be a table in {path}, got {value}; write [{key}] and its options below.")
        elif key not in FILE_KEYS:
            raise ValueError(
                f"unknown entry {quoted(key)} in {path}{did_you_mean(key, [*FILE_KEYS, *known.names()])} Known: "
                f"{', '.join(FILE_KEYS)}, and a table for each method; options belong in the table [set]."
            )
        elif isinstance(value, dict) or (isinstance(value, list) and (key not in LIST_KEYS or not value)):
            allowed = "a value or a list of values" if key in LIST_KEYS else "a value"
            raise ValueError(f"{key} must be {allowed} in {path}, got {value}; a sweep varies the options in [set].")
    options = {}
    for table in ("set", *filter(known.is_method, content)):
        for key, value in plain.pop("set", {}).items() if table == "set" else content[table].items():
            named = key if table == "set" else f"{table}.{key}"
            # to TOML, server.learning_rate is a table in a table
            here = {f"{named}.{n}": one for n, one in value.items()} if isinstance(value, dict) else {named: value}
            if empty := [name for name, values in here.items() if values == []]:
                raise ValueError(
                    f"{empty[0].removeprefix(f'{table}.')} in [{table}] of {path} must have a value, got []; give one, "
                    "or leave it out."
                )
            options |= here
    return {key: _toml_text(value) for key, value in plain.items()}, {
        key: [_toml_text(one) for one in (value if isinstance(value, list) else [value])]
        for key, value in options.items()
    }


def _split_at_commas(text: str) -> list[str]:
    """Returns the parts of a text between commas, except those in brackets or quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        else:
            depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part]


def _toml_text(value: Any) -> str:
    """Returns a value of TOML as the command line takes it, also with the user's folder for a `~`.

    >>> _toml_text([200, 100]), _toml_text([[0, 1], [2]]), _toml_text(True)
    ('200,100', '[0, 1],[2]', 'true')
    """
    if isinstance(value, list):
        nested = len(value) == 1 and isinstance(value[0], list)  # without a comma it would be read as the inner list
        return ",".join(str(part) if isinstance(part, list) else _toml_text(part) for part in value) + "," * nested
    return str(value).lower() if isinstance(value, bool) else with_home([str(value)])[0]


def _key_owner(key: str) -> str:
    """Returns the part of an option's key before the last dot, such as the method."""
    return key.rpartition(".")[0]


def _split_method(key: str) -> tuple[str, str]:
    """Returns the method that a key is for, or an empty text, and the key for `options.route`.

    >>> _split_method("ifca.run.finetune"), _split_method("my.py:make.momentum"), _split_method("server.momentum")
    (('ifca', 'run.finetune'), ('my.py:make', 'momentum'), ('', 'server.momentum'))
    """
    words = key.split(".")
    for cut in range(1, len(words)):
        if known.is_method(method := ".".join(words[:cut])):
            return method, ".".join(words[cut:])
    return "", key


def _is_same_option(key: str, other: str) -> bool:
    """Returns whether two keys set one option, with its owner or without, whatever methods they are for."""
    one, two = _split_method(key)[1], _split_method(other)[1]
    owners = {_key_owner(one), _key_owner(two)}
    comparable = len(owners) == 1 or ("" in owners and "server" not in owners)  # a bare name is never the server's
    return comparable and one.rpartition(".")[2] == two.rpartition(".")[2]


# What has options and is chosen by name: their owner, and the options by the name.
CHOICES: dict[str, tuple[str, Callable[[str], Collection[str]]]] = {
    "model": ("model", lambda name: models.options(name)),
    "optimizer": ("optimizer", lambda name: optimizers.options(name)),
    "task": ("task", lambda name: tasks.options(name)),
    "server_optimizer": ("server", lambda name: optimizers.server_options(name)),
    "attack": ("data", attack_options),
    "availability": ("run", availability_options),
    "clock": ("run", clock_options),
    "asynchronous": ("run", asynchronous_options),
}


def _is_of_other_choice(key: str, items: Mapping[str, str], names: Mapping[str, set[str]]) -> bool:
    """Returns whether an option is of another model, optimiser or attack (and so on) of the sweep than the chosen one.

    Args:
        key: of the option.
        items: values by key, with the choices.
        names: the values of the sweep, by choice.
    """
    owner, name = _key_owner(key), key.rpartition(".")[2]
    for switch in SWITCHES if owner != "server" else ():
        is_off = all(items.get(by, switch.off) == switch.off for by in switch.by)
        if name in switch.options and is_off and any(by in items and len(names[by]) > 1 for by in switch.by):
            return True
    for choice, (chosen_owner, having) in CHOICES.items():
        chosen = items.get(choice, "none" if chosen_owner == "server" else None)
        if chosen is not None and (owner == chosen_owner or (not owner and chosen_owner != "server")):
            others = names[choice] - {chosen}
            if name not in having(chosen) and any(name in having(other) for other in others):
                return True
    return False


def _applies_to(key: str, method: str, methods: Sequence[str]) -> bool:
    """Returns whether an option applies to a method.

    Raises:
        ValueError: the option is one of a method that is not in the sweep.
    """
    alone, key_alone = _split_method(key)
    if alone:
        if alone not in methods:
            raise ValueError(
                f"{key} is an option of {alone}, which is not in the sweep; add the method, or leave the option out."
            )
        return alone == method
    owner, name = _key_owner(key_alone), key_alone.rpartition(".")[2]
    if owner == "server":
        return "server_optimizer" in known.row(method).options
    having = [other for other in methods if owner in ("", "method") and name in known.row(other).options]
    return not having or method in having


def _safe_file_name(name: str) -> str:
    """Returns a name without characters that file systems forbid."""
    return re.sub(r"[^\w.=,+-]", "_", name)


def sweep(
    methods: str,
    given: dict[str, Any],
    items: Sequence[str],
    data_dir: str | None,
    out: Path,
    quiet: bool,
    html: bool = False,
    pictures: bool = False,
    jobs: str = "1",
    score: str | None = None,
) -> int:
    """Runs what is missing of a sweep and prints the comparison.

    Args:
        methods: names of methods, comma-separated, or a TOML file.
        given: the keys of a file beside `methods`, as text, or None; they replace those of the file.
        items: `key=value,value`.
        data_dir: folder with the files of the data.
        out: gets a folder for each setting.
        quiet: whether progress and notes are left out.
        html: whether a page of all runs is written into `out`, and one of each run into its folder.
        pictures: whether pictures are drawn into the folder of each run, as they are for a page.
        jobs: processes that make runs side by side: a number, or "auto", see `jaxfl.cli.workers`.
        score: of `jaxfl.protocols.scores.SCORES`, by which the settings are compared; None takes the main metric.

    Returns:
        The exit status: 0 if all runs are finished, 75 if the time was over before, else 1.

    Raises:
        ValueError: an argument is missing or not allowed.
    """
    arguments = {
        "methods": methods,
        "given": given,
        "items": list(items),
        "data_dir": data_dir,
        "out": str(out),
        "html": html,
        "pictures": pictures or html,
    }
    if (limit := read_arguments(arguments)[0].get("time_limit")) is not None:
        arguments["until"] = time.monotonic() + parse_duration(limit)
    settings = jobs_of(arguments)
    for runs in settings.values():
        check_score(score, runs[0].settings.complete())
    making = making_of(arguments, settings, quiet=quiet)
    if html and out.is_dir():
        check_output(out / PAGE, "--html", signature(COMMAND))
    settings, damaged = _without_damaged(settings)
    if not settings:
        raise damaged[0]
    for runs in settings.values():
        job.check_jobs(runs, in_use=True)
    missing = [name for name, runs in settings.items() if not all(_is_made(one, html) for one in runs)]
    cells = [
        workers.Cell(name, one.seed)
        for name, jobs in settings.items()
        for one in sorted(jobs, key=lambda one: not one.begun())  # those that were started before come first
        if not _is_made(one, html)
    ]
    _tell_diverged(settings)
    programs = {name: options.program_text(runs[0].settings) for name, runs in settings.items()}
    pool = workers.Pool(cells, arguments, jobs, making.deadline, programs, quiet=quiet)
    _make_settings(settings, pool, making)
    refused = list(pool.refused.values())
    if len(refused) == len(settings):
        raise refused[0]
    for name, runs in settings.items():
        if name in missing or not _has_spread(runs):
            _write_spread(runs)
    if finished := [_setting_folder(runs) for runs in settings.values() if any(one.done() for one in runs)]:
        print_comparison(finished, html=out / PAGE if html else None, score=score)
        if html and not quiet:
            print_parts(stdout(), f"page: {out / PAGE}")
    runs = [one for some in settings.values() for one in some]
    if making.deadline.is_over() and (left := sum(not _is_made(one, html) for one in runs)):
        text = f"the time is over with {left} of {len(runs)} runs not finished; the same command continues"
        stderr().print(text, style="yellow", soft_wrap=True)
        return TRY_AGAIN
    return int(bool(damaged) or not all(_has_all_files(one, html) for one in runs))


def _tell_diverged(settings: Mapping[str, Sequence[job.Job]]) -> None:
    """Prints which runs have diverged before."""
    for name, jobs in settings.items():
        for one in jobs:
            if one.done() is None and (reason := one.divergence()) is not None:
                text = f"{workers.Cell(name, one.seed)}: diverged before, and is not made again: {reason} Remove "
                text += f"{one.out} to make it anew."
                stderr().print(text, style="yellow", soft_wrap=True, markup=False, highlight=False)


def _without_damaged(settings: Mapping[str, Sequence[job.Job]]) -> tuple[dict[str, list[job.Job]], list[Exception]]:
    """Returns the runs of all settings but those whose folders have a damaged file; their errors, which it prints."""
    intact: dict[str, list[job.Job]] = {}
    damaged: list[Exception] = []
    for name, jobs in settings.items():
        for one in jobs:
            assert one.out is not None
            try:
                RunDirectory(one.out, "out").check_readable()
            except (OSError, ValueError) as error:
                damaged.append(error)
                text = f"{workers.Cell(name, one.seed)}: error: {error}"
                stderr().print(text, soft_wrap=True, markup=False, highlight=False)
                continue
            intact.setdefault(name, []).append(one)
    return intact, damaged


def jobs_of(arguments: Mapping[str, Any]) -> dict[str, list[job.Job]]:
    """Returns the jobs of every setting of a sweep, by the name of the setting.

    Args:
        arguments: `methods`, `given`, `items`, `data_dir`, `out`, `html` and `pictures`, as `sweep` takes them.

    Raises:
        ValueError: an argument is missing or not allowed.
    """
    keys, values = read_arguments(arguments)
    settings = _jobs_by_setting(keys, values, arguments["data_dir"], Path(arguments["out"]))
    beside = ((LOG,) if "csv" in _loggers_of(keys) else ()) + (run_page.FILES if arguments["html"] else ())
    common = {"beside": beside, "pictures": arguments["pictures"]}
    return {name: [one._replace(**common) for one in jobs] for name, jobs in settings.items()}


def read_arguments(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], OptionValues]:
    """Returns the keys of a sweep as text, and its values of options, by file and command line.

    Args:
        arguments: as `jobs_of` takes them.

    Raises:
        ValueError: as `read_sweep_file` and `parse_values`.
    """
    methods = arguments["methods"]
    keys, values = read_sweep_file(Path(methods)) if methods.endswith(".toml") else ({"methods": methods}, {})
    given = {name: value for name, value in arguments["given"].items() if value is not None}
    return keys | given, merge_values(values, parse_values(arguments["items"]))


def _loggers_of(keys: Mapping[str, Any]) -> list[str]:
    """Returns the names of the loggers of a sweep."""
    return [name for name in keys.get("log", "").split(",") if name]


def making_of(arguments: Mapping[str, Any], settings: Mapping[str, Sequence[job.Job]], *, quiet: bool) -> Making:
    """Returns output, callbacks and time limit of the runs of a sweep.

    Args:
        arguments: as `jobs_of` takes them, and `until` as `Deadline` does.
        settings: the runs.
        quiet: whether progress and notes are left out.

    Raises:
        ValueError: as `jaxfl.cli.run.callback_factory`.
    """
    keys, deadline = read_arguments(arguments)[0], Deadline(arguments.get("until"))
    runs = [one for jobs in settings.values() for one in jobs]
    limits = [] if deadline.until is None else [deadline]
    callbacks = callback_factory(_loggers_of(keys), runs[0].stop_early, limits, runs)
    return Making(quiet, arguments["html"], callbacks, deadline)


def worker_answers(arguments: Mapping[str, Any]) -> Callable[[str, str, int], dict[str, Any]]:
    """Returns the function by which a worker answers requests, see `jaxfl.cli.worker`.

    Args:
        arguments: as `jobs_of` takes them.
    """
    jobs, tools = jobs_of(arguments), {}
    making = making_of(arguments, jobs, quiet=True)

    def answer_request(what: str, name: str, seed: int) -> dict[str, Any]:
        one = next(one for one in jobs[name] if one.seed == seed)
        return answer(what, one, tools.setdefault(name, []), making)

    return answer_request


def answer(what: str, one: job.Job, tools: list[job.Tools], making: Making) -> dict[str, Any]:
    """Returns the answer of a worker to a request, see `jaxfl.cli.workers`.

    Args:
        what: "plan", for the bytes that a run takes, or "run".
        one: the run.
        tools: of the setting, as `run_jobs` takes them.
        making: output, callbacks and time limit.
    """
    try:
        if what == "plan":
            return {"bytes": footprint_of(one, tools).total}
        with workers.CompileClock() as clock:
            held = _run_missing([one], tools, making)
        if held or (making.deadline.is_over() and not _is_made(one, making.html)):
            return {"held": bool(held), "late": not held}
        return {"cost": workers.Cost.of(clock)}
    except (ValueError, OSError, MemoryError) as error:
        return {"error": str(error)}
    except (Exception, SystemExit) as error:  # of a user's method, which another process would come to as well
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def _setting_folder(jobs: Sequence[job.Job]) -> Path:
    """Returns the folder of a setting."""
    assert jobs[0].out is not None
    return jobs[0].out.parent


def _jobs_by_setting(
    keys: dict[str, Any], values: OptionValues, data_dir: str | None, out: Path
) -> dict[str, list[job.Job]]:
    """Returns the jobs of every setting, by the name of its folder.

    Raises:
        ValueError: an argument is missing or not allowed.
    """
    for name, remedy in {"methods": 'methods = ["fedavg", "ifca"]', "data": "--data rotated-digits"}.items():
        if name not in keys:
            raise ValueError(f"{name} must be given; write {remedy}.")
    numbers = {
        name: options.convert(name, keys[name], Option(name, REQUIRED, int)) if name in keys else None
        for name in ("rounds", "eval_every", "checkpoint_every", "stop_early")
    }
    rounds, share = rounds_and_cohort(keys["data"], numbers["rounds"], keys.get("cohort"))
    jobs, names = {}, {}
    points = grid_points([method.strip() for method in keys["methods"].split(",")], values)
    names_here = {point.name for point in points}
    others = [path for path in sorted(out.glob("*/seed-*")) if path.parent.name not in names_here]
    for place, point in enumerate(points):
        settings = options.route(point.method, keys["data"], point.items)
        every, saved = numbers["eval_every"], numbers["checkpoint_every"]
        first = job.Job(settings, rounds, share, data_dir=data_dir, eval_every=every, checkpoint_every=saved)
        first = first._replace(stop_early=numbers["stop_early"])
        complete = json.dumps(settings.complete(), sort_keys=True)
        if complete in names:
            raise ValueError(f"values must differ, got {names[complete]!r} and {point.name!r}; leave one out.")
        same = sum(other.name == point.name for other in points[:place])  # but for characters of no file name
        names[complete] = name = f"{point.name}-{same + 1}" if same else point.name
        folder = None if _has_runs_of(out / name, first) else _find_setting_folder(others, first)
        folder = out / name if folder is None else folder
        runs = [first._replace(seed=seed, out=folder / f"seed-{seed}") for seed in parse_seeds(keys.get("seeds", "0"))]
        jobs[name] = [workers.on_one_device(one._replace(resume=True)) for one in runs]  # continues what was started
    return jobs


def _has_runs_of(folder: Path, first: job.Job) -> bool:
    """Returns whether a folder has a run of a setting."""
    return _find_setting_folder(sorted(folder.glob("seed-*")), first) is not None


def _find_setting_folder(others: Sequence[Path], first: job.Job) -> Path | None:
    """Returns the folder with runs of a setting, whatever its name: another sweep may have varied other options.

    Args:
        others: folders of runs.
        first: a job of the setting.
    """
    for path in others:
        seed = path.name.removeprefix("seed-")
        directory = RunDirectory(path)
        with contextlib.suppress(ValueError):  # a damaged folder is of no setting
            if seed.isdecimal() and directory.config() is not None:
                same = first._replace(seed=int(seed), out=path, resume=True)
                if not directory.is_of_another(same.config()):
                    return path.parent
    return None


def _lacking(one: job.Job, html: bool) -> list[str]:
    """Returns the names of the files that the folder of a finished run lacks, such as after a full disk."""
    assert one.out is not None
    log = (LOG,) if LOG in one.beside else ()
    followed = (RunDirectory(one.out).summary() or {}).get("num_clients", 0) <= MAX_FOLLOWED
    names = (
        CONFIG,
        job.CLIENTS,
        *((CLUSTERS,) if followed else ()),
        *(job.PICTURES if one.pictures else ()),
        *((PAGE,) if html else ()),
        *log,
    )
    lacking = [name for name in names if is_missing(one.out / name)]
    config = RunDirectory(one.out).config() or {}
    for owner, path in one.settings.files().items():
        copy = copy_path(one.out, path.name, config.get(f"{owner}_checksum", ""))
        if is_missing(copy) and is_missing(one.out / path.name):  # the latter: of an older version
            lacking.append(path.name)
    return lacking + (["pictures of the page"] if html and run_page.lacks_pictures(one.out) else [])


def _lacks_rounds(one: job.Job) -> bool:
    """Returns whether the newest checkpoint of a finished run is damaged, and the one before has fewer rounds."""
    assert one.out is not None
    return 0 < RunDirectory(one.out).done() < (one.done() or {}).get("rounds", 0)


def _has_all_files(one: job.Job, html: bool) -> bool:
    """Returns whether a run is finished, and all its files are there."""
    return one.done() is not None and not _lacking(one, html)


def _is_made(one: job.Job, html: bool) -> bool:
    """Returns whether nothing is left to do for a run: it is finished with all its files, or has diverged."""
    return _has_all_files(one, html) or (one.done() is None and one.divergence() is not None)


def _make_settings(settings: Mapping[str, Sequence[job.Job]], pool: workers.Pool, making: Making) -> None:
    """Makes what is missing of all settings, in this process and by workers."""
    jobs = {workers.Cell(name, one.seed): one for name, runs in settings.items() for one in runs}
    tools: dict[str, list[job.Tools]] = {}
    told = set()

    def make(cells: Sequence[workers.Cell], look: Callback) -> list[workers.Cell]:
        name = cells[0].name
        if name not in told and not pool.hired:
            _tell_missing(name, settings[name], making)
            told.add(name)
        if name not in tools:
            tools.clear()  # those of the setting before
        quiet, callbacks = making.quiet or pool.hired, making.callbacks
        here = making._replace(quiet=quiet, callbacks=lambda group: [*(callbacks(group) if callbacks else ()), look])
        held = _run_missing([jobs[cell] for cell in cells], tools.setdefault(name, []), here)
        return [workers.Cell(name, one.seed) for one in held]

    for name, runs in settings.items():
        if all(_is_made(one, making.html) for one in runs):
            _tell_missing(name, runs, making)
    try:
        pool.run(make, seeds_per_program)
    except Stopped as stopped:
        if not stopped.rounds:  # of the pool and not of a run, which has said so
            stderr().print("interrupted; runs that were begun are saved, no other was started", style="yellow")
        raise


def _tell_missing(name: str, jobs: Sequence[job.Job], making: Making) -> None:
    """Prints how many runs of a setting are to be made."""
    missing = sum(not _is_made(one, making.html) for one in jobs)
    note = f"{missing} of {len(jobs)} runs to make" if missing else "done"
    intervals = (one.evaluated() for one in jobs if one.done() is not None)
    other = [every for every in intervals if every is not None and every != jobs[0].eval_every]
    if jobs[0].eval_every is not None and other:
        note += f"; finished runs were evaluated every {min(other)} rounds, another --out evaluates them anew"
    stderr(quiet=making.quiet).print(f"{name}: {note}", soft_wrap=True)


def _run_missing(jobs: Sequence[job.Job], tools: list[job.Tools], making: Making) -> list[job.Job]:
    """Runs the jobs of a setting that are not complete; returns those that other processes hold.

    Args:
        jobs: of each seed, checked.
        tools: of the setting, as `run_jobs` takes them.
        making: output, callbacks and time limit.
    """
    quiet, html = making.quiet, making.html
    missing = [one for one in jobs if not _is_made(one, html)]
    held: list[job.Job] = []
    most = seeds_per_program(len(jobs))
    finished = [one for one in missing if one.done() is not None and not _lacks_rounds(one)]  # which lack a file
    others = [one for one in missing if one.done() is None or _lacks_rounds(one)]
    # runs that were started before come first
    for some in (finished, *([one for one in others if one.begun() is begun] for begun in (True, False))):
        for first in range(0, len(some), most):
            if making.deadline.is_over():
                return held
            with contextlib.ExitStack() as stack:
                group = [_hold(one, stack, html, held) for one in some[first : first + most]]
                if free := [one for one in group if one is not None]:
                    callbacks = _with_finished(making.callbacks) if some is finished else making.callbacks
                    run_jobs(free, several=True, quiet=quiet, make_callbacks=callbacks, html=html, shared=tools)
    return held


def _with_finished(create: CallbackFactory | None) -> CallbackFactory:
    """Returns a function that creates the callbacks of runs that are finished, and train no round more."""
    return lambda group: [*(create(group) if create else ()), Finished()]


def _hold(one: job.Job, stack: contextlib.ExitStack, html: bool, held: list[job.Job]) -> job.Job | None:
    """Locks the folder of a run that is to be made; returns the job, or None if there is nothing to do here.

    A finished run that lacks files is evaluated again, after the rounds and by the interval of its own config.

    Args:
        one: the job.
        stack: gets the lock.
        html: whether a page is written.
        held: gets the job, if another process holds the folder.
    """
    directory = RunDirectory(one.out or "", "out")
    try:
        stack.enter_context(directory.locked(one.outputs()))
    except FolderInUse:
        held.append(one)
        return None
    if _is_made(one, html):  # another process has made it meanwhile
        return None
    if one.done() is None:
        job.check(one)
        return one
    if not directory.done():
        stderr().print(
            f"warning: {one.out} lacks {', '.join(_lacking(one, html))}, and its checkpoint is gone; remove the folder "
            "to make the run again.",
            style="yellow",
            soft_wrap=True,
        )
        return None
    if config := directory.config():
        one = one._replace(eval_every=config.get("eval_every"), checkpoint_every=config.get("checkpoint_every"))
    job.check(one)
    return one


def _has_spread(jobs: Sequence[job.Job]) -> bool:
    """Returns whether the means over the seeds of a setting are there, which a process writes after its last run."""
    with contextlib.suppress(ValueError):  # a damaged file is written anew
        return RunDirectory(_setting_folder(jobs)).summary() is not None
    return False


def _write_spread(jobs: Sequence[job.Job]) -> None:
    """Writes the means over the seeds of a setting."""
    summaries = [summary for one in jobs if (summary := one.done()) is not None]
    if summaries:
        job.summarise_seeds(job.add_saved_summaries(jobs, summaries), _setting_folder(jobs))
