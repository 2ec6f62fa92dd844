"""The contract of a method: a few pure functions and what they return.

To write a method, write a factory that returns a `Method`, add a `Row` to `GLOBAL`, `PERSONAL` or `CLUSTERED` of
`jaxfl.methods`, and run `jaxfl.testing.check_method(row)`: the battery that every method in jaxfl passes.
`tests/methods/example_method.py` is the file to imitate.

A state is a pytree of arrays whose shapes and dtypes never change while a run goes on. It holds what the next round
needs, and by convention two fields that the simulator reads:

- `round []` int32: rounds done so far; the address of this round's random numbers;
- `cluster [N]` int32: the slot of the model that each client is served; clients with the same slot are served the same
  model (the evaluation relies on it and the battery tests it). -1 is the model of clients that no cluster has yet.

Clusters are slots `[K, ...]`: a split fills one, a merge frees one. A method whose number of clusters can grow beyond
its slots says with `info.overflow` how often they must double; the simulator then undoes the round and calls `grow` so
often.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp

from jaxfl import tree
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.schema import function_options
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

State = TypeVar("State")
Reads = Literal["cohort", "everybody"]


class Info(NamedTuple):
    """What a person wants to see of one round."""

    loss: Array  # [C] mean training loss on the way
    cluster: Array  # [C] int32 slot that each client trained in
    num_clusters: Array  # [] int32
    diverged: Array  # [] int32 clients left out because their model was not finite, see `tree.is_finite`
    bytes_up: Array  # [] float32, all clients together; in the first round with what they exchanged before it
    bytes_down: Array  # [] float32
    overflow: Array  # [] int32: how often the slots must double to be enough; unless 0 the round must be undone
    extra: dict[str, Array]


class Init(Protocol):
    """The type of `Method.init`. These types name arguments for a type checker; nothing is checked while a run goes."""

    def __call__(self, key: Key, data: FederatedData) -> Any:
        """Returns the first state."""
        ...


class Round(Protocol):
    """The type of `Method.round`."""

    def __call__(self, key: Key, state: Any, data: FederatedData, cohort: Cohort) -> tuple[Any, Info]:
        """Returns the state after a round, and what it says of the round."""
        ...


class ClientParams(Protocol):
    """The type of `Method.client_params`."""

    def __call__(self, state: Any, ids: Array) -> Params:
        """Returns the models `[C, ...]` that the clients `ids [C]` are served."""
        ...


class Assign(Protocol):
    """The type of `Method.assign`."""

    def __call__(self, key: Key, state: Any, data: FederatedData, cohort: Cohort) -> Any:
        """Returns the state with `cluster` up to date for the cohort."""
        ...


class Grow(Protocol):
    """The type of `Method.grow`."""

    def __call__(self, state: Any) -> Any:
        """Returns the state with twice the slots."""
        ...


class Join(Protocol):
    """The type of `Method.join`."""

    def __call__(self, key: Key, state: Any, data: FederatedData, ids: Sequence[int]) -> tuple[Any, Array]:
        """Returns the state with the clients `ids` of `data` let in, and their clusters `[C]`."""
        ...


def keep_clusters(key: Key, state: Any, data: FederatedData, cohort: Cohort) -> Any:
    """Returns the state as it is: clients are served the cluster that they were last trained in."""
    return state


class Method(NamedTuple):
    """A federated learning method.

    Attributes:
        init: `(key, data) -> state`.
        round: `(key, state, data, cohort) -> (state, info)`; `key` is the key of the run, the same in every round.
        client_params: `(state, ids [C]) -> models [C, ...]`, the model that each client is served.
        task: what is learned; the evaluation asks it for outputs and metrics.
        assign: `(key, state, data, cohort) -> state` whose `cluster` is up to date for the cohort (all clients), those
            never sampled too, by the method's own rule. Evaluation calls it; training never sees its result.
        grow: `state -> state` with twice the slots, or None if the slots always suffice.
        join: `(key, state, data, ids) -> (state, clusters)`: lets clients of `data` in between two rounds, see
            `jaxfl.methods.stocfl.joining`; None if the method has no rule for it. A run calls it for clients that
            arrive (see `jaxfl.data.drift`), and without it serves them as `assign` serves those that are held out.
        reads: whose rows are read: those of the `"cohort"` alone, by `round` and by `assign`, and nobody's by `init`;
            or `"everybody"`'s. Who only reads the cohort's rows can train clients whose rows do not fit the device, see
            `jaxfl.simulation.host.streaming`, and on several devices each has the rows of its own clients alone:
            `round` passes its cohort to `over_clients` as it is. Sizes and what else is known of clients `[N]` may be
            read in any case.
        per_client: the state's field that has a row for each client, `[N, ...]`, such as its model; None if there is
            none. `init` gives everybody the same row; `round` and `client_params` reach rows by `over_owners`,
            `tree.take` and `tree.put`, those of their cohort or ids alone. Then the field can be larger than the
            device's memory, see `jaxfl.simulation.host.rows`.
    """

    init: Init
    round: Round
    client_params: ClientParams
    task: Task
    assign: Assign = keep_clusters
    grow: Grow | None = None
    join: Join | None = None
    reads: Reads = "cohort"
    per_client: str | None = None


class Row(NamedTuple):
    """A line of the registry.

    Attributes:
        factory: returns the method: `factory(task, optimizer, **options)`.
        summary: one line for `jaxfl methods`.
        paper: where it is from.
        small: options for the battery's small federation of two planted groups.
        finds_clusters: the battery asks for the planted groups, exactly.
        presets: by preset, what an option stands for whose default is None; the first is the usual one.
        adapts: the option that is the rate of the step which each client takes with the model that it is served; runs
            by name test the model after it, too. None where clients use the model as it is.
        network: of `jaxfl.models`, that the examples of its page take.
    """

    factory: Callable[..., Method]
    summary: str
    paper: str
    small: dict[str, Any] = {}
    finds_clusters: bool = False
    presets: Mapping[str, Mapping[str, Any]] = {}
    adapts: str | None = None
    network: str = "mlp"

    @property
    def options(self) -> dict[str, Any]:
        """Returns the keyword-only options of the factory and their defaults; `jaxfl.schema` tells more of them."""
        return {name: option.default for name, option in function_options(self.factory).items()}


def info(
    cohort: Cohort,
    loss: Array,
    cluster: Array,
    *,
    num_clusters: Array | int,
    diverged: Array,
    up: Params,
    down: Params,
    overflow: Array | int = 0,
    **extra: Array,
) -> Info:
    """Returns an `Info`; `up` and `down` are what one client sends and receives, counted for every real client.

    Args:
        cohort: who took part.
        loss: `[C]`.
        cluster: `[C]`.
        num_clusters: clusters alive after the round.
        diverged: clients left out.
        up: pytree of arrays or shapes that one client sends.
        down: pytree of arrays or shapes that one client is sent.
        overflow: see `Info`.
        **extra: arrays of the method's own.
    """
    real = cohort.mask.sum()
    return Info(
        loss=loss,
        cluster=cluster,
        num_clusters=jnp.asarray(num_clusters, jnp.int32),
        diverged=diverged,
        bytes_up=traffic(real, up),
        bytes_down=traffic(real, down),
        overflow=jnp.asarray(overflow, jnp.int32),
        extra=extra,
    )


def traffic(clients: Array, each: Params) -> Array:
    """Returns the bytes `[]` float32 that clients send if each of them sends a pytree of arrays or shapes.

    Args:
        clients: how many, `[]`.
        each: what one sends; it may be larger than the 2 GB that an integer of JAX can count.

    >>> float(traffic(jnp.int32(10), jax.ShapeDtypeStruct((2**30,), jnp.float32))) / 2**30
    40.0
    """
    return clients.astype(jnp.float32) * float(tree.num_bytes(each))


def from_preset(presets: Mapping[str, Mapping[str, Any]], preset: str, **given: Any) -> dict[str, Any]:
    """Returns the options of a preset; what is given (not None) wins.

    >>> from_preset({"paper": {"mu": 0.1, "layers": ".*"}}, "paper", mu=0.5, layers=None)
    {'mu': 0.5, 'layers': '.*'}
    """
    return {**presets[preset], **{name: value for name, value in given.items() if value is not None}}


def doublings(needed: Array, slots: int) -> Array:
    """Returns how often the slots must double to hold the needed clusters `[]` int32.

    >>> [int(doublings(jnp.int32(needed), 4)) for needed in (0, 4, 5, 8, 9, 400)]
    [0, 0, 1, 1, 2, 7]
    """
    sizes = slots * 2 ** jnp.arange(31 - slots.bit_length(), dtype=jnp.int32)  # below 2^31
    return (needed.astype(jnp.int32) > sizes).sum(dtype=jnp.int32)


def doubled(grow: Callable[[State], State], state: State, times: int | Array) -> State:
    """Returns the state after its slots were doubled so often.

    Args:
        grow: of the method.
        state: before.
        times: `info.overflow`.

    >>> doubled(lambda slots: 2 * slots, 3, times=2)
    12
    """
    for _ in range(int(times)):
        state = grow(state)
    return state


def serve_one(model: Params, ids: Array) -> Params:
    """Returns the one global model for every id: `[C, ...]` views of it."""
    return tree.repeat(model, ids.shape[0])


def write_clusters(cluster: Array, cohort: Cohort, found: Array) -> Array:
    """Returns `cluster [N]` with the cohort's new clusters `[C]` written in; padding writes nothing."""
    ids = jnp.where(cohort.mask, cohort.ids, cluster.shape[0])  # out of range: dropped
    return cluster.at[ids].set(found.astype(cluster.dtype), mode="drop")


