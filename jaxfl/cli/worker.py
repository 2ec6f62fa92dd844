"""The process of a worker of a sweep, which `jaxfl.cli.workers` starts."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from jaxfl.cli import signals, streams
from jaxfl.cli.errors import reported_errors
from jaxfl.cli.experiments import import_experiments
from jaxfl.cli.sweep import worker_answers
from jaxfl.simulation.devices import keep_programs, use_cores

POLL = 1.0  # seconds between looks at the process that started this one


def serve(requests: TextIO, answers: TextIO) -> None:
    """Makes the runs that requests name, and writes an answer for each.

    Args:
        requests: a line of JSON for each, after one with the arguments: those of `jaxfl.cli.sweep.jobs_of` or of an
            experiment (`experiments.harness.run`), `cores`, which the process keeps to, `devices`, how many JAX makes
            of a CPU, `cache`, whether it stores compiled programs, and `parent`, the id of the process that started
            this one.
        answers: a line for each.
    """
    arguments = json.loads(requests.readline())
    threading.Thread(target=_end_with, args=(arguments["parent"],), daemon=True).start()
    if arguments["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, arguments["cores"])  # before JAX starts its threads
    use_cores(arguments["devices"])
    if arguments["cache"]:
        keep_programs()
    answer = _answers_of(arguments)
    while line := requests.readline():
        print(json.dumps(answer(*json.loads(line))), file=answers, flush=True)


def _answers_of(arguments: Mapping[str, Any]) -> Callable[[str, str, int], dict[str, Any]]:
    """Returns the function that answers requests, of a sweep or of an experiment."""
    if "experiment" in arguments:
        return import_experiments("harness.run", Path(arguments["clone"])).worker_answers(arguments)
    return worker_answers(arguments)


def _end_with(parent: int) -> None:
    """Ends this process by SIGTERM, at which its run is saved, when the process that started it has been killed."""
    while os.getppid() == parent:
        time.sleep(POLL)
    os.kill(os.getpid(), signal.SIGTERM)


def _take_pipes() -> tuple[TextIO, TextIO]:
    """Returns the pipes of requests and of answers; what a user's method prints goes to standard error instead."""
    requests, answers = os.fdopen(os.dup(0), "r", encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return requests, answers


def main() -> None:
    """Runs the process."""
    import typer

    streams.install()
    signals.install()
    try:
        with reported_errors():
            serve(*_take_pipes())
    except typer.Exit as ended:  # what there is to say is printed already
        sys.exit(ended.exit_code)


if __name__ == "__main__":
    main()
