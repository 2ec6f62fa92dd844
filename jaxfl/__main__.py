"""`python -m jaxfl` is `jaxfl`."""

from jaxfl.cli import main

if __name__ == "__main__":
    main()
