"""Runs that are defined by names and options and have a folder; the command line and Python start and resume them."""
