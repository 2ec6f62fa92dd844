"""What the paper draws: similarity and skew, clusters over rounds, CFL beside StoCFL, clusters of writers, thresholds.

Those that need no training are in `clustering.py`; here are the others, and the list.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from experiments.harness import studies
from experiments.harness.base import Cell, Made, Study
from experiments.stocfl import clustering
from jaxfl import plots
from jaxfl.methods.stocfl import StoCFLState

SKEWS = ("pathological", "rotated", "shifted", "hybrid")
FEW = 12  # images of a cluster of writers


def of(
    *,
    rows: int | None,
    clustered: Sequence[int],
    hidden: int,
    crossed: int,
    writers: Cell | None,
    curves: Sequence[Cell],
    sources: Sequence[str] = ("mnist", "fashion-mnist"),
    matrix_rows: int = 1000,
    sizes: Sequence[tuple[int, int]] = ((1200, 200), (2400, 100), (4800, 50)),
    seeds: Sequence[int] = range(10),
) -> tuple[Study, ...]:
    """Returns the studies of a scale.

    Args:
        rows: of a client of figures 3 and 8; None deals out all.
        clustered: clients of the four skews of figure 3.
        hidden: units of the anchor.
        crossed: clients of figure 8.
        writers: the run of figure 7.
        curves: the runs of figure 5.
        sources: of figures 2 and 3; figure 8 takes the first.
        matrix_rows: of a client of figure 2.
        sizes: clients and rows that the automatic threshold is tried on.
        seeds: of its digits.
    """
    files = any(source != "digits" for source in sources)
    first = sources[0]
    skewed: dict[str, int] = dict(zip(SKEWS, clustered, strict=True))
    found = [
        Study("Figure 2 / similarity and skew", partial(clustering.similarity, sources, matrix_rows), files),
        Study("Figure 3 / clusters over rounds", partial(clustering.over_rounds, first, skewed, rows, hidden), files),
        Study("Automatic threshold / rotations", partial(clustering.automatic, first, sizes, hidden, seeds), files),
        Study("Figure 5 / CFL and StoCFL", partial(evolution, curves), files),
        Study("Figure 8 / the threshold", partial(clustering.threshold, first, crossed, rows, hidden), files),
    ]
    if writers is not None:
        found.append(Study("Figure 7 / clusters of writers", partial(of_writers, writers), writers.needs_files))
    return tuple(found)


def evolution(cells: Sequence[Cell], data_dir: str | None) -> Made:
    """Draws figure 5: accuracy by round of CFL and of StoCFL."""
    panels: dict[str, dict[str, Any]] = {}
    table = []
    rounds: list[int] = []
    for cell in cells:
        cell = dataclasses.replace(cell, eval_every=max(1, cell.rounds // 20))
        history = studies.train(cell, data_dir)[1].history
        rounds = history.column("round")
        panels[cell.row] = {
            "best tenth": history.column("p90_accuracy"),
            "mean of the clients": history.column("macro_accuracy"),
            "worst tenth": history.column("p10_accuracy"),
        }
        half = history[len(history) // 2]
        table.append(
            {
                "method": cell.row,
                "clusters": history[-1]["num_clusters"],
                f"accuracy in round {half['round']}": half["micro_accuracy"],
                f"in round {rounds[-1]}": history[-1]["micro_accuracy"],
                "worst tenth": history[-1]["p10_accuracy"],
            }
        )
    return Made(
        "Test accuracy by round, everybody taking part. The paper draws the curves of the four clusters, which end "
        "between 97.8 and 98.0 % for both methods, StoCFL's above CFL's on the way.",
        table=table,
        pictures={"accuracy": plots.gap_curves(rounds, panels, ylabel="accuracy")},
    )


def of_writers(cell: Cell, data_dir: str | None) -> Made:
    """Draws figure 7: whom StoCFL puts together among writers, in the plane and by their images."""
    _, result = studies.train(cell, data_dir)
    state: StoCFLState = result.state
    observed = np.asarray(state.cluster) >= 0
    cluster = np.asarray(result.evaluation.cluster)
    psi = np.asarray(state.memory.psi)[observed]
    sizes = np.sort(np.bincount(cluster[cluster >= 0]))[::-1]
    sizes = sizes[sizes > 0]
    largest = np.argsort(-np.bincount(cluster[cluster >= 0]))[:2]
    drawn = np.where(np.isin(cluster, largest), cluster, -1)
    return Made(
        "The paper sees two main clusters of FEMNIST's writers. Here the clusters' sizes, the representations of those "
        "who took part by t-SNE, and images of the two largest clusters.",
        table=[
            {
                "data": result.data.name,
                "threshold": cell.row,
                "clusters": len(sizes),
                "largest": int(sizes[0]),
                "second": int(sizes[1]) if len(sizes) > 1 else 0,
                "clients": int((cluster >= 0).sum()),
            }
        ],
        pictures={
            "representations": plots.representations(psi, {cell.row: np.asarray(state.cluster)[observed]}),
            "images": plots.montage(result.data, cluster=drawn, per_group=FEW),
        },
    )
