"""The contract of a method: its pure functions, its state and the `Info` of a round.

To write a method, write a factory that returns a `Method`, add a `Row` to `GLOBAL`, `PERSONAL` or `CLUSTERED` of
`jaxfl.methods`, and run `jaxfl.testing.check_method(row)`: the battery that every method in jaxfl passes.
`tests/methods/example_method.py` is the example to follow.

A state is a pytree of arrays whose shapes and dtypes never change while a run goes on. It holds what the next round
needs, and by convention two fields that the simulator reads:

- `round []` int32: rounds done so far; the address of this round's random numbers;
- `cluster [N]` int32: the slot of each client's served model; clients with the same slot have the same one in
  `client_params` (the evaluation relies on it and the battery tests it). -1 is for clients that are in no cluster yet.

Clusters are slots `[K, ...]`: a split fills one, a merge frees one. Where the number of clusters can grow beyond the
slots, `info.overflow` is the number of times that the slots must double; the simulator then undoes the round and calls
`grow` that many times.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxfl import tree
from jaxfl.cohort import Cohort
from jaxfl.data.clients import FederatedData
from jaxfl.methods.exposure import Seen, ServerSees, given_options, seen_with
from jaxfl.methods.hyperparameters import Hyperparameters
from jaxfl.methods.newcomer import Newcomer
from jaxfl.schema import function_options
from jaxfl.server.wire_context import active_wire
from jaxfl.tasks import Task
from jaxfl.typing import Array, Key, Params

State = TypeVar("State")
Reads = Literal["cohort", "everybody"]


class Info(NamedTuple):
    """Numbers of one round for people; no later round reads them."""

    loss: Array  # [C] mean training loss over the local steps
    cluster: Array  # [C] int32 slot that each client trained in
    num_clusters: Array  # [] int32
    diverged: Array  # [] int32 clients left out because their model was not finite, see `tree.is_finite`
    bytes_up: Array  # [] float32, of all clients; in the first round with the exchanges before it
    bytes_down: Array  # [] float32
    overflow: Array  # [] int32: times that the slots must double to suffice; unless 0 the round must be undone
    extra: dict[str, Array]


MEMORY = "memory"  # the field of rows that are no model: of a method with error feedback, see `jaxfl.wire.memory`
LEADING = 0.99  # least weight of a model that is the only one


class Init(Protocol):
    """The type of `Method.init`. These types name arguments for a type checker; nothing is checked during a run."""

    def __call__(self, key: Key, data: FederatedData) -> Any:
        """Returns the first state."""
        ...


class Round(Protocol):
    """The type of `Method.round`."""

    def __call__(self, key: Key, state: Any, data: FederatedData, cohort: Cohort) -> tuple[Any, Info]:
        """Returns the state after a round, and the `Info` of the round."""
        ...


class ClientParams(Protocol):
    """The type of `Method.client_params`."""

    def __call__(self, state: Any, ids: Array) -> Params:
        """Returns the served models `[C, ...]` of the clients `ids [C]`."""
        ...


class Assign(Protocol):
    """The type of `Method.assign`."""

    def __call__(self, key: Key, state: Any, data: FederatedData, cohort: Cohort) -> Any:
        """Returns the state with `cluster` up to date for the cohort."""
        ...


class Adapt(Protocol):
    """The type of `Method.adapt`."""

    def __call__(self, key: Key, state: Any, data: FederatedData, client: Array, model: Params) -> Params:
        """Returns the model that a client is served, made of its model of `client_params` and its training rows."""
        ...


class Grow(Protocol):
    """The type of `Method.grow`."""

    def __call__(self, state: Any) -> Any:
        """Returns the state with twice the slots."""
        ...


class Join(Protocol):
    """The type of `Method.join`."""

    def __call__(self, key: Key, state: Any, data: FederatedData, ids: Sequence[int]) -> tuple[Any, Array]:
        """Returns the state with the clients `ids` of `data` as members, and their clusters `[C]`."""
        ...


class Participation(NamedTuple):
    """The clients that have taken part in a run, for `Method.shortfall`.

    Attributes:
        cohort: most clients of a round.
        sampled: bool `[N]` for clients that have taken part; None where that is not known.
        twice: whether a client has taken part twice; None where that is not known.
    """

    cohort: int
    sampled: np.ndarray | None = None
    twice: bool | None = None


class Shortfall(Protocol):
    """The type of `Method.shortfall`."""

    def __call__(self, state: Any, data: FederatedData, participation: "Participation") -> str:
        """Returns sentences about what the method has not done in a run, and how to change that; or an empty text."""
        ...


class Check(Protocol):
    """The type of `Method.check`."""

    def __call__(self, data: FederatedData, cohort: int) -> None:
        """Raises ValueError if the method cannot do on a federation, with cohorts of this size, what it promises."""
        ...


def keep_clusters(key: Key, state: Any, data: FederatedData, cohort: Cohort) -> Any:
    """Returns the state unchanged: clients are served the model of the cluster that they last trained in."""
    return state


def check_nothing(data: FederatedData, cohort: int) -> None:
    """Does nothing: the method takes every federation that its task takes."""


class Method(NamedTuple):
    """A federated learning method.

    Attributes:
        init: `(key, data) -> state`.
        round: `(key, state, data, cohort) -> (state, info)`; `key` is the key of the run, the same in every round.
        client_params: `(state, ids [C]) -> models [C, ...]`, the served model of each client.
        task: what is learned; the evaluation takes outputs and metrics from it.
        assign: `(key, state, data, cohort) -> state` with `cluster` up to date for the cohort (all clients), also for
            clients never sampled, by the method's rule. Evaluation calls it; training does not use its result.
        grow: `state -> state` with twice the slots, or None if the slots always suffice.
        join: `(key, state, data, ids) -> (state, clusters)`: adds clients of `data` between two rounds, see
            `jaxfl.methods.stocfl.joining`; None if the method has no rule for it. A run calls it for clients that
            arrive (see `jaxfl.data.drift`), and without it serves them as `assign` serves held-out clients.
        reads: `"cohort"`: `round` and `assign` read the rows of their cohort alone, and `init` reads none; or
            `"everybody"`: rows of all clients are read. With `"cohort"`, the rows of all clients need not fit the
            device, see `jaxfl.simulation.host.streaming`, and each of several devices has the rows of its own clients
            alone: `round` passes its cohort to `over_clients` unchanged. Sizes and other arrays `[N]` may always be
            read.
        per_client: the state's field that has a row for each client, `[N, ...]`, such as its model; None if there is
            none. `init` gives all clients the same row; `round` and `client_params` reach the rows of their cohort or
            ids alone, by `over_owners`, `tree.take` and `tree.put`. Then the field can be larger than the device's
            memory, see `jaxfl.simulation.host.rows`.
        shortfall: `(state, data, participation) -> str`, called once after the last round, on the host: sentences
            about work of the method that could not be done, such as a clustering whose round was not reached, with the
            options that change it; an empty text if all was done. A method that runs another one passes that one's on.
            None if there is nothing to say. The summary has it, see `jaxfl.simulation.result.shortfall_of`.
        hyperparameters: the numbers that compiled programs take as an argument; None makes them constants.
        adapt: `(key, state, data, client, model) -> model`: what a client does with its own training rows before it is
            served, such as fine-tuning; `model` is that of `client_params`, and the result has its shapes. Every
            evaluation calls it for every client, held-out clients and newcomers too, and tests the result; conditions
            of clients do not apply. None serves the models of `client_params`.
        server_sees: the most that the server is sent of single clients, see `jaxfl.methods.exposure`, whose decorator
            sets it; None if it is not declared, and a method that needs to know is then refused.
        privacy: of a wired method with noise, the part that a run needs to choose its sampler and to account for its
            rounds, see `jaxfl.wire.privacy.PrivateRounds`; None of other methods.
        own_rounds: of a method whose rounds draw their clients themselves, these, see `jaxfl.clock.asynchronous` and
            `jaxfl.edges`; None of other methods.
        check: `(data, cohort) -> None`, called on the host before a run is compiled, with the number of clients in a
            cohort: raises ValueError if the method cannot do on this federation what it promises.
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
    shortfall: Shortfall | None = None
    hyperparameters: Hyperparameters | None = None
    adapt: Adapt | None = None
    server_sees: ServerSees | None = None
    privacy: Any = None
    own_rounds: Any = None
    check: Check = check_nothing


