"""The rule of CFL's splits: thresholds, comparison of clients, and the clusters that are ready.

`methods.cfl` has the paper and its terms; `splitting` divides a cluster.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxfl.clustering import distances
from jaxfl.clustering.linkage import Bipartition
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import takes_part
from jaxfl.methods.cfl import splitting
from jaxfl.methods.cfl.state import CFLState, comparable
from jaxfl.methods.parts.vectors import Compared
from jaxfl.schema import is_known, is_zero
from jaxfl.server.aggregate import Weighting
from jaxfl.typing import Array

ClientMetric = Literal["cosine", "l2"]
SIMILARITIES = {
    "cosine": distances.cosine,
    "l2": lambda vectors: -distances.l2(vectors),  # the nearer, the more similar
}


class SplitRule(NamedTuple):
    """Thresholds, linkage and comparison of the splits, and the weights of averaging; `cfl` describes the fields."""

    relative: bool
    eps1: float
    eps2: float
    gamma_max: float
    linkage: Bipartition
    weighting: Weighting
    layers: str | Sequence[str]
    warmup_rounds: int
    rounds_between: int
    min_clients: int
    metric: ClientMetric
    compare: Compared

    def check(self) -> None:
        """Raises ValueError if a field is out of range."""
        for name in ("eps1", "eps2", "gamma_max"):
            if is_known(getattr(self, name)) and not getattr(self, name) >= 0:  # NaN too
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}.")
        if is_known(self.gamma_max) and self.gamma_max > 1 and not self.relative:
            raise ValueError(
                f"gamma_max must be at most 1, got {self.gamma_max}; relative=True takes larger multiples."
            )
        for name, low in {"warmup_rounds": 0, "rounds_between": 1, "min_clients": 2}.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be at least {low}, got {getattr(self, name)}.")


def ready_clusters(rule: SplitRule, state: CFLState, mean_norm: Array, active: Array, data: FederatedData) -> Array:
    """Returns the clusters that may be split in this round `[K]` bool.

    Args:
        rule: of the splits.
        state: with the reports of this round's clients.
        mean_norm: of the clusters' mean updates `[K]`.
        active: clusters with a contribution in this round `[K]`.
        data: the federation.
    """
    member = state.cluster[:, None] == jnp.arange(active.shape[0], dtype=jnp.int32)[None, :]  # [N, K]
    largest_update, largest_layers = (  # [K] max_i |D_i|
        jnp.where(member, norm[:, None], 0).max(0) for norm in (state.update_norm, state.layers_norm)
    )
    stationary = mean_norm < rule.eps1 * (largest_update if rule.relative else 1)
    clients_move = largest_layers > rule.eps2 * (state.largest if rule.relative else 1)
    waits = (member & (~state.trained & takes_part(data))[:, None]).any(0)  # for members yet to train
    enough = (member & comparable(state)[:, None]).sum(0) >= rule.min_clients
    due = (state.round + 1 - state.formed >= rule.rounds_between) & (state.round >= rule.warmup_rounds)
    return stationary & clients_move & active & ~waits & enough & due


def split_if_ready(rule: SplitRule) -> Callable[[CFLState, Array], splitting.Division]:
    """Returns `divide(state, ready [K]) -> division`, which compares clients only if some cluster is ready."""
    accept = acceptance(rule)

    def divide(state: CFLState, ready: Array) -> splitting.Division:
        def compare_and_split() -> splitting.Division:
            able = comparable(state)
            # a client without a report has a zero vector, far from all weights, which would cost the distances digits
            vectors = jnp.where(able[:, None], state.vectors, state.vectors[jnp.argmax(able)])
            similarity = SIMILARITIES[rule.metric](vectors)
            return splitting.split(similarity, state.cluster, able, ready, linkage=rule.linkage, accept=accept)

        unchanged = splitting.no_division(state.cluster, ready.shape[0])
        return jax.lax.cond(ready.any(), compare_and_split, lambda: unchanged)

    return divide


def acceptance(rule: SplitRule) -> splitting.Accept:
    """Returns the function that decides whether a split is kept."""
    if is_zero(rule.gamma_max) or (rule.metric == "l2" and not rule.relative):
        return splitting.keep_all
    if not rule.relative:
        return splitting.keep_above(rule.gamma_max)
    if rule.metric == "cosine":
        return splitting.keep_above_peers(rule.gamma_max)
    return splitting.keep_above_peers(rule.gamma_max, jnp.negative)
