"""Fills the disk at random moments, then frees it and repeats the command: nothing is half written, nothing is lost.

    python -m experiments.reliability.disks --count 500 --out experiments/reliability/results/disks.jsonl
    python -m experiments.reliability.disks --count 6 --commands run,compare

A case is a command that writes: a run, with a page or without, a sweep, a comparison, saved data, an export. It runs
once undisturbed, and again in another folder, where from a random instant on no file can grow beyond a random size (the
system's limit of file sizes, which fails in the middle of a write as a full disk does). Then the limit is gone, and the
same command is repeated. Needs Linux.

A finding is: a traceback, or an exit status other than 0 and 2; a repeated command that fails; other content than that
of the undisturbed command, bit for bit (times apart); a picture, a page or an archive that is cut short; a file of the
user's in the folder that is not as it was; a file under the name of an unfinished one.
"""

import collections
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.reliability.campaign import ended_by_interrupt, heed_signals, parser, until
from experiments.reliability.kills import ROOT, difference
from experiments.speed import measure
from jaxfl.files import PARTIAL

PATIENCE = 300  # seconds that a command may take
SIZES = (0, 100, 1_000, 10_000, 40_000)  # bytes beyond which no file grows, of a full disk
SMALL = ["--data", "rotated-digits", "--rounds", "20", "--cohort", "4", "--set", "model=logistic"]
SMALL += ["--set", "num_clients=8", "--set", "rows_per_client=20"]
EXPORT = "import jaxfl; jaxfl.load('{base}/seed-0').export('weights.safetensors', client=0)"
TABLES = ["--csv", "t.csv", "--markdown", "t.md", "--latex", "t.tex", "--plot", "p.png", "--html", "p.html"]
COMMANDS: dict[str, list[str]] = {  # in the folder of a case; {base} has finished runs
    "run": [
        "run",
        "ifca",
        *SMALL,
        "--set",
        "num_clusters=2",
        "--eval-every",
        "1",
        "--checkpoint-every",
        "1",
        "--out",
        "a",
        "--resume",
    ],
    "html": ["run", "fedavg", *SMALL, "--eval-every", "4", "--out", "a", "--resume", "--html", "--log", "csv"],
    "sweep": ["sweep", "fedavg,local", *SMALL, "--seeds", "0,1", "--out", "a", "--html"],
    "compare": ["compare", "{base}", *TABLES, "--replace"],
    "data": ["data", "digits", "--save", "d.npz"],
    "federation": ["data", "iid-digits", "--save", "d", "--plot"],
    "export": ["-c", EXPORT],
}
ONCE = ("federation",)  # commands that are refused where they are done
ENDS = {".png": b"IEND\xaeB`\x82", ".html": b"</html>\n", ".tex": b"\\end{tabular}\n"}
NOTE = "mine"


def start(name: str, base: Path, folder: Path, cache: Path) -> subprocess.Popen[str]:
    """Starts a command of `COMMANDS` in a folder."""
    words = [word.format(base=base) for word in COMMANDS[name]]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "MPLBACKEND": "Agg"}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environment.pop("XLA_FLAGS", None)
    program = [sys.executable, *([] if words[0] == "-c" else ["-m", "jaxfl.cli"]), *words]
    return subprocess.Popen(
        program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
        cwd=folder, text=True, errors="replace",
    )  # fmt: skip


def fault(name: str, code: int, told: str, full: bool) -> str:
    """Returns what is wrong with the end of a command; nothing if it is as it should be.

    >>> fault("run", 2, "error: No space", True), fault("run", 2, "error: No space", False), fault("data", 1, "", True)
    ('', 'run ended with 2', 'data ended with 1')
    """
    imports = "No usable temporary directory" in told  # of a package that jaxfl imports, before its own code runs
    python = name == "export" or imports  # a call in Python, whose error has a traceback
    if "Exception ignored" in told or (
        "Traceback" in told and not (python and full and ("OSError" in told or imports))
    ):
        return f"{name}: a traceback"
    return "" if code in ((0, 1 if python else 2) if full else (0,)) else f"{name} ended with {code}"