class Row(NamedTuple):
    """The registry row of a method.

    Attributes:
        factory: returns the method: `factory(task, optimizer, **options)`.
        summary: one line for `jaxfl methods`.
        paper: authors, venue and year.
        small: options for the battery's small federation of two planted groups.
        finds_clusters: whether the battery requires exactly the planted groups.
        presets: by preset, the values of options that have the default None; the first preset is the default.
        adapts: the option with the rate of the gradient step that each client takes on its served model; runs by name
            also test the model after that step. None where clients use the served model unchanged.
        network: of `jaxfl.models`, for the examples of the method's page.
        no_wire: the reason why the method takes no wire, as a clause; empty if it takes one, see `jaxfl.wired`.
        newcomers: what newcomers need and are served, with the default options first; empty if it is not declared.
    """

    factory: Callable[..., Method]
    summary: str
    paper: str
    small: dict[str, Any] = {}
    finds_clusters: bool = False
    presets: Mapping[str, Mapping[str, Any]] = {}
    adapts: str | None = None
    network: str = "mlp"
    no_wire: str = ""
    newcomers: tuple[Newcomer, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """Returns the keyword-only options of the factory and their defaults; `jaxfl.schema` has their types."""
        return {name: option.default for name, option in function_options(self.factory).items()}

    @property
    def server_sees(self) -> ServerSees:
        """Returns the most that the server is sent of single clients, with the default options."""
        return self.seen({}).level

    def seen(self, options: Mapping[str, Any]) -> Seen:
        """Returns what the server is sent with these options, see `jaxfl.methods.exposure`."""
        return seen_with(self.factory, options)

    def newcomer(self, options: Mapping[str, Any], *, joins: bool = False) -> Newcomer | None:
        """Returns what a newcomer needs with these options; None if it is not declared.

        Args:
            options: of the factory.
            joins: of a newcomer that joins between two rounds, see `Method.join`, and not of a held-out one.
        """
        given = given_options(self.factory, options, self.presets)
        fitting = [one for one in self.newcomers if one.options.items() <= given.items() and (joins or not one.joins)]
        return fitting[-1] if fitting else None


def info(
    cohort: Cohort,
    loss: Array,
    cluster: Array,
    *,
    num_clusters: Array | int,
    diverged: Array,
    up: Params,
    down: Params,
    beside: Params = (),
    overflow: Array | int = 0,
    **extra: Array,
) -> Info:
    """Returns an `Info`; the bytes of `up`, `beside` and `down` are counted for every real client.

    Args:
        cohort: the clients of the round.
        loss: `[C]`.
        cluster: `[C]`.
        num_clusters: clusters alive after the round.
        diverged: clients left out.
        up: pytree of arrays or shapes that one client contributes; a wire counts it in its own code.
        down: pytree of arrays or shapes that one client receives.
        beside: pytree of arrays or shapes that one client sends beside its contribution.
        overflow: see `Info`.
        **extra: other arrays of the method.
    """
    real, wire = cohort.mask.sum(), active_wire()
    sent = tree.num_bytes(up) if wire is None else wire.num_bytes(up)
    return Info(
        loss=loss,
        cluster=cluster,
        num_clusters=jnp.asarray(num_clusters, jnp.int32),
        diverged=diverged,
        bytes_up=real.astype(jnp.float32) * float(sent + tree.num_bytes(beside)),
        bytes_down=traffic(real, down),
        overflow=jnp.asarray(overflow, jnp.int32),
        extra=extra,
    )


def traffic(clients: Array, each: Params) -> Array:
    """Returns the bytes `[]` float32 of a number of clients that each send a pytree of arrays or shapes.

    Args:
        clients: their number `[]`.
        each: the pytree; it may be larger than the 2 GB that an integer of JAX can count.

    >>> float(traffic(jnp.int32(10), jax.ShapeDtypeStruct((2**30,), jnp.float32))) / 2**30
    40.0
    """
    return clients.astype(jnp.float32) * float(tree.num_bytes(each))


def from_preset(presets: Mapping[str, Mapping[str, Any]], preset: str, **given: Any) -> dict[str, Any]:
    """Returns the options of a preset; given options (not None) replace its values.

    >>> from_preset({"paper": {"mu": 0.1, "layers": ".*"}}, "paper", mu=0.5, layers=None)
    {'mu': 0.5, 'layers': '.*'}
    """
    return {**presets[preset], **{name: value for name, value in given.items() if value is not None}}


def doublings(needed: Array, slots: int) -> Array:
    """Returns the times `[]` int32 that the slots must double to hold the needed clusters.

    >>> [int(doublings(jnp.int32(needed), 4)) for needed in (0, 4, 5, 8, 9, 400)]
    [0, 0, 1, 1, 2, 7]
    """
    sizes = slots * 2 ** jnp.arange(31 - slots.bit_length(), dtype=jnp.int32)  # below 2^31
    return (needed.astype(jnp.int32) > sizes).sum(dtype=jnp.int32)


def doubled(grow: Callable[[State], State], state: State, times: int | Array) -> State:
    """Returns the state after its slots were doubled a number of times.

    Args:
        grow: of the method.
        state: before.
        times: the number, `info.overflow`.

    >>> doubled(lambda slots: 2 * slots, 3, times=2)
    12
    """
    for _ in range(int(times)):
        state = grow(state)
    return state


def serve_one(model: Params, ids: Array) -> Params:
    """Returns the global model for every id: `[C, ...]` views of it."""
    return tree.repeat(model, ids.shape[0])


def write_clusters(cluster: Array, cohort: Cohort, found: Array) -> Array:
    """Returns `cluster [N]` with the cohort's new clusters `[C]` written in; padding writes nothing."""
    ids = jnp.where(cohort.mask, cohort.ids, cluster.shape[0])  # out of range: dropped
    return cluster.at[ids].set(found.astype(cluster.dtype), mode="drop")


def served_model(method: Method, state: Any) -> Params:
    """Returns the shapes of a client's served model; `state` may be shapes as well."""
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
    """Returns bool `[N]` for clients that have rows and are not held out."""
    rows = jnp.asarray(data.train.size) > 0
    return rows if data.held_out is None else rows & ~jnp.asarray(data.held_out)


def one_cluster(
    state: Any, data: FederatedData, num_clusters: int, remedy: str, sampled: np.ndarray | None = None
) -> str:
    """Returns a sentence for `Method.shortfall` if all clients that train are in one of several clusters.

    Args:
        state: with `cluster [N]`.
        data: the federation.
        num_clusters: K.
        remedy: the end of the sentence.
        sampled: bool `[N]` for clients whose cluster is known, where the others keep that of the start; None is all.

    >>> from jaxfl.data.synthetic import clustered_linear
    >>> State = NamedTuple("State", [("cluster", np.ndarray)])
    >>> one_cluster(State(np.zeros(4, int)), clustered_linear(4, rows=2, features=1), 3, "take start=groups")
    'All 4 clients are in one of num_clusters=3 clusters: take start=groups.'
    """
    placed = clients_to_train(data) & (True if sampled is None else sampled)
    found = np.asarray(state.cluster)[placed]
    if num_clusters == 1 or len(found) < 2 or len(np.unique(found)) > 1:
        return ""
    return f"All {len(found)} clients are in one of num_clusters={num_clusters} clusters: {remedy}."


def one_model_leads(weights: np.ndarray, model: str, remedy: str) -> str:
    """Returns a sentence for `Method.shortfall` if one of several models has all the weight at each client.

    Args:
        weights: of the models at clients that have trained `[M, K]`, each row with the sum 1.
        model: the method's name for a model.
        remedy: the end of the sentence.

    >>> one_model_leads(np.array([[0.0, 1.0], [0.001, 0.999]]), "learner", "take another seed")
    'One of the 2 learners has at least 99 % of the weight at all 2 clients that have trained: take another seed.'
    """
    count, models = weights.shape
    if count < 2 or models < 2 or not (weights.min(0) >= LEADING).any():
        return ""
    return (
        f"One of the {models} {model}s has at least {LEADING:.0%} of the weight at all {count} clients that have "
        f"trained: {remedy}.".replace("%", " %")
    )


def trained_once(participation: Participation, part: str) -> str:
    """Returns a sentence for `Method.shortfall` if no client has taken part twice.

    Args:
        participation: of the run.
        part: the method's part of each client, such as `"models"`.
    """
    if participation.twice is not False:
        return ""
    return (
        f"No client has taken part twice, so that the {part} of clients were trained once at most: make more "
        "rounds, or sample more clients in each."
    )


def clients_to_train(data: FederatedData) -> np.ndarray:
    """Returns `takes_part` on the host, without a program of JAX."""
    rows = np.asarray(data.train.size) > 0
    return rows if data.held_out is None else rows & ~np.asarray(data.held_out)


def present(data: FederatedData) -> Array:
    """Returns bool `[N]` for clients that are present in this round, held out or not."""
    return jnp.ones(data.num_clients, bool) if data.absent is None else ~jnp.asarray(data.absent)
