"""The start of the first command: what it imports, and that no program is traced or compiled twice."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.messages import mentions

ROOT = Path(__file__).parents[2]
# Prints the names of the programs that were traced and compiled, and the modules that were imported.
COMMAND = """
import collections, json, sys
import jax
from jaxfl import cli

found = collections.defaultdict(collections.Counter)
heard = lambda event, seconds, **about: found[event.rpartition("/")[2]].update([about.get("fun_name")])
jax.monitoring.register_event_duration_secs_listener(heard)
try:
    cli.main(json.loads(sys.argv[1]))
except SystemExit as ended:
    assert not ended.code
print(json.dumps([found["jaxpr_trace_duration"], found["backend_compile_duration"], sorted(sys.modules)]))
"""
FEW = ["--rounds", "4", "--eval-every", "2", "--quiet"]


@pytest.mark.parametrize(("method", "programs", "pictures"), [("stocfl", 4, True), ("fedavg", 3, False)])
def test_a_run_traces_and_compiles_each_program_once(method, programs, pictures, tmp_path):
    out = tmp_path / "run"
    words = ["--no-cache", "run", method, "--data", "rotated-digits", "--out", str(out), *FEW]
    words += [] if pictures else ["--no-pictures"]
    users = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    made = subprocess.run(
        [sys.executable, "-c", COMMAND, json.dumps(words)],
        cwd=ROOT,
        env=users,
        capture_output=True,
        text=True,
        check=True,
    )
    traced, compiled, modules = json.loads(made.stdout.splitlines()[-1])
    # rounds, first state, test, and of StoCFL the clusters of clients that were not sampled
    assert (traced["program"], compiled["jit(program)"]) == (programs, programs)
    heavy = {"pandas", "sklearn", "scipy", "flax.nnx", "IPython", "matplotlib.pyplot"}
    assert heavy & set(modules) == set()
    assert ("matplotlib" in modules) == pictures
    assert {path.name for path in out.glob("*.png")} == ({"convergence.png", "clusters.png"} if pictures else set())
    assert (out / "clients.csv").read_text().count("\n") == 41


@pytest.mark.rotating(weeks=6)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("JAX_PLATFORMS", "foo"),
        ("JAX_PLATFORMS", "cuda"),
        ("JAX_ENABLE_X64", "maybe"),
        ("JAX_DEFAULT_PRNG_IMPL", "dice"),
        ("JAX_DISABLE_JIT", "1"),
        ("MPLBACKEND", "nonsense"),
    ],
)
def test_a_variable_with_which_nothing_can_run_is_one_line(name, value, tmp_path):
    """Before anything is trained."""
    words = ["run", "fedavg", "--data", "rotated-digits", "--rounds", "1000000", "--out", str(tmp_path / "run")]
    asked = [sys.executable, "-c", f"from jaxfl import cli; cli.main({words})"]
    ended = subprocess.run(asked, cwd=ROOT, env=os.environ | {name: value}, capture_output=True, text=True)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    (error,) = (line for line in ended.stderr.splitlines() if line.startswith("error: "))
    assert re.search(
        mentions(name if name != "JAX_DEFAULT_PRNG_IMPL" else name.lower(), value.replace("1", "True")), error
    )
    assert not list(tmp_path.glob("run/*.npz"))
