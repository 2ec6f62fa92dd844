"""Federated data: packed clients, skews with known groups, and sources of examples."""

from jaxfl.cohort import Cohort, Plan
from jaxfl.data import partition, stored, synthetic
from jaxfl.data.building import federate
from jaxfl.data.catalog import (
    DATASETS,
    SHIFTS,
    SKEWS,
    Dataset,
    available,
    data_names,
    dataset,
    known_options,
    load,
    options,
)
from jaxfl.data.clients import Batch, FederatedData, Split
from jaxfl.data.shift import (
    mirror_labels,
    mirrored,
    permute_labels,
    permuted,
    relabel,
    rotate,
    rotated,
    shifted,
    swap_labels,
    swapped,
)
from jaxfl.data.sources import Source
from jaxfl.data.views.image_shifts import (
    classwise,
    colour_images,
    coloured,
    corrupt_images,
    corrupted,
    redraw_images,
    thickened,
    transform_classes,
)

__all__ = [
    "DATASETS",
    "SHIFTS",
    "SKEWS",
    "Batch",
    "Cohort",
    "Dataset",
    "FederatedData",
    "Plan",
    "Source",
    "Split",
    "available",
    "classwise",
    "colour_images",
    "coloured",
    "corrupt_images",
    "corrupted",
    "data_names",
    "dataset",
    "federate",
    "known_options",
    "load",
    "mirror_labels",
    "mirrored",
    "options",
    "partition",
    "permute_labels",
    "permuted",
    "redraw_images",
    "relabel",
    "rotate",
    "rotated",
    "shifted",
    "stored",
    "swap_labels",
    "swapped",
    "synthetic",
    "thickened",
    "transform_classes",
]
