"""`jaxfl methods`: the list of methods, and the options of one."""

import json

from jaxfl.cli import tables
from jaxfl.cli.tables.console import print_parts, stdout
from jaxfl.settings import methods


def print_methods(name: str | None, *, as_json: bool) -> None:
    """Prints the table of all methods, or the options of one.

    Args:
        name: of a method, or `FILE.py:FACTORY`; None lists all.
        as_json: whether to print JSON.

    Raises:
        ValueError: the method is unknown.
    """
    if name is not None:
        methods.row(name)
    if as_json:
        print(json.dumps(tables.method_rows(list(methods.rows()) if name is None else [name]), indent=2))
    elif name is not None:
        print_parts(stdout(), *tables.method_page(name))
    else:
        print_parts(stdout(), tables.methods_table())
