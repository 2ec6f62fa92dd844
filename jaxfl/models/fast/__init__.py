"""Rewritten programs of any network, for speed alone: convolutions, poolings and products in faster forms."""
