"""Clustering on the device: matrices in, labels out; jitted, static shapes, no knowledge of federated learning."""

from jaxfl.clustering import components, distances, scores, sketch

__all__ = ["components", "distances", "scores", "sketch"]
