"""The process of a worker of a sweep, which `jaxfl.cli.workers` starts."""

import json
import os
import signal
import sys
import threading
import time
from typing import TextIO

from jaxfl.cli import signals, streams
from jaxfl.cli.errors import reported_errors
from jaxfl.cli.sweep import answer, jobs_of, making_of
from jaxfl.simulation.devices import keep_programs, use_cores

POLL = 1.0  # seconds between looks at the process that started this one


def serve(requests: TextIO, answers: TextIO) -> None:
    """Makes the runs that requests name, and writes an answer for each.

    Args:
        requests: a line of JSON for each, after one with the arguments: `methods`, `given`, `items`, `data_dir`, `out`
            and `html` as `jaxfl.cli.sweep.sweep` takes them, `cores`, which the process keeps to, `devices`, how many
            JAX makes of a CPU, `cache`, whether it stores compiled programs, and `parent`, the id of the process that
            started this one.
        answers: a line for each.
    """
    arguments = json.loads(requests.readline())
    threading.Thread(target=_end_with, args=(arguments["parent"],), daemon=True).start()
    if arguments["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, arguments["cores"])  # before JAX starts its threads
    use_cores(arguments["devices"])
    if arguments["cache"]:
        keep_programs()
    jobs, tools = jobs_of(arguments), {}
    making = making_of(arguments, jobs, quiet=True)
    while line := requests.readline():
        what, name, seed = json.loads(line)
        one = next(one for one in jobs[name] if one.seed == seed)
        found = answer(what, one, tools.setdefault(name, []), making)
        print(json.dumps(found), file=answers, flush=True)


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
