"""Partitions: functions from labels to one index array per client, in NumPy, seeded, and equal on every platform.

Every row belongs to at most one client; the docstrings say if it belongs to exactly one. `exact` has the splits of
official codes, row by row.
"""

from jaxfl.data.partition.dirichlet import DirichletRule, dirichlet
from jaxfl.data.partition.labels import (
    default_groups,
    default_kept,
    default_without,
    dominant,
    downsampled,
    missing,
    neighbour_groups,
    pathological,
    same_shares,
    shards,
)
from jaxfl.data.partition.parts import (
    Parts,
    at_most,
    check_count,
    check_numbers,
    class_lists,
    group_members,
    rows_that_fit,
)
from jaxfl.data.partition.rows import RELATIVE_SIZES, QuantityLaw, iid, natural, quantity, train_test_split

__all__ = [
    "RELATIVE_SIZES",
    "DirichletRule",
    "Parts",
    "QuantityLaw",
    "at_most",
    "check_count",
    "check_numbers",
    "class_lists",
    "default_groups",
    "default_kept",
    "default_without",
    "dirichlet",
    "dominant",
    "downsampled",
    "group_members",
    "iid",
    "missing",
    "natural",
    "neighbour_groups",
    "pathological",
    "quantity",
    "rows_that_fit",
    "same_shares",
    "shards",
    "train_test_split",
]
