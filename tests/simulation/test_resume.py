"""Ended runs go on bit for bit: the state and the history are those of a run that nothing happened to.

The short form of the campaign `experiments.reliability.kills`, whose findings these are: at exact moments, and with one
process whose children are the runs, so that all is imported once.
"""

import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

import jaxfl
from experiments.reliability import kills
from jaxfl.simulation.records import checkpoint
from jaxfl.simulation.records.history import History

# Signals its own process: after a checkpoint, inside the compiled rounds, or between the writing of a checkpoint and
# its renaming.
RUN = """
import os, signal, sys, threading
import jax, optax, flax.linen, matplotlib.pyplot, sklearn.datasets
import jaxfl.cli.app
from jaxfl import cli
from jaxfl.simulation.records import checkpoint
from jaxfl.simulation.callbacks import ProgressBar

for line in sys.stdin:
    out, number, round, moment, *words = line.rstrip("\\n").split("\\t")
    if not (child := os.fork()):
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()

signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests run behind a shell's &
said = os.open(out + ".txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
os.dup2(said, 1), os.dup2(said, 2)
end = lambda: os.kill(os.getpid(), int(number))
call, replace = ProgressBar.__call__, os.replace

def looking_on(self, event):
    call(self, event)
    if event.round >= int(round) and moment == "between rounds":
        end()
    if event.round >= int(round) and moment == "inside rounds":
        threading.Timer(0.001, end).start()

def replacing(source, target):
    if moment == "inside a checkpoint" and str(target).endswith(checkpoint.NAME):
        end()
    replace(source, target)

ProgressBar.__call__ = looking_on
os.replace = replacing
cli.main([*words, "--out", out])
"""
ROUNDS = 24
COMMAND = ["run", "ifca", "--data", "rotated-digits", "--rounds", str(ROUNDS), "--cohort", "3", "--eval-every", "4"]
COMMAND += ["--checkpoint-every", "3"]
for item in ("num_clients=12", "rows_per_client=20", "batch_size=4", "model=logistic", "num_clusters=2"):
    COMMAND += ["--set", item]
MOMENTS = [
    (signal.SIGKILL, 6, "between rounds"),
    (signal.SIGTERM, 8, "inside rounds"),
    (signal.SIGUSR1, 9, "between rounds"),
    (signal.SIGINT, 12, "between rounds"),
    (signal.SIGHUP, 13, "inside rounds"),
    (signal.SIGKILL, 14, "inside rounds"),
    (signal.SIGKILL, 0, "inside a checkpoint"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Returns a function that makes a run in a folder and ends it by a signal at a moment; and a whole run's folder."""
    folder = tmp_path_factory.mktemp("runs")
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "JAX_COMPILATION_CACHE_DIR": str(folder)}
    with subprocess.Popen(
        [sys.executable, "-c", RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:

        def run(name, *words, number=0, round=0, moment="never"):
            parent.stdin.write("\t".join([str(folder / name), str(int(number)), str(round), moment, *words]) + "\n")
            parent.stdin.flush()
            code = int(parent.stdout.readline())
            return kills.Ended(code, "rounds", 0.0, (folder / f"{name}.txt").read_text())

        assert kills.fault(run("whole", *COMMAND), None) == ""
        yield run, folder
        parent.stdin.close()


@pytest.mark.slow
def test_ended_runs_resume_bit_for_bit(runs):
    run, folder = runs
    reached = []
    for number, round, moment in MOMENTS:
        ended = run("ended", *COMMAND, "--resume", number=number, round=round, moment=moment)
        assert kills.fault(ended, number) == "", ended
        saved = [record["round"] for record in History(folder / "ended" / "history.jsonl")]
        assert saved == sorted(saved) and all(done in range(4, 25, 4) for done in saved)
        reached.append(checkpoint.newest(folder / "ended").header["round"])
    assert reached[0] == 6 and reached == sorted(reached) and reached[-1] < ROUNDS
    assert kills.fault(run("ended", *COMMAND, "--resume"), None) == ""
    assert kills.difference(folder / "whole", folder / "ended") == ""
    assert History(folder / "whole" / "history.jsonl").column("round") == [4, 8, 12, 16, 20, 24]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Returns the folder of a run of a few rounds."""
    folder = tmp_path_factory.mktemp("whole")
    few = {"num_clients": 12, "rows_per_client": 20, "model": "logistic", "num_clusters": 2}
    jaxfl.run_named("ifca", "rotated-digits", rounds=4, cohort=3, eval_every=2, out=folder, **few)
    return folder


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("nothing", ""),
        ("array", "the state: .models['Dense_0']['bias']"),
        ("header", "the checkpoint's header"),
        ("record", "the history: record 0"),
        ("length", "the history: its length"),
        ("summary", "the summary"),
    ],
)
def test_what_a_resumed_run_may_not_differ_in(what, found, whole, monkeypatch, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(whole, other)
    saved = checkpoint.newest(other)
    if what == "array":
        name = ".models['Dense_0']['bias']"
        saved = saved._replace(arrays={**saved.arrays, name: saved.arrays[name] + np.float32(1e-7)})
    elif what == "header":
        saved = saved._replace(header={**saved.header, "round": 23})
    elif what == "summary":
        summary = other / "summary.json"
        summary.write_text(json.dumps({**json.loads(summary.read_text()), "micro_accuracy": 2, "total_seconds": 9}))
    elif what in ("record", "length"):
        lines = (other / "history.jsonl").read_text().splitlines()
        lines[0] = json.dumps({**json.loads(lines[0]), "seconds": 9, "diverged": 7 if what == "record" else 0})
        (other / "history.jsonl").write_text("\n".join(lines[:-1] if what == "length" else lines) + "\n")
    both = {whole: checkpoint.newest(whole), other: saved}
    monkeypatch.setattr(kills.checkpoint, "newest", both.get)
    assert kills.difference(whole, other) == found
