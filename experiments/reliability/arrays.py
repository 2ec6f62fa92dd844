"""Several processes on the folder of one sweep, some of them killed: every run is made once, as by one process.

    python -m experiments.reliability.arrays --count 50 --out experiments/reliability/results/arrays.jsonl
    python -m experiments.reliability.arrays --count 1 --processes 3

A case is a sweep that as many processes begin at once. A quarter of them, at most all but one, get SIGKILL at random
instants. The others must end with 0.

A finding is: another exit status; a traceback; a run with another state or history than in the same sweep by one
process, bit for bit (times apart); a summary over the seeds that lacks one; a file under the name of an unfinished one.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.reliability.campaign import ended_by_interrupt, heed_signals, parser, until
from experiments.reliability.disks import SMALL, cut_short
from experiments.reliability.kills import ROOT, difference
from experiments.speed import measure
from jaxfl.files import PARTIAL
from jaxfl.simulation.records.directory import RunDirectory

PATIENCE = 600  # seconds that a process may take
WORDS = ["sweep", "fedavg,ifca", *SMALL, "--seeds", "0,1,2", "--set", "ifca.num_clusters=2", "--html"]


def start(folder: Path, log: Path, cache: Path) -> subprocess.Popen[bytes]:
    """Starts a process of the sweep."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "MPLBACKEND": "Agg"}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environment.pop("XLA_FLAGS", None)
    with log.open("w") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "jaxfl.cli", *WORDS, "--out", str(folder)],
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment,
        )  # fmt: skip


def difference_of_sweeps(one: Path, other: Path) -> str:
    """Returns in what two folders of a sweep differ, times apart; nothing if they do not."""
    cells = [{path.parent.relative_to(folder) for path in folder.glob("*/*/summary.json")} for folder in (one, other)]
    if cells[0] != cells[1]:
        return f"runs are missing: {', '.join(map(str, cells[0] ^ cells[1]))}"
    for cell in sorted(cells[0]):
        if found := difference(one / cell, other / cell):
            return f"{cell}: {found}"
    for setting in sorted({cell.parent for cell in cells[0]}):
        seeds = [(RunDirectory(folder / setting).summary() or {}).get("seeds") for folder in (one, other)]
        if seeds[0] != seeds[1]:
            return f"{setting}: the summary has the seeds {seeds[1]}"
    return cut_short(other)


def case(folder: Path, whole: Path, count: int, seconds: float, draw: random.Random) -> tuple[int, list[str]]:
    """Runs a sweep by several processes; returns how many were killed, and what is wrong.

    Args:
        folder: for the sweep and the logs.
        whole: the sweep by one process.
        count: processes.
        seconds: that one process takes.
        draw: of the instants.
    """
    logs = [folder / f"{index}.txt" for index in range(count)]
    processes = [start(folder / "a", log, folder.parent / "cache") for log in logs]
    began, killed = time.monotonic(), set()
    for instant, index in sorted((draw.uniform(0.2, 1.5) * seconds, index) for index in range(count // 4)):
        time.sleep(max(0.0, began + instant - time.monotonic()))
        if processes[index].poll() is None:
            processes[index].send_signal(signal.SIGKILL)
            killed.add(index)
    found = []
    for index, (process, log) in enumerate(zip(processes, logs, strict=True)):
        code = process.wait(PATIENCE)
        told = log.read_text(errors="replace")
        if index not in killed and (code or "Traceback" in told):
            found.append(f"process {index} ended with {code}: {told[-2000:]}")
    found.append(difference_of_sweeps(whole, folder / "a"))
    found += [f"{path} is left" for path in (folder / "a").rglob(f"{PARTIAL}*")] if not killed else []
    return len(killed), list(filter(None, found))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a campaign, prints what it found, and returns 1 if that is anything."""
    options = parser(__doc__)
    options.add_argument("--count", type=int, default=50, help="sweeps")
    options.add_argument("--processes", type=int, default=8, help="of each sweep")
    given = options.parse_args(arguments)
    heed_signals()
    draw, in_time, killed, done = random.Random(given.seed), until(given.minutes), 0, 0
    findings: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder, seconds = Path(name), 0.0
        for turn in ("first", "whole"):  # what is compiled is kept
            began = time.monotonic()
            if code := start(folder / turn, folder / f"{turn}.txt", folder / "cache").wait(PATIENCE):
                raise RuntimeError(f"ended with {code}: {(folder / f'{turn}.txt').read_text()}")
            seconds = time.monotonic() - began
        with ended_by_interrupt():
            for index in range(given.count):
                if not in_time():
                    break
                (folder / str(index)).mkdir()
                ended, found = case(folder / str(index), folder / "whole", given.processes, seconds, draw)
                killed, done = killed + ended, done + 1
                findings += [{"case": index, "what": what} for what in found]
                print(*found, sep="\n", end="" if not found else "\n", flush=True)
    record = {"campaign": "arrays", "seed": given.seed, "sweeps": done, "processes": done * given.processes}
    measure.write({**record, "killed": killed, "findings": findings}, given.out)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
