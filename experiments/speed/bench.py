"""W1 to W11 by name, as `jaxfl bench w1 w6` runs them: each script with its own defaults, one after another."""

import contextlib
import importlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.speed import peers

SCRIPTS = {
    "w1": ("rounds", ["w1"]),
    "w2": ("rounds", ["w2"]),
    "w3": ("rounds", ["w3-logistic", "w3-mlp"]),
    "w4": ("w4", []),
    "w5": ("rounds", ["w5"]),
    "w6": ("rounds", ["w6"]),
    "w7": ("rounds", ["w7"]),
    "w8": ("w8", []),
    "w9": ("rounds", ["w9-10", "w9-50"]),
    "w10": ("rounds", ["w10"]),
    "w11": ("rounds", ["w11"]),
}


class Measured(NamedTuple):
    """What came of a workload.

    Attributes:
        name: `"w1"` to `"w11"`.
        command: that makes it by itself.
        text: the tables that the script prints.
        records: the JSON lines.
        error: why it failed; None where it did not.
    """

    name: str
    command: str
    text: str
    records: list[dict[str, Any]]
    error: str | None


def run(name: str, given: Sequence[str], environments: Path | None) -> Measured:
    """Runs a workload.

    Args:
        name: a key of `SCRIPTS`.
        given: options of the script, such as `["--rounds", "5"]`.
        environments: folder of the peers' environments. Those that are not there are left out.
    """
    script, works = SCRIPTS[name]
    arguments = [*works, *given]
    if script == "rounds" and environments is not None:
        arguments += ["--environments", str(environments)]
    told, records, error = io.StringIO(), [], None
    try:
        with contextlib.redirect_stdout(told):
            made = importlib.import_module(f"experiments.speed.{script}").main(arguments)
        records = made if isinstance(made, list) else [made]
    except (SystemExit, Exception) as ended:  # losses that disagree, a peer that did not start: the others go on
        error = str(ended) or type(ended).__name__
    lines = [line for line in told.getvalue().splitlines() if not line.startswith("{")]
    command = " ".join(["python -m", f"experiments.speed.{script}", *arguments])
    return Measured(name, command, "\n".join(lines).strip(), records, error)


def peers_of(name: str, environments: Path | None) -> list[str]:
    """Returns the peers that a workload will be measured beside."""
    if name == "w4":
        return ["SciPy and scikit-learn", "a loop over pairs"]
    if SCRIPTS[name][0] != "rounds":
        return []
    works = importlib.import_module("experiments.speed.rounds").WORKS
    able = {peer for work in SCRIPTS[name][1] for peer in works[work].peers}
    return [peer for peer in peers.there(environments) if peer in able]
