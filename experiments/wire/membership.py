"""Membership inference by the size of a group: what clusters and personal models reveal about minorities.

    python -m experiments.wire.membership
    python -m experiments.wire.membership --draw

trains each method with each seed and keeps the risks in `results/membership.json`; a run that is there is not made
again. The second line draws the picture of the page. Four groups of clients see the digits rotated by 0, 90, 180 and
270 degrees: 40, 10, 3 and 1 clients, so that the last one is alone. All clients of a group have rows of one
distribution, and all clients are tested on the same digits.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import optax
from matplotlib.figure import Figure

import jaxfl
from jaxfl.analysis.membership import membership_risk
from jaxfl.plots import style

RESULTS = Path(__file__).parent / "results" / "membership.json"
PICTURE = Path(__file__).parents[2] / "docs" / "pages" / "images" / "membership.png"
SIZES = (40, 10, 3, 1)  # clients of each rotation
ROWS, ROUNDS, SEEDS = 30, 60, (0, 1, 2)
LOCAL: dict[str, Any] = {"local_epochs": 5, "batch_size": 10}
OPTIONS: dict[str, dict[str, Any]] = {"ifca": {"num_clusters": 4, "start": "balanced"}, "stocfl": {"threshold": 0.5}}
NAMES = {"fedavg": "FedAvg", "ifca": "IFCA, K = 4", "stocfl": "StoCFL", "local": "Local"}


def federation(seed: int) -> jaxfl.data.FederatedData:
    """Returns the federation: of 160 clients in four equal groups, the first ones of each."""
    data = jaxfl.data.load("rotated-digits", num_clients=4 * SIZES[0], rows_per_client=ROWS, seed=seed)
    group = np.asarray(data.group)
    return data.subset(np.concatenate([np.flatnonzero(group == one)[:size] for one, size in enumerate(SIZES)]))


def method_of(name: str, task: Any) -> Any:
    """Returns a method by its name."""
    return getattr(jaxfl.methods, name)(task, optax.sgd(0.1), **LOCAL, **OPTIONS.get(name, {}))


def run(name: str, seed: int) -> list[dict[str, Any]]:
    """Returns the risk and the accuracy of each group's clients after a run."""
    data = federation(seed)
    task = jaxfl.classification(jaxfl.models.MLP(hidden=(64,), num_classes=10), data)
    method, everybody = method_of(name, task), data.num_clients
    result = jaxfl.run(method, data, seed=seed, rounds=ROUNDS, eval_every=ROUNDS, cohort=everybody)
    group, cluster = np.asarray(data.group), result.evaluation.cluster
    references = min(3, len(np.unique(cluster)) - 1)
    rows = []
    for score in ("loss", "references") if references else ("loss",):
        found = jaxfl.membership(result, references=references if score == "references" else 0)
        for one, size in enumerate(SIZES):
            some = group[found.client] == one
            risk = membership_risk(found.score[some], found.member[some], size)
            accuracy = float(result.evaluation.accuracy[group == one].mean())
            served = float(found.size[group == one].mean())
            about = {"method": name, "seed": seed, "score": score, "group": size, "cluster": served}
            rows.append({**about, "accuracy": accuracy, **risk._asdict()})
    return rows


def kept() -> list[dict[str, Any]]:
    """Returns the results so far."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []


def values(rows: list[dict[str, Any]], method: str, group: int, column: str, score: str = "loss") -> np.ndarray:
    """Returns a column of the results `[seeds]`."""
    chosen = {"method": method, "group": group, "score": score}
    return np.array([row[column] for row in rows if chosen.items() <= row.items()])


def draw(rows: list[dict[str, Any]]) -> Figure:
    """Returns accuracy and risk of each group's clients, by method: the mean of the seeds, and a dot for each."""
    figure = style.figure((9.0, 3.4))
    titles = {"accuracy": "accuracy on test rows", "auc": "area under the curve of membership inference"}
    for axes, (column, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        for (method, name), color in zip(NAMES.items(), style.line_colors(len(NAMES)), strict=True):
            found = np.array([values(rows, method, size, column) for size in SIZES])  # [groups, seeds]
            axes.plot(range(len(SIZES)), found.mean(1), color=color, lw=1.6, label=name)
            for seed in found.T:
                axes.plot(range(len(SIZES)), seed, "o", color=color, ms=3, alpha=0.6)
        axes.set_xticks(range(len(SIZES)), list(map(str, SIZES)))
        axes.set_xlabel("clients of the group")
        axes.set_title(title, fontsize=10, loc="left")
        style.light_grid(axes)
    axes.axhline(0.5, color="#8C8C8C", lw=1, ls=":")
    axes.legend(fontsize=8, frameon=False)
    return figure


def main() -> None:
    """Makes the runs that are missing, or draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="draw the picture of the page")
    if parser.parse_args().draw:
        draw(kept()).savefig(PICTURE, dpi=130)
        return
    for name in NAMES:
        for seed in SEEDS:
            rows = kept()
            if any((row["method"], row["seed"]) == (name, seed) for row in rows):
                continue
            rows += [
                {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}
                for row in run(name, seed)
            ]
            RESULTS.parent.mkdir(exist_ok=True)
            text = ",\n".join(json.dumps(row) for row in rows)
            RESULTS.write_text(f"[\n{text}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
