"""Analyses beside training: number of clusters, thresholds, layers, similarity of clients, classes, comparisons."""
