"""Two processes of two CPU devices each, on the loopback, make the runs of one process."""

import json
import os
import signal
import socket
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

import jaxfl
from jaxfl.simulation.interrupts import Stopped
from jaxfl.testing.compare import assert_close

# Everything that two processes do, in one pair: the command line first, which makes them a pair.
PAIR = """
import os, signal, sys
import jax
import numpy as np
from tests.simulation import test_processes as tests

number, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
mine = os.path.join(folder, str(number))
from jaxfl.cli import app
try:
    app.main([*tests.COMMAND, "--out", mine + "/command", "--processes", "2", "--process", str(number), "--coordinator",
              "127.0.0.1:" + port])
except SystemExit as left:
    assert not left.code, left.code
assert jax.process_count() == 2 and jax.device_count() == 4
for name, options in tests.RUNS.items():
    result = tests.run(name, checkpoint_dir=os.path.join(mine, name), **options)
    np.savez(mine + name, *map(np.asarray, jax.tree.leaves(result.state)))
    assert (result.summary["processes"], result.summary["devices"]) == (2, 4)
    assert result.summary["resident"] == options.get("resident", True)
from jaxfl.simulation.rounds import Rounds
advance = Rounds.advance
def advance_and_be_asked_to_stop(self, state, count):
    made = advance(self, state, count)
    if number == 1 and int(made[0].round) >= 3:
        signal.raise_signal(signal.SIGINT)
    return made
Rounds.advance = advance_and_be_asked_to_stop
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    tests.run("ifca", checkpoint_dir=os.path.join(mine, "stopped"))
except tests.Stopped as stopped:
    print("stopped", stopped.round, stopped.saved, flush=True)
Rounds.advance = advance
if number:
    tests.OPTIONS["seed"] = 3  # not what the other one does
try:
    tests.run("fedavg")
except ValueError as error:
    print(error, flush=True)
"""
COMMAND = ["run", "fedavg", "--data", "rotated-digits", "--rounds", "2", "--set", "num_clients=6", "--set", "model=logistic"]
OPTIONS = {"rounds": 4, "cohort": 5, "eval_every": 2, "seed": 2}
RUNS = {"fedavg": {}, "ifca": {}, "stocfl": {"resident": False}}


def run(name, **options):
    """Returns a small run of a method; five clients, which four devices cannot share evenly."""
    data = jaxfl.data.synthetic.clustered_linear(8, rows=8, features=4, ragged=True)
    return jaxfl.run(METHODS[name](), data, **OPTIONS, **options)
