"""Clustering on the device: functions from matrices to labels, jitted with static shapes, for any use."""

from jaxfl.clustering import centres, cohesion, components, distances, gaps, kmeans, linkage, scores, sketch, spectral

__all__ = [
    "centres",
    "cohesion",
    "components",
    "distances",
    "gaps",
    "kmeans",
    "linkage",
    "scores",
    "sketch",
    "spectral",
]
