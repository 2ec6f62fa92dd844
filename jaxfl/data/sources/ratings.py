"""InstEval: 73,421 ratings of lectures at ETH Zurich from lme4's table, for regression with lecturers as clients.

Reference: Bates et al., "Fitting linear mixed-effects models using lme4", Journal of Statistical Software, 2015.
"""

from pathlib import Path

from jaxfl.data.sources import columns, table
from jaxfl.data.sources.base import WITHOUT_CLASSES, Folder, Source, SourceEntry, folders, locate, require

LAYOUTS = {"csv.gz": ("insteval.csv.gz",), "csv": ("insteval.csv",)}
HELP = "write it in R with write.csv(lme4::InstEval, 'insteval.csv') and pass its folder as data_dir"
COLUMNS = ("s", "d", "studage", "lectage", "service", "dept", "y")
ROLES = table.Roles(target="y", client="d", group="dept", categories=("studage", "lectage", "service"), numbers=())


def load(data_dir: Folder = None) -> Source:
    """Returns the ratings, from 1 (bad) to 5, from `insteval.csv` or `insteval.csv.gz` in `data_dir` or its `ratings`.

    A client is a lecturer; there are 1,128 with 10 to 792 ratings. The inputs are the number of semesters of the
    student (`studage`), the number of semesters since the lecture (`lectage`), and whether the lecture is for students
    of another department (`service`). The group is the lecturer's department, the only known group. It explains under 1
    % of the variance; the lecturer explains 17 %.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: the file is damaged or another table.
    """
    layout, place = require("ratings", LAYOUTS, folders("ratings", data_dir), HELP)
    path = place / LAYOUTS[layout][0]
    existing = columns.read_names(path)
    if missing := [name for name in COLUMNS if name not in existing]:
        raise ValueError(f"{path} must have the columns {', '.join(COLUMNS)}, but {missing[0]} is missing; {HELP}.")
    return table.read_source("ratings", path, ROLES, "number")


def _find_ratings(data_dir: Folder) -> Path | None:
    """Returns the folder of the file, or None."""
    located = locate(LAYOUTS, folders("ratings", data_dir))
    return None if located is None else located[1]


ENTRY = SourceEntry(
    load,
    find=_find_ratings,
    summary="InstEval of R's lme4, 73,421 ratings of lectures by 1,128 lecturers of 14 departments",
    licence="GPL-2 or later",
    num_bytes=520_000,
    num_classes=1,
    makers="lecturer",
    help=HELP,
    model=("mlp", {"hidden": (64,)}),
    skews=WITHOUT_CLASSES,
)
