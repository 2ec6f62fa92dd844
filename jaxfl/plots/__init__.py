"""Figures of runs, federations, similarities and measurements.

- A run: `convergence`, `clusters`, `alluvial` (clients that move between clusters), `confusion` (clusters against true
  groups), `participation` (clients that report before a deadline), `personalisation` (each client before and after
  fine-tuning), `class_confusion` (classes, by cluster), `similarity` (clients, by cluster) and `models` (local models
  in the plane).
- A federation: `labels` by client, a `montage` of examples, and the `stages` of a drift.
- Representations of StoCFL: `representations` in the plane and the clusters at every threshold (`threshold_sweep`).
- Arrays: matrices of similarities or distances (`heatmap`, `heatmaps`), and how well they separate the true groups
  (`layer_gaps`, `gap_curves`, `bars`).
- Membership inference of a run (`membership`): how well training rows are told from test rows.
- A `choice` of the number of clusters, and the `scaling` of rounds on a machine.

The figures belong to the caller alone: without pyplot, no figure stays open and no global setting changes.
`figure.savefig(path, dpi=150)` writes a file; a notebook shows a figure that ends a cell.
"""

from jaxfl.plots.alluvial import alluvial
from jaxfl.plots.curves import ChoiceLike, choice, scaling
from jaxfl.plots.distances import heatmap, heatmaps, similarity
from jaxfl.plots.examples import is_image, montage, stages
from jaxfl.plots.federation import labels
from jaxfl.plots.gaps import bars, gap_curves, layer_gaps
from jaxfl.plots.maps import models
from jaxfl.plots.outcomes import class_confusion, confusion, personalisation
from jaxfl.plots.representations import representations, threshold_sweep
from jaxfl.plots.risks import membership
from jaxfl.plots.runs import Run, clusters, convergence, participation
from jaxfl.plots.style import NO_CLUSTER_COLOR, OTHER_COLOR, palette

__all__ = [
    "NO_CLUSTER_COLOR",
    "OTHER_COLOR",
    "ChoiceLike",
    "Run",
    "alluvial",
    "bars",
    "choice",
    "class_confusion",
    "clusters",
    "confusion",
    "convergence",
    "gap_curves",
    "heatmap",
    "heatmaps",
    "is_image",
    "labels",
    "layer_gaps",
    "membership",
    "models",
    "montage",
    "palette",
    "participation",
    "personalisation",
    "representations",
    "scaling",
    "similarity",
    "stages",
    "threshold_sweep",
]
