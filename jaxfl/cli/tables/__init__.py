"""What the command line prints: methods, data sets, their options, a federation, tables of runs and of measurements."""

from jaxfl.cli.tables.choices import method_options, method_rows
from jaxfl.cli.tables.federations import data, data_rows, dataset, description, place, source, source_row
from jaxfl.cli.tables.runs import SCALING_HEAD, device, methods, result, results, scaling, scaling_rows, scaling_title

__all__ = [
    "SCALING_HEAD",
    "data",
    "data_rows",
    "dataset",
    "description",
    "device",
    "method_options",
    "method_rows",
    "methods",
    "place",
    "result",
    "results",
    "scaling",
    "scaling_rows",
    "scaling_title",
    "source",
    "source_row",
]
