"""Accuracy by simulated time: synchronous rounds, a deadline and FedBuff under three clocks."""
