"""Rows of clients that stay on the host: streamed data, and per-client fields of the state."""
