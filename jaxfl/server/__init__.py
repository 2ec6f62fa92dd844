"""What the server does with what clients send: sums and means by cluster, and the optimisers of its own step."""

from jaxfl.server.optimizers import AdaptiveState, fedadam, fedyogi, init, step

__all__ = ["AdaptiveState", "fedadam", "fedyogi", "init", "step"]
