"""Evaluation of the served models on the clients' test rows; knows nothing of folders."""
