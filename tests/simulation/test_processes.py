"""Two processes of two CPU devices each, on the loopback, make the runs of one process."""

import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl.cli import app
from jaxfl.data.synthetic import clustered_linear
from jaxfl.simulation.interrupts import Stopped
from jaxfl.simulation.records import checkpoint
from jaxfl.simulation.records.shared import SharedDirectory
from jaxfl.simulation.rounds import Rounds
from jaxfl.testing.compare import assert_close
from jaxfl.testing.small import linear_task
from tests.messages import mentions

ROOT = Path(__file__).parents[2]
COMMAND = ["run", "ifca", "--data", "rotated-digits", "--rounds", "2", "--cohort", "3", "--set"]
COMMAND += ["model=logistic", "--set", "num_clients=8", "--set", "num_clusters=2"]
OPTIONS = {"rounds": 4, "cohort": 5, "eval_every": 2, "seed": 2}


@functools.cache
def method():
    """Returns StoCFL, which finds clusters, and whose slots double on the way."""
    local = {"local_epochs": 1, "batch_size": 4}
    return jaxfl.methods.stocfl(linear_task(), optax.sgd(0.3), slots=8, threshold=0.99, **local)


def run(**options):
    """Returns a small run; four devices cannot share its five clients evenly."""
    data = clustered_linear(8, rows=8, features=4, ragged=True)
    return jaxfl.run(method(), data, **{**OPTIONS, **options})


def command(folder, *words):
    """Makes a run by the command line, its rows resident; returns the exit code."""
    with pytest.raises(SystemExit) as left:
        app.main([*COMMAND, "--out", str(folder), *words])
    return left.value.code


def make_all(number, coordinator, folder):
    """What one of two processes does: a command, which makes them two; a run; a signal to the second one; a refusal."""
    folder = Path(folder) / str(number)  # of its own, as on a host of its own
    told: dict[str, Any] = {}
    hosts = ["--set", "devices=all", "--processes", "2", "--process", str(number), "--coordinator", coordinator]
    told["code"], called = command(folder / "command", *hosts), []
    options = {"resident": False, "devices": "all"}
    result = run(callbacks=[called.append], **options)
    told |= {"summary": result.summary, "called": len(called)}
    advance = Rounds.advance

    def advance_and_be_asked_to_stop(self, state, count):
        state, made = advance(self, state, 1)
        if number == 1 and int(state.round) == 3:
            signal.raise_signal(signal.SIGINT)
        return state, made

    signal.signal(signal.SIGINT, signal.default_int_handler)
    Rounds.advance = advance_and_be_asked_to_stop
    with pytest.raises(Stopped) as stopped:
        run(checkpoint_dir=folder / "stopped", **options)
    told["stopped"] = [stopped.value.round, stopped.value.saved, stopped.value.number]
    Rounds.advance = advance
    if number == 0:
        shutil.copytree(folder / "stopped", folder / "resumed")
    resumed = run(checkpoint_dir=folder / "resumed", resume=True, **options)
    directory = SharedDirectory(folder / "resumed", "out")
    directory.check({"method": "stocfl"}, resume=True)
    told["resumed"] = [resumed.history.column("round"), directory.done()]
    with pytest.raises(ValueError, match=mentions("out", "history.jsonl", "resume=True")):
        directory.check({}, resume=False)
    leaves = map(np.asarray, jax.tree.leaves((result.state, resumed.state)))
    np.savez(folder.with_name(f"{number}.npz"), *leaves)
    with pytest.raises(ValueError, match=mentions("process 1", "process 0")):
        run(seed=number)
    print(json.dumps(told))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Returns what each of the two processes says, and the folder of their files."""
    folder = tmp_path_factory.mktemp("pair")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    code = """
import sys
from tests.simulation.test_processes import make_all
make_all(int(sys.argv[1]), *sys.argv[2:])
"""
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(number), coordinator, str(folder)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    said = [process.communicate(timeout=600) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    return [json.loads(out.splitlines()[-1]) for out, _ in said], [out + err for out, err in said], folder


@pytest.mark.slow
def test_two_processes_make_what_one_makes(pair):
    told, _, folder = pair
    alone = run()
    for number, one in enumerate(told):
        with np.load(folder / f"{number}.npz") as saved:
            assert_close([*saved.values()], 2 * jax.tree.leaves(alone.state), f"process {number}")
        assert (one["summary"]["processes"], one["summary"]["devices"], one["summary"]["resident"]) == (2, 4, False)
        for name in ("num_clusters", "updates", "micro_accuracy", "mean_participants"):
            assert one["summary"][name] == alone.summary[name]


@pytest.mark.slow
def test_the_command_makes_them_one_run_whose_first_process_writes_and_speaks(pair, tmp_path):
    told, said, folder = pair
    assert [one["code"] for one in told] == [0, 0] == [command(tmp_path), 0]
    assert ["ifca on rotated-digits" in one for one in said] == [True, False]
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["0"]
    two, one = folder / "0" / "command", tmp_path
    assert {path.name for path in two.iterdir()} == {path.name for path in one.iterdir()}
    assert_close(checkpoint.newest(two).arrays, checkpoint.newest(one).arrays, "the command's state")
    summary = json.loads((two / "summary.json").read_text())
    assert (summary["processes"], summary["devices"], summary["resident"]) == (2, 4, True)
    assert told[0]["called"] > 0 == told[1]["called"]


@pytest.mark.slow
def test_a_signal_to_one_stops_both_and_any_number_goes_on(pair):
    told, _, folder = pair
    assert [one["stopped"] for one in told] == [[3, 3, signal.SIGINT]] * 2
    assert [one["resumed"] for one in told] == [[[2, 4], 4]] * 2
    resumed = run(checkpoint_dir=folder / "0" / "stopped", resume=True)
    assert_close(resumed.state, run().state, "the resumed run")
    assert resumed.history.column("round") == [2, 4] and resumed.summary["processes"] == 1
