"""Pictures: of a run (`convergence`, `clusters`, `models`), a federation (`labels`, `montage`) and a `choice` of K.

Of a run, too: who moves between clusters (`alluvial`), clusters against true groups (`confusion`), what fine-tuning
gives each client (`personalisation`), which classes are taken for which in each cluster (`class_confusion`), and how
similar clients are within clusters and across (`similarity`). Of what clients send of themselves (`representations`),
and which clusters they are at every threshold (`threshold_sweep`). Of who is similar to whom: matrices (`heatmap`,
`heatmaps`) and how well they tell the true groups apart (`layer_gaps`, `gap_curves`, `bars`). These take plain arrays.
Of what was measured on a machine: `scaling`.

They are matplotlib figures that nothing but the caller holds: without pyplot, no figure stays open and no setting
changes. `figure.savefig(path, dpi=150)` writes a file; a notebook shows a figure that ends a cell.
"""

from jaxfl.plots.alluvial import alluvial
from jaxfl.plots.curves import Chosen, choice, scaling
from jaxfl.plots.distances import heatmap, heatmaps, similarity
from jaxfl.plots.examples import is_image, montage
from jaxfl.plots.federation import labels
from jaxfl.plots.gaps import bars, gap_curves, layer_gaps
from jaxfl.plots.maps import models
from jaxfl.plots.outcomes import class_confusion, confusion, personalisation
from jaxfl.plots.representations import representations, threshold_sweep
from jaxfl.plots.runs import Run, clusters, convergence
from jaxfl.plots.style import NOBODY, OTHERS, palette

__all__ = [
    "NOBODY",
    "OTHERS",
    "Chosen",
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
    "models",
    "montage",
    "palette",
    "personalisation",
    "representations",
    "scaling",
    "similarity",
    "threshold_sweep",
]
