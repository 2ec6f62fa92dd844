"""Partitions: functions from labels to one index array per client, in NumPy, seeded, and equal on every platform.

Every row belongs to at most one client; the docstrings say if it belongs to exactly one.
"""

from jaxfl.data.partition.labels import default_groups, dirichlet, dominant, pathological, shards
from jaxfl.data.partition.parts import Parts, at_most, check_count, check_numbers, group_members, rows_that_fit
from jaxfl.data.partition.rows import iid, natural, quantity, train_test_split

__all__ = [
    "Parts",
    "at_most",
    "check_count",
    "check_numbers",
    "default_groups",
    "dirichlet",
    "dominant",
    "group_members",
    "iid",
    "natural",
    "pathological",
    "quantity",
    "rows_that_fit",
    "shards",
    "train_test_split",
]
