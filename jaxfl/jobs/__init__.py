"""Runs that are kept: begun by names, on the command line or in Python, and given back by either."""
