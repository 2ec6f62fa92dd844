"""Fast forms of any network, for speed alone: rewritten convolutions, poolings and products."""
