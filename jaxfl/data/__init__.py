"""Federated data: packed clients, skews with known groups, and the sources they are cut from."""

from jaxfl.data.clients import Batch, Cohort, FederatedData, Plan, Split, federate

__all__ = ["Batch", "Cohort", "FederatedData", "Plan", "Split", "federate"]
