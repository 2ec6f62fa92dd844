"""Killed runs go on bit for bit: the state and the history are those of a run that nothing happened to."""

import json
import os
import signal
import subprocess
import sys

from jaxfl.simulation import checkpoint

# Kills its own process, so that the moment is exact: after a checkpoint, inside the compiled rounds, or between the
# writing of a checkpoint and its renaming.
RUN = """
import os, signal, sys, threading
from jaxfl.simulation import checkpoint
from jaxfl import cli
from jaxfl.simulation.callbacks import ProgressBar

moment, round = sys.argv[1], int(sys.argv[2])
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
call, replace = ProgressBar.__call__, os.replace

def looking_on(self, event):
    call(self, event)
    if event.round >= round and moment == "between rounds":
        die()
    if event.round >= round and moment == "inside rounds":
        threading.Timer(0.001, die).start()

def replacing(source, target):
    if moment == "inside a checkpoint" and str(target).endswith(checkpoint.NAME):
        die()
    replace(source, target)

ProgressBar.__call__ = looking_on
os.replace = replacing
cli.main(sys.argv[3:])
"""
COMMAND = ["run", "ifca", "--data", "rotated-digits", "--rounds", "24", "--cohort", "3", "--eval-every", "4"]
COMMAND += [
    "--checkpoint-every",
    "3",
    "--set",
    "num_clients=12",
    "--set",
    "rows_per_client=20",
    "--set",
    "batch_size=4",
]
COMMAND += ["--set", "model=logistic", "--set", "num_clusters=2"]
TIMES = ("seconds", "seconds_per_round")


def start(moment, round, out, *options):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "MPLBACKEND": "Agg"}
    environment.pop("XLA_FLAGS", None)
    # what one process has compiled, the next need not
    environment |= {
        "JAX_COMPILATION_CACHE_DIR": str(out.parent / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return subprocess.Popen(
        [sys.executable, "-c", RUN, moment, str(round), *COMMAND, "--out", str(out), *options],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def finish(process):
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def history(out):
    records = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name not in TIMES} for record in records]


def arrays(out):
    saved = checkpoint.newest(out)
    return saved.arrays, saved.header


def test_killed_runs_resume_bit_for_bit(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    code, output = finish(start("never", 0, whole))  # to its end: the others need not compile what it has
    assert code == 0, output
    moments = [("between rounds", 6), ("inside rounds", 9), ("inside a checkpoint", 0)]
    reached = []
    for number, (moment, round) in enumerate(moments):
        code, output = finish(start(moment, round, killed, *(["--resume"] if number else [])))
        assert code == -signal.SIGKILL, (moment, output)
        _, header = arrays(killed)
        reached.append(header["round"])
        saved = [record["round"] for record in history(killed)]
        assert saved == sorted(saved) and all(round in range(4, 25, 4) for round in saved)
    assert reached[0] == 6 and reached == sorted(reached) and reached[-1] < 24
    code, output = finish(start("never", 0, killed, "--resume"))
    assert code == 0, output

    expected, header = arrays(whole)
    found, resumed_header = arrays(killed)
    assert set(found) == set(expected) and len(expected) > 2
    for name in expected:
        assert found[name].dtype == expected[name].dtype
        assert found[name].tobytes() == expected[name].tobytes(), name
    assert resumed_header["identity"] == header["identity"] and resumed_header["round"] == 24
    assert history(killed) == history(whole)
    assert [record["round"] for record in history(whole)] == [4, 8, 12, 16, 20, 24]
