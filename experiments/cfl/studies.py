"""What the notebook draws of a run: the two norms by round beside their thresholds, the splits, and the accuracy."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.harness import studies
from experiments.harness.base import Cell, Made, Study
from jaxfl import plots
from jaxfl.methods.cfl import PRESETS
from jaxfl.simulation.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PRESET = {"relative thresholds": "paper", "official thresholds": "official"}
RELATIVE, BOTH = ("relative thresholds",), tuple(PRESET)
MEAN, CLIENT = "mean update", "largest client update"
COLORS = {MEAN: "#0072B2", "eps1": "#56B4E9", CLIENT: "#D55E00", "eps2": "#E69F00"}


def of(drawn: Sequence[tuple[Cell, Sequence[str]]]) -> tuple[Study, ...]:
    """Returns a study for each data set.

    Args:
        drawn: CFL on every data set, and the keys of `PRESET` with which it is trained and drawn.
    """
    return tuple(
        Study(f"Norms and splits / {cell.column}", partial(norms_and_splits, cell, ways), cell.needs_files)
        for cell, ways in drawn
    )


def norms_and_splits(cell: Cell, ways: Sequence[str], data_dir: str | None) -> Made:
    """Trains CFL in some ways, with every round's numbers, and draws norms, accuracies and clusters."""
    runs = {way: _train(cell, way, data_dir) for way in ways}
    rounds = np.arange(1, cell.rounds + 1)
    norms = {way: _norms(way, run) for way, run in runs.items()}
    accuracies = {
        way: {
            "10 % of the clients are below": run.history.column("p10_accuracy"),
            "mean of the clients": run.history.column("macro_accuracy"),
            "10 % are above": run.history.column("p90_accuracy"),
        }
        for way, run in runs.items()
    }
    splits = [_split_rounds(run) for run in runs.values()]
    pictures = {
        "norms": _marked(plots.gap_curves(rounds, norms, ylabel="norm", colors=COLORS), splits),
        "accuracy": _marked(plots.gap_curves(rounds, accuracies, ylabel="accuracy"), splits),
        **{f"clusters, {way}": plots.clusters(run) for way, run in runs.items()},
    }
    return Made(
        "By round: the norm of the mean update of the cluster where it is largest, that of the largest client update, "
        "and what they are compared with (the mean update has to be below eps1, the client's above eps2; official "
        "thresholds count from round 21). Vertical lines are splits. The paper's rule for eps1 is a tenth of the "
        "largest mean update.",
        pictures=pictures,
        table=[_row(way, run) for way, run in runs.items()],
    )


def _train(cell: Cell, way: str, data_dir: str | None) -> Result:
    """Returns a run with a record of every round."""
    cell = dataclasses.replace(cell, row=way, items=(*cell.items, f"preset={PRESET[way]}"), eval_every=1)
    return studies.train(cell, data_dir)[1]


def _norms(way: str, run: Result) -> dict[str, np.ndarray]:
    """Returns the norms after every round, and their thresholds."""
    rule = PRESETS[PRESET[way]]
    mean, client = (np.array(run.history.column(name), float) for name in ("mean_update", "client_update"))
    now, ever = (client, np.maximum.accumulate(client)) if rule["relative"] else (np.ones_like(client),) * 2
    return {MEAN: mean, "eps1": rule["eps1"] * now, CLIENT: client, "eps2": rule["eps2"] * ever}


def _split_rounds(run: Result) -> list[int]:
    """Returns the rounds after which a cluster was split."""
    return [record["round"] for record in run.history.records if record["splits"]]


def _marked(figure: "Figure", splits: Sequence[Sequence[int]]) -> "Figure":
    """Draws a line at every split, panel by panel."""
    for axes, rounds in zip(figure.axes, splits, strict=True):
        for round in rounds:
            axes.axvline(round, color="#444444", lw=0.8, ls=":")
    return figure


def _row(way: str, run: Result) -> dict[str, Any]:
    """Returns what came of a run."""
    history, splits = run.history, _split_rounds(run)
    before = history[splits[0] - 1] if splits else history[-1]
    return {
        "thresholds": way,
        "splits after round": ", ".join(map(str, splits)) or None,
        "clusters": run.summary["num_clusters"],
        "ARI": run.summary["ari"],
        "accuracy": run.summary["micro_accuracy"],
        "before the first split": before["micro_accuracy"] if splits else None,
        "mean update then": before["mean_update"],
        "largest client update then": before["client_update"],
        "a tenth of the largest mean update": max(history.column("mean_update")) / 10,
    }
