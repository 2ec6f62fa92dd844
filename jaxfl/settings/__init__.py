"""Runs by name: `METHOD`, `--data NAME` and `key=value` items as objects, for the command line and for saved runs."""
