"""Evaluation of the served models on the clients' test rows; independent of folders."""
