"""Federated data: packed clients, skews with known groups, and the sources they are cut from."""

from jaxfl.data import partition, synthetic
from jaxfl.data.catalog import DATASETS, Dataset, available, dataset, load, options
from jaxfl.data.clients import Batch, Cohort, FederatedData, Plan, Split, federate
from jaxfl.data.shift import rotated, shifted
from jaxfl.data.sources import Source

__all__ = [
    "DATASETS",
    "Batch",
    "Cohort",
    "Dataset",
    "FederatedData",
    "Plan",
    "Source",
    "Split",
    "available",
    "dataset",
    "federate",
    "load",
    "options",
    "partition",
    "rotated",
    "shifted",
    "synthetic",
]
