"""`jaxfl methods`: the list of methods, and the options of one, or of what else is in a file of the user."""

import json

from jaxfl.cli import tables
from jaxfl.cli.tables.console import print_parts, stdout
from jaxfl.settings import methods, own


def print_methods(name: str | None, *, as_json: bool) -> None:
    """Prints the table of all methods, or the options of one.

    Args:
        name: of a method, or `FILE.py:NAME` of a method, a network, a task or an optimiser; None lists all.
        as_json: whether to print JSON.

    Raises:
        ValueError: the method is unknown.
    """
    owner = "method" if name is None else own.owner_of(name)
    if name is not None and owner == "method":
        methods.row(name)
    if name is not None and owner != "method":
        if as_json:
            print(json.dumps([tables.own_row(name, owner)], indent=2))
        else:
            print_parts(stdout(), *tables.own_page(name, owner))
    elif as_json:
        print(json.dumps(tables.method_rows(list(methods.rows()) if name is None else [name]), indent=2))
    elif name is not None:
        print_parts(stdout(), *tables.method_page(name))
    else:
        print_parts(stdout(), tables.methods_table())
