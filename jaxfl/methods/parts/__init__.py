"""Parts that several methods share: comparison of clients, starts of clusters, training by cluster, newcomers."""
