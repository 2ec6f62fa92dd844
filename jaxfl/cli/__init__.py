"""Command line `jaxfl`: its commands, and the tables and pages that they print."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits."""
    from jaxfl.cli import signals, streams

    streams.install()  # first: what is opened next must not get the number of a closed stream
    signals.install()  # before JAX is imported
    from jaxfl.cli import app

    try:
        app.main(arguments)
    except SystemExit as ended:
        signals.ignore_notices()
        sys.exit(streams.exit_status(ended.code))
