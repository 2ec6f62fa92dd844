"""Regrouping before the training of a StoCFL round: newcomers become clusters of their own, and clusters merge.

Zeng et al., "Stochastic Clustered Federated Learning", 2023, Algorithm 1, lines 7 to 13. `StoCFLRule` has the choices
that the paper leaves open, or where its official code differs.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp

from jaxfl import tree
from jaxfl.cohort import Cohort
from jaxfl.methods.averaging import Update
from jaxfl.methods.stocfl import merging
from jaxfl.methods.stocfl.memory import StoCFLState
from jaxfl.methods.stocfl.representation import Observation, RepresentationKind
from jaxfl.schema import is_known
from jaxfl.typing import Array, Params


class StoCFLRule(NamedTuple):
    """The choices of StoCFL; `stocfl` describes the fields."""

    representation: RepresentationKind
    normalise: bool
    members: Literal["observed", "sampled"]
    compare: Literal["observed", "sampled"]
    newcomers: Literal["initial", "global"]
    update: Update
    threshold: float | Literal["auto"]
    linkage: Literal["single", "greedy"]
    keep: Literal["clients", "clusters"]

    def check(self) -> None:
        """Raises ValueError if the threshold is NaN, or two fields contradict each other."""
        if is_known(self.threshold) and self.threshold != self.threshold:
            raise ValueError('threshold must be a number or "auto", got nan.')
        if self.threshold == "auto" and not self.normalise:
            raise ValueError(
                'normalise must be True with threshold="auto", got False: noise is measured at length 1; leave it out.'
            )
        if self.members == "sampled" and self.compare == "observed":
            raise ValueError(
                'compare must be "sampled" with members="sampled", got "observed": a cluster without a sampled member '
                "has no representation."
            )
        if self.members == "sampled" and self.keep == "clusters":
            raise ValueError(
                'keep must be "clients" with members="sampled", got "clusters": sums do not have the members\' Psi.'
            )


def regrouping(
    rule: StoCFLRule, omega: Callable[[StoCFLState], Params]
) -> Callable[[StoCFLState, Array, Cohort, Observation, Array], tuple[StoCFLState, merging.Merged]]:
    """Returns `regroup(state, rows [N], cohort, observation, newcomer [C]) -> (state, merged)`.

    `observation` has the representations of the cohort's newcomers, and `rows` every client's number of training rows.

    Args:
        rule: of StoCFL.
        omega: `state -> model`, the current global model.
    """
    group = merging.grouping(rule.linkage, rule.threshold)

    def regroup(
        state: StoCFLState, rows: Array, cohort: Cohort, observation: Observation, newcomer: Array
    ) -> tuple[StoCFLState, merging.Merged]:
        count, num_clients = state.slots, state.cluster.shape[0]
        order = jnp.argsort(cohort.ids)
        ids, mask, newcomer, psi = cohort.ids[order], cohort.mask[order], newcomer[order], observation.psi[order]
        new = jnp.where(newcomer, ids, num_clients)  # out of range: dropped
        state = state._replace(agreement=state.agreement.at[new].set(observation.agreement[order], mode="drop"))
        size = state.sizes()
        here = jnp.zeros(num_clients, bool).at[jnp.where(mask, ids, num_clients)].set(True, mode="drop")
        sampled = jnp.where(here, state.cluster, -1)  # [N]
        represents = sampled if rule.members == "sampled" else state.cluster
        may_merge = merging.cluster_sizes(sampled, count) > 0 if rule.compare == "sampled" else size > 0
        nodes = jnp.concatenate([state.memory.sums(represents, count), psi])  # [K + C, d]
        noise = jnp.zeros(nodes.shape[0], jnp.float32)
        if rule.threshold == "auto":
            of_clients, of_sums = state.noise(rows, (state.cluster >= 0).at[new].set(True, mode="drop"), represents)
            noise = jnp.concatenate([of_sums, of_clients[ids]])
        merged = merging.merge(nodes, noise, size, may_merge, state.cluster, ids, newcomer, group)
        memory = state.memory.merged(nodes, merged.to, new)
        return state._replace(models=models_after(state, merged), memory=memory, cluster=merged.cluster), merged

    def models_after(state: StoCFLState, merged: merging.Merged) -> Params:
        """Returns the models `[K, ...]` of all clusters after the merge, and of new ones."""
        fresh = state.initial if rule.newcomers == "initial" else omega(state)
        return tree.where(merged.opened, tree.repeat(fresh, state.slots), state.models)

    return regroup
