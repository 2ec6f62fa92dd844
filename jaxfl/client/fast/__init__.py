"""Exact shortcuts of local training, for speed alone."""
