"""Clustering on the device: matrices in, labels out; jitted, static shapes, no knowledge of federated learning."""

from jaxfl.clustering import centres, components, distances, gaps, kmeans, linkage, scores, sketch

__all__ = ["centres", "components", "distances", "gaps", "kmeans", "linkage", "scores", "sketch"]
