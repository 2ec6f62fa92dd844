"""Ends runs at random instants, resumes them until they are done, and compares with runs that nothing happened to.

    python -m experiments.reliability.kills --count 200 --out experiments/reliability/results/kills.jsonl
    python -m experiments.reliability.kills --first 7 --jobs 1

A job is a command line: a method, in turn, with some conditions at the clients, and often a wire. It is run
undisturbed, and again with a signal (SIGKILL, and all that a run is saved at) to each of its first processes: half of
them at any moment, imports and compiling included, half while rounds are made. What is left is resumed. Job i of a
seed is always the same, its instants are not.

A finding is: another state or history than the undisturbed run's, bit for bit (times apart); an exit status other than
that of the signal, see `jaxfl.cli.signals.exit_status` (but where Python itself begins or, all being done, ends: then
it may be ended by the signal); a process that prints a traceback or "Exception ignored", or that does not end.
"""

import collections
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.reliability import wires
from experiments.reliability.campaign import ended_by_interrupt, heed_signals, parser, until
from experiments.speed import measure
from jaxfl.cli.signals import exit_status
from jaxfl.methods import METHODS
from jaxfl.simulation import interrupts
from jaxfl.simulation.records import checkpoint
from jaxfl.simulation.records.directory import RunDirectory
from jaxfl.simulation.records.history import History

ROOT = Path(__file__).parents[2]
ROUNDS = 2000
SIGNALS = (signal.SIGKILL, *interrupts.SIGNALS)
EACH = 4  # signals to a job
PATIENCE = 300  # seconds that a process may take, and that one may take to end after a signal
CONDITIONS = (
    [],
    ["stragglers=0.5", "dropouts=0.3"],
    ["attack=sign-flip", "attackers=0.25"],
    ["availability=random"],
    ["attack=gaussian", "attackers=0.25", "stragglers=0.3", "availability=diurnal"],
)
BEGINNING = ("Python", "imports")  # moments at which Python's own handlers may still be there


class Ended(NamedTuple):
    """How a process ended.

    Attributes:
        code: its return code.
        moment: what it was at when the signal came.
        seconds: from the signal to the end.
        told: what it printed.
        after: rounds that it told of after the signal, in lines.
    """

    code: int
    moment: str
    seconds: float
    told: str
    after: int = 0


