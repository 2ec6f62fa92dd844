"""What came of the runs: a file of JSON lines that grows, one for each run, and which line answers a run.

A line holds the run's whole configuration, defaults filled in, and is called by a hash of what is not at its default:
an option that the library gets later, with a default that leaves everything as it was, changes no name. If a default
has changed since, the line does not answer any more.
"""

import hashlib
import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import jaxfl
from experiments.harness.base import Cell
from jaxfl.data import bounded
from jaxfl.jobs.job import Job
from jaxfl.settings import options
from jaxfl.settings.removed import removed_defaults
from jaxfl.simulation.records.directory import SUMMARY_TYPES
from jaxfl.simulation.records.history import NUMBER, EntryTypes, check_entries, json_ready
from jaxfl.simulation.result import Result

RESULTS, FAILURES, UNFINISHED = "results.jsonl", "failures.jsonl", "unfinished"
CURVES = ("round", "micro_accuracy", "macro_accuracy", "loss", "train_loss", "num_clusters")
DIGITS = 6
START = b'{"id": '  # of every line
LINE_TYPES: EntryTypes = {
    "id|cell|command|error": (str,),
    "seed": (int,),
    "seconds": NUMBER,
    "summary|history|configuration": (dict,),
}


def configuration(job: Job) -> dict[str, Any]:
    """Returns all that the numbers of a run depend on, ready for JSON."""
    return {**job.identity(), "rounds": job.rounds}


def identifier(job: Job) -> str:
    """Returns the hash of what a run has beside defaults: its names, rounds, cohort and seed, and options."""
    bare = job.settings._replace(**{owner: {} for owner in options.OWNERS}).complete()
    defaults = {
        name: json.loads(json.dumps(value, default=str))  # as the configuration is read; some must be given
        for name, value in bare.items()
        if "." in name or value is None
    }
    given = {
        name: value for name, value in configuration(job).items() if name not in defaults or value != defaults[name]
    }
    return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:16]


def find(lines: Sequence[dict[str, Any]], job: Job) -> dict[str, Any] | None:
    """Returns the last line that is about a run, or None."""
    name, wanted = identifier(job), removed_defaults(job.settings.method_name) | configuration(job)
    for line in reversed(lines):
        saved = line["configuration"]
        if line["id"] == name and all(key in wanted and wanted[key] == value for key, value in saved.items()):
            return line
    return None


def read(path: Path, needed: Collection[str] = ()) -> list[dict[str, Any]]:
    """Returns the lines of a file, none if there is no file; what is no line, cut short by a crash, is left out.

    Args:
        path: of the file.
        needed: entries that every line must have.

    Raises:
        ValueError: a line lacks an entry, or has one of another type, as the file of somebody else may.
    """
    if not path.exists():
        return []
    try:
        bounded.check_regular(path)
    except ValueError as error:
        raise ValueError(f"{path} must be a file of results: {error}; choose another folder.") from error
    found = []
    for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            line = bounded.parse_json(text)
        except ValueError:
            continue
        if isinstance(line, dict) and {"id", "configuration"} <= set(line):
            try:
                _check_line(line, needed)
            except ValueError as error:
                raise ValueError(
                    f"{path} must hold results: of line {number} {error}; remove the line, or choose another folder."
                ) from error
            found.append(line)
    return found


def _check_line(line: dict[str, Any], needed: Collection[str]) -> None:
    """Raises ValueError if a line lacks an entry, or has one of another type."""
    if lacking := [name for name in needed if name not in line]:
        raise ValueError(f"{lacking[0]} is missing")
    check_entries(line, LINE_TYPES)
    check_entries(line.get("summary", {}), SUMMARY_TYPES)
    columns = line.get("history", {})
    check_entries(columns, {".*": (list,)})
    for name in CURVES if columns else ():
        column = columns.get(name, ())
        if len(column) != len(columns.get("round", ())):
            raise ValueError(f"{name} must have as many numbers as there are rounds, got {len(column)}")
        for value in column:
            check_entries({name: value}, {"round": (int,), ".*": NUMBER})


def check_file(path: Path) -> None:
    """Checks that lines may be added to a file.

    Raises:
        ValueError: none of its lines is one of results.
    """
    if not path.exists() or read(path):
        return
    content = path.read_bytes()
    if content != START[: len(content)] and (b"\n" in content or not content.startswith(START)):  # cut short by a crash
        raise ValueError(f"out must be a folder of results, and {str(path)!r} is another file; choose another folder.")


def append(path: Path, line: dict[str, Any]) -> None:
    """Adds a line, on the disk when it returns; a line that a crash cut short before is closed first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.write(b"\n")
        file.write((json.dumps(json_ready(line), allow_nan=False) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())


def result_line(cell: Cell, job: Job, result: Result) -> dict[str, Any]:
    """Returns the line of a finished run.

    Args:
        cell: the first cell that the run is for.
        job: the run.
        result: of `jaxfl.jobs.job.execute`.
    """
    summary = {name: value for name, value in result.summary.items() if name != "options"}
    versions = summary.pop("versions") | {"jaxfl": jaxfl.__version__}
    last = result.history[-1]
    return {
        **_head(cell, job),
        "seconds": short(last["seconds"]),  # of all rounds, those before an interruption included
        "summary": short(summary | {name: last[name] for name in ("bytes_up", "bytes_down")}),
        "history": {name: short(result.history.column(name)) for name in CURVES},
        "configuration": configuration(job),
        "versions": versions,
    }


def failure_line(cell: Cell, job: Job, error: Exception) -> dict[str, Any]:
    """Returns the line of a run that failed."""
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return {**_head(cell, job), "error": words, "configuration": configuration(job)}


def _head(cell: Cell, job: Job) -> dict[str, Any]:
    """Returns what every line begins with."""
    return {"id": identifier(job), "cell": cell.label, "seed": job.seed, "command": cell.command(job.seed)}


def short(value: Any) -> Any:
    """Returns a value with its numbers rounded to what is read."""
    if isinstance(value, dict):
        return {name: short(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [short(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
