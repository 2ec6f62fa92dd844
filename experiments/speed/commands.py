"""Whole commands, as somebody types them: each in a process of its own, from its start to its end, pictures included.

The first time with an empty cache folder: programs are compiled, and matplotlib looks for fonts. Then again, with what
the first time has left there.

    python -m experiments.speed.commands digits
    python -m experiments.speed.commands mnist --data-dir DIR --again 0
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.speed import measure

COMMANDS = {
    "digits": ("StoCFL on the digits", "run stocfl --data rotated-digits"),
    "mnist": (
        "StoCFL on rotated MNIST: 1,200 clients of 200 rows, 120 a round, 784-2048-10, five full-batch steps",
        "run stocfl --data rotated-mnist --data-dir DIR --set threshold=auto",
    ),
    "mnist-rounds": (
        "StoCFL on rotated MNIST as above, twelve rounds and one evaluation",
        "run stocfl --data rotated-mnist --data-dir DIR --set threshold=auto --rounds 12 --eval-every 12",
    ),
}
KEPT = ("rounds", "seconds_per_round", "compile_seconds", "evaluation_seconds", "micro_accuracy", "ari")


def timed(command: str, data_dir: Path | None, out: Path, cache: Path) -> tuple[float, dict[str, Any]]:
    """Runs `jaxfl` once, and returns the seconds that it took and some of the run's summary.

    Raises:
        SystemExit: it failed.
    """
    words = command.replace("DIR", str(data_dir)).split()
    began = time.perf_counter()
    made = subprocess.run(
        [sys.executable, "-m", "jaxfl", *words, "--out", str(out)],
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    took = time.perf_counter() - began
    if made.returncode:
        raise SystemExit(f"jaxfl {' '.join(words)} failed:\n{made.stderr}")
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    return took, {name: summary[name] for name in KEPT}


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the commands that are named, and writes a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=list(COMMANDS), metavar="NAME", help=", ".join(COMMANDS))
    parser.add_argument("--data-dir", type=Path, help="the folder of MNIST's files, or the one above it")
    parser.add_argument("--again", type=int, default=2, help="times after the first one")
    parser.add_argument("--out", type=Path, help="file that gets the JSON line appended")
    options = parser.parse_args(arguments)
    records = []
    for name in options.names:
        what, command = COMMANDS[name]
        if "DIR" in command and options.data_dir is None:
            parser.error(f"{name} needs --data-dir")
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            runs = [
                timed(command, options.data_dir, place / f"run-{number}", place / "cache")
                for number in range(1 + options.again)
            ]
        record = {
            "workload": name,
            "what": what,
            "command": f"jaxfl {command}",
            "first_seconds": runs[0][0],
            "again_seconds": [seconds for seconds, _ in runs[1:]],
            "summary": runs[0][1],
        }
        print(f"{record['command']}: {', '.join(f'{seconds:.1f}' for seconds, _ in runs)} s")
        records.append(measure.write(record, options.out))
    return records


if __name__ == "__main__":
    main()
