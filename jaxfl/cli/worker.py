"""The process of a worker of a sweep, which `jaxfl.cli.workers` starts: `python -m jaxfl.cli.worker ARGUMENTS`."""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from jaxfl.cli import signals, streams
from jaxfl.cli.errors import reported_errors
from jaxfl.cli.sweep import answer, jobs_of
from jaxfl.simulation.devices import keep_programs, use_cores


def serve(arguments: Mapping[str, Any]) -> None:
    """Makes the runs that standard input names, and writes an answer for each to standard output.

    Args:
        arguments: `methods`, `given`, `items`, `data_dir`, `out` and `html` as `jaxfl.cli.sweep.sweep` takes them,
            `cores`, which the process keeps to, and `cache`, whether it stores compiled programs.
    """
    if arguments["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, arguments["cores"])  # before JAX starts its threads
    use_cores()
    if arguments["cache"]:
        keep_programs()
    jobs, tools = jobs_of(arguments), {}
    while line := sys.stdin.readline():
        what, name, seed = json.loads(line)
        one = next(one for one in jobs[name] if one.seed == seed)
        print(json.dumps(answer(what, name, one, tools.setdefault(name, []), arguments["html"])), flush=True)


def main() -> None:
    """Runs the process."""
    streams.install()
    signals.install()
    with reported_errors():
        serve(json.loads(sys.argv[1]))


if __name__ == "__main__":
    main()
