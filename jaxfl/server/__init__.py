"""Aggregation of contributions: sums and means by cluster, and the server's optimisers."""

from jaxfl.server.optimizers import AdaptiveState, fedadam, fedyogi, init, step

__all__ = ["AdaptiveState", "fedadam", "fedyogi", "init", "step"]
