"""A run by names: what `METHOD`, `--data NAME` and `key=value` stand for, on the command line and in a kept run."""
