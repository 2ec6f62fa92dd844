"""Simulate clustered and personalised federated learning: all clients of a round in one compiled program."""
