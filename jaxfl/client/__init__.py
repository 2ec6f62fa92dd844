"""A client's part of a round: local training, passes over its rows, and the behaviour of stragglers and attackers."""
