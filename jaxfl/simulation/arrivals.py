"""Clients that arrive in the middle of a run are let in, each into a cluster, before they first train."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxfl import tree
from jaxfl.cohort import Plan
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Method, keep_clusters
from jaxfl.simulation import kept_rows
from jaxfl.simulation.evaluate import assigned
from jaxfl.simulation.rows_here import with_field
from jaxfl.typing import Key


def arriving(data: FederatedData) -> np.ndarray:
    """Returns the clients `[M]` that are absent before the drift and there afterwards; ascending.

    >>> from jaxfl.data import load
    >>> len(arriving(load("rotated-digits", drift_round=5, arrive=0.25, leave=0.1)))
    10
    """
    if data.absent is None or data.drift is None:  # without a drift, nobody comes
        return np.zeros(0, int)
    before, after = (np.asarray(one.absent) for one in data.phases)
    return np.flatnonzero(before & ~after)


def let_in(method: Method, key: Key, state: Any, data: FederatedData, plan: Plan) -> Any:
    """Returns the state after the arriving clients were let in: by `Method.join`, or served like unseen ones.

    Methods without a rule for either leave them where they start.

    Args:
        method: the method.
        key: of the run.
        state: after the rounds before the drift.
        data: the federation, with its drift; somebody arrives.
        plan: chunk and devices of the run.
    """
    before, after = data.phases
    ids = arriving(data)
    if method.join is not None:
        return tree.placed(method.join(key, state, after, ids.tolist())[0], plan.place)
    if method.assign is keep_clusters:
        return state
    unseen = dataclasses.replace(after, held_out=before.held_out)  # so that rules for unseen clients are theirs
    here = ids.astype(np.int32)
    found = assigned(method, plan, key, kept_rows.at_hand(state, here, plan.place), unseen, here)
    return _in_clusters(state, found, ids, plan)


def _in_clusters(state: Any, found: Any, ids: np.ndarray, plan: Plan) -> Any:
    """Returns the state with some clients in the clusters that were found; and so the state of a solver in it."""
    cluster = np.array(state.cluster)
    cluster[ids] = np.asarray(found.cluster)[ids]
    state = with_field(state, "cluster", tree.placed(jnp.asarray(cluster), plan.place))
    solver = getattr(state, "solver", None)
    if not hasattr(solver, "cluster"):
        return state
    return with_field(state, "solver", _in_clusters(solver, found.solver, ids, plan))
