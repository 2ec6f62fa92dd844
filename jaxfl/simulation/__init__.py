"""The simulation of a run: compiled rounds, evaluations, history, checkpoints and callbacks."""
