"""What every peer's process does: read the work from a folder, then make rounds when it is told to.

A peer runs in an environment of its own, so nothing of jaxfl is imported here: NumPy and the peer are all it needs. The
folder holds `work.json` (network, learning rate, epochs, batch size) and `arrays.npz` (`x [N, T, ...]`, `y [N, T]` and
the initial parameters, kernels `[..., inputs, outputs]`, one more axis in front where there are several models). A line
`round` on the standard input makes a round, `loss` asks for the mean loss over all rows, `peak` for the most bytes that
the process has held; each is answered by a line of JSON on the standard output. What the libraries print goes to the
standard error.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Made = tuple[Callable[[], float], Callable[[], float]]  # a round, which returns its mean training loss; the loss now


def serve(build: Callable[..., Made], versions: dict[str, str]) -> None:
    """Answers until the input ends.

    Args:
        build: `(work, model, x, y) -> (round, loss)`.
        versions: of what the peer is made of.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    folder = Path(sys.argv[1])
    work = json.loads((folder / "work.json").read_text())
    with np.load(folder / "arrays.npz", allow_pickle=False) as arrays:
        x, y = arrays["x"], arrays["y"].astype(np.int32)
        model: dict[str, Any] = {}
        for name in arrays.files:
            layer, slash, part = name.rpartition("/")
            if slash:
                model.setdefault(layer, {})[part] = arrays[name]
    one_round, loss = build(work, model, x, y)
    made = {"round": one_round, "loss": loss, "peak": peak_bytes}
    print(json.dumps({"versions": versions}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps({"value": made[line.strip()]()}), file=answers, flush=True)


def peak_bytes() -> int:
    """Returns the most bytes that this process has held."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(lines["VmHWM"].split()[0])
