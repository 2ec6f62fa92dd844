"""Random command lines: each must run, or be refused in one line with exit code 2 and without a traceback.

    python -m experiments.reliability.fuzz_commands --count 1000
    python -m experiments.reliability.fuzz_commands --count 10000 --out experiments/reliability/results/commands.jsonl
    python -m experiments.reliability.fuzz_commands --first 17 --count 1 --full 1

The lines are made of the registry: methods, data, models and optimisers, their options with right, wrong and extreme
values, and the flags. Line i of a seed is always the same. What is accepted is traced up to the first round and stopped
there; one line in `--full` is run to its end. Lines are run in this program's own processes, a few hundred in each, so
that a crash costs one line and is a finding, and so is what takes minutes.
"""

import collections
import contextlib
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from experiments.reliability.campaign import ended_by_interrupt, parser, until, within
from experiments.reliability.command_lines import line, write_files
from experiments.speed import measure

BATCH = 250  # lines of a process
SECONDS = 300  # that a line may take
MEMORY = 12 << 30  # bytes of address space beyond what the process has when it begins


class Outcome(NamedTuple):
    """What came of a line.

    Attributes:
        index: of the line.
        words: of the command.
        kind: `ran`, `traced`, `diverged`, `refused` or `usage`, as it must be; or what is wrong.
        told: the last of what was printed, or the traceback.
    """

    index: int
    words: list[str]
    kind: str
    told: str

    @property
    def is_finding(self) -> bool:
        """Returns whether this must not be."""
        return self.kind not in ("ran", "traced", "diverged", "refused", "usage")


class TooLong(Exception):
    """A line took more than `SECONDS`."""


class Reached(Exception):
    """A run was accepted and has come to its first round."""


def prepare(folder: Path) -> None:
    """Makes what lines name: files, and a finished run."""
    write_files(folder)
    words = [
        "run",
        "fedavg",
        "--data",
        "iid-digits",
        "--rounds",
        "1",
        "--set",
        "num_clients=4",
        "--set",
        "model=logistic",
    ]
    outcome = run(-1, [*words, "--out", str(folder / "done")], full=True)
    if outcome.kind != "ran":
        raise RuntimeError(f"the plainest run does not work: {outcome}")


def run(index: int, words: list[str], *, full: bool) -> Outcome:
    """Runs a line in this process.

    Args:
        index: of the line.
        words: of the command.
        full: whether it is run to its end, and not only to its first round.
    """
    from typer.testing import CliRunner

    from jaxfl.cli.app import app

    with contextlib.ExitStack() as stack:
        if not full:
            stack.enter_context(mock.patch("jaxfl.simulation.program.lower", _trace))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("default")
        warnings.simplefilter("error", RuntimeWarning)  # of NumPy: an overflow is no refusal
        stack.enter_context(within(SECONDS, TooLong))
        result = CliRunner().invoke(app, words)
    errors = [one for one in result.stderr.splitlines() if one.startswith("error: ")]
    if isinstance(result.exception, Reached):
        return Outcome(index, words, "traced", "")
    if isinstance(result.exception, TooLong):
        return Outcome(index, words, f"took more than {SECONDS} s", "")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        import traceback

        told = "".join(traceback.format_exception(result.exception)[-12:])
        return Outcome(index, words, f"traceback: {type(result.exception).__name__}", told)
    kind = f"exit code {result.exit_code}"
    if result.exit_code == 0:
        kind = "ran" if not errors else "an error, and exit code 0"
    elif result.exit_code == 1 and full and errors and "diverged" in errors[0]:
        kind = "diverged"
    elif result.exit_code == 2:
        kind = "refused" if len(errors) == 1 else "usage" if "Usage: " in result.stderr else "no line says why"
    return Outcome(index, words, kind, (errors or result.stderr.splitlines() or [""])[-1])


def _trace(
    method: Any,
    key: Any,
    state: Any,
    data: Any,
    size: int,
    plan: Any,
    limit: int,
    sampler: Any,
    cohort: Any = None,
    lanes: Any = None,
) -> Any:
    """Stands in for what compiles a run: traces a round, and ends."""
    import jax

    from jaxfl import engine
    from jaxfl.wire.wired import attacked

    def once(key: Any, state: Any, data: Any) -> Any:  # of streamed rows as well: the cohort has the same shapes
        return attacked(method)(key, state, data, engine.by_size(data, sampler(key, state.round, data, size, plan)))

    del cohort, limit, lanes
    jax.eval_shape(once, key, state, data)
    raise Reached


def _batch(seed: int, first: int, count: int, full: int, folder: Path) -> None:
    """Runs lines one after another and prints what came of each; the work of a process of its own."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, resource.RLIM_INFINITY))
    os.chdir(folder)
    for index in range(first, first + count):
        outcome = run(index, line(seed, index, folder), full=index % full == 0)
        print(json.dumps(outcome), flush=True)
        if outcome.kind.startswith("took"):
            os._exit(0)  # what was computed is computed on, beside the next line
        if index % 20 == 0:
            jax.clear_caches()


def campaign(seed: int, first: int, count: int, full: int, folder: Path, more: Callable[[], bool]) -> Iterator[Outcome]:
    """Yields what came of each line; lines are run in processes, and one that ends a process is a finding.

    Args:
        seed: of the campaign.
        first: index of the first line.
        count: lines.
        full: one line in so many is run to its end.
        folder: from `prepare`.
        more: whether there is time for another one.
    """
    index, end = first, first + count
    while index < end and more():
        work = [str(one) for one in (seed, index, min(BATCH, end - index), full, folder)]
        command = [sys.executable, "-m", "experiments.reliability.fuzz_commands", "--batch", *work]
        paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"PYTHONPATH": paths},
        ) as process:
            assert process.stdout is not None
            for told in process.stdout:
                yield Outcome(*json.loads(told))
                index += 1
                if not more():
                    process.kill()
                    return
        if code := process.returncode:
            yield Outcome(index, line(seed, index, folder), f"the process ended with {code}", "")
            index += 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a campaign, prints what it found, and returns 1 if that is anything."""
    options = parser(__doc__)
    options.add_argument("--count", type=int, default=1000, help="lines")
    options.add_argument("--first", type=int, default=0, help="index of the first one")
    options.add_argument("--full", type=int, default=100, help="one line in so many is run to its end")
    options.add_argument("--batch", nargs=5, help="of the processes that this one begins")
    given = options.parse_args(arguments)
    if given.batch:
        seed, first, count, full = map(int, given.batch[:4])
        _batch(seed, first, count, full, Path(given.batch[4]))
        return 0
    kinds: collections.Counter[str] = collections.Counter()
    findings, more = [], until(given.minutes)
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        with ended_by_interrupt():
            for outcome in campaign(given.seed, given.first, given.count, given.full, Path(name), more):
                kinds[outcome.kind] += 1
                if outcome.is_finding:
                    findings.append(outcome._asdict())
                    words = shlex.join(outcome.words)
                    print(f"{outcome.index}: {outcome.kind}\n  jaxfl {words}\n  {outcome.told}", flush=True)
    record = {"campaign": "fuzz_commands", "seed": given.seed, "first": given.first, "lines": kinds.total()}
    measure.write({**record, "kinds": dict(kinds.most_common()), "findings": findings}, given.out)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
