"""What the command line prints: methods, data sets, their options, a federation, and the table at the end of a run."""

from jaxfl.cli.tables.choices import method_options, method_rows
from jaxfl.cli.tables.federations import data, data_rows, dataset, description, place, source, source_row
from jaxfl.cli.tables.runs import methods, results

__all__ = [
    "data",
    "data_rows",
    "dataset",
    "description",
    "method_options",
    "method_rows",
    "methods",
    "place",
    "results",
    "source",
    "source_row",
]
