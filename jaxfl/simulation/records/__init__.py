"""Files of a run: its folder, history, checkpoints and identity; knows nothing of compiled programs."""
