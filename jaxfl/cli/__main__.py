"""Entry point of `python -m jaxfl.cli`, the command line."""

from jaxfl.cli import main

if __name__ == "__main__":
    main()
