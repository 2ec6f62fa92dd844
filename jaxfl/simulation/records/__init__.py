"""Files of a run: its folder, history, checkpoints and identity; independent of compiled programs."""
