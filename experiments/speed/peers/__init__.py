"""The peers, each in a process and an environment of its own, fed with the numbers that jaxfl starts from.

Every peer holds its clients' rows ready, normalised and rotated; jaxfl gathers and prepares them inside its timed part.
A peer waits for a line on its standard input and computes nothing meanwhile, see `serve.py`. The line there and back is
timed on the peer's side: 0.1 ms of its round.

    python -m experiments.speed.peers DIR      # makes the environments, DIR/fedjax and so on
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from experiments.speed.measure import Side

HERE = Path(__file__).parent
NAMES = ("fedjax", "pfl", "torch", "channels_last", "vmap")
ATTENTION = ("query", "key", "value", "out")  # its parts, in flax's names
MODULES = {
    "vmap": "torch",
    "channels_last": "torch",
}  # of peers that are called otherwise than what they import, whose environment they share


def python_of(name: str, environments: Path | None) -> str:
    """Returns the Python that runs a peer: of its environment, or this one if there is none."""
    own = None if environments is None else environments / MODULES.get(name, name) / "bin" / "python"
    return str(own) if own is not None and own.exists() else sys.executable


def by_layer(model: dict[str, Any]) -> dict[str, dict[str, np.ndarray]]:
    """Returns parameters `{"block/conv": {"kernel": array}}` of dictionaries within dictionaries.

    >>> by_layer({"dense": {"kernel": 1, "bias": 2}, "blocks": {"0": {"conv": {"kernel": 3}}}, "positions": 4})
    {'dense': {'kernel': 1, 'bias': 2}, 'blocks/0/conv': {'kernel': 3}, '': {'positions': 4}}
    """
    found: dict[str, dict[str, np.ndarray]] = {}

    def enter(node: dict[str, Any], layer: str) -> None:
        for name, below in node.items():
            if isinstance(below, dict):
                enter(below, f"{layer}/{name}" if layer else str(name))
            else:
                found.setdefault(layer, {})[name] = below

    enter(model, "")
    return found


def there(environments: Path | None) -> list[str]:
    """Returns the peers that can run: they have an environment, or this Python can import them."""
    made = [name for name in NAMES if environments is not None and python_of(name, environments) != sys.executable]
    return [name for name in NAMES if name in made or importlib.util.find_spec(MODULES.get(name, name)) is not None]


class Peer:
    """A peer's process; a context that ends it.

    Args:
        name: of the peer.
        work: what it is to do, ready for JSON, see `serve.py`.
        model: initial parameters, as flax has them; with one more axis in front where there are several models.
        x: rows of every client `[N, T, ...]`, ready for the network, images channels last.
        y: labels `[N, T]`.
        environments: folder of the environments that `python -m experiments.speed.peers` made.

    Raises:
        SystemExit: the peer did not start; what it said is on the standard error.
    """

    def __init__(
        self, name: str, work: dict[str, Any], model: dict, x: np.ndarray, y: np.ndarray, environments: Path | None
    ):
        self.name = name
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        (folder / "work.json").write_text(json.dumps(work))
        layers = by_layer(model).items()
        parameters = {f"{layer}/{part}": array for layer, parts in layers for part, array in parts.items()}
        np.savez(folder / "arrays.npz", allow_pickle=False, x=x, y=y, **parameters)
        command = [python_of(name, environments), str(HERE / f"{name}_side.py"), str(folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.versions: dict[str, str] = self._answer()["versions"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self.end()
            raise SystemExit(f"the peer {self.name} ended with exit code {code}.")
        return json.loads(line)

    def ask(self, what: str) -> float:
        """Returns the peer's answer to `"round"`, `"loss"` or `"peak"`."""
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._answer()["value"]

    def side(self) -> Side:
        """Returns it as a side of a comparison."""
        return Side(self.name, lambda: self.ask("round"), lambda: self.ask("loss"))

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        with self._process:  # closes its pipes and waits
            self._folder.cleanup()

    def __enter__(self) -> "Peer":
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the process."""
        self.end()