def cut_short(folder: Path) -> str:
    """Returns the name of a file that is not whole; nothing if all are."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        end = ENDS.get(path.suffix)
        if end is not None and not path.read_bytes().endswith(end):
            return f"{path.relative_to(folder)} is cut short"
        if path.suffix == ".npz" and not zipfile.is_zipfile(path):
            return f"{path.relative_to(folder)} is no archive"
    return ""


def left_over(folder: Path) -> str:
    """Returns what is in a folder that should not be there, or is not as it was; nothing if all is well."""
    if any(path.read_text() != NOTE for path in folder.rglob("mine.txt")) or not (folder / "mine.txt").exists():
        return "the user's file has changed"
    return next((f"{path.name} is left" for path in folder.rglob(f"{PARTIAL}*")), "")


def other_content(name: str, whole: Path, again: Path) -> str:
    """Returns in what two folders differ, times apart; nothing if they do not."""
    names = [{str(path.relative_to(folder)) for path in folder.rglob("*")} for folder in (whole, again)]
    if found := sorted(one for one in names[0] ^ names[1] if "checkpoint" not in one):
        return f"the files: {found[0]}"
    for path in sorted(whole.rglob("summary.json")):
        if (path.parent / "history.jsonl").exists() and (
            found := difference(path.parent, again / path.parent.relative_to(whole))
        ):
            return found
    same = ("clients.csv", "t.csv", "t.md", "t.tex", "weights.safetensors", "d.npz")
    for path in sorted(path for path in whole.rglob("*") if path.name in same or path.suffix == ".npy"):
        if _content(path) != _content(again / path.relative_to(whole)):
            return f"{path.name} is another"
    return ""


def _content(path: Path) -> bytes:
    """Returns the bytes of a file; of safetensors without the header, whose entries have any order."""
    content = path.read_bytes()
    return content[8 + int.from_bytes(content[:8], "little") :] if path.suffix == ".safetensors" else content


class Campaign:
    """Full disks, and what came of them.

    Args:
        seed: of instants and sizes.
        folder: for the cases.
    """

    def __init__(self, seed: int, folder: Path):
        self.folder, self.draw = folder, random.Random(seed)
        self.cases: collections.Counter[str] = collections.Counter()
        self.failed = 0
        self.findings: list[dict[str, Any]] = []
        self._seconds: dict[str, float] = {}
        self.base = folder / "base"
        subprocess.run(
            [sys.executable, "-m", "jaxfl.cli", "run", "fedavg", *SMALL, "--seeds", "0,1", "--out", str(self.base)],
            check=True, capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        )  # fmt: skip

    def case(self, name: str) -> None:
        """Fills the disk once in a command, and repeats it."""
        whole = self.folder / f"{name}-whole"
        if name not in self._seconds:
            self._seconds[name] = self._whole(name, whole)
        work = self._folder(f"{name}-{sum(self.cases.values())}")
        instant = self.draw.uniform(0.3, 1.0) * self._seconds[name]  # Python and JAX have been imported by then
        size = self.draw.choice(SIZES)
        process = start(name, self.base, work, self.folder / "cache")
        time.sleep(instant)
        if process.poll() is None:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        told = process.communicate(timeout=PATIENCE)[0]
        self.failed += bool(process.returncode)
        self._note(name, [fault(name, process.returncode, told, True), cut_short(work)], told)
        found = ""
        if process.returncode or name not in ONCE:
            again = start(name, self.base, work, self.folder / "cache")
            told = again.communicate(timeout=PATIENCE)[0]
            found = fault(name, again.returncode, told, False)
        self._note(name, [found or cut_short(work) or left_over(work) or other_content(name, whole, work)], told)
        self.cases[name] += 1

    def _whole(self, name: str, folder: Path) -> float:
        """Runs a command undisturbed, twice: what it compiles is kept. Returns the seconds of the second time."""
        for turn in ("first", "whole"):
            began, place = time.monotonic(), self._folder(f"{name}-{turn}")
            process = start(name, self.base, place, self.folder / "cache")
            told = process.communicate(timeout=PATIENCE)[0]
            self._note(name, [fault(name, process.returncode, told, False)], told)
        return time.monotonic() - began

    def _folder(self, name: str) -> Path:
        """Returns a new folder with a file of the user's."""
        place = self.folder / name
        place.mkdir()
        (place / "mine.txt").write_text(NOTE)
        return place

    def _note(self, name: str, found: Sequence[str], told: str) -> None:
        """Keeps findings, if there are any."""
        for what in filter(None, found):
            self.findings.append({"case": sum(self.cases.values()), "what": f"{name}: {what}", "told": told[-3000:]})
            print(f"{name}: {what}\n{told[-3000:]}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a campaign, prints what it found, and returns 1 if that is anything."""
    options = parser(__doc__)
    options.add_argument("--count", type=int, default=500, help="cases")
    options.add_argument("--commands", default=",".join(COMMANDS), help="of which cases are made, in turn")
    given = options.parse_args(arguments)
    heed_signals()
    names, in_time = given.commands.split(","), until(given.minutes)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        campaign = Campaign(given.seed, Path(name))
        with ended_by_interrupt():
            for index in range(given.count):
                if not in_time():
                    break
                campaign.case(names[index % len(names)])
    measure.write(
        {
            "campaign": "disks",
            "seed": given.seed,
            "cases": dict(campaign.cases),
            "failed": campaign.failed,
            "findings": campaign.findings,
        },
        given.out,
    )
    return int(bool(campaign.findings))


if __name__ == "__main__":
    sys.exit(main())