def served_model(method: Method, state: Any) -> Params:
    """Returns the shapes of the model that a client is served; `state` may be shapes as well."""
    models = jax.eval_shape(method.client_params, state, jax.ShapeDtypeStruct((1,), jnp.int32))
    return shape_of(models)


def shape_of(model: Params) -> Params:
    """Returns the shapes of one model of a stack `[K, ...]`."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), model)


def slots_of(models: Params) -> int:
    """Returns K, the number of models of a stack `[K, ...]`."""
    return jax.tree.leaves(models)[0].shape[0]


def check_clusters(num_clusters: int, data: FederatedData) -> None:
    """Raises ValueError if there are more clusters than clients."""
    if num_clusters > data.num_clients:
        raise ValueError(
            f"num_clusters must be at most the number of clients ({data.num_clients}), got {num_clusters}; "
            "lower num_clusters or use more clients."
        )


def takes_part(data: FederatedData) -> Array:
    """Returns who has rows and is not held out `[N]`."""
    rows = jnp.asarray(data.train.size) > 0
    return rows if data.held_out is None else rows & ~jnp.asarray(data.held_out)


def present(data: FederatedData) -> Array:
    """Returns who is there in this round, held out or not `[N]`."""
    return jnp.ones(data.num_clients, bool) if data.absent is None else ~jnp.asarray(data.absent)