def words(seed: int, index: int) -> list[str]:
    """Returns the command line of a job, without `jaxfl` and `--out`."""
    draw = random.Random(f"{seed} {index}")
    names = [name for name in METHODS if name != "kfed"] if index % 2 else list(METHODS)
    name = names[index % len(names)]
    small = {key: "none" if value is None else value for key, value in METHODS[name].small.items()}
    items = [f"{key}={value}" for key, value in {**small, "model": "logistic", "num_clients": 8}.items()]
    items += ["rows_per_client=20", *draw.choice(CONDITIONS)]
    if "local_epochs" in METHODS[name].options:
        items.append("local_epochs=1")
    if "batch_size" in METHODS[name].options and draw.random() < 0.5:
        items.append("batch_size=5")
    cohort, wire = draw.choice(["4", "1.0"]), wires.items(wires.wire(draw))
    with contextlib.suppress(ValueError, TypeError):
        wires.check_line(name, "rotated-digits", [*items, *wire], 4 if cohort == "4" else 8)
        items += wire
    command = ["run", name, "--data", "rotated-digits", "--rounds", str(ROUNDS), "--cohort", cohort]
    command += ["--eval-every", str(ROUNDS // 10), "--checkpoint-every", str(draw.choice([ROUNDS // 10, 37, 3]))]
    return [*command, "--seed", str(draw.randrange(100)), *(word for item in items for word in ("--set", item))]


class Process:
    """A process of the command line.

    Args:
        command: its words.
        log: a file for what it prints.
        cache: folder of what was compiled before.
    """

    def __init__(self, command: Sequence[str], log: Path, cache: Path):
        environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "MPLBACKEND": "Agg"}
        environment |= {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        environment.pop("XLA_FLAGS", None)
        self.log, self.began = log, time.monotonic()
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jaxfl.cli", *command],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=log.parent,
            )  # fmt: skip

    def moment(self) -> str:
        """Returns what it is at."""
        told = self.log.read_text(errors="replace")
        last, steps = f"round {ROUNDS}/{ROUNDS}", ("round ", "compiling", "loading")
        for word, moment in zip((last, *steps), ("the end", "rounds", *steps[1:]), strict=True):
            if word in told:
                return moment
        return "imports" if time.monotonic() - self.began > 0.5 else "Python"

    def wait_for(self, *moments: str) -> float:
        """Returns when it is at one of these, or has ended; and how many seconds it took since it began."""
        while self.process.poll() is None and self.moment() not in moments:
            time.sleep(0.01)
        return time.monotonic() - self.began

    def end(self, number: int | None) -> Ended:
        """Sends a signal, if any, and waits for the end."""
        moment, sent, before = self.moment(), time.monotonic(), self.log.read_text(errors="replace")
        if number is not None:
            self.process.send_signal(number)
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait() + 1000  # none that there is
        seconds, told = time.monotonic() - sent, self.log.read_text(errors="replace")
        return Ended(code, moment, seconds, told, told.count("round ") - before.count("round "))


def fault(ended: Ended, number: int | None) -> str:
    """Returns what is wrong with the end of a process; nothing if it is as it should be.

    >>> fault(Ended(130, "rounds", 0.1, "interrupted"), signal.SIGINT), fault(Ended(0, "rounds", 9, ""), signal.SIGINT)
    ('', 'ended with 0 after SIGINT in rounds')
    """
    for word in ("Traceback", "Exception ignored", "Fatal Python error"):
        if word in ended.told and ended.moment != "Python":
            return f"{word} in {ended.moment}"
    if number is None:
        return "" if ended.code == 0 else f"ended with {ended.code} without a signal"
    expected = {-number} if number == signal.SIGKILL else {exit_status(number)}
    if number != signal.SIGKILL and ended.moment in BEGINNING:
        expected |= {-number}
    if "pictures:" in ended.told and ended.after <= 1:  # all was done but the last words; or the signal was swallowed
        expected |= {0, -number}
    name = signal.Signals(number).name
    return "" if ended.code in expected else f"ended with {ended.code} after {name} in {ended.moment}"


def difference(one: Path, other: Path) -> str:
    """Returns in what two directories of finished runs differ, apart from times; nothing if they do not."""
    first, second = checkpoint.newest(one), checkpoint.newest(other)
    if first is None or second is None:
        return "there is no checkpoint"
    for name in sorted(set(first.arrays) | set(second.arrays)):
        a, b = first.arrays.get(name), second.arrays.get(name)
        if a is None or b is None or (a.dtype, a.shape, a.tobytes()) != (b.dtype, b.shape, b.tobytes()):
            return f"the state: {name}"
    for place, (a, b) in enumerate(zip(History(one / "history.jsonl"), History(other / "history.jsonl"), strict=False)):
        if _untimed(a) != _untimed(b):
            return f"the history: record {place}"
    if len(History(one / "history.jsonl")) != len(History(other / "history.jsonl")):
        return "the history: its length"
    headers = [{**saved.header, "tally": _untimed(saved.header["tally"])} for saved in (first, second)]
    if repr(headers[0]) != repr(headers[1]):  # NaN is not NaN
        return "the checkpoint's header"
    summaries = [_untimed(RunDirectory(folder).summary() or {}) for folder in (one, other)]
    return "" if summaries[0] == summaries[1] else "the summary"


def _untimed(record: dict[str, Any]) -> dict[str, Any]:
    """Returns a record without times and the memory of the process."""
    return {name: value for name, value in record.items() if "seconds" not in name and name != "peak_bytes"}


class Campaign:
    """Signals sent, and what came of them.

    Args:
        seed: of instants and signals.
        count: signals.
        folder: for the runs.
        in_time: whether there is time for another one.
    """

    def __init__(self, seed: int, count: int, folder: Path, in_time: Callable[[], bool]):
        self.count, self.folder, self.in_time = count, folder, in_time
        self.draw = random.Random(seed)
        self.sent = 0
        self.moments: collections.Counter[str] = collections.Counter()
        self.slowest = 0.0
        self.findings: list[dict[str, Any]] = []

    def more(self) -> bool:
        """Returns whether another signal is to be sent."""
        return self.sent < self.count and self.in_time()

    def job(self, command: Sequence[str], index: int) -> None:
        """Makes one job undisturbed, and disturbed."""
        work = self.folder / str(index)
        work.mkdir()
        whole = Process([*command, "--out", "whole"], work / "whole.txt", self.folder / "cache")
        before = whole.wait_for("rounds", "the end")
        rounds = whole.wait_for("the end") - before
        self._note(index, command, fault(whole.end(None), None), whole.log)
        left = EACH
        for turn in range(100):
            process = Process([*command, "--out", "cut", "--resume"], work / f"{turn}.txt", self.folder / "cache")
            number = self.draw.choice(SIGNALS) if left and self.more() else None
            if number is not None:
                self._wait(process, before, rounds)
                number = number if process.process.poll() is None else None  # it was sooner
            ended = process.end(number)
            if number is not None:
                left, self.sent = left - 1, self.sent + 1
                self.moments[f"{signal.Signals(number).name} in {ended.moment}"] += 1
                self.slowest = max(self.slowest, ended.seconds if ended.code else 0.0)
            found = fault(ended, number)
            self._note(index, command, found, process.log)
            if ended.code == 0 or (found and number is None):
                break
        self._note(index, command, difference(work / "whole", work / "cut"), None)

    def _wait(self, process: Process, before: float, rounds: float) -> None:
        """Waits for a random instant."""
        if self.draw.random() < 0.5:
            instant = time.monotonic() + self.draw.uniform(0, before + rounds + 1)
        else:
            process.wait_for("rounds", "the end")
            instant = time.monotonic() + self.draw.uniform(0, rounds)
        while time.monotonic() < instant and process.process.poll() is None:
            time.sleep(0.003)

    def _note(self, index: int, command: Sequence[str], found: str, log: Path | None) -> None:
        """Keeps a finding, if it is one."""
        if found:
            told = "" if log is None else log.read_text(errors="replace")[-3000:]
            self.findings.append({"job": index, "what": found, "command": command, "told": told})
            print(f"{index}: {found}\n  jaxfl {' '.join(command)}\n{told}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a campaign, prints what it found, and returns 1 if that is anything."""
    options = parser(__doc__)
    options.add_argument("--count", type=int, default=200, help="signals")
    options.add_argument("--first", type=int, default=0, help="index of the first job")
    options.add_argument("--jobs", type=int, help="jobs; as many as the signals need if not given")
    given = options.parse_args(arguments)
    heed_signals()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        campaign, index = Campaign(given.seed, given.count, Path(name), until(given.minutes)), given.first
        with ended_by_interrupt():
            while campaign.more() and (given.jobs is None or index < given.first + given.jobs):
                campaign.job(words(given.seed, index), index)
                index += 1
    measure.write(
        {
            "campaign": "kills",
            "seed": given.seed,
            "first": given.first,
            "signals": campaign.sent,
            "jobs": index - given.first,
            "moments": dict(sorted(campaign.moments.items())),
            "slowest_end": round(campaign.slowest, 2),
            "findings": campaign.findings,
        },
        given.out,
    )
    return int(bool(campaign.findings))


if __name__ == "__main__":
    sys.exit(main())
