"""The accelerator kit: what one GPU says of jaxfl, in one command that needs its checkout and a folder of data alone.

    python -m experiments.speed.accelerator --data-dir DIR --out OUT --minutes 40
    python -m experiments.speed.accelerator --smoke --out OUT          # toy sizes, on a CPU too

Every part runs in a process of its own, so that none can take another one with it, and leaves one line in
`OUT/accelerator.jsonl`: its records, or why there are none. A part that has a line is not run again, so the same
command goes on where it was stopped; `--only w2,w6` chooses parts, `--again` makes them anew.

| part | what |
|---|---|
| machine | versions, float32 / tf32 / bfloat16 matrix products, copy |
| precision | the same ten rounds on the CPU and the device, at each precision of matrix products |
| reductions | sums of clients by cluster: one-hot product, segment sum |
| battery | every law of every method, and the float64 loops, on the device |
| launch | small models' rounds with several options of XLA: command buffers, loops in them; `--further` has more arms |
| w1 w2 w3 w5 w6 w7 w8 w9 | the workloads, with the automatic chunk and a sweep of chunks |
| seeds | five seeds in one program beside one seed |
| scaling | the curves of `jaxfl bench scaling` |
| table1 | what is missing of StoCFL's tables of MNIST at paper scale, four runs at a time, as many as time allows |
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.speed import accelerator_parts
from experiments.speed import accelerator_workloads as workloads
from experiments.speed.accelerator_parts import Setting

RESULTS = "accelerator.jsonl"
PARTS: dict[str, tuple[Callable[[Setting], None], int]] = {  # with the seconds that it may take
    "machine": (accelerator_parts.machine, 60),
    "precision": (accelerator_parts.precision, 120),
    "reductions": (accelerator_parts.reductions, 60),
    "battery": (accelerator_parts.battery, 270),
    "launch": (workloads.launch, 360),
    "w6": (workloads.w6, 240),
    "w2": (workloads.w2, 150),
    "w3": (workloads.w3, 130),
    "w8": (workloads.w8, 120),
    "w5": (workloads.w5, 120),
    "w1": (workloads.w1, 240),
    "w7": (workloads.w7, 240),
    "w9": (workloads.w9, 330),
    "seeds": (workloads.seeds, 150),
    "scaling": (workloads.scaling, 270),
    "table1": (workloads.table1, 900),
}


def run_part(name: str, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Runs a part in a process of its own; returns its line."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "experiments.speed.accelerator", "--part", name, "--out", str(options.out)]
    command += ["--seconds", str(seconds), *(["--smoke"] if options.smoke else [])]
    command += ["--data-dir", options.data_dir] if options.data_dir else []
    command += ["--chunks", *map(str, options.chunks)] if options.chunks else []
    command += ["--further"] if options.further else []
    # peers share the device, and parts start others: nobody takes three quarters of the memory at once
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONUNBUFFERED": "1"}
    log = options.out / f"{name}.log"
    with log.open("w") as file:
        child = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
        try:
            code = child.wait(seconds + 20)  # parts that watch the time themselves end before
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
    text = log.read_text(errors="replace")
    records = accelerator_parts.records_in(text)
    line = {"part": name, "exit": code, "seconds": time.perf_counter() - began, "records": records}
    return line if code == 0 else {**line, "log": text[-3000:]}


def done(out: Path) -> set[str]:
    """Returns the parts that have a line."""
    file = out / RESULTS
    return {json.loads(line)["part"] for line in file.read_text().splitlines()} if file.exists() else set()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what has no line yet; returns 1 if a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--data-dir", help="folder that holds mnist/; without it table1 is left out")
    parser.add_argument("--minutes", type=float, default=40, help="after which no part is begun")
    parser.add_argument("--only", help="comma-separated parts")
    parser.add_argument("--again", action="store_true", help="make parts that have a line anew")
    parser.add_argument("--smoke", action="store_true", help="toy sizes")
    parser.add_argument("--chunks", type=int, nargs="+", help="of the sweeps, in place of the parts' own")
    parser.add_argument("--further", action="store_true", help="the other arms of launch, with convolutions too")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=600, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.part:
        chunks = tuple(options.chunks) if options.chunks else None
        PARTS[options.part][0](
            Setting(options.smoke, options.data_dir, options.out, options.seconds, chunks, options.further)
        )
        return 0
    wanted = list(PARTS) if options.only is None else options.only.split(",")
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        parser.error(f"--only must name parts among {', '.join(PARTS)}, got {unknown[0]!r}.")
    began, failed = time.perf_counter(), 0
    there = set() if options.again else done(options.out)
    for name in wanted:
        left = options.minutes * 60 - (time.perf_counter() - began)
        if name in there or left < 20 or (name == "table1" and not (options.data_dir or options.smoke)):
            continue
        line = run_part(name, options, min(PARTS[name][1], left - 15))
        with (options.out / RESULTS).open("a") as file:
            file.write(json.dumps(line) + "\n")
        failed += line["exit"] != 0
        print(f"{name}: exit {line['exit']}, {line['seconds']:.0f} s, {len(line['records'])} records", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
