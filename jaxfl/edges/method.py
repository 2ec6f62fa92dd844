"""Methods on edge servers: each edge makes rounds of its own, and the cloud averages the edges' models."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import engine, tree
from jaxfl.clock.asynchronous import refusal
from jaxfl.clock.policies import Policy
from jaxfl.clock.rounds import RoundTimes, timed_round
from jaxfl.cohort import Cohort, Plan
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import Info, Method, Participation, Round, keep_clusters, served_model, takes_part
from jaxfl.methods.hyperparameters import attach, hyperparameters_of
from jaxfl.sampling import Sampler, draw_cohort
from jaxfl.typing import Array, Key, Params

ROWS = "rows"  # the field of the clients' own rows
CLOUD_BYTES = "bytes_cloud"  # between edges and cloud since the start, up and down, in `info.extra`


class EdgeState(NamedTuple):
    """The states of a method on all edge servers, and in the cloud."""

    cloud: Any  # of the method, with None in its field of rows, if it has one
    edges: Any  # [E, ...] likewise
    rows: Any  # [N, ...] those rows
    elapsed: Array  # [E] float32: seconds of each edge since the last step of the cloud

    @property
    def cluster(self) -> Array:
        """Returns the clusters of the method `[N]`."""
        return self.cloud.cluster

    @property
    def round(self) -> Array:
        """Returns the number of rounds done `[]`."""
        return self.cloud.round


class EdgeLayout(NamedTuple):
    """The edge servers of a run.

    Attributes:
        edge: of each client, as a tuple of N numbers from 0.
        rounds: of an edge between two steps of the cloud.
        up, down: bits a second of each edge, to the cloud and from it.
        cohort: clients of a round of an edge.
    """

    edge: tuple[int, ...]
    rounds: int
    up: float
    down: float
    cohort: int

    @property
    def count(self) -> int:
        """The number of edges."""
        return max(self.edge) + 1


class EdgeRounds(NamedTuple):
    """The rounds of a method on edge servers, for `Method.own_rounds`.

    Attributes:
        method: of one server.
        layout: the edges.
    """

    method: Method
    layout: EdgeLayout

    def round(
        self,
        train: Round,
        policy: Policy | None,
        key: Key,
        state: EdgeState,
        data: FederatedData,
        sampler: Sampler,
        plan: Plan,
    ) -> tuple[EdgeState, Cohort, Info, RoundTimes | None]:
        """Returns the state after a round of every edge, its clients, the info and the times; traceable.

        Args:
            train: the round of the method, or that with a wire.
            policy: of a run with a clock, for the rounds of an edge; None has no clock.
            key: of the run.
            state: before.
            data: the federation in this round.
            sampler: draws the cohort of each edge among its clients.
            plan: chunk and devices.
        """
        method, layout = self.method, self.layout
        edge, size = jnp.asarray(layout.edge, jnp.int32), layout.cohort
        if policy is not None:
            policy = policy._replace(cohort=size)
            size = size if policy.waits_for_all else policy.asked(size)

        def of_edge(rows: Params, given: tuple[Any, Array]) -> tuple[Params, tuple]:
            inner, number = given
            others = edge != number
            held_out = others if data.held_out is None else others | jnp.asarray(data.held_out)
            own = dataclasses.replace(data, held_out=held_out)
            cohort = draw_cohort(sampler, key, state.round, own, size, plan)
            cohort = engine.by_size(data, dataclasses.replace(cohort, mask=cohort.mask & ~held_out[cohort.ids]))
            inner, times = _with_rows(method, inner, rows), None
            if policy is None:
                inner, info = train(key, inner, data, cohort)
            else:
                inner, cohort, info, times = timed_round(method, train, policy, key, inner, data, cohort)
            rows, inner = _without_rows(method, inner)
            return rows, (inner, cohort.ids, cohort.mask, info, times)

        rows, (edges, ids, mask, info, times) = jax.lax.scan(
            of_edge, state.rows, (state.edges, jnp.arange(layout.count, dtype=jnp.int32))
        )
        done = state.round + 1
        steps = done % layout.rounds == 0
        cloud = jax.tree.map(lambda leaf: _mean(leaf, _weights(edge, data, layout.count)), edges)
        edges = tree.where(steps, tree.repeat(cloud, layout.count), edges)
        cloud = tree.where(steps, cloud, state.cloud)
        cloud = tree.with_field(cloud, "round", done)
        size_each = float(tree.num_bytes(served_model(method, _with_rows(method, cloud, rows))))
        exchanged = (done // layout.rounds).astype(jnp.float32) * (2 * layout.count * size_each)
        extra = {name: value.mean(0) for name, value in info.extra.items() if value.ndim == 1}
        joined = Info(
            loss=info.loss.reshape(-1),
            cluster=info.cluster.reshape(-1),
            num_clusters=info.num_clusters[0],
            diverged=info.diverged.sum(dtype=jnp.int32),
            bytes_up=info.bytes_up.sum(),
            bytes_down=info.bytes_down.sum(),
            overflow=info.overflow.max(),
            extra={**extra, CLOUD_BYTES: exchanged},
        )
        elapsed = state.elapsed
        if times is not None:
            elapsed = elapsed + times.end
            to_cloud = jnp.where(steps, 8 * size_each * (1 / layout.up + 1 / layout.down), 0).astype(jnp.float32)
            end = elapsed.max() - state.elapsed.max() + to_cloud
            waited = None if times.waited is None else times.waited.any()
            cut = None if times.bytes_down is None else times.bytes_down.sum()
            times = RoundTimes(times.asked.reshape(-1), times.seconds.reshape(-1), end, waited, cut)
            elapsed = jnp.where(steps, 0, elapsed)
        cohort = Cohort(ids.reshape(-1), mask.reshape(-1), plan)
        return EdgeState(cloud, edges, rows, elapsed), cohort, joined, times


def on_edges(method: Method, layout: EdgeLayout, data: FederatedData) -> Method:
    """Returns a method on edge servers.

    Args:
        method: whose round is one average of one model.
        layout: the edges.
        data: the federation.

    Raises:
        ValueError: the method has another round.
    """
    if method.privacy is not None or method.own_rounds is not None or refusal(method, data.in_programs(), "fedasync"):
        raise ValueError(
            f"edges must be none for a method whose round is not one average, got {layout.count}: the cloud averages "
            "models of rounds that one server could make alone; take fedavg, fedprox or fedper."
        )
    found = hyperparameters_of(method)
    made = _on_edges(method, layout)
    return made if found is None else attach(_family(found.build, layout), dict(found.values), made)


@functools.lru_cache
def _family(build: Any, layout: EdgeLayout) -> Any:
    """Returns a function that makes the method of hyperparameters on edges; the same one for equal arguments."""
    return lambda values: _on_edges(build(values), layout)


def _on_edges(method: Method, layout: EdgeLayout) -> Method:
    def init(key: Key, data: FederatedData) -> EdgeState:
        rows, cloud = _without_rows(method, method.init(key, data))
        return EdgeState(cloud, tree.repeat(cloud, layout.count), rows, jnp.zeros(layout.count, jnp.float32))

    def round(key: Key, state: EdgeState, data: FederatedData, cohort: Cohort) -> tuple[Any, Info]:
        raise ValueError("edge servers draw their clients themselves; run the method by jaxfl.run.")

    def assign(key: Key, state: EdgeState, data: FederatedData, cohort: Cohort) -> EdgeState:
        inner = method.assign(key, _with_rows(method, state.cloud, state.rows), data, cohort)
        return state._replace(cloud=_without_rows(method, inner)[1])

    def shortfall(state: EdgeState, data: FederatedData, participation: Participation) -> str:
        own = ""
        if method.shortfall is not None:
            own = method.shortfall(_with_rows(method, state.cloud, state.rows), data, participation)
        left = int(state.round) % layout.rounds
        late = (
            f"The last {left} rounds have not reached the cloud, whose model clients are served: make rounds a "
            f"multiple of edge_rounds={layout.rounds}."
        )
        return " ".join(filter(None, (own, late if left else "")))

    adapt = method.adapt
    return method._replace(
        init=init,
        round=round,
        client_params=lambda state, ids: method.client_params(_with_rows(method, state.cloud, state.rows), ids),
        assign=keep_clusters if method.assign is keep_clusters else assign,
        join=None,
        per_client=None if method.per_client is None else ROWS,
        shortfall=shortfall,
        adapt=adapt and (lambda key, state, *given: adapt(key, _with_rows(method, state.cloud, state.rows), *given)),
        own_rounds=EdgeRounds(method, layout),
    )


def _weights(edge: Array, data: FederatedData, count: int) -> Array:
    """Returns the share of the rows that each edge has of those clients that take part `[E]`."""
    rows = jnp.where(takes_part(data), jnp.asarray(data.train.size), 0).astype(jnp.result_type(float))
    sums = jnp.zeros(count, rows.dtype).at[edge].add(rows)
    return sums / sums.sum()


def _mean(leaf: Array, weights: Array) -> Array:
    """Returns the weighted mean of an array of all edges `[E, ...]`; of whole numbers, those of the first."""
    if not jnp.issubdtype(leaf.dtype, np.inexact):
        return leaf[0]
    return (tree.along(weights, leaf).astype(leaf.dtype) * leaf).sum(0)


def _with_rows(method: Method, inner: Any, rows: Params) -> Any:
    """Returns a state of the method with the rows of its clients."""
    return inner if method.per_client is None else tree.with_field(inner, method.per_client, rows)


def _without_rows(method: Method, inner: Any) -> tuple[Params, Any]:
    """Returns the rows of the clients, or None, and a state of the method without them."""
    if method.per_client is None:
        return None, inner
    return getattr(inner, method.per_client), tree.with_field(inner, method.per_client, None)
