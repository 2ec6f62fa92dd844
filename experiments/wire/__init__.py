"""Measurements of the wire: what a run reveals about its rows and clients."""
