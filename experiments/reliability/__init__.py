"""Campaigns that try to break the library, as commands; their short forms are tests."""
