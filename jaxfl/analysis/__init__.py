"""What one asks beside training: how many clusters, which layers, which threshold, where the clients' models lie."""
