"""The command line: its commands, the one table of options, and what it prints."""

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits."""
    from jaxfl.cli import signals

    signals.install()  # before JAX is imported
    from jaxfl.cli import app

    app.main(arguments)
