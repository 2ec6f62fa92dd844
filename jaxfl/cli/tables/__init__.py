"""Printed tables and texts: methods, data sets, options, federations, runs and measurements."""

from jaxfl.cli.tables.choices import method_page, method_rows, own_page, own_row
from jaxfl.cli.tables.federations import (
    data_lists,
    data_rows,
    dataset_page,
    federation_text,
    source_location,
    source_page,
    source_row,
)
from jaxfl.cli.tables.runs import (
    SCALING_HEAD,
    device_phrase,
    methods_table,
    privacy_lines,
    result_row,
    results_table,
    scaling_rows,
    scaling_table,
    scaling_title,
    shortfall_lines,
)

__all__ = [
    "SCALING_HEAD",
    "data_lists",
    "data_rows",
    "dataset_page",
    "federation_text",
    "device_phrase",
    "method_page",
    "method_rows",
    "methods_table",
    "own_page",
    "own_row",
    "source_location",
    "privacy_lines",
    "result_row",
    "results_table",
    "scaling_table",
    "scaling_rows",
    "scaling_title",
    "shortfall_lines",
    "source_page",
    "source_row",
]
