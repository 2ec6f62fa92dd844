"""Command line `jaxfl`: its commands, and the tables and pages that they print."""

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits."""
    from jaxfl.cli import signals

    signals.install()  # before JAX is imported
    from jaxfl.cli import app

    app.main(arguments)
