"""What the examples have in common: a file of results, to which every run is added, and a command line."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import jaxfl
from jaxfl.simulation.callbacks import ProgressBar

PICTURES = Path(__file__).parents[2] / "docs" / "pages" / "images"


def results(name: str) -> Path:
    """Returns the file of an example's results."""
    return Path(__file__).parent / "results" / f"{name}.json"


def kept(name: str) -> dict[str, Any]:
    """Returns what is in the file of an example's results."""
    path = results(name)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"runs": {}}


def made(name: str, method: Any, data: jaxfl.data.FederatedData, metric: str, **options: Any) -> dict[str, Any]:
    """Trains a method, and returns what came of it, ready for JSON.

    Args:
        name: of the run.
        method: the method.
        data: the federation.
        metric: that of each client.
        **options: of `jaxfl.run`.
    """
    with ProgressBar(label=name) as bar:
        result = jaxfl.run(method, data, callbacks=[bar], **options)
    columns = ("round", f"micro_{metric}", f"validation_micro_{metric}", "num_clusters")
    values = result.evaluation.values[metric].tolist()
    return {
        "summary": result.summary,
        "history": [{column: record[column] for column in columns} for record in result.history],
        "cluster": result.evaluation.cluster.tolist(),
        metric: [round(value, 4) for value in values],
    }


def best(runs: dict[str, Any], kind: str, metric: str) -> str:
    """Returns the run of a kind (`"stocfl"`) whose validation rows have the lowest of a metric."""
    names = [name for name in runs if name.startswith(f"{kind}-")]
    return min(names, key=lambda name: runs[name]["summary"][f"validation_micro_{metric}"])


def command(
    name: str,
    doc: str | None,
    federation: Callable[[str], jaxfl.data.FederatedData],
    run: Callable[[str, jaxfl.data.FederatedData], dict[str, Any]],
    draw: Callable[[dict[str, Any]], Figure],
    about: Callable[[jaxfl.data.FederatedData], dict[str, Any]] = lambda data: {},
) -> None:
    """Reads the command line of an example: methods to train, or none, to draw.

    Args:
        name: of the example.
        doc: of its module.
        federation: makes the data of a folder.
        run: trains a method by its name.
        draw: makes the picture of the results.
        about: what else is kept of the clients.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="none draws the picture")
    parser.add_argument("--data-dir", help="the folder of the files, or the one above it")
    given = parser.parse_args()
    if not given.methods:
        draw(kept(name)).savefig(PICTURES / f"{name}.png", dpi=130)
        return
    data = federation(given.data_dir)
    clients = {"groups": list(data.group_names), "group": np.asarray(data.group).tolist()}
    clients |= {"test_rows": np.asarray(data.test.size).tolist(), **about(data)}
    for method in given.methods:
        outcome = run(method, data)
        runs = kept(name)["runs"] | {method: outcome}  # read anew: another process may have written
        text = json.dumps({**clients, "runs": dict(sorted(runs.items()))}, separators=(",", ":"))
        results(name).parent.mkdir(exist_ok=True)
        results(name).write_text(text + "\n", encoding="utf-8")
