"""Error feedback: each client adds what its channel has left out of earlier messages to the next one.

With a memory e_i for each client, 0 at first, and a channel C, a client of the cohort with the update v_i

    sends C(v_i + e_i)    and stores    e_i <- v_i + e_i - C(v_i + e_i)

so that all it has sent and what it stores add up to its updates (EF-SGD: Karimireddy, Rebjock, Stich and Jaggi, "Error
Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019; there e_i is a single worker's gradient
error, here of local updates). The memory is bounded where the channel's error is shorter than its input, see
`Transform.error`. A clip is part of C, after the memory was added: what it cuts off is stored too.

Each pass over the clients with contributions has a memory of its own (FedDANE has two, StoCFL two): messages of two
passes are different quantities, such as gradients and models, and an error of one is none of the other. Clients that
send nothing that counts, without rows or with an update that is not finite, keep their memory. A client that changes
its cluster takes it along, as a clustered method has no better use for it.

The memory is rows of the clients, beside those of the method (`Method.per_client`): it can stay on the host, is in
checkpoints, and is counted by `jaxfl plan`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxfl import tree
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.methods.base import MEMORY, Info, Method, Participation, trained_once
from jaxfl.methods.parts.newcomers import count_new, pad_clients
from jaxfl.server.aggregate import Contribution
from jaxfl.typing import Array, Key

Memory = tuple[Any, ...]  # of each pass over the clients: e [N, d], or None where nothing is contributed


class Remembering(NamedTuple):
    """Functions of the wire of one round, for `with_memory`.

    Attributes:
        lengths: `(key, state, data) -> [(d, dtype) or None]`, of the message of each pass over the clients in a round.
        round: `(key, state, data, cohort, memory) -> (state, info, memory)`, a round of the method without memory.
    """

    lengths: Callable[[Key, Any, FederatedData], Sequence[tuple[int, Any] | None]]
    round: Callable[[Key, Any, FederatedData, Cohort, Memory], tuple[Any, Info, Memory]]


class WiredState(NamedTuple):
    """The state of a method, and the memory of its clients."""

    inner: Any  # of the method, with None in its field of rows, if it has one
    memory: Any  # [N, ...] those rows, and the memory of each pass

    @property
    def cluster(self) -> Array:
        """Returns the clusters of the method `[N]`."""
        return self.inner.cluster

    @property
    def round(self) -> Array:
        """Returns the number of rounds done `[]`."""
        return self.inner.round


def with_memory(method: Method, remembering: Remembering) -> Method:
    """Returns a method whose clients have a memory.

    Args:
        method: without memory.
        remembering: its rounds on a wire.
    """

    def init(key: Key, data: FederatedData) -> WiredState:
        inner = method.init(key, data)
        lengths = remembering.lengths(key, inner, data)
        memory = (None if one is None else jnp.zeros((data.num_clients, one[0]), one[1]) for one in lengths)
        return _joined(method, inner, tuple(memory))

    def round(key: Key, state: WiredState, data: FederatedData, cohort: Cohort) -> tuple[WiredState, Info]:
        inner, info, memory = remembering.round(key, _inner(method, state), data, cohort, _parts(state.memory)[1])
        return _joined(method, inner, memory), info

    def assign(key: Key, state: WiredState, data: FederatedData, cohort: Cohort) -> WiredState:
        return _with_inner(method, state, method.assign(key, _inner(method, state), data, cohort))

    def grow(state: WiredState) -> WiredState:
        assert method.grow is not None
        return state._replace(inner=method.grow(state.inner))

    def join(key: Key, state: WiredState, data: FederatedData, ids: Sequence[int]) -> tuple[WiredState, Array]:
        assert method.join is not None
        if not count_new(state.cluster, data.num_clients):
            inner, clusters = method.join(key, state.inner, data, ids)
            return state._replace(inner=inner), clusters
        inner, clusters = method.join(key, _inner(method, state), data, ids)
        memory = tuple(None if one is None else pad_clients(one, data.num_clients) for one in _parts(state.memory)[1])
        return _joined(method, inner, memory), clusters

    def shortfall(state: WiredState, data: FederatedData, participation: Participation) -> str:
        own = "" if method.shortfall is None else method.shortfall(state.inner, data, participation)
        once = "" if method.per_client is None else trained_once(participation, method.per_client)
        return " ".join(filter(None, (own, once)))

    adapt = method.adapt
    return method._replace(
        init=init,
        round=round,
        client_params=lambda state, ids: method.client_params(_inner(method, state), ids),
        assign=assign,
        grow=None if method.grow is None else grow,
        join=None if method.join is None else join,
        per_client=MEMORY,
        shortfall=shortfall,
        adapt=adapt and (lambda key, state, *given: adapt(key, _inner(method, state), *given)),
    )


def remember(many: Sequence[Contribution], counts: Sequence[Array], wanted: Array, sent: Array, held: Array) -> Array:
    """Returns a client's memory `[d]` after a message.

    Args:
        many: the contributions that are the message.
        counts: of each, whether it counts `[]` bool; the memory of others is unchanged.
        wanted: `[d]` the update and the memory.
        sent: `[d]` what the server receives of it.
        held: `[d]` the memory before.
    """
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(one.values)) for one in many]
    places = [sum(sizes[:number]) for number in range(1, len(sizes))]
    left = (wanted - sent).astype(held.dtype)
    parts = zip(counts, *(jnp.split(vector, places) for vector in (left, held)), strict=True)
    return jnp.concatenate([jnp.where(count & jnp.isfinite(new).all(), new, old) for count, new, old in parts])


def _parts(rows: Any) -> tuple[Any, Any]:
    """Returns the method's rows, and the memory of each pass."""
    own, memory = rows.parts() if isinstance(rows, tree.Rows) else rows
    return own, memory.parts() if isinstance(memory, tree.Rows) else memory


def _inner(method: Method, state: WiredState) -> Any:
    """Returns the state of the method with its rows."""
    if method.per_client is None:
        return state.inner
    return tree.with_field(state.inner, method.per_client, _parts(state.memory)[0])


def _joined(method: Method, inner: Any, memory: Memory) -> WiredState:
    """Returns the state of the method with the memory."""
    own = None
    if method.per_client is not None:
        own, inner = getattr(inner, method.per_client), tree.with_field(inner, method.per_client, None)
    return WiredState(inner, tree.joined_rows((own, memory)))


def _with_inner(method: Method, state: WiredState, inner: Any) -> WiredState:
    """Returns the state with another one of the method, whose rows are unchanged."""
    return state._replace(inner=inner if method.per_client is None else tree.with_field(inner, method.per_client, None))
