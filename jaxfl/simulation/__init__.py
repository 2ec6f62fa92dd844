"""The loop of rounds: a run as one compiled program, its evaluation, history and checkpoints, and who listens to it."""
