"""The command line: its commands, the one table of options, and what it prints."""

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits."""
    from jaxfl.cli import app  # imports typer, which the options and jobs of experiments do not need

    app.main(arguments)
